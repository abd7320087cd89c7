// Exponentials of rows relative to their maximum, and the sum of them, with one barrier: each warp takes its own maximum, and what
// it made is corrected by one factor when the row's is known. Milakov, Gimelshein, "Online normalizer calculation for softmax",
// 2018, arXiv:1805.02867, with warps for elements. Or relative to a column of the row, where the sum shows that this one would do.
#pragma once
#include "ptxkit/elementwise/philox.cuh"
#include "ptxkit/ptx/floating_point.cuh"
#include "ptxkit/rows/row.cuh"

namespace ptxkit {

// exp(d) for d <= 0, one MUFU: relative error below 2^-21.5 + 2^-23 |d|. Results below 2^-126 are zero.
__device__ __forceinline__ float exponential(float d) { return ex2_approx_ftz(d * 1.442695041f); }

// What exponents are taken relative to: the largest, but 0 where there is nothing above -inf, so that exp(-inf) is 0 there, too.
__device__ __forceinline__ float base_of(float largest) { return largest == -infinity() ? 0.0f : largest; }

// The largest of some columns, and the sum of exp(column - base_of(largest)).
struct MaxSum {
    float largest, sum;
};

// Of columns in COUNT parts, of which part(i) gives part i.
template <int COUNT, class Part>
__device__ __forceinline__ MaxSum joined(Part part) {
    const float largest = max_below<COUNT>([&](unsigned i) { return part(i).largest; });
    const float base = base_of(largest);
    return {largest, sum_below<COUNT>([&](unsigned i) { return part(i).sum * exponential(part(i).largest - base); })};
}

// Of a row, when all lanes of a warp hold that of their warp.
template <class Records>
__device__ __forceinline__ MaxSum row_max_sum(MaxSum mine, Records& records) {
    using S = typename Records::Shape;
    if constexpr (S::warps == 1) {
        return mine;
    } else if constexpr (Records::by_ctas) {
        const auto* warps = records.of_warps(mine);
        const auto* ctas = records.of_ctas(joined<S::cta_warps>([&](unsigned i) { return warps[i].record; }));
        return joined<S::CTAS>([&](unsigned i) { return ctas[i].record; });
    } else {
        const MaxSum* all = records.gather(mine);
        return joined<S::warps>([&](unsigned i) { return all[i]; });
    }
}

// 1 / sum, which is 1 or more unless the row holds nothing but -inf. NaN for infinity among the columns.
__device__ __forceinline__ float inverse_of(float sum) { return rcp_approx_ftz(sum); }

// By what exponentials relative to their warp's maximum must be multiplied.
struct Softmax {
    float factor, sum;
};

// Makes each column exp(column - base of the warp). Padding must be -inf.
template <class S, class Records>
__device__ __forceinline__ Softmax exponentials(Row<S>& row, Records& slots) {
    const float largest = warp_max<S::lanes>(row.max([](float v, int) { return v; }));
    const float base = base_of(largest);
    row.each([&](float& v, int) { v = exponential(v - base); });
    const MaxSum all = row_max_sum({largest, warp_sum<S::lanes>(row.sum([](float v, int) { return v; }))}, slots);
    return {exponential(largest - base_of(all.largest)) * inverse_of(all.sum), all.sum};
}

// Before a row's maximum is known: the largest of its first columns, up to eight. One lane a warp loads them.
template <class S, class T>
struct Guess {
    static_assert(S::WIDTH <= 8, "128 bits");
    Vector<T, S::WIDTH> columns[8 / S::WIDTH];
    float first = 0.0f;
    bool eight;

    __device__ __forceinline__ Guess(const Place<S>& place, const T* x) : eight(place.vectors && place.cols >= 8) {
        const T* from = x + place.first;
        const bool mine = (laneid() & (S::lanes - 1)) == 0;
        if (eight) {
#pragma unroll
            for (int i = 0; i < 8 / S::WIDTH; i++) {
                columns[i].fill([](int) { return 0.0f; });
                if (mine) columns[i].template load<CACHE_KEEP>(from + i * S::WIDTH);
            }
        } else if (mine && place.cols) {
            first = to_f32(*from);
        }
    }

