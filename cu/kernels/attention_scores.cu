// The probabilities of attention: p = softmax(q k^T / sqrt(D) + mask) for each head of each sequence, as a matrix of
// queries x keys. q has the shape (batch, queries, heads, D), k (batch, keys, kv_heads, D), p (batch, heads, queries,
// keys); heads / kv_heads heads share a head of k. Elements are bf16 or f16, sums f32. MASK is a value of ScoresMask; an
// array has elements of the same type, is added, and may contain minus infinity. Rows that see no key are zero.
//
// The output is by far the largest array, so that a kernel should write it once and read nothing else of that size.
//
// 1. Unfused, `scores_product`, `scores_mask`, `scores_softmax`: the scores go through device memory in f32.
// 2. `scores_two_passes`: a CTA keeps 64 queries or more and computes all scores of its rows twice: first for the
//     maxima and sums of the rows, which stay in registers, then for the probabilities. mma.sync, for sm_80 and later.
// 3. `scores_specialized`: the same with a producer warp that loads tiles by TMA, warpgroups that multiply by wgmma, and
//     stores by TMA. With MASK_TILES, TMA loads an array of masks, too.
// 4. `scores_cluster`: a cluster holds whole rows in registers, each CTA a range of keys, which stays in shared memory
//     for many tiles of queries. The CTAs exchange one maximum and one sum for each row, and no score is computed twice.
#include "ptxkit/attention/mma_tiles.cuh"
#include "ptxkit/attention/sequence.cuh"
#include "ptxkit/attention/wgmma_tiles.cuh"
#include "ptxkit/ptx/bulk_copy.cuh"
#include "ptxkit/ptx/cluster.cuh"
#include "ptxkit/ptx/mbarrier.cuh"

using namespace ptxkit;

enum ScoresMask { NO_MASK, ARRAY_MASK, CAUSAL_MASK };

// Sizes and the mask. VECTOR: elements of a row of keys that can be accessed together, because the rows are aligned to
// them: 8, 2 or 1.
template <class T, int MASK, int VECTOR>
struct Scores {
    const T* mask;                      // with ARRAY_MASK
    long long mask_batch, mask_head;    // elements from one sequence, and one head, to the next; 0 if they share the mask
    int queries, keys, heads, kv_heads;
    float scale;  // log2(e) / sqrt(D): exponentials are powers of two

    __device__ __forceinline__ Sequence sequence() const { return Sequence(queries, keys); }
    __device__ __forceinline__ int visible(int query) const {
        return sequence().template visible<MASK == CAUSAL_MASK>(query);
    }
    __device__ __forceinline__ int visible_before(int end) const {
        return sequence().template visible_before<MASK == CAUSAL_MASK>(end);
    }

    // What the exponents of scores in registers are multiplied by: the array is added to scaled scores.
    __device__ __forceinline__ float remaining_scale() const { return MASK == ARRAY_MASK ? 1 : scale; }

    // Applies the mask to a warp's scores of 16 rows from `query` and 2 N keys from `key`; keys past the last one are
    // masked as well.
    template <int N>
    __device__ __forceinline__ void apply(float (&s)[N], int batch, int head, int query, int key) const {
        const int lane = laneid(), row = query + lane / 4;
        if constexpr (MASK == ARRAY_MASK) {
            constexpr float log2e = 1.44269504088896f;
            const T* first = mask + batch * mask_batch + head * mask_head + size_t(row) * keys;
#pragma unroll
            for (int i = 0; i < N; i += 2) {
                const int r = i / 2 % 2 * 8, c = key + i / 4 * 8 + lane % 4 * 2;
                const T* at = first + size_t(r) * keys + c;
                float low = -infinity(), high = -infinity();
                if (row + r < queries) {
                    if constexpr (VECTOR > 1) {
                        if (c < keys) {
                            const unsigned pair = *reinterpret_cast<const unsigned*>(at);
                            low = Convert<T>::low(pair), high = Convert<T>::high(pair);
                        }
                    } else {
                        if (c < keys) low = to_f32(at[0]);
                        if (c + 1 < keys) high = to_f32(at[1]);
                    }
                }
                s[i] = fmaf(s[i], scale, low * log2e);
                s[i + 1] = fmaf(s[i + 1], scale, high * log2e);
            }
        } else {
            const int seen[2] = {visible(row), visible(row + 8)};
            if (key + 2 * N > visible(query)) mask_scores(s, key, seen);
        }
    }

