// Exponentials of rows relative to their maximum, and their sum, with one barrier: each warp uses its own maximum, and
// its exponentials are corrected by one factor when the row's maximum is known. Milakov, Gimelshein, "Online normalizer
// calculation for softmax", 2018, arXiv:1805.02867, applied to warps instead of elements. exponentials_from avoids the
// maximum altogether where the sum shows that one of the first columns is an accurate base.
#pragma once
#include "ptxkit/elementwise/philox.cuh"
#include "ptxkit/ptx/floating_point.cuh"
#include "ptxkit/rows/row.cuh"

namespace ptxkit {

// exp(d) for d <= 0, one MUFU: relative error below 2^-21.5 + 2^-23 |d|. Results below 2^-126 are zero.
__device__ __forceinline__ float exponential(float d) { return ex2_approx_ftz(d * 1.442695041f); }

// The base of the exponents: the maximum, or 0 if all columns are -inf, so that exp(-inf) is 0 in that case as well.
__device__ __forceinline__ float base_of(float largest) { return largest == -infinity() ? 0.0f : largest; }

// The maximum of some columns, and the sum of exp(column - base_of(largest)).
struct MaxSum {
    float largest, sum;
};

// Combines `count` partial results, of which part(i) is the i-th.
template <int COUNT, class Part>
__device__ __forceinline__ MaxSum joined(Part part, unsigned count = COUNT) {
    const float largest = max_below<COUNT>([&](unsigned i) { return part(i).largest; }, count);
    const float base = base_of(largest);
    auto moved = [&](unsigned i) { return part(i).sum * exponential(part(i).largest - base); };
    return {largest, sum_below<COUNT>(moved, count)};
}

// The result of a row, when all lanes of a warp hold that of their warp.
template <class Records>
__device__ __forceinline__ MaxSum row_max_sum(MaxSum mine, Records& records) {
    using S = typename Records::Shape;
    if constexpr (S::warps == 1) {
        return mine;
    } else if constexpr (Records::two_level) {
        const auto* warps = records.of_warps(mine);
        const auto* ctas = records.of_ctas(joined<S::cta_warps>([&](unsigned i) { return warps[i].record; }));
        return joined<S::CTAS>([&](unsigned i) { return ctas[i].record; });
    } else {
        const MaxSum* all = records.gather(mine);
        return joined<S::warps>([&](unsigned i) { return all[i]; }, S::launched_warps());
    }
}

// 1 / sum. The sum is at least 1 unless all columns are -inf. NaN if a column is infinity.
__device__ __forceinline__ float inverse_of(float sum) { return rcp_approx_ftz(sum); }

// The factor that turns exponentials relative to the warp's maximum into probabilities.
struct Softmax {
    float factor, sum;
};

// Replaces each column by exp(column - base of the warp). Padding must be -inf.
template <class S, class Records>
__device__ __forceinline__ Softmax exponentials(Row<S>& row, Records& slots) {
    const float largest = warp_max<S::lanes>(row.max([](float v, int) { return v; }));
    const float base = base_of(largest);
    row.each([&](float& v, int) { v = exponential(v - base); });
    const MaxSum all = row_max_sum({largest, warp_sum<S::lanes>(row.sum([](float v, int) { return v; }))}, slots);
    return {exponential(largest - base_of(all.largest)) * inverse_of(all.sum), all.sum};
}

// An estimate of the row's maximum: the largest of its first columns, or of its first whole vectors, up to eight. One
// lane per warp loads them.
template <class S, class T>
struct Guess {
    static_assert(S::WIDTH <= 8, "128 bits");
    Vector<T, S::WIDTH> columns[8 / S::WIDTH];
    float first = 0.0f;
    bool eight;

    __device__ __forceinline__ Guess(const RowLayout<S>& layout, const T* x)
        : eight(layout.vectors && layout.cols >= (layout.head ? 8 + S::WIDTH : 8)) {
        const T* from = x + layout.first;
        if (eight && layout.head) from += S::WIDTH - layout.head;
        const bool mine = (laneid() & (S::lanes - 1)) == 0;
        if (eight) {
#pragma unroll
            for (int i = 0; i < 8 / S::WIDTH; i++) {
                columns[i].fill([](int) { return 0.0f; });
                if (mine) columns[i].template load<CACHE_KEEP>(from + i * S::WIDTH);
            }
        } else if (mine && layout.cols) {
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

// Replaces each column by its exponential relative to the estimate `guess`, or to its warp's maximum, and returns the
// factor that turns it into a probability. Padding must be -inf. again() loads the row again.
//
// With one base for all columns no thread waits for the maximum, and the warps exchange only a sum. The estimate is a
// column of the row, so its own exponential is 1, and results that underflow are probabilities below 2^-126. A sum up
// to 2^30 proves that no column is so far above the estimate that its product with log2(e) has lost digits. Other rows
// are loaded again, from L2, and use the exact maximum.
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

// Maximum of a row in chunks, and sum of its exponentials. load(chunk, begin) returns the columns of the chunk that
// begins at column `begin`, with -inf for padding.
template <class S, class Load>
__device__ __forceinline__ MaxSum chunked_max_sum(const RowLayout<S>& layout, RowRecords<MaxSum, S>& slots, Load load) {
    MaxSum mine = {-infinity(), 0.0f};
    forward_chunks<S>(layout.cols, [&](unsigned begin) {
        const Row<S> row = load(layout.chunk(begin), begin);
        const float largest = fmaxf(mine.largest, row.max([](float v, int) { return v; })), base = base_of(largest);
        const float before = mine.sum * exponential(mine.largest - base);
        mine = {largest, before + row.sum([&](float v, int) { return exponential(v - base); })};
    });
    const float largest = warp_max<S::lanes>(mine.largest);
    const float sum = warp_sum<S::lanes>(mine.sum * exponential(mine.largest - base_of(largest)));
    return row_max_sum({largest, sum}, slots);
}

// ---------------------------------------------------------------------------------------------------------------------
// Dropout

// Drops element i of a matrix if word i % 4 of Philox4x32-10 at counter i / 4 is below `threshold` = p * 2^32, and
// multiplies the others by `scale` = 1 / (1 - p).
struct Dropout {
    unsigned threshold;
    float scale;
    unsigned long long seed;

    __device__ __forceinline__ float operator()(float v, unsigned long long element) const {
        return philox_element(element, seed) < threshold ? 0.0f : v * scale;
    }
};

// One bit for each register of a row: whether it is dropped. Computed while the row's loads are in flight.
template <class S>
struct Dropped {
    unsigned bits[(S::elements + 31) / 32] = {};

    __device__ __forceinline__ Dropped(const RowLayout<S>& layout, const Dropout& dropout) {
        if (layout.vectors) {
#pragma unroll
            for (int k = 0; k < S::elements; k += 4) {
                const uint4 words = philox_quad(layout.index(k) / 4, dropout.seed);
                const unsigned word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
                for (int j = 0; j < 4; j++) set(k + j, word[j] < dropout.threshold);
            }
        } else {
#pragma unroll
            for (int k = 0; k < S::elements; k++) {
                set(k, philox_element(layout.index(k), dropout.seed) < dropout.threshold);
            }
        }
    }

    __device__ __forceinline__ bool operator[](int k) const { return bits[k / 32] >> k % 32 & 1; }

private:
    __device__ __forceinline__ void set(int k, bool dropped) {
        bits[k / 32] |= static_cast<unsigned>(dropped) << k % 32;
    }
};

}  // namespace ptxkit
