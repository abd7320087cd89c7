// A matrix product by wgmma from a ring of tiles that TMA fills: c = a b^T, where a is m x k, b is n x k and c is
// m x n, all row-major with rows of a multiple of 16 bytes, in bf16 or f16 with sums in f32, or in the types of
// wgmma_types.cuh. One product, or a batch of them (Operands).
// cu/kernels/matmul_wgmma.cu explains it step by step. The epilogue is an object with the members of Output in
// gemm.cuh; an object with the members of NoHooks handles whole rows.
//
// a and b may also be column-major, a as k x m in memory and b as k x n (Operands). TMA copies no transpose: its boxes
// then have the rows of k that a tile has, and 64 elements along m or n, which are the 128 bytes of the widest swizzle.
// A tile consists of such blocks of WGMMA_BLOCK_BYTES, one for each 64 rows of a or b, as many bytes as the K-major
// tile, and wgmma reads it as MN-major.
//
// With GATED there are two matrices of n x k, gate and up, and c = silu(a gate^T) * (a up^T). Half of the BN rows of a
// tile of b are rows of gate, the others the same rows of up, so that the thread with a sum of gate has that of up for
// the same element of c.
#pragma once
#include "ptxkit/gemm/gemm.cuh"
#include "ptxkit/gemm/shifted_rows.cuh"
#include "ptxkit/gemm/staged_rows.cuh"
#include "ptxkit/gemm/tma_boxes.cuh"
#include "ptxkit/gemm/wgmma_sums.cuh"
#include "ptxkit/ptx/bulk_copy.cuh"
#include "ptxkit/ptx/cluster.cuh"
#include "ptxkit/ptx/integer.cuh"
#include "ptxkit/ptx/matrix.cuh"
#include "ptxkit/ptx/mbarrier.cuh"
#include "ptxkit/ptx/tensor_map.cuh"
#include "ptxkit/ptx/wgmma_columns.cuh"
#include "ptxkit/target.cuh"

namespace ptxkit {

constexpr int WGMMA_BK = 64;                             // elements of 16 bits in 128 bytes, the widest swizzle
constexpr int WGMMA_ROW_BYTES = 2 * WGMMA_BK;            // of a row of a tile of a or b
constexpr int WGMMA_BLOCK_BYTES = 64 * WGMMA_ROW_BYTES;  // of 64 rows of a or b in a tile

// How a (m x k) and b (n x k) lie in memory: K_MAJOR row-major, MN_MAJOR column-major. Descriptions give it by name
// (Operands in ptxkit/kernels/gemm/matmul_wgmma.py). With BATCHED, tensor maps have three dimensions, the first of which is
// the product, so that a tile that ends a matrix is filled with zeros and not with the next matrix.
template <int A_MAJOR_ = K_MAJOR, int B_MAJOR_ = K_MAJOR, int BATCHED_ = 0>
struct Operands {
    static constexpr int A_MAJOR = A_MAJOR_, B_MAJOR = B_MAJOR_;
    static constexpr bool BATCHED = BATCHED_;
};

// The sums and the instruction of an element type: those of 16 bits, the others are in wgmma_types.cuh. An instruction reads
// 32 bytes of a row of a tile. Only 16-bit types may be MN-major.
template <class T>
struct WgmmaOf;

template <>
struct WgmmaOf<bf16> {
    using Sum = float;
    template <class Of, int N>
    static __device__ __forceinline__ void multiply(float (&d)[N], unsigned long long a, unsigned long long b,
                                                    bool accumulate) {
        wgmma_bf16<Of::A_MAJOR, Of::B_MAJOR>(d, a, b, accumulate);
    }
};

template <>
struct WgmmaOf<f16> {
    using Sum = float;
    template <class Of, int N>
    static __device__ __forceinline__ void multiply(float (&d)[N], unsigned long long a, unsigned long long b,
                                                    bool accumulate) {
        wgmma_f16<Of::A_MAJOR, Of::B_MAJOR>(d, a, b, accumulate);
    }
};

// Elements of k in a tile.
template <class T>
constexpr int wgmma_depth = WGMMA_ROW_BYTES / sizeof(T);

// The matrix descriptor of 32 bytes along k of a tile, from 32 `step` on.
template <int MAJOR>
__device__ __forceinline__ unsigned long long operand_descriptor(unsigned tile, int step) {
    if constexpr (MAJOR == K_MAJOR) return matrix_descriptor_128B(tile + step * 32);
    else return transposed_descriptor_128B(tile + step * 16 * WGMMA_ROW_BYTES, WGMMA_BLOCK_BYTES);
}

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

// Multiplies one stage: the 64 ROWS x BN sums of a consumer, from tiles in shared memory whose rows have WGMMA_ROW_BYTES.
// Asynchronous, one wgmma group.
template <class T, class Of = Operands<>, class Sum, int ROWS, int SUMS>
__device__ __forceinline__ void multiply_tile(Sum (&sums)[ROWS][SUMS], unsigned a, unsigned b, bool accumulate) {
    static_assert(sizeof(T) == 2 || (Of::A_MAJOR == K_MAJOR && Of::B_MAJOR == K_MAJOR),
                  "wgmma transposes operands of 16 bits only");
    wgmma_fence();
#pragma unroll
    for (int q = 0; q < WGMMA_ROW_BYTES / 32; q++) {
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const unsigned long long rows = operand_descriptor<Of::A_MAJOR>(a + i * WGMMA_BLOCK_BYTES, q);
            WgmmaOf<T>::template multiply<Of>(sums[i], rows, operand_descriptor<Of::B_MAJOR>(b, q), q > 0 || accumulate);
        }
    }
    wgmma_commit_group();
}

