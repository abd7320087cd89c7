// Attention, forward: o = softmax(scale q k^T) v for each head of each sequence, and the logarithms of the sums of
// exponentials of the rows. q and o have the shape (tokens, heads, D), k and v (tokens, kv_heads, D); heads / kv_heads
// heads share a head of k and v. Elements are bf16 or f16, sums f32. See sequence.cuh for sequences and the mask.
//
// 1. Unfused: the scores and the probabilities of all pairs of a query and a key go through device memory.
// 2. `attention_tiled`: a CTA keeps 64 queries; tiles of keys and values go through shared memory by cp.async, and the
//     softmax is computed tile by tile (online_softmax.cuh). mma.sync, for sm_80 and later.
// 3. `attention_specialized`: a producer warp loads the tiles by TMA; consumer warpgroups multiply 64 queries each by
//     wgmma, the second product with its first operand, the exponentials, in registers.
// 4. The same with OVERLAP: the scores of the next tile are computed during the product with the values of this one, so
//     that the tensor cores have work while the exponentials of a tile are computed; and with PING_PONG: two warpgroups
//     issue products one after the other, so that one computes exponentials while the other one multiplies.
// 5. Persistent CTAs, in an order in which long rows of the causal mask come first.
// 6. `attention_dynamic`: persistent CTAs that take the next tile from a counter when they have room for its queries, those
//     with most keys of the last heads first.
// 7. attention_continuous.cu: the same without a gap between tiles of queries.
// 8. attention_decode.cu: for few queries; the keys of a sequence are divided among CTAs.
// 9. The same with TMA and clusters.
// 10. attention_decode_wgmma.cu: the same by wgmma.
//
// Sources: Dao et al., "FlashAttention" (2022); Dao, "FlashAttention-2" (2023); Shah et al., "FlashAttention-3" (2024).
#include "ptxkit/attention/consumer.cuh"
#include "ptxkit/ptx/bulk_copy.cuh"
#include "ptxkit/ptx/synchronization.cuh"

using namespace ptxkit;

// ---------------------------------------------------------------------------------------------------------------------
// Unfused: `attention_scores`, `attention_softmax`, `attention_values`. scores (f32) and probabilities (T) have the
// shape (heads, all queries, stride), where stride is at least the number of keys of the longest sequence.

enum { UNFUSED = 64 };  // rows and columns of a tile, 16 rows for each of four warps

template <class T, int D, bool CAUSAL>
__global__ void __launch_bounds__(128) attention_scores(const T* q, const T* k, float* scores, const int* q_starts,
                                                        const int* k_starts, int tokens, int heads, int kv_heads,
                                                        int stride, float scale) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned q_tile = cvta_to_shared(shared), k_tile = q_tile + UNFUSED * D * 2;
    const int tiles = (stride - 1) / UNFUSED + 1, head = blockIdx.y, kv_head = head / (heads / kv_heads);
    const int query = blockIdx.x / tiles * UNFUSED, key = blockIdx.x % tiles * UNFUSED;
    follow_previous_grid();
    const Sequence sequence(q_starts, k_starts, blockIdx.z);
    if (query >= sequence.q_count || key >= sequence.k_count) return;

    const size_t q_stride = size_t(heads) * D, k_stride = size_t(kv_heads) * D;
    copy_rows<UNFUSED, D, 128>(q_tile, q + (sequence.q_first + query) * q_stride + head * D, q_stride,
                               sequence.q_count - query);
    copy_rows<UNFUSED, D, 128>(k_tile, k + (sequence.k_first + key) * k_stride + kv_head * D, k_stride,
                               sequence.k_count - key);
    cp_async_wait_all();
    barrier_sync();
    float s[UNFUSED / 2];
    const unsigned row = threadIdx.x / 32 * 16;
    multiply_scores<UNFUSED, UNFUSED, D, T>(s, q_tile, row, k_tile);
    const int first = query + row + laneid() / 4;
    const int visible[2] = {sequence.visible<CAUSAL>(first), sequence.visible<CAUSAL>(first + 8)};
    mask_scores(s, key, visible);
