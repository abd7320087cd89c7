// Attention, backward: the gradients dq, dk and dv of o = softmax(scale q k^T) v for each head of each sequence, from
// q, k, v, o, the logarithms of the sums of exponentials that the forward kernel stored, and the gradient of o. Shapes
// are those of attention.cu; where heads share a head of k and v, dk and dv are sums over these heads. Elements are
// bf16 or f16, sums f32. ptxkit/attention/backward.cuh has the formulas.
//
// 1. Unfused: scores, probabilities, dP and dS of all pairs of a query and a key go through device memory.
// 2. `attention_backward_keys` and `attention_backward_queries`: a CTA keeps a tile of keys and computes dk and dv, and
//    another one keeps a tile of queries and computes dq; both compute the probabilities again from the scores, by
//    mma.sync.
// 3. `attention_backward_keys` with ATOMICS also adds its share of dq to f32 sums in device memory, which
//    `attention_backward_convert` rounds: five products instead of seven, but in an order that differs between runs.
// 4. `attention_backward_specialized`: the same with wgmma and TMA. Two producer warps load tiles, two warpgroups
//    multiply 64 keys each, and two warps add their shares of dq to the sums by cp.reduce.async.bulk.
// 5. The same with OVERLAP: products run while probabilities and dS are computed.
// 6. Persistent CTAs.
// 7. DEFERRED: the product for dk runs until the next scores have been computed.
//
// Sources: Dao et al., "FlashAttention" (2022), section B.4; Dao, "FlashAttention-2" (2023), section 3.1.2. The
// division of the work among warps follows Shah et al., "FlashAttention-3" (2024), section 3 and appendix B.
#include "ptxkit/attention/backward.cuh"
#include "ptxkit/attention/wgmma_tiles.cuh"
#include "ptxkit/ptx/bulk_copy.cuh"
#include "ptxkit/ptx/mbarrier.cuh"
#include "ptxkit/ptx/synchronization.cuh"
#include "ptxkit/ptx/wgmma_registers.cuh"

using namespace ptxkit;

// ---------------------------------------------------------------------------------------------------------------------
// Launches before and after the others

// For each query: delta, and its logarithm of the sum of exponentials times log2(e), infinity if there is no visible
// key, both (heads, padded) with the rows of padded_first. Sets the sums of dq to zero unless dq_sums is null.
template <class T, int D, int THREADS>
__global__ void __launch_bounds__(THREADS) attention_backward_delta(const T* o, const T* d_o, const float* lse,
                                                                    float* scaled_lse, float* delta, float4* dq_sums,
                                                                    const int* q_starts, int tokens, int heads,
                                                                    int padded) {
    constexpr int lanes = D / 8;  // that have a row, 16 bytes each
    constexpr float log2e = 1.44269504088896f;
    follow_previous_grid();
    const Sequence sequence(q_starts, q_starts, blockIdx.z);
    const int query = blockIdx.x * (THREADS / lanes) + threadIdx.x / lanes, head = blockIdx.y;
    if (query >= (sequence.q_count + PADDING - 1) / PADDING * PADDING) return;  // all threads of a warp, or none

    const bool inside = query < sequence.q_count;
    float sum = 0;
    if (inside) {
        const size_t at = (size_t(sequence.q_first + query) * heads + head) * D + threadIdx.x % lanes * 8;
        const uint4 a = *reinterpret_cast<const uint4*>(o + at), b = *reinterpret_cast<const uint4*>(d_o + at);
        const unsigned pairs[2][4] = {{a.x, a.y, a.z, a.w}, {b.x, b.y, b.z, b.w}};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            sum += Convert<T>::low(pairs[0][i]) * Convert<T>::low(pairs[1][i]);
            sum += Convert<T>::high(pairs[0][i]) * Convert<T>::high(pairs[1][i]);
        }
    }
    sum = warp_sum<lanes>(sum);
    const size_t row = size_t(head) * padded + padded_first(sequence.q_first, blockIdx.z) + query;
    if (threadIdx.x % lanes == 0) {
        const float sums = inside ? lse[size_t(head) * tokens + sequence.q_first + query] : -infinity();
        scaled_lse[row] = sums == -infinity() ? infinity() : sums * log2e;
        delta[row] = sum;
    }
    if (dq_sums != nullptr) {
        float4* sums = dq_sums + row * (D / 4) + threadIdx.x % lanes;
        sums[0] = sums[lanes] = make_float4(0, 0, 0, 0);
    }
}

// dq from its sums. A CTA has 64 queries.
template <class T, int D>
__global__ void __launch_bounds__(128) attention_backward_convert(const float4* dq_sums, T* dq, const int* q_starts,
                                                                  int heads, int padded, float scale) {
    __shared__ __align__(1024) unsigned char tile[64 * D * 2];
    follow_previous_grid();
    const Sequence sequence(q_starts, q_starts, blockIdx.z);
    const int query = blockIdx.x * 64, head = blockIdx.y, row = threadIdx.x / 32 * 16;
    if (query >= sequence.q_count) return;
    const float4* from =
        dq_sums + (size_t(head) * padded + padded_first(sequence.q_first, blockIdx.z) + query) * (D / 4) + threadIdx.x;
    float sums[D / 2];
#pragma unroll
    for (int i = 0; i < D / 8; i++) {
        const float4 four = from[i * 128];
        sums[4 * i] = four.x * scale, sums[4 * i + 1] = four.y * scale;
        sums[4 * i + 2] = four.z * scale, sums[4 * i + 3] = four.w * scale;
    }
    store_through_tile<64, D>(sums, tile, row, dq + (size_t(sequence.q_first + query + row) * heads + head) * D,
                              size_t(heads) * D, sequence.q_count - query - row);
}

