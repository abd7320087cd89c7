// Layer normalization, then quantization to int8 with one scale per row: v = (x[r, :] - mean) * rstd * gamma + beta,
// scales[r] = max(|v|) / 127, q[r, :] = round(v / scales[r]), ties to even; rows contiguous, x in f32, f16 or bf16. A
// row whose v are all 0 has scale 0 and zeros; a row whose statistics are NaN has scale NaN and zeros.
//
// Variants:
// - unfused: mean, rstd, normalize and affine of layernorm.cu, then `row_scales` and `quantize_rows`; nine passes over
//   device memory.
// - `layernorm_quantize_fused`: the same arithmetic in one read and one write of a quarter of the bytes, with bit-
//   identical results.
// - `layernorm_quantize_vectorized`: rows in registers, 128-bit accesses, two barriers.
// - `layernorm_quantize_pipelined`: persistent CTAs; the TMA unit copies the next rows during the computation.
// - `layernorm_quantize_streamed`: rows that no cluster's registers hold stay in shared memory between passes.
#include "ptxkit/rows/normalize.cuh"
#include "ptxkit/rows/row_pipeline.cuh"

using namespace ptxkit;

// The scale of a row and its inverse.
struct Quantizer {
    float scale, inverse;

    // `standard` is NaN if the row's statistics are. The inverse of a scale below 2^-128 overflows f32 and is replaced
    // by the largest f32, so that the results of such a row are too small.
    __device__ __forceinline__ Quantizer(float largest, float standard)
        : scale(standard == standard ? largest * (1.0f / 127.0f) : standard),
          inverse(fminf(127.0f / largest, 3.4028235e38f)) {}

    // The result is -127 to 127. NaN becomes 0, as in a conversion to an integer.
    __device__ __forceinline__ int operator()(float v) const { return __float2int_rn(v * inverse); }
};

// ---------------------------------------------------------------------------------------------------------------------
// fused, and the last two of the six unfused launches

