// A product by wgmma whose tiles are as wide as it needs: c = a b^T, with tiles of any multiple of 8 columns, so that one
// wave of tiles occupies all SMs, and with equal shares of the steps of k for all CTAs where whole tiles would leave SMs
// idle. Osama et al., "Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix Multiplication on the GPU",
// PPoPP 2023.
//
// 1. `stream_k_product`: persistent clusters of `sharing` CTAs, which compute tiles beside each other at a time and load a part
//     of the rows of a for each other (multicast). A cluster computes whole groups of tiles, as many clusters apart as there
//     are, and then a share of the steps of the remaining groups. A share may begin and end within a tile; what it has of such
//     a tile is stored as partial sums. A producer warp fills a ring of as many stages as shared memory holds. Of a tile with
//     more rows than a, only those of a are loaded: the sums of the others are undefined, and not stored.
// 2. `sum_of_shares`, another launch, adds the partial sums of the tiles that several shares have, in the order of k, so that
//     every launch gives the same bits, and applies the epilogue.
//
// An epilogue has the member store(x, y, row, col) for two sums in neighbouring columns, of which the first is even; for
// batches also the member `product`.
#pragma once
#include "ptxkit/gemm/shifted_rows.cuh"
#include "ptxkit/gemm/wgmma_types.cuh"

namespace ptxkit {

enum : unsigned { STREAM_K_MAX_STAGES = 32 };

// A tile has 64 ROWS rows of a for each of CONSUMERS warpgroups, and COLUMNS rows of b.
template <int CONSUMERS_, int ROWS_, int COLUMNS_>
struct StreamKTile {
    static constexpr int CONSUMERS = CONSUMERS_, ROWS = ROWS_, COLUMNS = COLUMNS_, HEIGHT = 64 * ROWS * CONSUMERS;
    static_assert(HEIGHT <= 256 && COLUMNS <= 256 && COLUMNS % 8 == 0, "boxes of a tensor map have at most 256 rows");
    static constexpr int THREADS = 128 * CONSUMERS;  // that multiply
    static constexpr int VECTORS = ROWS * COLUMNS / 8;  // of four sums, of a thread
    static constexpr int STAGE_BYTES = (HEIGHT + COLUMNS) * WGMMA_ROW_BYTES;
};

// The steps of k of the clusters. Groups of tiles are numbered down the rows of a first, so that clusters that run at the same
// time read the same rows of b.
struct Shares {
    unsigned down, groups, steps;  // groups down the rows of a; all groups; steps of k of a tile
    unsigned whole, shares;        // whole groups of a cluster; clusters with a share of the others, all of them or 0
    unsigned sharing;              // CTAs of a cluster
    unsigned rows;                 // of a that each CTA loads for its cluster: fewer than those of a tile where a has fewer
    unsigned of_product;           // groups of a product of a batch

    // First step of a share, counted from the first of the shared groups; that of share number `shares` is the end.
    __device__ __forceinline__ unsigned begin(unsigned share) const {
        const unsigned all = (groups - whole * shares) * steps;
        return all / shares * share + min(share, all % shares);
    }

    // The share that has a step, counted as those of begin().
    __device__ __forceinline__ unsigned share_of(unsigned step) const {
        const unsigned all = (groups - whole * shares) * steps, each = all / shares, longer = all % shares;
        const unsigned of_longer = longer * (each + 1);  // steps of the first shares, which have one more
        return step < of_longer ? step / (each + 1) : longer + (step - of_longer) / each;
    }