// ---------------------------------------------------------------------------------------------------------------------
// Unfused. Scores and dP (f32), probabilities and dS (T) have the shape (heads, all queries, stride) and are computed,
// like the product of dS and the keys, by kernels of attention.cu.

// Probabilities from scores, which include the scale. One warp for each row.
template <class T, int THREADS>
__global__ void __launch_bounds__(THREADS) attention_backward_probabilities(const float* scores,
                                                                            const float* scaled_lse, T* probabilities,
                                                                            const int* q_starts, const int* k_starts,
                                                                            int tokens, int padded, int stride) {
    constexpr float log2e = 1.44269504088896f;
    follow_previous_grid();
    const Sequence sequence(q_starts, k_starts, blockIdx.z);
    const int query = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (query >= sequence.q_count) return;
    const size_t row = (size_t(blockIdx.y) * tokens + sequence.q_first + query) * stride;
    const float lse = scaled_lse[size_t(blockIdx.y) * padded + padded_first(sequence.q_first, blockIdx.z) + query];
    for (int c = laneid(); c < sequence.k_count; c += 32) {
        probabilities[row + c] = Convert<T>::from_f32(ex2_approx_ftz(fmaf(scores[row + c], log2e, -lse)));
    }
}

// scale dS. One warp for each row.
template <class T, int THREADS>
__global__ void __launch_bounds__(THREADS) attention_backward_scores(const T* probabilities, const float* dp,
                                                                     const float* delta, T* ds, const int* q_starts,
                                                                     const int* k_starts, int tokens, int padded,
                                                                     int stride, float scale) {
    follow_previous_grid();
    const Sequence sequence(q_starts, k_starts, blockIdx.z);
    const int query = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (query >= sequence.q_count) return;
    const size_t row = (size_t(blockIdx.y) * tokens + sequence.q_first + query) * stride;
    const float mean = delta[size_t(blockIdx.y) * padded + padded_first(sequence.q_first, blockIdx.z) + query];
    for (int c = laneid(); c < sequence.k_count; c += 32) {
        ds[row + c] = Convert<T>::from_f32(to_f32(probabilities[row + c]) * (dp[row + c] - mean) * scale);
    }
}

// The products a^T x, summed over the heads that share a head of keys and values: dv = P^T do and dk = dS^T q. A CTA
// has 64 keys.
template <class T, int D>
__global__ void __launch_bounds__(128) attention_backward_transposed(const T* a, const T* x, T* sums_of_keys,
                                                                     const int* q_starts, const int* k_starts,
                                                                     int tokens, int heads, int kv_heads, int stride) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned x_tile = cvta_to_shared(shared), lane = laneid(), row = threadIdx.x / 32 * 16;
    const int kv_head = blockIdx.y, group = heads / kv_heads, key = blockIdx.x * 64;
    follow_previous_grid();
    const Sequence sequence(q_starts, k_starts, blockIdx.z);
    if (key >= sequence.k_count) return;
    float sums[D / 2] = {};
    for (int head = kv_head * group; head < (kv_head + 1) * group; head++) {
        for (int query = 0; query < sequence.q_count; query += 64) {
            barrier_sync();  // all warps have read the previous tile
            copy_rows<64, D, 128>(x_tile, x + (size_t(sequence.q_first + query) * heads + head) * D,
                                  size_t(heads) * D, sequence.q_count - query);
            cp_async_wait_all();
            barrier_sync();
            const T* first = a + (size_t(head) * tokens + sequence.q_first + query) * stride + key + row + lane / 4;
            // A pair of queries of one key.
            auto at = [&](int k, int q) -> unsigned {
                const bool inside = key + int(row + lane / 4) + k < sequence.k_count;
                const T zero = Convert<T>::from_f32(0);
                const T low = inside && query + q < sequence.q_count ? first[size_t(q) * stride + k] : zero;
                const T high = inside && query + q + 1 < sequence.q_count ? first[size_t(q + 1) * stride + k] : zero;
                return Convert<T>::pack(to_f32(low), to_f32(high));
            };
#pragma unroll
            for (int i = 0; i < 64; i += 16) {
                const int q = i + lane % 4 * 2;
                multiply_values<64, D, T>(sums, {at(0, q), at(8, q), at(0, q + 8), at(8, q + 8)}, x_tile, i);
            }
        }
    }
    barrier_sync();  // sums replace the tile
    store_through_tile<64, D>(sums, shared, row,
                              sums_of_keys + (size_t(sequence.k_first + key + row) * kv_heads + kv_head) * D,
                              size_t(kv_heads) * D, sequence.k_count - key - int(row));
}

// ---------------------------------------------------------------------------------------------------------------------
// Tiled, by mma.sync

// Adds a thread's part of dq to the sums in device memory.
__device__ __forceinline__ void add_to_sums(float4* to, const float* d) {
#if PTXKIT_SM >= 90
    red_global_add(to, make_float4(d[0], d[1], d[2], d[3]));
#else
    float* sums = reinterpret_cast<float*>(to);
#pragma unroll
    for (int i = 0; i < 4; i++) atomicAdd(sums + i, d[i]);
#endif
}

