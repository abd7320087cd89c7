// bf16 or f16 matrix product by mma.sync, for sm_80 and later: c = gelu(alpha a b^T + beta c + bias), where a is m x k, b is n x k
// and c is m x n, all row-major with rows of a multiple of 16 bytes. Sums are f32.
//
// The story, each step the one before and one idea more:
//
// 1. `matmul_mma_unpipelined`: tiles of a and b in shared memory, ldmatrix to registers, mma.sync. The rows of a tile lie one after
//    another, so that the eight rows of a matrix share few banks, and copying and multiplying take turns.
// 2. Swizzled: 16-byte atoms of a row are permuted by the row's number, and the eight rows lie in all 32 banks.
// 3. `matmul_mma_pipelined`: a ring of STAGES tiles, which cp.async fills ahead; one barrier a tile.
// 4. The fragments of the next 16 elements of k are loaded while this one's are multiplied, across tiles too, and copies are spread
//    between them; larger tiles, of which a warp takes 64 x 64; tiles in an order that shares L2.
// 5. The sums leave through shared memory, 16 bytes a thread and whole rows of 128 bytes.
// 6. `matmul_mma_tma`, for sm_90: a warp more has TMA fill the ring, mbarriers hand stages over, so that warps may be stages apart
//    and spend no instruction on copies, and a CTA takes one tile of c after another: copies run through the stores.
//
// Tried, and slower on an H200 by a tenth: the mbarriers and CTAs of step 6 with cp.async.
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

// What a thread copies of tiles of ROWS x BK elements, one after another along the rows of a row-major matrix: `atoms` times 16
// bytes, in rows that lie `step` apart. Zeros past the matrix's end. SWIZZLE permutes as a tensor map of that span would.
template <int ROWS, int BK, int THREADS, bool SWIZZLE, class T>
struct Copier {
    static constexpr int row_atoms = BK / 8, atoms = ROWS * row_atoms / THREADS, step = THREADS / row_atoms;
    static_assert(ROWS * row_atoms % THREADS == 0 && THREADS % 64 == 0, "as many atoms for each thread, at one place in the swizzle");

    const T* from;    // the first atom
    size_t stride;    // elements from one atom to the next
    int inside;       // atoms in rows that the matrix has
    int cols;         // of the matrix, from the first atom's on
    unsigned offset;  // of the first atom in the tile

    // Begin at row `row` of a matrix of rows x all_cols.
    __device__ __forceinline__ void begin(const T* x, int row, int rows, int all_cols) {
        const int r = row + threadIdx.x / row_atoms, c = threadIdx.x % row_atoms * 8;
        from = x + static_cast<size_t>(r) * all_cols + c;
        stride = static_cast<size_t>(step) * all_cols;
        inside = (rows - r + step - 1) / step;
        cols = all_cols - c;
        offset = SWIZZLE ? swizzled<2 * BK>(threadIdx.x * 16) : threadIdx.x * 16;
    }

    // Part `part` of `parts` of a tile, both known when this is compiled.
    __device__ __forceinline__ void copy(unsigned tile, int part = 0, int parts = 1) const {
        const int there = cols > 0 ? inside : 0;
#pragma unroll
        for (int i = 0; i < atoms; i++) {
            if (i * parts / atoms == part) {
                cp_async_cg_shared_global(tile + offset + i * THREADS * 16, from + i * stride, i < there ? 16 : 0);
            }
        }
    }

    __device__ __forceinline__ void advance() {
        from += BK;
        cols -= BK;
    }
};

// Where a lane finds what it reads of a warp's operands: offsets in the tiles of a and b, BK elements wide, at k = 0. A step of k is a
// bit flipped in them, and 16 rows are a constant added: neither reaches the bits by which a row's atoms are permuted.
template <int BK, bool SWIZZLE>
struct Places {
    static constexpr unsigned row_bytes = 2 * BK;
    unsigned a, b;

    // (a_row, b_row) is the warp's first.
    __device__ __forceinline__ Places(unsigned a_row, unsigned b_row) {
        const unsigned lane = laneid();
        auto at = [](unsigned row, unsigned col) {
            const unsigned offset = row * row_bytes + col * 2;
            return SWIZZLE ? swizzled<row_bytes>(offset) : offset;
        };
        // Of a, lanes 0-15 name rows at k, 16-31 the same rows at k + 8.
        a = at(a_row + lane % 16, lane / 16 * 8);
        // Of b, lanes 0-7 name eight rows at k, 8-15 the same at k + 8, 16-31 the next eight rows: two right-hand operands.
        b = at(b_row + lane % 8 + lane / 16 * 8, lane / 8 % 2 * 8);
    }
};

