// A product with a 2:4 sparse matrix (sparse.cuh) for up to some hundred rows of a: c = a b^T, where a is m x k, b is n x k and c is m x n,
// all row-major. The time is that of reading b, so that all SMs should read it at the same time, with as many bytes in flight as shared
// memory holds.
//
// 1. A tile has 64 rows of b or more and any multiple of 8 rows of a: wgmma.mma_async.sp takes the sparse matrix as its first operand and
//     computes c^T.
// 2. A stage has 128 bytes of the stored elements of each row of b, which are 256 bytes of the dense matrix and of the rows of a: TMA reads
//     whole cache lines.
// 3. A cluster computes `a_sharing` tiles with the same rows of a by `b_sharing` tiles with the same rows of b, whose CTAs load both
//     operands for each other, as in multicast_product.cuh.
// 4. `parts` groups of CTAs of a cluster multiply a part of k each. Every CTA then adds its share of the sums of all parts, which it reads
//     from their shared memory, in the order of the parts: all launches give the same bits.
//
// With GATED there are two sparse matrices of n x k, gate and up, and c = silu(a gate^T) * (a up^T). Half of the rows of b in a tile are
// rows of gate, the others the same rows of up.
//
// The weights do not depend on the grid before this one if only a was computed by it: with WEIGHTS_FIRST the ring is filled with weights
// before the grid waits for the previous one, whose kernel calls follow_previous_grid_later().
#pragma once
#include "ptxkit/gemm/multicast_product.cuh"
#include "ptxkit/gemm/sparse_product.cuh"
#include "ptxkit/ptx/wgmma_sparse_columns.cuh"

namespace ptxkit {

// A tile has 64 ROWS rows of b for each of CONSUMERS warpgroups, and TOKENS rows of a. MATRICES: 2 with GATED.
template <class T, int CONSUMERS_, int ROWS_, int TOKENS_, int MATRICES_>
struct SparseClusterTile {
    static constexpr int CONSUMERS = CONSUMERS_, ROWS = ROWS_, TOKENS = TOKENS_, MATRICES = MATRICES_;
    static constexpr int WEIGHTS = SPARSE_ROWS * ROWS * CONSUMERS, COLS = WEIGHTS / MATRICES;  // COLS: of c
    static_assert(COLS <= 256 && TOKENS <= 256 && TOKENS % 8 == 0, "boxes of a tensor map have at most 256 rows");
    static_assert(ROWS % MATRICES == 0, "a consumer has the same rows of each matrix");
    static constexpr int THREADS = 128 * CONSUMERS;  // that multiply
    static constexpr int STEPS = 2;                  // stages of the metadata in a stage of the ring
    static constexpr int BOX_WORDS = 256;            // of metadata of a block of 64 rows, the largest box of a tensor map
    static constexpr int BOXES = STEPS * Sparse<T>::block / BOX_WORDS;
    static constexpr int b_bytes = WEIGHTS * WGMMA_ROW_BYTES, a_bytes = TOKENS * WGMMA_ROW_BYTES;
    static constexpr int box_bytes = WEIGHTS / SPARSE_ROWS * BOX_WORDS * 4;  // of the metadata of all rows
    static constexpr int a = b_bytes, metadata = a + STEPS * a_bytes;        // in a stage
    static constexpr int STAGE_BYTES = metadata + BOXES * box_bytes;
    // Where the rows of b of a consumer's wgmma begin, after those of its first one: the second half of these is of the second matrix.
    static __device__ __forceinline__ constexpr int row(int i) {
        return i % (ROWS / MATRICES) * SPARSE_ROWS + i / (ROWS / MATRICES) * COLS;
    }
    // The sums of c, and those that are transposed to be added
    using Stored = MulticastTile<CONSUMERS, ROWS / MATRICES, TOKENS, 1>;
    static constexpr int PITCH = WEIGHTS + 4;  // sums from a row of the transposed tile to the next: no bank conflicts
};

// A consumer's metadata of a stage of the ring.
template <class T, class Tile>
struct StageMetadata {
    unsigned words[Tile::STEPS][Tile::ROWS][Sparse<T>::words];

