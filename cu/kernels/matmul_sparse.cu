// Matrix product with 2:4 sparse weights: c = a b^T, where a is m x k, b is n x k and c is m x n, all row-major. Of
// every four neighbouring elements of a row of b, two are stored, as cu/ptxkit/gemm/sparse.cuh describes;
// sparse_compress.cu writes this form. In bf16 and f16 with results of the same type, in e4m3 with results in bf16;
// sums are f32.
//
// The tensor cores take the sparse operand first: a warp computes c^T = b a^T, and has columns of c in the rows of its
// sums. They are transposed when they are stored.
//
// Each of the five steps adds one idea to the step before:
//
// 1. `matmul_sparse_mma`, for sm_80: mma.sp. cp.async fills a ring of stages with 64 elements of k: swizzled tiles of a
//     and of the stored elements of b, and the metadata.
// 2. `matmul_sparse_tma`, for sm_90a: TMA loads a stage, then a warpgroup multiplies it by wgmma.mma_async.sp from
//     shared memory, with the metadata in registers. Loads and products do not overlap.
// 3. `matmul_sparse_specialized`: a producer warpgroup fills a ring of stages, consumer warpgroups multiply. One stage is
//     multiplied while the next one is awaited and its metadata is loaded, to other registers.
// 4. Persistent CTAs in an order that shares tiles in L2 (grouped_tile); the consumers get the producer's registers
//     (setmaxnreg), and store through shared memory (stmatrix.trans) by TMA, during the products of the next tile.
// 5. Clusters: CTAs that need the same tile of a, or of b, load parts of it and multicast them.
#include "ptxkit/gemm/gemm.cuh"
#include "ptxkit/gemm/sparse.cuh"
#include "ptxkit/ptx/async_copy.cuh"
#include "ptxkit/ptx/bulk_copy.cuh"
#include "ptxkit/ptx/cluster.cuh"
#include "ptxkit/ptx/matrix.cuh"
#include "ptxkit/ptx/mbarrier.cuh"
#include "ptxkit/ptx/special_registers.cuh"
#include "ptxkit/ptx/synchronization.cuh"
#include "ptxkit/ptx/tensor_map.cuh"
#include "ptxkit/ptx/wgmma.cuh"
#include "ptxkit/ptx/wgmma_sparse.cuh"
#include "ptxkit/target.cuh"

using namespace ptxkit;

constexpr int A_ROW = SPARSE_BYTES;      // bytes of a row of a tile of a, the span of its swizzle
constexpr int B_ROW = SPARSE_BYTES / 2;  // the same of the stored elements of b