// Stores the first COLS sums of each row directly from registers: 4 bytes per thread, 16 contiguous bytes per 4
// threads. (row, col) is the warpgroup's first element.
template <int COLS, class Sum, int ROWS, int SUMS, class Out>
__device__ __forceinline__ void store_from_registers(const Sum (&sums)[ROWS][SUMS], Out& output,
                                                     unsigned row, unsigned col) {
    row += threadIdx.x % 128 / 32 * 16 + laneid() / 4;
    col += laneid() % 4 * 2;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const auto upper = output.of_row(row + 64 * i), lower = output.of_row(row + 64 * i + 8);
#pragma unroll
        for (int j = 0; j < COLS; j += 4) {
            output.store(sums[i][j], sums[i][j + 1], row + 64 * i, col + 2 * j, upper);
            output.store(sums[i][j + 2], sums[i][j + 3], row + 64 * i + 8, col + 2 * j, lower);
        }
    }
}

// The shared memory of a CTA as byte offsets: a ring of tiles, memory of each consumer warp for what it stores, mbarriers.
template <int BM, int BN, int CONSUMERS, int STAGES, int WARP_BYTES>
struct WgmmaLayout {
    static constexpr int a_bytes = BM * WGMMA_ROW_BYTES, b_bytes = BN * WGMMA_ROW_BYTES;
    static constexpr int stage_bytes = a_bytes + b_bytes;
    static constexpr int c = STAGES * stage_bytes;
    static constexpr int full = c + 4 * CONSUMERS * WARP_BYTES;
    static constexpr int empty = full + 8 * STAGES;
    static constexpr int bytes = empty + 8 * STAGES;
    static_assert(bytes <= TargetLimits::SHARED_BYTES_PER_CTA, "fewer stages, a smaller tile or fewer boxes");
};

// Tile parameters. Descriptions give them by name (WgmmaTile in ptxkit/kernels/gemm/matmul_wgmma.py).
template <int BM_, int BN_, int CONSUMERS_, int STAGES_, int CLUSTER_M_, int CLUSTER_N_, int GROUP_, int REGISTERS_,
          int STORE_, int BOXES_, int PING_PONG_ = 0>
struct WgmmaTile {
    static constexpr int BM = BM_, BN = BN_;      // rows and columns of c in a tile
    static constexpr int CONSUMERS = CONSUMERS_;  // warpgroups that multiply
    static constexpr int STAGES = STAGES_;        // of the ring of tiles of a and b
    // tiles of c that a cluster computes at a time
    static constexpr int CLUSTER_M = CLUSTER_M_, CLUSTER_N = CLUSTER_N_;
    static constexpr int GROUP = GROUP_;          // of grouped_tile, in units of clusters
    static constexpr int REGISTERS = REGISTERS_;  // of a consumer thread after setmaxnreg; 0: no setmaxnreg
    static constexpr int STORE = STORE_;          // FROM_REGISTERS, BY_TMA, STAGED or SHIFTED
    static constexpr int BOXES = BOXES_;          // boxes of c that a warp may have in flight; pieces of a row with SHIFTED
    static constexpr bool PING_PONG = PING_PONG_;  // each of two consumers computes tiles of its own
    static constexpr int SHARING = PING_PONG ? 1 : CONSUMERS;  // consumers of a tile
    static_assert(!PING_PONG || CONSUMERS == 2, "two consumers alternate");
};

