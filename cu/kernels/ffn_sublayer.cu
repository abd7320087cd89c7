// Feed-forward sub-layer: out = residual + gelu(layer_norm(x) w^T + bias), where x is m x k, w is n x k, out and
// residual are m x n, all row-major with rows of a multiple of 16 bytes, in bf16 or f16, sums in f32. layer_norm has
// gamma and beta of k elements; gelu is the tanh formula.
//
// Variants, each with one idea more than the one before; docs/ffn.md has the derivations:
//
// - unfused: eight launches, one for each operation.
// - row_kernels: a row kernel normalizes x, and a product adds bias, gelu and residual in its epilogue. By mma.sync
//     (`ffn_product_mma`) or by wgmma (`ffn_product_wgmma`).
// - row_kernels_swapped, `ffn_normalize` and `ffn_product_swapped`: for few rows, whose time is that of reading the
//     weights. The product has them as its first operand, and loads the first of them while the rows are normalized.
//     row_kernels_early, `ffn_product_early`: the same with the product of row_kernels. row_kernels_multicast,
//     `ffn_product_multicast`: the same with clusters whose CTAs load both operands for each other.
// - folded: x is multiplied as it is. gamma is part of the weights (`ffn_fold`, once for each model), and the
//     epilogue corrects each sum by the row's mean and standard deviation (`ffn_statistics`), so that the normalized
//     x is neither stored nor read. By wgmma, the products do not wait for the statistics, only the epilogue does.
// - folded_one_launch, `ffn_folded_observed`: two warps of the producer's warpgroup read the tiles of x that the
//     product has in shared memory anyway, and sum the statistics during the products.
// - cluster, `ffn_few_rows`: one launch for few rows. The CTAs of a cluster divide k, and exchange the statistics of
//     the rows and the sums through distributed shared memory.
#include "ptxkit/gemm/linear_output.cuh"
#include "ptxkit/gemm/mma_product.cuh"
#include "ptxkit/gemm/multicast_product.cuh"
#include "ptxkit/gemm/row_statistics.cuh"
#include "ptxkit/gemm/swapped_product.cuh"
#include "ptxkit/gemm/wgmma_product.cuh"
#include "ptxkit/rows/normalize.cuh"

using namespace ptxkit;

template <class T>
using ResidualOutput = LinearOutput<T, true, GELU, true>;

// ---------------------------------------------------------------------------------------------------------------------
// row_kernels: the product with a fused epilogue, for rows that layernorm.cu has normalized

template <class T, class S>
__global__ void __launch_bounds__(S::threads) ffn_product_mma(const T* x, const T* w, const T* bias, const T* residual,
                                                              T* out, int m, int n, int k) {
    const ResidualOutput<T> output{out, bias, residual, unsigned(m), unsigned(n)};
    mma_product<T, S, true, true>(x, w, output, m, n, k);
}

template <class Tile, class T>
__global__ void __launch_bounds__(128 * (Tile::CONSUMERS + 1), 1) ffn_product_wgmma(
    const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap w_map,
    const __grid_constant__ TensorMap out_map, const T* bias, const T* residual, T* out, int m, int n, int k) {
    const ResidualOutput<T> output{out, bias, residual, unsigned(m), unsigned(n)};
    wgmma_product<Tile, T>(x_map, w_map, out_map, output, m, n, k);
}

// ---------------------------------------------------------------------------------------------------------------------
// row_kernels_swapped and row_kernels_early: few rows

