// Products of quantized tokens with the weights of experts: element types, the sequence of tiles, and the epilogues.
//
// The tokens of an expert are consecutive rows of a (rows x k), and expert e has the rows offsets[e] to offsets[e +
// 1]. Its weights are n rows of b ((experts n) x k). Both have 8-bit elements with an f32 scale per row. Out has a
// row for each row of a, and a column for each row of the expert's weights:
//
//     out[r, c] = a_scales[r] b_scales[e n + c] sum_k a[r, k] b[e n + c, k]
//
// The tensor cores get the weights as their first operand, so that a tile has a multiple of 16 weights (64 with
// wgmma) but may have as few as 8 tokens: out^T = b a^T. A thread has the sums of two neighbouring tokens for a
// weight and the one 8 rows below.
//
// With SwiGLU the rows of the weights alternate: 8 gates, the 8 factors that belong to them, the next 8 gates, and so
// on. A thread then has both sums of an element, and out has n / 2 columns.
#pragma once
#include "ptxkit/elementwise/activations.cuh"
#include "ptxkit/gemm/gemm.cuh"
#include "ptxkit/ptx/matrix.cuh"
#include "ptxkit/ptx/narrow.cuh"
#include "ptxkit/ptx/special_registers.cuh"
#include "ptxkit/ptx/synchronization.cuh"
#include "ptxkit/ptx/tensor_map.cuh"

namespace ptxkit {

// ---------------------------------------------------------------------------------------------------------------------
// Element types

// The type of the sums, which are exact for 8-bit integers; the largest quantized magnitude; the conversion of v /
// scale to an element, to nearest, ties to even, limited to the range of the type. NaN becomes 0 or NaN.
template <class T>
struct Narrow;

template <>
struct Narrow<signed char> {
    using Sum = int;
    static constexpr float largest = 127.0f;

    static __device__ __forceinline__ unsigned char quantize(float v) {
        return static_cast<unsigned char>(max(-128, min(127, __float2int_rn(v))));
    }
    static __device__ __forceinline__ float dequantize(signed char q) { return q; }
};

template <>
struct Narrow<e4m3> {
    using Sum = float;
    static constexpr float largest = 448.0f;

    static __device__ __forceinline__ unsigned char quantize(float v) {
        return static_cast<unsigned char>(cvt_rn_satfinite_e4m3x2_f32(v, v));
    }
    static __device__ __forceinline__ float dequantize(e4m3 q) {
        return Convert<f16>::low(cvt_rn_f16x2_e4m3x2(q.bits));
    }
};

// The scale of a row whose largest magnitude is known, and its inverse. The inverse of a scale below 2^-128 overflows
// f32 and is replaced by the largest f32, so that the results of such a row are too small; a row of zeros has scale 0.
template <class T>
struct RowQuantizer {
    float scale, inverse;

    __device__ __forceinline__ explicit RowQuantizer(float magnitude)
        : scale(magnitude * (1.0f / Narrow<T>::largest)),
          inverse(fminf(Narrow<T>::largest / magnitude, 3.4028235e38f)) {}
};

__device__ __forceinline__ void set_f32(float& sum, float value) { sum = value; }
__device__ __forceinline__ void set_f32(int& sum, float value) { sum = __float_as_int(value); }
__device__ __forceinline__ float get_f32(float sum) { return sum; }
__device__ __forceinline__ float get_f32(int sum) { return __int_as_float(sum); }

// ---------------------------------------------------------------------------------------------------------------------
// The sequence of tiles

constexpr int MAX_EXPERTS = 1024;

// A tile: its expert, its first and the end of its expert's tokens, its first weight, its number among the blocks of
// tokens of all experts, and the part of k that it sums.
struct GroupTile {
    unsigned expert, row, end, col, block, part;
};

// Tiles of BT tokens and BW weights, in PARTS parts along k, of experts whose tokens are consecutive rows. GROUP: the
// tiles of up to GROUP blocks of an expert's tokens follow each other before the next weights (grouped_tile), so that
// CTAs that run at the same time share weights and tokens in L2.
template <int BW, int BT, int GROUP, int PARTS>
struct GroupTiles {
    const int* offsets;     // null: one expert, which has all rows
    const int* first;       // in shared memory: first[e] is the number of the first block of expert e
    unsigned experts, rows, cols;  // cols: tiles across the weights
    unsigned count;         // of all tiles