// Signals every CTA that loads into this CTA's stage, at its mbarriers, that the warp has read the stage.
template <int CLUSTER_M, int CLUSTER>
__device__ __forceinline__ void release_stage(unsigned empty, unsigned lane, unsigned rank_m, unsigned rank_n) {
    if constexpr (CLUSTER == 1) {
        if (lane == 0) mbarrier_arrive(empty);
    } else if (lane < CLUSTER && (lane % CLUSTER_M == rank_m || lane / CLUSTER_M == rank_n)) {
        mbarrier_arrive_shared_cluster(mapa_shared_cluster(empty, lane));
    }
}

// What a kernel does beside the product, in the order of the calls.
struct NoHooks {
    static constexpr int BYTES = 0;      // of shared memory, after those of the product
    static constexpr int OBSERVERS = 0;  // warps of the producer's warpgroup that read each tile of a, 0 to 3
    // Whether the first rows of b, as many as the ring holds, are loaded before the previous grid has completed. That grid must
    // have waited for all grids before it when this one starts (follow_previous_grid_later), and must not write b.
    static constexpr bool EARLY = false;
    // Whether the previous grid writes only what the epilogue reads, so that consumers wait for it after the products. It must have
    // waited for all grids before it when this one starts.
    static constexpr bool LATE = false;
    static constexpr bool REQUESTS = false;  // whether request() is called

    struct Observer {};

    // One thread calls it, to initialize mbarriers, before a barrier of the cluster. The argument is the BYTES.
    __device__ __forceinline__ void init(unsigned char*) const {}

    // An observer warp has a new Observer for each tile of c, and calls observe() for each tile of a: the tile, the
    // columns that a has from it on, whether it is the first one. The last call for the tile of c is observed().
    __device__ __forceinline__ void observe(Observer&, const unsigned char*, unsigned, bool) const {}
    __device__ __forceinline__ void observed(unsigned char*, const Observer&) {}

    // A consumer calls it before the products of a tile of c: its ROWS x COLS elements begin at (row, col).
    template <int ROWS, int COLS>
    __device__ __forceinline__ void request(unsigned, unsigned) const {}

    // The sums of a tile of c before the epilogue, of a consumer whose first one is at (row, col).
    template <class Sum, int ROWS, int COLS>
    __device__ __forceinline__ void complete(unsigned char*, Sum (&)[ROWS][COLS], unsigned, unsigned) {}

    // All lanes of a consumer call it after their last tile.
    template <class Out>
    __device__ __forceinline__ void finished(Out&) const {}
};

// Copies a box whose first element is at (x, y) of a matrix, with BATCHED of matrix number `product`, and multicasts it to the
// CTAs of `mask` if `several`.
template <bool BATCHED>
__device__ __forceinline__ void load_box(unsigned to, const TensorMap& map, int x, int y, unsigned product, unsigned barrier,
                                         unsigned short mask, bool several) {
    if constexpr (BATCHED) {
        if (several) cp_async_bulk_tensor_3d_shared_global_multicast(to, map, x, y, product, barrier, mask);
        else cp_async_bulk_tensor_3d_shared_global(to, map, x, y, product, barrier);
    } else {
        if (several) cp_async_bulk_tensor_2d_shared_global_multicast(to, map, x, y, barrier, mask);
        else cp_async_bulk_tensor_2d_shared_global(to, map, x, y, barrier);
    }
}

// Loads ROWS rows of a or b, from `row` on and from k on, and multicasts them to the CTAs of `mask` if SHARING, their
// number, is not 1. A box has all rows of a K-major operand, and 64 of an MN-major one.
template <int MAJOR, int ROWS, int SHARING, bool BATCHED = false>
__device__ __forceinline__ void load_rows(unsigned to, const TensorMap& map, int k, int row, unsigned barrier,
                                          unsigned short mask = 0, unsigned product = 0) {
    if constexpr (MAJOR == K_MAJOR) {
        load_box<BATCHED>(to, map, k, row, product, barrier, mask, SHARING > 1);
    } else {
        static_assert(ROWS % 64 == 0, "a box of an MN-major operand has 64 of its rows");
#pragma unroll
        for (int i = 0; i < ROWS / 64; i++) {
            load_box<BATCHED>(to + i * WGMMA_BLOCK_BYTES, map, row + 64 * i, k, product, barrier, mask, SHARING > 1);
        }
    }
}