    // The same for an array of which a tile of ROWS rows is in shared memory. row: of the warp's first one in it.
    template <int ROWS, int N>
    __device__ __forceinline__ void apply_tile(float (&s)[N], const unsigned char* tile, unsigned row, int key) const {
        constexpr float log2e = 1.44269504088896f;
        const unsigned lane = laneid();
#pragma unroll
        for (int i = 0; i < N; i += 2) {
            const unsigned at = tile_offset<ROWS>(row + lane / 4 + i / 2 % 2 * 8, i / 4 * 8 + lane % 4 * 2);
            const unsigned pair = *reinterpret_cast<const unsigned*>(tile + at);
            s[i] = fmaf(s[i], scale, Convert<T>::low(pair) * log2e);
            s[i + 1] = fmaf(s[i + 1], scale, Convert<T>::high(pair) * log2e);
        }
        const int seen[2] = {keys, keys};
        if (key + 2 * N > keys) mask_scores(s, key, seen);
    }
};

// Subtracted from exponents, so that the powers of two are probabilities: base 2 logarithms of the sums of rows.
// Infinity for rows without a visible key, whose probabilities are 0.
__device__ __forceinline__ void normalizing_exponents(float (&subtracted)[2], OnlineSoftmax& softmax) {
    softmax.finish();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        subtracted[r] =
            softmax.sum[r] == 0 ? infinity() : softmax.maximum[r] * softmax.scale + lg2_approx(softmax.sum[r]);
    }
}

// Replaces scores by probabilities.
template <int N>
__device__ __forceinline__ void normalize(float (&s)[N], float scale, const float (&subtracted)[2]) {
#pragma unroll
    for (int i = 0; i < N; i++) s[i] = ex2_approx_ftz(fmaf(s[i], scale, -subtracted[i / 2 % 2]));
}

// Shared memory for a warp's 16 rows of COLUMNS probabilities, on their way from the layout of the accumulators to whole
// rows: boxes of 64 columns with the 128-byte swizzle, as a tensor map describes them.
template <int COLUMNS>
constexpr int box_bytes = (COLUMNS + 63) / 64 * 16 * 128;

template <int COLUMNS, class T>
__device__ __forceinline__ void write_box(const float (&p)[COLUMNS / 2], unsigned char* box, T) {
    const unsigned lane = laneid();
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; i += 2) {
        const unsigned offset = tile_offset<16>(lane / 4 + i / 2 % 2 * 8, i / 4 * 8 + lane % 4 * 2);
        *reinterpret_cast<unsigned*>(box + offset) = Convert<T>::pack(p[i], p[i + 1]);
    }
}

// Stores the rows of a box, VECTOR elements at a time. `to`: the first element in device memory; rows, columns: that
// exist from there on.
template <int COLUMNS, int VECTOR, class T>
__device__ __forceinline__ void store_box(const unsigned char* box, T* to, int stride, int rows, int columns) {
    struct alignas(sizeof(T) * VECTOR) Elements {
        T elements[VECTOR];
    };
    constexpr int across = COLUMNS / VECTOR;
    __syncwarp();  // all lanes have written
#pragma unroll 8
    for (int i = laneid(); i < 16 * across; i += 32) {
        const int r = i / across, c = i % across * VECTOR;
        if (r < rows && c < columns) {
            *reinterpret_cast<Elements*>(to + size_t(r) * stride + c) =
                *reinterpret_cast<const Elements*>(box + tile_offset<16>(r, c));
        }
    }
    __syncwarp();  // all lanes have read
}

// ---------------------------------------------------------------------------------------------------------------------
// Unfused. scores has the shape (batch, heads, queries, keys), in f32.

enum { UNFUSED = 64 };  // rows and columns of a tile, 16 rows for each of four warps

