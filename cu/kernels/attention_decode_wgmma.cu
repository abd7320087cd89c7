// Attention of few queries by wgmma: step 10 of attention.cu. The rows of a tile are queries of all heads that share a head of
// keys, as in decode.cuh, and the keys of a sequence are divided into parts, one for each CTA. attention_combine of
// attention_decode.cu combines their results. Products and softmax are those of step 4 of attention.cu.
#include "ptxkit/attention/consumer.cuh"
#include "ptxkit/attention/decode.cuh"
#include "ptxkit/ptx/bulk_copy.cuh"

using namespace ptxkit;

// CTAs that share the registers of an SM: two with one warpgroup that multiplies, of which one computes exponentials while the
// other one multiplies.
template <class Tile>
constexpr int DECODE_CTAS = Tile::CONSUMERS == 1 && Tile::REGISTERS > 0 ? 2 : 1;

// A grid has a CTA for each tile of rows, head of keys, part of the keys and sequence, in this order. part_keys: keys of a
// CTA, a multiple of BN. tile_queries: queries of a tile, with the rows of all `heads / kv_heads` heads of each; the box of
// q_map has as many.
template <class T, class Tile, bool CAUSAL>
__global__ void __launch_bounds__(128 * (Tile::CONSUMERS + 1), DECODE_CTAS<Tile>) attention_decode_wgmma(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
    const __grid_constant__ TensorMap v_map, T* o, float* lse, const int* q_starts, const int* k_starts, int tokens,
    int key_tokens, int heads, int kv_heads, float* partial_o, float* partial_lse, int parts, int row_tiles, int part_keys,
    int tile_queries, float scale) {
    constexpr int D = Tile::D, BM = Tile::BM, BN = Tile::BN, STAGES = Tile::STAGES, CONSUMERS = Tile::CONSUMERS;
    constexpr int REGISTERS = Tile::REGISTERS;
    static_assert(!Tile::PING_PONG || CONSUMERS == 2, "two warpgroups alternate");
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned q_tile = cvta_to_shared(shared), k_tiles = q_tile + Tile::k, v_tiles = q_tile + Tile::v;
    const unsigned q_full = q_tile + Tile::barriers, k_full = q_full + 16, k_empty = k_full + 8 * STAGES;
    const unsigned v_full = k_empty + 8 * STAGES, v_empty = v_full + 8 * STAGES;
    const unsigned warp = shfl_sync_idx(all_lanes, threadIdx.x / 32, 0);  // the same in all lanes

    unsigned index = blockIdx.x;
    const int tile = index % row_tiles;
    index /= row_tiles;
    const int kv_head = index % kv_heads, group = heads / kv_heads, used = tile_queries * group;
    index /= kv_heads;
    const int part = index % parts;

    if (threadIdx.x == 0) {
        prefetch_tensormap(q_map);
        prefetch_tensormap(k_map);
        prefetch_tensormap(v_map);
        mbarrier_init(q_full, 1);
        init_ring<STAGES>(k_full, 1, k_empty, 4 * CONSUMERS);
        init_ring<STAGES>(v_full, 1, v_empty, 4 * CONSUMERS);
    }
    // Rows of the tile that hold no query are zero.
    for (int i = used * (D / 8) + threadIdx.x; i < BM * (D / 8); i += 128 * (CONSUMERS + 1)) {
        *reinterpret_cast<uint4*>(shared + tile_offset<BM>(i / (D / 8), i % (D / 8) * 8)) = uint4{};
    }
    fence_proxy_async_shared_cta();
    barrier_sync();
    follow_previous_grid();

    const Sequence sequence(q_starts, k_starts, index / parts);
    const int query = tile * tile_queries;
    if (query >= sequence.q_count) return;
    const int end = sequence.visible_before<CAUSAL>(query + tile_queries), begin = min(end, part * part_keys);
    const int steps = (min(end - begin, part_keys) + BN - 1) / BN;
    if (warp < 4) {
        if constexpr (REGISTERS > 0) setmaxnreg_dec<CONSUMERS == 3 ? 32 : 24>();
        if (warp == 0 && elect_sync(all_lanes)) {
            KeysAndValues<Tile> keys_and_values{k_tiles, v_tiles, k_full, k_empty, v_full, v_empty};
            mbarrier_arrive_expect_tx(q_full, used * D * 2);
            load_rows_of_head<D, BM>(q_tile, q_map, kv_head * group, sequence.q_first + query, q_full);
            keys_and_values.load(k_map, v_map, sequence, key_tokens, kv_head, steps, begin);
        }
    } else {
        if constexpr (REGISTERS > 0) setmaxnreg_inc<REGISTERS>();
        const unsigned number = warp / 4 - 1;
        const int first = number * 64 + warp % 4 * 16 + laneid() / 4;  // row in the tile
        int visible[2];
#pragma unroll
        for (int r = 0; r < 2; r++) visible[r] = sequence.visible<CAUSAL>(query + (first + 8 * r) / group) - begin;
        const int unmasked = (sequence.visible<CAUSAL>(query + int(number) * 64 / group) - begin) / BN;
        Consumer<T, Tile> consumer{q_tile + number * 64 * 128, k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, number};
        consumer.softmax = OnlineSoftmax{scale};
        consumer.clear();
        mbarrier_wait(q_full, 0);
        if (steps > 0) {
            if (Tile::PING_PONG && number == 1) barrier_arrive(1, 256);  // the first warpgroup begins
            const int last = steps - 1;
            consumer.template multiply_tile<false>(last == 0, last >= unmasked, last * BN, visible);
            for (int step = last - 1; step >= 0; step--) {
                consumer.template multiply_tile<Tile::OVERLAP>(step == 0, step >= unmasked, step * BN, visible);
            }
            if constexpr (Tile::OVERLAP) consumer.multiply_values();
        }
        consumer.softmax.finish();
        const DecodeRows<T> out{o, lse, partial_o, partial_lse, tokens, heads, sequence.q_first + query, kv_head * group,
                                group, parts > 1 ? part : -1};
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = first + 8 * r;
            if (row >= used || query + row / group >= sequence.q_count) continue;
            const float maximum = consumer.softmax.maximum[r];
            const auto of_row = out.row(row, {maximum == -infinity() ? maximum : maximum * scale, consumer.softmax.sum[r]});
#pragma unroll
            for (int i = 2 * r; i < D / 2; i += 4) {
                of_row.template store<D>(i / 4 * 8 + laneid() % 4 * 2, consumer.sums[i], consumer.sums[i + 1]);
            }
            if (laneid() % 4 == 0) of_row.store_logarithm();
        }
    }
}
