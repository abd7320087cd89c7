// Products with a 2:4 sparse matrix (sparse.cuh) by mma.sp and wgmma.mma_async.sp: c = a b^T, where a is m x k, b is
// n x k and c is m x n, all row-major. cu/kernels/matmul_sparse.cu explains them step by step.
//
// The tensor cores take the sparse operand first: a warp computes c^T = b a^T, and has columns of c in the rows of its
// sums. They are transposed when they are stored.
//
// With GATED there are two sparse matrices of n x k, gate and up, and c = silu(a gate^T) * (a up^T). Half of the BN
// rows of a tile of b are rows of gate, the others the same rows of up, so that the thread with a sum of gate has
// that of up for the same element of c.
#pragma once
#include "ptxkit/gemm/gemm.cuh"
#include "ptxkit/gemm/sparse.cuh"
#include "ptxkit/gemm/wgmma_sums.cuh"
#include "ptxkit/ptx/async_copy.cuh"
#include "ptxkit/ptx/bulk_copy.cuh"
#include "ptxkit/ptx/cluster.cuh"
#include "ptxkit/ptx/matrix.cuh"
#include "ptxkit/ptx/mbarrier.cuh"
#include "ptxkit/ptx/special_registers.cuh"
#include "ptxkit/ptx/synchronization.cuh"
#include "ptxkit/ptx/tensor_map.cuh"
#include "ptxkit/ptx/wgmma_sparse.cuh"
#include "ptxkit/target.cuh"