// Stores a warp's sums of 16 columns and 8 rows of c from registers: 4 bytes per thread, 16 contiguous bytes per 4
// threads. d is a fragment of c^T; (row, col) is its first element in c.
template <class Out>
__device__ __forceinline__ void store_transposed(const float* d, Out* c, unsigned row, unsigned col, unsigned m,
                                                 unsigned n) {
    row += laneid() / 4;
    col += laneid() % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const unsigned pair = movmatrix_trans(Convert<Out>::pack(d[2 * half], d[2 * half + 1]));
        const unsigned at = col + 8 * half;
        if (row < m && at < n) *reinterpret_cast<unsigned*>(c + static_cast<size_t>(row) * n + at) = pair;
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Step 1: mma.sp

__device__ __forceinline__ unsigned ld_word(const unsigned char* address) {
    return *reinterpret_cast<const unsigned*>(address);
}

template <int SELECTOR>
__device__ __forceinline__ void mma_sparse(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[4], unsigned word,
                                           bf16) {
    mma_sp_sync_m16n8k32_f32_bf16_bf16<SELECTOR>(d, a, b, word);
}
template <int SELECTOR>
__device__ __forceinline__ void mma_sparse(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[4], unsigned word,
                                           f16) {
    mma_sp_sync_m16n8k32_f32_f16_f16<SELECTOR>(d, a, b, word);
}

// Copies a tile of ROWS rows of ROW_BYTES, swizzled, from (row, byte) of an array of `rows` rows of `pitch` bytes, by
// cp.async. Atoms of 16 bytes outside of the array are zeros.
template <int ROWS, int ROW_BYTES, int THREADS>
__device__ __forceinline__ void copy_tile(unsigned tile, const void* array, unsigned row, unsigned rows, unsigned byte,
                                          unsigned pitch) {
    constexpr int row_atoms = ROW_BYTES / 16, step = THREADS / row_atoms;
    static_assert(THREADS % row_atoms == 0 && ROWS % step == 0, "as many atoms for each thread");
    const unsigned r = threadIdx.x / row_atoms, column = threadIdx.x % row_atoms * 16;
    const char* from = static_cast<const char*>(array) + byte + column;
#pragma unroll
    for (int i = 0; i < ROWS; i += step) {
        const bool inside = row + r + i < rows && byte + column < pitch;
        const size_t offset = inside ? static_cast<size_t>(row + r + i) * pitch : 0;
        cp_async_cg_shared_global(tile + swizzled<ROW_BYTES>((r + i) * ROW_BYTES + column),
                                  inside ? from + offset : array, inside ? 16 : 0);
    }
}

// A warp's products of half a stage: number PART, 32 elements of k. The offsets are those of this lane's ldmatrix
// addresses in the first half.
template <int PART, class T, int B_PARTS, int A_PARTS>
__device__ __forceinline__ void multiply_half(float (&sums)[B_PARTS][A_PARTS][4], unsigned a_tile, unsigned a_offset,
                                              unsigned b_tile, unsigned b_offset, const unsigned (&words)[B_PARTS], T) {
    unsigned b[B_PARTS][4];
#pragma unroll
    for (int i = 0; i < B_PARTS; i++) ldmatrix_x4(b[i], b_tile + 16 * i * B_ROW + (b_offset ^ PART * 32));
#pragma unroll
    for (int j = 0; j < A_PARTS; j++) {
        unsigned a[4];
        ldmatrix_x4(a, a_tile + 8 * j * A_ROW + (a_offset ^ PART * 64));
#pragma unroll
        for (int i = 0; i < B_PARTS; i++) mma_sparse<PART>(sums[i][j], b[i], a, words[i], T());
    }
}

// Tile parameters of matmul_sparse_mma. The description gives them by name (SparseMmaTile in
// ptxkit/kernels/gemm/matmul_sparse.py).
template <int BM_, int BN_, int WM_, int WN_, int STAGES_, int GROUP_>
struct SparseMmaTile {
    static constexpr int BM = BM_, BN = BN_;  // rows and columns of c in a tile
    static constexpr int WM = WM_, WN = WN_;  // of these a warp's
    static constexpr int STAGES = STAGES_;    // of the ring
    static constexpr int GROUP = GROUP_;      // of grouped_tile
    static constexpr int warps_across = BN / WN, threads = 32 * (BM / WM) * warps_across;
    static constexpr int a_bytes = BM * A_ROW, b_bytes = BN * B_ROW, metadata_bytes = BN / SPARSE_ROWS * 512;
    static constexpr int stage_bytes = (a_bytes + b_bytes + metadata_bytes + 1023) / 1024 * 1024;
    static_assert(BM % WM == 0 && BN % WN == 0 && BN % SPARSE_ROWS == 0, "whole warps and blocks of metadata");
    static_assert(WM % 8 == 0 && WN % 16 == 0, "whole fragments");
    static_assert(STAGES >= 2, "one stage is multiplied while another is filled");
};

template <class T, class S>
__global__ void __launch_bounds__(S::threads) matmul_sparse_mma(const T* a, const T* values, const unsigned* metadata,
                                                                T* c, int m, int n, int k) {
    constexpr int BM = S::BM, BN = S::BN, WM = S::WM, WN = S::WN, STAGES = S::STAGES;
    using L = Sparse<T>;
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned base = cvta_to_shared(shared), lane = laneid();
    const unsigned warp = shfl_sync_idx(all_lanes, threadIdx.x / 32, 0);
    const unsigned warp_row = warp / S::warps_across * WM, warp_col = warp % S::warps_across * WN;
    const TileIndex t = grouped_tile<S::GROUP>(blockIdx.x, (m - 1) / BM + 1, (n - 1) / BN + 1);
    const unsigned steps = (k - 1) / L::k + 1, blocks = (n - 1) / SPARSE_ROWS + 1;

    // Past the last step the copies are zeros.
    auto fill = [&](unsigned step) {
        const unsigned stage = base + step % STAGES * S::stage_bytes;
        copy_tile<BM, A_ROW, S::threads>(stage, a, t.row * BM, m, step * A_ROW, 2 * k);
        copy_tile<BN, B_ROW, S::threads>(stage + S::a_bytes, values, t.col * BN, n, step * B_ROW, k);
        const unsigned block = t.col * (BN / SPARSE_ROWS) + threadIdx.x / 32;
        if (threadIdx.x < S::metadata_bytes / 16) {
            const bool inside = block < blocks && step < steps;
            const size_t first = inside ? (static_cast<size_t>(block) * steps + step) * L::block + lane * 4 : 0;
            cp_async_cg_shared_global(stage + S::a_bytes + S::b_bytes + threadIdx.x * 16, metadata + first,
                                      inside ? 16 : 0);
        }
        cp_async_commit_group();
    };
    // ldmatrix: for 16 rows of b lanes 0-15 hold the addresses of rows, lanes 16-31 those of the same rows 8 elements
    // further; for 8 rows of a lanes 0-7 hold those of rows, and the next lanes those 8, 16 and 24 elements further.
    const unsigned b_offset = swizzled<B_ROW>((warp_col + lane % 16) * B_ROW + lane / 16 * 16);
    const unsigned a_offset = swizzled<A_ROW>((warp_row + lane % 8) * A_ROW + lane / 8 * 16);

    follow_previous_grid();
#pragma unroll
    for (int step = 0; step < STAGES - 1; step++) fill(step);
    float sums[WN / 16][WM / 8][4] = {};
    for (unsigned step = 0; step < steps; step++) {
        cp_async_wait_group<STAGES - 2>();
        barrier_sync();  // the stage is filled, and all warps have read the stage before, which is filled next
        fill(step + STAGES - 1);
        const unsigned stage = step % STAGES * S::stage_bytes, a_tile = base + stage, b_tile = a_tile + S::a_bytes;
        const unsigned char* words = shared + stage + S::a_bytes + S::b_bytes + warp_col * 8 + lane * 4;
        unsigned positions[WN / 16];
#pragma unroll
        for (int i = 0; i < WN / 16; i++) positions[i] = valid_metadata(ld_word(words + i * 128));
        multiply_half<0>(sums, a_tile, a_offset, b_tile, b_offset, positions, T());
        multiply_half<1>(sums, a_tile, a_offset, b_tile, b_offset, positions, T());
    }
    const unsigned row = t.row * BM + warp_row, col = t.col * BN + warp_col;
#pragma unroll
    for (int i = 0; i < WN / 16; i++) {
#pragma unroll
        for (int j = 0; j < WM / 8; j++) store_transposed(sums[i][j], c, row + 8 * j, col + 16 * i, m, n);
    }
    cp_async_wait_all();  // shared memory is released when the CTA exits
}

// ---------------------------------------------------------------------------------------------------------------------
// wgmma: what steps 2 to 5 have in common

// A warpgroup's metadata of a stage, for ROWS blocks of 64 rows.
template <class T, int ROWS>
struct Metadata {
    unsigned words[ROWS][Sparse<T>::words];

    // From the metadata of the first block in shared memory.
    __device__ __forceinline__ void load(const unsigned char* from) {
        from += threadIdx.x % 128 * (4 * Sparse<T>::words);
#pragma unroll
        for (int i = 0; i < ROWS; i++, from += 4 * Sparse<T>::block) {
            if constexpr (Sparse<T>::words == 2) {
                const uint2 both = *reinterpret_cast<const uint2*>(from);
                words[i][0] = valid_metadata(both.x);
                words[i][1] = valid_metadata(both.y);
            } else {
                words[i][0] = valid_metadata(ld_word(from));
            }
        }
    }
};

// Multiplies one stage: 64 ROWS columns x BM rows of c, from a tile of the stored elements of b and a tile of a.
// Asynchronous, one wgmma group. The tensor cores read the metadata from its registers while they multiply, so that the
// registers must not be written before the products are complete: on an H200, results are wrong if they are.
template <class T, int ROWS, int SUMS>
__device__ __forceinline__ void multiply_stage(float (&sums)[ROWS][SUMS], unsigned b, unsigned a,
                                               const Metadata<T, ROWS>& metadata, bool accumulate) {
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        wgmma_sparse<0>(sums[i], matrix_descriptor_64B(b + i * 64 * B_ROW), matrix_descriptor_128B(a),
                        metadata.words[i][0], accumulate, T());
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        wgmma_sparse<1>(sums[i], matrix_descriptor_64B(b + i * 64 * B_ROW + 32), matrix_descriptor_128B(a + 64),
                        metadata.words[i][Sparse<T>::words - 1], true, T());
    }
    wgmma_commit_group();
}

