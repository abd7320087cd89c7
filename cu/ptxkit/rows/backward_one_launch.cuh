// The gradients of a norm in one launch, without partial sums in device memory. The first clusters of the grid add up
// dgamma and dbeta, 32 columns each, over all rows; the others compute dx, rows in registers. The two do not depend on each
// other, because the statistics of the rows are given. Both read x and dy: one of them from device memory, the other one, later,
// from L2. With rows that fit in L2 this takes less time than a second launch that adds up partial sums.
#pragma once
#include "ptxkit/rows/backward_rows.cuh"

namespace ptxkit {

// Rows of which a lane has its columns of x and dy in flight: up to 64 bytes of each, with WIDE columns of a row.
template <class T, int WIDE>
constexpr int rows_in_flight = WIDE * sizeof(T) > 8 ? 4 : 8;

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
#pragma unroll 8
    for (unsigned i = 0; i < count * distance; i += distance) first += parts[i][column].x, second += parts[i][column].y;
    return {static_cast<float>(first), static_cast<float>(second)};
}

// WIDE neighbouring columns of a row, in the format of memory.
template <class T, int WIDE, bool ALIGNED>
struct NeighbouringColumns {
    Vector<T, WIDE> values;

    // ALIGNED: the address is a multiple of the size, so that one instruction loads all.
    __device__ __forceinline__ void load(const T* from) {
        if constexpr (ALIGNED) values.template load<CACHE_KEEP>(from);
        else values.fill([&](int j) { return load_element(from + j); });
    }
    __device__ __forceinline__ float operator[](int j) const { return values[j]; }
};
template <class T, bool ALIGNED>
struct NeighbouringColumns<T, 1, ALIGNED> {
    T value;

    __device__ __forceinline__ void load(const T* from) { value = *from; }
    __device__ __forceinline__ float operator[](int) const { return to_f32(value); }
};

// The sums over rows of WIDE columns of a lane, which begin at `c`.
template <bool CENTERED, class T, int WIDE, Activation A>
struct LaneSums {
    static constexpr int PARTS = 4 / WIDE;  // sums of a column, for neighbouring rows in flight
    const T *x, *dy;
    const float *means, *rstds;
    unsigned rows, cols, c;
    float weight[WIDE], shift[WIDE];
    Pair part[PARTS][WIDE] = {};

    // Adds ROWS rows, `step` apart, from `r`. Those past the last one are the last row with dy 0: no load depends on a branch, so
    // that all are in flight.
    template <int ROWS, bool ALIGNED = true>
    __device__ __forceinline__ void add(unsigned r, unsigned step) {
        NeighbouringColumns<T, WIDE, ALIGNED> of_x[ROWS], of_dy[ROWS];
        float mean[ROWS], rstd[ROWS];
#pragma unroll
        for (int k = 0; k < ROWS; k++) {
            const unsigned row = ::min(r + k * step, rows - 1);
            const size_t i = static_cast<size_t>(row) * cols + c;
            of_x[k].load(x + i), of_dy[k].load(dy + i);
            rstd[k] = rstds[row], mean[k] = CENTERED ? means[row] : 0.0f;
        }
#pragma unroll
        for (int k = 0; k < ROWS; k++) {
            const bool exists = r + k * step < rows;
#pragma unroll
            for (int j = 0; j < WIDE; j++) {
                const float n = normalized<CENTERED>(of_x[k][j], mean[k], rstd[k]);
                float given = exists ? of_dy[k][j] : 0.0f;
                if constexpr (A != NONE) given = before_activation<A>(given, n, weight[j], shift[j]);
                Pair& sum = part[k % PARTS][j];
                sum.x = fmaf(given, n, sum.x);
                if (CENTERED) sum.y += given;
            }
        }
    }

    // Adds the rows `first` + `offset`, and so on in distances of `step`. `first` is the same for all lanes of a warp.
    __device__ __forceinline__ void add_all(unsigned first, unsigned offset, unsigned step) {
        constexpr int ROWS = rows_in_flight<T, WIDE>;
        if (WIDE > 1 && !aligned16(x, dy)) {
#pragma unroll 1
            for (; first < rows; first += step) add<1, false>(first + offset, step);
            return;
        }
#pragma unroll 1
        for (; first + ROWS / 2 * step < rows; first += ROWS * step) add<ROWS>(first + offset, step);
        // The rows that are left take half of the loads, or one: loads of rows past the last one would take time, too.
        if (first + step < rows) add<ROWS / 2>(first + offset, step);
        else if (first < rows) add<1>(first + offset, step);
    }

    __device__ __forceinline__ Pair total(int j) {
#pragma unroll
        for (int k = PARTS / 2; k > 0; k /= 2) {
#pragma unroll
            for (int i = 0; i < k; i++) part[i][j] += part[i + k][j];
        }
        return part[0][j];
    }
};

