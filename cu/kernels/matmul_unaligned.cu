// Step 11 of matmul_wgmma.cu, for matrices whose rows in memory are no multiples of 16 bytes, such as those of 3001
// elements, and which TMA therefore cannot read. All sizes and all pitches are possible.
//
// The threads of the producer warpgroup read such an operand, put vectors of 16 bytes together (unaligned_rows.cuh), and
// store them where TMA would have put them, so that the consumers are those of the other steps. wgmma reads shared
// memory through the async proxy: each thread makes its stores visible to it by a fence before its warp arrives at
// the mbarrier. An operand with aligned rows is still read by TMA.
//
// Step 12 copies such operands to rows that TMA reads instead. Step 11 puts a row together as often as there are tiles
// that need it, which takes more time than the copy.
//
// c is stored by single elements in the order of memory (staged_rows.cuh).
#include "ptxkit/gemm/element_output.cuh"
#include "ptxkit/gemm/staged_rows.cuh"
#include "ptxkit/gemm/unaligned_rows.cuh"
#include "ptxkit/gemm/wgmma_product.cuh"

using namespace ptxkit;

// What fills the tiles of an operand. Descriptions give it by name (Producers in ptxkit/kernels/gemm/unaligned.py).
enum Producer { TMA_COPIES = 0, THREADS = 1 };

template <int A_, int B_>
struct Producers {
    static constexpr int A = A_, B = B_;
};

// Tile parameters, as in WgmmaTile.
template <int BM_, int BN_, int CONSUMERS_, int STAGES_, int GROUP_, int REGISTERS_>
struct UnalignedTile {
    static constexpr int BM = BM_, BN = BN_, CONSUMERS = CONSUMERS_, STAGES = STAGES_, GROUP = GROUP_,
                         REGISTERS = REGISTERS_;
};

// Fills SIZE rows of a tile of a or b, from `row` on and from k on, by all threads of the producer warpgroup.
template <int MAJOR, int SIZE, class T>
__device__ __forceinline__ void fill_rows(unsigned to, const UnalignedRows<T>& matrix, int k, int row) {
    constexpr int BATCH = SIZE % 128 == 0 ? 8 : 4;
    store_swizzled<SIZE, 128, BATCH>(to, matrix, threadIdx.x % 128, [&](unsigned line, unsigned& y, unsigned& x) {
        // an MN-major tile has a block for each 64 rows of a or b, whose lines are elements of k
        y = MAJOR == K_MAJOR ? row + line : k + line % 64;
        x = (MAJOR == K_MAJOR ? k : row + line / 64 * 64) * sizeof(T);
    });
}

