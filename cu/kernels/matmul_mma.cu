// bf16 or f16 matrix product by mma.sync, for sm_80 and later: c = gelu(alpha a b^T + beta c + bias), where a is m x k,
// b is n x k and c is m x n, all row-major with rows of a multiple of 16 bytes. Sums are f32.
//
// Each of the six steps adds one idea to the step before; docs/gemm.md has the measurements.
//
// 1. `matmul_mma_unpipelined`: tiles of a and b in shared memory, ldmatrix, mma.sync. The eight rows of an ldmatrix lie
//     in few banks, and copies and products do not overlap.
// 2. Swizzle: the 16-byte atoms of a row are permuted by the row's number, so that the eight rows cover all 32 banks.
// 3. `matmul_mma_pipelined`: cp.async fills a ring of STAGES tiles ahead of the products, with one barrier per tile.
// 4. The fragments of the next 16 elements of k are loaded during the products of the current ones, across tiles too,
//     and the copies are spread between them. Larger tiles, 64 x 64 per warp; CTAs in an order that shares tiles in L2.
// 5. The sums are stored through shared memory, 16 bytes per thread and whole rows of 128 bytes.
// 6. `matmul_mma_tma`, for sm_90: a producer warp fills the ring through TMA. mbarriers pass the stages, so that warps
//     may be stages apart and execute no copy instructions. CTAs are persistent: copies continue during the stores.
//
// The mbarriers and persistent CTAs of step 6 with cp.async instead of TMA were a tenth slower on an H200.
#include "ptxkit/gemm/gemm.cuh"
#include "ptxkit/ptx/async_copy.cuh"
#include "ptxkit/ptx/matrix.cuh"
#include "ptxkit/ptx/mbarrier.cuh"
#include "ptxkit/ptx/special_registers.cuh"
#include "ptxkit/ptx/synchronization.cuh"
#include "ptxkit/ptx/tensor_map.cuh"

using namespace ptxkit;

__device__ __forceinline__ void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], bf16) {
    mma_sync_m16n8k16_f32_bf16_bf16(d, a, b);
}
__device__ __forceinline__ void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], f16) {
    mma_sync_m16n8k16_f32_f16_f16(d, a, b);
}

// The copies of one thread: 16-byte atoms of consecutive tiles of ROWS x BK elements along the rows of a row-major
// matrix, `atoms` per tile, in rows that are `step` apart. Atoms past the end of the matrix are zero. SWIZZLE permutes
// atoms as a tensor map with that swizzle span does.
template <int ROWS, int BK, int THREADS, bool SWIZZLE, class T>
struct Copier {
    static constexpr int row_atoms = BK / 8, atoms = ROWS * row_atoms / THREADS, step = THREADS / row_atoms;
    static_assert(ROWS * row_atoms % THREADS == 0 && THREADS % 64 == 0,
                  "as many atoms for each thread, at one place in the swizzle");

    const T* from;    // the first atom
    size_t stride;    // elements from one atom to the next
    int inside;       // atoms in rows that the matrix has
    int cols;         // columns of the matrix from the first atom on
    unsigned offset;  // of the first atom in the tile

    // Starts at row `row` of a matrix of rows x all_cols.
    __device__ __forceinline__ void begin(const T* x, int row, int rows, int all_cols) {
        const int r = row + threadIdx.x / row_atoms, c = threadIdx.x % row_atoms * 8;
        from = x + static_cast<size_t>(r) * all_cols + c;
        stride = static_cast<size_t>(step) * all_cols;
        inside = (rows - r + step - 1) / step;
        cols = all_cols - c;
        offset = SWIZZLE ? swizzled<2 * BK>(threadIdx.x * 16) : threadIdx.x * 16;
    }

    // Copies part `part` of `parts` of a tile; both are compile-time constants after unrolling.
    __device__ __forceinline__ void copy(unsigned tile, int part = 0, int parts = 1) const {
        const int available = cols > 0 ? inside : 0;
#pragma unroll
        for (int i = 0; i < atoms; i++) {
            if (i * parts / atoms == part) {
                cp_async_cg_shared_global(tile + offset + i * THREADS * 16, from + i * stride, i < available ? 16 : 0);
            }
        }
    }

    __device__ __forceinline__ void advance() {
        from += BK;
        cols -= BK;
    }
};