    // From the metadata of a stage in shared memory; `block` is that of the first rows of the consumer.
    __device__ __forceinline__ void load(const unsigned char* from, unsigned block) {
        constexpr int of_block = Tile::BOX_WORDS * 4, of_step = Tile::BOXES == 1 ? of_block / 2 : Tile::box_bytes;
        from += block * of_block + threadIdx.x % 128 * (4 * Sparse<T>::words);
#pragma unroll
        for (int step = 0; step < Tile::STEPS; step++) {
#pragma unroll
            for (int i = 0; i < Tile::ROWS; i++) {
                const unsigned char* at = from + step * of_step + Tile::row(i) / SPARSE_ROWS * of_block;
                if constexpr (Sparse<T>::words == 2) {
                    const uint2 both = *reinterpret_cast<const uint2*>(at);
                    words[step][i][0] = valid_metadata(both.x);
                    words[step][i][1] = valid_metadata(both.y);
                } else {
                    words[step][i][0] = valid_metadata(ld_word(at));
                }
            }
        }
    }
};

// Multiplies a stage, asynchronously, as one wgmma group. The metadata must not change before the products are complete.
template <class T, class Tile>
__device__ __forceinline__ void multiply_sparse_stage(float (&sums)[Tile::ROWS][Tile::TOKENS / 2], OperandPlace<K_MAJOR> b,
                                                      OperandPlace<K_MAJOR> a, const StageMetadata<T, Tile>& metadata, bool accumulate) {
    constexpr int of_row = WGMMA_ROW_BYTES >> 4, of_step = Tile::a_bytes >> 4;
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < Tile::STEPS; step++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
#pragma unroll
            for (int i = 0; i < Tile::ROWS; i++) {
                const unsigned long long of_b = b.descriptor(Tile::row(i) * of_row + (2 * step + half) * OperandPlace<K_MAJOR>::STEP);
                const unsigned long long of_a = a.descriptor(step * of_step + half * 2 * OperandPlace<K_MAJOR>::STEP);
                const bool add = accumulate || step > 0 || half > 0;
                if (half == 0) wgmma_sparse<0>(sums[i], of_b, of_a, metadata.words[step][i][0], add, T());
                else wgmma_sparse<1>(sums[i], of_b, of_a, metadata.words[step][i][Sparse<T>::words - 1], add, T());
            }
        }
    }
    wgmma_commit_group();
}

// Loads a box, for the CTAs of `mask` if these are several.
__device__ __forceinline__ void load_for(unsigned to, const TensorMap& map, int x, int y, unsigned barrier, unsigned mask, bool several) {
    if (several) cp_async_bulk_tensor_2d_shared_global_multicast(to, map, x, y, barrier, static_cast<unsigned short>(mask));
    else cp_async_bulk_tensor_2d_shared_global(to, map, x, y, barrier);
}

