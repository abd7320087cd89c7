// Layer normalization, then int8 with a scale for each row: v = (x[r, :] - mean) * rstd * gamma + beta, scales[r] = max(|v|) / 127,
// q[r, :] = round(v / scales[r]), ties to even; rows contiguous, x in f32, f16 or bf16. A row whose v are all 0 has scale 0 and
// zeros; one whose statistics are NaN has scale NaN and zeros.
//
// The story: a framework launches mean, deviation, normalized, scaled and shifted (all in layernorm.cu), then `row_scales` and
// `quantize_rows`: nine passes over device memory; `layernorm_quantize_fused` does the same arithmetic in one read and one write of
// a quarter as much, bit for bit; `layernorm_quantize_vectorized` holds the row in registers, moves 128 bits an access and meets at
// two barriers; `layernorm_quantize_pipelined` has CTAs that stay while the TMA unit copies the next rows;
// `layernorm_quantize_streamed` is for rows that fit in no cluster's registers: they wait in shared memory.
#include "ptxkit/rows/normalize.cuh"
#include "ptxkit/rows/row_pipeline.cuh"

using namespace ptxkit;

// What a row is quantized with.
struct Quantizer {
    float scale, inverse;

    // `standard` is NaN when the row's statistics are. The inverse of a scale below 2^-128 does not fit: 3.4e38 is near enough.
    __device__ __forceinline__ Quantizer(float largest, float standard)
        : scale(standard == standard ? largest * (1.0f / 127.0f) : standard), inverse(fminf(127.0f / largest, 3.4028235e38f)) {}

    // -127 to 127; NaN becomes 0, as a conversion to an integer has it.
    __device__ __forceinline__ int operator()(float v) const { return __float2int_rn(v * inverse); }
};

// ---------------------------------------------------------------------------------------------------------------------------
// fused, and the last two of six launches

// One CTA a row. With KEEP the row, and then what it is quantized from, wait in dynamic shared memory (4 bytes a column); without,
// rows too long for that are read again, mostly from L2.
template <class T, int THREADS, bool KEEP>
__global__ void __launch_bounds__(THREADS)
layernorm_quantize_fused(const T* x, const T* gamma, const T* beta, signed char* q, float* scales, int cols, float eps) {
    extern __shared__ float kept[];
    x += static_cast<size_t>(blockIdx.x) * cols;
    q += static_cast<size_t>(blockIdx.x) * cols;
    auto first = [&](unsigned c) {
        float v = to_f32(x[c]);
        if (KEEP) kept[c] = v;
        return v;
    };
    auto again = [&](unsigned c) { return KEEP ? kept[c] : to_f32(x[c]); };
    const ExactStatistics exact = column_statistics<THREADS>(cols, eps, first, again);
    auto finished = [&](unsigned c) { return affine(exact.standardized(again(c)), gamma[c], beta[c]); };
    const float largest = column_max<THREADS>(cols, [&](unsigned c) {
        float v = finished(c);
        if (KEEP) kept[c] = v;
        return fmaxf(fabsf(v), 0.0f);
    });
    const Quantizer quantizer(largest, static_cast<float>(exact.rstd));
    each_column<THREADS>(cols, [&](unsigned c) { q[c] = quantizer(KEEP ? kept[c] : finished(c)); });
    if (threadIdx.x == 0) scales[blockIdx.x] = quantizer.scale;
}

template <int THREADS>
__global__ void __launch_bounds__(THREADS)
row_scales(const float* v, const double* rstds, float* largest, float* scales, int cols) {
    v += static_cast<size_t>(blockIdx.x) * cols;
    const float found = column_max<THREADS>(cols, [&](unsigned c) { return fmaxf(fabsf(v[c]), 0.0f); });
    if (threadIdx.x == 0) {
        largest[blockIdx.x] = found;
        scales[blockIdx.x] = Quantizer(found, static_cast<float>(rstds[blockIdx.x])).scale;
    }
}

template <int THREADS, int ELEMENTS>
__global__ void __launch_bounds__(THREADS) quantize_rows(const float* v, const float* largest, signed char* q, int cols) {
    each_element<THREADS, ELEMENTS>(cols, [&](unsigned row, unsigned c) {
        const size_t i = static_cast<size_t>(row) * cols + c;
        q[i] = Quantizer(largest[row], 0.0f)(v[i]);
    });
}

// ---------------------------------------------------------------------------------------------------------------------------
// vectorized

