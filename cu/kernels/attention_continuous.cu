// Step 7 of attention (attention.cu): as step 6, and tiles of queries follow each other without a gap.
//
// At the end of a tile of queries, a warpgroup of step 6 waits for its last product with values, stores its results through
// the shared memory of the queries, and only then are the next queries loaded. Here there are two tiles of queries in shared
// memory. The first scores of the next one are computed during the last product with values of this one, and results are
// stored after the products that follow have been issued by the other warpgroup.
//
// Exponentials are relative to a maximum of the row that is only raised if it is exceeded by a factor of 2^8, so that results
// are rarely multiplied by a factor (OnlineSoftmax::raise).
#include "ptxkit/ptx/wgmma_columns.cuh"  // before the templates that multiply tiles of 144, 160 or 176 keys

#include "ptxkit/attention/continuous_consumer.cuh"
#include "ptxkit/ptx/bulk_copy.cuh"
#include "ptxkit/ptx/synchronization.cuh"

using namespace ptxkit;

// Parameters as those of AttentionTile. The description gives them by name (ContinuousTile in
// ptxkit/kernels/attention/tiles.py).
template <int D, int CONSUMERS, int BN, int STAGES, bool PING_PONG, int REGISTERS, int RESCALE_ABOVE_>
struct ContinuousTile : AttentionTile<D, CONSUMERS, BN, STAGES, true, PING_PONG, REGISTERS> {
    using Base = AttentionTile<D, CONSUMERS, BN, STAGES, true, PING_PONG, REGISTERS>;
    static constexpr int RESCALE_ABOVE = RESCALE_ABOVE_;
    static constexpr int Q_STAGES = 2;  // tiles of queries in shared memory
    static constexpr int k = Q_STAGES * Base::q_bytes, v = k + STAGES * Base::tile_bytes;
    static constexpr int barriers = v + STAGES * Base::tile_bytes;
};

// Sets the counter of a launch that follows to 0, so that it may be in memory that other launches used before.
template <class T>
__global__ void attention_clear(T* next) {
    follow_previous_grid();
    *next = 0;
}