// The ldmatrix addresses of a lane: offsets in the tiles of a and b, BK elements wide, at k = 0. A step along k flips
// bits of the offset, and 16 rows further is a constant added; neither changes the bits that select the permutation of
// a row.
template <int BK, bool SWIZZLE>
struct OperandOffsets {
    static constexpr unsigned row_bytes = 2 * BK;
    unsigned a, b;

    // (a_row, b_row) is the warp's first row of each.
    __device__ __forceinline__ OperandOffsets(unsigned a_row, unsigned b_row) {
        const unsigned lane = laneid();
        auto at = [](unsigned row, unsigned col) {
            const unsigned offset = row * row_bytes + col * 2;
            return SWIZZLE ? swizzled<row_bytes>(offset) : offset;
        };
        // a: lanes 0-15 address rows at k, lanes 16-31 the same rows at k + 8.
        a = at(a_row + lane % 16, lane / 16 * 8);
        // b: lanes 0-7 address eight rows at k, lanes 8-15 the same rows at k + 8, lanes 16-31 the next eight rows: two
        // operands.
        b = at(b_row + lane % 8 + lane / 16 * 8, lane / 8 % 2 * 8);
    }
};

// A warp's operands for 16 elements of k: WM rows of a and WN rows of b.
template <int WM, int WN>
struct Fragments {
    unsigned a[WM / 16][4], b[WN / 8][2];

    template <int BK, bool SWIZZLE>
    __device__ __forceinline__ void load(unsigned a_tile, unsigned b_tile, const OperandOffsets<BK, SWIZZLE>& offsets,
                                         unsigned k) {
        const unsigned a_first = a_tile + (offsets.a ^ k * 2), b_first = b_tile + (offsets.b ^ k * 2);
#pragma unroll
        for (int i = 0; i < WM / 16; i++) ldmatrix_x4(a[i], a_first + 16 * i * offsets.row_bytes);
#pragma unroll
        for (int j = 0; j < WN / 8; j += 2) {
            unsigned both[4];
            ldmatrix_x4(both, b_first + 8 * j * offsets.row_bytes);
            b[j][0] = both[0], b[j][1] = both[1], b[j + 1][0] = both[2], b[j + 1][1] = both[3];
        }
    }

    template <class T>
    __device__ __forceinline__ void multiply(float (&sums)[WM / 16][WN / 8][4]) const {
#pragma unroll
        for (int i = 0; i < WM / 16; i++) {
#pragma unroll
            for (int j = 0; j < WN / 8; j++) mma(sums[i][j], a[i], b[j], T());
        }
    }
};

// Stores the sums directly from registers: 4 bytes per thread, 16 contiguous bytes per 4 threads. (row, col) is the
// warp's first element.
template <int WM, int WN, int EPILOGUE, class T>
__device__ __forceinline__ void store_from_registers(const float (&sums)[WM / 16][WN / 8][4],
                                                     const Output<EPILOGUE, T>& output, unsigned row, unsigned col) {
    row += laneid() / 4;
    col += laneid() % 4 * 2;
#pragma unroll
    for (int i = 0; i < WM / 16; i++) {
#pragma unroll
        for (int j = 0; j < WN / 8; j++) {
            output.store(sums[i][j][0], sums[i][j][1], row + 16 * i, col + 8 * j);
            output.store(sums[i][j][2], sums[i][j][3], row + 16 * i + 8, col + 8 * j);
        }
    }
}

// Stores the sums through `box`, 16 x WN swizzled elements of shared memory that belong to the warp: 16 bytes per
// thread, whole rows of the box.
template <int WM, int WN, int EPILOGUE, class T>
__device__ __forceinline__ void store_through_shared(const float (&sums)[WM / 16][WN / 8][4],
                                                     const Output<EPILOGUE, T>& output, unsigned char* box,
                                                     unsigned row, unsigned col) {
    constexpr int row_bytes = 2 * WN, lanes = row_bytes / 16;
    const unsigned lane = laneid();
    auto pair = [&](unsigned r, unsigned c) {
        return reinterpret_cast<unsigned*>(box + swizzled<row_bytes>(r * row_bytes + c * 2));
    };
#pragma unroll
    for (int i = 0; i < WM / 16; i++, row += 16) {
        if (i > 0) __syncwarp();  // all lanes have read the box
#pragma unroll
        for (int j = 0; j < WN / 8; j++) {
            const unsigned r = lane / 4, c = 8 * j + lane % 4 * 2;
            *pair(r, c) = output.finish(sums[i][j][0], sums[i][j][1], row + r, col + c);
            *pair(r + 8, c) = output.finish(sums[i][j][2], sums[i][j][3], row + r + 8, col + c);
        }
        __syncwarp();
#pragma unroll
        for (unsigned r = lane / lanes; r < 16; r += 32 / lanes) {
            const unsigned c = lane % lanes * 8;
            if (row + r < output.m && col + c < output.n) {
                *reinterpret_cast<uint4*>(output.at(row + r, col + c)) = *reinterpret_cast<const uint4*>(pair(r, c));
            }
        }
    }
}

