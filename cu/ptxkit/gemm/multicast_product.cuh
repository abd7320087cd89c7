// A product by wgmma for a few hundred rows of a: c^T = b a^T, where tiles have 64 rows of b or more and any multiple of 8 rows of
// a, so that one wave of tiles occupies the SMs, and where the CTAs of a cluster load both operands for each other.
//
// 1. A cluster computes `a_sharing` tiles with the same rows of a by `b_sharing` tiles with the same rows of b. Each CTA loads a
//     part of the rows of a for the CTAs with the same rows of a, and a part of the rows of b for those with the same rows of b
//     (multicast). L2 then delivers 1 / a_sharing of the bytes of a and 1 / b_sharing of those of b.
// 2. The low words of the matrix descriptors of a stage are computed once, and each instruction adds a constant: with few columns
//     an instruction takes tens of cycles, as many as the integer instructions that would compute its descriptors anew.
// 3. Small stages have 128 elements of 16 bits along k instead of 64 (DEPTH), so that half as many barriers are waited for. The
//     next stage is tested while this one is multiplied.
//
// 4. For a long k, `parts` groups of CTAs of a cluster multiply a part of k each. Every CTA then adds its share of the sums of all parts,
//     which it reads from their shared memory, in the order of the parts.
//
// A producer warp fills a ring of as many stages as shared memory holds. The sums, of c^T, are transposed through the memory of the
// ring. An epilogue has the member store(x, y, row, col) for two sums in neighbouring columns, of which the first is even, or, with
// stores_fours, store_four(sums, row, col); for batches also the member `product`.
//
// With two matrices, gate and up of n x k, c = silu(a gate^T) * (a up^T). The first half of the rows of b in a tile are rows of gate,
// the others the same rows of up.
#pragma once
#include "ptxkit/elementwise/activations.cuh"
#include "ptxkit/gemm/residual.cuh"
#include "ptxkit/gemm/shifted_rows.cuh"
#include "ptxkit/gemm/vector_output.cuh"
#include "ptxkit/gemm/wgmma_types.cuh"
#include "ptxkit/ptx/matrix.cuh"

namespace ptxkit {

enum : unsigned { MULTICAST_MAX_STAGES = 32 };

// A tile has 64 ROWS rows of b for each of CONSUMERS warpgroups, and TOKENS rows of a. A stage has DEPTH times 128 bytes along k.
template <int CONSUMERS_, int ROWS_, int TOKENS_, int DEPTH_>
struct MulticastTile {
    static constexpr int CONSUMERS = CONSUMERS_, ROWS = ROWS_, TOKENS = TOKENS_, DEPTH = DEPTH_, WEIGHTS = 64 * ROWS * CONSUMERS;
    static_assert(WEIGHTS <= 256 && TOKENS <= 256 && TOKENS % 8 == 0, "boxes of a tensor map have at most 256 rows");
    static constexpr int THREADS = 128 * CONSUMERS;  // that multiply
    // Where the sums of a thread need more than its share of the registers, a producer warpgroup of which one warp is busy gives up
    // its own (setmaxnreg). Descriptions know it as `gives_registers` (ptxkit/kernels/gemm/multicast.py).
    static constexpr bool GIVES_REGISTERS = CONSUMERS > 1 && ROWS * TOKENS / 2 > (CONSUMERS == 2 ? 128 : 88);
    static constexpr int ALL_THREADS = THREADS + (GIVES_REGISTERS ? 128 : 32);
    static constexpr int STAGE_BYTES = DEPTH * (WEIGHTS + TOKENS) * WGMMA_ROW_BYTES;
    static constexpr int PITCH = WEIGHTS + 4;  // sums from a row of the transposed tile to the next: no bank conflicts
};

// How a tile is divided among MATRICES matrices, of which it has the same rows.
template <class Tile, int MATRICES>
struct MatricesOfTile {
    static constexpr int COLS = Tile::WEIGHTS / MATRICES;  // of c
    // Whether a thread has the sums of all matrices for the same element of c; else they meet in shared memory.
    static constexpr bool IN_THREAD = Tile::ROWS % MATRICES == 0;
    static constexpr int OF_MATRIX = IN_THREAD ? Tile::ROWS / MATRICES : Tile::ROWS;  // neighbouring 64 rows of a consumer
    // Where the rows of b of a consumer's wgmma begin, after those of its first one
    static __device__ __forceinline__ constexpr int row(int i) { return i % OF_MATRIX * 64 + i / OF_MATRIX * COLS; }
    using Stored = MulticastTile<Tile::CONSUMERS, OF_MATRIX, Tile::TOKENS, Tile::DEPTH>;  // the sums of c in threads
};

// When the grid waits for the previous one, and the next one may start (follow_previous_grid in synchronization.cuh). WEIGHTS_FIRST:
// the ring is filled with rows of b before the wait, which the previous grid must not write, and during which the grids before that
// one must have completed: it must follow LATER.
enum class Follow { AT_ONCE, LATER, WEIGHTS_FIRST };

// Where the tiles of the clusters are. Clusters with the same rows of b follow each other.
struct MulticastGrid {
    unsigned a_sharing, b_sharing;  // CTAs of a cluster that have the same rows of a, and of b
    unsigned parts;                 // parts of k
    unsigned across;                // clusters along the rows of a
    unsigned of_product;            // clusters of a product of a batch
};

// Rows of b that TMA reads by one tensor map.
struct OneClass {
    static constexpr bool SEVERAL = false;
};

// Rows of b in classes, each with a tensor map: row `period` j + i of b is row j of class i, which has elements of other rows before
// its first one. There is a copy of a for each class, of `a_rows` rows, whose rows begin with as many zeros.
struct RowClasses {
    static constexpr bool SEVERAL = true;
    static constexpr unsigned MOST = 8;  // elements of 16 bits in 16 bytes
    const TensorMap* maps[MOST];
    unsigned period, a_rows, pitch;

