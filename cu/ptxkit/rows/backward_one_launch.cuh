// The gradients of a norm in one launch, without partial sums in device memory. Some clusters of the grid add up dgamma and dbeta
// over all rows, 32 columns each or a vector of columns for each thread; the others compute dx, rows in registers. The two do not
// depend on each other, because the statistics of the rows are given. Both read x and dy: one of them from device memory, the
// other one, later, from L2. With rows that fit in L2 this takes less time than a second launch that adds up partial sums. The
// launch determines which clusters come first in the grid.
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

// The columns of a lane among 32 * WIDTH neighbouring ones: a vector or, in rows that begin between two vectors, every 32nd one.
template <class T>
struct WarpColumns {
    static constexpr int WIDTH = vector_width<T>;
    unsigned first, cols;
    bool vectors;

    __device__ __forceinline__ WarpColumns(unsigned start, unsigned cols, bool aligned)
        : cols(cols), vectors(aligned && cols % WIDTH == 0) {
        first = start + laneid() * (vectors ? WIDTH : 1);
    }

    // Loads them from a row; those past the last column are 0. Nothing is loaded of a row that does not exist.
    __device__ __forceinline__ Vector<T, WIDTH> load(const T* matrix, unsigned row, bool exists = true) const {
        const T* from = matrix + static_cast<size_t>(row) * cols + first;
        const unsigned end = exists ? cols : 0;
        Vector<T, WIDTH> vector;
        if (vectors) {
            vector.fill([](int) { return 0.0f; });
            if (first < end) vector.template load<CACHE_KEEP>(from);
        } else {
            vector.fill([&](int j) { return first + 32 * j < end ? load_element(from + 32 * j) : 0.0f; });
        }
        return vector;
    }

    __device__ __forceinline__ void store(T* array, const float (&v)[WIDTH]) const {
        if (vectors) {
            Vector<T, WIDTH> vector;
            vector.fill([&](int j) { return v[j]; });
            if (first < cols) vector.template store<CACHE_KEEP>(array + first);
        } else {
#pragma unroll
            for (int j = 0; j < WIDTH; j++) {
                if (first + 32 * j < cols) array[first + 32 * j] = Convert<T>::from_f32(v[j]);
            }
        }
    }
};

// Rows of which a thread has its vectors of x and dy in flight; with 64 registers, those of two sums of each column leave no
// room for four.
template <bool CENTERED, class T, class Tile, Activation A>
constexpr int vectors_in_flight =
    A == NONE && (OneLaunchCtas<T, Tile>::registers > 64 || !CENTERED || sizeof(T) == 4) ? 4 : 2;

