// Step 5 of attention_e4m3 (attention_e4m3.cu): persistent CTAs whose tiles of queries follow each other without a gap, in the
// form of attention_continuous.cu.
//
// The CTA that is free takes the next tile from a counter, which the launch that transposes the values sets to 0. There are
// two tiles of queries in shared memory: the first scores of the next one are computed during the last product with values of
// this one, whose results are stored while the other warpgroup multiplies. Results have twice the size of queries and
// therefore room of their own.
#include "ptxkit/attention/consumer.cuh"
#include "ptxkit/attention/e4m3_consumer.cuh"
#include "ptxkit/ptx/bulk_copy.cuh"
#include "ptxkit/ptx/synchronization.cuh"

using namespace ptxkit;

// Parameters as those of E4m3Tile. The description gives them by name (E4m3ContinuousTile in
// ptxkit/kernels/attention/attention_e4m3.py).
template <int D, int BN, int STAGES, bool OVERLAP, bool PING_PONG, bool LATE_WAIT>
struct E4m3ContinuousTile : E4m3Tile<D, BN, STAGES, OVERLAP, PING_PONG, LATE_WAIT> {
    using Base = E4m3Tile<D, BN, STAGES, OVERLAP, PING_PONG, LATE_WAIT>;
    static constexpr int Q_STAGES = 2;  // tiles of queries in shared memory
    static constexpr int k = Q_STAGES * Base::q_bytes, v = k + STAGES * Base::tile_bytes;
    static constexpr int results = v + STAGES * Base::tile_bytes, barriers = results + Base::BM * D * 2;
    static_assert(OVERLAP && LATE_WAIT, "the first scores of the next queries are computed during a product with values");
};

// The scales of a head, and where a warp stores its results.
struct E4m3Rows {
    WarpRows<bf16> rows;
    float value_scale;
};