// One CTA per row. With KEEP the row, and then its normalized values, stay in dynamic shared memory (4 bytes per
// column); without, rows too long for shared memory are read again, mostly from L2.
template <class T, int THREADS, bool KEEP>
__global__ void __launch_bounds__(THREADS) layernorm_quantize_fused(const T* x, const T* gamma, const T* beta,
                                                                    signed char* q, float* scales, int cols,
                                                                    float eps) {
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
__global__ void __launch_bounds__(THREADS) row_scales(const float* v, const double* rstds, float* largest,
                                                      float* scales, int cols) {
    v += static_cast<size_t>(blockIdx.x) * cols;
    const float found = column_max<THREADS>(cols, [&](unsigned c) { return fmaxf(fabsf(v[c]), 0.0f); });
    if (threadIdx.x == 0) {
        largest[blockIdx.x] = found;
        scales[blockIdx.x] = Quantizer(found, static_cast<float>(rstds[blockIdx.x])).scale;
    }
}

template <int THREADS, int ELEMENTS>
__global__ void __launch_bounds__(THREADS) quantize_rows(const float* v, const float* largest, signed char* q,
                                                         int cols) {
    each_element<THREADS, ELEMENTS>(cols, [&](unsigned row, unsigned c) {
        const size_t i = static_cast<size_t>(row) * cols + c;
        q[i] = Quantizer(largest[row], 0.0f)(v[i]);
    });
}

// ---------------------------------------------------------------------------------------------------------------------
// vectorized

// Quantizes four columns to the bytes of a word, if `largest` is finite. 1.5 * 2^23 + q, rounded to even, has q in its
// lowest byte; this takes one fma, where a conversion would take the unit with the lowest throughput. NaN would give
// -1, hence the condition.
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
__device__ __forceinline__ void store_quantized(const RowLayout<S>& layout, signed char* matrix, const Row<S>& row,
                                                const Quantizer& quantizer, const With& with) {
    if (layout.vectors) {
        signed char* q = matrix + layout.first - layout.head;
#pragma unroll
        for (int i = 0; i < S::VECTORS; i++) {
            if constexpr (S::WIDTH == 2) {
                const float four[4] = {row.v[i][0], row.v[i][1], 0.0f, 0.0f};
                const auto word = static_cast<unsigned short>(quantized_word(four, with));
                if (layout.is_whole(i)) *reinterpret_cast<unsigned short*>(q + layout.vector_at(i)) = word;
            } else {
                unsigned words[S::WIDTH / 4];
#pragma unroll
                for (int j = 0; j < S::WIDTH; j += 4) words[j / 4] = quantized_word(&row.v[i][j], with);
                if (layout.is_whole(i)) store_words<CACHE>(q + layout.vector_at(i), words);
            }
        }
        layout.each_single(row, [&](size_t i, float v) { q[i] = quantizer(v); });
    } else {
        typename RowLayout<S>::template SingleColumns<signed char> q(matrix + layout.first + layout.thread);
#pragma unroll
        for (int k = 0; k < S::elements; k++, q.advance()) {
            if (k < layout.valid) q[k] = quantizer(row[k]);
        }
    }
}

// The largest magnitude. Padding must be 0. NaN is ignored.
template <class S>
__device__ __forceinline__ float largest_magnitude(const Row<S>& row) {
    return fmaxf(row.max([](float v, int) { return fabsf(v); }), 0.0f);
}

// The same, but infinity if a column is NaN.
template <class S>
__device__ __forceinline__ float largest_or_infinity(const Row<S>& row) {
    float part[4] = {};
    row.each([&](float v, int k) { part[k % 4] = max_NaN_f32(part[k % 4], fabsf(v)); });
    const float largest = max_NaN_f32(max_NaN_f32(part[0], part[1]), max_NaN_f32(part[2], part[3]));
    return largest <= infinity() ? largest : infinity();
}

// Quantizes and stores the row and its scale. `standard` is NaN if the row's statistics are.
template <int CACHE, class S>
__device__ __forceinline__ void finish_quantized(const RowLayout<S>& layout, signed char* q, float* scales,
                                                 const Row<S>& row, float standard, RowRecords<float, S, 2>& slots) {
    const float largest = row_max(largest_or_infinity(row), slots, 0);
    Quantizer quantizer(largest, standard);
    if (any_row<S>(largest == infinity())) {
        quantizer = Quantizer(row_max(largest_magnitude(row), slots, 1), standard);
        store_quantized<CACHE>(layout, q, row, quantizer, quantizer);
    } else {
        store_quantized<CACHE>(layout, q, row, quantizer, quantizer.inverse);
    }
    if (layout.cols && layout.thread == 0) scales[layout.row] = quantizer.scale;
}

// With PREFETCH_WEIGHTS, gamma and beta are requested before the row's sums are known. Without, they are read from L1
// after the sums (with FULL_TILE the first two vectors of a thread a little earlier), and more CTAs are resident
// because fewer registers are used.
template <class T, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, row_ctas<T, Tile, Tile::PREFETCH_WEIGHTS ? 3 : 1>)
layernorm_quantize_vectorized(const T* x, const T* gamma, const T* beta, signed char* q, float* scales, int rows,
                              int cols, float eps) {
    using S = typename Tile::template Shape<T>;
    __shared__ StandardizeSlots<S> slots;
    __shared__ RowRecords<float, S, 2> largest_slots;
    RowLayout<S> layout(rows, cols, aligned16(x, gamma, beta) && (reinterpret_cast<size_t>(q) & (S::WIDTH - 1)) == 0);
    if constexpr (Tile::FULL_TILE) layout.assume_full_tile();
    if constexpr (Tile::PREFETCH_L2) layout.request(x);
    layout.request_shared(gamma, beta);
    row_arrive<S, Tile::NO_EARLY_LAUNCH>();
    Row<S> row = layout.template load<Tile::CACHE>(x), weight, bias;
    auto load_weights = [&] { weight = layout.load_shared(gamma), bias = layout.load_shared(beta); };
    // Whether the weights are requested after x has arrived: only where a thread has registers for both.
    constexpr bool weights_after_x = S::elements <= 16 && sizeof(T) == 4;
    if constexpr (Tile::PREFETCH_WEIGHTS && !weights_after_x) load_weights();
    row_wait<S>();
    auto finished = [](float v, float weight, float bias) { return fmaf(v, weight, bias); };
    Statistics statistics;
    if constexpr (Tile::PREFETCH_WEIGHTS || !Tile::FULL_TILE) {
        statistics = standardize(row, layout, eps, slots, [&] {
            if constexpr (Tile::PREFETCH_WEIGHTS && weights_after_x) load_weights();
        });
        if constexpr (Tile::PREFETCH_WEIGHTS) row.each([&](float& v, int k) { v = finished(v, weight[k], bias[k]); });
        else layout.apply(row, finished, gamma, beta);
    } else {
        const auto weights = layout.template prefetch_shared<2>(gamma),
                   biases = layout.template prefetch_shared<2>(beta);
        statistics = standardize(row, layout, eps, slots);
        layout.apply(row, finished, weights, biases);
    }
    finish_quantized<Tile::CACHE>(layout, q, scales, row, statistics.rstd, largest_slots);
}

