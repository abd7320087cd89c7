// The product of quantized tokens with quantized weights, with the results quantized again: out = a_scales (a b^T)
// b_scales for one expert, and for the tokens of many experts in one launch (moe_routed.cu). a is rows x k, b is n x
// k for each expert, row-major, in int8 with exact s32 sums or in e4m3 with f32 sums; a has a scale per token (row),
// b one per output channel (row). cu/ptxkit/gemm/grouped.cuh describes the tiles and the epilogues.
//
// Variants:
// - unfused, `dequantize_rows` to `quantize_row`: five launches around a bf16 product (matmul_mma.cu).
// - `moe_product_mma`, for sm_80 (e4m3: sm_89): cp.async fills a ring of stages, mma.sync multiplies, and the epilogue
//     scales the sums and quantizes them in registers.
// - `moe_product_wgmma`, for sm_90a: a producer warpgroup fills the ring through TMA, one or two consumer warpgroups
//     multiply by wgmma, persistent CTAs. The CTAs of a cluster compute tiles of the same tokens: each loads a part of
//     these and multicasts it to the others; with SHARE_WEIGHTS the same for the weights. Of an incomplete tile, a multiple
//     of STEP tokens is multiplied. With PING_PONG, each of two consumers has a tile of its own, and multiplies
//     while the other one is in its epilogue, where it waits for the magnitudes of other tiles. With PROMOTED, the sums
//     of DEPTH products are added to others in f32, because tensor cores keep 13 bits of sums of e4m3 products.
// - the same with results in bf16 (f32 of s8), and `quantize_wide`, which finds the scale of each row and quantizes it.
#include "ptxkit/gemm/grouped.cuh"
#include "ptxkit/gemm/mma.cuh"
#include "ptxkit/ptx/bulk_copy.cuh"
#include "ptxkit/ptx/cluster.cuh"
#include "ptxkit/ptx/mbarrier.cuh"
#include "ptxkit/ptx/wgmma.cuh"
#include "ptxkit/ptx/wgmma_columns_e4m3.cuh"
#include "ptxkit/ptx/wgmma_columns_s8.cuh"
#include "ptxkit/rows/reduce.cuh"
#include "ptxkit/target.cuh"

using namespace ptxkit;

// ---------------------------------------------------------------------------------------------------------------------
// unfused

// x = q * scales[row], in bf16.
template <class T, int THREADS>
__global__ void __launch_bounds__(THREADS) dequantize_rows(const T* q, const float* scales, bf16* x, int cols) {
    follow_previous_grid();
    const size_t row = static_cast<size_t>(blockIdx.x) * cols;
    for (int c = threadIdx.x; c < cols; c += THREADS)
        x[row + c] = Convert<bf16>::from_f32(Narrow<T>::dequantize(q[row + c]) * scales[blockIdx.x]);
}

// The scale of each row of x: its largest magnitude divided by that of the type.
template <class T, class X, int THREADS>
__global__ void __launch_bounds__(THREADS) row_scales(const X* x, float* largest, float* scales, int cols) {
    __shared__ CtaSlots<float, THREADS / 32> slots;
    follow_previous_grid();
    x += static_cast<size_t>(blockIdx.x) * cols;
    float found = 0.0f;
    for (int c = threadIdx.x; c < cols; c += THREADS) found = fmaxf(found, fabsf(to_f32(x[c])));
    found = cta_max<THREADS>(found, slots);
    if (threadIdx.x == 0) {
        largest[blockIdx.x] = found;
        scales[blockIdx.x] = RowQuantizer<T>(found).scale;
    }
}

// q = round(x / scale). The scale is that of the row's magnitude in `largest`, or a given one if `largest` is null.
template <class T, class X, int THREADS>
__global__ void __launch_bounds__(THREADS) quantize_row(const X* x, const float* largest, const float* scales,
                                                        unsigned char* q, int cols) {
    follow_previous_grid();
    const size_t row = static_cast<size_t>(blockIdx.x) * cols;
    const float inverse = largest ? RowQuantizer<T>(largest[blockIdx.x]).inverse : 1.0f / scales[blockIdx.x];
    for (int c = threadIdx.x; c < cols; c += THREADS) q[row + c] = Narrow<T>::quantize(to_f32(x[row + c]) * inverse);
}

// ---------------------------------------------------------------------------------------------------------------------
// The second of two launches: the scale of a row of results, and its quantization

// 16 elements as vectors of 16 bytes, in f32 or bf16.
template <class X>
struct Sixteen {
    static constexpr int vectors = sizeof(X);
    uint4 words[vectors];

    __device__ __forceinline__ void load(const X* x) {
#pragma unroll
        for (int i = 0; i < vectors; i++) words[i] = reinterpret_cast<const uint4*>(x)[i];
    }

