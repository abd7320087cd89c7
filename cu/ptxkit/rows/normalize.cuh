// Mean and variance of rows, and root mean squares: what layernorm and rmsnorm normalize with, at any scale of the values.
//
// Range. Squares overflow f32 above 1.8e19 and lose bits below 1e-19, while what is normalized is harmless. Nearly all rows are in
// between, so the sum is looked at: only when it left the safe range, the row, which is still at hand, is scaled by a power of two
// and summed once more. Rows in the safe range pay one comparison.
#pragma once
#include "ptxkit/ptx/floating_point.cuh"
#include "ptxkit/rows/row.cuh"

namespace ptxkit {

// Whether a sum of squares can be trusted: none overflowed, and what underflowed, 2^-150 a column, is below 2^-70 of the mean
// square and eps together. False for NaN.
__device__ __forceinline__ bool squares_are_safe(float sum, float mean_and_eps) {
    return sum < 0x1p126f && mean_and_eps >= 0x1p-80f;
}

// The power of two that makes the largest magnitude of a row 1 to 4; 1 when that is 0, infinite or NaN.
template <class S>
__device__ __forceinline__ float safe_scale(const Row<S>& row, RowRecords<float, S>& slots) {
    const float largest = row_max(row.max([](float v, int) { return fabsf(v); }), slots);
    const int exponent = __float_as_uint(largest) >> 23;  // biased; 255 - 1 - it is that of the reciprocal
    return largest > 0.0f && exponent < 255 ? __uint_as_float(static_cast<unsigned>(max(254 - exponent, 1)) << 23) : 1.0f;
}

// 1 / sqrt(a) for 2^-80 <= a < 2^126: the approximation and one Newton step, which leaves at most 1 ulp.
__device__ __forceinline__ float inverse_sqrt(float a) {
    float r = rsqrt_approx_ftz(a);
    return fmaf(0.5f * r, fmaf(-a * r, r, 1.0f), r);
}

// 1 / sqrt(mean square + eps) for a row that was scaled; eps was not, and may leave f32 when it is.
__device__ __forceinline__ float scaled_inverse_sqrt(float mean_square, float eps, float scale) {
    return static_cast<float>(1.0 / sqrt(mean_square + eps * (static_cast<double>(scale) * scale)));
}

// The mean of a row and the reciprocal of its standard deviation, 1 / sqrt(variance + eps).
struct Statistics {
    float mean, rstd;
};

// x * gamma + beta for x that is standardized.
template <class T>
__device__ __forceinline__ float affine(float x, T gamma, T beta) {
    return fmaf(x, to_f32(gamma), to_f32(beta));
}

// ---------------------------------------------------------------------------------------------------------------------------
// Rows in registers

// Of some columns: a number near their mean, and the sums of what lies beside it and of the squares of that.
struct Deviations {
    float pivot, sum, squares;

    // Of the same `columns` columns, from another pivot.
    __device__ __forceinline__ Pair from(float other, float columns) const {
        const float away = pivot - other, moved = columns * away;
        return {sum + moved, fmaf(2.0f * sum + moved, away, squares)};
    }