// The same with persistent CTAs: see row_pipeline.cuh.
template <class T, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, Tile::CTAS_PER_SM) layernorm_quantize_pipelined(
    const T* x, const T* gamma, const T* beta, signed char* q, float* scales, int rows, int cols, float eps) {
    using S = typename Tile::template Shape<T>;
    __shared__ StandardizeSlots<S> slots;
    __shared__ RowRecords<float, S, 2> largest_slots;
    const RowPipeline<T, S, 1, Tile::STAGES, Tile::CACHE> pipeline;
    const RowLayout<S> layout(rows, cols,
                              aligned16(x, gamma, beta) && (reinterpret_cast<size_t>(q) & (S::WIDTH - 1)) == 0);
    const Weights<T, S, 2, Tile::SMEM_VECTORS> weights(pipeline.after_stages());
    row_arrive<S>();
    auto started = [&] {
        weights.begin(layout.any(cols), gamma, beta);
        row_wait<S>();
    };
    auto compute = [&](const RowLayout<S>& layout, Row<S>& row, unsigned,
                       const FetchNext<T, S, Tile::STAGES, Tile::CACHE>& fetch_next) {
        const Statistics statistics = standardize(row, layout, eps, slots);
        fetch_next();
        weights.apply(
            layout, row, [](float v, float weight, float bias) { return fmaf(v, weight, bias); }, gamma, beta);
        finish_quantized<Tile::CACHE>(layout, q, scales, row, statistics.rstd, largest_slots);
    };
    pipelined_rows(pipeline, layout, rows, cols, x, 0.0f, started, compute);
}

// A row of any length, computed by a cluster. It stays in shared memory between the passes for statistics, largest
// magnitude and result, or is read three times.
template <class T, int THREADS, int VECTORS, int CTAS, bool STAGED>
__global__ void __launch_bounds__(THREADS) layernorm_quantize_streamed(const T* x, const T* gamma, const T* beta,
                                                                       signed char* q, float* scales, int rows,
                                                                       int cols, float eps) {
    using S = RowShape<THREADS, THREADS, VECTORS, CTAS, vector_width<T>>;
    __shared__ RowRecords<double, S, 2> slots;
    __shared__ RowRecords<float, S> largest_slots;
    const RowLayout<S> layout(rows, cols,
                              aligned16(x, gamma, beta) && (reinterpret_cast<size_t>(q) & (S::WIDTH - 1)) == 0);
    const Staged<T, S, STAGED> staged;
    row_arrive<S>();
    staged.begin(layout, x);
    row_wait<S>();
    const ChunkedStatistics statistics = chunked_statistics<CACHE_KEEP>(x, layout, eps, slots, staged);
    auto finish = [&](Row<S>& row, const RowLayout<S>& chunk, unsigned begin) {
        statistics.standardize(row);
        chunk.pad(row, 0.0f);
        chunk.apply(
            row, [](float v, float weight, float bias) { return fmaf(v, weight, bias); }, gamma + begin, beta + begin);
    };
    float largest = 0;
    forward_chunks<S>(cols, [&](unsigned begin) {
        const RowLayout<S> chunk = layout.chunk(begin);
        Row<S> row = staged.template again<CACHE_KEEP>(chunk, begin, x);
        finish(row, chunk, begin);
        largest = fmaxf(largest, largest_magnitude(row));
    });
    const Quantizer quantizer(row_max(largest, largest_slots), static_cast<float>(statistics.rstd));
    backward_chunks<S>(cols, [&](unsigned begin) {
        const RowLayout<S> chunk = layout.chunk(begin);
        Row<S> row = staged.template again<CACHE_ONCE>(chunk, begin, x);
        finish(row, chunk, begin);
        store_quantized<CACHE_STREAM>(chunk, q, row, quantizer, quantizer);
    });
    if (layout.thread == 0) scales[layout.row] = quantizer.scale;
}
