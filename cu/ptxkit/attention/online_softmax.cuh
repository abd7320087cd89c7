// Softmax of rows of scores that are computed a tile at a time, in the layout of the accumulators of mma.sync and
// wgmma: a thread holds, of row lane / 4 of its warp's 16, columns 8 j + 2 (lane % 4) and the next one in s[4 j] and
// s[4 j + 1], and the same columns of the row 8 below in s[4 j + 2] and s[4 j + 3]. Four neighbouring lanes hold a row.
//
// The method is that of Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018), and Dao et al.,
// "FlashAttention" (2022): after each tile, the maximum of a row may have grown; what was summed before is multiplied
// by exp(old maximum - new maximum).
#pragma once
#include "ptxkit/ptx/floating_point.cuh"
#include "ptxkit/ptx/half.cuh"
#include "ptxkit/ptx/synchronization.cuh"
#include "ptxkit/rows/reduce.cuh"

namespace ptxkit {

// The maxima and sums of a thread's two rows. Scores are multiplied by `scale`, which includes log2(e), so that
// exponentials are powers of two. They are multiplied by 2^RAISED, which cancels in the results: an 8-bit type represents
// exponentials up to 256 in a wider range than those up to 1.
template <int RAISED>
struct RaisedSoftmax {
    float scale;
    float maximum[2] = {-infinity(), -infinity()};  // of the scores so far, not multiplied by the scale
    float sum[2] = {};                                    // of this thread's exponentials

    // Replaces scores by their exponentials relative to the maximum, and adds these to the sums. factor[r] is what
    // previous results of row r must be multiplied by. Rows whose scores are all minus infinity have exponentials 0.
    template <int N>
    __device__ __forceinline__ void add(float (&s)[N], float (&factor)[2]) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float highest = maximum[r];
#pragma unroll
            for (int i = 2 * r; i < N; i += 4) highest = fmaxf(highest, fmaxf(s[i], s[i + 1]));
            highest = warp_max<4>(highest);
            const float base = highest == -infinity() ? 0 : highest * scale - RAISED;
            factor[r] = ex2_approx_ftz(maximum[r] * scale - RAISED - base);
            maximum[r] = highest;
            float added = 0;
#pragma unroll
            for (int i = 2 * r; i < N; i += 4) {
                s[i] = ex2_approx_ftz(fmaf(s[i], scale, -base));
                s[i + 1] = ex2_approx_ftz(fmaf(s[i + 1], scale, -base));
                added += s[i] + s[i + 1];
            }
            sum[r] = fmaf(sum[r], factor[r], added);
        }
    }

    // The first part of `add`, for kernels that wait for a product before the second one: the maxima. base[r] is subtracted
    // from the exponents of row r. Returns whether a factor of the warp may be another number than 1. With ABOVE, `maximum`
    // stays as it is until it is exceeded by a factor of 2^ABOVE in the exponentials, which are then up to that large: the
    // results are the same, and nearly all factors are 1 (the conditional rescaling of FlashAttention-4).
    template <int ABOVE, int N>
    __device__ __forceinline__ bool raise(const float (&s)[N], float (&factor)[2], float (&base)[2]) {
        float highest[2] = {maximum[0], maximum[1]};
#pragma unroll
        for (int i = 0; i < N; i += 2) highest[i / 2 % 2] = fmaxf(highest[i / 2 % 2], fmaxf(s[i], s[i + 1]));
        bool scaled = ABOVE == 0;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            highest[r] = warp_max<4>(highest[r]);
            bool near = false;
            if constexpr (ABOVE > 0) {
                near = (highest[r] - maximum[r]) * scale <= ABOVE;  // false for minus infinities, too
                if (near) highest[r] = maximum[r];
                scaled |= !near;
            }
            base[r] = highest[r] == -infinity() ? 0 : highest[r] * scale - RAISED;
            factor[r] = near ? 1 : ex2_approx_ftz(maximum[r] * scale - RAISED - base[r]);
            maximum[r] = highest[r];
        }
        return ABOVE == 0 || vote_sync_any(all_lanes, scaled);
    }

    // The second part of `add`: the exponentials and their sums.
    template <int N>
    __device__ __forceinline__ void exponentiate(float (&s)[N], const float (&factor)[2], const float (&base)[2]) {
        float added[2] = {};
#pragma unroll
        for (int i = 0; i < N; i += 2) {
            const int r = i / 2 % 2;
            s[i] = ex2_approx_ftz(fmaf(s[i], scale, -base[r]));
            s[i + 1] = ex2_approx_ftz(fmaf(s[i + 1], scale, -base[r]));
            added[r] += s[i] + s[i + 1];
        }
#pragma unroll
        for (int r = 0; r < 2; r++) sum[r] = fmaf(sum[r], factor[r], added[r]);
    }

    // The sums of whole rows, after the last tile.
    __device__ __forceinline__ void finish() {
#pragma unroll
        for (int r = 0; r < 2; r++) sum[r] = warp_sum<4>(sum[r]);
    }

    // What the results of row r are multiplied by in the end: 0 for rows without a visible key.
    __device__ __forceinline__ float normalization(int r) const { return sum[r] == 0 ? 0 : 1 / sum[r]; }

    // log(sum of exp(score)) of row r; minus infinity for rows without a visible key.
    __device__ __forceinline__ float log_sum_exp(int r) const {
        constexpr float ln2 = 0.693147180559945f;
        return sum[r] == 0 ? -infinity() : (maximum[r] * scale - RAISED + lg2_approx(sum[r])) * ln2;
    }
};

using OnlineSoftmax = RaisedSoftmax<0>;

// Sets the scores of invisible keys to minus infinity. key: of the tile's first column. visible[r]: the number of keys
// that row r sees.
template <int N>
__device__ __forceinline__ void mask_scores(float (&s)[N], int key, const int (&visible)[2]) {
    key += laneid() % 4 * 2;
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (key + i / 4 * 8 + i % 2 >= visible[i / 2 % 2]) s[i] = -infinity();
    }
}

// Multiplies the results of each row by its factor.
template <int N>
__device__ __forceinline__ void scale_rows(float (&o)[N], const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < N; i++) o[i] *= factor[i / 2 % 2];
}

// The scores of 16 keys, from number 16 k, as the first operand of a product.
template <class T, int N>
__device__ __forceinline__ void pack_operand(unsigned (&a)[4], const float (&s)[N], int k) {
#pragma unroll
    for (int i = 0; i < 4; i++) a[i] = Convert<T>::pack(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
}

}  // namespace ptxkit