namespace ptxkit {

constexpr int SPARSE_A_ROW = SPARSE_BYTES;      // bytes of a row of a tile of a, the span of its swizzle
constexpr int SPARSE_B_ROW = SPARSE_BYTES / 2;  // the same of the stored elements of b

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
// mma.sp

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

// Where the part number i of a warp's rows of b begins; a part has 16 rows.
template <int B_PARTS, int SKIP>
__device__ __forceinline__ constexpr int part_row(int i) {
    return 2 * i < B_PARTS ? 16 * i : SKIP + 16 * (i - B_PARTS / 2);
}

// A warp's products of half a stage: number PART, 32 elements of k. The offsets are those of this lane's ldmatrix
// addresses in the first half. SKIP: rows of the tile of b from the first to the second half of the B_PARTS * 16.
template <int PART, int SKIP, class T, int B_PARTS, int A_PARTS>
__device__ __forceinline__ void multiply_half(float (&sums)[B_PARTS][A_PARTS][4], unsigned a_tile, unsigned a_offset,
                                              unsigned b_tile, unsigned b_offset, const unsigned (&words)[B_PARTS], T) {
    unsigned b[B_PARTS][4];
#pragma unroll
    for (int i = 0; i < B_PARTS; i++) {
        ldmatrix_x4(b[i], b_tile + part_row<B_PARTS, SKIP>(i) * SPARSE_B_ROW + (b_offset ^ PART * 32));
    }
#pragma unroll
    for (int j = 0; j < A_PARTS; j++) {
        unsigned a[4];
        ldmatrix_x4(a, a_tile + 8 * j * SPARSE_A_ROW + (a_offset ^ PART * 64));
#pragma unroll
        for (int i = 0; i < B_PARTS; i++) mma_sparse<PART>(sums[i][j], b[i], a, words[i], T());
    }
}

// Tile parameters of sparse_mma_product. Descriptions give them by name (SparseMmaTile in
// ptxkit/kernels/gemm/matmul_sparse.py).
template <int BM_, int BN_, int WM_, int WN_, int STAGES_, int GROUP_>
struct SparseMmaTile {
    static constexpr int BM = BM_, BN = BN_;  // rows and columns of c in a tile
    static constexpr int WM = WM_, WN = WN_;  // of these a warp's
    static constexpr int STAGES = STAGES_;    // of the ring
    static constexpr int GROUP = GROUP_;      // of grouped_tile
    static constexpr int warps_across = BN / WN, threads = 32 * (BM / WM) * warps_across;
    static constexpr int a_bytes = BM * SPARSE_A_ROW, b_bytes = BN * SPARSE_B_ROW;
    static constexpr int metadata_bytes = BN / SPARSE_ROWS * 512;
    static constexpr int stage_bytes = (a_bytes + b_bytes + metadata_bytes + 1023) / 1024 * 1024;
    static_assert(BM % WM == 0 && BN % WN == 0 && BN % SPARSE_ROWS == 0, "whole warps and blocks of metadata");
    static_assert(WM % 8 == 0 && WN % 16 == 0, "whole fragments");
    static_assert(STAGES >= 2, "one stage is multiplied while another is filled");
};

// The product as the body of a kernel with S::threads threads, one CTA for each tile of c and STAGES * stage_bytes of
// dynamic shared memory. up_values and up_metadata are used with GATED.
template <class T, class S, bool GATED>
__device__ __forceinline__ void sparse_mma_product(const T* a, const T* values, const unsigned* metadata,
                                                   const T* up_values, const unsigned* up_metadata, T* c, int m, int n,
                                                   int k) {
    constexpr int BM = S::BM, BN = S::BN, WM = S::WM, WN = S::WN, STAGES = S::STAGES;
    constexpr int MATRICES = GATED ? 2 : 1, COLS = BN / MATRICES;  // COLS: of c in a tile
    constexpr int PARTS = WN / 16, SKIP = GATED ? COLS : 16 * (PARTS / 2);
    static_assert(COLS % SPARSE_ROWS == 0 && (!GATED || PARTS % 2 == 0), "whole blocks of metadata and pairs of parts");
    using L = Sparse<T>;
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned base = cvta_to_shared(shared), lane = laneid();
    const unsigned warp = shfl_sync_idx(all_lanes, threadIdx.x / 32, 0);
    const unsigned warp_row = warp / S::warps_across * WM;
    const unsigned warp_col = warp % S::warps_across * (WN / MATRICES);
    const TileIndex t = grouped_tile<S::GROUP>(blockIdx.x, (m - 1) / BM + 1, (n - 1) / COLS + 1);
    const unsigned steps = (k - 1) / L::k + 1, blocks = (n - 1) / SPARSE_ROWS + 1;

    // Past the last step the copies are zeros.
    auto fill = [&](unsigned step) {
        const unsigned stage = base + step % STAGES * S::stage_bytes;
        copy_tile<BM, SPARSE_A_ROW, S::threads>(stage, a, t.row * BM, m, step * SPARSE_A_ROW, 2 * k);
        copy_tile<COLS, SPARSE_B_ROW, S::threads>(stage + S::a_bytes, values, t.col * COLS, n, step * SPARSE_B_ROW, k);
        if constexpr (GATED) {
            copy_tile<COLS, SPARSE_B_ROW, S::threads>(stage + S::a_bytes + COLS * SPARSE_B_ROW, up_values, t.col * COLS,
                                                      n, step * SPARSE_B_ROW, k);
        }
        constexpr unsigned tile_blocks = COLS / SPARSE_ROWS;
        const bool of_up = GATED && threadIdx.x / 32 >= tile_blocks;
        const unsigned block = t.col * tile_blocks + threadIdx.x / 32 - (of_up ? tile_blocks : 0);
        if (threadIdx.x < S::metadata_bytes / 16) {
            const bool inside = block < blocks && step < steps;
            const size_t first = inside ? (static_cast<size_t>(block) * steps + step) * L::block + lane * 4 : 0;
            cp_async_cg_shared_global(stage + S::a_bytes + S::b_bytes + threadIdx.x * 16,
                                      (of_up ? up_metadata : metadata) + first,
                                      inside ? 16 : 0);
        }
        cp_async_commit_group();
    };
    // ldmatrix: for 16 rows of b lanes 0-15 hold the addresses of rows, lanes 16-31 those of the same rows 8 elements
    // further; for 8 rows of a lanes 0-7 hold those of rows, and the next lanes those 8, 16 and 24 elements further.
    const unsigned b_offset = swizzled<SPARSE_B_ROW>((warp_col + lane % 16) * SPARSE_B_ROW + lane / 16 * 16);
    const unsigned a_offset = swizzled<SPARSE_A_ROW>((warp_row + lane % 8) * SPARSE_A_ROW + lane / 8 * 16);

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
        unsigned positions[PARTS];
#pragma unroll
        for (int i = 0; i < PARTS; i++) positions[i] = valid_metadata(ld_word(words + part_row<PARTS, SKIP>(i) * 8));
        multiply_half<0, SKIP>(sums, a_tile, a_offset, b_tile, b_offset, positions, T());
        multiply_half<1, SKIP>(sums, a_tile, a_offset, b_tile, b_offset, positions, T());
    }
    const unsigned row = t.row * BM + warp_row, col = t.col * COLS + warp_col;
#pragma unroll
    for (int i = 0; i < PARTS / MATRICES; i++) {
#pragma unroll
        for (int j = 0; j < WM / 8; j++) {
            if constexpr (GATED) {
#pragma unroll
                for (int e = 0; e < 4; e++) sums[i][j][e] = silu(sums[i][j][e]) * sums[i + PARTS / 2][j][e];
            }
            store_transposed(sums[i][j], c, row + 8 * j, col + 16 * i, m, n);
        }
    }
    cp_async_wait_all();  // shared memory is released when the CTA exits
}