// dk and dv of BN keys, 16 for each warp. Tiles of 64 queries and of the gradients of their results go through a ring
// of STAGES in shared memory. ATOMICS: adds the keys' share of dq to dq_sums.
template <class T, int D, int BN, int STAGES, bool CAUSAL, bool ATOMICS>
__global__ void __launch_bounds__(2 * BN) attention_backward_keys(const T* q, const T* k, const T* v, const T* d_o,
                                                                  const float* scaled_lse, const float* delta, T* dk,
                                                                  T* dv, float4* dq_sums, const int* q_starts,
                                                                  const int* k_starts, int heads, int kv_heads,
                                                                  int padded, float scale) {
    constexpr int BM = 64, THREADS = 2 * BN, k_bytes = BN * D * 2, q_bytes = BM * D * 2, row_bytes = BM * 4;
    static_assert(STAGES <= 2, "stages alternate");
    constexpr float log2e = 1.44269504088896f;
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned k_tile = cvta_to_shared(shared), v_tile = k_tile + k_bytes, ds_tile = v_tile + k_bytes;
    const unsigned stages = ds_tile + (ATOMICS ? BN * BM * 2 : 0), rows = stages + STAGES * 2 * q_bytes;
    const int key = blockIdx.x * BN, kv_head = blockIdx.y, group = heads / kv_heads;
    follow_previous_grid();
    const Sequence sequence(q_starts, k_starts, blockIdx.z);
    if (key >= sequence.k_count) return;

    const size_t q_stride = size_t(heads) * D, k_stride = size_t(kv_heads) * D;
    const size_t first_key = (sequence.k_first + key) * k_stride + kv_head * D;
    const size_t first_row = padded_first(sequence.q_first, blockIdx.z);
    const auto visible = VisibleFrom::tile<CAUSAL>(sequence, key, BN);
    const int first_query = visible.first / BM * BM, end = sequence.q_count > 0 ? (kv_head + 1) * group : 0;
    QueryTile<BM> next{kv_head * group, first_query}, tile = next;
    auto copy = [&](unsigned stage) {
        if (next.head < end) {
            const unsigned q_tile = stages + stage * 2 * q_bytes, row = rows + stage * 2 * row_bytes;
            const size_t from = (sequence.q_first + next.query) * q_stride + next.head * D;
            copy_rows<BM, D, THREADS>(q_tile, q + from, q_stride, sequence.q_count - next.query);
            copy_rows<BM, D, THREADS>(q_tile + q_bytes, d_o + from, q_stride, sequence.q_count - next.query);
            if (threadIdx.x < BM / 2) {
                const float* values = threadIdx.x < BM / 4 ? scaled_lse : delta;
                cp_async_cg_shared_global(row + threadIdx.x * 16, values + size_t(next.head) * padded + first_row +
                                                                      next.query + threadIdx.x % (BM / 4) * 4);
            }
            next.advance(first_query, sequence.q_count);
        }
        cp_async_commit_group();
    };
    copy_rows<BN, D, THREADS>(k_tile, k + first_key, k_stride, sequence.k_count - key);
    copy_rows<BN, D, THREADS>(v_tile, v + first_key, k_stride, sequence.k_count - key);
    if constexpr (STAGES > 1) copy(0);

    const unsigned lane = laneid(), warp = threadIdx.x / 32, row = warp * 16;
    const int own_key = key + row + lane / 4;
    const int from[2] = {VisibleFrom::query<CAUSAL>(sequence, own_key),
                         VisibleFrom::query<CAUSAL>(sequence, own_key + 8)};
    float dk_sums[D / 2] = {}, dv_sums[D / 2] = {};
    for (unsigned stage = 0; tile.head < end; tile.advance(first_query, sequence.q_count), stage ^= STAGES - 1) {
        copy(stage ^ STAGES - 1);
        cp_async_wait_group<STAGES - 1>();
        barrier_sync();
        const unsigned q_tile = stages + stage * 2 * q_bytes, do_tile = q_tile + q_bytes;
        const float* lse = reinterpret_cast<const float*>(shared + (rows - k_tile) + stage * 2 * row_bytes);
        float s[BM / 2], dp[BM / 2];
        multiply_scores<BN, BM, D, T>(s, k_tile, row, q_tile);
        if (tile.query < visible.unmasked) mask_queries(s, tile.query, from);
        probabilities_by_column(s, scale * log2e, lse);
        multiply_scores<BN, BM, D, T>(dp, v_tile, row, do_tile);
        gradients_by_column(dp, s, lse + BM);
#pragma unroll
        for (int i = 0; i < BM / 16; i++) {
            unsigned p[4];
            pack_operand<T>(p, s, i);
            multiply_values<BM, D, T>(dv_sums, p, do_tile, 16 * i);
            pack_operand<T>(p, dp, i);
            multiply_values<BM, D, T>(dk_sums, p, q_tile, 16 * i);
            if constexpr (ATOMICS) {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const unsigned column = 16 * i + j / 2 * 8 + lane % 4 * 2;
                    const unsigned offset = tile_offset<BN>(row + lane / 4 + j % 2 * 8, column);
                    *reinterpret_cast<unsigned*>(shared + (ds_tile - k_tile) + offset) = p[j];
                }
            }
        }
        if constexpr (ATOMICS) {
            // 16 queries for each warp; with more warps than that, a part of the columns for each.
            constexpr int COLUMNS = D * BM / BN;
            const unsigned rows_of_q = warp % (BM / 16) * 16, column = warp / (BM / 16) * COLUMNS;
            float dq[COLUMNS / 2] = {};
            barrier_sync();  // dS of all keys
#pragma unroll 1  // unrolled, so many operands are loaded ahead that registers spill
            for (int i = 0; i < BN; i += 16) {
                unsigned a[4];
                ldmatrix_x4_trans(a, ds_tile + tile_offset<BN>(i + lane % 8 + lane / 16 * 8,
                                                               rows_of_q + lane / 8 % 2 * 8));
                multiply_values<BN, COLUMNS, T>(dq, a, k_tile, i, column);
            }
            float4* to = dq_sums + (size_t(tile.head) * padded + first_row + tile.query) * (D / 4) + column / 8 * 128;
#pragma unroll
            for (int i = 0; i < COLUMNS / 8; i++) add_to_sums(to + i * 128 + threadIdx.x % 128, &dq[4 * i]);
        }
        barrier_sync();  // all warps have read the tiles
    }
    cp_async_wait_all();
    barrier_sync();  // sums replace the tiles of keys and values, which all threads have copied: also without a query
