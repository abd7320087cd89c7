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
// A producer warp fills a ring of as many stages as shared memory holds. The sums, of c^T, are transposed through the memory of the
// ring. An epilogue has the member store(x, y, row, col) for two sums in neighbouring columns, of which the first is even; for
// batches also the member `product`.
#pragma once
#include "ptxkit/gemm/wgmma_types.cuh"

namespace ptxkit {

enum : unsigned { MULTICAST_MAX_STAGES = 32 };

// A tile has 64 ROWS rows of b for each of CONSUMERS warpgroups, and TOKENS rows of a. A stage has DEPTH times 128 bytes along k.
template <int CONSUMERS_, int ROWS_, int TOKENS_, int DEPTH_>
struct MulticastTile {
    static constexpr int CONSUMERS = CONSUMERS_, ROWS = ROWS_, TOKENS = TOKENS_, DEPTH = DEPTH_, WEIGHTS = 64 * ROWS * CONSUMERS;
    static_assert(WEIGHTS <= 256 && TOKENS <= 256 && TOKENS % 8 == 0, "boxes of a tensor map have at most 256 rows");
    static constexpr int THREADS = 128 * CONSUMERS;  // that multiply
    static constexpr int STAGE_BYTES = DEPTH * (WEIGHTS + TOKENS) * WGMMA_ROW_BYTES;
    static constexpr int PITCH = WEIGHTS + 4;  // sums from a row of the transposed tile to the next: no bank conflicts
};

// Where the tiles of the clusters are. Clusters with the same rows of b follow each other.
struct MulticastGrid {
    unsigned a_sharing, b_sharing;  // CTAs of a cluster that have the same rows of a, and of b
    unsigned across;                // clusters along the rows of a
    unsigned of_product;            // clusters of a product of a batch
};

// The matrix descriptor of an operand in two words: the upper one is a constant, and the lower one has the address / 16 in its low
// bits, so that other places of the same tile are sums. PTX ISA, "Matrix Descriptor Format"; see wgmma.cuh.
template <int MAJOR>
struct OperandPlace {
    static constexpr unsigned STEP = (MAJOR == K_MAJOR ? 32 : 16 * WGMMA_ROW_BYTES) >> 4;  // to the next 32 bytes along k
    static constexpr unsigned BLOCK = WGMMA_BLOCK_BYTES >> 4;                               // to the next 64 rows
    unsigned low;