template <class T, int D>
__global__ void __launch_bounds__(128) scores_product(const T* q, const T* k, float* scores, int queries, int keys,
                                                      int heads, int kv_heads, float scale) {
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned q_tile = cvta_to_shared(shared), k_tile = q_tile + UNFUSED * D * 2;
    const int tiles = (keys - 1) / UNFUSED + 1, head = blockIdx.y, batch = blockIdx.z;
    const int kv_head = head / (heads / kv_heads);
    const int query = blockIdx.x / tiles * UNFUSED, key = blockIdx.x % tiles * UNFUSED;
    const size_t q_stride = size_t(heads) * D, k_stride = size_t(kv_heads) * D;
    follow_previous_grid();
    copy_rows<UNFUSED, D, 128>(q_tile, q + (size_t(batch) * queries + query) * q_stride + head * D, q_stride,
                               queries - query);
    copy_rows<UNFUSED, D, 128>(k_tile, k + (size_t(batch) * keys + key) * k_stride + kv_head * D, k_stride, keys - key);
    cp_async_wait_all();
    barrier_sync();
    float s[UNFUSED / 2];
    const int row = threadIdx.x / 32 * 16;
    multiply_scores<UNFUSED, UNFUSED, D, T>(s, q_tile, row, k_tile);
    scores += (size_t(batch) * heads + head) * queries * keys;
#pragma unroll
    for (int i = 0; i < UNFUSED / 2; i++) {
        const int r = query + row + laneid() / 4 + i / 2 % 2 * 8, c = key + i / 4 * 8 + laneid() % 4 * 2 + i % 2;
        if (r < queries && c < keys) scores[size_t(r) * keys + c] = s[i] * scale;
    }
}

// Adds the mask in place. One CTA for each row.
template <class T, int MASK, int THREADS>
__global__ void __launch_bounds__(THREADS) scores_mask(float* scores, const T* mask, long long mask_batch,
                                                       long long mask_head, int queries, int keys) {
    follow_previous_grid();
    const int query = blockIdx.x, head = blockIdx.y, batch = blockIdx.z;
    float* row = scores + ((size_t(batch) * gridDim.y + head) * queries + query) * keys;
    if (MASK == ARRAY_MASK) mask += batch * mask_batch + head * mask_head + size_t(query) * keys;
    const int visible = Sequence(queries, keys).visible<MASK == CAUSAL_MASK>(query);
    for (int c = threadIdx.x; c < keys; c += THREADS) {
        if (MASK == ARRAY_MASK) row[c] += to_f32(mask[c]);
        if (MASK == CAUSAL_MASK && c >= visible) row[c] = -infinity();
    }
}