    // Calls f(i, x) for each pair of elements 2 i and 2 i + 1.
    template <class F>
    __device__ __forceinline__ void each_pair(F f) const {
#pragma unroll
        for (int i = 0; i < vectors; i++) {
            const unsigned word[4] = {words[i].x, words[i].y, words[i].z, words[i].w};
            if constexpr (sizeof(X) == 4) {
#pragma unroll
                for (int j = 0; j < 2; j++)
                    f(2 * i + j, float2{__uint_as_float(word[2 * j]), __uint_as_float(word[2 * j + 1])});
            } else {
#pragma unroll
                for (int j = 0; j < 4; j++) f(4 * i + j, float2{Convert<X>::low(word[j]), Convert<X>::high(word[j])});
            }
        }
    }

    __device__ __forceinline__ float largest() const {
        float found = 0.0f;
        each_pair([&](int, float2 v) { found = fmaxf(found, fmaxf(fabsf(v.x), fabsf(v.y))); });
        return found;
    }

    template <class T>
    __device__ __forceinline__ void quantize(unsigned char* q, float inverse) const {
        unsigned words[4] = {};
        each_pair([&](int i, float2 v) {
            const unsigned low = Narrow<T>::quantize(v.x * inverse), high = Narrow<T>::quantize(v.y * inverse);
            words[i / 2] |= (low | high << 8) << i % 2 * 16;
        });
        *reinterpret_cast<uint4*>(q) = {words[0], words[1], words[2], words[3]};
    }
};

// What the second launch keeps of 16 results: f32 of exact sums, whose scales it applies, in the order of the other epilogues.
template <class X>
struct KeptOf {
    using type = Sixteen<X>;
};
template <>
struct KeptOf<int> {
    using type = Sixteen<float>;
};

// Reads the 16 results from `at` on of a row. token_scale and weight_scales are those of sums.
template <class X>
__device__ __forceinline__ void load_results(Sixteen<X>& kept, const X* row, int at, float, const float*) {
    kept.load(row + at);
}
__device__ __forceinline__ void load_results(Sixteen<float>& kept, const int* row, int at, float token_scale,
                                             const float* weight_scales) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int4 sums = reinterpret_cast<const int4*>(row + at)[i];
        const float4 scales = reinterpret_cast<const float4*>(weight_scales + at)[i];
        kept.words[i] = {__float_as_uint(static_cast<float>(sums.x) * token_scale * scales.x),
                         __float_as_uint(static_cast<float>(sums.y) * token_scale * scales.y),
                         __float_as_uint(static_cast<float>(sums.z) * token_scale * scales.z),
                         __float_as_uint(static_cast<float>(sums.w) * token_scale * scales.w)};
    }
}

// q = round(x / scale) of a row. The scale follows from its largest magnitude if OWN, and else is an input. x are results, or sums
// of s8 that token_scales and weight_scales make results. A CTA has a row; its threads keep GROUPS groups of 16 elements each, and
// read those of longer rows again. cols is a multiple of 16.
template <class T, class X, int THREADS, int GROUPS, bool OWN>
__global__ void __launch_bounds__(THREADS) quantize_wide(const X* x, unsigned char* q, float* scales, const float* token_scales,
                                                         const float* weight_scales, int cols) {
    using Kept = typename KeptOf<X>::type;
    __shared__ CtaSlots<float, THREADS / 32> slots;
    follow_previous_grid();
    x += static_cast<size_t>(blockIdx.x) * cols;
    q += static_cast<size_t>(blockIdx.x) * cols;
    float token_scale = 1.0f;
    if constexpr (sizeof(X) == 4) {
        if (token_scales) token_scale = token_scales[blockIdx.x];
    }
    const int groups = cols / 16, first = threadIdx.x;
    auto load = [&](Kept& kept, int g) { load_results(kept, x, g * 16, token_scale, weight_scales); };
    Kept kept[GROUPS];
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
        if (first + i * THREADS < groups) load(kept[i], first + i * THREADS);
    }
    float inverse;
    if constexpr (OWN) {
        float found = 0.0f;
#pragma unroll
        for (int i = 0; i < GROUPS; i++) {
            if (first + i * THREADS < groups) found = fmaxf(found, kept[i].largest());
        }
        for (int g = first + GROUPS * THREADS; g < groups; g += THREADS) {
            Kept more;
            load(more, g);
            found = fmaxf(found, more.largest());
        }
        const RowQuantizer<T> quantizer(cta_max<THREADS>(found, slots));
        if (threadIdx.x == 0) scales[blockIdx.x] = quantizer.scale;
        inverse = quantizer.inverse;
    } else {
        inverse = 1.0f / scales[blockIdx.x];
    }
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
        const int g = first + i * THREADS;
        if (g < groups) kept[i].template quantize<T>(q + g * 16, inverse);
    }
    for (int g = first + GROUPS * THREADS; g < groups; g += THREADS) {
        Kept more;
        load(more, g);
        more.template quantize<T>(q + g * 16, inverse);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// What both products have in common

// Zeros for the exchange of magnitudes between CTAs.
template <int THREADS>
__global__ void __launch_bounds__(THREADS) clear_exchange(unsigned* largest, int rows, unsigned* arrived, int blocks) {
    follow_previous_grid();
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < rows; i += gridDim.x * THREADS) largest[i] = 0;
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < blocks; i += gridDim.x * THREADS) arrived[i] = 0;
}