    // `shared` has experts + 1 elements. All threads of the CTA call it; a barrier is included.
    __device__ __forceinline__ GroupTiles(const int* offsets, int* shared, int experts, int rows, int n)
        : offsets(offsets), first(shared), experts(experts), rows(rows), cols((n + BW - 1) / BW) {
        if (threadIdx.x < 32) {
            const unsigned lane = laneid();
            int before = 0;
            if (lane == 0) shared[0] = 0;
            for (int base = 0; base < experts; base += 32) {
                const int e = base + lane;
                int blocks = e >= experts ? 0 : ((offsets ? offsets[e + 1] - offsets[e] : rows) + BT - 1) / BT;
#pragma unroll
                for (int distance = 1; distance < 32; distance *= 2) {
                    const int lower = __shfl_up_sync(all_lanes, blocks, distance);
                    if (static_cast<int>(lane) >= distance) blocks += lower;
                }
                if (e < experts) shared[e + 1] = before + blocks;
                before += __shfl_sync(all_lanes, blocks, 31);
            }
        }
        barrier_sync();
        count = shared[experts] * cols * PARTS;
    }

    __device__ __forceinline__ GroupTile at(unsigned index) const {
        const unsigned part = index % PARTS, within_parts = index / PARTS, block = within_parts / cols;
        unsigned low = 0, high = experts;  // first[low] <= block < first[high]
        while (high - low > 1) {
            const unsigned middle = (low + high) / 2;
            if (first[middle] <= static_cast<int>(block)) low = middle;
            else high = middle;
        }
        const unsigned begin = first[low], blocks = first[low + 1] - begin;
        const TileIndex t = grouped_tile<GROUP>(within_parts - begin * cols, blocks, cols);
        const unsigned start = offsets ? offsets[low] : 0, end = offsets ? offsets[low + 1] : rows;
        return {low, start + t.row * BT, end, t.col * BW, begin + t.row, part};
    }
};

// ---------------------------------------------------------------------------------------------------------------------
// Epilogues

// The form of the results. SUMS: s32 or f32 as the tensor cores give them, the parts of k one after the other. F32,
// BF16. GIVEN and OWN: quantized again, by a scale per token that is given, or that follows from the token's largest
// magnitude. A token's results are in several tiles then, which exchange their magnitudes through device memory and
// wait for each other, so that all tiles of a group of blocks of tokens must be resident at the same time.
enum Format { SUMS = 0, F32 = 1, BF16 = 2, GIVEN = 3, OWN = 4 };

// What an epilogue needs in shared memory, as byte offsets: results on their way to device memory, the largest
// magnitude and the inverse scale of each token, and the experts' blocks for GroupTiles.
template <int BW, int BT, int FORMAT, bool SWIGLU>
struct EpilogueShared {
    static constexpr int out_cols = SWIGLU ? BW / 2 : BW, size = FORMAT == BF16 ? 2 : 1;
    static constexpr int tokens = BT < 32 ? BT : 32;      // that are stored at a time
    static constexpr int pitch = out_cols * size + 16;    // bytes from one of them to the next
    static constexpr int magnitudes = FORMAT >= BF16 ? tokens * pitch : 0;
    static constexpr int inverses = magnitudes + 4 * BT;
    static constexpr int blocks = inverses + 4 * BT;
    static constexpr int bytes = blocks + 4 * (MAX_EXPERTS + 4);
};

// Arguments of an epilogue. `token` maps rows to the rows of token_scales, or is null.
struct Results {
    void* out;
    float* scales;  // of the results' rows: read if GIVEN, written if OWN
    unsigned *largest, *arrived;  // if OWN: a magnitude per row, a counter per block of tokens; zeros before the launch
    const float *token_scales, *weight_scales;
    const int* token;
    unsigned n, rows;
};

// The scales of a warp's part of a tile, which finish_tile describes. Read before the products, they have arrived when the
// epilogue needs them; between its stores, each load would wait for device memory. Lane l has those of the tokens l, l + 32, ...
template <int STRIDE, int I, int J>
struct TileScales {
    float of_weights[I][2], of_tokens[(2 * J + 31) / 32];