#pragma unroll
    for (float& sum : dk_sums) sum *= scale;
    const size_t first = (size_t(sequence.k_first + key + row) * kv_heads + kv_head) * D;
    const int count = sequence.k_count - key - int(row);
    store_through_tile<BN, D>(dk_sums, shared, row, dk + first, k_stride, count);
    store_through_tile<BN, D>(dv_sums, shared + k_bytes, row, dv + first, k_stride, count);
}

// dq of 64 queries, 16 for each warp. Tiles of BN keys and values go through a ring of STAGES in shared memory.
template <class T, int D, int BN, int STAGES, bool CAUSAL>
__global__ void __launch_bounds__(128) attention_backward_queries(const T* q, const T* k, const T* v, const T* d_o,
                                                                  const float* scaled_lse, const float* delta, T* dq,
                                                                  const int* q_starts, const int* k_starts, int heads,
                                                                  int kv_heads, int padded, float scale) {
    constexpr int BM = 64, THREADS = 128, k_bytes = BN * D * 2, q_bytes = BM * D * 2;
    constexpr float log2e = 1.44269504088896f;
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned q_tile = cvta_to_shared(shared), do_tile = q_tile + q_bytes, stages = do_tile + q_bytes;
    // With a causal mask, the last tiles take longest.
    const int query = (CAUSAL ? gridDim.x - 1 - blockIdx.x : blockIdx.x) * BM;
    const int head = blockIdx.y, kv_head = head / (heads / kv_heads);
    follow_previous_grid();
    const Sequence sequence(q_starts, k_starts, blockIdx.z);
    if (query >= sequence.q_count) return;

    const size_t q_stride = size_t(heads) * D, k_stride = size_t(kv_heads) * D;
    const size_t first_query = (sequence.q_first + query) * q_stride + head * D;
    const size_t first_key = sequence.k_first * k_stride + kv_head * D;
    const int steps = (sequence.visible_before<CAUSAL>(query + BM) + BN - 1) / BN;
    auto copy = [&](int step) {
        if (step < steps) {
            const unsigned k_tile = stages + step % STAGES * 2 * k_bytes;
            const size_t from = first_key + step * BN * k_stride;
            copy_rows<BN, D, THREADS>(k_tile, k + from, k_stride, sequence.k_count - step * BN);
            copy_rows<BN, D, THREADS>(k_tile + k_bytes, v + from, k_stride, sequence.k_count - step * BN);
        }
        cp_async_commit_group();
    };
    copy_rows<BM, D, THREADS>(q_tile, q + first_query, q_stride, sequence.q_count - query);
    copy_rows<BM, D, THREADS>(do_tile, d_o + first_query, q_stride, sequence.q_count - query);
    if constexpr (STAGES > 1) copy(0);

    const unsigned row = threadIdx.x / 32 * 16;
    const int first = query + row + laneid() / 4;
    const int visible[2] = {sequence.visible<CAUSAL>(first), sequence.visible<CAUSAL>(first + 8)};
    const int unmasked = sequence.visible<CAUSAL>(query) / BN;  // tiles that all rows see
    const size_t of_row = size_t(head) * padded + padded_first(sequence.q_first, blockIdx.z) + first;
    const float lse[2] = {scaled_lse[of_row], scaled_lse[of_row + 8]}, means[2] = {delta[of_row], delta[of_row + 8]};
    float sums[D / 2] = {};
    for (int step = 0; step < steps; step++) {
        copy(step + STAGES - 1);
        cp_async_wait_group<STAGES - 1>();
        barrier_sync();
        const unsigned k_tile = stages + step % STAGES * 2 * k_bytes;
        float s[BN / 2], dp[BN / 2];
        multiply_scores<BM, BN, D, T>(s, q_tile, row, k_tile);
        if (step >= unmasked) mask_scores(s, step * BN, visible);
        probabilities_by_row(s, scale * log2e, lse);
        multiply_scores<BM, BN, D, T>(dp, do_tile, row, k_tile + k_bytes);
        gradients_by_row(dp, s, means);
#pragma unroll
        for (int i = 0; i < BN / 16; i++) {
            unsigned ds[4];
            pack_operand<T>(ds, dp, i);
            multiply_values<BN, D, T>(sums, ds, k_tile, 16 * i);
        }
        barrier_sync();  // all warps have read the tiles
    }
    cp_async_wait_all();
    barrier_sync();  // sums replace the queries, which all threads have copied: also if no key was visible
#pragma unroll
    for (float& sum : sums) sum *= scale;
    store_through_tile<BM, D>(sums, shared, row, dq + (size_t(sequence.q_first + query + row) * heads + head) * D,
                              q_stride, sequence.q_count - query - int(row));
}