    __device__ __forceinline__ const TensorMap* map(unsigned row_class) const {
        const TensorMap* found = maps[0];
#pragma unroll
        for (unsigned i = 1; i < MOST; i++) {
            if (i == row_class) found = maps[i];
        }
        return found;
    }

    // Elements of a row of the tensor map before those of b.
    __device__ __forceinline__ unsigned before(unsigned row_class) const { return row_class * pitch % MOST; }
};

// Whether an epilogue exchanges rows and columns, so that its rows are the columns of c.
template <class Out>
constexpr bool stores_transposed = false;

// Replaces the first `before` elements of 16 bits of `rows` rows of a tile by zeros, which the warpgroup does whose product reads them.
__device__ __forceinline__ void clear_before(unsigned tile, unsigned rows, unsigned before) {
    for (unsigned row = threadIdx.x % 128; row < rows; row += 128) {
        const unsigned at = tile + swizzled<128>(row * WGMMA_ROW_BYTES);
        const uint4 v = ld_shared_v4(at);
        auto kept = [&](unsigned word, unsigned first) { return before >= first + 2 ? 0 : before == first + 1 ? word & 0xffff0000 : word; };
        st_shared(at, uint4{kept(v.x, 0), kept(v.y, 2), kept(v.z, 4), kept(v.w, 6)});
    }
    fence_proxy_async_shared_cta();
}

// A sum of the lane whose row of c^T is the neighbour of this lane's.
__device__ __forceinline__ float neighbours(float sum) { return shfl_sync_bfly(all_lanes, sum, 4); }
__device__ __forceinline__ int neighbours(int sum) {
    return static_cast<int>(shfl_sync_bfly(all_lanes, static_cast<unsigned>(sum), 4));
}

// Adds four sums in the shared memory of a CTA of the cluster.
__device__ __forceinline__ void add_sums_of_cta(float4& sums, unsigned address) {
    const uint4 v = ld_shared_cluster_v4(address);
    sums.x += __uint_as_float(v.x), sums.y += __uint_as_float(v.y);
    sums.z += __uint_as_float(v.z), sums.w += __uint_as_float(v.w);
}
__device__ __forceinline__ void add_sums_of_cta(int4& sums, unsigned address) {
    const uint4 v = ld_shared_cluster_v4(address);
    sums.x += int(v.x), sums.y += int(v.y), sums.z += int(v.z), sums.w += int(v.w);
}

// Vectors of two and of four sums.
template <class Sum>
struct SumPair;
template <>
struct SumPair<float> {
    using type = float2;
    using four = float4;
};
template <>
struct SumPair<int> {
    using type = int2;
    using four = int4;
};

// Stores a tile of 16-bit elements by vectors of 8 of them: stmatrix transposes the elements of c^T on their way to shared memory, whose
// rows are those of c with 16 bytes more, so that there are no bank conflicts. The rows of c^T of this warp begin at `row`. A residual
// takes the way back: vectors of it are put where the elements of c will be, from where ldmatrix reads those of a thread's sums.
template <class Tile, class Sum, class Out>
__device__ __forceinline__ void store_vectors(const Sum (&sums)[Tile::ROWS][Tile::TOKENS / 2], const Out& output, unsigned char* shared,
                                              unsigned row, unsigned token, unsigned weight) {
    constexpr unsigned PITCH = 2 * Tile::WEIGHTS + 16, VECTORS = Tile::WEIGHTS / 8, PAIRS = Tile::TOKENS / 8;
    constexpr bool RESIDUAL = adds_residual<Out>;
    const unsigned lane = laneid(), rows = min(output.m - min(output.m, token), unsigned(Tile::TOKENS));
    if constexpr (RESIDUAL) {
#pragma unroll 8
        for (unsigned v = threadIdx.x; v < rows * VECTORS; v += Tile::THREADS) {
            const unsigned r = v / VECTORS, c = v % VECTORS;
            *reinterpret_cast<uint4*>(shared + r * PITCH + 16 * c) = output.residual_vector(token + r, weight + 8 * c);
        }
        barrier_sync(1, Tile::THREADS);
    }
#pragma unroll
    for (int i = 0; i < Tile::ROWS; i++) {
        // The lanes give the addresses of rows of 8 elements: of matrices for 8 tokens and 8 weights, the other 8 weights, and the
        // next 8 tokens.
        const unsigned at = cvta_to_shared(shared) + (lane / 16 * 8 + lane % 8) * PITCH + (row + 64 * i + lane / 8 % 2 * 8) * 2;
        const unsigned of_lane = weight + row + 64 * i + lane / 4;
        const auto upper = output.of_column(of_lane), lower = output.of_column(of_lane + 8);
        auto packed = [&](int j, unsigned added) {
            const Sum x = sums[i][2 * j], y = sums[i][2 * j + 1];
            if constexpr (RESIDUAL) return output.pack(x, y, j % 2 ? lower : upper, added);
            else return output.pack(x, y, j % 2 ? lower : upper);
        };
#pragma unroll
        for (int j = 0; j + 1 < PAIRS; j += 2) {
            unsigned four[4] = {};
            if constexpr (RESIDUAL) ldmatrix_x4_trans(four, at + 8 * j * PITCH);
#pragma unroll
            for (int p = 0; p < 4; p++) four[p] = packed(2 * j + p, four[p]);
            stmatrix_x4_trans(at + 8 * j * PITCH, four);
        }
        if constexpr (PAIRS % 2) {
            unsigned two[2] = {};
            if constexpr (RESIDUAL) ldmatrix_x2_trans(two, at + 8 * (PAIRS - 1) * PITCH);
#pragma unroll
            for (int p = 0; p < 2; p++) two[p] = packed(2 * PAIRS - 2 + p, two[p]);
            stmatrix_x2_trans(at + 8 * (PAIRS - 1) * PITCH, two);
        }
    }
    barrier_sync(1, Tile::THREADS);
#pragma unroll 4
    for (unsigned v = threadIdx.x; v < rows * VECTORS; v += Tile::THREADS) {
        const unsigned r = v / VECTORS, c = v % VECTORS;
        output.store(*reinterpret_cast<const uint4*>(shared + r * PITCH + 16 * c), token + r, weight + 8 * c);
    }
}

// The product of a with one matrix, or with gate and up, as the body of a kernel with ALL_THREADS threads, clusters of
// a_sharing x b_sharing x parts CTAs and dynamic shared memory for `stages` x STAGE_BYTES and for TOKENS x PITCH sums, which share it.
// k has `all_steps` of 128 DEPTH bytes, at least as many as parts. up_map is used with two matrices, whose rows are K-major.
template <class Tile, class T, class Of, int MATRICES, Follow FOLLOW, class Out, class Classes = OneClass,
          class Sum = typename WgmmaOf<T>::Sum>
__device__ __forceinline__ void multicast_products(const TensorMap& a_map, const TensorMap& only_b_map, const TensorMap& up_map, Out& output,
                                                   const MulticastGrid& grid, unsigned all_steps, unsigned stages,
                                                   const Classes& classes = {}) {
    using Matrices = MatricesOfTile<Tile, MATRICES>;
    static_assert(MATRICES == 1 || Of::B_MAJOR == K_MAJOR, "rows of gate and of up follow each other in shared memory");
    constexpr int CONSUMERS = Tile::CONSUMERS, ROWS = Tile::ROWS, TOKENS = Tile::TOKENS, WEIGHTS = Tile::WEIGHTS;
    constexpr int DEPTH = Tile::DEPTH, BK = wgmma_depth<T>, PITCH = Tile::PITCH, COLS = Matrices::COLS;
    constexpr bool BATCHED = Of::BATCHED;
    constexpr unsigned a_bytes = TOKENS * WGMMA_ROW_BYTES, b_bytes = WEIGHTS * WGMMA_ROW_BYTES, stage_bytes = Tile::STAGE_BYTES;
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ alignas(8) unsigned long long barriers[2 * MULTICAST_MAX_STAGES];
    const unsigned base = cvta_to_shared(shared), full = cvta_to_shared(barriers), empty = full + 8 * MULTICAST_MAX_STAGES;
    const unsigned warp = shfl_sync_idx(all_lanes, threadIdx.x / 32, 0), lane = laneid();
    const unsigned a_sharing = grid.a_sharing, b_sharing = grid.b_sharing, parts = grid.parts, of_part = a_sharing * b_sharing;
    const unsigned ctas = of_part * parts, rank = ctas > 1 ? cluster_ctarank() : 0, part = rank / of_part;
    const unsigned first = part * of_part, rank_b = (rank - first) / a_sharing, rank_a = rank - first - rank_b * a_sharing;
    const unsigned begin = all_steps * part / parts, steps = all_steps * (part + 1) / parts - begin;
    unsigned cluster = blockIdx.x / ctas;
    const unsigned product = BATCHED ? cluster / grid.of_product : 0;
    if constexpr (BATCHED) cluster -= product * grid.of_product;
    const unsigned readers = a_sharing + b_sharing - 1;  // CTAs that read what this one loads
    unsigned down = cluster / grid.across, row_class = 0;
    int of_class = 0;  // the first row of a
    const TensorMap* map_of_b = &only_b_map;
    if constexpr (Classes::SEVERAL) {
        row_class = down % classes.period;
        down /= classes.period;
        of_class = row_class * classes.a_rows;
        map_of_b = classes.map(row_class);
        output.row_class = row_class;
    }
    const TensorMap& b_map = *map_of_b;
    const int token = (cluster % grid.across * b_sharing + rank_b) * TOKENS;
    const int weight = (down * a_sharing + rank_a) * COLS;

    if (warp == 0) {
        if (lane < stages) {
            mbarrier_init(full + 8 * lane, 1);
            mbarrier_init(empty + 8 * lane, 4 * CONSUMERS * readers);
        }
        fence_mbarrier_init_release_cluster();
    } else if (warp == 4 * CONSUMERS && elect_sync(all_lanes)) {
        prefetch_tensormap(b_map);
        if constexpr (MATRICES > 1) prefetch_tensormap(up_map);
        prefetch_tensormap(a_map);
    }
    __syncwarp();
    if (ctas > 1) {
        barrier_cluster_arrive_relaxed();
        barrier_cluster_wait_acquire();
    } else {
        barrier_sync();
    }
    if constexpr (FOLLOW == Follow::AT_ONCE) follow_previous_grid();
    if constexpr (FOLLOW == Follow::LATER) follow_previous_grid_later();

    RingOf ring(stages);
    if (Tile::GIVES_REGISTERS ? warp >= 4 * CONSUMERS : warp == 4 * CONSUMERS) {
        if constexpr (Tile::GIVES_REGISTERS) {
            setmaxnreg_dec<24>();
            if (warp > 4 * CONSUMERS) return;
        }
        if (elect_sync(all_lanes)) {
            const unsigned a_rows = TOKENS / a_sharing, b_rows = COLS / b_sharing;
            const unsigned short same_a = ((1 << a_sharing) - 1) << (first + rank_b * a_sharing);
            unsigned same_b = 0;
            for (unsigned i = 0; i < b_sharing; i++) same_b |= 1 << (first + i * a_sharing + rank_a);
            const unsigned own_a = base + DEPTH * b_bytes + rank_a * a_rows * WGMMA_ROW_BYTES;
            const unsigned own_b = base + rank_b * b_rows * WGMMA_ROW_BYTES;
            // Loads the rows of b of 128 bytes along k, from element x on, for a stage that begins at `at`.
            auto load_b = [&](unsigned at, unsigned d, int x, unsigned barrier) {
#pragma unroll
                for (int matrix = 0; matrix < MATRICES; matrix++) {
                    load_shared_rows<Of::B_MAJOR, BATCHED>(own_b + at + d * b_bytes + matrix * COLS * WGMMA_ROW_BYTES,
                                                           matrix ? up_map : b_map, b_rows, x, weight + rank_b * b_rows, barrier, same_b,
                                                           b_sharing > 1, product);
                }
            };
            const unsigned early = FOLLOW == Follow::WEIGHTS_FIRST ? min(stages, steps) : 0;  // steps of b that are loaded before the wait
            if constexpr (FOLLOW == Follow::WEIGHTS_FIRST) {
                for (unsigned step = 0; step < early; step++) {
                    mbarrier_arrive_expect_tx(full + 8 * step, stage_bytes);
#pragma unroll
                    for (unsigned d = 0; d < DEPTH; d++) load_b(step * stage_bytes, d, ((begin + step) * DEPTH + d) * BK, full + 8 * step);
                }
                follow_previous_grid_later();  // of this CTA, only this thread reads what the previous grid wrote
            }
            for (unsigned step = 0; step < steps; step++) {
                const unsigned barrier = full + 8 * ring.stage, at = ring.stage * stage_bytes;
                const bool loaded = FOLLOW == Follow::WEIGHTS_FIRST && step < early;
                if (!loaded) {
                    mbarrier_wait(empty + 8 * ring.stage, ring.parity ^ 1);
                    mbarrier_arrive_expect_tx(barrier, stage_bytes);
                }
#pragma unroll
                for (unsigned d = 0; d < DEPTH; d++) {
                    const int x = ((begin + step) * DEPTH + d) * BK;
                    if (!loaded) load_b(at, d, x, barrier);
                    load_shared_rows<Of::A_MAJOR, BATCHED>(own_a + at + d * a_bytes, a_map, a_rows, x, of_class + token + rank_a * a_rows,
                                                           barrier, same_a, a_sharing > 1, product);
                }
                ring.advance();
            }
        }
        __syncwarp();
        return;
    }
    if constexpr (Tile::GIVES_REGISTERS) setmaxnreg_inc<CONSUMERS == 2 ? 240 : 160>();
    if constexpr (adds_residual<Out>) {
        request_elements<TOKENS, COLS, Tile::THREADS>(output.residual, token, weight, output.m, output.n, threadIdx.x);
    }
    const unsigned consumer = warp / 4;
    using OfB = OperandPlace<Of::B_MAJOR>;
    using OfA = OperandPlace<Of::A_MAJOR>;
    const OfB b = OfB::of(base + consumer * Matrices::OF_MATRIX * WGMMA_BLOCK_BYTES);
    const OfA a = OfA::of(base + DEPTH * b_bytes);
    // This lane releases stages to one of the CTAs that load for this one: those of its row of the cluster, then the others.
    const unsigned other = lane - a_sharing;
    const unsigned target = lane < a_sharing ? rank_b * a_sharing + lane : (other + (other >= rank_b)) * a_sharing + rank_a;  // + first
    const bool releases = lane < readers;
    const unsigned released = ctas > 1 && releases ? mapa_shared_cluster(empty, first + target) : empty;
    Sum sums[ROWS][TOKENS / 2];
    bool ready = false;
    unsigned previous = 0;
    for (unsigned step = 0; step < steps; step++) {
        const unsigned at = ring.stage * (stage_bytes >> 4);
        if (!ready) mbarrier_wait(full + 8 * ring.stage, ring.parity);
        if constexpr (Classes::SEVERAL) {
            if (begin + step == 0 && classes.before(row_class) > 0) {
                clear_before(base + consumer * ROWS * WGMMA_BLOCK_BYTES, 64 * ROWS, classes.before(row_class));
                barrier_sync(2 + consumer, 128);
            }
        }
        wgmma_fence();
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
#pragma unroll
            for (int q = 0; q < WGMMA_ROW_BYTES / 32; q++) {
#pragma unroll
                for (int i = 0; i < ROWS; i++) {
                    WgmmaOf<T>::template multiply<Operands<Of::B_MAJOR, Of::A_MAJOR>>(
                        sums[i],
                        b.descriptor(at + d * (b_bytes >> 4) + q * OfB::STEP +
                                     (MATRICES == 1 ? i * OfB::BLOCK : Matrices::row(i) * (OfB::BLOCK / 64))),
                        a.descriptor(at + d * (a_bytes >> 4) + q * OfA::STEP), d > 0 || q > 0 || step > 0);
                }
            }
        }
        wgmma_commit_group();
        const unsigned last = previous;
        previous = ring.stage;
        ring.advance();
        ready = step + 1 < steps && mbarrier_test_wait_parity(full + 8 * ring.stage, ring.parity);
        wgmma_wait_group<1>();  // the previous step is complete, this one is in flight
        // Only a stage that is filled again is released, so that no arrival is on its way to a CTA that may exit.
        if (step > 0 && step - 1 + stages < steps && releases) {
            if (ctas > 1) mbarrier_arrive_shared_cluster(released + 8 * last);
            else mbarrier_arrive(released + 8 * last);
        }
    }
    wait_for_sums(sums);
    barrier_sync(1, Tile::THREADS);  // all consumers have read the ring, and all of it has arrived

