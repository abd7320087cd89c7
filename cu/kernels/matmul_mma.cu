// bf16 or f16 matrix product by mma.sync, for sm_80 and later: c = gelu(alpha a b^T + beta c + bias), where a is m x k,
// b is n x k and c is m x n, all row-major with rows of a multiple of 16 bytes. Sums are f32.
//
// Each of the six steps adds one idea to the step before; docs/gemm.md has the measurements.
//
// 1. `matmul_mma_unpipelined`: tiles of a and b in shared memory, ldmatrix, mma.sync. The eight rows of an ldmatrix lie
//     in few banks, and copies and products do not overlap.
// 2. Swizzle: the 16-byte atoms of a row are permuted by the row's number, so that the eight rows cover all 32 banks.
// 3. `matmul_mma_pipelined`: cp.async fills a ring of STAGES tiles before the products, with one barrier per tile.
// 4. The fragments of the next 16 elements of k are loaded during the products of the current ones, across tiles too,
//     and the copies are spread between them. Larger tiles, 64 x 64 per warp; CTAs in an order that shares tiles in L2.
// 5. The sums are stored through shared memory, 16 bytes per thread and whole rows of 128 bytes.
// 6. `matmul_mma_tma`, for sm_90: a producer warp fills the ring through TMA. mbarriers pass the stages, so that warps
//     may be stages apart and execute no copy instructions. CTAs are persistent: copies continue during the stores.
//
// The mbarriers and persistent CTAs of step 6 with cp.async instead of TMA were a tenth slower on an H200.
//
// matmul_mma_block_scaled.cu is a seventh step, for sm_120a: step 5 with mma.sync on quantized operands.
#include "ptxkit/gemm/mma_product.cuh"
#include "ptxkit/ptx/mbarrier.cuh"
#include "ptxkit/ptx/special_registers.cuh"
#include "ptxkit/ptx/synchronization.cuh"
#include "ptxkit/ptx/tensor_map.cuh"

using namespace ptxkit;

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

template <class T, class S, bool AHEAD, bool COALESCED, int EPILOGUE>
__global__ void __launch_bounds__(S::threads) matmul_mma_pipelined(const T* a, const T* b, T* c, const T* bias, int m,
                                                                   int n, int k, float alpha, float beta) {
    const Output<EPILOGUE, T> output{c, bias, unsigned(m), unsigned(n), alpha, beta};
    mma_product<T, S, AHEAD, COALESCED>(a, b, output, m, n, k);
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

    // The producer fills the ring before the products, also with stages of later tiles.
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