// ---------------------------------------------------------------------------------------------------------------------
// Specialized, by TMA and wgmma

// Parameters of attention_backward_specialized. The description gives them by name (AttentionBackwardTile in
// ptxkit/kernels/attention/attention_backward.py).
template <int D_, int STAGES_, bool OVERLAP_, bool DEFERRED_>
struct AttentionBackwardTile {
    static constexpr int D = D_;                // elements of a head
    static constexpr int STAGES = STAGES_;      // tiles of queries, and of do, in shared memory
    static constexpr bool OVERLAP = OVERLAP_;   // products run while probabilities and dS are computed
    static constexpr bool DEFERRED = DEFERRED_; // the product for dk runs until the next scores have been computed
    // Tiles hold no rows of other sequences. With heads of 64 elements, for whose sums a thread has no more registers, the
    // coordinates that this takes made the kernel 5% slower on an H200.
    static constexpr bool SEPARATE = D == 128;
    static constexpr int CONSUMERS = 2;         // warpgroups that multiply 64 keys each
    static constexpr int BN = 64 * CONSUMERS;   // keys of a CTA
    static constexpr int BM = 64 * 128 / D;     // queries of a tile; a warpgroup has 64 x 64 sums of its dq
    static_assert(!DEFERRED || OVERLAP && STAGES > 1, "the next queries are loaded while the product for dk reads these");
    static_assert(D == 64 || D == 128, "the tile of dq is divided by rows or by columns");
    // Shared memory as byte offsets: tiles of keys and values, which dk and dv replace, the stages, two tiles of dS,
    // the sums of dq, lse and delta of the stages, mbarriers.
    static constexpr int k_bytes = BN * D * 2, q_bytes = BM * D * 2, ds_bytes = BM * BN * 2, row_bytes = BM * 4;
    static constexpr int block_bytes = BLOCK_ELEMENTS * 4;  // of sums of dq, those of a warpgroup
    static constexpr int v = k_bytes, q = v + k_bytes, d_o = q + STAGES * q_bytes, ds = d_o + STAGES * q_bytes;
    static constexpr int dq = ds + 2 * ds_bytes, lse = dq + CONSUMERS * block_bytes, delta = lse + STAGES * row_bytes;
    static constexpr int barriers = delta + STAGES * row_bytes, bytes = barriers + 8 * (3 + 4 * STAGES + 2 * CONSUMERS);
};

// The mbarriers of a CTA, as shared addresses.
template <class Tile>
struct BackwardBarriers {
    static constexpr int STAGES = Tile::STAGES, CONSUMERS = Tile::CONSUMERS;
    unsigned k_full, v_full, kv_empty, q_full, q_empty, do_full, do_empty, dq_full, dq_empty;

    __device__ __forceinline__ explicit BackwardBarriers(unsigned first)
        : k_full(first),
          v_full(first + 8),
          kv_empty(first + 16),
          q_full(first + 24),
          q_empty(q_full + 8 * STAGES),
          do_full(q_empty + 8 * STAGES),
          do_empty(do_full + 8 * STAGES),
          dq_full(do_empty + 8 * STAGES),
          dq_empty(dq_full + 8 * CONSUMERS) {}

    // One thread calls it. Consumers arrive with one lane of each warp.
    __device__ __forceinline__ void init() const {
        mbarrier_init(k_full, 1);
        mbarrier_init(v_full, 1);
        mbarrier_init(kv_empty, 4 * CONSUMERS);
        init_ring<STAGES>(q_full, 1, q_empty, 4 * CONSUMERS);
        init_ring<STAGES>(do_full, 1, do_empty, 4 * CONSUMERS);
        init_ring<CONSUMERS>(dq_full, 4, dq_empty, 1);
    }
};

// The arguments from which work items follow.
struct BackwardGrid {
    const int *q_starts, *k_starts;
    unsigned kv_heads, group;  // heads of keys, and heads that share one of them
    unsigned padded;           // rows of the padded arrays
    unsigned tiles, works;     // tiles of keys of the longest sequence; tiles x kv_heads x sequences
};

// The tile of keys of a work item, and the tiles of queries that see it.
template <class Tile, bool CAUSAL>
struct KeyTile {
    AttentionWork work;
    Sequence sequence;
    int key;
    VisibleFrom visible;
    int first_query, end;      // the first query of the first tile; the number after the last head
    QueryTile<Tile::BM> tile;  // the current one