template <int ROWS, int SUMS>
__device__ __forceinline__ void wait_for_sums(float (&sums)[ROWS][SUMS]) {
    wgmma_wait_group<0>();
#pragma unroll
    for (int i = 0; i < ROWS; i++) warpgroup_fence_operand(sums[i]);
}

// Stores a warpgroup's sums directly from registers. (row, col) is its first element of c.
template <class Out, int ROWS, int SUMS>
__device__ __forceinline__ void store_from_registers(const float (&sums)[ROWS][SUMS], Out* c, unsigned row,
                                                     unsigned col, unsigned m, unsigned n) {
    col += threadIdx.x % 128 / 32 * 16;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
#pragma unroll
        for (int j = 0; j < SUMS; j += 4) store_transposed(&sums[i][j], c, row + 2 * j, col + 64 * i, m, n);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Step 2: one warpgroup, one stage in shared memory

template <class T, class Out, int BM, int BN>
__global__ void __launch_bounds__(128) matmul_sparse_tma(const __grid_constant__ TensorMap a_map,
                                                         const __grid_constant__ TensorMap values_map,
                                                         const __grid_constant__ TensorMap metadata_map, Out* c, int m,
                                                         int n, int k) {
    constexpr int ROWS = BN / SPARSE_ROWS, metadata_bytes = ROWS * Sparse<T>::block * 4;
    static_assert(BN % SPARSE_ROWS == 0 && BM * BN <= 128 * 128, "64 columns per wgmma, and 128 sums per thread");
    __shared__ alignas(1024) unsigned char a_tile[BM * A_ROW], b_tile[BN * B_ROW];
    __shared__ alignas(128) unsigned char words[metadata_bytes];
    __shared__ alignas(8) unsigned long long arrived;
    const unsigned a = cvta_to_shared(a_tile), b = cvta_to_shared(b_tile), barrier = cvta_to_shared(&arrived);
    const int row = blockIdx.y * BM, col = blockIdx.x * BN;
    if (threadIdx.x == 0) {
        mbarrier_init(barrier, 1);
        fence_mbarrier_init_release_cluster();
    }
    barrier_sync();
    follow_previous_grid();

    float sums[ROWS][BM / 2];
    Metadata<T, ROWS> metadata;
    for (int step = 0; step * Sparse<T>::k < k; step++) {
        if (threadIdx.x == 0) {
            mbarrier_arrive_expect_tx(barrier, sizeof a_tile + sizeof b_tile + sizeof words);
            cp_async_bulk_tensor_2d_shared_global(a, a_map, step * Sparse<T>::k, row, barrier);
            cp_async_bulk_tensor_2d_shared_global(b, values_map, step * (Sparse<T>::k / 2), col, barrier);
            cp_async_bulk_tensor_2d_shared_global(cvta_to_shared(words), metadata_map, step * Sparse<T>::block,
                                                  col / SPARSE_ROWS, barrier);
        }
        mbarrier_wait(barrier, step % 2);
        metadata.load(words);
        multiply_stage(sums, b, a, metadata, step > 0);
        wait_for_sums(sums);
        barrier_sync();  // all four warps have read the stage
    }
    store_from_registers(sums, c, row, col, m, n);
}

// ---------------------------------------------------------------------------------------------------------------------
// Steps 3 to 5: a producer warpgroup and CONSUMERS consumer warpgroups

enum Store { FROM_REGISTERS = 0, BY_TMA = 1 };

// Tile parameters of matmul_sparse_specialized. The description gives them by name (SparseTile in
// ptxkit/kernels/gemm/matmul_sparse.py).
template <int BM_, int BN_, int CONSUMERS_, int STAGES_, int CLUSTER_M_, int CLUSTER_N_, int GROUP_, int REGISTERS_,
          int STORE_, int BOXES_>
struct SparseTile {
    static constexpr int BM = BM_, BN = BN_;      // rows and columns of c in a tile
    static constexpr int CONSUMERS = CONSUMERS_;  // warpgroups that multiply, each for BN / CONSUMERS columns
    static constexpr int STAGES = STAGES_;        // of the ring
    // tiles of c that a cluster computes at a time
    static constexpr int CLUSTER_M = CLUSTER_M_, CLUSTER_N = CLUSTER_N_;
    static constexpr int GROUP = GROUP_;          // of grouped_tile, in units of clusters
    static constexpr int REGISTERS = REGISTERS_;  // of a consumer thread after setmaxnreg; 0: no setmaxnreg
    static constexpr int STORE = STORE_;          // FROM_REGISTERS or BY_TMA
    static constexpr int BOXES = BOXES_;          // boxes of c that a consumer may have in flight
};

// The shared memory of a CTA as byte offsets: a ring of stages, boxes of c for each consumer, mbarriers.
template <class T, class Tile>
struct Layout {
    static constexpr int a_bytes = Tile::BM * A_ROW, b_bytes = Tile::BN * B_ROW;
    static constexpr int metadata_bytes = Tile::BN / SPARSE_ROWS * Sparse<T>::block * 4;
    static constexpr int loaded = a_bytes + b_bytes + metadata_bytes, stage_bytes = (loaded + 1023) / 1024 * 1024;
    static constexpr int b = a_bytes, metadata = b + b_bytes;  // in a stage
    // Each CTA of a row of the cluster loads every CLUSTER_N-th part of the tile of a.
    static constexpr int a_parts = Tile::CLUSTER_N == 1 ? 1 : Tile::BM % 16 ? 5 : 2, a_part = Tile::BM / a_parts;
    static constexpr int box_rows = Tile::BM % 32 == 0 ? 32 : Tile::BM % 40 == 0 ? 40 : 88;
    static constexpr int box_cols = 64, box_bytes = box_rows * box_cols * 2;
    static_assert(Tile::BM % box_rows == 0, "whole boxes of c");
    static_assert(a_part % 8 == 0 && Tile::BN % (SPARSE_ROWS * Tile::CLUSTER_M) == 0,
                  "parts that are multicast are whole swizzle patterns and blocks of metadata");
    static_assert(a_part <= 256, "rows of a box of a tensor map");
    static constexpr int c = Tile::STAGES * stage_bytes;
    static constexpr int full = c + (Tile::STORE == BY_TMA ? Tile::CONSUMERS * Tile::BOXES * box_bytes : 0);
    static constexpr int empty = full + 8 * Tile::STAGES;
    static constexpr int bytes = empty + 8 * Tile::STAGES;
    static_assert(bytes <= TargetLimits::SHARED_BYTES_PER_CTA, "fewer stages, a smaller tile or fewer boxes");
};

// Stores a warpgroup's sums through shared memory: its warps write swizzled boxes of BOX_ROWS rows x 64 columns of c,
// each warp 16 of the columns, and one thread issues their TMA stores, of which up to BOXES are in flight. `barrier` is
// a named barrier of the warpgroup.
template <class Out, int BOXES, int BOX_ROWS, int ROWS, int SUMS>
__device__ __forceinline__ void store_by_tma(const float (&sums)[ROWS][SUMS], const TensorMap& c_map, unsigned boxes,
                                             unsigned row, unsigned col, unsigned barrier) {
    constexpr int boxes_down = 2 * SUMS / BOX_ROWS, all = ROWS * boxes_down, used = BOXES < all ? BOXES : all;
    static_assert(all % used == 0,
                  "a tile begins with the first box, which must be the one that has been in flight longest");
    const unsigned thread = threadIdx.x % 128, lane = thread % 32;
    // stmatrix: lanes 0-7 hold the addresses of 8 rows of c, lanes 8-15 those of the next 8 columns, lanes 16-31 those
    // of the next 8 rows.
    const unsigned offset = (lane / 16 * 8 + lane % 8) * 128 + (thread / 32 * 2 + lane / 8 % 2) * 16;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
#pragma unroll
        for (int j = 0; j < boxes_down; j++) {
            const unsigned box = boxes + (i * boxes_down + j) % used * BOX_ROWS * 128;
            // the previous contents of this box have been read
            if (thread == 0) cp_async_bulk_wait_group_read<used - 1>();
            barrier_sync(barrier, 128);
#pragma unroll
            for (int q = 0; q < BOX_ROWS / 16; q++) {
                const float* d = &sums[i][BOX_ROWS / 2 * j + 8 * q];
                const unsigned pairs[4] = {Convert<Out>::pack(d[0], d[1]), Convert<Out>::pack(d[2], d[3]),
                                           Convert<Out>::pack(d[4], d[5]), Convert<Out>::pack(d[6], d[7])};
                stmatrix_x4_trans(box + swizzled<128>(offset + q * 16 * 128), pairs);
            }
            if constexpr (BOX_ROWS % 16 == 8) {
                const float* d = &sums[i][BOX_ROWS / 2 * j + BOX_ROWS / 2 - 4];
                const unsigned pairs[2] = {Convert<Out>::pack(d[0], d[1]), Convert<Out>::pack(d[2], d[3])};
                stmatrix_x2_trans(box + swizzled<128>(offset + (BOX_ROWS - 8) * 128), pairs);
            }
            fence_proxy_async_shared_cta();
            barrier_sync(barrier, 128);
            if (thread == 0) {
                cp_async_bulk_tensor_2d_global_shared(c_map, col + 64 * i, row + BOX_ROWS * j, box);
                cp_async_bulk_commit_group();
            }
        }
    }
}