// Elements of k in a stage: rows of 128 bytes, the widest swizzle.
constexpr int DEPTH = 128;

// The steps along k of part `part` of PARTS: [begin, end).
template <int PARTS>
struct Steps {
    unsigned begin, end;

    __device__ __forceinline__ Steps(int k, unsigned part) {
        const unsigned all = (k - 1) / DEPTH + 1;
        begin = all * part / PARTS;
        end = all * (part + 1) / PARTS;
    }
};

// ---------------------------------------------------------------------------------------------------------------------
// mma.sync

__device__ __forceinline__ void narrow_mma(int* d, const unsigned (&a)[4], const unsigned (&b)[2], signed char) {
    mma_sync_m16n8k32_s32_s8_s8(*reinterpret_cast<int(*)[4]>(d), a, b);
}
__device__ __forceinline__ void narrow_mma(float* d, const unsigned (&a)[4], const unsigned (&b)[2], e4m3) {
    mma_sync_m16n8k32_f32_e4m3_e4m3(*reinterpret_cast<float(*)[4]>(d), a, b);
}

// Tile parameters of moe_product_mma. The description gives them by name (ExpertMmaTile in
// ptxkit/kernels/moe/product.py).
template <int BW_, int BT_, int WW_, int WT_, int STAGES_, int GROUP_>
struct ExpertMmaTile {
    static constexpr int BW = BW_, BT = BT_;  // weights and tokens in a tile
    static constexpr int WW = WW_, WT = WT_;  // of these a warp's
    static constexpr int STAGES = STAGES_;    // of the ring
    static constexpr int GROUP = GROUP_;      // blocks of tokens in a group, see GroupTiles
    static constexpr int warps_down = BW / WW, threads = 32 * warps_down * (BT / WT);
    static constexpr int weight_bytes = BW * DEPTH, stage_bytes = weight_bytes + BT * DEPTH;
    static_assert(BW % WW == 0 && BT % WT == 0 && WW % 16 == 0 && WT % 16 == 0,
                  "warps cover the tile in matrices of 16");
    static_assert(STAGES >= 2, "one stage is multiplied while another is filled");
};

// Copies tiles of ROWS tokens by cp.async; a row of a is row token[r] of x, or r without `token`.
template <int ROWS, int THREADS>
struct TokenCopier {
    static constexpr int atoms = ROWS * DEPTH / 16, each = (atoms + THREADS - 1) / THREADS, step = THREADS / 8;
    static_assert(THREADS % 64 == 0, "the atoms of a thread are at one place in the swizzle");

    const char* from[each];
    int left;  // bytes of the row from the thread's first atom on

    __device__ __forceinline__ void begin(const void* x, const int* token, const GroupTile& tile, int k) {
        const unsigned at = threadIdx.x % 8 * 16;
        left = k - static_cast<int>(at);
#pragma unroll
        for (int i = 0; i < each; i++) {
            const unsigned r = threadIdx.x / 8 + i * step, row = tile.row + r;
            const bool inside = r < ROWS && row < tile.end;
            const size_t first = inside ? static_cast<size_t>(token ? token[row] : row) * k : 0;
            from[i] = inside ? static_cast<const char*>(x) + first + at : nullptr;
        }
    }

    __device__ __forceinline__ void copy(unsigned tile, const void* x) const {
        const unsigned offset = swizzled<DEPTH>(threadIdx.x * 16);
#pragma unroll
        for (int i = 0; i < each; i++) {
            if (threadIdx.x / 8 + i * step >= ROWS) break;
            const bool there = from[i] && left > 0;
            cp_async_cg_shared_global(tile + offset + i * THREADS * 16, there ? from[i] : x, there ? 16 : 0);
        }
    }

    __device__ __forceinline__ void advance() {
        left -= DEPTH;
#pragma unroll
        for (int i = 0; i < each; i++) {
            if (from[i]) from[i] += DEPTH;
        }
    }
};