    __device__ __forceinline__ KeyTile(unsigned index, const BackwardGrid& grid)
        : work(index, grid.tiles, grid.kv_heads, false),  // with a causal mask, the first tiles take longest
          sequence(grid.q_starts, grid.k_starts, work.sequence),
          key(work.tile * Tile::BN),
          visible(VisibleFrom::tile<CAUSAL>(sequence, key, Tile::BN)),
          first_query(visible.first / Tile::BM * Tile::BM),
          end(sequence.q_count > 0 ? (work.head + 1) * int(grid.group) : 0),
          tile{work.head * int(grid.group), first_query} {}

    __device__ __forceinline__ bool empty() const { return key >= sequence.k_count; }
    __device__ __forceinline__ bool more() const { return tile.head < end; }
    __device__ __forceinline__ void advance() { tile.advance(first_query, sequence.q_count); }
    // The row of the tile's first query in the padded arrays.
    __device__ __forceinline__ size_t row(unsigned padded) const {
        return size_t(tile.head) * padded + padded_first(sequence.q_first, work.sequence) + tile.query;
    }
};

// Starts sums += a b for the operands a of 16 K rows of b each, a tile of K rows of 64-element boxes.
template <int K, int N, class T>
__device__ __forceinline__ void start_product(float (&sums)[N], const unsigned (&a)[K / 16][4], unsigned b, T type) {
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < K / 16; i++) {
        wgmma_transposed(sums, a[i], transposed_descriptor_128B(b + i * 2048, K * 128), true, type);
    }
    wgmma_commit_group();
}

// What a consumer warpgroup computes: dk and dv of 64 keys in registers, and for each tile of queries a quarter of dq.
template <class T, class Tile>
struct BackwardConsumer {
    static constexpr int D = Tile::D, BM = Tile::BM, BN = Tile::BN, STAGES = Tile::STAGES;
    static constexpr bool OVERLAP = Tile::OVERLAP;

    unsigned char* shared;
    unsigned base;  // its shared address
    BackwardBarriers<Tile> barriers;
    unsigned number;         // of the warpgroup
    float scale;             // of the scores, includes log2(e)
    Ring<STAGES> at;         // queries and do
    unsigned iteration = 0;  // tiles of queries so far
    unsigned latest = STAGES;  // the stage of the queries that the product for dk reads; STAGES: it is complete
    float dk[D / 2], dv[D / 2];
    unsigned ds[BM / 16][4];

    __device__ __forceinline__ void signal(unsigned barrier) const {
        if (laneid() == 0) mbarrier_arrive(barrier);
    }

    // Waits until at most PENDING groups of wgmma are incomplete; without OVERLAP, until all are complete.
    template <int PENDING>
    __device__ __forceinline__ void wait_for_products() const {
        wgmma_wait_group<OVERLAP ? PENDING : 0>();
    }

    // Stores dS of the warpgroup's keys transposed, so that a row is a query: half of the columns of the tile.
    __device__ __forceinline__ void store_gradients(unsigned tile, const unsigned (&ds)[BM / 16][4]) const {
        const unsigned lane = laneid(), column = threadIdx.x / 32 % 4 * 16 + lane / 8 % 2 * 8;
        tile += number * BM * 128;
#pragma unroll
        for (int i = 0; i < BM / 16; i++) {
            stmatrix_x4_trans(tile + tile_offset<BM>(16 * i + lane / 16 * 8 + lane % 8, column), ds[i]);
        }
    }