// The CTAs of a cluster compute CLUSTER_M x CLUSTER_N neighbouring tiles. CTAs in a column of these share a tile of b
// and its metadata, CTAs in a row share a tile of a: each loads a part of it and multicasts that part to the others.
template <class T, class Out, class Tile>
__global__ void __launch_bounds__(128 * (Tile::CONSUMERS + 1), 1) matmul_sparse_specialized(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap values_map,
    const __grid_constant__ TensorMap metadata_map, const __grid_constant__ TensorMap c_map, Out* c, int m, int n,
    int k) {
    constexpr int BM = Tile::BM, BN = Tile::BN, CONSUMERS = Tile::CONSUMERS, STAGES = Tile::STAGES, GROUP = Tile::GROUP;
    constexpr int CLUSTER_M = Tile::CLUSTER_M, CLUSTER_N = Tile::CLUSTER_N, REGISTERS = Tile::REGISTERS;
    constexpr int CLUSTER = CLUSTER_M * CLUSTER_N, ROWS = BN / CONSUMERS / SPARSE_ROWS;  // ROWS: wgmmas of a consumer
    static_assert(BN == SPARSE_ROWS * ROWS * CONSUMERS, "a consumer has a multiple of 64 columns");
    static_assert(ROWS * BM <= (REGISTERS >= 240 ? 400 : 256),
                  "a thread holds at most 128 sums, or 200 with 240 registers");
    static_assert(CLUSTER_N <= 2, "the mask of CTAs in a row has two bits");
    using L = Layout<T, Tile>;
    using S = Sparse<T>;
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned base = cvta_to_shared(shared);
    auto full = [&](unsigned stage) { return base + L::full + 8 * stage; };
    auto empty = [&](unsigned stage) { return base + L::empty + 8 * stage; };
    // The shuffle tells the compiler that the value is the same in all lanes.
    const unsigned warp = shfl_sync_idx(all_lanes, threadIdx.x / 32, 0);
    const unsigned rank = CLUSTER > 1 ? cluster_ctarank() : 0, rank_m = rank % CLUSTER_M, rank_n = rank / CLUSTER_M;

    if (threadIdx.x == 0) {
        prefetch_tensormap(a_map);
        prefetch_tensormap(values_map);
        prefetch_tensormap(metadata_map);
        if (Tile::STORE == BY_TMA) prefetch_tensormap(c_map);
        // one lane of each warp that reads what this CTA loads
        init_ring<STAGES>(full(0), 1, empty(0), (CLUSTER_M + CLUSTER_N - 1) * CONSUMERS * 4);
    }
    if constexpr (CLUSTER > 1) {
        barrier_cluster_arrive_release();
        barrier_cluster_wait_acquire();
    } else {
        barrier_sync();
    }
    follow_previous_grid();

    const unsigned tile_rows = (m - 1) / (BM * CLUSTER_M) + 1, tile_cols = (n - 1) / (BN * CLUSTER_N) + 1;
    const unsigned tiles = tile_rows * tile_cols, steps = (k - 1) / S::k + 1;
    Ring<STAGES> at;
    if (warp < 4) {
        if constexpr (REGISTERS > 0) setmaxnreg_dec<24>();
        if (warp == 0 && elect_sync(all_lanes)) {
            // Direction along k, which alternates: a tile begins with the columns that the previous one left in L2.
            bool backwards = false;
            for (unsigned tile = blockIdx.x / CLUSTER; tile < tiles; tile += gridDim.x / CLUSTER) {
                const TileIndex t = grouped_tile<GROUP>(tile, tile_rows, tile_cols);
                const int row = (t.row * CLUSTER_M + rank_m) * BM, col = (t.col * CLUSTER_N + rank_n) * BN;
#pragma unroll 1  // the producer has few registers
                for (unsigned i = 0; i < steps; i++) {
                    const unsigned step = backwards ? steps - 1 - i : i;
                    constexpr int b_part = BN / CLUSTER_M;  // rows of b that this CTA loads
                    const unsigned stage = base + at.stage * L::stage_bytes;
                    const unsigned b = stage + L::b + rank_m * b_part * B_ROW;
                    const unsigned words = stage + L::metadata + rank_m * (b_part / SPARSE_ROWS) * S::block * 4;
                    const int x = step * S::k, b_row = col + rank_m * b_part;
                    mbarrier_wait(empty(at.stage), at.parity ^ 1);
                    mbarrier_arrive_expect_tx(full(at.stage), L::loaded);
                    if constexpr (CLUSTER_N > 1) {
                        const unsigned short same_row = (1 | 1 << CLUSTER_M) << rank_m;
#pragma unroll 1
                        for (unsigned part = rank_n; part < L::a_parts; part += CLUSTER_N) {
                            cp_async_bulk_tensor_2d_shared_global_multicast(stage + part * L::a_part * A_ROW, a_map, x,
                                                                            row + part * L::a_part, full(at.stage),
                                                                            same_row);
                        }
                    } else {
                        cp_async_bulk_tensor_2d_shared_global(stage, a_map, x, row, full(at.stage));
                    }
                    if constexpr (CLUSTER_M > 1) {
                        const unsigned short same_col = ((1 << CLUSTER_M) - 1) << rank_n * CLUSTER_M;
                        cp_async_bulk_tensor_2d_shared_global_multicast(b, values_map, x / 2, b_row, full(at.stage),
                                                                        same_col);
                        cp_async_bulk_tensor_2d_shared_global_multicast(words, metadata_map, step * S::block,
                                                                        b_row / SPARSE_ROWS, full(at.stage), same_col);
                    } else {
                        cp_async_bulk_tensor_2d_shared_global(b, values_map, x / 2, b_row, full(at.stage));
                        cp_async_bulk_tensor_2d_shared_global(words, metadata_map, step * S::block,
                                                              b_row / SPARSE_ROWS, full(at.stage));
                    }
                    at.advance();
                }
                backwards = !backwards;
            }
        }
    } else {
        if constexpr (REGISTERS > 0) setmaxnreg_inc<REGISTERS>();
        const unsigned consumer = warp / 4 - 1, lane = laneid();
        float sums[ROWS][BM / 2];
        Metadata<T, ROWS> even, odd;  // of two steps: the tensor cores still read that of the previous one
        // Signals every CTA that loads into this CTA's stage that the stage is free.
        auto release = [&](unsigned stage) {
            __syncwarp();  // all lanes have read their metadata
            if constexpr (CLUSTER == 1) {
                if (lane == 0) mbarrier_arrive(empty(stage));
            } else if (lane < CLUSTER && (lane % CLUSTER_M == rank_m || lane / CLUSTER_M == rank_n)) {
                mbarrier_arrive_shared_cluster(mapa_shared_cluster(empty(stage), lane));
            }
        };
        for (unsigned tile = blockIdx.x / CLUSTER; tile < tiles; tile += gridDim.x / CLUSTER) {
            const TileIndex t = grouped_tile<GROUP>(tile, tile_rows, tile_cols);
            const unsigned row = (t.row * CLUSTER_M + rank_m) * BM,
                           col = (t.col * CLUSTER_N + rank_n) * BN + consumer * SPARSE_ROWS * ROWS;
            unsigned previous = 0;
            auto multiply = [&](Metadata<T, ROWS>& metadata, unsigned step) {
                const unsigned offset = at.stage * L::stage_bytes, stage = base + offset;
                mbarrier_wait(full(at.stage), at.parity);
                metadata.load(shared + offset + L::metadata + consumer * ROWS * S::block * 4);
                multiply_stage(sums, stage + L::b + consumer * ROWS * SPARSE_ROWS * B_ROW, stage, metadata, step > 0);
                wgmma_wait_group<1>();  // the previous step is complete, this one is in flight
                if (step > 0) release(previous);
                previous = at.stage;
                at.advance();
            };
            for (unsigned step = 0; step < steps; step += 2) {
                multiply(even, step);
                if (step + 1 == steps) break;
                multiply(odd, step + 1);
            }
            wait_for_sums(sums);
            release(previous);
            if constexpr (Tile::STORE == BY_TMA) {
                store_by_tma<Out, Tile::BOXES, L::box_rows>(sums, c_map, base + L::c + consumer * Tile::BOXES * L::box_bytes, row,
                                               col, 1 + consumer);
            } else {
                store_from_registers(sums, c, row, col, m, n);
            }
        }
        // shared memory is released when the CTA exits
        if (Tile::STORE == BY_TMA && threadIdx.x % 128 == 0) cp_async_bulk_wait_group_read<0>();
    }
    if constexpr (CLUSTER > 1) {  // other CTAs may still multicast to this one or arrive at its mbarriers
        __syncwarp();
        barrier_cluster_arrive_release();
        barrier_cluster_wait_acquire();
    }
}