    static __device__ __forceinline__ OperandPlace of(unsigned tile) {
        return {static_cast<unsigned>(operand_descriptor<MAJOR>(tile, 0))};
    }
    __device__ __forceinline__ unsigned long long descriptor(unsigned further) const {
        constexpr unsigned long long upper = (1024ull >> 4) << 32 | 1ull << 62;
        return upper | (low + further);
    }
};

// A sum of the lane whose row of c^T is the neighbour of this lane's.
__device__ __forceinline__ float neighbours(float sum) { return shfl_sync_bfly(all_lanes, sum, 4); }
__device__ __forceinline__ int neighbours(int sum) {
    return static_cast<int>(shfl_sync_bfly(all_lanes, static_cast<unsigned>(sum), 4));
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

// The product as the body of a kernel with 128 CONSUMERS + 32 threads, clusters of a_sharing x b_sharing CTAs and dynamic shared
// memory for `stages` x STAGE_BYTES and for TOKENS x PITCH sums, which share it. `steps` of 128 DEPTH bytes along k.
template <class Tile, class T, class Of, class Out, class Sum = typename WgmmaOf<T>::Sum>
__device__ __forceinline__ void multicast_product(const TensorMap& a_map, const TensorMap& b_map, Out& output,
                                                  const MulticastGrid& grid, unsigned steps, unsigned stages) {
    constexpr int CONSUMERS = Tile::CONSUMERS, ROWS = Tile::ROWS, TOKENS = Tile::TOKENS, WEIGHTS = Tile::WEIGHTS;
    constexpr int DEPTH = Tile::DEPTH, BK = wgmma_depth<T>, PITCH = Tile::PITCH;
    constexpr bool BATCHED = Of::BATCHED;
    constexpr unsigned a_bytes = TOKENS * WGMMA_ROW_BYTES, b_bytes = WEIGHTS * WGMMA_ROW_BYTES, stage_bytes = Tile::STAGE_BYTES;
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ alignas(8) unsigned long long barriers[2 * MULTICAST_MAX_STAGES];
    const unsigned base = cvta_to_shared(shared), full = cvta_to_shared(barriers), empty = full + 8 * MULTICAST_MAX_STAGES;
    const unsigned warp = shfl_sync_idx(all_lanes, threadIdx.x / 32, 0), lane = laneid();
    const unsigned a_sharing = grid.a_sharing, b_sharing = grid.b_sharing, ctas = a_sharing * b_sharing;
    const unsigned rank = ctas > 1 ? cluster_ctarank() : 0, rank_b = rank / a_sharing, rank_a = rank - rank_b * a_sharing;
    unsigned cluster = blockIdx.x / ctas;
    const unsigned product = BATCHED ? cluster / grid.of_product : 0;
    if constexpr (BATCHED) cluster -= product * grid.of_product;
    const unsigned readers = a_sharing + b_sharing - 1;  // CTAs that read what this one loads
    const int token = (cluster % grid.across * b_sharing + rank_b) * TOKENS;
    const int weight = (cluster / grid.across * a_sharing + rank_a) * WEIGHTS;

    if (warp == 0) {
        if (lane < stages) {
            mbarrier_init(full + 8 * lane, 1);
            mbarrier_init(empty + 8 * lane, 4 * CONSUMERS * readers);
        }
        fence_mbarrier_init_release_cluster();
    } else if (warp == 4 * CONSUMERS && elect_sync(all_lanes)) {
        prefetch_tensormap(b_map);
        prefetch_tensormap(a_map);
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
    if (warp == 4 * CONSUMERS) {
        if (elect_sync(all_lanes)) {
            const unsigned a_rows = TOKENS / a_sharing, b_rows = WEIGHTS / b_sharing;
            const unsigned short same_a = ((1 << a_sharing) - 1) << rank_b * a_sharing;
            unsigned same_b = 0;
            for (unsigned i = 0; i < b_sharing; i++) same_b |= 1 << (i * a_sharing + rank_a);
            const unsigned own_a = base + DEPTH * b_bytes + rank_a * a_rows * WGMMA_ROW_BYTES;
            const unsigned own_b = base + rank_b * b_rows * WGMMA_ROW_BYTES;
            for (unsigned step = 0; step < steps; step++) {
                const unsigned barrier = full + 8 * ring.stage, at = ring.stage * stage_bytes;
                mbarrier_wait(empty + 8 * ring.stage, ring.parity ^ 1);
                mbarrier_arrive_expect_tx(barrier, stage_bytes);
#pragma unroll
                for (unsigned d = 0; d < DEPTH; d++) {
                    const int x = (step * DEPTH + d) * BK;
                    load_shared_rows<Of::B_MAJOR, BATCHED>(own_b + at + d * b_bytes, b_map, b_rows, x, weight + rank_b * b_rows,
                                                           barrier, same_b, b_sharing > 1, product);
                    load_shared_rows<Of::A_MAJOR, BATCHED>(own_a + at + d * a_bytes, a_map, a_rows, x, token + rank_a * a_rows,
                                                           barrier, same_a, a_sharing > 1, product);
                }
                ring.advance();
            }
        }
        __syncwarp();
        return;
    }
    const unsigned consumer = warp / 4;
    using OfB = OperandPlace<Of::B_MAJOR>;
    using OfA = OperandPlace<Of::A_MAJOR>;
    const OfB b = OfB::of(base + consumer * ROWS * WGMMA_BLOCK_BYTES);
    const OfA a = OfA::of(base + DEPTH * b_bytes);
    // This lane releases stages to one of the CTAs that load for this one: those of its row of the cluster, then the others.
    const unsigned other = lane - a_sharing;
    const unsigned target = lane < a_sharing ? rank_b * a_sharing + lane : (other + (other >= rank_b)) * a_sharing + rank_a;
    const bool releases = lane < readers;
    const unsigned released = ctas > 1 && releases ? mapa_shared_cluster(empty, target) : empty;
    Sum sums[ROWS][TOKENS / 2];
    bool ready = false;
    unsigned previous = 0;
    for (unsigned step = 0; step < steps; step++) {
        const unsigned at = ring.stage * (stage_bytes >> 4);
        if (!ready) mbarrier_wait(full + 8 * ring.stage, ring.parity);
        wgmma_fence();
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
#pragma unroll
            for (int q = 0; q < WGMMA_ROW_BYTES / 32; q++) {
#pragma unroll
                for (int i = 0; i < ROWS; i++) {
                    WgmmaOf<T>::template multiply<Operands<Of::B_MAJOR, Of::A_MAJOR>>(
                        sums[i], b.descriptor(at + d * (b_bytes >> 4) + i * OfB::BLOCK + q * OfB::STEP),
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

    using Pair = typename SumPair<Sum>::type;
    using Four = typename SumPair<Sum>::four;
    Sum* transposed = reinterpret_cast<Sum*>(shared);
    const unsigned odd = lane / 4 % 2;
    const unsigned row = consumer * ROWS * 64 + warp % 4 * 16 + lane / 4 - odd, col = lane % 4 * 2 + odd;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
#pragma unroll
        for (int j = 0; j < TOKENS / 2; j += 2) {  // two columns of c^T, of this row, or of the row 8 further
            // lanes of neighbouring rows exchange one sum each, so that each has two neighbouring columns of c
            const Sum x = sums[i][j], y = sums[i][j + 1], got = neighbours(odd ? x : y);
            const Pair pair = odd ? Pair{got, y} : Pair{x, got};
            *reinterpret_cast<Pair*>(transposed + (col + j / 4 * 8) * PITCH + row + 64 * i + j % 4 * 4) = pair;
        }
    }
    barrier_sync(1, Tile::THREADS);
    if constexpr (BATCHED) output.product = product;
    const unsigned rows = min(output.m - min(output.m, unsigned(token)), unsigned(TOKENS));
#pragma unroll 4
    for (unsigned v = threadIdx.x; v < rows * (WEIGHTS / 4); v += Tile::THREADS) {
        const unsigned r = v / (WEIGHTS / 4), c = v % (WEIGHTS / 4) * 4;
        const Four four = *reinterpret_cast<const Four*>(transposed + r * PITCH + c);
        output.store(four.x, four.y, token + r, weight + c);
        output.store(four.z, four.w, token + r, weight + c + 2);
    }
}

}  // namespace ptxkit