// Four columns as the bytes of a word. No `largest` that is infinite: 1.5 * 2^23 + q has q in its lowest byte, rounded to even, and
// takes one fma where a conversion takes the unit that an SM has fewest of; but of NaN it would make -1.
__device__ __forceinline__ unsigned quantized_word(const float* v, float inverse) {
    auto bits = [&](float v) { return __float_as_uint(fmaf(v, inverse, 12582912.0f)); };
    const unsigned lower = prmt_b32(bits(v[0]), bits(v[1]), 0x0040), upper = prmt_b32(bits(v[2]), bits(v[3]), 0x0040);
    return prmt_b32(lower, upper, 0x5410);
}

__device__ __forceinline__ unsigned quantized_word(const float* v, const Quantizer& quantizer) {
    const unsigned upper = cvt_pack_sat_s8_s32(quantizer(v[3]), quantizer(v[2]), 0);
    return cvt_pack_sat_s8_s32(quantizer(v[1]), quantizer(v[0]), upper);
}

template <int CACHE, class S, class With>
__device__ __forceinline__ void store_quantized(const Place<S>& place, signed char* matrix, const Row<S>& row,
                                                const Quantizer& quantizer, const With& with) {
    signed char* q = matrix + place.first + place.thread * (place.vectors ? S::WIDTH : 1);
    if (place.vectors) {
#pragma unroll
        for (int i = 0; i < S::VECTORS; i++) {
            unsigned words[S::WIDTH / 4];
#pragma unroll
            for (int j = 0; j < S::WIDTH; j += 4) words[j / 4] = quantized_word(&row.v[i][j], with);
            if (i * S::WIDTH < place.held) store_words<CACHE>(q + i * S::threads * S::WIDTH, words);
        }
    } else {
#pragma unroll
        for (int k = 0; k < S::elements; k++) {
            if (k < place.held) q[k * S::threads] = quantizer(row[k]);
        }
    }
}

// Padding must be 0; NaN counts for nothing.
template <class S>
__device__ __forceinline__ float largest_magnitude(const Row<S>& row) {
    return fmaxf(row.max([](float v, int) { return fabsf(v); }), 0.0f);
}

// The same, but infinity where there is a NaN.
template <class S>
__device__ __forceinline__ float largest_or_infinity(const Row<S>& row) {
    float part[4] = {};
    row.each([&](float v, int k) { part[k % 4] = max_NaN_f32(part[k % 4], fabsf(v)); });
    const float largest = max_NaN_f32(max_NaN_f32(part[0], part[1]), max_NaN_f32(part[2], part[3]));
    return largest <= infinity() ? largest : infinity();
}

// Stores the row, quantized, and its scale. `standard` is NaN when the row's statistics are.
template <int CACHE, class S>
__device__ __forceinline__ void finish_quantized(const Place<S>& place, signed char* q, float* scales, const Row<S>& row,
                                                 float standard, RowRecords<float, S, 2>& slots) {
    const float largest = row_max(largest_or_infinity(row), slots, 0);
    Quantizer quantizer(largest, standard);
    if (any_row<S>(largest == infinity())) {
        quantizer = Quantizer(row_max(largest_magnitude(row), slots, 1), standard);
        store_quantized<CACHE>(place, q, row, quantizer, quantizer);
    } else {
        store_quantized<CACHE>(place, q, row, quantizer, quantizer.inverse);
    }
    if (place.cols && place.thread == 0) scales[place.row] = quantizer.scale;
}

// With PREFETCH_WEIGHTS gamma and beta are on their way before the row's sums are made. Without, they come from L1 when the row is ready, the
// first two vectors of a thread a little earlier, and their registers hold more rows instead. NO_EARLY_LAUNCH: see follow_previous_grid. FULL_TILE:
// a row a CTA or cluster, of as many columns as their registers hold, so that no vector is asked whether it is there.
template <class T, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, row_ctas<T, Tile, Tile::PREFETCH_WEIGHTS ? 3 : 2, sizeof(T) == 4 && !Tile::PREFETCH_WEIGHTS ? 8 : 32>)
layernorm_quantize_vectorized(const T* x, const T* gamma, const T* beta, signed char* q, float* scales, int rows, int cols,
                              float eps) {
    using S = typename Tile::template Shape<T>;
    __shared__ StandardizeSlots<S> slots;
    __shared__ RowRecords<float, S, 2> largest_slots;
    Place<S> place(rows, cols, aligned16(x, gamma, beta) && (reinterpret_cast<size_t>(q) & (S::WIDTH - 1)) == 0);
    if constexpr (Tile::FULL_TILE) place.assume_full_tile();
    row_arrive<S, Tile::NO_EARLY_LAUNCH>();
    Row<S> row = place.template load<Tile::CACHE>(x), weight, bias;
    auto load_weights = [&] { weight = place.load_shared(gamma), bias = place.load_shared(beta); };
    constexpr bool behind = S::elements <= 16 && sizeof(T) == 4;  // behind x; else the registers would hold fewer rows
    if constexpr (Tile::PREFETCH_WEIGHTS && !behind) load_weights();
    row_wait<S>();
    auto finished = [](float v, float weight, float bias) { return fmaf(v, weight, bias); };
    Statistics statistics;
    if constexpr (Tile::PREFETCH_WEIGHTS || !Tile::FULL_TILE) {
        statistics = standardize(row, place, eps, slots, [&] {
            if constexpr (Tile::PREFETCH_WEIGHTS && behind) load_weights();
        });
        if constexpr (Tile::PREFETCH_WEIGHTS) row.each([&](float& v, int k) { v = finished(v, weight[k], bias[k]); });
        else place.apply(row, finished, gamma, beta);
    } else {
        const auto weights = place.template begin_shared<2>(gamma), biases = place.template begin_shared<2>(beta);
        statistics = standardize(row, place, eps, slots);
        place.apply(row, finished, weights, biases);
    }
    finish_quantized<Tile::CACHE>(place, q, scales, row, statistics.rstd, largest_slots);
}