// a_map and b_map are used with TMA_COPIES, a and b with THREADS. Pitches are in elements.
template <class Tile, class T, class Of, class By, int EPILOGUE>
__global__ void __launch_bounds__(128 * (Tile::CONSUMERS + 1), 1) matmul_unaligned(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map, const T* a, const T* b, T* c,
    const T* bias, int m, int n, int k, float alpha, float beta, unsigned c_pitch, unsigned a_pitch, unsigned b_pitch) {
    constexpr int BM = Tile::BM, BN = Tile::BN, CONSUMERS = Tile::CONSUMERS, STAGES = Tile::STAGES;
    constexpr int ROWS = BM / CONSUMERS / 64, REGISTERS = Tile::REGISTERS;
    constexpr bool BY_THREADS = By::A == THREADS || By::B == THREADS;
    static_assert(BM == 64 * ROWS * CONSUMERS, "a consumer takes a multiple of 64 rows");
    static_assert(ROWS * BN <= 256, "a thread holds at most 128 sums");
    constexpr int a_bytes = BM * WGMMA_ROW_BYTES, b_bytes = BN * WGMMA_ROW_BYTES, stage_bytes = a_bytes + b_bytes;
    constexpr int copied_bytes = (By::A == TMA_COPIES ? a_bytes : 0) + (By::B == TMA_COPIES ? b_bytes : 0);
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ alignas(8) unsigned long long barriers[2 * STAGES];
    const unsigned base = cvta_to_shared(shared), full = cvta_to_shared(barriers), empty = full + 8 * STAGES;
    const unsigned warp = shfl_sync_idx(all_lanes, threadIdx.x / 32, 0), lane = laneid();

    if (threadIdx.x == 0) {
        if (By::A == TMA_COPIES) prefetch_tensormap(a_map);
        if (By::B == TMA_COPIES) prefetch_tensormap(b_map);
        init_ring<STAGES>(full, BY_THREADS ? 4 : 1, empty, 4 * CONSUMERS);
    }
    barrier_sync();
    follow_previous_grid();

    const unsigned tile_rows = (m - 1) / BM + 1, tile_cols = (n - 1) / BN + 1, tiles = tile_rows * tile_cols;
    const unsigned steps = (k - 1) / WGMMA_BK + 1;
    Ring<STAGES> at;
    if (warp < 4) {
        if constexpr (REGISTERS > 0) setmaxnreg_dec<104>();
        const UnalignedRows<T> of_a(a, Of::A_MAJOR == K_MAJOR ? m : k, Of::A_MAJOR == K_MAJOR ? k : m, a_pitch);
        const UnalignedRows<T> of_b(b, Of::B_MAJOR == K_MAJOR ? n : k, Of::B_MAJOR == K_MAJOR ? k : n, b_pitch);
        const bool copies = warp == 0 && elect_sync(all_lanes);
        if (!BY_THREADS && warp > 0) return;
        for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            const TileIndex t = grouped_tile<Tile::GROUP>(tile, tile_rows, tile_cols);
            const int row = t.row * BM, col = t.col * BN;
            for (unsigned step = 0; step < steps; step++) {
                const unsigned to_a = base + at.stage * stage_bytes, to_b = to_a + a_bytes, barrier = full + 8 * at.stage;
                const int x = step * WGMMA_BK;
                mbarrier_wait(empty + 8 * at.stage, at.parity ^ 1);
                if (copied_bytes > 0 && copies) {
                    if constexpr (BY_THREADS) mbarrier_expect_tx(barrier, copied_bytes);
                    else mbarrier_arrive_expect_tx(barrier, copied_bytes);
                    if constexpr (By::A == TMA_COPIES) load_rows<Of::A_MAJOR, BM, 1>(to_a, a_map, x, row, barrier);
                    if constexpr (By::B == TMA_COPIES) load_rows<Of::B_MAJOR, BN, 1>(to_b, b_map, x, col, barrier);
                }
                if constexpr (BY_THREADS) {
                    if constexpr (By::A == THREADS) fill_rows<Of::A_MAJOR, BM>(to_a, of_a, x, row);
                    if constexpr (By::B == THREADS) fill_rows<Of::B_MAJOR, BN>(to_b, of_b, x, col);
                    fence_proxy_async_shared_cta();  // of each thread's own stores
                    __syncwarp();
                    if (lane == 0) mbarrier_arrive(barrier);
                }
                at.advance();
            }
        }
    } else {
        if constexpr (REGISTERS > 0) setmaxnreg_inc<REGISTERS>();
        const unsigned consumer = warp / 4 - 1;
        const ElementOutput<EPILOGUE, T> output{c, bias, unsigned(m), unsigned(n), c_pitch, alpha, beta};
        float* box = reinterpret_cast<float*>(shared + STAGES * stage_bytes + (warp - 4) * STAGED_BYTES);
        float sums[ROWS][BN / 2];
        for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            const TileIndex t = grouped_tile<Tile::GROUP>(tile, tile_rows, tile_cols);
            unsigned previous = 0;
            for (unsigned step = 0; step < steps; step++) {
                const unsigned stage = base + at.stage * stage_bytes;
                mbarrier_wait(full + 8 * at.stage, at.parity);
                multiply_tile<T, Of>(sums, stage + consumer * ROWS * WGMMA_BLOCK_BYTES, stage + a_bytes, step > 0);
                wgmma_wait_group<1>();  // the previous step is complete, this one is in flight
                if (step > 0 && lane == 0) mbarrier_arrive(empty + 8 * previous);
                previous = at.stage;
                at.advance();
            }
            wait_for_sums(sums);
            if (lane == 0) mbarrier_arrive(empty + 8 * previous);
            use_staged_rows<BN>(sums, box, t.row * BM + consumer * 64 * ROWS, t.col * BN, output);
        }
    }
}