    __device__ __forceinline__ TileScales(const Results& results, const GroupTile& tile, unsigned weight, unsigned first) {
        const unsigned lane = laneid();
#pragma unroll
        for (int i = 0; i < I; i++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const unsigned col = tile.col + weight + STRIDE * i + 8 * half + lane / 4;
                const size_t at = static_cast<size_t>(tile.expert) * results.n + col;
                of_weights[i][half] = col < results.n ? results.weight_scales[at] : 0.0f;
            }
        }
#pragma unroll
        for (int i = 0; i < (2 * J + 31) / 32; i++) {
            const unsigned token = 32 * i + lane, row = tile.row + first + token;
            const bool inside = token < 2 * J && row < tile.end;
            of_tokens[i] = inside ? results.token_scales[results.token ? results.token[row] : row] : 0.0f;
        }
    }

    // That of token number 8 j + t of the warp's; all of its threads call it.
    __device__ __forceinline__ float of_token(int j, unsigned t) const {
        return shfl_sync_idx(all_lanes, of_tokens[j / 4], 8 * j % 32 + t);
    }
};

// Stores the sums of a warp as they are; the arguments are those of finish_tile.
template <int STRIDE, int I, int J, class Sum>
__device__ __forceinline__ void store_sums(const Sum (&sums)[I][J], const Results& results, const GroupTile& tile,
                                           unsigned weight, unsigned first) {
    Sum* out = static_cast<Sum*>(results.out) + static_cast<size_t>(tile.part) * results.rows * results.n;
#pragma unroll
    for (int j = 0; j < J / 4; j++) {
#pragma unroll
        for (int t = 0; t < 2; t++) {
            const unsigned row = tile.row + first + 8 * j + laneid() % 4 * 2 + t;
            if (row >= tile.end) continue;
#pragma unroll
            for (int i = 0; i < I; i++) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const unsigned col = tile.col + weight + STRIDE * i + 8 * half + laneid() / 4;
                    const size_t at = static_cast<size_t>(row) * results.n + col;
                    if (col < results.n) out[at] = sums[i][4 * j + 2 * half + t];
                }
            }
        }
    }
}