// Tile parameters. Descriptions give them by name (MmaTile in ptxkit/kernels/gemm/matmul_mma.py).
template <int BM_, int BN_, int BK_, int WM_, int WN_, int STAGES_ = 1, int GROUP_ = 1>
struct MmaTile {
    static constexpr int BM = BM_, BN = BN_, BK = BK_;  // of a CTA: rows and columns of c, elements of k in a stage
    static constexpr int WM = WM_, WN = WN_;            // rows and columns of c that a warp computes
    static constexpr int STAGES = STAGES_;              // of the ring of tiles of a and b
    static constexpr int GROUP = GROUP_;                // of grouped_tile
    static constexpr int warps_across = BN / WN, warps = BM / WM * warps_across, threads = 32 * warps;
    static constexpr int a_bytes = BM * BK * 2, b_bytes = BN * BK * 2, stage_bytes = a_bytes + b_bytes;
    static constexpr int box_bytes = 16 * WN * 2;  // what a warp stores at a time
    static_assert(BM % WM == 0 && BN % WN == 0 && WM % 16 == 0 && WN % 16 == 0,
                  "warps cover the tile in matrices of 16");
    static_assert(BK == 32 || BK == 64, "rows have 64 or 128 bytes, the spans of the swizzles");
};

// ---------------------------------------------------------------------------------------------------------------------
// Steps 1 and 2

template <class T, class S, bool SWIZZLE, int EPILOGUE>
__global__ void __launch_bounds__(S::threads) matmul_mma_unpipelined(const T* a, const T* b, T* c, const T* bias, int m,
                                                                     int n, int k, float alpha, float beta) {
    constexpr int BM = S::BM, BN = S::BN, BK = S::BK, WM = S::WM, WN = S::WN;
    __shared__ alignas(1024) unsigned char tiles[S::a_bytes + S::b_bytes];
    const unsigned a_tile = cvta_to_shared(tiles), b_tile = a_tile + S::a_bytes, warp = threadIdx.x / 32;
    const unsigned row = blockIdx.y * BM, col = blockIdx.x * BN;
    const unsigned warp_row = warp / S::warps_across * WM, warp_col = warp % S::warps_across * WN;

    Copier<BM, BK, S::threads, SWIZZLE, T> a_copier;
    Copier<BN, BK, S::threads, SWIZZLE, T> b_copier;
    a_copier.begin(a, row, m, k);
    b_copier.begin(b, col, n, k);
    const OperandOffsets<BK, SWIZZLE> offsets(warp_row, warp_col);
    float sums[WM / 16][WN / 8][4] = {};
    for (int first = 0; first < k; first += BK) {
        a_copier.copy(a_tile);
        b_copier.copy(b_tile);
        a_copier.advance();
        b_copier.advance();
        cp_async_wait_all();
        barrier_sync();
#pragma unroll
        for (int kk = 0; kk < BK; kk += 16) {
            Fragments<WM, WN> fragments;
            fragments.load(a_tile, b_tile, offsets, kk);
            fragments.template multiply<T>(sums);
        }
        barrier_sync();
    }
    Output<EPILOGUE, T> output{c, bias, unsigned(m), unsigned(n), alpha, beta};
    store_from_registers<WM, WN>(sums, output, row + warp_row, col + warp_col);
}

// ---------------------------------------------------------------------------------------------------------------------
// Steps 3, 4 and 5