// Normalizes rows as layernorm.cu does, which launches the next grid before it waits for the previous one. Here it is the
// other way round, so that the product may read the weights before its own wait. With 36 registers beside those of the row,
// as in layernorm.cu, a row of 64 columns a thread spills some with NVRTC 13.0.
template <class T, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, row_ctas<T, Tile, 1, 40>) ffn_normalize(const T* x, const T* gamma,
                                                                                         const T* beta, T* y, int rows,
                                                                                         int cols, float eps) {
    using S = typename Tile::template Shape<T>;
    __shared__ StandardizeSlots<S> slots;
    const RowLayout<S> layout(rows, cols, aligned16(x, gamma, beta, y));
    row_arrive_later<S>();
    Row<S> row = layout.template load<Tile::CACHE>(x);
    row_wait<S>();
    standardize(row, layout, eps, slots);
    layout.apply(row, [](float v, float weight, float shift) { return fmaf(v, weight, shift); }, gamma, beta);
    layout.template store<Tile::CACHE>(y, row);
}

template <class Tile, class T, class Of>
__global__ void __launch_bounds__(128 * Tile::CONSUMERS + 32) ffn_product_swapped(
    const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap w_map, const T* bias, const T* residual,
    T* out, int m, int n, int k, unsigned stages, unsigned sharing) {
    const ResidualOutput<T> output{out, bias, residual, unsigned(m), unsigned(n)};
    swapped_product<Tile, T, Of, true>(x_map, w_map, output, m, n, k, stages, sharing);
}

template <class Tile, class T>
__global__ void __launch_bounds__(Tile::ALL_THREADS) ffn_product_multicast(
    const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap w_map, const T* bias, const T* residual, T* out,
    unsigned m, unsigned n, unsigned a_sharing, unsigned b_sharing, unsigned parts, unsigned across, unsigned of_product,
    unsigned steps, unsigned stages) {
    LinearVectors<T, true, GELU, true> output{{{out, bias, residual, m, n}}};
    const MulticastGrid grid = {a_sharing, b_sharing, parts, across, of_product};
    multicast_products<Tile, T, Operands<K_MAJOR, K_MAJOR>, 1, Follow::WEIGHTS_FIRST>(x_map, w_map, w_map, output, grid, steps, stages);
}

// Requests the residual of a tile before its products.
template <class T>
struct ResidualFirst : NoHooks {
    static constexpr bool REQUESTS = true;
    const T* residual;
    unsigned m, n;

    __device__ __forceinline__ ResidualFirst(const T* residual, unsigned m, unsigned n) : residual(residual), m(m), n(n) {}
    template <int ROWS, int COLS>
    __device__ __forceinline__ void request(unsigned row, unsigned col) const {
        request_elements<ROWS, COLS, 128>(residual, row, col, m, n, threadIdx.x % 128);
    }
};

template <class T>
struct EarlyWeights : ResidualFirst<T> {
    using ResidualFirst<T>::ResidualFirst;
    static constexpr bool EARLY = true;
};

template <class Tile, class T>
__global__ void __launch_bounds__(128 * (Tile::CONSUMERS + 1), 1) ffn_product_early(
    const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap w_map,
    const __grid_constant__ TensorMap out_map, const T* bias, const T* residual, T* out, int m, int n, int k) {
    const ResidualOutput<T> output{out, bias, residual, unsigned(m), unsigned(n)};
    wgmma_product<Tile, T>(x_map, w_map, out_map, output, m, n, k, EarlyWeights<T>(residual, m, n));
}

// ---------------------------------------------------------------------------------------------------------------------
// folded

// One CTA for each row of w: the row times gamma in T; the sum of these rounded products, which is what the product
// multiplies the row's mean by; and the constant part of the result. Sums are f64: they are computed once.
template <class T, int THREADS>
__global__ void __launch_bounds__(THREADS) ffn_fold(const T* w, const T* gamma, const T* beta, const T* bias, T* folded,
                                                    float* sums, float* shift, int k) {
    w += static_cast<size_t>(blockIdx.x) * k;
    folded += static_cast<size_t>(blockIdx.x) * k;
    const double sum = column_sum<THREADS>(k, [&](unsigned c) {
        const T product = Convert<T>::from_f32(to_f32(w[c]) * to_f32(gamma[c]));
        folded[c] = product;
        return to_f32(product);
    });
    const double constant =
        column_sum<THREADS>(k, [&](unsigned c) { return static_cast<double>(to_f32(w[c])) * to_f32(beta[c]); });
    if (threadIdx.x == 0) {
        sums[blockIdx.x] = static_cast<float>(sum);
        shift[blockIdx.x] = static_cast<float>(constant + to_f32(bias[blockIdx.x]));
    }
}

