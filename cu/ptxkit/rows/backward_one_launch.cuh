// The gradients of a norm in one launch, without partial sums in device memory. The first clusters of the grid add up
// dgamma and dbeta, 32 columns each, over all rows; the others compute dx, rows in registers. The two do not depend on each
// other, because the statistics of the rows are given. Both read x and dy: one of them from device memory, the other one, later,
// from L2. With rows that fit in L2 this takes less time than a second launch that adds up partial sums.
#pragma once
#include "ptxkit/rows/backward_rows.cuh"

namespace ptxkit {

constexpr int COLUMN_ROWS = 8;  // rows of which a thread has its column in flight

// The minimum of resident CTAs for __launch_bounds__: two rows of registers, and at least those of sums_of_columns.
template <class T, class Tile>
struct OneLaunchCtas {
    static constexpr int held = 2 * Tile::VECTORS * vector_width<T> + 48 + Tile::ADDRESSES;
    static constexpr int registers = held > 64 ? held : 64;
    static constexpr int value = TargetLimits::REGISTERS_PER_SM / (Tile::THREADS * registers);
};
template <class T, class Tile>
constexpr int one_launch_ctas = OneLaunchCtas<T, Tile>::value;

// The sum of `count` partial sums of a column, in f64 and in ascending order.
__device__ __forceinline__ Pair total_of_column(const Pair (*parts)[32], unsigned column, unsigned count,
                                                unsigned distance = 1) {
    double first = 0, second = 0;
    for (unsigned i = 0; i < count * distance; i += distance) first += parts[i][column].x, second += parts[i][column].y;
    return {static_cast<float>(first), static_cast<float>(second)};
}

// Sums over rows of dy * n and of dy for `blocks` blocks of 32 columns, of which block number `block` is the first. A lane has a
// column, and the warps of a block take rows in turn. `blocks` divides the number of warps. With SPLIT there is one block, whose
// rows SPLIT CTAs share; the first one of them writes the sums. Of each thread, the sums are in f32, in COLUMN_ROWS / 2 parts;
// those of warps and CTAs are added in f64, in a fixed order.
template <bool CENTERED, class T, int THREADS, int SPLIT, Activation A>
__device__ __forceinline__ void sums_of_columns(const T* x, const T* dy, const T* gamma, const T* beta,
                                                const float* means, const float* rstds, T* dgamma, T* dbeta,
                                                unsigned rows, unsigned cols, unsigned block, unsigned blocks) {
    constexpr int PARTS = COLUMN_ROWS / 2;
    __shared__ Pair of_warps[THREADS / 32][32];
    __shared__ Pair of_ctas[SPLIT][32];  // in the first CTA of the cluster
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, rank = SPLIT > 1 ? cluster_ctarank() : 0;
    const unsigned warps = blockDim.x / 32 / blocks, step = warps * SPLIT;  // of a block
    const unsigned c = (block + warp % blocks) * 32 + lane;
    const bool active = c < cols;
    Pair part[PARTS] = {};
    float weight = 0, shift = 0;
    if constexpr (A != NONE) {
        if (active) weight = to_f32(gamma[c]), shift = to_f32(beta[c]);
    }
    auto add = [&](float x_, float dy_, float mean, float rstd, Pair& sum) {
        const float n = normalized<CENTERED>(x_, mean, rstd);
        if constexpr (A != NONE) dy_ = before_activation<A>(dy_, n, weight, shift);
        sum.x = fmaf(dy_, n, sum.x);
        if (CENTERED) sum.y += dy_;
    };
    if (active) {
#pragma unroll 1
        for (unsigned r = rank * warps + warp / blocks; r < rows; r += COLUMN_ROWS * step) {
            T of_x[COLUMN_ROWS], of_dy[COLUMN_ROWS];
            float mean[COLUMN_ROWS], rstd[COLUMN_ROWS];
            // Rows past the last one are the last row with dy 0: no load depends on a branch, so that all are in flight.
#pragma unroll
            for (int k = 0; k < COLUMN_ROWS; k++) {
                const unsigned row = ::min(r + k * step, rows - 1);
                const size_t i = static_cast<size_t>(row) * cols + c;
                of_x[k] = x[i], of_dy[k] = dy[i];
                rstd[k] = rstds[row], mean[k] = CENTERED ? means[row] : 0.0f;
            }
#pragma unroll
            for (int k = 0; k < COLUMN_ROWS; k++) {
                const float given = r + k * step < rows ? to_f32(of_dy[k]) : 0.0f;
                add(to_f32(of_x[k]), given, mean[k], rstd[k], part[k % PARTS]);
            }
        }
    }
#pragma unroll
    for (int k = PARTS / 2; k > 0; k /= 2) {
#pragma unroll
        for (int i = 0; i < k; i++) part[i] += part[i + k];
    }
    of_warps[warp][lane] = part[0];
    barrier_sync();
    Pair sum = {};
    if (warp < blocks) sum = total_of_column(of_warps + warp, lane, warps, blocks);
    if constexpr (SPLIT > 1) {
        barrier_cluster_wait_acquire();  // all CTAs of the cluster have started
        if (warp == 0) {
            const unsigned slot = mapa_shared_cluster(cvta_to_shared(&of_ctas[rank][lane]), 0);
            st_shared_cluster(slot, sum.x);
            st_shared_cluster(slot + 4, sum.y);
        }
        barrier_cluster_arrive_release();
        barrier_cluster_wait_acquire();
        if (rank > 0) return;
        if (warp == 0) sum = total_of_column(of_ctas, lane, SPLIT);
    }
    if (warp >= blocks || !active) return;
    dgamma[c] = Convert<T>::from_f32(sum.x);
    if (CENTERED) dbeta[c] = Convert<T>::from_f32(sum.y);
}

// dx of one row for each group of threads, held in registers. `first_cta`: of the CTAs that compute dx.
template <bool CENTERED, class T, class Tile, Activation A>
__device__ __forceinline__ void gradient_of_row(const T* x, const T* dy, const T* gamma, const T* beta,
                                                const float* means, const float* rstds, T* dx, unsigned rows,
                                                unsigned cols, unsigned first_cta) {
    using S = typename Tile::template Shape<T>;
    __shared__ RowRecords<GradientRecord<CENTERED>, S> records;
    RowLayout<S> layout(rows, cols, aligned16(x, dy, gamma, dx, beta));
    const unsigned row = layout.row - first_cta / S::CTAS * S::groups;
    layout.ends_array = row + 1 == rows;
    layout.take(row, row < rows ? cols : 0, cols);
    Row<S> n = layout.template load<Tile::CACHE>(x), w = layout.template load<Tile::CACHE>(dy);
    Statistics statistics = {};
    if (layout.cols) statistics = {mean_at<CENTERED>(means, row), rstds[row]};
    n.each([&](float& v, int) { v = normalized<CENTERED>(v, statistics.mean, statistics.rstd); });
    // where `layout` has no column, dy and the weights are 0
    if constexpr (A == NONE) {
        layout.apply(w, [](float u, float weight) { return u * weight; }, gamma);
    } else {
        const Row<S> weight = layout.load_shared(gamma), shift = layout.load_shared(beta);
        w.each([&](float& u, int k) { u = before_activation<A>(u, n[k], weight[k], shift[k]) * weight[k]; });
    }
    Pair part[2] = {};
    w.each([&](float& u, int k) { part[k % 2] += {u * n[k], CENTERED ? u : 0.0f}; });
    part[0] += part[1];
    if constexpr (S::CTAS > 1) barrier_cluster_wait_acquire();
    const Pair sums = gradient_sums(part[0], records, 0, GradientRecord<CENTERED>());
    const float inverse = 1.0f / cols, mean_wn = sums.x * inverse, mean_w = sums.y * inverse;
    w.each([&](float& u, int k) { u = gradient(u, n[k], mean_wn, mean_w, statistics.rstd); });
    layout.template store<Tile::CACHE>(dx, w);
}

// A cluster has Tile::CTAS CTAs if they hold a row, and SPLIT CTAs if they share columns; where both are above 1 they are
// equal. The first `column_ctas` CTAs of the grid add up columns, SPLIT of them `blocks` blocks of 32.
template <bool CENTERED, class T, class Tile, int SPLIT, Activation A = NONE>
__device__ __forceinline__ void backward_in_one_launch(const T* x, const T* dy, const T* gamma, const float* means,
                                                       const float* rstds, T* dx, T* dgamma, T* dbeta, int rows,
                                                       int cols, int column_ctas, int blocks, const T* beta = nullptr) {
    constexpr int cluster = SPLIT > Tile::CTAS ? SPLIT : Tile::CTAS;
    static_assert(Tile::CTAS == 1 || SPLIT == 1 || SPLIT == Tile::CTAS, "the clusters of a grid have one size");
    follow_previous_grid();
    if constexpr (cluster > 1) barrier_cluster_arrive_relaxed();
    if (blockIdx.x < column_ctas) {
        sums_of_columns<CENTERED, T, Tile::THREADS, SPLIT, A>(x, dy, gamma, beta, means, rstds, dgamma, dbeta, rows,
                                                              cols, blockIdx.x / SPLIT * blocks, blocks);
        if constexpr (cluster > 1 && SPLIT == 1) barrier_cluster_wait_acquire();
    } else {
        gradient_of_row<CENTERED, T, Tile, A>(x, dy, gamma, beta, means, rstds, dx, rows, cols, column_ctas);
        if constexpr (cluster > 1 && Tile::CTAS == 1) barrier_cluster_wait_acquire();
    }
}

}  // namespace ptxkit