// AHEAD: the fragments of the next part are loaded during the products of this one. COALESCED: the sums are stored
// through shared memory, after the stages.
template <class T, class S, bool AHEAD, bool COALESCED, int EPILOGUE>
__global__ void __launch_bounds__(S::threads) matmul_mma_pipelined(const T* a, const T* b, T* c, const T* bias, int m,
                                                                   int n, int k, float alpha, float beta) {
    constexpr int BM = S::BM, BN = S::BN, BK = S::BK, WM = S::WM, WN = S::WN, STAGES = S::STAGES, GROUP = S::GROUP;
    constexpr int stage_bytes = S::stage_bytes, parts = BK / 16;
    static_assert(STAGES >= 2, "one stage is multiplied while another is filled");
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned base = cvta_to_shared(shared), end = base + STAGES * stage_bytes;
    const unsigned warp = shfl_sync_idx(all_lanes, threadIdx.x / 32, 0);
    const unsigned warp_row = warp / S::warps_across * WM, warp_col = warp % S::warps_across * WN;
    const TileIndex t = grouped_tile<GROUP>(blockIdx.x, (m - 1) / BM + 1, (n - 1) / BN + 1);
    const unsigned steps = (k - 1) / BK + 1;
    auto next = [&](unsigned stage) { return stage + stage_bytes == end ? base : stage + stage_bytes; };

    // A stage is filled in parts, the last of which commits the cp.async group. Past the last step the copies are
    // zeros.
    Copier<BM, BK, S::threads, true, T> a_copier;
    Copier<BN, BK, S::threads, true, T> b_copier;
    a_copier.begin(a, t.row * BM, m, k);
    b_copier.begin(b, t.col * BN, n, k);
    unsigned filled = base, read = base;
    auto fill = [&](int part, int all) {
        a_copier.copy(filled, part, all);
        b_copier.copy(filled + S::a_bytes, part, all);
        if (part + 1 == all) {
            cp_async_commit_group();
            a_copier.advance();
            b_copier.advance();
            filled = next(filled);
        }
    };
    // Waits until the next stage is filled and all warps have read the stage before the current one.
    auto wait_for_stage = [] {
        cp_async_wait_group<STAGES - 2>();
        barrier_sync();
    };
    const OperandOffsets<BK, true> offsets(warp_row, warp_col);
    auto load = [&](Fragments<WM, WN>& fragments, unsigned stage, int part) {
        fragments.load(stage, stage + S::a_bytes, offsets, part * 16);
    };

    follow_previous_grid();
#pragma unroll
    for (int step = 0; step < STAGES - 1; step++) fill(0, 1);
    float sums[WM / 16][WN / 8][4] = {};
    Fragments<WM, WN> fragments[2];
    if constexpr (AHEAD) {
        wait_for_stage();
        load(fragments[0], read, 0);
    }
    for (unsigned step = 0; step < steps; step++) {
        const unsigned following = next(read);
        if constexpr (!AHEAD) {
            wait_for_stage();
            fill(0, 1);
        }
#pragma unroll
        for (int part = 0; part < parts; part++) {
            if constexpr (AHEAD) {
                const bool last = part == parts - 1;
                if (last) wait_for_stage();  // the last fragments of this stage have been loaded
                load(fragments[(part + 1) % 2], last ? following : read, (part + 1) % parts);
                if (!last) fill(part, parts - 1);
                fragments[part % 2].template multiply<T>(sums);
            } else {
                load(fragments[0], read, part);
                fragments[0].template multiply<T>(sums);
            }
        }
        read = following;
    }
    const Output<EPILOGUE, T> output{c, bias, unsigned(m), unsigned(n), alpha, beta};
    const unsigned row = t.row * BM + warp_row, col = t.col * BN + warp_col;
    if constexpr (COALESCED) {
        store_through_shared<WM, WN>(sums, output, shared + STAGES * stage_bytes + warp * S::box_bytes, row, col);
    } else {
        store_from_registers<WM, WN>(sums, output, row, col);
    }
    cp_async_wait_all();  // shared memory is released when the CTA exits
}

// ---------------------------------------------------------------------------------------------------------------------
// Step 6

// Whether a separate producer warp fills the ring. With 64 x 64 sums per warp it would need a third of the registers of
// two consumer warps; the first warp then fills the ring between its products.
template <int WM, int WN>
constexpr bool has_producer_warp = WM * WN < 64 * 64;