#pragma unroll
    for (int i = 0; i < UNFUSED / 2; i++) {
        const int r = first + i / 2 % 2 * 8, c = key + i / 4 * 8 + laneid() % 4 * 2 + i % 2;
        if (r < sequence.q_count && c < sequence.k_count) {
            scores[(size_t(head) * tokens + sequence.q_first + r) * stride + c] = s[i] * scale;
        }
    }
}

// One warp for each row.
template <class T, int THREADS>
__global__ void __launch_bounds__(THREADS) attention_softmax(const float* scores, T* probabilities, float* lse,
                                                             const int* q_starts, const int* k_starts, int tokens,
                                                             int heads, int stride) {
    follow_previous_grid();
    const Sequence sequence(q_starts, k_starts, blockIdx.z);
    const int query = blockIdx.x * (THREADS / 32) + threadIdx.x / 32, lane = laneid();
    if (query >= sequence.q_count) return;
    const size_t row = size_t(blockIdx.y) * tokens + sequence.q_first + query;
    float highest = -infinity(), sum = 0;
    for (int c = lane; c < sequence.k_count; c += 32) highest = fmaxf(highest, scores[row * stride + c]);
    highest = warp_max<32>(highest);
    constexpr float log2e = 1.44269504088896f, ln2 = 0.693147180559945f;
    const float base = highest == -infinity() ? 0 : highest;
    for (int c = lane; c < sequence.k_count; c += 32) sum += ex2_approx_ftz((scores[row * stride + c] - base) * log2e);
    sum = warp_sum<32>(sum);
    const float factor = sum == 0 ? 0 : 1 / sum;
    for (int c = lane; c < sequence.k_count; c += 32) {
        const float exponential = ex2_approx_ftz((scores[row * stride + c] - base) * log2e);
        probabilities[row * stride + c] = Convert<T>::from_f32(exponential * factor);
    }
    if (lane == 0) lse[row] = sum == 0 ? -infinity() : base + lg2_approx(sum) * ln2;
}