// Mean and rstd of each row. The next grid may start when all grids before this one have completed, so that it multiplies meanwhile.
template <class T, class Tile>
__global__ void __launch_bounds__(Tile::THREADS, row_ctas<T, Tile, 1>) ffn_statistics(const T* x, float2* statistics,
                                                                                      int rows, int cols, float eps) {
    using S = typename Tile::template Shape<T>;
    __shared__ StandardizeSlots<S> slots;
    const RowLayout<S> layout(rows, cols, aligned16(x));
    row_arrive_later<S>();
    Row<S> row = layout.template load<Tile::CACHE>(x);
    row_wait<S>();
    const Statistics of_row = standardize(row, layout, eps, slots);
    if (layout.cols && layout.thread == 0) statistics[layout.row] = make_float2(of_row.mean, of_row.rstd);
}

template <class T, class S>
__global__ void __launch_bounds__(S::threads) ffn_folded_mma(const T* x, const T* folded, const float2* statistics,
                                                             const float* sums, const float* shift, const T* residual,
                                                             T* out, int m, int n, int k) {
    const FoldedOutput<T> output(out, residual, statistics, {sums, shift}, m, n);
    mma_product<T, S, true, true>(x, folded, output, m, n, k);
}

// The products need nothing of the statistics, which the epilogue waits for.
template <class T>
struct LateStatistics : ResidualFirst<T> {
    using ResidualFirst<T>::ResidualFirst;
    static constexpr bool LATE = true;
};

template <class Tile, class T>
__global__ void __launch_bounds__(128 * (Tile::CONSUMERS + 1), 1) ffn_folded_wgmma(
    const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap folded_map,
    const __grid_constant__ TensorMap out_map, const float2* statistics, const float* sums, const float* shift,
    const T* residual, T* out, int m, int n, int k) {
    const FoldedOutput<T> output(out, residual, statistics, {sums, shift}, m, n);
    wgmma_product<Tile, T>(x_map, folded_map, out_map, output, m, n, k, LateStatistics<T>(residual, m, n));
}

// The same in one launch: two warps take the statistics from the tiles of x.
template <class Tile, class T>
__global__ void __launch_bounds__(128 * (Tile::CONSUMERS + 1), 1) ffn_folded_observed(
    const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap folded_map,
    const __grid_constant__ TensorMap out_map, const float* sums, const float* shift, const T* residual, T* out,
    float eps, int m, int n, int k) {
    const LinearOutput<T, false, GELU, true> output{out, nullptr, residual, unsigned(m), unsigned(n)};
    const ObservedRows<T, Tile> rows{{sums, shift}, unsigned(n), 1.0f / k, eps};
    wgmma_product<Tile, T>(x_map, folded_map, out_map, output, m, n, k, rows);
}

// ---------------------------------------------------------------------------------------------------------------------
// cluster: one launch for few rows, which the weights' bytes limit
//
// A cluster computes ROWS rows x BN columns of out, and each of its CTAs has a part of k: of x, which stays in shared
// memory, and of the weights, which it reads once, through a ring. The CTAs exchange the statistics of their parts of
// each row, normalize their parts of x in place, multiply, and add their sums of each element in the CTA that stores
// it, always in the same order. The weights are the first operand of the products, 64 columns of out at a time, and x
// the second one, which may have as few as 8 rows.