// See attend in attention.cu for the arguments and the counter `next`.
template <class T, class Tile, bool CAUSAL>
__global__ void __launch_bounds__(128 * (Tile::CONSUMERS + 1), 1) attention_continuous(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
    const __grid_constant__ TensorMap v_map, T* o, float* lse, const int* q_starts, const int* k_starts, int tokens,
    int key_tokens, int heads, int kv_heads, int tiles, int sequences, float scale, unsigned* next, unsigned section,
    unsigned alone) {
    constexpr int D = Tile::D, BM = Tile::BM, BN = Tile::BN, STAGES = Tile::STAGES, CONSUMERS = Tile::CONSUMERS;
    constexpr int REGISTERS = Tile::REGISTERS, Q_STAGES = Tile::Q_STAGES;
    static_assert(!Tile::PING_PONG || CONSUMERS == 2, "two warpgroups alternate");
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ PassedQueries passed[Q_STAGES];
    const unsigned q_tiles = cvta_to_shared(shared), k_tiles = q_tiles + Tile::k, v_tiles = q_tiles + Tile::v;
    const unsigned q_full = q_tiles + Tile::barriers, q_empty = q_full + 8 * Q_STAGES;
    const unsigned k_full = q_empty + 8 * Q_STAGES, k_empty = k_full + 8 * STAGES;
    const unsigned v_full = k_empty + 8 * STAGES, v_empty = v_full + 8 * STAGES;
    const unsigned warp = shfl_sync_idx(all_lanes, threadIdx.x / 32, 0);

    if (threadIdx.x == 0) {
        prefetch_tensormap(q_map);
        prefetch_tensormap(k_map);
        prefetch_tensormap(v_map);
        init_ring<Q_STAGES>(q_full, 1, q_empty, 4 * CONSUMERS);
        init_ring<STAGES>(k_full, 1, k_empty, 4 * CONSUMERS);
        init_ring<STAGES>(v_full, 1, v_empty, 4 * CONSUMERS);
    }
    barrier_sync();
    follow_previous_grid();

    const unsigned works = unsigned(tiles) * heads * sequences;
    Ring<Q_STAGES> q_at;
    if (warp < 4) {
        if constexpr (REGISTERS > 0) setmaxnreg_dec<CONSUMERS == 3 ? 32 : 24>();
        if (warp == 0 && elect_sync(all_lanes)) {
            KeysAndValues<Tile> keys_and_values{k_tiles, v_tiles, k_full, k_empty, v_full, v_empty};
            unsigned following = 0;
            for (unsigned index = blockIdx.x; index < works; index = following) {
                following = gridDim.x + atomicInc(next, works - 1);
                const AttentionWork work(index, tiles, heads, sequences, section, alone, CAUSAL);
                const Sequence sequence(q_starts, k_starts, work.sequence);
                const int query = work.tile * BM;
                if (query >= sequence.q_count) continue;
                const unsigned q_tile = q_tiles + q_at.stage * Tile::q_bytes, loaded = q_full + 8 * q_at.stage;
                mbarrier_wait(q_empty + 8 * q_at.stage, q_at.parity ^ 1);
                passed[q_at.stage] = {query, work.head, sequence.q_first, sequence.q_count, sequence.k_count};
                mbarrier_arrive_expect_tx(loaded, Tile::q_bytes);
                load_rows_of_head<D, BM>(q_tile, q_map, work.head, sequence.q_first + query, loaded);
                q_at.advance();
                const int kv_head = work.head / (heads / kv_heads);
                const int steps = (sequence.visible_before<CAUSAL>(query + BM) + BN - 1) / BN;
                keys_and_values.load(k_map, v_map, sequence, key_tokens, kv_head, steps);
            }
            mbarrier_wait(q_empty + 8 * q_at.stage, q_at.parity ^ 1);
            passed[q_at.stage].query = -1;
            mbarrier_arrive(q_full + 8 * q_at.stage);
        }
    } else {
        if constexpr (REGISTERS > 0) setmaxnreg_inc<REGISTERS>();
        const unsigned number = warp / 4 - 1, row = number * 64 + warp % 4 * 16;  // of the warp in its tile of queries
        ContinuousConsumer<T, Tile> consumer{{0, k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, number}};
        WarpRows<T> rows{};    // of the queries whose results are in consumer.sums
        unsigned rows_at = 0;  // their tile in shared memory
        auto store = [&](OnlineSoftmax& softmax) {
            barrier_sync(3 + number, 128);  // all warps of the warpgroup have multiplied these queries
            store_rows<BM, D>(consumer.sums, softmax, shared + rows_at * Tile::q_bytes, row, rows);
            fence_proxy_async_shared_cta();  // before other queries replace the results
            __syncwarp();
            consumer.signal(q_empty + 8 * rows_at);
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
            const PassedQueries queries = passed[q_at.stage];
            if (queries.query < 0) {
                finish();
                break;
            }
            const Sequence sequence = queries.sequence();
            const int query = queries.query, first = query + row + laneid() / 4;
            const int last = (sequence.visible_before<CAUSAL>(query + BM) + BN - 1) / BN - 1;
            const int visible[2] = {sequence.visible<CAUSAL>(first), sequence.visible<CAUSAL>(first + 8)};
            const int unmasked = sequence.visible<CAUSAL>(query + number * 64) / BN;  // tiles that all rows see
            const WarpRows<T> following(o, lse, sequence, query + row, tokens, heads, queries.head, D);
            if (last < 0) {
                finish();  // the producer waits for the place of the queries before it loads others
                store_nothing<D>(following);
                __syncwarp();  // all lanes have read what was passed with the queries
                consumer.signal(q_empty + 8 * q_at.stage);
                q_at.advance();
                continue;
            }
            consumer.q_rows = q_tiles + q_at.stage * Tile::q_bytes + number * 64 * 128;
            if (begun) {
                consumer.multiply_first_tile(last >= unmasked, last * BN, visible, store);
            } else {
                if (Tile::PING_PONG && number == 1) barrier_arrive(1, 256);  // the first warpgroup begins
                consumer.softmax = OnlineSoftmax{scale};
                consumer.clear();
                consumer.template multiply_tile<false>(last >= unmasked, last * BN, visible);
                begun = true;
            }
            for (int step = last - 1; step >= 0; step--) {
                consumer.template multiply_tile<true>(step >= unmasked, step * BN, visible);
            }
            rows = following;
            rows_at = q_at.stage;
            q_at.advance();
        }
    }
}