// A warp's operands for 16 elements of k: WM rows of a and WN rows of b.
template <int WM, int WN>
struct Fragments {
    unsigned a[WM / 16][4], b[WN / 8][2];

    template <int BK, bool SWIZZLE>
    __device__ __forceinline__ void load(unsigned a_tile, unsigned b_tile, const Places<BK, SWIZZLE>& places, unsigned k) {
        const unsigned a_first = a_tile + (places.a ^ k * 2), b_first = b_tile + (places.b ^ k * 2);
#pragma unroll
        for (int i = 0; i < WM / 16; i++) ldmatrix_x4(a[i], a_first + 16 * i * places.row_bytes);
#pragma unroll
        for (int j = 0; j < WN / 8; j += 2) {
            unsigned both[4];
            ldmatrix_x4(both, b_first + 8 * j * places.row_bytes);
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

// 4 bytes a thread, 16 contiguous ones for 4 threads. (row, col) is the warp's first.
template <int WM, int WN, int EPILOGUE, class T>
__device__ __forceinline__ void store_from_registers(
    const float (&sums)[WM / 16][WN / 8][4], const Output<EPILOGUE, T>& output, unsigned row, unsigned col) {
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

// Through `box`, 16 x WN elements of shared memory that are the warp's own, swizzled: 16 bytes a thread, whole rows of the box.
template <int WM, int WN, int EPILOGUE, class T>
__device__ __forceinline__ void store_through_shared(
    const float (&sums)[WM / 16][WN / 8][4], const Output<EPILOGUE, T>& output, unsigned char* box, unsigned row, unsigned col) {
    constexpr int row_bytes = 2 * WN, lanes = row_bytes / 16;
    const unsigned lane = laneid();
    auto pair = [&](unsigned r, unsigned c) {
        return reinterpret_cast<unsigned*>(box + swizzled<row_bytes>(r * row_bytes + c * 2));
    };
#pragma unroll
    for (int i = 0; i < WM / 16; i++, row += 16) {
        if (i > 0) __syncwarp();  // all have read what the box held
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
    static_assert(BM % WM == 0 && BN % WN == 0 && WM % 16 == 0 && WN % 16 == 0, "warps cover the tile in matrices of 16");
    static_assert(BK == 32 || BK == 64, "rows of 64 or 128 bytes, for which there are swizzles");
};

// ---------------------------------------------------------------------------------------------------------------------------
// 1 and 2

template <class T, class S, bool SWIZZLE, int EPILOGUE>
__global__ void __launch_bounds__(S::threads) matmul_mma_unpipelined(
    const T* a, const T* b, T* c, const T* bias, int m, int n, int k, float alpha, float beta) {
    constexpr int BM = S::BM, BN = S::BN, BK = S::BK, WM = S::WM, WN = S::WN;
    __shared__ alignas(1024) unsigned char tiles[S::a_bytes + S::b_bytes];
    const unsigned a_tile = cvta_to_shared(tiles), b_tile = a_tile + S::a_bytes, warp = threadIdx.x / 32;
    const unsigned row = blockIdx.y * BM, col = blockIdx.x * BN;
    const unsigned warp_row = warp / S::warps_across * WM, warp_col = warp % S::warps_across * WN;

    Copier<BM, BK, S::threads, SWIZZLE, T> a_copier;
    Copier<BN, BK, S::threads, SWIZZLE, T> b_copier;
    a_copier.begin(a, row, m, k);
    b_copier.begin(b, col, n, k);
    const Places<BK, SWIZZLE> places(warp_row, warp_col);
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
            fragments.load(a_tile, b_tile, places, kk);
            fragments.template multiply<T>(sums);
        }
        barrier_sync();
    }
    Output<EPILOGUE, T> output{c, bias, unsigned(m), unsigned(n), alpha, beta};
    store_from_registers<WM, WN>(sums, output, row + warp_row, col + warp_col);
}

// ---------------------------------------------------------------------------------------------------------------------------
// 3, 4 and 5

// AHEAD: fragments are loaded one part ahead. GROUP: see grouped_tile. COALESCED: sums leave through shared memory, which lies behind
// the stages.
template <class T, class S, bool AHEAD, bool COALESCED, int EPILOGUE>
__global__ void __launch_bounds__(S::threads) matmul_mma_pipelined(
    const T* a, const T* b, T* c, const T* bias, int m, int n, int k, float alpha, float beta) {
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

    // A stage is filled in parts, the last of which makes it a group. Past the last step there is nothing left to read: zeros.
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
    // Until the stage after the last one that was read is there, and all warps are done with the one before.
    auto wait_for_stage = [] {
        cp_async_wait_group<STAGES - 2>();
        barrier_sync();
    };
    const Places<BK, true> places(warp_row, warp_col);
    auto load = [&](Fragments<WM, WN>& fragments, unsigned stage, int part) {
        fragments.load(stage, stage + S::a_bytes, places, part * 16);
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
                if (last) wait_for_stage();  // the last of this one has been loaded
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
    cp_async_wait_all();  // shared memory ends with the CTA
}

// ---------------------------------------------------------------------------------------------------------------------------
// 6

// Whether a warp of its own fills the ring. Beside warps of 64 x 64 sums it would take a third of the registers that two of them need;
// there the first fills the ring between products.
template <int WM, int WN>
constexpr bool fills_alone = WM * WN < 64 * 64;

// A CTA's shared memory: a ring of tiles, a box of c for each warp that multiplies, barriers.
template <class T, class S, int EPILOGUE>
__global__ void __launch_bounds__(S::threads + 32 * fills_alone<S::WM, S::WN>, 1) matmul_mma_tma(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, T* c, const T* bias, int m, int n, int k,
    float alpha, float beta) {
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

    // Ahead of the products by up to the ring, in tiles to come, too.
    const unsigned filler = fills_alone<WM, WN> ? S::warps : 0;
    Ring<STAGES> filled;
    unsigned coming = blockIdx.x, coming_step = 0;
    TileIndex from = index(coming);
    auto fill = [&] {
        if (warp != filler || coming >= tiles) return;
        if (elect_sync(all_lanes)) {
            const unsigned stage = base + filled.stage * S::stage_bytes, arrived = full(filled.stage);
            mbarrier_wait(empty(filled.stage), filled.parity ^ 1);
            mbarrier_arrive_expect_tx(arrived, S::stage_bytes);
            cp_async_bulk_tensor_2d_shared_global(stage, a_map, coming_step * BK, from.row * BM, arrived);
            cp_async_bulk_tensor_2d_shared_global(stage + S::a_bytes, b_map, coming_step * BK, from.col * BN, arrived);
        }
        filled.advance();
        if (++coming_step == steps) {
            __syncwarp();  // a branch, rather than the index's two divisions at every step under a predicate
            coming_step = 0;
            coming += gridDim.x;
            from = index(coming);
        }
    };
    if (fills_alone<WM, WN> && warp == filler) {
        while (coming < tiles) fill();
        return;
    }
#pragma unroll 1
    for (int stage = 0; stage < STAGES - 1; stage++) fill();

    const unsigned warp_row = warp / S::warps_across * WM, warp_col = warp % S::warps_across * WN;
    const Output<EPILOGUE, T> output{c, bias, unsigned(m), unsigned(n), alpha, beta};
    const Places<BK, true> places(warp_row, warp_col);
    Ring<STAGES> at;
    Fragments<WM, WN> fragments[2];
    auto load = [&](Fragments<WM, WN>& fragments, int part) {
        const unsigned stage = base + at.stage * S::stage_bytes;
        fragments.load(stage, stage + S::a_bytes, places, part * 16);
    };
    for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const TileIndex t = index(tile);
        float sums[WM / 16][WN / 8][4] = {};
        mbarrier_wait(full(at.stage), at.parity);
        load(fragments[0], 0);
        for (unsigned step = 1; step <= steps; step++) {
#pragma unroll
            for (int part = 0; part < parts; part++) {
                // The stage of the step before: by now all warps are done with it, or nearly.
                if (!fills_alone<WM, WN> && part == parts / 2) fill();
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
        store_through_shared<WM, WN>(sums, output, shared + boxes + warp * S::box_bytes, t.row * BM + warp_row, t.col * BN + warp_col);
        __syncwarp();
    }
}
