// A product by wgmma whose tiles are as wide as it needs: c = a b^T, with tiles of any multiple of 8 columns, so that one
// wave of tiles occupies all SMs, and with equal shares of the steps of k for all CTAs where whole tiles would leave SMs
// idle. Osama et al., "Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix Multiplication on the GPU",
// PPoPP 2023.
//
// 1. `stream_k_product`: persistent clusters of `b_sharing` x `sharing` CTAs, which compute as many tiles below and beside each
//     other at a time. Those with the same rows of a, and those with the same rows of b, load a part of them for each other
//     (multicast). A cluster computes whole groups of tiles, as many clusters apart as there are, and then a share of the steps
//     of the remaining groups. A share may begin and end within a tile, unless each of few groups has as many `parts`; then
//     CTAs of different groups read the same rows at the same time. What a share has of such a tile is stored as partial sums.
//     A producer warp fills a ring of as many stages as shared memory holds. Of a tile with more rows than a, only those of a
//     are loaded: the sums of the others are undefined, and neither they nor their parts are stored.
//     Where a group has `parts`, the CTAs with the parts of a tile may add them themselves (`polls`), each a slice of the tile, in the order
//     of the parts, so that every launch gives the same bits. `clear_arrived` is launched before.
// 2. Else `sum_of_shares`, another launch, adds the partial sums of the tiles that several shares have, in an order that depends on the
//     sizes alone, and applies the epilogue.
//
// An epilogue has the member store(x, y, row, col) for two sums in neighbouring columns, of which the first is even; for
// batches also the member `product`.
#pragma once
#include "ptxkit/gemm/shifted_rows.cuh"
#include "ptxkit/gemm/wgmma_types.cuh"
#include "ptxkit/ptx/bulk_copy.cuh"

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
    unsigned sharing, b_sharing;   // CTAs of a cluster with the same rows of a, and with the same rows of b
    unsigned rows;                 // of a that each CTA loads for its cluster: fewer than those of a tile where a has fewer
    unsigned parts;                // shares of each group, if no share has steps of two groups, else 0
    unsigned polls;                 // if the CTAs with the parts of a tile add them: how often they poll for those of the others; else 0
    unsigned transposed;           // whether a and b are the operands of c^T = b a^T, exchanged; only with polls
    unsigned of_product;           // groups of a product of a batch

    // Steps that are divided among how many shares: of one group, or of all shared groups.
    __device__ __forceinline__ unsigned divided() const { return parts ? steps : (groups - whole * shares) * steps; }
    __device__ __forceinline__ unsigned dividing() const { return parts ? parts : shares; }

    // First step of a share, counted from the first of the shared groups; that of share number `shares` is the end.
    __device__ __forceinline__ unsigned begin(unsigned share) const {
        const unsigned all = divided(), n = dividing(), before = share / n, i = share - before * n;
        return before * all + all / n * i + min(i, all % n);
    }

    // The share that has a step, counted as those of begin().
    __device__ __forceinline__ unsigned share_of(unsigned step) const {
        const unsigned all = divided(), n = dividing(), before = step / all, i = step - before * all;
        const unsigned each = all / n, longer = all % n;
        const unsigned of_longer = longer * (each + 1);  // steps of the first shares, which have one more
        return before * n + (i < of_longer ? i / (each + 1) : longer + (i - of_longer) / each);
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
        return {(group % down * b_sharing + rank / sharing) * Tile::HEIGHT,
                (group / down * sharing + rank % sharing) * Tile::COLUMNS, product};
    }
};

// The place of the partial sums of a CTA: two tiles, that in which its share begins, unless the share begins with the tile, and
// that in which its share ends. Vector `vector` of thread `thread`.
template <class Tile>
__device__ __forceinline__ size_t partial_index(unsigned cta, bool begins_tile, unsigned vector, unsigned thread) {
    return ((2 * size_t(cta) + begins_tile) * Tile::VECTORS + vector) * Tile::THREADS + thread;
}