// Adds the sums of all parts of k, and stores this CTA's share of the tile. (token, weight) is the first element of the tile.
template <class Tile, class Out>
__device__ __forceinline__ void store_sums_of_parts(const float (&sums)[Tile::ROWS][Tile::TOKENS / 2], const Out& output,
                                                    unsigned char* shared, unsigned parts, unsigned part, unsigned rank, unsigned of_part,
                                                    unsigned token, unsigned weight) {
    constexpr int TOKENS = Tile::TOKENS, PITCH = Tile::PITCH, MATRICES = Tile::MATRICES, COLS = Tile::COLS;
    const unsigned lane = laneid(), warp = shfl_sync_idx(all_lanes, threadIdx.x / 32, 0), base = cvta_to_shared(shared);
    float* transposed = reinterpret_cast<float*>(shared);
    const unsigned odd = lane / 4 % 2, col = lane % 4 * 2 + odd;
    const unsigned row = warp / 4 * (Tile::ROWS / MATRICES) * SPARSE_ROWS + warp % 4 * 16 + lane / 4 - odd;
#pragma unroll
    for (int i = 0; i < Tile::ROWS; i++) {
#pragma unroll
        for (int j = 0; j < TOKENS / 2; j += 2) {  // two columns of c^T, of this row, or of the row 8 further
            // lanes of neighbouring rows exchange one sum each, so that each has two neighbouring columns of c
            const float x = sums[i][j], y = sums[i][j + 1], got = neighbours(odd ? x : y);
            const float2 pair = odd ? float2{got, y} : float2{x, got};
            *reinterpret_cast<float2*>(transposed + (col + j / 4 * 8) * PITCH + row + Tile::row(i) + j % 4 * 4) = pair;
        }
    }
    barrier_cluster_arrive_release();
    barrier_cluster_wait_acquire();
    // Each CTA adds every one of `parts` groups of vectors. They are stored when no CTA reads the sums of another one any more, so that
    // the release does not wait for stores to global memory.
    constexpr unsigned ROW = COLS / 4, MOST = (TOKENS * ROW + 2 * Tile::THREADS - 1) / (2 * Tile::THREADS);
    const unsigned rows = min(output.m - min(output.m, token), unsigned(TOKENS));
    float4 own[MOST][MATRICES] = {};
    for (unsigned i = 0; i < parts; i++) {
        const unsigned from = mapa_shared_cluster(base, rank + (i - part) * of_part);
#pragma unroll
        for (unsigned j = 0; j < MOST; j++) {
            const unsigned v = (j * parts + part) * Tile::THREADS + threadIdx.x;
            if (v < rows * ROW) {
#pragma unroll
                for (int matrix = 0; matrix < MATRICES; matrix++) {
                    add_sums_of_cta(own[j][matrix], from + (v / ROW * PITCH + v % ROW * 4 + matrix * COLS) * 4);
                }
            }
        }
    }
    barrier_cluster_arrive_release();
#pragma unroll
    for (unsigned j = 0; j < MOST; j++) {
        const unsigned v = (j * parts + part) * Tile::THREADS + threadIdx.x;
        if (v < rows * ROW) {
            float4 sum = own[j][0];
            if constexpr (MATRICES > 1) {
                const float4 up = own[j][1];
                sum = {silu(sum.x) * up.x, silu(sum.y) * up.y, silu(sum.z) * up.z, silu(sum.w) * up.w};
            }
            output.store(sum.x, sum.y, token + v / ROW, weight + v % ROW * 4);
            output.store(sum.z, sum.w, token + v / ROW, weight + v % ROW * 4 + 2);
        }
    }
    barrier_cluster_wait_acquire();  // no CTA exits while another one reads its sums
}