// The same sums with a vector of columns for each thread. Each of `groups` groups of warps has the same columns and adds up, in
// f32, ROWS rows at a time, and then those after the ROWS of each other group; the first group adds up the sums of all, in a fixed
// order. With one group there is nothing to exchange. CTA number `cta` has the columns after those of the CTAs before it.
template <bool CENTERED, class T, int THREADS, int ROWS, Activation A>
__device__ __forceinline__ void sums_of_vectors(const T* x, const T* dy, const T* gamma, const T* beta, const float* means,
                                                const float* rstds, T* dgamma, T* dbeta, unsigned rows, unsigned cols,
                                                unsigned cta, unsigned groups) {
    constexpr int WIDTH = vector_width<T>;
    __shared__ float of_groups[THREADS / 32][WIDTH][32];
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const unsigned of_group = blockDim.x / 32 / groups, group = warp / of_group;  // warps, of which some may be left
    const unsigned start = (cta * of_group + warp % of_group) * 32 * WIDTH;
    const WarpColumns<T> columns(start, cols, aligned16(x, dy, gamma, beta, dgamma, dbeta));
    float first[WIDTH] = {}, second[WIDTH] = {};
    Vector<T, WIDTH> weight, shift;
    if constexpr (A != NONE) weight = columns.load(gamma, 0), shift = columns.load(beta, 0);
#pragma unroll 1
    for (unsigned r = group * ROWS; r < rows && group < groups; r += groups * ROWS) {
        Vector<T, WIDTH> of_x[ROWS], of_dy[ROWS];
        Statistics statistics[ROWS] = {};
#pragma unroll
        for (int k = 0; k < ROWS; k++) {
            const bool exists = r + k < rows;
            of_x[k] = columns.load(x, r + k, exists), of_dy[k] = columns.load(dy, r + k, exists);
            if (exists) statistics[k] = {mean_at<CENTERED>(means, r + k), rstds[r + k]};
        }
#pragma unroll
        for (int k = 0; k < ROWS; k++) {
#pragma unroll
            for (int j = 0; j < WIDTH; j++) {
                const float n = normalized<CENTERED>(of_x[k][j], statistics[k].mean, statistics[k].rstd);
                float given = of_dy[k][j];
                if constexpr (A != NONE) given = before_activation<A>(given, n, weight[j], shift[j]);
                first[j] = fmaf(given, n, first[j]);
                if (CENTERED) second[j] += given;
            }
        }
    }
    auto add_groups = [&](float (&sums)[WIDTH]) {
        if (group > 0) {
#pragma unroll
            for (int j = 0; j < WIDTH; j++) of_groups[warp][j][lane] = sums[j];
        }
        barrier_sync();
        for (unsigned other = warp + of_group; group == 0 && other < groups * of_group; other += of_group) {
#pragma unroll
            for (int j = 0; j < WIDTH; j++) sums[j] += of_groups[other][j][lane];
        }
    };
    if (groups > 1) {
        add_groups(first);
        if constexpr (CENTERED) barrier_sync(), add_groups(second);
    }
    if (group > 0) return;
    columns.store(dgamma, first);
    if constexpr (CENTERED) columns.store(dbeta, second);
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
// equal. `column_ctas` CTAs add up columns: SPLIT of them `blocks` blocks of 32 or, with `groups`, one of them a vector for each
// thread of a group of warps. They are the first ones of the grid or, with `dx_first`, the last ones.
template <bool CENTERED, class T, class Tile, int SPLIT, int WIDE, Activation A = NONE>
__device__ __forceinline__ void backward_in_one_launch(const T* x, const T* dy, const T* gamma, const float* means,
                                                       const float* rstds, T* dx, T* dgamma, T* dbeta, int rows,
                                                       int cols, int column_ctas, int blocks, int groups, int dx_first,
                                                       const T* beta = nullptr) {
    constexpr int cluster = SPLIT > Tile::CTAS ? SPLIT : Tile::CTAS;
    static_assert(Tile::CTAS == 1 || SPLIT == 1 || SPLIT == Tile::CTAS, "the clusters of a grid have one size");
    const unsigned first_of_dx = dx_first ? 0 : column_ctas, first_of_sums = dx_first ? gridDim.x - column_ctas : 0;
    const bool adds_up = blockIdx.x - first_of_sums < column_ctas;
    if (PTXKIT_SM >= 90 && !adds_up) {  // all rows, once
        const auto layout = gradient_layout<T, Tile>(rows, cols, first_of_dx, aligned16(x, dy, gamma, dx, beta));
        layout.request(x, dy);
        if (dx_first) layout.request_shared(gamma);
    }
    follow_previous_grid();
    if constexpr (cluster > 1) barrier_cluster_arrive_relaxed();
    if (adds_up) {
        const unsigned cta = blockIdx.x - first_of_sums;
        if (SPLIT == 1 && groups > 0) {
            constexpr int ROWS = vectors_in_flight<CENTERED, T, Tile, A>;
            sums_of_vectors<CENTERED, T, Tile::THREADS, ROWS, A>(x, dy, gamma, beta, means, rstds, dgamma, dbeta, rows, cols, cta,
                                                                 groups);
        } else {
            sums_of_columns<CENTERED, T, Tile::THREADS, SPLIT, WIDE, A>(x, dy, gamma, beta, means, rstds, dgamma, dbeta, rows,
                                                                        cols, cta / SPLIT * blocks, blocks);
        }
        if constexpr (cluster > 1 && SPLIT == 1) barrier_cluster_wait_acquire();
    } else {
        gradient_of_row<CENTERED, T, Tile, A>(x, dy, gamma, beta, means, rstds, dx, rows, cols, first_of_dx);
        if constexpr (cluster > 1 && Tile::CTAS == 1) barrier_cluster_wait_acquire();
    }
}

}  // namespace ptxkit