// Sums over rows of dy * n and of dy for `blocks` blocks of 32 columns, of which block number `block` is the first. A lane has WIDE
// neighbouring columns, so that a warp reads WIDE rows of a block at a time; the warps of a block take such groups of rows in
// turn. The number of columns is a multiple of WIDE, and `blocks` divides the number of warps. With SPLIT there is one block, whose rows
// SPLIT CTAs share; the first one of them writes the sums. Of each lane, the sums are in f32, those of a warp too; those of warps
// and CTAs are added in f64, in a fixed order.
template <bool CENTERED, class T, int THREADS, int SPLIT, int WIDE, Activation A>
__device__ __forceinline__ void sums_of_columns(const T* x, const T* dy, const T* gamma, const T* beta,
                                                const float* means, const float* rstds, T* dgamma, T* dbeta,
                                                unsigned rows, unsigned cols, unsigned block, unsigned blocks) {
    constexpr int LANES = 32 / WIDE;  // of a row
    __shared__ Pair of_warps[THREADS / 32][32];
    __shared__ Pair of_ctas[SPLIT][32];  // in the first CTA of the cluster
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, rank = SPLIT > 1 ? cluster_ctarank() : 0;
    const unsigned warps = blockDim.x / 32 / blocks;  // of a block
    const unsigned first_column = (block + warp % blocks) * 32, c = first_column + lane % LANES * WIDE;
    LaneSums<CENTERED, T, WIDE, A> sums = {x, dy, means, rstds, rows, cols, c};
    if (c < cols) {
        if constexpr (A != NONE) {
#pragma unroll
            for (int j = 0; j < WIDE; j++) sums.weight[j] = to_f32(gamma[c + j]), sums.shift[j] = to_f32(beta[c + j]);
        }
        sums.add_all((rank * warps + warp / blocks) * WIDE, lane / LANES, warps * SPLIT * WIDE);
    }
#pragma unroll
    for (int j = 0; j < WIDE; j++) {
        Pair part = sums.total(j);
#pragma unroll
        for (int distance = LANES; distance < 32; distance *= 2) {
            part.x += shfl_sync_bfly(0xffffffffu, part.x, distance);
            if (CENTERED) part.y += shfl_sync_bfly(0xffffffffu, part.y, distance);
        }
        if (lane < LANES) of_warps[warp][lane * WIDE + j] = part;
    }
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
    const unsigned column = first_column + lane;
    if (warp >= blocks || column >= cols) return;
    dgamma[column] = Convert<T>::from_f32(sum.x);
    if (CENTERED) dbeta[column] = Convert<T>::from_f32(sum.y);
}

// The layout of the row of this thread. `first_cta`: of the CTAs that compute dx.
template <class T, class Tile>
__device__ __forceinline__ auto gradient_layout(unsigned rows, unsigned cols, unsigned first_cta, bool aligned) {
    using S = typename Tile::template Shape<T>;
    RowLayout<S> layout(rows, cols, aligned);
    const unsigned row = layout.row - first_cta / S::CTAS * S::groups;
    layout.ends_array = row + 1 == rows || cols < S::WIDTH;
    layout.take(row, row < rows ? cols : 0, cols);
    return layout;
}

// dx of one row for each group of threads, held in registers.
template <bool CENTERED, class T, class Tile, Activation A>
__device__ __forceinline__ void gradient_of_row(const T* x, const T* dy, const T* gamma, const T* beta,
                                                const float* means, const float* rstds, T* dx, unsigned rows,
                                                unsigned cols, unsigned first_cta) {
    using S = typename Tile::template Shape<T>;
    __shared__ RowRecords<GradientRecord<CENTERED>, S> records;
    const RowLayout<S> layout = gradient_layout<T, Tile>(rows, cols, first_cta, aligned16(x, dy, gamma, dx, beta));
    const unsigned row = layout.row;
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
template <bool CENTERED, class T, class Tile, int SPLIT, int WIDE, Activation A = NONE>
__device__ __forceinline__ void backward_in_one_launch(const T* x, const T* dy, const T* gamma, const float* means,
                                                       const float* rstds, T* dx, T* dgamma, T* dbeta, int rows,
                                                       int cols, int column_ctas, int blocks, const T* beta = nullptr) {
    constexpr int cluster = SPLIT > Tile::CTAS ? SPLIT : Tile::CTAS;
    static_assert(Tile::CTAS == 1 || SPLIT == 1 || SPLIT == Tile::CTAS, "the clusters of a grid have one size");
    if (PTXKIT_SM >= 90 && blockIdx.x >= column_ctas) {  // all rows, once
        gradient_layout<T, Tile>(rows, cols, column_ctas, aligned16(x, dy, gamma, dx, beta)).request(x, dy);
    }
    follow_previous_grid();
    if constexpr (cluster > 1) barrier_cluster_arrive_relaxed();
    if (blockIdx.x < column_ctas) {
        sums_of_columns<CENTERED, T, Tile::THREADS, SPLIT, WIDE, A>(x, dy, gamma, beta, means, rstds, dgamma, dbeta, rows,
                                                              cols, blockIdx.x / SPLIT * blocks, blocks);
        if constexpr (cluster > 1 && SPLIT == 1) barrier_cluster_wait_acquire();
    } else {
        gradient_of_row<CENTERED, T, Tile, A>(x, dy, gamma, beta, means, rstds, dx, rows, cols, column_ctas);
        if constexpr (cluster > 1 && Tile::CTAS == 1) barrier_cluster_wait_acquire();
    }
}

}  // namespace ptxkit