// The shared memory of a CTA: a ring of tiles, a box of c for each warp that multiplies, mbarriers.
template <class T, class S, int EPILOGUE>
__global__ void __launch_bounds__(S::threads + 32 * has_producer_warp<S::WM, S::WN>, 1) matmul_mma_tma(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, T* c, const T* bias, int m, int n,
    int k, float alpha, float beta) {
    constexpr int BM = S::BM, BN = S::BN, BK = S::BK, WM = S::WM, WN = S::WN, STAGES = S::STAGES, GROUP = S::GROUP;
    constexpr int parts = BK / 16, boxes = STAGES * S::stage_bytes, full_at = boxes + S::warps * S::box_bytes;
    static_assert(STAGES >= 2, "one stage is multiplied while another is filled");
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned base = cvta_to_shared(shared), warp = shfl_sync_idx(all_lanes, threadIdx.x / 32, 0);
    auto full = [&](unsigned stage) { return base + full_at + 8 * stage; };
    auto empty = [&](unsigned stage) { return base + full_at + 8 * (STAGES + stage); };
    if (threadIdx.x == 0) init_ring<STAGES>(full(0), 1, empty(0), S::warps);
    barrier_sync();
    follow_previous_grid();

    const unsigned tile_rows = (m - 1) / BM + 1, tile_cols = (n - 1) / BN + 1, tiles = tile_rows * tile_cols;
    const unsigned steps = (k - 1) / BK + 1;
    auto index = [&](unsigned tile) { return grouped_tile<GROUP>(tile, tile_rows, tile_cols); };

    // The producer fills the ring ahead of the products, also with stages of later tiles.
    const unsigned producer_warp = has_producer_warp<WM, WN> ? S::warps : 0;
    Ring<STAGES> filled;
    unsigned next_tile = blockIdx.x, next_step = 0;
    TileIndex from = index(next_tile);
    auto fill = [&] {
        if (warp != producer_warp || next_tile >= tiles) return;
        if (elect_sync(all_lanes)) {
            const unsigned stage = base + filled.stage * S::stage_bytes, arrived = full(filled.stage);
            mbarrier_wait(empty(filled.stage), filled.parity ^ 1);
            mbarrier_arrive_expect_tx(arrived, S::stage_bytes);
            cp_async_bulk_tensor_2d_shared_global(stage, a_map, next_step * BK, from.row * BM, arrived);
            cp_async_bulk_tensor_2d_shared_global(stage + S::a_bytes, b_map, next_step * BK, from.col * BN, arrived);
        }
        filled.advance();
        if (++next_step == steps) {
            __syncwarp();  // forces a branch: otherwise the two divisions of index() run in each step under a predicate
            next_step = 0;
            next_tile += gridDim.x;
            from = index(next_tile);
        }
    };
    if (has_producer_warp<WM, WN> && warp == producer_warp) {
        while (next_tile < tiles) fill();
        return;
    }
#pragma unroll 1
    for (int stage = 0; stage < STAGES - 1; stage++) fill();

    const unsigned warp_row = warp / S::warps_across * WM, warp_col = warp % S::warps_across * WN;
    const Output<EPILOGUE, T> output{c, bias, unsigned(m), unsigned(n), alpha, beta};
    const OperandOffsets<BK, true> offsets(warp_row, warp_col);
    Ring<STAGES> at;
    Fragments<WM, WN> fragments[2];
    auto load = [&](Fragments<WM, WN>& fragments, int part) {
        const unsigned stage = base + at.stage * S::stage_bytes;
        fragments.load(stage, stage + S::a_bytes, offsets, part * 16);
    };
    for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const TileIndex t = index(tile);
        float sums[WM / 16][WN / 8][4] = {};
        mbarrier_wait(full(at.stage), at.parity);
        load(fragments[0], 0);
        for (unsigned step = 1; step <= steps; step++) {
#pragma unroll
            for (int part = 0; part < parts; part++) {
                // Refills the stage of the previous step, which nearly all warps have released by now.
                if (!has_producer_warp<WM, WN> && part == parts / 2) fill();
                if (part < parts - 1) {
                    load(fragments[(part + 1) % 2], part + 1);
                } else {
                    const unsigned read = empty(at.stage);
                    at.advance();
                    if (step < steps) {
                        mbarrier_wait(full(at.stage), at.parity);
                        load(fragments[0], 0);
                    }
                    __syncwarp();
                    if (laneid() == 0) mbarrier_arrive(read);
                }
                fragments[part % 2].template multiply<T>(sums);
            }
        }
        store_through_shared<WM, WN>(sums, output, shared + boxes + warp * S::box_bytes, t.row * BM + warp_row,
                                     t.col * BN + warp_col);
        __syncwarp();
    }
}