    // The first row and column of a tile, and the product of a batch.
    struct Place {
        unsigned row, col, product;
    };
    // That of the tile of CTA `rank` in a group.
    template <class Tile, bool BATCHED>
    __device__ __forceinline__ Place place(unsigned group, unsigned rank) const {
        const unsigned product = BATCHED ? group / of_product : 0;
        if constexpr (BATCHED) group -= product * of_product;
        return {group % down * Tile::HEIGHT, (group / down * sharing + rank) * Tile::COLUMNS, product};
    }
};

// The place of the partial sums of a CTA: two tiles, that in which its share begins, unless the share begins with the tile, and
// that in which its share ends. Vector `vector` of thread `thread`.
template <class Tile>
__device__ __forceinline__ size_t partial_index(unsigned cta, bool begins_tile, unsigned vector, unsigned thread) {
    return ((2 * size_t(cta) + begins_tile) * Tile::VECTORS + vector) * Tile::THREADS + thread;
}

// Stores a vector of sums through the epilogue. A vector of a thread has two columns of the rows r and r + 8. The next vector is
// 8 columns further; after those of all COLUMNS, the next one is in the next 64 rows.
template <class Tile, class V, class Out>
__device__ __forceinline__ void store_vector(const V& sums, Out& output, unsigned vector, unsigned thread, unsigned row,
                                             unsigned col) {
    const unsigned r = row + thread / 128 * (64 * Tile::ROWS) + vector / (Tile::COLUMNS / 8) * 64 + thread % 128 / 32 * 16 +
                       thread % 32 / 4;
    const unsigned c = col + vector % (Tile::COLUMNS / 8) * 8 + thread % 4 * 2;
    output.store(sums.x, sums.y, r, c);
    output.store(sums.z, sums.w, r + 8, c);
}

template <class Sum>
struct VectorOf {
    using type = float4;
};
template <>
struct VectorOf<int> {
    using type = int4;
};

// The product as the body of a kernel with 128 CONSUMERS + 32 threads, stages x STAGE_BYTES of dynamic shared memory and
// clusters of `sharing` CTAs. `partials` has two tiles for each CTA. An epilogue for rows that begin anywhere stores whole tiles through
// shared memory after the stages (shifted_rows.cuh).
template <class Tile, class T, class Of, class Out, class Sum = typename WgmmaOf<T>::Sum>
__device__ __forceinline__ void stream_k_product(const TensorMap& a_map, const TensorMap& b_map, Out& output,
                                                 Sum* partials, const Shares& shares, unsigned stages) {
    constexpr int CONSUMERS = Tile::CONSUMERS, ROWS = Tile::ROWS, COLUMNS = Tile::COLUMNS, HEIGHT = Tile::HEIGHT;
    constexpr int BK = wgmma_depth<T>;
    constexpr bool BATCHED = Of::BATCHED;
    constexpr unsigned a_bytes = HEIGHT * WGMMA_ROW_BYTES, stage_bytes = Tile::STAGE_BYTES;
    using Vector = typename VectorOf<Sum>::type;
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ alignas(8) unsigned long long barriers[2 * STREAM_K_MAX_STAGES];
    const unsigned base = cvta_to_shared(shared), full = cvta_to_shared(barriers), empty = full + 8 * STREAM_K_MAX_STAGES;
    const unsigned warp = shfl_sync_idx(all_lanes, threadIdx.x / 32, 0), lane = laneid();
    const unsigned sharing = shares.sharing, rank = sharing > 1 ? cluster_ctarank() : 0;
    const unsigned cluster = blockIdx.x / sharing, clusters = gridDim.x / sharing;
    if (threadIdx.x == 0) {
        prefetch_tensormap(a_map);
        prefetch_tensormap(b_map);
        for (unsigned s = 0; s < stages; s++) {
            mbarrier_init(full + 8 * s, 1);
            mbarrier_init(empty + 8 * s, 4 * CONSUMERS * sharing);
        }
        fence_mbarrier_init_release_cluster();
    }
    __syncwarp();
    if (sharing > 1) {
        barrier_cluster_arrive_relaxed();
        barrier_cluster_wait_acquire();
    } else {
        barrier_sync();
    }
    follow_previous_grid();

    RingOf ring(stages);
    const unsigned steps = shares.steps;
    const bool shares_steps = cluster < shares.shares;
    const unsigned begin = shares_steps ? shares.begin(cluster) : 0, end = shares_steps ? shares.begin(cluster + 1) : 0;
    // Parts in order: whole groups of tiles, then those of the share. part_at() returns false after the last one.
    struct Part {
        unsigned group, begin, end;  // steps of k
    };
    auto part_at = [&](unsigned index, Part& part) {
        if (index < shares.whole) {
            part = {index * clusters + cluster, 0, steps};
            return part.group < shares.groups;
        }
        const unsigned group = begin / steps + (index - shares.whole), first = group * steps;
        if (max(begin, first) >= end) return false;
        part = {shares.whole * clusters + group, max(begin, first) - first, min(end - first, steps)};
        return true;
    };
    Part part;
    if (warp == 4 * CONSUMERS) {
        if (elect_sync(all_lanes)) {
            const unsigned short all = (1 << sharing) - 1;
            const unsigned own_rows = shares.rows, bytes = (own_rows * sharing + COLUMNS) * WGMMA_ROW_BYTES;
            for (unsigned i = 0; part_at(i, part); i++) {
                const auto at = shares.place<Tile, BATCHED>(part.group, rank);
                const int row = at.row + rank * own_rows, col = at.col;
                for (unsigned step = part.begin; step < part.end; step++) {
                    const unsigned a = base + ring.stage * stage_bytes, barrier = full + 8 * ring.stage;
                    mbarrier_wait(empty + 8 * ring.stage, ring.parity ^ 1);
                    mbarrier_arrive_expect_tx(barrier, bytes);
                    load_rows<Of::B_MAJOR, COLUMNS, 1, BATCHED>(a + a_bytes, b_map, step * BK, col, barrier, 0, at.product);
                    load_shared_rows<Of::A_MAJOR, BATCHED>(a + rank * own_rows * WGMMA_ROW_BYTES, a_map, own_rows, step * BK,
                                                           row, barrier, all, sharing > 1, at.product);
                    ring.advance();
                }
            }
        }
    } else {
        const unsigned consumer = warp / 4;
        // Only a stage that is filled again is released, so that no arrival is on its way to a CTA that may exit.
        const unsigned groups = shares.shares ? shares.whole : (shares.groups - 1 - cluster) / clusters + 1;
        unsigned left = groups * steps + end - begin;
        auto release = [&](unsigned released) {
            if (left-- <= stages) return;
            if (sharing == 1) {
                if (lane == 0) mbarrier_arrive(empty + 8 * released);
            } else if (lane < sharing) {
                mbarrier_arrive_shared_cluster(mapa_shared_cluster(empty + 8 * released, lane));
            }
        };
        Sum sums[ROWS][COLUMNS / 2];
        for (unsigned i = 0; part_at(i, part); i++) {
            unsigned previous = 0;
            for (unsigned step = part.begin; step < part.end; step++) {
                const unsigned a = base + ring.stage * stage_bytes;
                mbarrier_wait(full + 8 * ring.stage, ring.parity);
                multiply_tile<T, Of>(sums, a + consumer * ROWS * WGMMA_BLOCK_BYTES, a + a_bytes, step > part.begin);
                wgmma_wait_group<1>();  // the previous step is complete, this one is in flight
                if (step > part.begin) release(previous);
                previous = ring.stage;
                ring.advance();
            }
            wait_for_sums(sums);
            release(previous);
            const auto at = shares.place<Tile, BATCHED>(part.group, rank);
            if constexpr (BATCHED) output.product = at.product;
            const bool whole = part.end - part.begin == steps;
            if constexpr (shifts_rows<Out>) {
                if (whole) {
                    constexpr int PIECES = shifted_pieces<COLUMNS>;
                    unsigned char* const staged = shared + stages * stage_bytes + warp * shifted_bytes<COLUMNS / PIECES>;
                    store_shifted_rows<PIECES, COLUMNS>(sums, output, staged, at.row + consumer * 64 * ROWS, at.col);
                    continue;
                }
            }
            Vector* to = reinterpret_cast<Vector*>(partials);
#pragma unroll
            for (int v = 0; v < Tile::VECTORS; v++) {
                const Sum* d = &sums[v / (COLUMNS / 8)][v % (COLUMNS / 8) * 4];
                const Vector vector = {d[0], d[1], d[2], d[3]};
                if (whole) store_vector<Tile>(vector, output, v, threadIdx.x, at.row, at.col);
                else to[partial_index<Tile>(blockIdx.x, part.begin == 0, v, threadIdx.x)] = vector;
            }
        }
    }
}

constexpr int SHARE_THREADS = 128;  // of a CTA of sum_of_shares with the same parts
constexpr int MOST_ADDERS = 4;

// Adds the partial sums of the tiles that several shares have, as the body of a kernel with SHARE_THREADS x `adders` threads and
// a grid of (VECTORS x THREADS / SHARE_THREADS, groups of tiles that are shared x sharing). Each of the adders, at most
// MOST_ADDERS, adds consecutive parts of a tile; the first one adds their sums. The order depends on the sizes alone.
template <class Tile, bool BATCHED = false, class Out, class Sum>
__device__ __forceinline__ void sum_of_shares(const Sum* partials, Out& output, const Shares& shares) {
    using Vector = typename VectorOf<Sum>::type;
    __shared__ Vector others[MOST_ADDERS - 1][SHARE_THREADS];
    const unsigned sharing = shares.sharing, group = blockIdx.y / sharing, rank = blockIdx.y % sharing;
    const unsigned tile_begin = group * shares.steps, adder = threadIdx.y, adders = blockDim.y;
    const unsigned first = shares.share_of(tile_begin), parts = shares.share_of(tile_begin + shares.steps - 1) + 1 - first;
    follow_previous_grid();
    if (parts == 1) return;  // the share has the whole tile, and has stored it
    const unsigned index = blockIdx.x * SHARE_THREADS + threadIdx.x, vector = index / Tile::THREADS,
                   thread = index % Tile::THREADS;
    const Vector* from = reinterpret_cast<const Vector*>(partials);
    const unsigned begin = parts * adder / adders, end = parts * (adder + 1) / adders;
    Vector sum = {};
#pragma unroll 8
    for (unsigned part = begin; part < end; part++) {
        const Vector more = from[partial_index<Tile>((first + part) * sharing + rank, part == 0, vector, thread)];
        sum = {sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w};
    }
    if (adders > 1) {
        if (adder > 0) others[adder - 1][threadIdx.x] = sum;
        __syncthreads();
        if (adder > 0) return;
        for (unsigned other = 0; other < adders - 1; other++) {
            const Vector more = others[other][threadIdx.x];
            sum = {sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w};
        }
    }
    const auto at = shares.place<Tile, BATCHED>(shares.whole * shares.shares + group, rank);
    if constexpr (BATCHED) output.product = at.product;
    store_vector<Tile>(sum, output, vector, thread, at.row, at.col);
}

}  // namespace ptxkit