// Tile parameters of ffn_few_rows. The description gives them by name (FewRowsTile in
// ptxkit/kernels/ffn/few_rows.py).
template <int BN_, int CONSUMERS_, int STAGES_, int CTAS_, int ROWS_>
struct FewRowsTile {
    static constexpr int BN = BN_;                // columns of out of a cluster
    static constexpr int CONSUMERS = CONSUMERS_;  // warpgroups that multiply
    static constexpr int STAGES = STAGES_;        // of the ring of weights
    static constexpr int CTAS = CTAS_;            // of a cluster
    static constexpr int ROWS = ROWS_;            // rows of a cluster
};

// The shared memory of a CTA as byte offsets. The sums that other CTAs send replace x and the weights, when all CTAs
// have multiplied them.
template <class Tile>
struct FewRowsLayout {
    static constexpr int stage_rows = 64 * Tile::CONSUMERS, stage_bytes = stage_rows * WGMMA_ROW_BYTES;
    static constexpr int x_bytes = Tile::ROWS * WGMMA_ROW_BYTES;  // of a tile of x
    static constexpr int columns = Tile::BN / Tile::CTAS;         // of out that a CTA stores
    static constexpr int received_bytes = Tile::ROWS * Tile::BN * 4;
    unsigned ring, records, full, empty, x_arrived, statistics, multiplied, received;

    __device__ __forceinline__ explicit FewRowsLayout(unsigned tiles) {
        ring = tiles * x_bytes;
        records = max(ring + Tile::STAGES * stage_bytes, static_cast<unsigned>(received_bytes));
        full = records + Tile::CTAS * Tile::ROWS * 8;
        empty = full + 8 * Tile::STAGES;
        x_arrived = empty + 8 * Tile::STAGES;
        statistics = x_arrived + 8;
        multiplied = statistics + 8;
        received = multiplied + 8;
    }
};

// The rows and columns of x that a lane has while a CTA normalizes its part of x: LANES lanes share a row, each has a
// 16-byte vector of 8 columns in every STEP-th tile, and WARPS warps have the next rows in each of PASSES passes. Few
// lanes for a row let a warp reduce several rows at the same time; more of them would leave lanes without columns
// where a CTA has few tiles.
template <class Tile>
struct FewRowsLanes {
    static constexpr int WARPS = 4 * Tile::CONSUMERS, shared_by = 32 * WARPS / Tile::ROWS;
    static constexpr int LANES = shared_by < 8 ? 8 : shared_by > 32 ? 32 : shared_by, STEP = LANES / 8;
    static constexpr int rows_of_pass = 32 / LANES * WARPS, PASSES = (Tile::ROWS + rows_of_pass - 1) / rows_of_pass;
    unsigned first_row, chunk, first_tile;

    __device__ __forceinline__ FewRowsLanes(unsigned warp, unsigned lane)
        : first_row(32 / LANES * warp + lane / LANES), chunk(lane % 8 * 8), first_tile(lane % LANES / 8) {}

    __device__ __forceinline__ unsigned row(int pass) const { return first_row + pass * rows_of_pass; }
    // The vector of a row in a tile, from the begin of x.
    __device__ __forceinline__ unsigned offset(unsigned r, unsigned tile) const {
        return tile * FewRowsLayout<Tile>::x_bytes + swizzled<WGMMA_ROW_BYTES>(r * WGMMA_ROW_BYTES + chunk * 2);
    }
};