// ---------------------------------------------------------------------------------------------------------------------
// wgmma

// A warpgroup's metadata of a stage, for ROWS blocks of 64 rows. STRIDE: rows of the tile of b from one to the next.
template <class T, int ROWS, int STRIDE = SPARSE_ROWS>
struct Metadata {
    unsigned words[ROWS][Sparse<T>::words];

    // From the metadata of the first block in shared memory.
    __device__ __forceinline__ void load(const unsigned char* from) {
        from += threadIdx.x % 128 * (4 * Sparse<T>::words);
#pragma unroll
        for (int i = 0; i < ROWS; i++, from += STRIDE / SPARSE_ROWS * 4 * Sparse<T>::block) {
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
template <class T, int ROWS, int SUMS, int STRIDE>
__device__ __forceinline__ void multiply_stage(float (&sums)[ROWS][SUMS], unsigned b, unsigned a,
                                               const Metadata<T, ROWS, STRIDE>& metadata, bool accumulate) {
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        wgmma_sparse<0>(sums[i], matrix_descriptor_64B(b + i * STRIDE * SPARSE_B_ROW), matrix_descriptor_128B(a),
                        metadata.words[i][0], accumulate, T());
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        wgmma_sparse<1>(sums[i], matrix_descriptor_64B(b + i * STRIDE * SPARSE_B_ROW + 32),
                        matrix_descriptor_128B(a + 64), metadata.words[i][Sparse<T>::words - 1], true, T());
    }
    wgmma_commit_group();
}

// Stores the first STORED times 64 columns of a warpgroup's sums directly from registers. (row, col) is its first
// element of c.
template <int STORED, class Out, int ROWS, int SUMS>
__device__ __forceinline__ void store_from_registers(const float (&sums)[ROWS][SUMS], Out* c, unsigned row,
                                                     unsigned col, unsigned m, unsigned n) {
    col += threadIdx.x % 128 / 32 * 16;
#pragma unroll
    for (int i = 0; i < STORED; i++) {
#pragma unroll
        for (int j = 0; j < SUMS; j += 4) store_transposed(&sums[i][j], c, row + 2 * j, col + 64 * i, m, n);
    }
}

// Tile parameters of sparse_wgmma_product. Descriptions give them by name (SparseTile in
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
struct SparseLayout {
    static constexpr int a_bytes = Tile::BM * SPARSE_A_ROW, b_bytes = Tile::BN * SPARSE_B_ROW;
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

// Stores the first STORED times 64 columns of a warpgroup's sums through shared memory: its warps write swizzled boxes
// of BOX_ROWS rows x 64 columns of c, each warp 16 of the columns, and one thread issues their TMA stores, of which up
// to BOXES are in flight. `barrier` is a named barrier of the warpgroup.
template <class Out, int BOXES, int BOX_ROWS, int STORED, int ROWS, int SUMS>
__device__ __forceinline__ void store_by_tma(const float (&sums)[ROWS][SUMS], const TensorMap& c_map, unsigned boxes,
                                             unsigned row, unsigned col, unsigned barrier) {
    constexpr int boxes_down = 2 * SUMS / BOX_ROWS, all = STORED * boxes_down, used = BOXES < all ? BOXES : all;
    static_assert(all % used == 0,
                  "a tile begins with the first box, which must be the one that has been in flight longest");
    const unsigned thread = threadIdx.x % 128, lane = thread % 32;
    // stmatrix: lanes 0-7 hold the addresses of 8 rows of c, lanes 8-15 those of the next 8 columns, lanes 16-31 those
    // of the next 8 rows.
    const unsigned offset = (lane / 16 * 8 + lane % 8) * 128 + (thread / 32 * 2 + lane / 8 % 2) * 16;
#pragma unroll
    for (int i = 0; i < STORED; i++) {
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

// Loads stored elements from column x, and metadata from word `word` of its blocks, of the rows of b from `row` on, and
// multicasts them to the CTAs of `mask` if a column of the cluster has several.
template <int CLUSTER_M>
__device__ __forceinline__ void load_weights(unsigned values, const TensorMap& values_map, int x, unsigned words,
                                             const TensorMap& metadata_map, int word, int row, unsigned barrier,
                                             unsigned short mask) {
    if constexpr (CLUSTER_M > 1) {
        cp_async_bulk_tensor_2d_shared_global_multicast(values, values_map, x, row, barrier, mask);
        cp_async_bulk_tensor_2d_shared_global_multicast(words, metadata_map, word, row / SPARSE_ROWS, barrier, mask);
    } else {
        cp_async_bulk_tensor_2d_shared_global(values, values_map, x, row, barrier);
        cp_async_bulk_tensor_2d_shared_global(words, metadata_map, word, row / SPARSE_ROWS, barrier);
    }
}

// The product as the body of a kernel with 128 (CONSUMERS + 1) threads, SparseLayout::bytes of dynamic shared memory
// and clusters of CLUSTER_M x CLUSTER_N CTAs. c_map is used with STORE == BY_TMA, up_values_map and up_metadata_map
// with GATED.
//
// The CTAs of a cluster compute CLUSTER_M x CLUSTER_N neighbouring tiles. CTAs in a column of these share a tile of b
// and its metadata, CTAs in a row share a tile of a: each loads a part of it and multicasts that part to the others.
template <class T, class Out, class Tile, bool GATED>
__device__ __forceinline__ void sparse_wgmma_product(const TensorMap& a_map, const TensorMap& values_map,
                                                     const TensorMap& metadata_map, const TensorMap& up_values_map,
                                                     const TensorMap& up_metadata_map, const TensorMap& c_map, Out* c,
                                                     int m, int n, int k) {
    constexpr int BM = Tile::BM, BN = Tile::BN, CONSUMERS = Tile::CONSUMERS, STAGES = Tile::STAGES, GROUP = Tile::GROUP;
    constexpr int CLUSTER_M = Tile::CLUSTER_M, CLUSTER_N = Tile::CLUSTER_N, REGISTERS = Tile::REGISTERS;
    constexpr int CLUSTER = CLUSTER_M * CLUSTER_N, ROWS = BN / CONSUMERS / SPARSE_ROWS;  // ROWS: wgmmas of a consumer
    constexpr int MATRICES = GATED ? 2 : 1, COLS = BN / MATRICES;  // COLS: of c in a tile
    constexpr int STRIDE = GATED ? COLS : SPARSE_ROWS;             // rows from a wgmma of a consumer to its next
    static_assert(BN == SPARSE_ROWS * ROWS * CONSUMERS, "a consumer has a multiple of 64 columns");
    static_assert(!GATED || ROWS == 2, "a consumer has 64 columns of gate and of up");
    static_assert(ROWS * BM <= (REGISTERS >= 240 ? 400 : 256),
                  "a thread holds at most 128 sums, or 200 with 240 registers");
    static_assert(CLUSTER_N <= 2, "the mask of CTAs in a row has two bits");
    using L = SparseLayout<T, Tile>;
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
        if constexpr (GATED) {
            prefetch_tensormap(up_values_map);
            prefetch_tensormap(up_metadata_map);
        }
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

    const unsigned tile_rows = (m - 1) / (BM * CLUSTER_M) + 1, tile_cols = (n - 1) / (COLS * CLUSTER_N) + 1;
    const unsigned tiles = tile_rows * tile_cols, steps = (k - 1) / S::k + 1;
    Ring<STAGES> at;
    if (warp < 4) {
        if constexpr (REGISTERS > 0) setmaxnreg_dec<24>();
        if (warp == 0 && elect_sync(all_lanes)) {
            // Direction along k, which alternates: a tile begins with the columns that the previous one left in L2.
            bool backwards = false;
            for (unsigned tile = blockIdx.x / CLUSTER; tile < tiles; tile += gridDim.x / CLUSTER) {
                const TileIndex t = grouped_tile<GROUP>(tile, tile_rows, tile_cols);
                const int row = (t.row * CLUSTER_M + rank_m) * BM, col = (t.col * CLUSTER_N + rank_n) * COLS;
#pragma unroll 1  // the producer has few registers
                for (unsigned i = 0; i < steps; i++) {
                    const unsigned step = backwards ? steps - 1 - i : i;
                    constexpr int b_part = COLS / CLUSTER_M;  // rows of b that this CTA loads
                    const unsigned stage = base + at.stage * L::stage_bytes;
                    const unsigned b = stage + L::b + rank_m * b_part * SPARSE_B_ROW;
                    const unsigned words = stage + L::metadata + rank_m * (b_part / SPARSE_ROWS) * S::block * 4;
                    const int x = step * S::k, b_row = col + rank_m * b_part;
                    mbarrier_wait(empty(at.stage), at.parity ^ 1);
                    mbarrier_arrive_expect_tx(full(at.stage), L::loaded);
                    if constexpr (CLUSTER_N > 1) {
                        const unsigned short same_row = (1 | 1 << CLUSTER_M) << rank_m;
#pragma unroll 1
                        for (unsigned part = rank_n; part < L::a_parts; part += CLUSTER_N) {
                            const unsigned a = stage + part * L::a_part * SPARSE_A_ROW;
                            cp_async_bulk_tensor_2d_shared_global_multicast(a, a_map, x, row + part * L::a_part,
                                                                            full(at.stage), same_row);
                        }
                    } else {
                        cp_async_bulk_tensor_2d_shared_global(stage, a_map, x, row, full(at.stage));
                    }
                    const unsigned short same_col = ((1 << CLUSTER_M) - 1) << rank_n * CLUSTER_M;
                    load_weights<CLUSTER_M>(b, values_map, x / 2, words, metadata_map, step * S::block, b_row,
                                            full(at.stage), same_col);
                    if constexpr (GATED) {
                        load_weights<CLUSTER_M>(b + COLS * SPARSE_B_ROW, up_values_map, x / 2,
                                                words + COLS / SPARSE_ROWS * S::block * 4, up_metadata_map,
                                                step * S::block, b_row, full(at.stage), same_col);
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
        Metadata<T, ROWS, STRIDE> even, odd;  // of two steps: the tensor cores still read that of the previous one
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
                           col = (t.col * CLUSTER_N + rank_n) * COLS + consumer * SPARSE_ROWS * (ROWS / MATRICES);
            unsigned previous = 0;
            auto multiply = [&](Metadata<T, ROWS, STRIDE>& metadata, unsigned step) {
                const unsigned offset = at.stage * L::stage_bytes, stage = base + offset;
                mbarrier_wait(full(at.stage), at.parity);
                metadata.load(shared + offset + L::metadata + consumer * (ROWS / MATRICES) * S::block * 4);
                multiply_stage(sums, stage + L::b + consumer * (ROWS / MATRICES) * SPARSE_ROWS * SPARSE_B_ROW, stage,
                               metadata, step > 0);
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
            if constexpr (GATED) {
#pragma unroll
                for (int j = 0; j < BM / 2; j++) sums[0][j] = silu(sums[0][j]) * sums[1][j];
            }
            if constexpr (Tile::STORE == BY_TMA) {
                const unsigned boxes = base + L::c + consumer * Tile::BOXES * L::box_bytes;
                store_by_tma<Out, Tile::BOXES, L::box_rows, ROWS / MATRICES>(sums, c_map, boxes, row, col,
                                                                             1 + consumer);
            } else {
                store_from_registers<ROWS / MATRICES>(sums, c, row, col, m, n);
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

}  // namespace ptxkit