    // From their mean.
    __device__ __forceinline__ Deviations settled(float columns, float inverse_columns) const {
        const float mean = pivot + __fmul_rn(sum, inverse_columns);
        const Pair sums = from(mean, columns);
        return {mean, sums.x, sums.y};
    }
};

// Of columns in COUNT parts: part(i) gives those of part i, columns(i) how many columns it has.
template <int COUNT, class Part, class Columns>
__device__ __forceinline__ Deviations joined(Part part, Columns columns) {
    const float pivot = part(0).pivot;
    const Pair sums = sum_below<COUNT>([&](unsigned i) { return part(i).from(pivot, columns(i)); });
    return {pivot, sums.x, sums.y};
}

// Of a row, when all lanes of a warp hold those of their warp.
template <class S, class Records>
__device__ __forceinline__ Deviations row_deviations(Deviations mine, const Place<S>& place, Records& records, unsigned turn) {
    if constexpr (Records::by_ctas) {
        const unsigned rank = cluster_ctarank();
        const auto* warps = records.of_warps(mine);
        const Deviations cta = joined<S::cta_warps>([&](unsigned i) { return warps[i].record; },
                                                    [&](unsigned i) { return place.warp_columns(rank * S::cta_warps + i); });
        const float columns = place.cta_columns(rank);
        const auto* ctas = records.of_ctas(cta.settled(columns, rcp_approx(fmaxf(columns, 1.0f))));
        return joined<S::CTAS>([&](unsigned i) { return ctas[i].record; }, [&](unsigned i) { return place.cta_columns(i); });
    } else {
        const Deviations* warps = records.gather(mine, turn);
        return joined<S::warps>([&](unsigned i) { return warps[i]; }, [&](unsigned i) { return place.warp_columns(i); });
    }
}

template <class S>
struct StandardizeSlots {
    RowRecords<Deviations, S, 2> deviations;
    RowRecords<float, S> largest;
};

// Makes each column (x - mean) * rstd, and padding, which must be 0, something finite. One barrier: every thread takes its own
// mean as a pivot and sums deviations from it, first and second powers; then lanes take lane 0's, warps their mean, and the row that
// of its first warp. Each pivot is a mean of more columns than the last, so that little cancels when sums move there, however far from
// 0 or from its neighbours a column lies. As the sum of deviations says what the pivot's rounding left, a mean far greater than
// the deviations costs no accuracy either: Chan, Golub, LeVeque, "Algorithms for computing the sample variance", 1983, section 1
// ("corrected two-pass") and its updating formulas. loaded() is called once, when all columns are there.
template <class S, class Slots, class F>
__device__ __forceinline__ Statistics standardize(Row<S>& row, const Place<S>& place, float eps, Slots& slots, F loaded) {
    const float inverse_cols = rcp_approx(place.cols), held = place.held, inverse_held = rcp_approx(fmaxf(held, 1.0f));
    const float columns = place.warp_columns(S::warps == 1 ? 0 : place.thread / S::lanes);
    const float inverse_columns = rcp_approx(fmaxf(columns, 1.0f));
    float scale = 1.0f, rstd, beyond, squares;
    Deviations mine, all;  // of this thread, of the row
#pragma unroll 1
    for (unsigned turn = 0;; turn++) {
        // rounded on its own: were the product part of an fma in the deviations, those would be from another pivot
        mine.pivot = __fmul_rn(row.sum([](float v, int) { return v; }), inverse_held);
        place.pad(row, mine.pivot);  // which deviates by nothing
        auto deviation = [&](float v, int) { return v - mine.pivot; };
        mine.sum = row.sum(deviation);
        mine.squares = row.sum([&](float v, int k) { return deviation(v, k) * deviation(v, k); });

        all.pivot = shfl_sync_idx(all_lanes, mine.pivot, laneid() & ~(S::lanes - 1));
        if (turn == 0) loaded();
        Pair sums = warp_sum<S::lanes>(mine.from(all.pivot, held));
        all.sum = sums.x, all.squares = sums.y;
        if constexpr (S::warps > 1) {
            all = row_deviations(all.settled(columns, inverse_columns), place, slots.deviations, turn);
        }
        beyond = all.sum * inverse_cols;  // the mean is all.pivot + beyond
        squares = fmaf(-all.sum, beyond, all.squares);
        if (squares < 0.0f) squares = 0.0f;
        const float variance_and_eps = fmaf(squares, inverse_cols, eps);
        rstd = inverse_sqrt(variance_and_eps);
        const bool unsafe = !squares_are_safe(squares, variance_and_eps);
        if (turn || !any_row<S>(unsafe)) break;
        place.pad(row, 0.0f);
        scale = safe_scale(row, slots.largest);
        if (!unsafe) scale = 1.0f;
        row.each([&](float& v, int) { v *= scale; });
    }
    Statistics statistics = {all.pivot + beyond, rstd};
    if (scale != 1.0f) {
        rstd = scaled_inverse_sqrt(squares * inverse_cols, eps, scale);
        statistics = {(all.pivot + beyond) / scale, rstd * scale};
    }
    if constexpr (S::elements >= 64) mine.pivot = anew(mine.pivot);  // else deviations would be kept, beside the columns, and spill
    const float offset = ((mine.pivot - all.pivot) - beyond) * rstd;
    row.each([&](float& v, int) { v = fmaf(v - mine.pivot, rstd, offset); });
    return statistics;
}

template <class S, class Slots>
__device__ __forceinline__ Statistics standardize(Row<S>& row, const Place<S>& place, float eps, Slots& slots) {
    return standardize(row, place, eps, slots, [] {});
}

template <class S>
struct RootMeanSquareSlots {
    RowRecords<float, S, 2> squares;
    RowRecords<float, S> largest;
};

// What makes a column x / sqrt(mean(x^2) + eps): multiplied by `scale`, which the row's columns are already, and by `factor`.
struct RootMeanSquare {
    float factor, scale;
};

template <class S, class Slots>
__device__ __forceinline__ RootMeanSquare root_mean_square(Row<S>& row, const Place<S>& place, float eps, Slots& slots) {
    const float inverse_cols = rcp_approx(place.cols);
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

// ---------------------------------------------------------------------------------------------------------------------------
// In f64, which no row of f32 leaves

struct ExactStatistics {
    double mean, rstd;

    __device__ __forceinline__ float standardized(float x) const { return static_cast<float>((x - mean) * rstd); }
};

__device__ __forceinline__ double mean_of(double sum, int cols) { return sum / cols; }
__device__ __forceinline__ double rstd_of(double sum_of_squares, int cols, float eps) {
    return 1.0 / sqrt(sum_of_squares / cols + eps);
}
__device__ __forceinline__ double squared(double d) { return d * d; }

// Of the CTA's row: first(c) gives column c, and again(c) the same column to the same thread once more.
template <int THREADS, class First, class Again>
__device__ __forceinline__ ExactStatistics column_statistics(int cols, float eps, First first, Again again) {
    const double mean = mean_of(column_sum<THREADS>(cols, first), cols);
    return {mean, rstd_of(column_sum<THREADS>(cols, [&](unsigned c) { return squared(again(c) - mean); }), cols, eps)};
}

// ---------------------------------------------------------------------------------------------------------------------------
// Rows in parts: sums of a part in f32, of all parts in f64. A row whose squares leave the range of f32 is summed once more, and
// normalized, in f64 alone.

// What a row in parts is normalized with.
struct PartsStatistics {
    double mean, rstd;
    bool safe;

    // Makes each column (x - mean) * rstd.
    template <class S>
    __device__ __forceinline__ void standardize(Row<S>& row) const {
        if (safe) {
            const float high = static_cast<float>(mean), low = static_cast<float>(mean - high), factor = static_cast<float>(rstd);
            row.each([&](float& v, int) { v = ((v - high) - low) * factor; });
        } else {
            row.each([&](float& v, int) { v = static_cast<float>((v - mean) * rstd); });
        }
    }
};

// What a thread sums of its parts. Each part is summed from its own mean, and moved to that of the first: as in `standardize`.
struct PartsDeviations {
    double pivot = 0, sum = 0, squares = 0, columns = 0;

    // `row` has a part's columns and 0 for padding, and keeps them.
    template <class S>
    __device__ __forceinline__ void add(Row<S> row, const Place<S>& part) {
        const float held = part.held, mean = __fmul_rn(row.sum([](float v, int) { return v; }), rcp_approx(fmaxf(held, 1.0f)));
        part.pad(row, mean);
        const double first = row.sum([&](float v, int) { return v - mean; });
        const double second = row.sum([&](float v, int) { return (v - mean) * (v - mean); });
        move(mean, first, second, held);
    }

    // The same in f64.
    template <class S>
    __device__ __forceinline__ void add_exactly(const Row<S>& row, const Place<S>& part) {
        double first = 0, second = 0;
        row.each([&](float v, int k) {
            const double away = k < part.held ? static_cast<double>(v) - row[0] : 0.0;
            first += away, second += away * away;
        });
        move(row[0], first, second, part.held);
    }

    // Mean and sum of the squares of deviations of the whole row, of which every thread holds columns.
    template <class S>
    __device__ __forceinline__ void finish(unsigned cols, RowRecords<double, S, 2>& slots, double& mean, double& total) const {
        mean = row_sum(columns * pivot + sum, slots, 0) / cols;
        const double away = pivot - mean;
        total = row_sum(squares + (columns * away + 2 * sum) * away, slots, 1);
    }

private:
    __device__ __forceinline__ void move(double mean, double first, double second, double held) {
        if (columns == 0) pivot = mean;
        const double away = mean - pivot;
        sum += first + held * away;
        squares += second + (held * away + 2 * first) * away;
        columns += held;
    }
};

template <int CACHE, class S, class T, bool STAGED>
__device__ __forceinline__ PartsStatistics statistics_in_parts(const T* x, const Place<S>& place, float eps,
                                                               RowRecords<double, S, 2>& slots,
                                                               const Staged<T, S, STAGED>& staged) {
    PartsDeviations mine;
    forward_parts<S>(place.cols, [&](unsigned begin) {
        const Place<S> part = place.part(begin);
        mine.add(staged.template first<CACHE>(part, begin, x), part);
    });
    double mean, squares;
    mine.finish(place.cols, slots, mean, squares);
    const bool safe = squares_are_safe(static_cast<float>(squares), static_cast<float>(squares / place.cols + eps));
    if (!safe) {
        mine = PartsDeviations();
        forward_parts<S>(place.cols, [&](unsigned begin) {
            const Place<S> part = place.part(begin);
            mine.add_exactly(staged.template again<CACHE>(part, begin, x), part);
        });
        mine.finish(place.cols, slots, mean, squares);
    }
    return {mean, rstd_of(squares, place.cols, eps), safe};
}

}  // namespace ptxkit
