// Mean, variance and root mean square of rows, for layernorm and rmsnorm, at any scale of the values.
//
// Range: squares overflow f32 above 1.8e19 and lose bits below 1e-19, although the normalized result is harmless.
// Nearly all rows are in between. Each kernel therefore sums plain f32 squares and tests the sum (squares_are_safe):
// only when it has left the safe range, the row, which is still in registers, is scaled by a power of two and summed
// again. Rows in the safe range execute one comparison for it.
#pragma once
#include "ptxkit/ptx/floating_point.cuh"
#include "ptxkit/rows/row.cuh"

namespace ptxkit {

// Whether a sum of squares is accurate: no square has overflowed, and what was lost to underflow, 2^-150 per column, is
// below 2^-70 of the mean square plus eps. False for NaN.
__device__ __forceinline__ bool squares_are_safe(float sum, float mean_and_eps) {
    return sum < 0x1p126f && mean_and_eps >= 0x1p-80f;
}

// The power of two that brings the largest magnitude of a row to between 1 and 4, or 1 if that magnitude is 0, infinite
// or NaN.
template <class S>
__device__ __forceinline__ float safe_scale(const Row<S>& row, RowRecords<float, S>& slots) {
    const float largest = row_max(row.max([](float v, int) { return fabsf(v); }), slots);
    const int exponent = __float_as_uint(largest) >> 23;  // biased; the reciprocal has exponent 254 - exponent
    return largest > 0.0f && exponent < 255 ? __uint_as_float(static_cast<unsigned>(max(254 - exponent, 1)) << 23)
                                            : 1.0f;
}

// 1 / sqrt(a) for 2^-80 <= a < 2^126, within 1 ulp: the approximation and one Newton step.
__device__ __forceinline__ float inverse_sqrt(float a) {
    float r = rsqrt_approx_ftz(a);
    return fmaf(0.5f * r, fmaf(-a * r, r, 1.0f), r);
}

// 1 / sqrt(mean square + eps) for a row that was scaled. eps is scaled here, in f64, since the product may leave the
// range of f32.
__device__ __forceinline__ float scaled_inverse_sqrt(float mean_square, float eps, float scale) {
    return static_cast<float>(1.0 / sqrt(mean_square + eps * (static_cast<double>(scale) * scale)));
}

// The mean of a row and the reciprocal of its standard deviation, 1 / sqrt(variance + eps).
struct Statistics {
    float mean, rstd;
};

// x * gamma + beta for a standardized x.
template <class T>
__device__ __forceinline__ float affine(float x, T gamma, T beta) {
    return fmaf(x, to_f32(gamma), to_f32(beta));
}

// ---------------------------------------------------------------------------------------------------------------------
// Rows in registers

// Partial variance of some columns: a pivot near their mean, and the sums of the deviations from it and of their
// squares.
struct Deviations {
    float pivot, sum, squares;

    // The sums for the same `columns` columns relative to another pivot.
    __device__ __forceinline__ Pair from(float other, float columns) const {
        const float away = pivot - other, moved = columns * away;
        return {sum + moved, fmaf(2.0f * sum + moved, away, squares)};
    }