template <class T, int D>
__global__ void __launch_bounds__(128) attention_values(const T* probabilities, const T* v, T* o, const int* q_starts,
                                                        const int* k_starts, int tokens, int heads, int kv_heads,
                                                        int stride) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned v_tile = cvta_to_shared(shared), lane = laneid();
    const int head = blockIdx.y, kv_head = head / (heads / kv_heads), query = blockIdx.x * UNFUSED;
    follow_previous_grid();
    const Sequence sequence(q_starts, k_starts, blockIdx.z);
    if (query >= sequence.q_count) return;
    const size_t v_stride = size_t(kv_heads) * D;
    const int row = query + threadIdx.x / 32 * 16 + lane / 4;
    const T* p = probabilities + (size_t(head) * tokens + sequence.q_first + row) * stride;
    auto at = [&](int r, int c) -> unsigned {
        const bool inside = row + r < sequence.q_count;
        const T zero = Convert<T>::from_f32(0);
        const T low = inside && c < sequence.k_count ? p[size_t(r) * stride + c] : zero;
        const T high = inside && c + 1 < sequence.k_count ? p[size_t(r) * stride + c + 1] : zero;
        return Convert<T>::pack(to_f32(low), to_f32(high));
    };
    float sums[D / 2] = {};
    for (int key = 0; key < sequence.k_count; key += UNFUSED) {
        barrier_sync();  // all warps have read the previous tile
        copy_rows<UNFUSED, D, 128>(v_tile, v + (sequence.k_first + key) * v_stride + kv_head * D, v_stride,
                                   sequence.k_count - key);
        cp_async_wait_all();
        barrier_sync();
#pragma unroll
        for (int i = 0; i < UNFUSED; i += 16) {
            const int c = key + i + lane % 4 * 2;
            multiply_values<UNFUSED, D, T>(sums, {at(0, c), at(8, c), at(0, c + 8), at(8, c + 8)}, v_tile, i);
        }
    }
    T* out = o + (size_t(sequence.q_first + row) * heads + head) * D + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < D / 2; i += 2) {
        const int r = i / 2 % 2 * 8;
        if (row + r < sequence.q_count) {
            *reinterpret_cast<unsigned*>(out + size_t(r) * heads * D + i / 4 * 8) =
                Convert<T>::pack(sums[i], sums[i + 1]);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Tiled, by mma.sync

// BM: queries of a CTA, 16 for each warp. BN: keys of a tile. Two tiles of keys and values each are in shared memory.
template <class T, int D, int BM, int BN, bool CAUSAL>
__global__ void __launch_bounds__(2 * BM) attention_tiled(const T* q, const T* k, const T* v, T* o, float* lse,
                                                          const int* q_starts, const int* k_starts, int tokens,
                                                          int heads, int kv_heads, float scale) {
    constexpr int THREADS = 2 * BM, q_bytes = BM * D * 2, tile_bytes = BN * D * 2;
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned q_tile = cvta_to_shared(shared), k_tiles = q_tile + q_bytes, v_tiles = k_tiles + 2 * tile_bytes;
    const int head = blockIdx.y, kv_head = head / (heads / kv_heads);
    // With a causal mask the last queries see most keys: their CTAs start first.
    const int query = (CAUSAL ? gridDim.x - 1 - blockIdx.x : blockIdx.x) * BM;
    follow_previous_grid();
    const Sequence sequence(q_starts, k_starts, blockIdx.z);
    if (query >= sequence.q_count) return;

    const size_t q_stride = size_t(heads) * D, k_stride = size_t(kv_heads) * D;
    const T *first_k = k + sequence.k_first * k_stride + kv_head * D,
            *first_v = v + sequence.k_first * k_stride + kv_head * D;
    const int steps = (sequence.visible_before<CAUSAL>(query + BM) + BN - 1) / BN;
    auto copy = [&](unsigned tiles, const T* from, int step) {
        if (step >= 0) {
            copy_rows<BN, D, THREADS>(tiles + step % 2 * tile_bytes, from + step * BN * k_stride, k_stride,
                                      sequence.k_count - step * BN);
        }
        cp_async_commit_group();
    };
    copy_rows<BM, D, THREADS>(q_tile, q + (sequence.q_first + query) * q_stride + head * D, q_stride,
                              sequence.q_count - query);
    copy(k_tiles, first_k, steps - 1);
    copy(v_tiles, first_v, steps - 1);

    const unsigned row = threadIdx.x / 32 * 16;
    const int first = query + row + laneid() / 4;
    const int visible[2] = {sequence.visible<CAUSAL>(first), sequence.visible<CAUSAL>(first + 8)};
    const int unmasked = sequence.visible<CAUSAL>(query) / BN;  // tiles that all rows see
    OnlineSoftmax softmax{scale};
    float sums[D / 2] = {};
    // From the last tile to the first, so that the masked ones come first.
    for (int step = steps - 1; step >= 0; step--) {
        copy(k_tiles, first_k, step - 1);
        copy(v_tiles, first_v, step - 1);
        cp_async_wait_group<3>();  // this tile's keys
        barrier_sync();
        float s[BN / 2], factor[2];
        multiply_scores<BM, BN, D, T>(s, q_tile, row, k_tiles + step % 2 * tile_bytes);
        if (step >= unmasked) mask_scores(s, step * BN, visible);
        softmax.add(s, factor);
        scale_rows(sums, factor);
        cp_async_wait_group<2>();  // this tile's values
        barrier_sync();
#pragma unroll
        for (int i = 0; i < BN / 16; i++) {
            unsigned p[4];
            pack_operand<T>(p, s, i);
            multiply_values<BN, D, T>(sums, p, v_tiles + step % 2 * tile_bytes, 16 * i);
        }
        barrier_sync();  // all warps have read the tiles
    }
    cp_async_wait_all();
    barrier_sync();  // results replace the queries, which all threads have copied: also if no key was visible
    store_rows<BM, D>(sums, softmax, shared, row,
                      WarpRows<T>(o, lse, sequence, query + row, tokens, heads, head, D));
}

// ---------------------------------------------------------------------------------------------------------------------
// Specialized, by TMA and wgmma

// The body of both kernels: `tiles` tiles of queries for each of `heads` heads of each sequence. Without `next`, work items
// `blockIdx.x`, `blockIdx.x + gridDim.x`, ... With DYNAMIC, the first of these, and then those that the counter `next`
// gives out, of the first `alone` heads and then in sections of `section` heads (AttentionWork). The producer takes a work
// item when it loads the queries of the one before, and passes it to the consumers together with its queries. The counter
// is 0 before and after the launch: the CTAs take as many numbers as there are work items, the last of each is beyond them,
// and atomicInc begins with 0 after these.
template <class T, class Tile, bool CAUSAL, bool DYNAMIC>
__device__ __forceinline__ void attend(const TensorMap& q_map, const TensorMap& k_map, const TensorMap& v_map, T* o,
                                       float* lse, const int* q_starts, const int* k_starts, int tokens, int key_tokens,
                                       int heads, int kv_heads, int tiles, int sequences, float scale, unsigned* next = nullptr,
                                       unsigned section = 1, unsigned alone = 0) {
    constexpr int D = Tile::D, BM = Tile::BM, BN = Tile::BN, STAGES = Tile::STAGES, CONSUMERS = Tile::CONSUMERS;
    constexpr int REGISTERS = Tile::REGISTERS;
    static_assert(!Tile::PING_PONG || CONSUMERS == 2, "two warpgroups alternate");
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned q_tile = cvta_to_shared(shared), k_tiles = q_tile + Tile::k, v_tiles = q_tile + Tile::v;
    const unsigned q_full = q_tile + Tile::barriers, q_empty = q_full + 8;
    const unsigned k_full = q_empty + 8, k_empty = k_full + 8 * STAGES;
    const unsigned v_full = k_empty + 8 * STAGES, v_empty = v_full + 8 * STAGES;
    // The shuffle tells the compiler that the value is the same in all lanes.
    const unsigned warp = shfl_sync_idx(all_lanes, threadIdx.x / 32, 0);

    if (threadIdx.x == 0) {
        prefetch_tensormap(q_map);
        prefetch_tensormap(k_map);
        prefetch_tensormap(v_map);
        mbarrier_init(q_full, 1);
        mbarrier_init(q_empty, 4 * CONSUMERS);  // one lane of each warp
        init_ring<STAGES>(k_full, 1, k_empty, 4 * CONSUMERS);
        init_ring<STAGES>(v_full, 1, v_empty, 4 * CONSUMERS);
    }
    barrier_sync();
    follow_previous_grid();

    const unsigned works = unsigned(tiles) * heads * sequences;
    __shared__ unsigned taken;  // with DYNAMIC, the work item whose queries are in shared memory; `works` after the last one
    auto work_at = [&](unsigned index) {
        if constexpr (DYNAMIC) return AttentionWork(index, tiles, heads, sequences, section, alone, CAUSAL);
        else return AttentionWork(index, tiles, heads, CAUSAL);
    };
    unsigned q_parity = 0;
    if (warp < 4) {
        if constexpr (REGISTERS > 0) setmaxnreg_dec<CONSUMERS == 3 ? 32 : 24>();
        if (warp == 0 && elect_sync(all_lanes)) {
            KeysAndValues<Tile> keys_and_values{k_tiles, v_tiles, k_full, k_empty, v_full, v_empty};
            unsigned following = 0;
            auto after = [&](unsigned index) { return DYNAMIC ? following : index + gridDim.x; };
            for (unsigned index = blockIdx.x; index < works; index = after(index)) {
                if constexpr (DYNAMIC) following = gridDim.x + atomicInc(next, works - 1);
                const AttentionWork work = work_at(index);
                const Sequence sequence(q_starts, k_starts, work.sequence);
                const int query = work.tile * BM;
                if (query >= sequence.q_count) continue;
                const int steps = (sequence.visible_before<CAUSAL>(query + BM) + BN - 1) / BN;
                const int kv_head = work.head / (heads / kv_heads);
                mbarrier_wait(q_empty, q_parity ^ 1);
                if constexpr (DYNAMIC) taken = index;
                mbarrier_arrive_expect_tx(q_full, Tile::q_bytes);
                load_rows_of_head<D, BM>(q_tile, q_map, work.head, sequence.q_first + query, q_full);
                q_parity ^= 1;
                keys_and_values.load(k_map, v_map, sequence, key_tokens, kv_head, steps);
            }
            if constexpr (DYNAMIC) {
                mbarrier_wait(q_empty, q_parity ^ 1);
                taken = works;
                mbarrier_arrive(q_full);
            }
        }
    } else {
        if constexpr (REGISTERS > 0) setmaxnreg_inc<REGISTERS>();
        const unsigned number = warp / 4 - 1;
        Consumer<T, Tile> consumer{q_tile + number * 64 * 128, k_tiles, v_tiles, k_full, k_empty, v_full, v_empty,
                                   number};
        for (unsigned index = blockIdx.x; DYNAMIC || index < works; index += gridDim.x) {
            if constexpr (DYNAMIC) {
                mbarrier_wait(q_full, q_parity);
                index = taken;
                if (index == works) break;
            }
            const AttentionWork work = work_at(index);
            const Sequence sequence(q_starts, k_starts, work.sequence);
            const int query = work.tile * BM;
            if (query >= sequence.q_count) continue;
            const int steps = (sequence.visible_before<CAUSAL>(query + BM) + BN - 1) / BN;
            const int row = query + number * 64 + warp % 4 * 16, first = row + laneid() / 4;
            const int visible[2] = {sequence.visible<CAUSAL>(first), sequence.visible<CAUSAL>(first + 8)};
            const int unmasked = sequence.visible<CAUSAL>(query + number * 64) / BN;  // tiles that all rows see
            consumer.softmax = OnlineSoftmax{scale};
            consumer.clear();
            if constexpr (!DYNAMIC) mbarrier_wait(q_full, q_parity);
            q_parity ^= 1;
            if (steps > 0) {
                if (Tile::PING_PONG && number == 1) barrier_arrive(1, 256);  // the first warpgroup begins
                const int last = steps - 1;
                consumer.template multiply_tile<false>(last == 0, last >= unmasked, last * BN, visible);
                for (int step = last - 1; step >= 0; step--) {
                    consumer.template multiply_tile<Tile::OVERLAP>(step == 0, step >= unmasked, step * BN, visible);
                }
                if constexpr (Tile::OVERLAP) consumer.multiply_values();
            }
            barrier_sync(3 + number, 128);  // all warps of the warpgroup have multiplied the queries
            store_rows<BM, D>(consumer.sums, consumer.softmax, shared, number * 64 + warp % 4 * 16,
                              WarpRows<T>(o, lse, sequence, row, tokens, heads, work.head, D));
            fence_proxy_async_shared_cta();  // before the next queries replace the results
            __syncwarp();
            consumer.signal(q_empty);
        }
    }
}

template <class T, class Tile, bool CAUSAL>
__global__ void __launch_bounds__(128 * (Tile::CONSUMERS + 1), 1) attention_specialized(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
    const __grid_constant__ TensorMap v_map, T* o, float* lse, const int* q_starts, const int* k_starts, int tokens,
    int key_tokens, int heads, int kv_heads, int tiles, int sequences, float scale) {
    attend<T, Tile, CAUSAL, false>(q_map, k_map, v_map, o, lse, q_starts, k_starts, tokens, key_tokens, heads,
                                   kv_heads, tiles, sequences, scale);
}

template <class T, class Tile, bool CAUSAL>
__global__ void __launch_bounds__(128 * (Tile::CONSUMERS + 1), 1) attention_dynamic(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
    const __grid_constant__ TensorMap v_map, T* o, float* lse, const int* q_starts, const int* k_starts, int tokens,
    int key_tokens, int heads, int kv_heads, int tiles, int sequences, float scale, unsigned* next, unsigned section,
    unsigned alone) {
    attend<T, Tile, CAUSAL, true>(q_map, k_map, v_map, o, lse, q_starts, k_starts, tokens, key_tokens, heads,
                                  kv_heads, tiles, sequences, scale, next, section, alone);
}