// The first row of a vector of a thread in its tile.
template <class Tile>
__device__ __forceinline__ unsigned row_of_vector(unsigned vector, unsigned thread) {
    return thread / 128 * (64 * Tile::ROWS) + vector / (Tile::COLUMNS / 8) * 64 + thread % 128 / 32 * 16 + thread % 32 / 4;
}

// Stores a vector of sums through the epilogue. A vector of a thread has two columns of the rows r and r + 8. The next vector is
// 8 columns further; after those of all COLUMNS, the next one is in the next 64 rows.
template <class Tile, class V, class Out>
__device__ __forceinline__ void store_vector(const V& sums, Out& output, unsigned vector, unsigned thread, unsigned row,
                                             unsigned col) {
    const unsigned r = row + row_of_vector<Tile>(vector, thread);
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

// The sums of a tile that the CTAs with its parts add together: in pieces of a vector of each lane of a warp, 16 rows and 8 columns, of
// which each CTA adds a slice, as many as any other one or one more. Pieces follow each other along the rows of the tile, so that those
// of rows that are not loaded are the last ones, which are neither stored nor added.
template <class Tile>
struct PiecesOfTile {
    static constexpr unsigned BYTES = 512, ACROSS = Tile::COLUMNS / 8;  // of a piece; pieces of 16 rows
    unsigned parts, rows;  // CTAs with a part of k; loaded rows of the tile

    __device__ __forceinline__ unsigned all() const { return (rows + 15) / 16 * ACROSS; }
    __device__ __forceinline__ unsigned begin(unsigned slice) const { return all() * slice / parts; }
    __device__ __forceinline__ unsigned most() const { return (all() - 1) / parts + 1; }  // pieces of a slice

    // The piece of a vector of a warp.
    static __device__ __forceinline__ unsigned number(unsigned vector, unsigned warp) {
        return (warp / 4 * (4 * Tile::ROWS) + vector / ACROSS * 4 + warp % 4) * ACROSS + vector % ACROSS;
    }
    // The first row and column of a piece in its tile.
    static __device__ __forceinline__ unsigned row(unsigned piece) { return piece / ACROSS * 16; }
    static __device__ __forceinline__ unsigned col(unsigned piece) { return piece % ACROSS * 8; }
};

// A sum of another lane.
__device__ __forceinline__ float sum_from(float sum, unsigned lane) { return shfl_sync_idx(all_lanes, sum, lane); }
__device__ __forceinline__ int sum_from(int sum, unsigned lane) {
    return static_cast<int>(shfl_sync_idx(all_lanes, static_cast<unsigned>(sum), lane));
}

// Stores a piece, whose vectors the lanes of a warp have, at `row` and `col` of c, or of c^T if it is `transposed`. Then each lane
// exchanges its sums, two of each of two rows, for those of one column of the piece, a row of c, so that it has neighbours in c again.
template <class Vector, class Out>
__device__ __forceinline__ void store_piece(const Vector& sums, Out& output, unsigned row, unsigned col, bool transposed) {
    const unsigned lane = laneid(), across = lane / 4, down = lane % 4 * 2;
    if (!transposed) {
        output.store(sums.x, sums.y, row + across, col + down);
        output.store(sums.z, sums.w, row + across + 8, col + down);
        return;
    }
    using Sum = decltype(sums.x);
    const bool odd = across % 2;
    auto neighbours = [&](Sum even_column, Sum odd_column, unsigned first_row) {
        const unsigned first = down * 4 + across / 2, second = first + 4;  // lanes with the rows `down` and down + 1
        const Sum even_first = sum_from(even_column, first), odd_first = sum_from(odd_column, first);
        const Sum even_second = sum_from(even_column, second), odd_second = sum_from(odd_column, second);
        output.store(odd ? odd_first : even_first, odd ? odd_second : even_second, col + across, row + first_row + down);
    };
    neighbours(sums.x, sums.y, 0);
    neighbours(sums.z, sums.w, 8);
}

// What the producer warp of a CTA sends to its consumers while the parts of a tile are added.
enum Adding : unsigned { STORE_SLICE = 32, LAST_SLICE = 64 };  // beside the number of a slice to add

// The producer warp's share of the addition of the parts of a tile, after its own part: `part`. Parts are added by slices, and each CTA
// adds one of them: its pieces of all parts are copied to shared memory as soon as they are in device memory, and consumers add them in the
// order of the parts, so that every launch gives the same bits. `arrived` is a word of the tile, 0 before the launch: its lower 32 bits
// are the parts that are in device memory, the upper ones the slices that their CTAs have given up. A CTA gives its slice up when it has
// polled the word `polls` times, because nothing promises that all CTAs of the grid run at the same time; the CTA that arrives last then adds it.
template <class Tile, class Vector>
__device__ __forceinline__ void request_parts(const PiecesOfTile<Tile>& pieces, unsigned long long* arrived, unsigned part, unsigned polls,
                                              const Vector* of_first, size_t apart, unsigned room, unsigned added,
                                              unsigned* command) {
    constexpr unsigned BYTES = PiecesOfTile<Tile>::BYTES, ALL = Tile::THREADS + 32;
    const unsigned lane = laneid(), parts = pieces.parts, all = ~0u >> (32 - parts);
    barrier_sync(2, ALL);  // the consumers have stored their sums
    unsigned long long word = 0;
    if (lane == 0) word = atom_or_acq_rel_gpu_global(arrived, 1ull << part) | 1ull << part;
    unsigned there = shfl_sync_idx(all_lanes, unsigned(word), 0);  // parts
    const unsigned given_up = shfl_sync_idx(all_lanes, unsigned(word >> 32), 0);
    bool complete = there == all;  // this CTA is the last one
    unsigned slices = complete ? given_up : 0;
    __syncwarp();
    auto send = [&](unsigned what) {
        __syncwarp();
        if (lane == 0) {
            *command = what;
            mbarrier_arrive(added);
        }
    };
    // Copies the pieces of a slice that this lane's part has.
    auto request = [&](unsigned slice) {
        const unsigned begin = pieces.begin(slice), bytes = (pieces.begin(slice + 1) - begin) * BYTES;
        if (bytes == 0) return;
        fence_proxy_async();
        mbarrier_expect_tx(added, bytes);
        cp_async_bulk_shared_global(room + lane * pieces.most() * BYTES, of_first + lane * apart + begin * 32, bytes, added);
    };
    bool requested = lane == part || lane >= parts;  // the own part is there
    for (unsigned polled = 1;; polled++) {
        if (!requested && there >> lane & 1) {
            request(part);
            requested = true;
        }
        if (!vote_sync_any(all_lanes, !requested)) break;
        if (!complete && polled == polls) {
            send(STORE_SLICE);
            barrier_sync(2, ALL);  // the own slice is in device memory, too
            if (lane == 0) word = atom_or_acq_rel_gpu_global(arrived, 1ull << (32 + part));
            complete = shfl_sync_idx(all_lanes, unsigned(word), 0) == all;
            if (!complete) {
                send(STORE_SLICE | LAST_SLICE);
                return;
            }
        }
        there = unsigned(ld_acquire_gpu_global(arrived));
    }
    send(part | (slices ? 0u : LAST_SLICE));
    while (slices) {
        const unsigned slice = 31 - __clz(slices);
        slices &= ~(1u << slice);
        barrier_sync(2, ALL);  // the room is free
        if (lane < parts) request(slice);
        send(slice | (slices ? 0u : LAST_SLICE));
    }
}

// The consumers' share of it, with their sums of the part: all but those of the own slice are stored in device memory, for the other CTAs.
template <class Tile, class Vector, class Sum, class Out>
__device__ __forceinline__ void add_parts(const Sum (&sums)[Tile::ROWS][Tile::COLUMNS / 2], Out& output, const PiecesOfTile<Tile>& pieces,
                                          unsigned part, Vector* stored, unsigned char* room, unsigned added, const unsigned* command,
                                          unsigned row, unsigned col, bool transposed) {
    constexpr unsigned BYTES = PiecesOfTile<Tile>::BYTES, COLUMNS = Tile::COLUMNS, WARPS = Tile::THREADS / 32;
    const unsigned warp = threadIdx.x / 32, lane = laneid(), most = pieces.most();
    const unsigned begin = pieces.begin(part), end = pieces.begin(part + 1);
    Vector* const own = reinterpret_cast<Vector*>(room + part * most * BYTES) + lane;
    const unsigned first_piece = pieces.number(0, warp);
    Vector* const own_first = own + int(first_piece - begin) * 32;
    Vector* const stored_first = stored + first_piece * 32 + lane;
    barrier_sync(1, Tile::THREADS);  // all consumers have read the ring, so that slices may take its place
#pragma unroll
    for (int v = 0; v < Tile::VECTORS; v++) {
        const Sum* d = &sums[v / (COLUMNS / 8)][v % (COLUMNS / 8) * 4];
        const Vector vector = {d[0], d[1], d[2], d[3]};
        const int further = pieces.number(v, 0);
        if (first_piece + further - begin < end - begin) own_first[further * 32] = vector;
        else if (first_piece + further < pieces.all()) stored_first[further * 32] = vector;
    }
    for (unsigned phase = 0;; phase ^= 1) {
        barrier_sync(2, Tile::THREADS + 32);
        mbarrier_wait(added, phase);
        const unsigned what = *command;
        if (what & STORE_SLICE) {
            if (what & LAST_SLICE) return;
#pragma unroll 1
            for (unsigned piece = begin + warp; piece < end; piece += WARPS) stored[piece * 32 + lane] = own[(piece - begin) * 32];
            continue;
        }
        const unsigned first = pieces.begin(what % 32), last = pieces.begin(what % 32 + 1);
        for (unsigned piece = first + warp; piece < last; piece += WARPS) {
            const unsigned char* const at = room + (piece - first) * BYTES + lane * sizeof(Vector);
            Vector sum = *reinterpret_cast<const Vector*>(at);
#pragma unroll 4
            for (unsigned p = 1; p < pieces.parts; p++) {
                const Vector more = *reinterpret_cast<const Vector*>(at + p * most * BYTES);
                sum = {sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w};
            }
            store_piece(sum, output, row + pieces.row(piece), col + pieces.col(piece), transposed);
        }
        if (what & LAST_SLICE) return;
    }
}

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
    __shared__ alignas(8) unsigned long long barriers[2 * STREAM_K_MAX_STAGES + 1];
    __shared__ unsigned command;
    const unsigned base = cvta_to_shared(shared), full = cvta_to_shared(barriers), empty = full + 8 * STREAM_K_MAX_STAGES;
    const unsigned added = empty + 8 * STREAM_K_MAX_STAGES;
    const unsigned warp = shfl_sync_idx(all_lanes, threadIdx.x / 32, 0), lane = laneid();
    const unsigned sharing = shares.sharing, b_sharing = shares.b_sharing, ctas = sharing * b_sharing;
    const unsigned readers = sharing + b_sharing - 1;  // CTAs that read what this one loads
    const unsigned rank = ctas > 1 ? cluster_ctarank() : 0, rank_a = rank % sharing, rank_b = rank / sharing;
    const unsigned clusters = gridDim.x / ctas, number = blockIdx.x / ctas;
    // Clusters beside each other have the same part of k, so that CTAs that read the same rows are near each other.
    const unsigned cluster = shares.parts ? number % shares.groups * shares.parts + number / shares.groups : number;
    if (threadIdx.x == 0) {
        prefetch_tensormap(a_map);
        prefetch_tensormap(b_map);
        for (unsigned s = 0; s < stages; s++) {
            mbarrier_init(full + 8 * s, 1);
            mbarrier_init(empty + 8 * s, 4 * CONSUMERS * readers);
        }
        mbarrier_init(added, 1);
        fence_mbarrier_init_release_cluster();
    }
    __syncwarp();
    if (ctas > 1) {
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
    // Parts of a tile that are added together are those of `parts` clusters, of which this one is number `share`.
    const unsigned tile_of_parts = shares.polls ? cluster / shares.parts : 0, share = cluster - tile_of_parts * shares.parts;
    const PiecesOfTile<Tile> pieces = {shares.parts, shares.rows * sharing};
    constexpr unsigned of_tile = Tile::VECTORS * Tile::THREADS;
    Vector* const of_parts = reinterpret_cast<Vector*>(partials) + size_t((cluster - share) * ctas + rank) * of_tile;
    if (warp == 4 * CONSUMERS) {
        if (elect_sync(all_lanes)) {
            const unsigned short same_a = ((1 << sharing) - 1) << rank_b * sharing;
            unsigned same_b = 0;
            for (unsigned i = 0; i < b_sharing; i++) same_b |= 1 << (i * sharing + rank_a);
            const unsigned own_columns = COLUMNS / b_sharing, own_rows = shares.rows;
            const unsigned bytes = (own_rows * sharing + COLUMNS) * WGMMA_ROW_BYTES;
            for (unsigned i = 0; part_at(i, part); i++) {
                const auto at = shares.place<Tile, BATCHED>(part.group, rank);
                const int row = at.row + rank_a * own_rows, col = at.col + rank_b * own_columns;
                for (unsigned step = part.begin; step < part.end; step++) {
                    const unsigned a = base + ring.stage * stage_bytes, barrier = full + 8 * ring.stage;
                    mbarrier_wait(empty + 8 * ring.stage, ring.parity ^ 1);
                    mbarrier_arrive_expect_tx(barrier, bytes);
                    load_shared_rows<Of::B_MAJOR, BATCHED>(a + a_bytes + rank_b * own_columns * WGMMA_ROW_BYTES, b_map, own_columns,
                                                           step * BK, col, barrier, same_b, b_sharing > 1, at.product);
                    load_shared_rows<Of::A_MAJOR, BATCHED>(a + rank_a * own_rows * WGMMA_ROW_BYTES, a_map, own_rows, step * BK,
                                                           row, barrier, same_a, sharing > 1, at.product);
                    ring.advance();
                }
            }
        }
        if (shares.polls) {
            __syncwarp();
            auto* const words = reinterpret_cast<unsigned long long*>(reinterpret_cast<Vector*>(partials) + size_t(gridDim.x) * of_tile);
            request_parts<Tile>(pieces, words + tile_of_parts * ctas + rank, share, shares.polls, of_parts, size_t(ctas) * of_tile, base,
                                added, &command);
        }
    } else {
        const unsigned consumer = warp / 4;
        // Only a stage that is filled again is released, so that no arrival is on its way to a CTA that may exit.
        const unsigned groups = shares.shares ? shares.whole : (shares.groups - 1 - cluster) / clusters + 1;
        unsigned left = groups * steps + end - begin;
        // This lane releases stages to one of the CTAs that load for this one: those with its rows of a, then the others.
        const unsigned other = lane - sharing;
        const unsigned target = lane < sharing ? rank_b * sharing + lane : (other + (other >= rank_b)) * sharing + rank_a;
        // What a step needs of its stage are sums with the stage's number, because with small tiles a step is short.
        const bool releases = ctas > 1 ? lane < readers : lane == 0;
        const unsigned empty_of_target = ctas > 1 && releases ? mapa_shared_cluster(empty, target) : empty;
        auto release = [&](unsigned released) {
            if (left-- <= stages || !releases) return;
            if (ctas == 1) mbarrier_arrive(empty_of_target + 8 * released);
            else mbarrier_arrive_shared_cluster(empty_of_target + 8 * released);
        };
        using OfA = OperandPlace<Of::A_MAJOR>;
        using OfB = OperandPlace<Of::B_MAJOR>;
        const OfA rows_of_a = OfA::of(base + consumer * ROWS * WGMMA_BLOCK_BYTES);
        const OfB rows_of_b = OfB::of(base + a_bytes);
        Sum sums[ROWS][COLUMNS / 2];
        for (unsigned i = 0; part_at(i, part); i++) {
            unsigned previous = 0;
            for (unsigned step = part.begin; step < part.end; step++) {
                const unsigned at = ring.stage * (stage_bytes >> 4);
                mbarrier_wait(full + 8 * ring.stage, ring.parity);
                wgmma_fence();
#pragma unroll
                for (int q = 0; q < WGMMA_ROW_BYTES / 32; q++) {
#pragma unroll
                    for (int i = 0; i < ROWS; i++) {
                        WgmmaOf<T>::template multiply<Of>(sums[i], rows_of_a.descriptor(at + q * OfA::STEP + i * OfA::BLOCK),
                                                          rows_of_b.descriptor(at + q * OfB::STEP), q > 0 || step > part.begin);
                    }
                }
                wgmma_commit_group();
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
            const unsigned loaded = shares.rows * sharing;  // of the tile, a multiple of 8
            const unsigned row = row_of_vector<Tile>(0, threadIdx.x);
            if (!whole && loaded < HEIGHT) {
#pragma unroll
                for (int v = 0; v < Tile::VECTORS; v++) {
                    Sum* d = &sums[v / (COLUMNS / 8)][v % (COLUMNS / 8) * 4];
                    if (row + v / (COLUMNS / 8) * 64 + 8 >= loaded) d[2] = d[3] = 0;
                }
            }
            if (shares.polls) {
                add_parts<Tile, Vector>(sums, output, pieces, share, of_parts + size_t(share * ctas) * of_tile, shared, added, &command,
                                        at.row, at.col, shares.transposed);
                break;  // it is the only part of this CTA
            }
            Vector* to = reinterpret_cast<Vector*>(partials);
#pragma unroll
            for (int v = 0; v < Tile::VECTORS; v++) {
                const Sum* d = &sums[v / (COLUMNS / 8)][v % (COLUMNS / 8) * 4];
                const Vector vector = {d[0], d[1], d[2], d[3]};
                if (whole) store_vector<Tile>(vector, output, v, threadIdx.x, at.row, at.col);
                else if (row + v / (COLUMNS / 8) * 64 < loaded)
                    to[partial_index<Tile>(cluster * ctas + rank, part.begin == 0, v, threadIdx.x)] = vector;
            }
        }
    }
}

// Sets the words of request_parts to 0, as the body of a kernel that is launched before the product. They are after the sums of `ctas` CTAs.
template <class Tile, class Sum>
__device__ __forceinline__ void clear_arrived(Sum* partials, unsigned ctas, unsigned tiles) {
    follow_previous_grid();
    auto* const words = reinterpret_cast<unsigned long long*>(partials + size_t(ctas) * (4 * Tile::VECTORS * Tile::THREADS));
    for (unsigned i = threadIdx.x; i < tiles; i += blockDim.x) words[i] = 0;
}

constexpr int SHARE_THREADS = 128;  // of a CTA of sum_of_shares

// A sum of the lane whose number differs in the bits of `mask`.
__device__ __forceinline__ float sum_of_lane(float sum, unsigned mask) { return shfl_sync_bfly(all_lanes, sum, mask); }
__device__ __forceinline__ int sum_of_lane(int sum, unsigned mask) {
    return static_cast<int>(shfl_sync_bfly(all_lanes, static_cast<unsigned>(sum), mask));
}

// Adds the vectors from(begin), ..., from(end - 1), for which `adders` lanes of a warp, a power of two, have consecutive ranges, and then
// their sums. AT_ONCE loads of a lane are in flight. All these lanes return the sum, and its order depends on the ranges alone. There is
// no shared memory, so that CTAs find room beside those of the previous grid, and wait there for its end.
template <class Vector, class From>
__device__ __forceinline__ Vector sum_of_parts(const From& from, unsigned begin, unsigned end, unsigned adders) {
    constexpr unsigned AT_ONCE = 4;
    Vector sum = {};
    auto add = [&](const Vector& more) { sum = {sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w}; };
    unsigned part = begin;
    for (; part + AT_ONCE <= end + 1; part += AT_ONCE) {
        Vector more[AT_ONCE];  // of three parts the last one twice: loads without a condition are issued together
#pragma unroll
        for (unsigned i = 0; i < AT_ONCE; i++) more[i] = from(min(part + i, end - 1));
#pragma unroll
        for (unsigned i = 0; i < AT_ONCE; i++) {
            if (part + i < end) add(more[i]);
        }
    }
    if (part + 1 < end) {
        const Vector more[2] = {from(part), from(part + 1)};
        add(more[0]);
        add(more[1]);
    } else if (part < end) {
        add(from(part));
    }
    for (unsigned mask = 32 / adders; mask < 32; mask *= 2) {
        sum = {sum.x + sum_of_lane(sum.x, mask), sum.y + sum_of_lane(sum.y, mask), sum.z + sum_of_lane(sum.z, mask),
               sum.w + sum_of_lane(sum.w, mask)};
    }
    return sum;
}

// Adds the partial sums of the tiles that several shares have, as the body of a kernel with SHARE_THREADS threads and a grid of
// (VECTORS x THREADS x adders / SHARE_THREADS, groups of tiles that are shared x CTAs of a cluster). `adders` lanes of a warp, at most
// 16, add consecutive parts of a vector: lanes beside each other have vectors beside each other.
template <class Tile, bool BATCHED = false, class Out, class Sum>
__device__ __forceinline__ void sum_of_shares(const Sum* partials, Out& output, const Shares& shares, unsigned adders) {
    using Vector = typename VectorOf<Sum>::type;
    const unsigned ctas = shares.sharing * shares.b_sharing, group = blockIdx.y / ctas, rank = blockIdx.y % ctas;
    const unsigned tile_begin = group * shares.steps;
    const unsigned first = shares.share_of(tile_begin), parts = shares.share_of(tile_begin + shares.steps - 1) + 1 - first;
    follow_previous_grid();
    if (parts == 1) return;  // the share has the whole tile, and has stored it
    const unsigned of_warp = 32 / adders, warp = blockIdx.x * (SHARE_THREADS / 32) + threadIdx.x / 32, lane = laneid();
    const unsigned index = warp * of_warp + lane % of_warp, vector = index / Tile::THREADS, thread = index % Tile::THREADS;
    const unsigned adder = lane / of_warp;
    if (row_of_vector<Tile>(vector, thread) >= shares.rows * shares.sharing) return;  // for all lanes: there are multiples of 8 rows
    const Vector* begun = reinterpret_cast<const Vector*>(partials) + partial_index<Tile>(first * ctas + rank, false, vector, thread);
    constexpr unsigned of_tile = Tile::VECTORS * Tile::THREADS;
    auto from = [&](unsigned part) { return begun[(2 * ctas * part + (part == 0)) * of_tile]; };
    const Vector sum = sum_of_parts<Vector>(from, parts * adder / adders, parts * (adder + 1) / adders, adders);
    if (adder > 0) return;
    const auto at = shares.place<Tile, BATCHED>(shares.whole * shares.shares + group, rank);
    if constexpr (BATCHED) output.product = at.product;
    store_vector<Tile>(sum, output, vector, thread, at.row, at.col);
}

}  // namespace ptxkit