    __device__ __forceinline__ float value() const {
        float largest[8] = {first};
        if (eight) {
#pragma unroll
            for (int k = 0; k < 8; k++) largest[k] = columns[k / S::WIDTH][k % S::WIDTH];
#pragma unroll
            for (int apart = 4; apart > 0; apart /= 2) {
#pragma unroll
                for (int k = 0; k < apart; k++) largest[k] = fmaxf(largest[k], largest[k + apart]);
            }
        }
        return shfl_sync_idx(all_lanes, largest[0], laneid() & ~(S::lanes - 1));
    }
};

template <class S>
struct GuessedSlots {
    RowRecords<float, S> sums;
    RowRecords<MaxSum, S> exact;
};

// Makes each column its exponential relative to a guess, or to its warp's maximum, and gives the factor that makes it a probability.
// Padding must be -inf; again() gives the row once more.
//
// With one base for all columns nobody waits for the maximum, and a sum is all that warps have to tell each other. The guess is a
// column of the row, so that its own exponential is 1, and what underflows is a probability below 2^-126. A sum up to 2^30 says that
// no column lies so far above it that the product with log2(e) has lost its digits. Other rows are read again, from L2.
template <class S, class Again>
__device__ __forceinline__ float exponentials_from(float guess, Row<S>& row, GuessedSlots<S>& slots, Again again) {
    const float base = guess * 1.442695041f;
    row.each([&](float& v, int) { v = ex2_approx_ftz(fmaf(v, 1.442695041f, -base)); });
    const float sum = row_sum(row.sum([](float v, int) { return v; }), slots.sums);
    float factor = inverse_of(sum);
    const bool unsafe = !(sum >= 0.5f && sum <= 0x1p30f);
    if (__builtin_expect(any_row<S>(unsafe), false)) {
        row = again();
        factor = exponentials(row, slots.exact).factor;
    }
    return factor;
}

// The largest of a row in parts, and the sum of its exponentials: load(part, begin) gives the columns of the part that begins at
// column `begin`, with -inf for padding.
template <class S, class Load>
__device__ __forceinline__ MaxSum max_sum_in_parts(const Place<S>& place, RowRecords<MaxSum, S>& slots, Load load) {
    MaxSum mine = {-infinity(), 0.0f};
    forward_parts<S>(place.cols, [&](unsigned begin) {
        const Row<S> row = load(place.part(begin), begin);
        const float largest = fmaxf(mine.largest, row.max([](float v, int) { return v; })), base = base_of(largest);
        const float before = mine.sum * exponential(mine.largest - base);
        mine = {largest, before + row.sum([&](float v, int) { return exponential(v - base); })};
    });
    const float largest = warp_max<S::lanes>(mine.largest);
    const float sum = warp_sum<S::lanes>(mine.sum * exponential(mine.largest - base_of(largest)));
    return row_max_sum({largest, sum}, slots);
}

// ---------------------------------------------------------------------------------------------------------------------------
// Dropout

// Element i of a matrix is dropped where word i % 4 of Philox4x32-10 at counter i / 4 is below `threshold`, which is p 2^32, else
// multiplied by `scale`, 1 / (1 - p).
struct Dropout {
    unsigned threshold;
    float scale;
    unsigned long long seed;

    __device__ __forceinline__ float operator()(float v, unsigned long long element) const {
        return philox_element(element, seed) < threshold ? 0.0f : v * scale;
    }
};

// Which registers of a row are dropped: a bit each. Made while the row's loads are under way.
template <class S>
struct Dropped {
    unsigned bits[(S::elements + 31) / 32] = {};

    __device__ __forceinline__ Dropped(const Place<S>& place, const Dropout& dropout) {
        if (place.vectors) {
#pragma unroll
            for (int k = 0; k < S::elements; k += 4) {
                const uint4 words = philox_quad((place.first + place.column(k)) / 4, dropout.seed);
                const unsigned word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
                for (int j = 0; j < 4; j++) set(k + j, word[j] < dropout.threshold);
            }
        } else {
#pragma unroll
            for (int k = 0; k < S::elements; k++) {
                set(k, philox_element(place.first + place.column(k), dropout.seed) < dropout.threshold);
            }
        }
    }

    __device__ __forceinline__ bool operator[](int k) const { return bits[k / 32] >> k % 32 & 1; }

private:
    __device__ __forceinline__ void set(int k, bool dropped) { bits[k / 32] |= static_cast<unsigned>(dropped) << k % 32; }
};

}  // namespace ptxkit