// token: the row of a of each row of the experts, and of a_scales; null: the same.
template <class T, class S, int FORMAT, bool SWIGLU>
__global__ void __launch_bounds__(S::threads) moe_product_mma(const T* a, const T* b, const int* token,
                                                              const int* offsets, const float* a_scales,
                                                              const float* b_scales, void* out, float* scales,
                                                              unsigned* largest, unsigned* arrived, int rows, int n,
                                                              int k, int experts) {
    constexpr int STAGES = S::STAGES, WW = S::WW, WT = S::WT;
    using E = EpilogueShared<S::BW, S::BT, FORMAT, SWIGLU>;
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned base = cvta_to_shared(shared), end = base + STAGES * S::stage_bytes;
    unsigned char* scratch = shared + STAGES * S::stage_bytes;
    const unsigned warp = shfl_sync_idx(all_lanes, threadIdx.x / 32, 0);
    const unsigned warp_weight = warp % S::warps_down * WW, warp_token = warp / S::warps_down * WT;
    follow_previous_grid();
    const GroupTiles<S::BW, S::BT, FORMAT == OWN ? 1 : S::GROUP, 1> tiles(
        offsets, reinterpret_cast<int*>(scratch + E::blocks), experts, rows, n);
    const Results results{out, scales, largest, arrived, a_scales, b_scales, token, unsigned(n), unsigned(rows)};
    const unsigned steps = (k - 1) / DEPTH + 1;

    // ldmatrix and mma.sync treat pairs of elements as one of 16 bits.
    const OperandOffsets<DEPTH / 2, true> operands(warp_weight, warp_token);
    Copier<S::BW, DEPTH / 2, S::threads, true, unsigned short> weights;
    TokenCopier<S::BT, S::threads> tokens;
    for (unsigned index = blockIdx.x; index < tiles.count; index += gridDim.x) {
        const GroupTile tile = tiles.at(index);
        const T* expert = b + static_cast<size_t>(tile.expert) * n * k;
        weights.begin(reinterpret_cast<const unsigned short*>(expert), tile.col, n, k / 2);
        tokens.begin(a, token, tile, k);
        unsigned filled = base, read = base;
        auto next = [&](unsigned stage) { return stage + S::stage_bytes == end ? base : stage + S::stage_bytes; };
        auto fill = [&] {
            weights.copy(filled);
            tokens.copy(filled + S::weight_bytes, a);
            cp_async_commit_group();
            weights.advance();
            tokens.advance();
            filled = next(filled);
        };
#pragma unroll
        for (int step = 0; step < STAGES - 1; step++) fill();
        typename Narrow<T>::Sum sums[WW / 16][WT / 8 * 4] = {};
        for (unsigned step = 0; step < steps; step++) {
            cp_async_wait_group<STAGES - 2>();
            barrier_sync();  // the stage is filled, and all warps have read the one before, which is filled next
            fill();
#pragma unroll
            for (int kk = 0; kk < DEPTH / 2; kk += 16) {
                Fragments<WW, WT> fragments;
                fragments.load(read, read + S::weight_bytes, operands, kk);
#pragma unroll
                for (int i = 0; i < WW / 16; i++) {
#pragma unroll
                    for (int j = 0; j < WT / 8; j++) narrow_mma(&sums[i][4 * j], fragments.a[i], fragments.b[j], T());
                }
            }
            read = next(read);
        }
        if constexpr (FORMAT == SUMS) store_sums<16>(sums, results, tile, warp_weight, warp_token);
        else finish_tile<T, S::BW, S::BT, FORMAT, SWIGLU, S::threads, 16>(
            sums, results, tile, tiles.cols, warp_weight, warp_token, threadIdx.x, scratch,
            TileScales<16, WW / 16, WT / 8 * 4>(results, tile, warp_weight, warp_token));
        cp_async_wait_all();
        barrier_sync();  // all warps have read the last stages
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// wgmma

template <int N>
__device__ __forceinline__ void narrow_wgmma(int (&d)[N], unsigned long long a, unsigned long long b, bool accumulate) {
    wgmma_s8(d, a, b, accumulate);
}
template <int N>
__device__ __forceinline__ void narrow_wgmma(float (&d)[N], unsigned long long a, unsigned long long b,
                                             bool accumulate) {
    wgmma_e4m3(d, a, b, accumulate);
}

// Tile parameters of moe_product_wgmma. The description gives them by name (ExpertTile in
// ptxkit/kernels/moe/product.py).
template <int BW_, int BT_, int CONSUMERS_, int STAGES_, int GROUP_, int PARTS_, int CLUSTER_,
          bool PING_PONG_, bool PROMOTED_, int BOX_, int STEP_, bool SHARE_WEIGHTS_, bool DYNAMIC_>
struct ExpertTile {
    static constexpr int BW = BW_, BT = BT_;      // weights and tokens in a tile
    static constexpr int CONSUMERS = CONSUMERS_;  // warpgroups that multiply, each for BW / sharing weights
    static constexpr int STAGES = STAGES_;        // of the ring
    static constexpr int GROUP = GROUP_;          // blocks of tokens in a group, see GroupTiles
    static constexpr int PARTS = PARTS_;          // of k, each summed by another CTA
    static constexpr int CLUSTER = CLUSTER_;      // CTAs of a cluster, which have the same tokens and neighbouring weights,
    static constexpr bool SHARE_WEIGHTS = SHARE_WEIGHTS_;  // or the same weights and equal parts of CLUSTER * BT tokens
    static constexpr bool PING_PONG = PING_PONG_;  // consumers have tiles of their own
    static constexpr bool PROMOTED = PROMOTED_;    // sums of DEPTH products are added on CUDA cores
    static constexpr bool DYNAMIC = DYNAMIC_;      // a CTA that is free takes the next tile from a counter
    static constexpr int sharing = PING_PONG ? 1 : CONSUMERS, tiles = CONSUMERS / sharing;  // consumers of a tile
    static constexpr int weight_bytes = BW * DEPTH, stage_bytes = weight_bytes + BT * DEPTH;
    static constexpr int BOX = BOX_;  // rows of a TMA box of tokens; boxes without a token are not loaded
    static constexpr int token_ctas = SHARE_WEIGHTS ? CLUSTER : 1, weight_ctas = CLUSTER / token_ctas;
    static constexpr int PART = BT / weight_ctas;  // tokens that a CTA loads, at most
    static constexpr int STEP = STEP_;  // tokens are multiplied in multiples of it; BT: all of a tile's
    static constexpr int ROWS = BW / sharing / 64;  // wgmmas of a consumer
    static_assert(BW == 64 * ROWS * sharing && BW <= 256, "a consumer has a multiple of 64 weights");
    static_assert(!PING_PONG || CONSUMERS == 2, "two consumers alternate");
    static_assert(ROWS * BT <= (PROMOTED ? 128 : 288), "a thread has at most 144 sums, or 64 and as many of one step");
    static_assert(BT % STEP == 0 && (STEP == BT || !PROMOTED), "tokens are multiplied in multiples of STEP");
    static_assert(!SHARE_WEIGHTS || CLUSTER > 1, "a cluster shares weights");
    static_assert(BOX % 8 == 0 && PART % BOX == 0, "a CTA loads boxes of whole swizzle patterns");
    static_assert(!DYNAMIC || (CLUSTER == 1 && !PING_PONG), "a CTA whose consumers share a tile takes tiles for itself");
    static constexpr int barrier_bytes = (DYNAMIC ? 20 : 16) * STAGES;  // of a ring, and the tiles that begin in its stages
};

// What a consumer does with the stages of a tile. `own`: number of the consumer among those of the tile.
template <class T, class Tile>
struct Multiplier {
    using Sum = typename Narrow<T>::Sum;
    static constexpr int ROWS = Tile::ROWS, BT = Tile::BT, STEP = Tile::STEP, STAGES = Tile::STAGES;
    unsigned base, full, own;  // shared addresses of the stages and of their mbarriers
    Ring<STAGES> at;

    __device__ __forceinline__ unsigned empty(unsigned stage) const { return full + 8 * (STAGES + stage); }

    __device__ __forceinline__ void release(unsigned stage) const {  // all CTAs of the cluster load into this CTA's stage
        if constexpr (Tile::CLUSTER == 1) {
            if (laneid() == 0) mbarrier_arrive(empty(stage));
        } else if (laneid() < Tile::CLUSTER) {
            mbarrier_arrive_shared_cluster(mapa_shared_cluster(empty(stage), laneid()));
        }
    }

    // Multiplies the stage that is next with its first W tokens; adds to `d` from the first product on, or replaces it.
    template <int W>
    __device__ __forceinline__ void multiply(Sum (&d)[ROWS][W / 2], bool accumulate) const {
        const unsigned stage = base + at.stage * Tile::stage_bytes;
        const unsigned weights = stage + own * 64 * ROWS * DEPTH;
        mbarrier_wait(full + 8 * at.stage, at.parity);
        wgmma_fence();
#pragma unroll
        for (int part = 0; part < DEPTH; part += 32) {
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                narrow_wgmma(d[i], matrix_descriptor_128B(weights + i * 64 * DEPTH + part),
                             matrix_descriptor_128B(stage + Tile::weight_bytes + part), part > 0 || accumulate);
            }
        }
        wgmma_commit_group();
    }

    // The sums of a tile over `steps` steps; those of tokens after the first W are zeros. `done`: number of a named barrier
    // at which the threads arrive when they have seen all stages full, or 0.
    template <int W>
    __device__ __forceinline__ void sum(Sum (&sums)[ROWS][BT / 2], unsigned steps, unsigned done) {
        Sum found[ROWS][W / 2] = {};
        unsigned previous = 0;
        for (unsigned step = 0; step < steps; step++) {
            multiply<W>(found, true);
            wgmma_wait_group<1>();  // the previous step is complete, this one is in flight
            if (step > 0) release(previous);
            previous = at.stage;
            at.advance();
        }
        if (done) barrier_arrive(done, 256);
        wgmma_wait_group<0>();
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            warpgroup_fence_operand(found[i]);
#pragma unroll
            for (int j = 0; j < BT / 2; j++) sums[i][j] = j < W / 2 ? found[i][j] : 0;
        }
        if (steps > 0) release(previous);
    }

    // The same, where W is the smallest multiple of STEP that is not below `width`.
    template <int W = STEP>
    __device__ __forceinline__ void sum_of(unsigned width, Sum (&sums)[ROWS][BT / 2], unsigned steps, unsigned done) {
        if constexpr (W >= BT) sum<BT>(sums, steps, done);
        else if (width <= W) sum<W>(sums, steps, done);
        else sum_of<W + STEP>(width, sums, steps, done);
    }

    // The same for all tokens, with the sums of each step added in f32.
    __device__ __forceinline__ void sum_promoted(Sum (&sums)[ROWS][BT / 2], unsigned steps, unsigned done) {
        Sum of_step[ROWS][BT / 2];
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
#pragma unroll
            for (int j = 0; j < BT / 2; j++) sums[i][j] = 0;
        }
        for (unsigned step = 0; step < steps; step++) {
            multiply<BT>(of_step, false);
            wgmma_wait_group<0>();
#pragma unroll
            for (int i = 0; i < ROWS; i++) warpgroup_fence_operand(of_step[i]);
            release(at.stage);
            at.advance();
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
#pragma unroll
                for (int j = 0; j < BT / 2; j++) sums[i][j] += of_step[i][j];
            }
        }
        if (done) barrier_arrive(done, 256);
    }
};