// See attention_e4m3 for the arguments. next: a counter that is 0; section, alone: see
// AttentionWork. The number of a work item is with the queries in shared memory; `works` follows the last one.
template <class Tile, bool CAUSAL>
__global__ void __launch_bounds__(128 * (Tile::CONSUMERS + 1), 1) attention_e4m3_continuous(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
    const __grid_constant__ TensorMap v_map, const float* q_scales, const float* k_scales, const float* v_scales,
    bf16* o, float* lse, const int* q_starts, const int* k_starts, int tokens, int heads, int kv_heads, int tiles,
    int sequences, float scale, unsigned* next, unsigned section, unsigned alone) {
    constexpr int D = Tile::D, BM = Tile::BM, BN = Tile::BN, STAGES = Tile::STAGES, CONSUMERS = Tile::CONSUMERS;
    constexpr int span = Tile::k_span, Q_STAGES = Tile::Q_STAGES;
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ unsigned items[Q_STAGES];  // the work items of the queries
    const unsigned q_tiles = cvta_to_shared(shared), k_tiles = q_tiles + Tile::k, v_tiles = q_tiles + Tile::v;
    const unsigned q_full = q_tiles + Tile::barriers, q_empty = q_full + 8 * Q_STAGES;
    const unsigned k_full = q_empty + 8 * Q_STAGES, k_empty = k_full + 8 * STAGES;
    const unsigned v_full = k_empty + 8 * STAGES, v_empty = v_full + 8 * STAGES;
    // The shuffle tells the compiler that the value is the same in all lanes.
    const unsigned warp = shfl_sync_idx(all_lanes, threadIdx.x / 32, 0);

    if (threadIdx.x == 0) {
        prefetch_tensormap(q_map);
        prefetch_tensormap(k_map);
        prefetch_tensormap(v_map);
        init_ring<Q_STAGES>(q_full, 1, q_empty, 4 * CONSUMERS);  // one lane of each warp
        init_ring<STAGES>(k_full, 1, k_empty, 4 * CONSUMERS);
        init_ring<STAGES>(v_full, 1, v_empty, 4 * CONSUMERS);
    }
    barrier_sync();
    follow_previous_grid();

    const unsigned works = unsigned(tiles) * heads * sequences;
    Ring<Q_STAGES> q_at;
    if (warp < 4) {
        setmaxnreg_dec<24>();
        if (warp == 0 && elect_sync(all_lanes)) {
            E4m3KeysAndValues<Tile> keys_and_values{k_tiles, v_tiles, k_full, k_empty, v_full, v_empty};
            unsigned following = 0;
            for (unsigned index = blockIdx.x; index < works; index = following) {
                following = gridDim.x + atomicInc(next, works - 1);
                const AttentionWork work(index, tiles, heads, sequences, section, alone, CAUSAL);
                const Sequence sequence(q_starts, k_starts, work.sequence);
                const int query = work.tile * BM, column = first_column(k_starts, work.sequence);
                if (query >= sequence.q_count) continue;
                const unsigned q_tile = q_tiles + q_at.stage * Tile::q_bytes, loaded = q_full + 8 * q_at.stage;
                mbarrier_wait(q_empty + 8 * q_at.stage, q_at.parity ^ 1);
                items[q_at.stage] = index;
                mbarrier_arrive_expect_tx(loaded, Tile::q_bytes);
                for (int d = 0; d < D; d += span) {
                    cp_async_bulk_tensor_3d_shared_global(q_tile + d * BM, q_map, d, work.head, sequence.q_first + query,
                                                          loaded);
                }
                q_at.advance();
                const int kv_head = work.head / (heads / kv_heads);
                const int steps = (sequence.visible_before<CAUSAL>(query + BM) + BN - 1) / BN;
                keys_and_values.load(k_map, v_map, sequence, column, kv_head, steps);
            }
            mbarrier_wait(q_empty + 8 * q_at.stage, q_at.parity ^ 1);
            items[q_at.stage] = works;
            mbarrier_arrive(q_full + 8 * q_at.stage);
        }
    } else {
        setmaxnreg_inc<Tile::REGISTERS>();
        const unsigned number = warp / 4 - 1, row = number * 64 + warp % 4 * 16;  // of the warp in its tile of queries
        E4m3Consumer<Tile> consumer{0, k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, number};
        E4m3Rows rows{};  // of the queries whose results are in consumer.sums
        auto store = [&](RaisedSoftmax<8>& softmax) {
            store_rows<BM, D>(consumer.sums, softmax, shared + Tile::results, row, rows.rows, rows.value_scale);
            __syncwarp();  // before the next results
        };
        bool begun = false;  // there are results that have not been stored
        auto finish = [&] {
            if (!begun) return;
            consumer.multiply_values();
            store(consumer.softmax);
            if (Tile::PING_PONG && number == 0) barrier_sync(1, 256);  // the second warpgroup has arrived once more
            begun = false;
        };
        while (true) {
            mbarrier_wait(q_full + 8 * q_at.stage, q_at.parity);
            const unsigned index = items[q_at.stage];
            if (index == works) {
                finish();
                break;
            }
            const AttentionWork work(index, tiles, heads, sequences, section, alone, CAUSAL);
            const Sequence sequence(q_starts, k_starts, work.sequence);
            const int query = work.tile * BM, first = query + row + laneid() / 4, kv_head = work.head / (heads / kv_heads);
            const int last = (sequence.visible_before<CAUSAL>(query + BM) + BN - 1) / BN - 1;
            const int visible[2] = {sequence.visible<CAUSAL>(first), sequence.visible<CAUSAL>(first + 8)};
            const int unmasked = sequence.visible<CAUSAL>(query + number * 64) / BN;  // tiles that all rows see
            const E4m3Rows following{{o, lse, sequence, query + int(row), tokens, heads, work.head, D}, v_scales[kv_head]};
            const RaisedSoftmax<8> softmax{scale * q_scales[work.head] * k_scales[kv_head]};
            consumer.q_rows = q_tiles + q_at.stage * Tile::q_bytes + number * 64 * span;
            if (last < 0) {
                finish();
                store_nothing<D>(following.rows);
            } else if (begun) {
                consumer.multiply_first_tile(last >= unmasked, last * BN, visible, softmax, store);
            } else {
                if (Tile::PING_PONG && number == 1) barrier_arrive(1, 256);  // the first warpgroup begins
                consumer.softmax = softmax;
                consumer.clear();
                consumer.template multiply_tile<false>(false, last >= unmasked, last * BN, visible);
                begun = true;
            }
            for (int step = last - 1; step >= 0; step--) {
                consumer.template multiply_tile<true>(false, step >= unmasked, step * BN, visible);
            }
            if (last >= 0) rows = following;
            __syncwarp();  // all lanes have read the number of the work item
            consumer.signal(q_empty + 8 * q_at.stage);  // all scores have been computed
            q_at.advance();
        }
    }
}