// The product as the body of a kernel with 128 CONSUMERS + 32 threads, clusters of a_sharing x b_sharing x parts CTAs and dynamic shared
// memory for `stages` x STAGE_BYTES, and for TOKENS x PITCH sums where k has several parts, which share it. k has `all_steps` stages, at
// least as many as parts. up_values and up_metadata are used with two matrices.
template <class Tile, class T, bool WEIGHTS_FIRST, class Out>
__device__ __forceinline__ void sparse_cluster_product(const TensorMap& a_map, const TensorMap& values, const TensorMap& metadata,
                                                       const TensorMap& up_values, const TensorMap& up_metadata, const Out& output,
                                                       const MulticastGrid& grid, unsigned all_steps, unsigned stages) {
    constexpr int CONSUMERS = Tile::CONSUMERS, ROWS = Tile::ROWS, TOKENS = Tile::TOKENS, MATRICES = Tile::MATRICES;
    constexpr int COLS = Tile::COLS, stage_bytes = Tile::STAGE_BYTES;
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ alignas(8) unsigned long long barriers[2 * MULTICAST_MAX_STAGES];
    const unsigned base = cvta_to_shared(shared), full = cvta_to_shared(barriers), empty = full + 8 * MULTICAST_MAX_STAGES;
    const unsigned warp = shfl_sync_idx(all_lanes, threadIdx.x / 32, 0), lane = laneid();
    const unsigned a_sharing = grid.a_sharing, b_sharing = grid.b_sharing, parts = grid.parts, of_part = a_sharing * b_sharing;
    const unsigned ctas = of_part * parts, rank = ctas > 1 ? cluster_ctarank() : 0, part = rank / of_part;
    const unsigned first = part * of_part, rank_b = (rank - first) / a_sharing, rank_a = rank - first - rank_b * a_sharing;
    const unsigned begin = all_steps * part / parts, steps = all_steps * (part + 1) / parts - begin;
    const unsigned cluster = blockIdx.x / ctas, readers = a_sharing + b_sharing - 1;  // readers: CTAs that read what this one loads
    const unsigned token = (cluster % grid.across * b_sharing + rank_b) * TOKENS;
    const unsigned weight = (cluster / grid.across * a_sharing + rank_a) * COLS;

    if (warp == 0) {
        if (lane < stages) {
            mbarrier_init(full + 8 * lane, 1);
            mbarrier_init(empty + 8 * lane, 4 * CONSUMERS * readers);
        }
        fence_mbarrier_init_release_cluster();
    } else if (warp == 4 * CONSUMERS && elect_sync(all_lanes)) {
        prefetch_tensormap(values);
        prefetch_tensormap(metadata);
        prefetch_tensormap(a_map);
        if constexpr (MATRICES > 1) {
            prefetch_tensormap(up_values);
            prefetch_tensormap(up_metadata);
        }
    }
    __syncwarp();
    if (ctas > 1) {
        barrier_cluster_arrive_relaxed();
        barrier_cluster_wait_acquire();
    } else {
        barrier_sync();
    }
    // Only the producer reads what the previous grid wrote, and the sums, which are stored, depend on it.
    if constexpr (!WEIGHTS_FIRST) follow_previous_grid_later();

    RingOf ring(stages);
    if (warp == 4 * CONSUMERS) {
        if (elect_sync(all_lanes)) {
            const unsigned a_rows = TOKENS / a_sharing, b_rows = COLS / b_sharing;
            const unsigned same_a = ((1 << a_sharing) - 1) << (first + rank_b * a_sharing);
            unsigned same_b = 0;
            for (unsigned i = 0; i < b_sharing; i++) same_b |= 1 << (first + i * a_sharing + rank_a);
            const int row = weight + rank_b * b_rows;
            auto load_weights_of = [&](unsigned step, unsigned stage) {
                const unsigned barrier = full + 8 * stage, at = base + stage * stage_bytes;
                mbarrier_arrive_expect_tx(barrier, stage_bytes);
#pragma unroll
                for (int matrix = 0; matrix < MATRICES; matrix++) {
                    const unsigned place = matrix * COLS + rank_b * b_rows;  // of the rows in the tile
                    load_for(at + place * WGMMA_ROW_BYTES, matrix ? up_values : values, (begin + step) * Sparse<T>::k, row, barrier, same_b,
                             b_sharing > 1);
#pragma unroll
                    for (int box = 0; box < Tile::BOXES; box++) {
                        const unsigned to = at + Tile::metadata + box * Tile::box_bytes + place / SPARSE_ROWS * (Tile::BOX_WORDS * 4);
                        load_for(to, matrix ? up_metadata : metadata, ((begin + step) * Tile::BOXES + box) * Tile::BOX_WORDS,
                                 row / SPARSE_ROWS, barrier, same_b, b_sharing > 1);
                    }
                }
            };
            auto load_tokens_of = [&](unsigned step, unsigned stage) {
                const unsigned at = base + stage * stage_bytes + Tile::a + rank_a * a_rows * WGMMA_ROW_BYTES;
#pragma unroll
                for (int i = 0; i < Tile::STEPS; i++) {
                    load_for(at + i * Tile::a_bytes, a_map, ((begin + step) * Tile::STEPS + i) * Sparse<T>::k, token + rank_a * a_rows,
                             full + 8 * stage, same_a, a_sharing > 1);
                }
            };
            const unsigned early = WEIGHTS_FIRST ? min(stages, steps) : 0;
            if constexpr (WEIGHTS_FIRST) {
                for (unsigned step = 0; step < early; step++) load_weights_of(step, step);
                follow_previous_grid_later();
            }
            for (unsigned step = 0; step < steps; step++) {
                if (!WEIGHTS_FIRST || step >= early) {
                    mbarrier_wait(empty + 8 * ring.stage, ring.parity ^ 1);
                    load_weights_of(step, ring.stage);
                }
                load_tokens_of(step, ring.stage);
                ring.advance();
            }
        }
        __syncwarp();
        return;
    }
    const unsigned consumer = warp / 4, block = consumer * (ROWS / MATRICES);
    const auto b = OperandPlace<K_MAJOR>::of(base + block * SPARSE_ROWS * WGMMA_ROW_BYTES);
    const auto a = OperandPlace<K_MAJOR>::of(base + Tile::a);
    // This lane releases stages to one of the CTAs that load for this one: those of its row of the cluster, then the others.
    const unsigned other = lane - a_sharing;
    const unsigned target = lane < a_sharing ? rank_b * a_sharing + lane : (other + (other >= rank_b)) * a_sharing + rank_a;  // + first
    const bool releases = lane < readers;
    const unsigned released = ctas > 1 && releases ? mapa_shared_cluster(empty, first + target) : empty;
    float sums[ROWS][TOKENS / 2];
    StageMetadata<T, Tile> even, odd;  // of two steps: the tensor cores still read that of the previous one
    bool ready = false;
    unsigned previous = 0;
    auto multiply = [&](StageMetadata<T, Tile>& words, unsigned step) {
        const unsigned at = ring.stage * stage_bytes;
        if (!ready) mbarrier_wait(full + 8 * ring.stage, ring.parity);
        words.load(shared + at + Tile::metadata, block);
        multiply_sparse_stage(sums, {b.low + (at >> 4)}, {a.low + (at >> 4)}, words, step > 0);
        const unsigned last = previous;
        previous = ring.stage;
        ring.advance();
        ready = step + 1 < steps && mbarrier_test_wait_parity(full + 8 * ring.stage, ring.parity);
        wgmma_wait_group<1>();  // the previous step is complete, this one is in flight
        // Only a stage that is filled again is released, so that no arrival is on its way to a CTA that may exit.
        if (step > 0 && step - 1 + stages < steps) {
            __syncwarp();  // all lanes have read their metadata
            if (releases) {
                if (ctas > 1) mbarrier_arrive_shared_cluster(released + 8 * last);
                else mbarrier_arrive(released + 8 * last);
            }
        }
    };
    for (unsigned step = 0; step < steps; step += 2) {
        multiply(even, step);
        if (step + 1 == steps) break;
        multiply(odd, step + 1);
    }
    wait_for_sums(sums);
    barrier_sync(1, Tile::THREADS);  // all consumers have read the ring, and all of it has arrived
    if (parts > 1) {
        store_sums_of_parts<Tile>(sums, output, shared, parts, part, rank, of_part, token, weight);
        return;
    }
    const unsigned col = block * SPARSE_ROWS + warp % 4 * 16;
    if constexpr (MATRICES == 1) {
        store_vectors<typename Tile::Stored>(sums, output, shared, col, token, weight);
    } else {
        float made[ROWS / 2][TOKENS / 2];
#pragma unroll
        for (int i = 0; i < ROWS / 2; i++) {
#pragma unroll
            for (int j = 0; j < TOKENS / 2; j++) made[i][j] = silu(sums[i][j]) * sums[i + ROWS / 2][j];
        }
        store_vectors<typename Tile::Stored>(made, output, shared, col, token, weight);
    }
}

}  // namespace ptxkit