template <class Tile, class T>
__global__ void __launch_bounds__(128 * (Tile::CONSUMERS + 1), 1) ffn_few_rows(
    const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap w_map, const T* gamma, const T* beta,
    const T* bias, const T* residual, T* out, float eps, int m, int n, int k) {
    constexpr int BN = Tile::BN, CONSUMERS = Tile::CONSUMERS, STAGES = Tile::STAGES, CTAS = Tile::CTAS;
    constexpr int ROWS = Tile::ROWS, WARPS = 4 * CONSUMERS;
    using L = FewRowsLayout<Tile>;
    constexpr int PARTS = BN / L::stage_rows;  // stages for each tile of x
    static_assert(PARTS * L::stage_rows == BN && PARTS * ROWS / 2 <= 128, "a thread holds at most 128 sums");
    static_assert(CTAS >= 2 && CTAS <= 16 && L::columns % 2 == 0, "pairs of columns for each CTA");
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned base = cvta_to_shared(shared), rank = cluster_ctarank(), lane = laneid();
    const unsigned warp = shfl_sync_idx(all_lanes, threadIdx.x / 32, 0);
    const unsigned all_tiles = (k - 1) / WGMMA_BK + 1, share = (all_tiles - 1) / CTAS + 1;
    const L at(share);
    // The tiles along k of a CTA, and the columns of x in them.
    auto tiles_of = [&](unsigned cta) { return min(max(int(all_tiles - cta * share), 0), int(share)); };
    auto columns_of = [&](unsigned cta) { return min(max(int(k - cta * share * WGMMA_BK), 0), int(share * WGMMA_BK)); };
    const unsigned tiles = tiles_of(rank), first = rank * share * WGMMA_BK;
    const unsigned row = blockIdx.y * ROWS, col = blockIdx.x / CTAS * BN, rows = min(m - row, unsigned(ROWS));

    if (threadIdx.x == 0) {
        prefetch_tensormap(x_map);
        prefetch_tensormap(w_map);
        mbarrier_init(base + at.x_arrived, 1);
        mbarrier_init(base + at.statistics, 1);
        mbarrier_init(base + at.multiplied, CTAS * WARPS);
        mbarrier_init(base + at.received, 1);
        init_ring<STAGES>(base + at.full, 1, base + at.empty, WARPS);
    }
    barrier_cluster_arrive_release();
    barrier_cluster_wait_acquire();
    follow_previous_grid();

    Ring<STAGES> stage;
    if (warp < 4) {
        if (warp == 0 && elect_sync(all_lanes)) {
            mbarrier_arrive_expect_tx(base + at.x_arrived, tiles * L::x_bytes);
            for (unsigned i = 0; i < tiles; i++) {
                cp_async_bulk_tensor_2d_shared_global(base + i * L::x_bytes, x_map, first + i * WGMMA_BK, row,
                                                      base + at.x_arrived);
            }
            for (unsigned i = 0; i < tiles; i++) {
                for (unsigned part = 0; part < PARTS; part++) {
                    const unsigned full = base + at.full + 8 * stage.stage;
                    mbarrier_wait(base + at.empty + 8 * stage.stage, stage.parity ^ 1);
                    mbarrier_arrive_expect_tx(full, L::stage_bytes);
                    cp_async_bulk_tensor_2d_shared_global(base + at.ring + stage.stage * L::stage_bytes, w_map,
                                                          first + i * WGMMA_BK, col + part * L::stage_rows, full);
                    stage.advance();
                }
            }
        }
        return;
    }
    const unsigned thread = threadIdx.x - 128, consumer = warp / 4 - 1, own = warp - 4;

    // The statistics of this CTA's part of each row go to all CTAs: mean and sum of squared deviations. All sums and
    // deviations of columns and rows that do not exist are 0, because TMA fills x with zeros there.
    using Lanes = FewRowsLanes<Tile>;
    constexpr int LANES = Lanes::LANES, PASSES = Lanes::PASSES;
    const Lanes part(own, lane);
    auto record = [&](unsigned cta, unsigned r) -> float2& {
        return reinterpret_cast<float2*>(shared + at.records)[cta * ROWS + r];
    };
    auto column_of = [&](unsigned tile) { return first + tile * WGMMA_BK + part.chunk; };
    // gamma and beta of this lane's columns in a tile, which all of its rows share; requested before they are used.
    uint4 next_scale = {}, next_shift = {};
    auto request_weights = [&](unsigned tile) {
        if (part.first_row >= rows || tile >= tiles || column_of(tile) >= k) return;
        next_scale = *reinterpret_cast<const uint4*>(gamma + column_of(tile));
        next_shift = *reinterpret_cast<const uint4*>(beta + column_of(tile));
    };
    if (thread == 0) mbarrier_arrive_expect_tx(base + at.statistics, CTAS * rows * 8);
    request_weights(part.first_tile);
    mbarrier_wait(base + at.x_arrived, 0);
    const float here = columns_of(rank);
    float mean[PASSES] = {}, squares[PASSES] = {};
    for (unsigned i = part.first_tile; i < tiles; i += Lanes::STEP) {
#pragma unroll
        for (int p = 0; p < PASSES; p++) {
            float v[8];
            if (part.row(p) < rows) load_eight<T>(v, shared + part.offset(part.row(p), i));
            else continue;
#pragma unroll
            for (int j = 0; j < 8; j++) mean[p] += v[j];
        }
    }
#pragma unroll
    for (int p = 0; p < PASSES; p++) mean[p] = here > 0.0f ? warp_sum<LANES>(mean[p]) / here : 0.0f;
    for (unsigned i = part.first_tile; i < tiles; i += Lanes::STEP) {
        if (column_of(i) >= k) break;
#pragma unroll
        for (int p = 0; p < PASSES; p++) {
            float v[8];
            if (part.row(p) < rows) load_eight<T>(v, shared + part.offset(part.row(p), i));
            else continue;
#pragma unroll
            for (int j = 0; j < 8; j++) squares[p] = fmaf(v[j] - mean[p], v[j] - mean[p], squares[p]);
        }
    }
#pragma unroll
    for (int p = 0; p < PASSES; p++) {
        squares[p] = warp_sum<LANES>(squares[p]);
        const unsigned r = part.row(p);
        if (r >= rows) continue;
        const float2 own_record = make_float2(mean[p], squares[p]);
        for (unsigned cta = lane % LANES; cta < CTAS; cta += LANES) {
            st_async_shared_cluster(mapa_shared_cluster(cvta_to_shared(&record(rank, r)), cta), own_record,
                                    mapa_shared_cluster(base + at.statistics, cta));
        }
    }
    mbarrier_wait(base + at.statistics, 0);
    float rstd[PASSES];
#pragma unroll
    for (int p = 0; p < PASSES; p++) {
        const unsigned r = part.row(p);
        float sum = 0.0f, deviations = 0.0f;
        for (unsigned cta = lane % LANES; cta < CTAS; cta += LANES) {
            if (r < rows) sum = fmaf(columns_of(cta), record(cta, r).x, sum);
        }
        mean[p] = warp_sum<LANES>(sum) / k;
        for (unsigned cta = lane % LANES; cta < CTAS; cta += LANES) {
            if (r >= rows) break;
            const float2 other = record(cta, r);
            deviations += fmaf(columns_of(cta) * (other.x - mean[p]), other.x - mean[p], other.y);
        }
        rstd[p] = inverse_sqrt(warp_sum<LANES>(deviations) / k + eps);
    }
    for (unsigned i = part.first_tile; i < tiles; i += Lanes::STEP) {
        if (column_of(i) >= k) break;
        float scale[8], shift[8];
        unpack_eight<T>(scale, next_scale);
        unpack_eight<T>(shift, next_shift);
        request_weights(i + Lanes::STEP);
#pragma unroll
        for (int p = 0; p < PASSES; p++) {
            if (part.row(p) >= rows) continue;
            unsigned char* x = shared + part.offset(part.row(p), i);
            float v[8];
            load_eight<T>(v, x);
            unsigned pairs[4];
#pragma unroll
            for (int j = 0; j < 8; j++) v[j] = fmaf((v[j] - mean[p]) * rstd[p], scale[j], shift[j]);
#pragma unroll
            for (int j = 0; j < 4; j++) pairs[j] = Convert<T>::pack(v[2 * j], v[2 * j + 1]);
            *reinterpret_cast<uint4*>(x) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
        }
    }
    fence_proxy_async_shared_cta();  // wgmma reads what was stored
    barrier_sync<1>(128 * CONSUMERS);

    float sums[PARTS][ROWS / 2];
    if (tiles == 0) {
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
#pragma unroll
            for (int i = 0; i < ROWS / 2; i++) sums[p][i] = 0.0f;
        }
    }
    unsigned previous = 0;
    for (unsigned i = 0; i < tiles; i++) {
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            const unsigned w = base + at.ring + stage.stage * L::stage_bytes + consumer * 64 * WGMMA_ROW_BYTES;
            mbarrier_wait(base + at.full + 8 * stage.stage, stage.parity);
            wgmma_fence();
#pragma unroll
            for (int q = 0; q < WGMMA_BK / 16; q++) {
                WgmmaOf<T>::template multiply<Operands<>>(sums[part], matrix_descriptor_128B(w + q * 32),
                                                          matrix_descriptor_128B(base + i * L::x_bytes + q * 32),
                                                          q > 0 || i > 0);
            }
            wgmma_commit_group();
            wgmma_wait_group<1>();  // the previous stage has been multiplied
            if (lane == 0 && (i > 0 || part > 0)) mbarrier_arrive(base + at.empty + 8 * previous);
            previous = stage.stage;
            stage.advance();
        }
    }
    wait_for_sums(sums);

    // When all CTAs have read their x and weights, the sums of each column go to the CTA that stores it, four rows at
    // a time: of two neighbouring lanes, the even one sends column c and the odd one column c + 8.
    __syncwarp();
    if (lane < CTAS) mbarrier_arrive_shared_cluster(mapa_shared_cluster(base + at.multiplied, lane));
    const unsigned fours = (rows + 3) / 4;
    if (thread == 0) mbarrier_arrive_expect_tx(base + at.received, CTAS * L::columns * fours * 16);
    mbarrier_wait(base + at.multiplied, 0);
    const bool odd = lane % 2;
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        const unsigned c = part * L::stage_rows + consumer * 64 + warp % 4 * 16 + lane / 4 + 8 * odd;
        const unsigned to = (rank * L::columns + c % L::columns) * ROWS;