    // The same columns with their mean as the pivot.
    __device__ __forceinline__ Deviations settled(float columns, float inverse_columns) const {
        const float mean = pivot + __fmul_rn(sum, inverse_columns);
        const Pair sums = from(mean, columns);
        return {mean, sums.x, sums.y};
    }
};

// Combines `count` partial variances: part(i) is the i-th, of columns(i) columns.
template <int COUNT, class Part, class Columns>
__device__ __forceinline__ Deviations joined(Part part, Columns columns, unsigned count = COUNT) {
    const float pivot = part(0).pivot;
    const Pair sums = sum_below<COUNT>([&](unsigned i) { return part(i).from(pivot, columns(i)); }, count);
    return {pivot, sums.x, sums.y};
}

// The variance of a row, when all lanes of a warp hold that of their warp.
template <class S, class Records>
__device__ __forceinline__ Deviations row_deviations(Deviations mine, const RowLayout<S>& layout, Records& records,
                                                     unsigned buffer) {
    if constexpr (Records::two_level) {
        const unsigned rank = cluster_ctarank();
        const auto* warps = records.of_warps(mine);
        const Deviations cta =
            joined<S::cta_warps>([&](unsigned i) { return warps[i].record; },
                                 [&](unsigned i) { return layout.warp_columns(rank * S::cta_warps + i); });
        const float columns = layout.cta_columns(rank);
        const auto* ctas = records.of_ctas(cta.settled(columns, rcp_approx(fmaxf(columns, 1.0f))));
        return joined<S::CTAS>([&](unsigned i) { return ctas[i].record; },
                               [&](unsigned i) { return layout.cta_columns(i); });
    } else {
        const Deviations* warps = records.gather(mine, buffer);
        return joined<S::warps>([&](unsigned i) { return warps[i]; },
                                [&](unsigned i) { return layout.warp_columns(i); }, S::launched_warps());
    }
}

template <class S>
struct StandardizeSlots {
    RowRecords<Deviations, S, 2> deviations;
    RowRecords<float, S> largest;
};

// Replaces each column by (x - mean) * rstd, with one barrier. Padding must be 0 and becomes finite.
//
// Every thread takes its own mean as a pivot and sums first and second powers of the deviations from it. The sums then
// move to the pivot of lane 0, to the mean of the warp, and to the pivot of the row's first warp. Each pivot is the
// mean of more columns than the one before, so that little cancels in these moves, however far a column lies from 0 or
// from its neighbours. Since the sum of deviations contains the rounding error of the pivot, a mean far greater than
// the deviations costs no accuracy either. Chan, Golub, LeVeque, "Algorithms for computing the sample variance", 1983,
// section 1 ("corrected two-pass") and its updating formulas. loaded() is called once, when all columns have arrived.
template <class S, class Slots, class F>
__device__ __forceinline__ Statistics standardize(Row<S>& row, const RowLayout<S>& layout, float eps, Slots& slots,
                                                  F loaded) {
    const float inverse_cols = rcp_approx(layout.cols), valid = layout.held(),
                inverse_held = rcp_approx(fmaxf(valid, 1.0f));
    const float columns = layout.warp_columns(S::warps == 1 ? 0 : layout.thread / S::lanes);
    const float inverse_columns = rcp_approx(fmaxf(columns, 1.0f));
    float scale = 1.0f, rstd, beyond, squares;
    Deviations mine, all;  // of this thread, of the row
#pragma unroll 1
    for (unsigned buffer = 0;; buffer++) {
        // Rounded separately: if the compiler contracted the product into an fma of the deviations, they would have
        // another pivot.
        mine.pivot = __fmul_rn(row.sum([](float v, int) { return v; }), inverse_held);
        layout.pad(row, mine.pivot);  // its deviation is 0
        auto deviation = [&](float v, int) { return v - mine.pivot; };
        mine.sum = row.sum(deviation);
        mine.squares = row.sum([&](float v, int k) { return deviation(v, k) * deviation(v, k); });

        all.pivot = shfl_sync_idx(all_lanes, mine.pivot, laneid() & ~(S::lanes - 1));
        if (buffer == 0) loaded();
        Pair sums = warp_sum<S::lanes>(mine.from(all.pivot, valid));
        all.sum = sums.x, all.squares = sums.y;
        if constexpr (S::warps > 1) {
            all = row_deviations(all.settled(columns, inverse_columns), layout, slots.deviations, buffer);
        }
        beyond = all.sum * inverse_cols;  // the mean is all.pivot + beyond
        squares = fmaf(-all.sum, beyond, all.squares);
        if (squares < 0.0f) squares = 0.0f;
        const float variance_and_eps = fmaf(squares, inverse_cols, eps);
        rstd = inverse_sqrt(variance_and_eps);
        const bool unsafe = !squares_are_safe(squares, variance_and_eps);
        if (buffer || !any_row<S>(unsafe)) break;
        layout.pad(row, 0.0f);
        scale = safe_scale(row, slots.largest);
        if (!unsafe) scale = 1.0f;
        row.each([&](float& v, int) { v *= scale; });
    }
    Statistics statistics = {all.pivot + beyond, rstd};
    if (scale != 1.0f) {
        rstd = scaled_inverse_sqrt(squares * inverse_cols, eps, scale);
        statistics = {(all.pivot + beyond) / scale, rstd * scale};
    }
    // Keeps the compiler from holding the deviations beside the columns, which would spill.
    if constexpr (S::elements >= 64) mine.pivot = optimization_barrier(mine.pivot);
    const float offset = ((mine.pivot - all.pivot) - beyond) * rstd;
    row.each([&](float& v, int) { v = fmaf(v - mine.pivot, rstd, offset); });
    return statistics;
}

template <class S, class Slots>
__device__ __forceinline__ Statistics standardize(Row<S>& row, const RowLayout<S>& layout, float eps, Slots& slots) {
    return standardize(row, layout, eps, slots, [] {});
}

template <class S>
struct RootMeanSquareSlots {
    RowRecords<float, S, 2> squares;
    RowRecords<float, S> largest;
};

// The factors of x / sqrt(mean(x^2) + eps): the columns are multiplied by `scale` already and have to be multiplied by
// `factor`.
struct RootMeanSquare {
    float factor, scale;
};

template <class S, class Slots>
__device__ __forceinline__ RootMeanSquare root_mean_square(Row<S>& row, const RowLayout<S>& layout, float eps,
                                                           Slots& slots) {
    const float inverse_cols = rcp_approx(layout.cols);
    auto square = [](float v, int) { return v * v; };
    const float squares = row_sum(row.sum(square), slots.squares, 0);
    const float mean_and_eps = fmaf(squares, inverse_cols, eps);
    const bool unsafe = !squares_are_safe(squares, mean_and_eps);
    float factor = inverse_sqrt(mean_and_eps), scale = 1.0f;
    if (any_row<S>(unsafe)) {
        scale = safe_scale(row, slots.largest);
        if (!unsafe) scale = 1.0f;
        row.each([&](float& v, int) { v *= scale; });
        factor = scaled_inverse_sqrt(row_sum(row.sum(square), slots.squares, 1) * inverse_cols, eps, scale);
    }
    return {factor, scale};
}

// ---------------------------------------------------------------------------------------------------------------------
// Statistics in f64, whose range no row of f32 values exceeds

struct ExactStatistics {
    double mean, rstd;