// One warp for each row.
template <class T, int THREADS>
__global__ void __launch_bounds__(THREADS) scores_softmax(const float* scores, T* p, long long rows, int keys) {
    follow_previous_grid();
    const long long row = blockIdx.x * (THREADS / 32ll) + threadIdx.x / 32;
    if (row >= rows) return;
    scores += row * keys;
    p += row * keys;
    constexpr float log2e = 1.44269504088896f;
    const int lane = laneid();
    float highest = -infinity(), sum = 0;
    for (int c = lane; c < keys; c += 32) highest = fmaxf(highest, scores[c]);
    highest = warp_max<32>(highest);
    const float base = highest == -infinity() ? 0 : highest;
    for (int c = lane; c < keys; c += 32) sum += ex2_approx_ftz((scores[c] - base) * log2e);
    sum = warp_sum<32>(sum);
    const float factor = sum == 0 ? 0 : 1 / sum;
    for (int c = lane; c < keys; c += 32) {
        p[c] = Convert<T>::from_f32(ex2_approx_ftz((scores[c] - base) * log2e) * factor);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Two passes, by mma.sync

// BM: queries of a CTA, 16 for each warp. BN: keys of a tile, two of which are in shared memory.
template <class T, int D, int BM, int BN, int MASK, int VECTOR>
__global__ void __launch_bounds__(2 * BM) scores_two_passes(const T* q, const T* k, T* p, const T* mask,
                                                            long long mask_batch, long long mask_head, int queries,
                                                            int keys, int heads, int kv_heads, float scale) {
    constexpr int THREADS = 2 * BM, tile_bytes = BN * D * 2;
    extern __shared__ __align__(1024) unsigned char shared[];
    const Scores<T, MASK, VECTOR> scores{mask, mask_batch, mask_head, queries, keys, heads, kv_heads, scale};
    const unsigned q_tile = cvta_to_shared(shared), k_tiles = q_tile + BM * D * 2;
    const unsigned warp = threadIdx.x / 32;
    unsigned char* box = shared + BM * D * 2 + 2 * tile_bytes + warp * box_bytes<BN>;
    const int head = blockIdx.y, kv_head = head / (heads / kv_heads), batch = blockIdx.z;
    // With a causal mask the last queries see most keys: their CTAs start first.
    const int query = (MASK == CAUSAL_MASK ? gridDim.x - 1 - blockIdx.x : blockIdx.x) * BM, row = query + warp * 16;
    const size_t q_stride = size_t(heads) * D, k_stride = size_t(kv_heads) * D;
    follow_previous_grid();

    const T* first_k = k + size_t(batch) * keys * k_stride + kv_head * D;
    const int steps = (scores.visible_before(query + BM) + BN - 1) / BN;
    auto copy = [&](int i) {  // the keys of iteration i, of 2 * steps
        if (i < 2 * steps) {
            const int key = (i < steps ? i : i - steps) * BN;
            copy_rows<BN, D, THREADS>(k_tiles + i % 2 * tile_bytes, first_k + key * k_stride, k_stride, keys - key);
        }
        cp_async_commit_group();
    };
    copy_rows<BM, D, THREADS>(q_tile, q + (size_t(batch) * queries + query) * q_stride + head * D, q_stride,
                              queries - query);
    copy(0);

    T* out = p + ((size_t(batch) * heads + head) * queries + row) * keys;
    OnlineSoftmax softmax{scores.remaining_scale()};
    float s[BN / 2], subtracted[2] = {};
    for (int i = 0; i < 2 * steps; i++) {
        copy(i + 1);
        cp_async_wait_group<1>();
        barrier_sync();
        const int key = (i < steps ? i : i - steps) * BN;
        multiply_scores<BM, BN, D, T>(s, q_tile, warp * 16, k_tiles + i % 2 * tile_bytes);
        scores.apply(s, batch, head, row, key);
        if (i == steps) normalizing_exponents(subtracted, softmax);
        if (i < steps) {
            float factor[2];
            softmax.add(s, factor);
        } else {
            normalize(s, softmax.scale, subtracted);
            write_box<BN>(s, box, T());
            store_box<BN, VECTOR>(box, out + key, keys, queries - row, keys - key);
        }
        barrier_sync();  // all warps have read the tile
    }
    cp_async_wait_all();
#pragma unroll
    for (float& each : s) each = 0;
    write_box<BN>(s, box, T());
    for (int key = steps * BN; key < keys; key += BN) {
        store_box<BN, VECTOR>(box, out + key, keys, queries - row, keys - key);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// By TMA and wgmma

// A warp's probabilities on their way to device memory: by TMA if the rows are aligned to 16 bytes, else by the lanes.
template <class T, int BN, int VECTOR, int BOXES>
struct Stores {
    unsigned char* boxes;  // BOXES of them, used one after the other
    const TensorMap& map;  // (batch, heads, queries, keys), boxes of 16 queries and 64 keys; used if VECTOR is 8
    T* p;
    int queries, keys, heads, count = 0;

    // Stores 16 rows from `query` and BN columns from `key`.
    __device__ __forceinline__ void store(const float (&s)[BN / 2], int batch, int head, int query, int key) {
        unsigned char* box = boxes + count * box_bytes<BN>;
        if constexpr (VECTOR == 8) {
            // One lane starts all copies: their groups are those of a thread.
            if (laneid() == 0) cp_async_bulk_wait_group_read<BOXES - 1>();
            __syncwarp();
            write_box<BN>(s, box, T());
            fence_proxy_async_shared_cta();
            __syncwarp();
            if (laneid() == 0) {
                for (int c = 0; c < BN && key + c < keys; c += 64) {
                    cp_async_bulk_tensor_4d_global_shared(map, key + c, query, head, batch,
                                                          cvta_to_shared(box) + c / 64 * 16 * 128);
                }
                cp_async_bulk_commit_group();
            }
            if (++count == BOXES) count = 0;
        } else {
            write_box<BN>(s, box, T());
            store_box<BN, VECTOR>(box, p + ((size_t(batch) * heads + head) * queries + query) * keys + key, keys,
                                  queries - query, keys - key);
        }
    }

    // Before the end of the kernel: shared memory has been read.
    __device__ __forceinline__ void finish() const {
        if (VECTOR == 8 && laneid() == 0) cp_async_bulk_wait_group_read<0>();
    }
};

// Parameters of scores_specialized. The description gives them by name (ScoresTile in
// ptxkit/kernels/attention/attention_scores.py).
template <int D_, int CONSUMERS_, int BN_, int STAGES_, int REGISTERS_, bool MASK_TILES_>
struct ScoresTile {
    static constexpr int D = D_;                  // elements of a head
    static constexpr int CONSUMERS = CONSUMERS_;  // warpgroups that multiply 64 queries each
    static constexpr int BM = 64 * CONSUMERS;     // queries of a CTA
    static constexpr int BN = BN_;                // keys of a tile
    static constexpr int STAGES = STAGES_;        // tiles of keys in shared memory
    static constexpr int REGISTERS = REGISTERS_;  // of a consumer thread after setmaxnreg; 0: no setmaxnreg
    static constexpr int BOXES = 2;               // of each warp, for the results
    static constexpr bool MASK_TILES = MASK_TILES_;  // TMA loads an array of masks, too
    // Shared memory as byte offsets: queries, tiles of keys and of the mask, boxes of results, mbarriers.
    static constexpr int tile_bytes = BN * D * 2, q_bytes = BM * D * 2, k = q_bytes;
    static constexpr int mask_bytes = MASK_TILES ? BM * BN * 2 : 0, masks = k + STAGES * tile_bytes;
    static constexpr int boxes = masks + STAGES * mask_bytes;
    static constexpr int barriers = boxes + 4 * CONSUMERS * BOXES * box_bytes<BN>;
};

// Work items `blockIdx.x`, `blockIdx.x + gridDim.x`, ... of `tiles` tiles of queries for each head of each sequence; with
// a causal mask, the tiles with most keys of a head first. mask_map: used with MASK_TILES, boxes of BM queries and 64 keys.
template <class T, class Tile, int MASK, int VECTOR>
__global__ void __launch_bounds__(128 * (Tile::CONSUMERS + 1), 1) scores_specialized(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
    const __grid_constant__ TensorMap p_map, const __grid_constant__ TensorMap mask_map, T* p, const T* mask,
    long long mask_batch, long long mask_head, int queries, int keys, int heads, int kv_heads, int tiles, int works,
    float scale) {
    constexpr int D = Tile::D, BM = Tile::BM, BN = Tile::BN, STAGES = Tile::STAGES, CONSUMERS = Tile::CONSUMERS;
    extern __shared__ __align__(1024) unsigned char shared[];
    const Scores<T, MASK, VECTOR> scores{mask, mask_batch, mask_head, queries, keys, heads, kv_heads, scale};
    const unsigned q_tile = cvta_to_shared(shared), k_tiles = q_tile + Tile::k;
    const unsigned q_full = q_tile + Tile::barriers, q_empty = q_full + 8, k_full = q_empty + 8,
                   k_empty = k_full + 8 * STAGES;
    const unsigned warp = shfl_sync_idx(all_lanes, threadIdx.x / 32, 0);
    if (threadIdx.x == 0) {
        prefetch_tensormap(q_map);
        prefetch_tensormap(k_map);
        if (VECTOR == 8) prefetch_tensormap(p_map);
        if (Tile::MASK_TILES) prefetch_tensormap(mask_map);
        mbarrier_init(q_full, 1);
        mbarrier_init(q_empty, 4 * CONSUMERS);  // one lane of each warp
        init_ring<STAGES>(k_full, 1, k_empty, 4 * CONSUMERS);
    }
    barrier_sync();
    follow_previous_grid();

    auto tile_of = [&](int work) { return MASK == CAUSAL_MASK ? tiles - 1 - work % tiles : work % tiles; };
    Ring<STAGES> at;
    unsigned q_parity = 0;
    if (warp < 4) {
        if constexpr (Tile::REGISTERS > 0) setmaxnreg_dec<24>();
        if (warp == 0 && elect_sync(all_lanes)) {
            for (int work = blockIdx.x; work < works; work += gridDim.x) {
                const int query = tile_of(work) * BM, head = work / tiles % heads, batch = work / tiles / heads;
                const int steps = (scores.visible_before(query + BM) + BN - 1) / BN;
                const int kv_head = head / (heads / kv_heads);
                if (steps == 0) continue;
                mbarrier_wait(q_empty, q_parity ^ 1);
                mbarrier_arrive_expect_tx(q_full, Tile::q_bytes);
                for (int d = 0; d < D; d += 64) {
                    cp_async_bulk_tensor_4d_shared_global(q_tile + d / 64 * BM * 128, q_map, d, head, query, batch,
                                                          q_full);
                }
                q_parity ^= 1;
                for (int i = 0; i < 2 * steps; i++) {
                    const int key = (i < steps ? i : i - steps) * BN;
                    const unsigned k_tile = k_tiles + at.stage * Tile::tile_bytes, full = k_full + 8 * at.stage;
                    mbarrier_wait(k_empty + 8 * at.stage, at.parity ^ 1);
                    mbarrier_arrive_expect_tx(full, Tile::tile_bytes + Tile::mask_bytes);
                    for (int d = 0; d < D; d += 64) {
                        cp_async_bulk_tensor_4d_shared_global(k_tile + d / 64 * BN * 128, k_map, d, kv_head, key, batch,
                                                              full);
                    }
                    if constexpr (Tile::MASK_TILES) {
                        const unsigned mask_tile = q_tile + Tile::masks + at.stage * Tile::mask_bytes;
                        for (int c = 0; c < BN; c += 64) {
                            cp_async_bulk_tensor_4d_shared_global(mask_tile + c / 64 * BM * 128, mask_map, key + c, query,
                                                                  mask_head ? head : 0, mask_batch ? batch : 0, full);
                        }
                    }
                    at.advance();
                }
            }
        }
    } else {
        if constexpr (Tile::REGISTERS > 0) setmaxnreg_inc<Tile::REGISTERS>();
        const int number = warp / 4 - 1;
        const unsigned q_rows = q_tile + number * 64 * 128;
        Stores<T, BN, VECTOR, Tile::BOXES> stores{
            shared + Tile::boxes + (warp - 4) * Tile::BOXES * box_bytes<BN>, p_map, p, queries, keys, heads};
        float s[BN / 2];
        for (int work = blockIdx.x; work < works; work += gridDim.x) {
            const int query = tile_of(work) * BM, head = work / tiles % heads, batch = work / tiles / heads;
            const int steps = (scores.visible_before(query + BM) + BN - 1) / BN;
            const int row = query + number * 64 + warp % 4 * 16;
            OnlineSoftmax softmax{scores.remaining_scale()};
            auto multiply = [&](int key) {
                mbarrier_wait(k_full + 8 * at.stage, at.parity);
                start_scores<BM, BN, D>(s, q_rows, k_tiles + at.stage * Tile::tile_bytes, T());
                wgmma_wait_group<0>();
                warpgroup_fence_operand(s);
                if constexpr (Tile::MASK_TILES) {
                    const unsigned char* mask_tile = shared + Tile::masks + at.stage * Tile::mask_bytes;
                    scores.template apply_tile<BM>(s, mask_tile, number * 64 + warp % 4 * 16, key);
                    __syncwarp();  // all lanes have read the mask
                }
                if (laneid() == 0) mbarrier_arrive(k_empty + 8 * at.stage);
                at.advance();
                if constexpr (!Tile::MASK_TILES) scores.apply(s, batch, head, row, key);
            };
            if (steps > 0) {
                mbarrier_wait(q_full, q_parity);
                q_parity ^= 1;
                for (int step = 0; step < steps; step++) {
                    float factor[2];
                    multiply(step * BN);
                    softmax.add(s, factor);
                }
                float subtracted[2];
                normalizing_exponents(subtracted, softmax);
                for (int step = 0; step < steps; step++) {
                    multiply(step * BN);
                    if (step == steps - 1 && laneid() == 0) mbarrier_arrive(q_empty);
                    normalize(s, softmax.scale, subtracted);
                    stores.store(s, batch, head, row, step * BN);
                }
            }
            if (MASK == CAUSAL_MASK && steps * BN < keys) {
#pragma unroll
                for (float& each : s) each = 0;
                for (int key = steps * BN; key < keys; key += BN) stores.store(s, batch, head, row, key);
            }
        }
        stores.finish();
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Rows held by a cluster

// Parameters of scores_cluster. The description gives them by name (ScoresClusterTile in
// ptxkit/kernels/attention/attention_scores.py).
template <int D_, int CTAS_, int BN_, int STAGES_>
struct ScoresClusterTile {
    static constexpr int D = D_;            // elements of a head
    static constexpr int CTAS = CTAS_;      // of a cluster
    static constexpr int BN = BN_;          // keys of a CTA
    static constexpr int STAGES = STAGES_;  // tiles of 64 queries in shared memory, for each warpgroup
    static constexpr int CONSUMERS = 2;     // warpgroups, which take tiles of 64 queries in turn
    static constexpr int REGISTERS = 232;
    // What two rows, 8 apart, send to each CTA: for each, the maximum and the sum. 32 pairs of rows.
    static constexpr int record_bytes = 32 * 16;
    // Shared memory as byte offsets: keys, tiles of queries, boxes of results, records of two tiles, mbarriers.
    static constexpr int k_bytes = BN * D * 2, q_bytes = 64 * D * 2, q = k_bytes;
    static constexpr int boxes = q + CONSUMERS * STAGES * q_bytes;
    static constexpr int records = boxes + 4 * CONSUMERS * box_bytes<BN>;
    static constexpr int barriers = records + CONSUMERS * 2 * CTAS * record_bytes;
};

// CTA `rank` of a cluster has the keys from rank * BN on, in shared memory from the beginning to the end. A cluster
// computes up to `chunk` tiles of 64 queries of one head; `chunks` clusters compute all of them.
template <class T, class Tile, int MASK, int VECTOR>
__global__ void __launch_bounds__(128 * (Tile::CONSUMERS + 1), 1) scores_cluster(
    const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
    const __grid_constant__ TensorMap p_map, T* p, const T* mask, long long mask_batch, long long mask_head,
    int queries, int keys, int heads, int kv_heads, int chunk, int chunks, float scale) {
    constexpr int D = Tile::D, BN = Tile::BN, CTAS = Tile::CTAS, STAGES = Tile::STAGES, CONSUMERS = Tile::CONSUMERS;
    extern __shared__ __align__(1024) unsigned char shared[];
    const Scores<T, MASK, VECTOR> scores{mask, mask_batch, mask_head, queries, keys, heads, kv_heads, scale};
    const unsigned k_tile = cvta_to_shared(shared), q_tiles = k_tile + Tile::q;
    // For each warpgroup: the mbarriers of the ring of its queries, and of the records of even and odd tiles.
    constexpr int own_barriers = 2 * STAGES + 2;
    const unsigned k_full = k_tile + Tile::barriers, q_barriers = k_full + 8;
    const unsigned warp = shfl_sync_idx(all_lanes, threadIdx.x / 32, 0);
    const unsigned rank = CTAS > 1 ? cluster_ctarank() : 0;
    if (threadIdx.x == 0) {
        prefetch_tensormap(q_map);
        prefetch_tensormap(k_map);
        if (VECTOR == 8) prefetch_tensormap(p_map);
        mbarrier_init(k_full, 1);
        for (int i = 0; i < CONSUMERS; i++) {
            const unsigned own = q_barriers + 8 * own_barriers * i;
            mbarrier_init(own + 16 * STAGES, 1);
            mbarrier_init(own + 16 * STAGES + 8, 1);
            init_ring<STAGES>(own, 1, own + 8 * STAGES, 4);
        }
    }
    if constexpr (CTAS > 1) {
        barrier_cluster_arrive_release();
        barrier_cluster_wait_acquire();
    } else {
        barrier_sync();
    }
    follow_previous_grid();

    const int work = blockIdx.x / CTAS, head = work / chunks % heads, batch = work / chunks / heads;
    const int tiles = (queries + 63) / 64, begin = work % chunks * chunk, end = min(begin + chunk, tiles);
    const int key = rank * BN;
    // Whether some query of a tile sees keys of this CTA. If not, its scores are not computed.
    auto needed = [&](int tile) { return key < scores.visible_before(64 * tile + 64); };
    Ring<STAGES> at;
    if (warp < 4) {
        setmaxnreg_dec<40>();
        if (warp < CONSUMERS && elect_sync(all_lanes)) {  // one warp for the queries of each warpgroup
            const unsigned q_full = q_barriers + 8 * own_barriers * warp, q_empty = q_full + 8 * STAGES;
            // With a causal mask the last tile sees most keys.
            if (warp == 0 && begin < end && needed(end - 1)) {
                mbarrier_arrive_expect_tx(k_full, Tile::k_bytes);
                for (int d = 0; d < D; d += 64) {
                    cp_async_bulk_tensor_4d_shared_global(k_tile + d / 64 * BN * 128, k_map, d,
                                                          head / (heads / kv_heads), key, batch, k_full);
                }
            }
            for (int tile = begin + warp; tile < end; tile += CONSUMERS) {
                if (!needed(tile)) continue;
                const unsigned q_tile = q_tiles + (warp * STAGES + at.stage) * Tile::q_bytes;
                mbarrier_wait(q_empty + 8 * at.stage, at.parity ^ 1);
                mbarrier_arrive_expect_tx(q_full + 8 * at.stage, Tile::q_bytes);
                for (int d = 0; d < D; d += 64) {
                    cp_async_bulk_tensor_4d_shared_global(q_tile + d / 64 * 64 * 128, q_map, d, head, tile * 64, batch,
                                                          q_full + 8 * at.stage);
                }
                at.advance();
            }
        }
    } else {
        setmaxnreg_inc<Tile::REGISTERS>();
        const unsigned number = warp / 4 - 1, lane = laneid(), pair = warp % 4 * 8 + lane / 4;
        const unsigned q_full = q_barriers + 8 * own_barriers * number, q_empty = q_full + 8 * STAGES,
                       records_full = q_empty + 8 * STAGES;
        unsigned char* const records = shared + Tile::records + number * 2 * CTAS * Tile::record_bytes;
        Stores<T, BN, VECTOR, 1> stores{shared + Tile::boxes + (warp - 4) * box_bytes<BN>, p_map, p, queries, keys,
                                        heads};
        const float remaining_scale = scores.remaining_scale();
        float s[BN / 2];
        unsigned count = 0;
        for (int tile = begin + number; tile < end; tile += CONSUMERS, count++) {
            const int row = tile * 64 + warp % 4 * 16;
            if (needed(tile)) {
                mbarrier_wait(k_full, 0);
                mbarrier_wait(q_full + 8 * at.stage, at.parity);
                start_scores<64, BN, D>(s, q_tiles + (number * STAGES + at.stage) * Tile::q_bytes, k_tile, T());
                wgmma_wait_group<0>();
                warpgroup_fence_operand(s);
                if (lane == 0) mbarrier_arrive(q_empty + 8 * at.stage);
                at.advance();
                scores.apply(s, batch, head, row, key);
            } else {
#pragma unroll
                for (float& each : s) each = -infinity();
            }
            // Exponentials relative to the maximum of this CTA's keys. own[r]: that maximum, as an exponent of two.
            float own[2], sum[2], factor[2];
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float highest = -infinity();
#pragma unroll
                for (int i = 2 * r; i < BN / 2; i += 4) highest = fmaxf(highest, fmaxf(s[i], s[i + 1]));
                own[r] = warp_max<4>(highest) * remaining_scale;
                const float base = own[r] == -infinity() ? 0 : own[r];
                sum[r] = 0;
#pragma unroll
                for (int i = 2 * r; i < BN / 2; i += 4) {
                    s[i] = ex2_approx_ftz(fmaf(s[i], remaining_scale, -base));
                    s[i + 1] = ex2_approx_ftz(fmaf(s[i + 1], remaining_scale, -base));
                    sum[r] += s[i] + s[i + 1];
                }
                sum[r] = warp_sum<4>(sum[r]);
            }
            if constexpr (CTAS == 1) {
#pragma unroll
                for (int r = 0; r < 2; r++) factor[r] = sum[r] == 0 ? 0 : 1 / sum[r];
            } else {
                // Records of even and odd tiles have their own memory: a CTA that sends those of tile t + 2 has received
                // those of tile t + 1 from all warps of the warpgroups with this number, which had read those of tile t.
                const unsigned buffer = count & 1, full = records_full + 8 * buffer;
                const float4* all = reinterpret_cast<const float4*>(records + buffer * CTAS * Tile::record_bytes);
                const unsigned mine = cvta_to_shared(all + rank * 32 + pair);
                if (threadIdx.x % 128 == 0) mbarrier_arrive_expect_tx(full, CTAS * Tile::record_bytes);
                // The four lanes that hold the rows send them to different CTAs.
#pragma unroll
                for (unsigned cta = lane % 4; cta < CTAS; cta += 4) {
                    st_async_shared_cluster(mapa_shared_cluster(mine, cta), make_float4(own[0], sum[0], own[1], sum[1]),
                                            mapa_shared_cluster(full, cta));
                }
                mbarrier_wait(full, count >> 1 & 1);
                float highest[2] = {-infinity(), -infinity()}, total[2] = {};
#pragma unroll
                for (int i = 0; i < CTAS; i++) {
                    const float4 record = all[i * 32 + pair];
                    highest[0] = fmaxf(highest[0], record.x);
                    highest[1] = fmaxf(highest[1], record.z);
                }
                const float base[2] = {highest[0] == -infinity() ? 0 : highest[0],
                                       highest[1] == -infinity() ? 0 : highest[1]};
#pragma unroll
                for (int i = 0; i < CTAS; i++) {
                    const float4 record = all[i * 32 + pair];
                    total[0] = fmaf(record.y, ex2_approx_ftz(record.x - base[0]), total[0]);
                    total[1] = fmaf(record.w, ex2_approx_ftz(record.z - base[1]), total[1]);
                }
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    factor[r] = total[r] == 0 ? 0 : ex2_approx_ftz(own[r] - base[r]) / total[r];
                }
            }
            scale_rows(s, factor);
            if (key < keys) stores.store(s, batch, head, row, key);
        }
        stores.finish();
    }
}