#pragma unroll
        for (int j = 0; j < ROWS / 2; j += 4) {
            const float* d = &sums[part][j];
            const float x = shfl_sync_bfly(all_lanes, odd ? d[0] : d[2], 1);
            const float y = shfl_sync_bfly(all_lanes, odd ? d[1] : d[3], 1);
            const float4 four = odd ? make_float4(x, y, d[2], d[3]) : make_float4(d[0], d[1], x, y);
            const unsigned r = 2 * j + lane / 2 % 2 * 4;
            if (r < rows) {
                st_async_shared_cluster(mapa_shared_cluster(base + (to + r) * 4, c / L::columns), four,
                                        mapa_shared_cluster(base + at.received, c / L::columns));
            }
        }
    }
    mbarrier_wait(base + at.received, 0);
    const ResidualOutput<T> output{out, bias, residual, unsigned(m), unsigned(n)};
    const float* received = reinterpret_cast<const float*>(shared);
    for (unsigned i = thread; i < rows * (L::columns / 2); i += 128 * CONSUMERS) {
        const unsigned r = i / (L::columns / 2), c = i % (L::columns / 2) * 2;
        float x = 0.0f, y = 0.0f;
#pragma unroll
        for (int cta = 0; cta < CTAS; cta++) {
            x += received[(cta * L::columns + c) * ROWS + r];
            y += received[(cta * L::columns + c + 1) * ROWS + r];
        }
        output.store(x, y, row + r, col + rank * L::columns + c, {});
    }
}