    if constexpr (BATCHED) output.product = product;
    if constexpr (stores_vectors<Out> && Matrices::IN_THREAD) {
        if (parts == 1 && output.whole_vectors()) {
            const unsigned first_row = consumer * Matrices::OF_MATRIX * 64 + warp % 4 * 16;
            if constexpr (MATRICES == 1) {
                store_vectors<Tile>(sums, output, shared, first_row, token, weight);
            } else {
                float made[ROWS / 2][TOKENS / 2];
#pragma unroll
                for (int i = 0; i < ROWS / 2; i++) {
#pragma unroll
                    for (int j = 0; j < TOKENS / 2; j++) made[i][j] = silu(sums[i][j]) * sums[i + ROWS / 2][j];
                }
                store_vectors<typename Matrices::Stored>(made, output, shared, first_row, token, weight);
            }
            return;
        }
    }
    using Pair = typename SumPair<Sum>::type;
    using Four = typename SumPair<Sum>::four;
    Sum* transposed = reinterpret_cast<Sum*>(shared);
    const unsigned odd = lane / 4 % 2;
    const unsigned row = consumer * Matrices::OF_MATRIX * 64 + warp % 4 * 16 + lane / 4 - odd, col = lane % 4 * 2 + odd;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
#pragma unroll
        for (int j = 0; j < TOKENS / 2; j += 2) {  // two columns of c^T, of this row, or of the row 8 further
            // lanes of neighbouring rows exchange one sum each, so that each has two neighbouring columns of c
            const Sum x = sums[i][j], y = sums[i][j + 1], got = neighbours(odd ? x : y);
            const Pair pair = odd ? Pair{got, y} : Pair{x, got};
            *reinterpret_cast<Pair*>(transposed + (col + j / 4 * 8) * PITCH + row + Matrices::row(i) + j % 4 * 4) = pair;
        }
    }
    const unsigned rows = min(output.m - min(output.m, unsigned(token)), unsigned(TOKENS));
    constexpr unsigned ROW = COLS / 4;  // vectors of sums in a row of c
    auto store = [&](const Four& four, unsigned r, unsigned c) {
        if constexpr (stores_fours<Out>) {
            output.store_four(four, token + r, weight + c);
        } else {
            output.store(four.x, four.y, token + r, weight + c);
            output.store(four.z, four.w, token + r, weight + c + 2);
        }
    };
    auto activated = [](const Four& gate, const Four& up) {
        return Four{silu(gate.x) * up.x, silu(gate.y) * up.y, silu(gate.z) * up.z, silu(gate.w) * up.w};
    };
    if (parts == 1) {
        barrier_sync(1, Tile::THREADS);
        if constexpr (stores_transposed<Out>) {  // neighbouring lanes store neighbouring elements, of a row of c
#pragma unroll 4
            for (unsigned v = threadIdx.x; v < rows * COLS; v += Tile::THREADS) {
                output.store(transposed[v % rows * PITCH + v / rows], token + v % rows, weight + v / rows);
            }
        } else if constexpr (shifts_rows<Out> && MATRICES == 1) {
#pragma unroll 4
            for (unsigned v = warp; v < rows * (COLS / 64); v += 4 * CONSUMERS) {
                const unsigned r = v / (COLS / 64), first = v % (COLS / 64) * 64;
                output.row(transposed + r * PITCH + first, token + r, weight + first, output.columns(weight + first));
            }
        } else {
#pragma unroll 4
            for (unsigned v = threadIdx.x; v < rows * ROW; v += Tile::THREADS) {
                const unsigned r = v / ROW, c = v % ROW * 4;
                const Four& four = *reinterpret_cast<const Four*>(transposed + r * PITCH + c);
                if constexpr (MATRICES == 1) store(four, r, c);
                else store(activated(four, *reinterpret_cast<const Four*>(transposed + r * PITCH + c + COLS)), r, c);
            }
        }
        return;
    }
    barrier_cluster_arrive_release();
    barrier_cluster_wait_acquire();
    // Each CTA adds every one of `parts` groups of vectors. They are stored when no CTA reads the sums of another one any more, so that
    // the release does not wait for stores to global memory.
    constexpr unsigned MOST = (TOKENS * ROW + 2 * Tile::THREADS - 1) / (2 * Tile::THREADS);
    Four own[MOST][MATRICES] = {};
    for (unsigned i = 0; i < parts; i++) {
        const unsigned from = mapa_shared_cluster(base, rank - first + i * of_part);
#pragma unroll
        for (unsigned j = 0; j < MOST; j++) {
            const unsigned v = (j * parts + part) * Tile::THREADS + threadIdx.x;
            if (v < rows * ROW) {
#pragma unroll
                for (int matrix = 0; matrix < MATRICES; matrix++) {
                    add_sums_of_cta(own[j][matrix], from + (v / ROW * PITCH + v % ROW * 4 + matrix * COLS) * sizeof(Sum));
                }
            }
        }
    }
    barrier_cluster_arrive_release();
#pragma unroll
    for (unsigned j = 0; j < MOST; j++) {
        const unsigned v = (j * parts + part) * Tile::THREADS + threadIdx.x;
        if (v < rows * ROW) {
            if constexpr (MATRICES == 1) store(own[j][0], v / ROW, v % ROW * 4);
            else store(activated(own[j][0], own[j][1]), v / ROW, v % ROW * 4);
        }
    }
    barrier_cluster_wait_acquire();  // no CTA exits while another one reads its sums
}

// The product with one matrix.
template <class Tile, class T, class Of, class Out>
__device__ __forceinline__ void multicast_product(const TensorMap& a_map, const TensorMap& b_map, Out& output, const MulticastGrid& grid,
                                                  unsigned all_steps, unsigned stages) {
    multicast_products<Tile, T, Of, 1, Follow::AT_ONCE>(a_map, b_map, b_map, output, grid, all_steps, stages);
}

}  // namespace ptxkit