    // Starts dq = dS k for all keys of the CTA: 64 columns of the tile's 64 rows, or its 64 columns of 64 rows.
    __device__ __forceinline__ void start_dq(float (&dq)[32], unsigned ds_tile) const {
        const unsigned rows = D == 64 ? number * 64 * 128 : 0, box = D == 64 ? 0 : number;
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < BN; i += 16) {
            wgmma_transposed(dq, matrix_descriptor_128B(ds_tile + i / 64 * BM * 128 + rows + i % 64 * 2),
                             transposed_descriptor_128B(base + box * BN * 128 + i * 128, BN * 128), i > 0, T());
        }
        wgmma_commit_group();
    }

    // masked: some queries of the tile do not see all keys; from[r]: the first that sees the thread's key r.
    __device__ __forceinline__ void multiply_tile(bool masked, int query, const int (&from)[2]) {
        const unsigned rows = number * 64 * 128, ds_tile = base + Tile::ds + iteration % 2 * Tile::ds_bytes;
        const unsigned q_tile = base + Tile::q + at.stage * Tile::q_bytes;
        const unsigned do_tile = base + Tile::d_o + at.stage * Tile::q_bytes;
        const float* lse = reinterpret_cast<const float*>(shared + Tile::lse + at.stage * Tile::row_bytes);
        const float* delta = reinterpret_cast<const float*>(shared + Tile::delta + at.stage * Tile::row_bytes);
        float s[BM / 2], dp[BM / 2];
        unsigned p[BM / 16][4];

        mbarrier_wait(barriers.q_full + 8 * at.stage, at.parity);
        start_scores<BN, BM, D>(s, base + rows, q_tile, T());
        if constexpr (!OVERLAP) wgmma_wait_group<0>();
        mbarrier_wait(barriers.do_full + 8 * at.stage, at.parity);
        start_scores<BN, BM, D>(dp, base + Tile::v + rows, do_tile, T());
        wait_for_products<1>();  // the scores, and with DEFERRED the previous product for dk
        if constexpr (Tile::DEFERRED) release_queries();
        warpgroup_fence_operand(s);
        if (masked) mask_queries(s, query, from);
        probabilities_by_column(s, scale, lse);
#pragma unroll
        for (int i = 0; i < BM / 16; i++) pack_operand<T>(p[i], s, i);
        start_product<BM>(dv, p, do_tile, T());
        wait_for_products<1>();  // dP
        warpgroup_fence_operand(dp);
        gradients_by_column(dp, s, delta);
#pragma unroll
        for (int i = 0; i < BM / 16; i++) pack_operand<T>(ds[i], dp, i);
        // The products that have read this tile of dS, two iterations ago, were complete at the last barrier.
        store_gradients(ds_tile, ds);
        fence_proxy_async_shared_cta();
        barrier_sync(1, 128 * Tile::CONSUMERS);
        float dq[32];
        start_dq(dq, ds_tile);
        start_product<BM>(dk, ds, q_tile, T());
        wait_for_products<2>();  // dv
        warpgroup_fence_operand(dv);
#pragma unroll
        for (int i = 0; i < BM / 16; i++) warpgroup_fence_operand(p[i]);
        signal(barriers.do_empty + 8 * at.stage);
        wait_for_products<1>();  // dq
        warpgroup_fence_operand(dq);
        store_dq(dq);
        latest = at.stage;
        if constexpr (!Tile::DEFERRED) finish();
        at.advance();
        iteration++;
    }

    // Waits for the latest product for dk.
    __device__ __forceinline__ void finish() {
        wgmma_wait_group<0>();
        release_queries();
    }

    // After the wait for the latest product for dk: its queries can be replaced.
    __device__ __forceinline__ void release_queries() {
        warpgroup_fence_operand(dk);
#pragma unroll
        for (int i = 0; i < BM / 16; i++) warpgroup_fence_operand(ds[i]);
        if (latest < STAGES) signal(barriers.q_empty + 8 * latest);
        latest = STAGES;
    }

    // Passes the sums of dq to the warp that adds them to those in device memory.
    __device__ __forceinline__ void store_dq(const float (&dq)[32]) const {
        float4* to = reinterpret_cast<float4*>(shared + Tile::dq + number * Tile::block_bytes) + threadIdx.x % 128;
        mbarrier_wait(barriers.dq_empty + 8 * number, iteration % 2 ^ 1);
#pragma unroll
        for (int i = 0; i < 8; i++) to[i * 128] = make_float4(dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]);
        fence_proxy_async_shared_cta();
        __syncwarp();
        signal(barriers.dq_full + 8 * number);
    }
};

// What a producer thread does: loads the keys (or the values) of each work item, and its tiles of queries (of do) with
// their values of `rows` to a ring. With SEPARATE tiles, rows beyond the end of the sequence are zero: the probabilities there are,
// too, and their products with a NaN of the next sequence would be one. tokens, key_tokens: queries, and keys, of all sequences.
// k_to, q_to, rows_to: shared addresses.
template <class Tile, bool CAUSAL>
__device__ __forceinline__ void load_tiles(const TensorMap& k_map, const TensorMap& q_map, const float* rows,
                                           unsigned k_to, unsigned q_to, unsigned rows_to, unsigned k_full,
                                           unsigned q_full, unsigned q_empty, unsigned kv_empty,
                                           const BackwardGrid& grid, int tokens, int key_tokens) {
    Ring<Tile::STAGES> at;
    unsigned parity = 0;
    for (unsigned index = blockIdx.x; index < grid.works; index += gridDim.x) {
        KeyTile<Tile, CAUSAL> keys(index, grid);
        if (keys.empty()) continue;
        mbarrier_wait(kv_empty, parity ^ 1);
        mbarrier_arrive_expect_tx(k_full, Tile::k_bytes);
        const Sequence& of = keys.sequence;
        if constexpr (Tile::SEPARATE) {
            load_rows_of_sequence<Tile::D, Tile::BN>(k_to, k_map, keys.work.head, of.k_first, of.k_count, keys.key, key_tokens,
                                                     k_full);
        } else {
            load_rows_of_head<Tile::D, Tile::BN>(k_to, k_map, keys.work.head, of.k_first + keys.key, k_full);
        }
        parity ^= 1;
        for (; keys.more(); keys.advance()) {
            const unsigned full = q_full + 8 * at.stage, to = q_to + at.stage * Tile::q_bytes;
            mbarrier_wait(q_empty + 8 * at.stage, at.parity ^ 1);
            mbarrier_arrive_expect_tx(full, Tile::q_bytes + Tile::row_bytes);
            if constexpr (Tile::SEPARATE) {
                load_rows_of_sequence<Tile::D, Tile::BM>(to, q_map, keys.tile.head, of.q_first, of.q_count, keys.tile.query, tokens,
                                                         full);
            } else {
                load_rows_of_head<Tile::D, Tile::BM>(to, q_map, keys.tile.head, of.q_first + keys.tile.query, full);
            }
            cp_async_bulk_shared_global(rows_to + at.stage * Tile::row_bytes, rows + keys.row(grid.padded),
                                        Tile::row_bytes, full);
            at.advance();
        }
    }
}