// Persistent CTAs compute the tiles blockIdx.x, blockIdx.x + gridDim.x, ... (of clusters the same). With DYNAMIC, a CTA begins
// with tile blockIdx.x, and then takes those that the counter `arrived` gives out, so that none waits for a slower SM. The
// producer takes a tile when it loads the one before, and passes its number to the consumers with the tile's first stage. The
// counter is 0 before and after the launch: a number is taken for each tile, and atomicInc begins with 0 after these.
template <class T, class Tile, int FORMAT, bool SWIGLU>
__global__ void __launch_bounds__(128 * (Tile::CONSUMERS + 1), 1) moe_product_wgmma(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, const int* offsets,
    const float* a_scales, const float* b_scales, void* out, float* scales, unsigned* largest, unsigned* arrived,
    int rows, int n, int k, int experts) {
    constexpr int STAGES = Tile::STAGES, CONSUMERS = Tile::CONSUMERS, ROWS = Tile::ROWS, BT = Tile::BT;
    constexpr int CLUSTER = Tile::CLUSTER, PART = Tile::PART;
    constexpr bool MANY_REGISTERS = CONSUMERS == 2;  // one consumer has enough without setmaxnreg
    static_assert(Tile::PARTS == 1 || FORMAT == SUMS, "parts of k are added later");
    static_assert(FORMAT != OWN || !Tile::SHARE_WEIGHTS, "blocks of tokens are not those that exchange magnitudes");
    static_assert(Tile::PARTS == 1 || !Tile::PING_PONG, "all tiles have the same number of steps");
    static_assert(FORMAT != OWN || !Tile::DYNAMIC, "`arrived` counts one or the other");
    using E = EpilogueShared<Tile::BW, BT, FORMAT, SWIGLU>;
    constexpr int epilogue_bytes = (E::bytes + 15) / 16 * 16;  // of a tile
    constexpr int full_at = STAGES * Tile::stage_bytes + Tile::tiles * epilogue_bytes;
    static_assert(full_at + Tile::barrier_bytes <= TargetLimits::SHARED_BYTES_PER_CTA, "fewer stages or a smaller tile");
    extern __shared__ __align__(1024) unsigned char shared[];
    unsigned char* scratch = shared + STAGES * Tile::stage_bytes;
    const unsigned base = cvta_to_shared(shared);
    auto full = [&](unsigned stage) { return base + full_at + 8 * stage; };
    auto empty = [&](unsigned stage) { return base + full_at + 8 * (STAGES + stage); };
    // With DYNAMIC, the number of the tile whose first step is in a stage; tiles.count after the last one.
    volatile unsigned* const taken = reinterpret_cast<unsigned*>(shared + full_at + 16 * STAGES);
    const unsigned warp = shfl_sync_idx(all_lanes, threadIdx.x / 32, 0);
    const unsigned rank = CLUSTER > 1 ? cluster_ctarank() : 0;
    if (threadIdx.x == 0) {
        prefetch_tensormap(a_map);
        prefetch_tensormap(b_map);
        init_ring<STAGES>(full(0), 1, empty(0), 4 * Tile::sharing * CLUSTER);
    }
    if constexpr (CLUSTER > 1) {
        barrier_cluster_arrive_release();
        barrier_cluster_wait_acquire();
    }
    // With `offsets`, the grids before the previous one have completed (moe_routed.cu): the offsets and the weights may be
    // read before the wait for the previous one.
    if (!offsets) follow_previous_grid();
    // The tiles of a cluster are one of CLUSTER * BW weights. The constructor includes a barrier.
    const GroupTiles<Tile::weight_ctas * Tile::BW, Tile::token_ctas * BT, Tile::GROUP, Tile::PARTS> tiles(
        offsets, reinterpret_cast<int*>(scratch + E::blocks), experts, rows, n);
    auto tile_at = [&](unsigned index) {
        GroupTile tile = tiles.at(index);
        if constexpr (Tile::SHARE_WEIGHTS) {  // the tokens are divided evenly, in multiples of STEP
            const unsigned left = min(unsigned(CLUSTER * BT), tile.end - tile.row);
            const unsigned each = (left + CLUSTER * Tile::STEP - 1) / (CLUSTER * Tile::STEP) * Tile::STEP;
            tile.row = min(tile.end, tile.row + rank * each);
            tile.end = min(tile.end, tile.row + each);
        } else {
            tile.col += rank * Tile::BW;
        }
        return tile;
    };
    if (warp < 4) {
        Ring<STAGES> at;
        if constexpr (MANY_REGISTERS) setmaxnreg_dec<40>();  // with 24, NVRTC 13.0 spills some of the producer's
        if (warp == 0 && elect_sync(all_lanes)) {
            const unsigned first = blockIdx.x / CLUSTER;
            // Rows of the tile that are loaded: whole boxes with its tokens. What the rest of a stage holds is multiplied, and
            // gives results that are not stored.
            auto loaded_tokens = [](const GroupTile& tile) {
                if constexpr (Tile::BOX == PART) return unsigned(BT);
                else return min(unsigned(BT), (tile.end - tile.row + Tile::BOX - 1) / Tile::BOX * Tile::BOX);
            };
            auto load_weights = [&](unsigned stage, const GroupTile& tile, unsigned step) {
                mbarrier_arrive_expect_tx(full(stage), Tile::weight_bytes + loaded_tokens(tile) * DEPTH);
                const unsigned to = base + stage * Tile::stage_bytes, row = tile.expert * n + tile.col;
                if constexpr (Tile::SHARE_WEIGHTS) {
                    constexpr int EACH = Tile::BW / CLUSTER;
                    cp_async_bulk_tensor_2d_shared_global_multicast(to + rank * EACH * DEPTH, b_map, step * DEPTH,
                                                                    row + rank * EACH, full(stage), (1 << CLUSTER) - 1);
                } else {
                    cp_async_bulk_tensor_2d_shared_global(to, b_map, step * DEPTH, row, full(stage));
                }
            };
            unsigned early = 0;  // steps of the first tile whose weights are loaded before the previous grid has completed
            if (offsets && first < tiles.count) {
                const GroupTile tile = tile_at(first);
                const Steps<Tile::PARTS> steps(k, tile.part);
                early = min(steps.end - steps.begin, unsigned(STAGES));
                if constexpr (Tile::DYNAMIC) taken[0] = first;
#pragma unroll 1
                for (unsigned i = 0; i < early; i++) load_weights(i, tile, steps.begin + i);
            }
            if (offsets) follow_previous_grid_later();
            // The number is added where it is needed, at the end of the tile: an addition here would wait for the counter.
            [[maybe_unused]] unsigned following = 0;
            auto after = [&](unsigned index) { return gridDim.x / CLUSTER + (Tile::DYNAMIC ? following : index); };
#pragma unroll 1
            for (unsigned index = first; index < tiles.count; index = after(index)) {
                if constexpr (Tile::DYNAMIC) following = atomicInc(arrived, tiles.count - 1);
                const GroupTile tile = tile_at(index);
                const Steps<Tile::PARTS> steps(k, tile.part);
                const unsigned tokens = loaded_tokens(tile);
#pragma unroll 1
                for (unsigned step = steps.begin; step < steps.end; step++) {
                    const unsigned stage = base + at.stage * Tile::stage_bytes, arrived_at = full(at.stage);
                    if (early > 0) {
                        early--;
                    } else {
                        mbarrier_wait(empty(at.stage), at.parity ^ 1);
                        if (Tile::DYNAMIC && step == steps.begin) taken[at.stage] = index;
                        load_weights(at.stage, tile, step);
                    }
                    const unsigned begin = Tile::SHARE_WEIGHTS ? 0 : rank * PART;
                    const unsigned last = Tile::BOX == PART ? begin + PART : min(tokens, begin + PART);
#pragma unroll 1
                    for (unsigned row = begin; row < last; row += Tile::BOX) {
                        const unsigned to = stage + Tile::weight_bytes + row * DEPTH;
                        if constexpr (Tile::weight_ctas > 1) {
                            cp_async_bulk_tensor_2d_shared_global_multicast(to, a_map, step * DEPTH, tile.row + row,
                                                                            arrived_at, (1 << CLUSTER) - 1);
                        } else {
                            cp_async_bulk_tensor_2d_shared_global(to, a_map, step * DEPTH, tile.row + row, arrived_at);
                        }
                    }
                    at.advance();
                }
            }
            if constexpr (Tile::DYNAMIC) {
                mbarrier_wait(empty(at.stage), at.parity ^ 1);
                taken[at.stage] = tiles.count;
                mbarrier_arrive(full(at.stage));
            }
        }
    } else {
        if constexpr (MANY_REGISTERS) setmaxnreg_inc<232>();
        if (offsets) follow_previous_grid_later();
        // own: number of the consumer among those of its tile.
        const unsigned consumer = warp / 4 - 1, own = Tile::PING_PONG ? 0 : consumer;
        const unsigned thread = threadIdx.x - 128 - 128 * (consumer - own);
        const Results results{out, scales, largest, arrived, a_scales, b_scales, nullptr, unsigned(n), unsigned(rows)};
        Multiplier<T, Tile> multiplier{base, full(0), own, {}};
        const unsigned next_tile = gridDim.x / CLUSTER;  // distance of the tiles of this CTA
        const unsigned first = Tile::PING_PONG ? consumer : 0;
        if (first) multiplier.at.advance(Steps<1>(k, 0).end);
        for (unsigned index = blockIdx.x / CLUSTER + first * next_tile; Tile::DYNAMIC || index < tiles.count;
             index += Tile::tiles * next_tile) {
            if constexpr (Tile::DYNAMIC) {
                mbarrier_wait(full(multiplier.at.stage), multiplier.at.parity);
                index = taken[multiplier.at.stage];
                if (index == tiles.count) break;
            }
            const GroupTile tile = tile_at(index);
            const Steps<Tile::PARTS> steps(k, tile.part);
            const unsigned weight = own * 64 * ROWS + warp % 4 * 16;
            const TileScales<64, ROWS, BT / 2> tile_scales(results, tile, weight, 0);
            // A consumer that alternates waits until the other one has seen all of its stages full: a parity tells only
            // two successive phases of an mbarrier apart.
            if (Tile::PING_PONG && index >= next_tile) barrier_sync(3 + consumer, 256);
            const unsigned count = steps.end - steps.begin;
            const unsigned done = Tile::PING_PONG && index + next_tile < tiles.count ? 4 - consumer : 0;
            typename Narrow<T>::Sum sums[ROWS][BT / 2];
            if constexpr (Tile::PROMOTED) multiplier.sum_promoted(sums, count, done);
            else multiplier.sum_of(min(unsigned(BT), tile.end - tile.row), sums, count, done);
            if constexpr (Tile::PING_PONG) multiplier.at.advance(steps.end);  // the steps of the other consumer's next tile
            if constexpr (FORMAT == SUMS) store_sums<64>(sums, results, tile, weight, 0);
            else finish_tile<T, Tile::BW, BT, FORMAT, SWIGLU, 128 * Tile::sharing, 64>(
                sums, results, tile, Tile::weight_ctas * tiles.cols, weight, 0, thread,
                scratch + (consumer - own) * epilogue_bytes, tile_scales, 1 + consumer - own);
        }
    }
    if constexpr (CLUSTER > 1) {  // other CTAs may still multicast to this one or arrive at its mbarriers
        __syncwarp();
        barrier_cluster_arrive_release();
        barrier_cluster_wait_acquire();
    }
}