// A tile of c, and the steps along k of which a CTA adds the products: all, or those of a part of k. With BATCHED the parts
// are the products of a batch.
struct WgmmaWork {
    unsigned row, col;         // of the tile, in tiles
    unsigned part, begin, end;

    template <int GROUP, bool BATCHED>
    static __device__ __forceinline__ WgmmaWork at(unsigned index, unsigned rows, unsigned cols, unsigned steps,
                                                   unsigned parts) {
        const unsigned part = parts == 1 ? 0 : index / (rows * cols);
        const TileIndex t = grouped_tile<GROUP>(index - part * (rows * cols), rows, cols);
        if constexpr (BATCHED) return {t.row, t.col, part, 0, steps};
        return {t.row, t.col, part, steps * part / parts, steps * (part + 1) / parts};
    }
};

// The product as the body of a kernel with 128 (CONSUMERS + 1) threads, WgmmaLayout::bytes of dynamic shared memory and
// clusters of CLUSTER_M x CLUSTER_N CTAs. c_map is used with STORE == BY_TMA, up_map with GATED. BN is the number of
// rows of b in a tile, which has half as many columns of c with GATED.
//
// The CTAs of a cluster compute CLUSTER_M x CLUSTER_N neighbouring tiles. CTAs in a column of these share a tile of b,
// CTAs in a row share a tile of a: each loads a part of it and multicasts that part to the others.
//
// With several `parts` of k, each part of a tile is computed on its own. The epilogue then gets row + part x padded_rows
// as its row, where padded_rows are all rows of tiles; it cannot be stored by TMA. With Of::BATCHED, `parts` is the number of
// products, and the member `product` of the epilogue that of the tile.
//
// With Tile::PING_PONG, the two consumers compute the tiles of the CTA in turn. The sums of one are stored while the other one
// multiplies, and the tensor cores have work at all times. All tiles must have the same number of steps, so that `parts` is 1
// without Of::BATCHED.
template <class Tile, class T, bool GATED, class Of = Operands<>, class Out, class Hooks = NoHooks>
__device__ __forceinline__ void wgmma_products(const TensorMap& a_map, const TensorMap& b_map, const TensorMap& up_map,
                                               const TensorMap& c_map, Out& output, int m, int n, int k,
                                               Hooks hooks = {}, unsigned parts = 1) {
    constexpr int BM = Tile::BM, BN = Tile::BN, CONSUMERS = Tile::CONSUMERS, STAGES = Tile::STAGES, GROUP = Tile::GROUP;
    constexpr int CLUSTER_M = Tile::CLUSTER_M, CLUSTER_N = Tile::CLUSTER_N, REGISTERS = Tile::REGISTERS;
    constexpr int STORE = Tile::STORE, BOXES = Tile::BOXES;
    constexpr bool PING_PONG = Tile::PING_PONG;
    constexpr int CLUSTER = CLUSTER_M * CLUSTER_N, ROWS = BM / Tile::SHARING / 64;  // ROWS: wgmmas that a consumer stacks
    constexpr int COLS = GATED ? BN / 2 : BN;                                   // of c in a tile
    constexpr int BK = wgmma_depth<T>;
    constexpr bool BATCHED = Of::BATCHED;
    using Sum = typename WgmmaOf<T>::Sum;
    static_assert(BM == 64 * ROWS * Tile::SHARING, "a consumer takes a multiple of 64 rows");
    static_assert(ROWS * BN <= (REGISTERS >= 240 ? 384 : CONSUMERS > 2 ? 192 : 256),
                  "a thread holds at most 128 sums, 192 with 240 registers, 96 with three consumers");
    static_assert(BM % (8 * CLUSTER_N) == 0 && COLS % (8 * CLUSTER_M) == 0,
                  "parts that are multicast are whole swizzle patterns");
    static_assert(COLS % 16 == 0 && BM / CLUSTER_N <= 256 && COLS / CLUSTER_M <= 256,
                  "boxes of c are 16, 32 or 64 wide, and those of a tensor map at most 256");
    static_assert(CLUSTER <= 16, "no cluster has more CTAs");
    constexpr int PRODUCER_REGISTERS = Hooks::OBSERVERS ? 56 : 24;
    static_assert(128 * (PRODUCER_REGISTERS + CONSUMERS * REGISTERS) <= TargetLimits::REGISTERS_PER_SM,
                  "setmaxnreg would wait for registers that the SM does not have");
    static_assert(Of::A_MAJOR == K_MAJOR || Hooks::OBSERVERS == 0, "observers read rows of a K-major tile");
    static_assert(!PING_PONG || Hooks::OBSERVERS == 0, "what observers find is for one tile at a time");
    constexpr int warp_bytes = STORE == BY_TMA    ? BOXES * BOX_BYTES
                               : STORE == STAGED  ? STAGED_BYTES
                               : STORE == SHIFTED ? shifted_bytes<COLS / BOXES>
                                                  : 0;
    using L = WgmmaLayout<BM, BN, CONSUMERS, STAGES, warp_bytes>;
    static_assert(L::bytes + Hooks::BYTES <= TargetLimits::SHARED_BYTES_PER_CTA, "fewer stages or a smaller tile");
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned base = cvta_to_shared(shared);
    auto full = [&](unsigned stage) { return base + L::full + 8 * stage; };
    auto empty = [&](unsigned stage) { return base + L::empty + 8 * stage; };
    // The shuffle tells the compiler that the value is the same in all lanes.
    const unsigned warp = shfl_sync_idx(all_lanes, threadIdx.x / 32, 0);
    const unsigned rank = CLUSTER > 1 ? cluster_ctarank() : 0, rank_m = rank % CLUSTER_M, rank_n = rank / CLUSTER_M;

    if (threadIdx.x == 0) {
        prefetch_tensormap(a_map);
        prefetch_tensormap(b_map);
        if constexpr (GATED) prefetch_tensormap(up_map);
        if (STORE == BY_TMA) prefetch_tensormap(c_map);
        // one lane of each warp that reads what this CTA loads
        const unsigned readers = (CLUSTER_M + CLUSTER_N - 1) * (Tile::SHARING * 4 + Hooks::OBSERVERS);
        init_ring<STAGES>(full(0), 1, empty(0), readers);
        hooks.init(shared + L::bytes);
    }
    if constexpr (CLUSTER > 1) {
        barrier_cluster_arrive_release();
        barrier_cluster_wait_acquire();
    } else {
        barrier_sync();
    }
    if constexpr (Hooks::LATE) launch_next_grid();
    else if constexpr (!Hooks::EARLY) follow_previous_grid();

    const unsigned tile_rows = (m - 1) / (BM * CLUSTER_M) + 1, tile_cols = (n - 1) / (COLS * CLUSTER_N) + 1;
    const unsigned tiles = tile_rows * tile_cols * parts, steps = (k - 1) / BK + 1;
    auto work = [&](unsigned tile) {
        if constexpr (ROWS * BN > 256) {  // 192 sums leave no registers for both numbers of tiles, which are computed again
            const unsigned rows = optimization_barrier(unsigned(m)), cols = optimization_barrier(unsigned(n));
            return WgmmaWork::at<GROUP, BATCHED>(tile, (rows - 1) / (BM * CLUSTER_M) + 1, (cols - 1) / (COLS * CLUSTER_N) + 1,
                                                 steps, parts);
        }
        return WgmmaWork::at<GROUP, BATCHED>(tile, tile_rows, tile_cols, steps, parts);
    };
    Ring<STAGES> at;
    if (warp < 4) {
        if constexpr (REGISTERS > 0) setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (warp == 0 && elect_sync(all_lanes)) {
            // Direction along k, which alternates: a tile begins with the columns that the previous one left in L2.
            bool backwards = false;
            unsigned early = 0;  // steps of the first tile whose rows of b are loaded already
            if constexpr (Hooks::EARLY) {
                static_assert(CLUSTER == 1 && !GATED, "each CTA loads its own rows of b");
                if (blockIdx.x < tiles) {
                    const WgmmaWork t = work(blockIdx.x);
                    early = min(t.end - t.begin, static_cast<unsigned>(STAGES));
                    for (unsigned i = 0; i < early; i++) {
                        mbarrier_arrive_expect_tx(full(i), L::stage_bytes);
                        load_rows<Of::B_MAJOR, COLS, 1, BATCHED>(base + i * L::stage_bytes + L::a_bytes, b_map,
                                                                 (t.begin + i) * BK, t.col * COLS, full(i), 0, t.part);
                    }
                }
                follow_previous_grid_later();
            }
            for (unsigned tile = blockIdx.x / CLUSTER; tile < tiles; tile += gridDim.x / CLUSTER) {
                const WgmmaWork t = work(tile);
                const int row = (t.row * CLUSTER_M + rank_m) * BM, col = (t.col * CLUSTER_N + rank_n) * COLS;
                for (unsigned i = t.begin; i < t.end; i++) {
                    const unsigned step = backwards ? t.begin + t.end - 1 - i : i;
                    constexpr int a_part = BM / CLUSTER_N, b_part = COLS / CLUSTER_M;  // rows that this CTA loads
                    const unsigned stage = base + at.stage * L::stage_bytes;
                    const unsigned a = stage + rank_n * a_part * WGMMA_ROW_BYTES;
                    const unsigned b = stage + L::a_bytes + rank_m * b_part * WGMMA_ROW_BYTES;
                    const int x = step * BK;
                    const bool loaded = Hooks::EARLY && early > 0;
                    if (loaded) {
                        early--;
                    } else {
                        mbarrier_wait(empty(at.stage), at.parity ^ 1);
                        mbarrier_arrive_expect_tx(full(at.stage), L::stage_bytes);
                    }
                    // bits 0, CLUSTER_M, 2 CLUSTER_M, ... of CLUSTER
                    const unsigned short same_row = ((1 << CLUSTER) - 1) / ((1 << CLUSTER_M) - 1) << rank_m;
                    const unsigned short same_col = ((1 << CLUSTER_M) - 1) << rank_n * CLUSTER_M;
                    load_rows<Of::A_MAJOR, a_part, CLUSTER_N, BATCHED>(a, a_map, x, row + rank_n * a_part, full(at.stage),
                                                                       same_row, t.part);
                    if (!loaded) {
                        load_rows<Of::B_MAJOR, b_part, CLUSTER_M, BATCHED>(b, b_map, x, col + rank_m * b_part,
                                                                           full(at.stage), same_col, t.part);
                    }
                    if constexpr (GATED) {
                        load_rows<Of::B_MAJOR, b_part, CLUSTER_M, BATCHED>(b + COLS * WGMMA_ROW_BYTES, up_map, x,
                                                                           col + rank_m * b_part, full(at.stage), same_col,
                                                                           t.part);
                    }
                    at.advance();
                }
                backwards = !backwards;
            }
        }
        if constexpr (Hooks::OBSERVERS > 0) {
            if (warp >= 1 && warp <= Hooks::OBSERVERS) {
                bool backwards = false;
                for (unsigned tile = blockIdx.x / CLUSTER; tile < tiles; tile += gridDim.x / CLUSTER) {
                    typename Hooks::Observer observer;
                    const WgmmaWork t = work(tile);
                    for (unsigned i = t.begin; i < t.end; i++) {
                        const unsigned step = backwards ? t.begin + t.end - 1 - i : i;
                        mbarrier_wait(full(at.stage), at.parity);
                        hooks.observe(observer, shared + at.stage * L::stage_bytes, k - step * BK, i == t.begin);
                        __syncwarp();  // all lanes have read
                        release_stage<CLUSTER_M, CLUSTER>(empty(at.stage), laneid(), rank_m, rank_n);
                        at.advance();
                    }
                    hooks.observed(shared + L::bytes, observer);
                    backwards = !backwards;
                }
            }
        }
    } else {
        if constexpr (REGISTERS > 0) setmaxnreg_inc<REGISTERS>();
        if constexpr (Hooks::EARLY) follow_previous_grid_later();
        // own: number of the consumer among those of its tile
        const unsigned consumer = warp / 4 - 1, own = PING_PONG ? 0 : consumer, lane = laneid();
        const unsigned boxes = base + L::c + (warp - 4) * warp_bytes;
        Sum sums[ROWS][BN / 2];
        auto release = [&](unsigned stage) { release_stage<CLUSTER_M, CLUSTER>(empty(stage), lane, rank_m, rank_n); };
        const unsigned next = gridDim.x / CLUSTER;  // distance of the tiles of this CTA
        const unsigned first = blockIdx.x / CLUSTER + (PING_PONG ? consumer * next : 0);
        if (PING_PONG && consumer == 1) at.advance(steps);
        for (unsigned tile = first; tile < tiles; tile += PING_PONG ? 2 * next : next) {
            const WgmmaWork t = work(tile);
            const unsigned row = (((BATCHED ? 0 : t.part * tile_rows) + t.row) * CLUSTER_M + rank_m) * BM +
                                 own * 64 * ROWS,
                           col = (t.col * CLUSTER_N + rank_n) * COLS;
            if constexpr (BATCHED) output.product = t.part;
            if constexpr (Hooks::REQUESTS) hooks.template request<64 * ROWS, COLS>(row, col);
            // A consumer that alternates waits until the other one has seen all of its stages full: a parity tells only two
            // successive phases of an mbarrier apart.
            if (PING_PONG && tile >= next) barrier_sync(1 + consumer, 256);
            unsigned previous = 0;
            for (unsigned step = t.begin; step < t.end; step++) {
                const unsigned stage = base + at.stage * L::stage_bytes;
                mbarrier_wait(full(at.stage), at.parity);
                multiply_tile<T, Of>(sums, stage + own * ROWS * WGMMA_BLOCK_BYTES, stage + L::a_bytes, step > t.begin);
                wgmma_wait_group<1>();  // the previous step is complete, this one is in flight
                if (step > t.begin) release(previous);
                previous = at.stage;
                at.advance();
            }
            if constexpr (PING_PONG) {
                if (tile + next < tiles) barrier_arrive(2 - consumer, 256);
                at.advance(steps);  // those of the other consumer's next tile
            }
            wait_for_sums(sums);
            release(previous);
            if constexpr (Hooks::LATE) wait_for_previous_grid();
            hooks.complete(shared + L::bytes, sums, row, col);
            if constexpr (GATED) {
#pragma unroll
                for (int i = 0; i < ROWS; i++) {
#pragma unroll
                    for (int j = 0; j < COLS / 2; j++) sums[i][j] = silu(sums[i][j]) * sums[i][j + COLS / 2];
                }
            }
            if constexpr (STORE == BY_TMA) {
                store_by_tma<BOXES, COLS, BATCHED>(sums, output, c_map, boxes, row, col, t.part);
            } else if constexpr (STORE == STAGED) {
                Sum* staged = reinterpret_cast<Sum*>(shared + L::c + (warp - 4) * warp_bytes);
                use_staged_rows<COLS>(sums, staged, row, col, output);
            } else if constexpr (STORE == SHIFTED) {
                store_shifted_rows<BOXES, COLS>(sums, output, shared + L::c + (warp - 4) * warp_bytes, row, col);
            } else {
                store_from_registers<COLS / 2>(sums, output, row, col);
            }
        }
        hooks.finished(output);
        // shared memory is released when the CTA exits
        if (STORE == BY_TMA && lane == 0) cp_async_bulk_wait_group_read<0>();
    }
    if constexpr (CLUSTER > 1) {  // other CTAs may still multicast to this one or arrive at its mbarriers
        __syncwarp();
        barrier_cluster_arrive_release();
        barrier_cluster_wait_acquire();
    }
}

template <class Tile, class T, class Of = Operands<>, class Out, class Hooks = NoHooks>
__device__ __forceinline__ void wgmma_product(const TensorMap& a_map, const TensorMap& b_map, const TensorMap& c_map,
                                              Out& output, int m, int n, int k, Hooks hooks = {}, unsigned parts = 1) {
    wgmma_products<Tile, T, false, Of>(a_map, b_map, b_map, c_map, output, m, n, k, hooks, parts);
}

// Loads `rows` rows of a or b, from `row` on and from k on, and multicasts them to the CTAs of `mask` if these are several.
template <int MAJOR, bool BATCHED = false>
__device__ __forceinline__ void load_shared_rows(unsigned to, const TensorMap& map, int rows, int k, int row,
                                                 unsigned barrier, unsigned short mask, bool several, unsigned product = 0) {
    for (int i = 0; i < (MAJOR == K_MAJOR ? 1 : rows / 64); i++) {  // boxes
        const int x = MAJOR == K_MAJOR ? k : row + 64 * i, y = MAJOR == K_MAJOR ? row : k;
        load_box<BATCHED>(to + i * WGMMA_BLOCK_BYTES, map, x, y, product, barrier, mask, several);
    }
}

}  // namespace ptxkit