    __device__ __forceinline__ float standardized(float x) const { return static_cast<float>((x - mean) * rstd); }
};

__device__ __forceinline__ double mean_of(double sum, int cols) { return sum / cols; }
__device__ __forceinline__ double rstd_of(double sum_of_squares, int cols, float eps) {
    return 1.0 / sqrt(sum_of_squares / cols + eps);
}
__device__ __forceinline__ double squared(double d) { return d * d; }

// Statistics of the CTA's row. first(c) returns column c, and again(c) returns it a second time to the same thread.
template <int THREADS, class First, class Again>
__device__ __forceinline__ ExactStatistics column_statistics(int cols, float eps, First first, Again again) {
    const double mean = mean_of(column_sum<THREADS>(cols, first), cols);
    return {mean, rstd_of(column_sum<THREADS>(cols, [&](unsigned c) { return squared(again(c) - mean); }), cols, eps)};
}

// ---------------------------------------------------------------------------------------------------------------------
// Rows in chunks: f32 sums within a chunk, f64 sums over chunks. A row whose squares leave the range of f32 is summed
// again, and normalized, in f64.

// The statistics that normalize a row in chunks.
struct ChunkedStatistics {
    double mean, rstd;
    bool safe;

    // Makes each column (x - mean) * rstd.
    template <class S>
    __device__ __forceinline__ void standardize(Row<S>& row) const {
        if (safe) {
            const float high = static_cast<float>(mean), low = static_cast<float>(mean - high),
                        factor = static_cast<float>(rstd);
            row.each([&](float& v, int) { v = ((v - high) - low) * factor; });
        } else {
            row.each([&](float& v, int) { v = static_cast<float>((v - mean) * rstd); });
        }
    }
};

// Partial variance of a thread's chunks. Each chunk is summed relative to its own mean and moved to the mean of the
// first chunk, as in `standardize`.
struct ChunkedDeviations {
    double pivot = 0, sum = 0, squares = 0, columns = 0;

    // Adds a chunk. `row` has its columns, and 0 for padding.
    template <class S>
    __device__ __forceinline__ void add(Row<S> row, const RowLayout<S>& chunk) {
        const float valid = chunk.valid,
                    mean = __fmul_rn(row.sum([](float v, int) { return v; }), rcp_approx(fmaxf(valid, 1.0f)));
        chunk.pad(row, mean);
        const double first = row.sum([&](float v, int) { return v - mean; });
        const double second = row.sum([&](float v, int) { return (v - mean) * (v - mean); });
        move(mean, first, second, valid);
    }

    // The same in f64.
    template <class S>
    __device__ __forceinline__ void add_exactly(const Row<S>& row, const RowLayout<S>& chunk) {
        double first = 0, second = 0;
        row.each([&](float v, int k) {
            const double away = k < chunk.valid ? static_cast<double>(v) - row[0] : 0.0;
            first += away, second += away * away;
        });
        move(row[0], first, second, chunk.valid);
    }

    // Mean and sum of squared deviations of the whole row. All threads of the row call it.
    template <class S>
    __device__ __forceinline__ void finish(unsigned cols, RowRecords<double, S, 2>& slots, double& mean,
                                           double& total) const {
        mean = row_sum(columns * pivot + sum, slots, 0) / cols;
        const double away = pivot - mean;
        total = row_sum(squares + (columns * away + 2 * sum) * away, slots, 1);
    }

private:
    __device__ __forceinline__ void move(double mean, double first, double second, double valid) {
        if (columns == 0) pivot = mean;
        const double away = mean - pivot;
        sum += first + valid * away;
        squares += second + (valid * away + 2 * first) * away;
        columns += valid;
    }
};

template <int CACHE, class S, class T, bool STAGED>
__device__ __forceinline__ ChunkedStatistics chunked_statistics(const T* x, const RowLayout<S>& layout, float eps,
                                                                RowRecords<double, S, 2>& slots,
                                                                const Staged<T, S, STAGED>& staged) {
    ChunkedDeviations mine;
    forward_chunks<S>(layout.cols, [&](unsigned begin) {
        const RowLayout<S> chunk = layout.chunk(begin);
        mine.add(staged.template first<CACHE>(chunk, begin, x), chunk);
    });
    double mean, squares;
    mine.finish(layout.cols, slots, mean, squares);
    const bool safe = squares_are_safe(static_cast<float>(squares), static_cast<float>(squares / layout.cols + eps));
    if (!safe) {
        mine = ChunkedDeviations();
        forward_chunks<S>(layout.cols, [&](unsigned begin) {
            const RowLayout<S> chunk = layout.chunk(begin);
            mine.add_exactly(staged.template again<CACHE>(chunk, begin, x), chunk);
        });
        mine.finish(layout.cols, slots, mean, squares);
    }
    return {mean, rstd_of(squares, layout.cols, eps), safe};
}

}  // namespace ptxkit