// Work items `blockIdx.x`, `blockIdx.x + gridDim.x`, ... of `works`: `tiles` tiles of keys for each of `kv_heads` heads
// of each sequence. Warp 0 loads keys and queries, warp 1 values and do; warps 2 and 3 add the share of dq of a
// consumer warpgroup each.
template <class T, class Tile, bool CAUSAL>
__global__ void __launch_bounds__(128 * (Tile::CONSUMERS + 1), 1) attention_backward_specialized(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
    const __grid_constant__ TensorMap v_map, const __grid_constant__ TensorMap do_map, const float* scaled_lse,
    const float* delta, T* dk, T* dv, float* dq_sums, const int* q_starts, const int* k_starts, unsigned kv_heads,
    unsigned group, unsigned padded, unsigned tiles, unsigned works, float scale, int tokens, int key_tokens) {
    constexpr int D = Tile::D, BN = Tile::BN, CONSUMERS = Tile::CONSUMERS;
    constexpr float log2e = 1.44269504088896f;
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned base = cvta_to_shared(shared);
    const BackwardBarriers<Tile> barriers(base + Tile::barriers);
    // The shuffle tells the compiler that the value is the same in all lanes.
    const unsigned warp = shfl_sync_idx(all_lanes, threadIdx.x / 32, 0);
    if (threadIdx.x == 0) {
        prefetch_tensormap(q_map);
        prefetch_tensormap(k_map);
        prefetch_tensormap(v_map);
        prefetch_tensormap(do_map);
        barriers.init();
    }
    barrier_sync();
    follow_previous_grid();

    const BackwardGrid grid{q_starts, k_starts, kv_heads, group, padded, tiles, works};
    if (warp < 4) {
        setmaxnreg_dec<24>();
        // One lane of each warp. Separate warps need few registers, and none waits for a buffer that another one needs.
        if (warp == 0 && elect_sync(all_lanes)) {
            load_tiles<Tile, CAUSAL>(k_map, q_map, scaled_lse, base, base + Tile::q, base + Tile::lse, barriers.k_full,
                                     barriers.q_full, barriers.q_empty, barriers.kv_empty, grid, tokens, key_tokens);
        } else if (warp == 1 && elect_sync(all_lanes)) {
            load_tiles<Tile, CAUSAL>(v_map, do_map, delta, base + Tile::v, base + Tile::d_o, base + Tile::delta,
                                     barriers.v_full, barriers.do_full, barriers.do_empty, barriers.kv_empty, grid, tokens,
                                     key_tokens);
        } else if (warp >= 2 && elect_sync(all_lanes)) {
            const unsigned number = warp - 2, from = base + Tile::dq + number * Tile::block_bytes;
            unsigned parity = 0;
            for (unsigned index = blockIdx.x; index < grid.works; index += gridDim.x) {
                KeyTile<Tile, CAUSAL> keys(index, grid);
                if (keys.empty()) continue;
                for (; keys.more(); keys.advance()) {
                    float* to = dq_sums + keys.row(grid.padded) * D + number * BLOCK_ELEMENTS;
                    mbarrier_wait(barriers.dq_full + 8 * number, parity);
                    cp_reduce_async_bulk_global_shared_add_f32(to, from, Tile::block_bytes);
                    cp_async_bulk_commit_group();
                    cp_async_bulk_wait_group_read<0>();
                    mbarrier_arrive(barriers.dq_empty + 8 * number);
                    parity ^= 1;
                }
            }
            cp_async_bulk_wait_group<0>();
        }
    } else {
        setmaxnreg_inc<240>();
        const unsigned number = warp / 4 - 1;
        BackwardConsumer<T, Tile> consumer{shared, base, barriers, number, scale * log2e};
        unsigned parity = 0;
        for (unsigned index = blockIdx.x; index < grid.works; index += gridDim.x) {
            KeyTile<Tile, CAUSAL> keys(index, grid);
            if (keys.empty()) continue;
            const int row = number * 64 + warp % 4 * 16, own_key = keys.key + row + laneid() / 4;
            const int from[2] = {VisibleFrom::query<CAUSAL>(keys.sequence, own_key),
                                 VisibleFrom::query<CAUSAL>(keys.sequence, own_key + 8)};
#pragma unroll
            for (int i = 0; i < D / 2; i++) consumer.dk[i] = consumer.dv[i] = 0;
            mbarrier_wait(barriers.k_full, parity);
            mbarrier_wait(barriers.v_full, parity);
            parity ^= 1;
            for (; keys.more(); keys.advance()) {
                consumer.multiply_tile(keys.tile.query < keys.visible.unmasked, keys.tile.query, from);
            }
            if constexpr (Tile::DEFERRED) consumer.finish();
            barrier_sync(1, 128 * CONSUMERS);  // all products with the keys are complete; sums replace keys and values
#pragma unroll
            for (float& sum : consumer.dk) sum *= scale;
            const size_t first = (size_t(keys.sequence.k_first + keys.key + row) * kv_heads + keys.work.head) * D;
            const int count = keys.sequence.k_count - keys.key - row;
            store_through_tile<BN, D>(consumer.dk, shared, row, dk + first, size_t(kv_heads) * D, count);
            store_through_tile<BN, D>(consumer.dv, shared + Tile::v, row, dv + first, size_t(kv_heads) * D, count);
            fence_proxy_async_shared_cta();  // before the next keys replace the sums
            __syncwarp();
            consumer.signal(barriers.kv_empty);
        }
    }
}