// The same by CTAs that stay: STAGES rows are on their way while one is computed; SMEM_VECTORS vectors of gamma and beta a thread wait in
// shared memory. An SM holds CTAS_PER_SM CTAs.
template <class T, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, Tile::CTAS_PER_SM)
layernorm_quantize_pipelined(const T* x, const T* gamma, const T* beta, signed char* q, float* scales, int rows, int cols,
                             float eps) {
    using S = typename Tile::template Shape<T>;
    __shared__ StandardizeSlots<S> slots;
    __shared__ RowRecords<float, S, 2> largest_slots;
    const Ahead<T, S, 1, Tile::STAGES, Tile::CACHE> ahead;
    const Place<S> place(rows, cols, aligned16(x, gamma, beta) && (reinterpret_cast<size_t>(q) & (S::WIDTH - 1)) == 0);
    const Weights<T, S, 2, Tile::SMEM_VECTORS> weights(ahead.behind());
    row_arrive<S>();
    auto started = [&] {
        weights.begin(place.any(cols), gamma, beta);
        row_wait<S>();
    };
    auto compute = [&](const Place<S>& place, Row<S>& row, unsigned, const More<T, S, Tile::STAGES, Tile::CACHE>& more) {
        const Statistics statistics = standardize(row, place, eps, slots);
        more();
        weights.apply(place, row, [](float v, float weight, float bias) { return fmaf(v, weight, bias); }, gamma, beta);
        finish_quantized<Tile::CACHE>(place, q, scales, row, statistics.rstd, largest_slots);
    };
    rows_ahead(ahead, place, rows, cols, x, 0.0f, started, compute);
}

// A row of any length, by a cluster: it waits in shared memory for its statistics and its largest magnitude, or is read thrice.
template <class T, int THREADS, int VECTORS, int CTAS, bool STAGED>
__global__ void __launch_bounds__(THREADS)
layernorm_quantize_streamed(const T* x, const T* gamma, const T* beta, signed char* q, float* scales, int rows, int cols,
                            float eps) {
    using S = RowShape<THREADS, THREADS, VECTORS, CTAS, vector_width<T>>;
    __shared__ RowRecords<double, S, 2> slots;
    __shared__ RowRecords<float, S> largest_slots;
    const Place<S> place(rows, cols, aligned16(x, gamma, beta) && (reinterpret_cast<size_t>(q) & (S::WIDTH - 1)) == 0);
    const Staged<T, S, STAGED> staged;
    row_arrive<S>();
    staged.begin(place, x);
    row_wait<S>();
    const PartsStatistics statistics = statistics_in_parts<CACHE_KEEP>(x, place, eps, slots, staged);
    auto finish = [&](Row<S>& row, const Place<S>& part, unsigned begin) {
        statistics.standardize(row);
        part.pad(row, 0.0f);
        part.apply(row, [](float v, float weight, float bias) { return fmaf(v, weight, bias); }, gamma + begin, beta + begin);
    };
    float largest = 0;
    forward_parts<S>(cols, [&](unsigned begin) {
        const Place<S> part = place.part(begin);
        Row<S> row = staged.template again<CACHE_KEEP>(part, begin, x);
        finish(row, part, begin);
        largest = fmaxf(largest, largest_magnitude(row));
    });
    const Quantizer quantizer(row_max(largest, largest_slots), static_cast<float>(statistics.rstd));
    backward_parts<S>(cols, [&](unsigned begin) {
        const Place<S> part = place.part(begin);
        Row<S> row = staged.template again<CACHE_ONCE>(part, begin, x);
        finish(row, part, begin);
        store_quantized<CACHE_STREAM>(part, q, row, quantizer, quantizer);
    });
    if (place.thread == 0) scales[place.row] = quantizer.scale;
}