// The part of a tile that a warp has: I groups of 16 weights from number `weight` on, STRIDE apart, and J groups of 8
// tokens from number `first` on. sums[i][4 j + c] is in the layout of the accumulators of mma.sync. THREADS threads
// call it together, number `thread` of them; they synchronize by a named barrier. `shared` has the bytes of
// EpilogueShared. `cols`: tiles across the weights, which exchange the magnitudes of their tokens if OWN.
// `named_barrier`: another number for threads that do not take part in the tile.
template <class T, int BW, int BT, int FORMAT, bool SWIGLU, int THREADS, int STRIDE, int I, int J>
__device__ __forceinline__ void finish_tile(typename Narrow<T>::Sum (&sums)[I][J], const Results& results,
                                            const GroupTile& tile, unsigned cols, unsigned weight, unsigned first,
                                            unsigned thread, unsigned char* shared,
                                            const TileScales<STRIDE, I, J>& scales, unsigned named_barrier = 1) {
    using S = EpilogueShared<BW, BT, FORMAT, SWIGLU>;
    using Sum = typename Narrow<T>::Sum;
    constexpr int VALUES = SWIGLU ? 2 : 4;
    const unsigned lane = laneid(), n_out = SWIGLU ? results.n / 2 : results.n, pair = lane % 4 * 2;
    auto synchronize = [&] { barrier_sync(named_barrier, THREADS); };
    auto column = [&](int i, int half) { return weight + STRIDE * i + 8 * half + lane / 4; };  // of a sum, in the tile
    auto out_column = [&](int i, int half) {  // of a value, in the tile
        return SWIGLU ? (weight + STRIDE * i) / 2 + lane / 4 : column(i, half);
    };
    const unsigned out_col = SWIGLU ? tile.col / 2 : tile.col;

    // Replaces the sums of group j of tokens by the values, of which VALUES of four remain, or stores them.
    auto finish_group = [&](int j) {
#pragma unroll
        for (int t = 0; t < 2; t++) {
            const unsigned row = tile.row + first + 8 * j + pair + t;
            const float scale = scales.of_token(j, pair + t);
            [[maybe_unused]] float* out = static_cast<float*>(results.out) + static_cast<size_t>(row) * n_out + out_col;
            auto finish = [&](Sum& sum, float value, int i, int half) {
                if constexpr (FORMAT != F32) set_f32(sum, value);
                else if (row < tile.end && out_col + out_column(i, half) < n_out) out[out_column(i, half)] = value;
            };
#pragma unroll
            for (int i = 0; i < I; i++) {
                Sum &low = sums[i][4 * j + t], &high = sums[i][4 * j + 2 + t];
                const float x = static_cast<float>(low) * scale * scales.of_weights[i][0];
                const float y = static_cast<float>(high) * scale * scales.of_weights[i][1];
                if constexpr (SWIGLU) {
                    finish(low, silu(x) * y, i, 0);
                } else {
                    finish(low, x, i, 0);
                    finish(high, y, i, 1);
                }
            }
        }
    };
    // stmatrix transposes matrices of 8 weights and 8 tokens; a warpgroup has all tokens of a tile.
    constexpr bool MATRICES = FORMAT == BF16 && STRIDE == 64;
    if constexpr (!MATRICES) {
#pragma unroll
        for (int j = 0; j < J / 4; j++) {
            if (FORMAT == F32 && tile.row + first + 8 * j >= tile.end) break;
            finish_group(j);
        }
    }

    if constexpr (FORMAT != F32) {
        unsigned* magnitudes = reinterpret_cast<unsigned*>(shared + S::magnitudes);
        float* inverses = reinterpret_cast<float*>(shared + S::inverses);
        if constexpr (FORMAT == GIVEN) {
            for (unsigned t = thread; t < BT; t += THREADS)
                inverses[t] = tile.row + t < tile.end ? 1.0f / results.scales[tile.row + t] : 0.0f;
        }
        if constexpr (FORMAT == OWN) {
            for (unsigned t = thread; t < BT; t += THREADS) magnitudes[t] = 0;
            synchronize();
#pragma unroll
            for (int j = 0; j < J / 4; j++) {
#pragma unroll
                for (int t = 0; t < 2; t++) {
                    float largest = 0.0f;
#pragma unroll
                    for (int i = 0; i < I; i++) {
#pragma unroll
                        for (int v = t; v < VALUES; v += 2)
                            largest = fmaxf(largest, fabsf(get_f32(sums[i][4 * j + v])));
                    }
#pragma unroll
                    for (int distance = 4; distance < 32; distance *= 2)
                        largest = fmaxf(largest, shfl_sync_bfly(all_lanes, largest, distance));
                    if (lane < 4) atomicMax(magnitudes + first + 8 * j + pair + t, __float_as_uint(largest));
                }
            }
            synchronize();
            for (unsigned t = thread; t < BT; t += THREADS) {
                if (tile.row + t < tile.end) atomicMax(results.largest + tile.row + t, magnitudes[t]);
            }
            __threadfence();
            synchronize();
            if (thread == 0) {
                __threadfence();
                atomicAdd(results.arrived + tile.block, 1u);
                while (ld_acquire_gpu_global(results.arrived + tile.block) < cols) {
                }
            }
            synchronize();
            for (unsigned t = thread; t < BT; t += THREADS) {
                if (tile.row + t >= tile.end) continue;
                const unsigned bits = ld_acquire_gpu_global(results.largest + tile.row + t);
                const RowQuantizer<T> quantizer(__uint_as_float(bits));
                inverses[t] = quantizer.inverse;
                if (tile.col == 0) results.scales[tile.row + t] = quantizer.scale;
            }
        }

        // Through shared memory, so that stores have 16 bytes per thread.
        char* out = static_cast<char*>(results.out);
#pragma unroll
        for (int part = 0; part < (BT + S::tokens - 1) / S::tokens; part++) {
            constexpr int GROUPS = S::tokens / 8;
            if (tile.row + part * S::tokens >= tile.end) break;
            if constexpr (MATRICES) {
#pragma unroll
                for (int g = part * GROUPS; g < min((part + 1) * GROUPS, J / 4); g++) finish_group(g);
            }
            synchronize();
            if constexpr (MATRICES) {
                const unsigned row = cvta_to_shared(shared) + lane % S::tokens * S::pitch;
#pragma unroll
                for (int i = 0; i < I; i++) {
#pragma unroll
                    for (int half = 0; half < VALUES / 2; half++) {
                        unsigned matrices[GROUPS] = {};
#pragma unroll
                        for (int g = 0; g < GROUPS; g++) {
                            if (part * GROUPS + g >= J / 4) break;
                            const Sum* pair = &sums[i][4 * (part * GROUPS + g) + 2 * half];
                            matrices[g] = Convert<bf16>::pack(get_f32(pair[0]), get_f32(pair[1]));
                        }
                        const unsigned to = row + (out_column(i, half) - lane / 4) * S::size;
                        if constexpr (GROUPS == 4) stmatrix_x4_trans(to, matrices);
                        else if constexpr (GROUPS == 2) stmatrix_x2_trans(to, matrices);
                        else stmatrix_x1_trans(to, matrices);
                    }
                }
            } else
#pragma unroll
            for (int j = 0; j < J / 4; j++) {
                const unsigned group = first + 8 * j;
                if (group / S::tokens != part) continue;
#pragma unroll
                for (int v = 0; v < VALUES; v++) {
                    const unsigned t = group % S::tokens + pair + v % 2;
#pragma unroll
                    for (int i = 0; i < I; i++) {
                        const float value = get_f32(sums[i][4 * j + v]);
                        unsigned char* to = shared + t * S::pitch + out_column(i, v / 2) * S::size;
                        if constexpr (FORMAT == BF16) {
                            *reinterpret_cast<bf16*>(to) = Convert<bf16>::from_f32(value);
                        } else {
                            *to = Narrow<T>::quantize(value * inverses[part * S::tokens + t]);
                        }
                    }
                }
            }
            synchronize();
            constexpr int pieces = S::out_cols * S::size / 16;
            for (unsigned p = thread; p < S::tokens * pieces; p += THREADS) {
                const unsigned t = p / pieces, byte = p % pieces * 16, row = tile.row + part * S::tokens + t;
                if (row < tile.end && part * S::tokens + t < BT && out_col * S::size + byte < n_out * S::size) {
                    const size_t to = (static_cast<size_t>(row) * n_out + out_col) * S::size + byte;
                    *reinterpret_cast<uint4*>(out + to) = *reinterpret_cast<const uint4*>(shared + t * S::pitch + byte);
                }
            }
        }
    }
}

}  // namespace ptxkit
