// Attention of few queries, steps 8 and 9 of attention.cu: the keys of a sequence are divided among CTAs. See decode.cuh.
//
// `attention_decode` loads by cp.async, for sm_80 and later, `attention_decode_tma` by TMA, for sm_90 and later;
// `attention_e4m3_decode` takes e4m3 elements. With more than one part, `attention_combine` follows.
#include "ptxkit/attention/decode.cuh"

using namespace ptxkit;

template <class T, class Tile, bool CAUSAL>
__global__ void __launch_bounds__(Tile::THREADS) attention_decode(
    const T* q, const T* k, const T* v, T* o, float* lse, const int* q_starts, const int* k_starts, int tokens, int heads,
    int kv_heads, float* partial_o, float* partial_lse, int parts, int row_tiles, int part_keys, unsigned items, float scale) {
    const AsyncTiles<T, Tile> loads{k, v};
    attend_few<T, Tile, CAUSAL>(loads, NoScales(), q, o, lse, q_starts, k_starts, tokens, heads, kv_heads, partial_o, partial_lse, parts,
                                row_tiles, part_keys, items, scale);
}

template <class T, class Tile, bool CAUSAL>
__global__ void __launch_bounds__(Tile::THREADS) attention_decode_tma(
    const T* q, const __grid_constant__ TensorMap k_map, const __grid_constant__ TensorMap v_map, T* o, float* lse,
    const int* q_starts, const int* k_starts, int tokens, int key_tokens, int heads, int kv_heads, float* partial_o,
    float* partial_lse, int parts, int row_tiles, int part_keys, unsigned items, float scale) {
    const BulkTiles<T, Tile> loads{k_map, v_map, key_tokens};
    attend_few<T, Tile, CAUSAL>(loads, NoScales(), q, o, lse, q_starts, k_starts, tokens, heads, kv_heads, partial_o, partial_lse, parts,
                                row_tiles, part_keys, items, scale);
}

// e4m3 elements, which are multiplied by the scales of their heads.
template <class Tile, bool CAUSAL>
__global__ void __launch_bounds__(Tile::THREADS) attention_e4m3_decode(
    const e4m3* q, const __grid_constant__ TensorMap k_map, const __grid_constant__ TensorMap v_map, const float* q_scales,
    const float* k_scales, const float* v_scales, bf16* o, float* lse, const int* q_starts, const int* k_starts, int tokens,
    int key_tokens, int heads, int kv_heads, float* partial_o, float* partial_lse, int parts, int row_tiles, int part_keys,
    unsigned items, float scale) {
    const BulkTiles<e4m3, Tile> loads{k_map, v_map, key_tokens};
    attend_few<e4m3, Tile, CAUSAL>(loads, HeadScales{q_scales, k_scales, v_scales}, q, o, lse, q_starts, k_starts, tokens,
                                   heads, kv_heads, partial_o, partial_lse, parts, row_tiles, part_keys, items, scale);
}

enum { COMBINE_WARPS = 8 };  // of a CTA

// Combines the results of the parts: WARPS warps, all of a CTA or one, for each row of o. Warp w of a row adds parts w,
// w + WARPS, ..., and then the sums of the warps are added in their order.
template <class T, int D, int WARPS>
__global__ void __launch_bounds__(32 * COMBINE_WARPS) attention_combine(const float* partial_o, const float* partial_lse,
                                                                        T* o, float* lse, int tokens, int heads, int parts) {
    static_assert(WARPS == 1 || WARPS == COMBINE_WARPS, "a row has one warp, or all of a CTA");
    constexpr int COLUMNS = D / 32;  // of a lane, as pairs
    constexpr int AT_ONCE = 8;       // parts that are requested before the first one is added
    follow_previous_grid();
    const size_t stride = size_t(tokens) * heads;
    const size_t row = WARPS == 1 ? blockIdx.x * size_t(COMBINE_WARPS) + threadIdx.x / 32 : blockIdx.x;
    const unsigned lane = laneid(), warp = WARPS == 1 ? 0 : threadIdx.x / 32;
    if (row >= stride) return;
    const DecodeRows<T> out{o, lse, nullptr, nullptr, tokens, heads, 0, 0, heads, -1};
    float x[COLUMNS] = {};
    RowSum total{-infinity(), 0};
    for (int first = warp; first < parts; first += AT_ONCE * WARPS) {
        float logarithm[AT_ONCE], highest = total.maximum;
        float2 y[AT_ONCE][COLUMNS / 2];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int part = first + i * WARPS;
            const bool exists = part < parts;
            logarithm[i] = exists ? partial_lse[part * stride + row] : -infinity();
            const float* from = partial_o + (part * stride + row) * D + lane * 2;
#pragma unroll
            for (int j = 0; j < COLUMNS / 2; j++) {
                y[i][j] = {};
                if (exists) y[i][j] = *reinterpret_cast<const float2*>(from + j * 64);
            }
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) highest = fmaxf(highest, logarithm[i]);
        const float base = highest == -infinity() ? 0 : highest, previous = ex2_approx_ftz(total.maximum - base);
        total = {highest, total.sum * previous};
#pragma unroll
        for (float& sum : x) sum *= previous;
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const float factor = ex2_approx_ftz(logarithm[i] - base);
            total.sum += factor;
#pragma unroll
            for (int j = 0; j < COLUMNS / 2; j++) {
                x[2 * j] = fmaf(y[i][j].x, factor, x[2 * j]), x[2 * j + 1] = fmaf(y[i][j].y, factor, x[2 * j + 1]);
            }
        }
    }
    if constexpr (WARPS == 1) {
        const DecodeRow<T> of_row = out.row(row, total);
#pragma unroll
        for (int j = 0; j < COLUMNS; j += 2) of_row.template store<D>(j * 32 + lane * 2, x[j], x[j + 1]);
        if (lane == 0) of_row.store_logarithm();
    } else {
        __shared__ __align__(16) float of_warps[WARPS][D];
        __shared__ RowSum sums_of_warps[WARPS];
#pragma unroll
        for (int j = 0; j < COLUMNS; j += 2) {
            *reinterpret_cast<float2*>(&of_warps[warp][j * 32 + lane * 2]) = {x[j], x[j + 1]};
        }
        if (lane == 0) sums_of_warps[warp] = total;
        barrier_sync();
        if (threadIdx.x >= D / 4) return;
        const unsigned column = threadIdx.x * 4;
        RowSum combined;
        const float4 sum = combine(
            WARPS, combined, [&](int w) { return sums_of_warps[w]; },
            [&](int w) { return *reinterpret_cast<const float4*>(&of_warps[w][column]); });
        const DecodeRow<T> of_row = out.row(row, combined);
        of_row.template store<D>(column, sum);
        if (column == 0) of_row.store_logarithm();
    }
}
