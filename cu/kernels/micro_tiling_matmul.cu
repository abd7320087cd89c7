// f32 matrix product on the CUDA cores: c = a b, where a is m x k, b is k x n and c is m x n, all row-major, of any
// size.
//
// Each step adds one idea to the step before. The arithmetic is the same in all: one fma after another in the order of
// k. Step 9, in which CTAs share tiles, is in micro_tiling_stream_k.cu.
//
// 1. naive: one thread per element of c; each fma loads two numbers from memory.
// 2. shared: square tiles in shared memory; a number is loaded once per tile, but each fma still reads two from shared
//     memory.
// 3. registers: a thread computes TM x TN elements, so that TM + TN reads of shared memory feed TM * TN fma.
// 4. vectorized: 128-bit accesses; a is transposed on the way to shared memory, so that both operands are read without
//     bank conflicts.
// 5. async: cp.async copies the next tile without registers while this one is multiplied.
// 6. warps: compact warp tiles of WM x WN, whose lanes share operands; several stages; CTAs in an order that shares
//     tiles in L2.
// 7. bulk: TMA copies whole boxes, issued by one thread (sm_90).
// 8. ring: mbarriers instead of CTA barriers mark stages as full and empty, so that warps may be stages apart.
#include "ptxkit/gemm/micro_tiling.cuh"
#include "ptxkit/ptx/async_copy.cuh"
#include "ptxkit/ptx/mbarrier.cuh"
#include "ptxkit/ptx/synchronization.cuh"
#include "ptxkit/ptx/tensor_map.cuh"

using namespace ptxkit;
using namespace ptxkit::micro_tiling;

// ---------------------------------------------------------------------------------------------------------------------
// naive

extern "C" __global__ void matmul_naive(const float* a, const float* b, float* c, int m, int n, int k) {
    const int col = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= m || col >= n) return;
    float sum = 0;
    for (int i = 0; i < k; ++i)
        sum = fmaf(a[static_cast<size_t>(row) * k + i], b[static_cast<size_t>(i) * n + col], sum);
    c[static_cast<size_t>(row) * n + col] = sum;
}

// ---------------------------------------------------------------------------------------------------------------------
// shared

template <int TILE>
__global__ __launch_bounds__(TILE* TILE) void matmul_shared(const float* a, const float* b, float* c, int m, int n,
                                                            int k) {
    static_assert(TILE * TILE <= TargetLimits::THREADS_PER_CTA, "each thread computes one element");
    __shared__ float at[TILE][TILE], bt[TILE][TILE];
    const int x = threadIdx.x % TILE, y = threadIdx.x / TILE;
    const int row = blockIdx.y * TILE + y, col = blockIdx.x * TILE + x;
    float sum = 0;
    for (int i = 0; i < k; i += TILE) {
        at[y][x] = row < m && i + x < k ? a[static_cast<size_t>(row) * k + i + x] : 0;
        bt[y][x] = i + y < k && col < n ? b[static_cast<size_t>(i + y) * n + col] : 0;
        barrier_sync();
#pragma unroll
        for (int j = 0; j < TILE; ++j) sum = fmaf(at[y][j], bt[j][x], sum);
        barrier_sync();
    }
    if (row < m && col < n) c[static_cast<size_t>(row) * n + col] = sum;
}

// ---------------------------------------------------------------------------------------------------------------------
// registers

template <int BM, int BN, int BK, int TM, int TN>
__global__ __launch_bounds__((BM / TM) * (BN / TN)) void matmul_registers(const float* a, const float* b, float* c,
                                                                          int m, int n, int k) {
    constexpr int THREADS = (BM / TM) * (BN / TN);
    static_assert(BM % TM == 0 && BN % TN == 0, "micro-tiles cover the tile");
    static_assert(THREADS <= TargetLimits::THREADS_PER_CTA, "more threads than a CTA can have");
    __shared__ float at[BM][BK], bt[BK][BN];
    const int x = threadIdx.x % (BN / TN), y = threadIdx.x / (BN / TN);
    const int row = blockIdx.y * BM, col = blockIdx.x * BN;
    float sum[TM][TN] = {};
    for (int i = 0; i < k; i += BK) {
        for (int e = threadIdx.x; e < BM * BK; e += THREADS) {
            const int r = e / BK, j = e % BK;
            at[r][j] = row + r < m && i + j < k ? a[static_cast<size_t>(row + r) * k + i + j] : 0;
        }
        for (int e = threadIdx.x; e < BK * BN; e += THREADS) {
            const int j = e / BN, q = e % BN;
            bt[j][q] = i + j < k && col + q < n ? b[static_cast<size_t>(i + j) * n + col + q] : 0;
        }
        barrier_sync();
#pragma unroll
        for (int j = 0; j < BK; ++j) {
            float left[TM], right[TN];
#pragma unroll
            for (int r = 0; r < TM; ++r) left[r] = at[y * TM + r][j];
#pragma unroll
            for (int q = 0; q < TN; ++q) right[q] = bt[j][x * TN + q];
#pragma unroll
            for (int r = 0; r < TM; ++r)
#pragma unroll
                for (int q = 0; q < TN; ++q) sum[r][q] = fmaf(left[r], right[q], sum[r][q]);
        }
        barrier_sync();
    }
#pragma unroll
    for (int r = 0; r < TM; ++r)
#pragma unroll
        for (int q = 0; q < TN; ++q) {
            const int i = row + y * TM + r, j = col + x * TN + q;
            if (i < m && j < n) c[static_cast<size_t>(i) * n + j] = sum[r][q];
        }
}

// ---------------------------------------------------------------------------------------------------------------------
// The fma of one step of k, for a thread's TM x TN elements.
template <class L, int TM, int TN>
__device__ __forceinline__ void multiply(float (&sum)[TM][TN], const float (&left)[TM], const float (&right)[TN]) {
#pragma unroll
    for (int r = 0; r < TM; ++r)
#pragma unroll
        for (int q = 0; q < TN; ++q) sum[r][q] = fmaf(left[r], right[q], sum[r][q]);
}

// Reads the operands of step j. The tile of a is transposed in shared memory: a[j * pitch + r].
template <class L, int TM, int TN>
__device__ __forceinline__ void operands(float (&left)[TM], float (&right)[TN], const L& lanes, const float* at,
                                         const float* bt, int pitch_a, int pitch_b, int j) {
#pragma unroll
    for (int r = 0; r < TM; r += 4) load4(left + r, at + j * pitch_a + lanes.row + L::down(r));
#pragma unroll
    for (int q = 0; q < TN; q += 4) load4(right + q, bt + j * pitch_b + lanes.col + L::across(q));
}

// The same for shared addresses. The loads are written in PTX, because the compiler splits some 128-bit loads into
// smaller ones, and not the same ones in every compilation.
template <class L, int TM, int TN>
__device__ __forceinline__ void operands(float (&left)[TM], float (&right)[TN], const L& lanes, unsigned at,
                                         unsigned bt, int pitch_a, int pitch_b, int j) {
#pragma unroll
    for (int r = 0; r < TM; r += 4) {
        const unsigned from = at + (j * pitch_a + lanes.row + L::down(r)) * 4;
        ld_shared(left[r], left[r + 1], left[r + 2], left[r + 3], from);
    }
#pragma unroll
    for (int q = 0; q < TN; q += 4) {
        const unsigned from = bt + (j * pitch_b + lanes.col + L::across(q)) * 4;
        ld_shared(right[q], right[q + 1], right[q + 2], right[q + 3], from);
    }
}

// Multiplies one tile of k, given the shared addresses of the operands. Those of the next step are read during the fma
// of this one.
template <class L, int BK, int TM, int TN>
__device__ __forceinline__ void multiply_tile(float (&sum)[TM][TN], const L& lanes, unsigned at, unsigned bt,
                                              int pitch_a, int pitch_b) {
    float left[2][TM], right[2][TN];
    operands(left[0], right[0], lanes, at, bt, pitch_a, pitch_b, 0);
#pragma unroll
    for (int j = 0; j < BK; ++j) {
        if (j + 1 < BK) operands(left[(j + 1) % 2], right[(j + 1) % 2], lanes, at, bt, pitch_a, pitch_b, j + 1);
        multiply<L>(sum, left[j % 2], right[j % 2]);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// vectorized: copies through registers, two barriers per tile

template <class Tile, bool ALIGNED>
__global__ __launch_bounds__(LanesOf<Tile>::THREADS) void matmul_vectorized(const float* a, const float* b, float* c,
                                                                            int m, int n, int k) {
    constexpr int BM = Tile::BM, BN = Tile::BN, BK = Tile::BK, TM = Tile::TM, TN = Tile::TN;
    using L = LanesOf<Tile>;
    // The padding of 4 elements limits bank conflicts of the transposing stores and keeps 16-byte reads aligned.
    constexpr int PITCH = BM + 4;
    static_assert(BK % 4 == 0, "128-bit loads along k");
    __shared__ __align__(16) float at[BK * PITCH], bt[BK * BN];
    const L lanes;
    const TileOrigin origin = tile_origin<BM, BN, 1>(blockIdx.x, m, n);
    float sum[TM][TN] = {};
    for (int i = 0; i < k; i += BK) {
        for (int e = threadIdx.x; e < BM * BK / 4; e += L::THREADS) {
            const int r = e / (BK / 4), j = e % (BK / 4) * 4;
            const float* from = a + static_cast<size_t>(origin.row + r) * k + i + j;
            float v[4] = {};
            if (origin.row + r < m) {
                if (ALIGNED) {
                    if (i + j < k) load4(v, from);
                } else {
                    for (int s = 0; s < 4; ++s)
                        if (i + j + s < k) v[s] = from[s];
                }
            }
#pragma unroll
            for (int s = 0; s < 4; ++s) at[(j + s) * PITCH + r] = v[s];
        }
        for (int e = threadIdx.x; e < BK * BN / 4; e += L::THREADS) {
            const int j = e / (BN / 4), q = e % (BN / 4) * 4;
            const float* from = b + static_cast<size_t>(i + j) * n + origin.col + q;
            float v[4] = {};
            if (i + j < k) {
                if (ALIGNED) {
                    if (origin.col + q < n) load4(v, from);
                } else {
                    for (int s = 0; s < 4; ++s)
                        if (origin.col + q + s < n) v[s] = from[s];
                }
            }
            *reinterpret_cast<float4*>(bt + j * BN + q) = {v[0], v[1], v[2], v[3]};
        }
        barrier_sync();
        multiply_tile<L, BK>(sum, lanes, cvta_to_shared(at), cvta_to_shared(bt), PITCH, BN);
        barrier_sync();
    }
    store(c, sum, lanes, origin, m, n, ALIGNED);
}

// ---------------------------------------------------------------------------------------------------------------------
// async and warps: a ring of stages, one barrier per tile

// The copies of one thread of tiles of a, transposed, 4 bytes at a time. It stays in one column of the tile, so that
// its addresses advance by constants.
template <int BM, int BK, int PITCH, int THREADS>
struct CopyA {
    static_assert(THREADS % BK == 0, "a thread keeps its column");
    static constexpr int ROWS = THREADS / BK, COUNT = (BM + ROWS - 1) / ROWS;
    const float* from;
    unsigned to;
    int rows_left, k_left, k;

    __device__ __forceinline__ CopyA(const float* a, int row, int m, int k) : k(k) {
        const int r = threadIdx.x / BK, j = threadIdx.x % BK;
        from = a + static_cast<size_t>(row + r) * k + j;
        to = (j * PITCH + r) * 4;
        rows_left = m - row - r;
        k_left = k - j;
    }
    __device__ __forceinline__ void operator()(unsigned stage) {
#pragma unroll
        for (int s = 0; s < COUNT; ++s) {
            if (BM % ROWS != 0 && threadIdx.x / BK + s * ROWS >= BM) break;
            const bool inside = s * ROWS < rows_left && k_left > 0;  // zero outside the matrix
            cp_async_ca_shared_global_4(stage + to + s * ROWS * 4, from + static_cast<size_t>(s * ROWS) * k,
                                        inside ? 4 : 0);
        }
        from += BK;
        k_left -= BK;
    }
};

// The same for b, not transposed, 16 bytes at a time where rows are aligned.
template <int BN, int BK, int THREADS, bool ALIGNED>
struct CopyB {
    static constexpr int WIDE = ALIGNED ? 4 : 1, ACROSS = BN / WIDE;
    static_assert(THREADS % ACROSS == 0 || ACROSS % THREADS == 0,
                  "a thread keeps its columns, or a row is several passes");
    static constexpr int ROWS = THREADS >= ACROSS ? THREADS / ACROSS : 1,
                         PASSES = THREADS >= ACROSS ? 1 : ACROSS / THREADS;
    static constexpr int COUNT = (BK + ROWS - 1) / ROWS;
    const float* from;
    unsigned to;
    int cols_left, k_left, n;

    __device__ __forceinline__ CopyB(const float* b, int col, int n, int k) : n(n) {
        const int j = PASSES == 1 ? threadIdx.x / ACROSS : 0, q = threadIdx.x % ACROSS * WIDE;
        from = b + static_cast<size_t>(j) * n + col + q;
        to = (j * BN + q) * 4;
        cols_left = n - col - q;
        k_left = k - j;
    }
    __device__ __forceinline__ void operator()(unsigned stage) {
#pragma unroll
        for (int s = 0; s < COUNT; ++s) {
            if (BK % ROWS != 0 && threadIdx.x / ACROSS + s * ROWS >= BK) break;
#pragma unroll
            for (int p = 0; p < PASSES; ++p) {
                const bool inside = p * THREADS * WIDE < cols_left && s * ROWS < k_left;
                const float* at = from + static_cast<size_t>(s * ROWS) * n + p * THREADS * WIDE;
                const unsigned destination = stage + to + (s * ROWS * BN + p * THREADS * WIDE) * 4;
                if (ALIGNED) cp_async_cg_shared_global(destination, at, inside ? 16 : 0);
                else cp_async_ca_shared_global_4(destination, at, inside ? 4 : 0);
            }
        }
        from += static_cast<size_t>(BK) * n;
        k_left -= BK;
    }
};

template <class Tile, bool ALIGNED>
__global__ __launch_bounds__(LanesOf<Tile>::THREADS, Tile::CTAS) void matmul_pipelined(const float* a, const float* b,
                                                                                       float* c, int m, int n, int k) {
    constexpr int BM = Tile::BM, BN = Tile::BN, BK = Tile::BK, TM = Tile::TM, TN = Tile::TN;
    constexpr int STAGES = Tile::STAGES, GROUP = Tile::GROUP;
    using L = LanesOf<Tile>;
    constexpr int PITCH = BM + 4, STAGE = BK * (PITCH + BN);
    static_assert(STAGES >= 2, "one is filled while another is read");
    static_assert(BK % 2 == 0, "operands alternate between two sets of registers");
    extern __shared__ __align__(16) float ring[];
    const L lanes;
    const TileOrigin origin = tile_origin<BM, BN, GROUP>(blockIdx.x, m, n);
    const unsigned base = cvta_to_shared(ring);
    CopyA<BM, BK, PITCH, L::THREADS> copy_a(a, origin.row, m, k);
    CopyB<BN, BK, L::THREADS, ALIGNED> copy_b(b, origin.col, n, k);

    const int tiles = (k + BK - 1) / BK;
    int to = 0;
    auto copy = [&] {
        const unsigned stage = base + to * STAGE * 4;
        copy_a(stage);
        copy_b(stage + BK * PITCH * 4);
        to = to + 1 == STAGES ? 0 : to + 1;
    };
    for (int t = 0; t < STAGES - 1; ++t) {
        if (t < tiles) copy();
        cp_async_commit_group();
    }
    float sum[TM][TN] = {}, left[2][TM], right[2][TN];
    cp_async_wait_group<STAGES - 2>();
    barrier_sync();
    const float* at = ring;
    int from = 0;
    operands(left[0], right[0], lanes, at, at + BK * PITCH, PITCH, BN, 0);
    for (int t = 0; t < tiles; ++t) {
        if (t + STAGES - 1 < tiles) copy();
        cp_async_commit_group();
#pragma unroll
        for (int j = 0; j < BK; ++j) {
            // All operands of this tile are in registers: the barrier and the first reads of the next tile overlap with
            // its fma.
            if (j + 1 == BK) {
                cp_async_wait_group<STAGES - 2>();
                barrier_sync();
                from = from + 1 == STAGES ? 0 : from + 1;
                at = ring + from * STAGE;
            }
            const int next = (j + 1) % BK;
            operands(left[(j + 1) % 2], right[(j + 1) % 2], lanes, at, at + BK * PITCH, PITCH, BN, next);
            multiply<L>(sum, left[j % 2], right[j % 2]);
        }
    }
    store(c, sum, lanes, origin, m, n, ALIGNED);
}

// ---------------------------------------------------------------------------------------------------------------------
// bulk: TMA copies boxes. a is not transposed: rows of 32 elements, swizzled so that the same columns of 8 rows lie in
// different banks; a lane reads four steps of k of a row at once. n and k must be multiples of 4 (strides of 16 bytes).

template <class Tile>
__global__ __launch_bounds__(LanesOf<Tile>::THREADS, Tile::CTAS) void matmul_bulk(const __grid_constant__ TensorMap a,
                                                                                  const __grid_constant__ TensorMap b,
                                                                                  float* c, int m, int n, int k) {
    constexpr int BM = Tile::BM, BN = Tile::BN, TM = Tile::TM, TN = Tile::TN;
    constexpr int STAGES = Tile::STAGES, GROUP = Tile::GROUP;
    using L = LanesOf<Tile>;
    constexpr int BK = 32, STAGE_A = BM * BK * 4, STAGE_B = BK * BN * 4, STAGE = STAGE_A + STAGE_B;
    static_assert(BM <= 256 && BN <= 256, "a box has up to 256 elements a dimension");
    static_assert(STAGE % 1024 == 0, "swizzled boxes begin at multiples of 1024 bytes");
    extern __shared__ __align__(1024) unsigned char bytes[];
    __shared__ unsigned long long filled[STAGES];
    const L lanes;
    const TileOrigin origin = tile_origin<BM, BN, GROUP>(blockIdx.x, m, n);
    const unsigned base = cvta_to_shared(bytes), barriers = cvta_to_shared(filled);
    const int tiles = (k + BK - 1) / BK;

    auto copy = [&](int t) {
        const unsigned stage = base + t % STAGES * STAGE, barrier = barriers + t % STAGES * 8;
        mbarrier_arrive_expect_tx(barrier, STAGE);
        cp_async_bulk_tensor_2d_shared_global(stage, a, t * BK, origin.row, barrier);
        cp_async_bulk_tensor_2d_shared_global(stage + STAGE_A, b, origin.col, t * BK, barrier);
    };
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) mbarrier_init(barriers + s * 8, 1);
        fence_mbarrier_init_release_cluster();
        fence_proxy_async();
        for (int t = 0; t < STAGES - 1 && t < tiles; ++t) copy(t);
    }
    barrier_sync();

    float sum[TM][TN] = {};
    int ring = 0, parity = 0;
    for (int t = 0; t < tiles; ++t) {
        mbarrier_wait(barriers + ring * 8, parity);
        const unsigned char* at = bytes + ring * STAGE;
        if (++ring == STAGES) ring = 0, parity ^= 1;
        const float* bt = reinterpret_cast<const float*>(at + STAGE_A);
#pragma unroll
        for (int j = 0; j < BK; j += 4) {
            float left[TM][4];
#pragma unroll
            for (int r = 0; r < TM; ++r) {
                const unsigned offset = (lanes.row + L::down(r)) * (BK * 4) + j * 4;
                load4(left[r], reinterpret_cast<const float*>(at + swizzled<128>(offset)));
            }
#pragma unroll
            for (int s = 0; s < 4; ++s) {
                float column[TM], right[TN];
#pragma unroll
                for (int r = 0; r < TM; ++r) column[r] = left[r][s];
#pragma unroll
                for (int q = 0; q < TN; q += 4) load4(right + q, bt + (j + s) * BN + lanes.col + L::across(q));
                multiply<L>(sum, column, right);
            }
        }
        barrier_sync();  // all threads have read this stage
        if (threadIdx.x == 0 && t + STAGES - 1 < tiles) copy(t + STAGES - 1);
    }
    store(c, sum, lanes, origin, m, n, true);
}

// ---------------------------------------------------------------------------------------------------------------------
// ring: boxes as in bulk, but a warp that has read a stage arrives at its mbarrier and continues. The operands of the
// next step of k are read during the fma of this one, also across the end of a stage.

template <class Tile>
__global__ __launch_bounds__(InterleavedLanesOf<Tile>::THREADS, Tile::CTAS) void matmul_ring(
    const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b, float* c, int m, int n, int k) {
    constexpr int BM = Tile::BM, BN = Tile::BN, BK = Tile::BK, TM = Tile::TM, TN = Tile::TN;
    constexpr int STAGES = Tile::STAGES, GROUP = Tile::GROUP;
    using L = InterleavedLanesOf<Tile>;
    constexpr unsigned SPAN = BK * 4, STAGE_A = BM * SPAN, STAGE = STAGE_A + BK * BN * 4;
    static_assert(BK == 16 || BK == 32, "a row of a in shared memory is a swizzle span of 64 or 128 bytes");
    static_assert(BM <= 256 && BN <= 256, "a box has up to 256 elements a dimension");
    static_assert(STAGE % 1024 == 0, "swizzled boxes begin at multiples of 1024 bytes");
    static_assert(STAGES >= 2, "one is filled while another is read");
    extern __shared__ __align__(1024) unsigned char bytes[];
    __shared__ unsigned long long barriers[2 * STAGES];
    const L lanes;
    const TileOrigin origin = tile_origin<BM, BN, GROUP>(blockIdx.x, m, n);
    const unsigned base = cvta_to_shared(bytes), filled = cvta_to_shared(barriers), free = filled + STAGES * 8;
    const int tiles = (k + BK - 1) / BK;

    auto copy = [&](int tile, int stage) {
        const unsigned to = base + stage * STAGE, barrier = filled + stage * 8;
        mbarrier_arrive_expect_tx(barrier, STAGE);
        cp_async_bulk_tensor_2d_shared_global(to, a, tile * BK, origin.row, barrier);
        cp_async_bulk_tensor_2d_shared_global(to + STAGE_A, b, origin.col, tile * BK, barrier);
    };
    if (threadIdx.x == 0) {
        init_ring<STAGES>(filled, 1, free, L::WARPS);
        fence_proxy_async();
        for (int s = 0; s < STAGES && s < tiles; ++s) copy(s, s);
    }
    barrier_sync();

    // Operands of a are read for four steps of k at once, operands of b for one. The next four of a row are read into
    // the same registers as soon as the row has been used for the last time; the registers that this saves let ptxas
    // avoid register bank conflicts.
    float sum[TM][TN] = {}, left[TM][4], right[2][TN];
    const unsigned row = swizzled<SPAN>(lanes.row * SPAN), col = STAGE_A + lanes.col * 4;
    auto read_left = [&](int r, unsigned stage, int j) {
        // Each bit of the row number comes either from the lane or from r; so the two swizzled offsets combine by xor.
        const unsigned here = swizzled<SPAN>(L::down(r) * SPAN + j * 4), atom = here & (SPAN - 16);
        load4(left[r], reinterpret_cast<const float*>(bytes + ((stage + row) ^ atom) + (here - atom)));
    };
    auto read_right = [&](float (&to)[TN], unsigned stage, int j) {
#pragma unroll
        for (int q = 0; q < TN; q += 4)
            load4(to + q, reinterpret_cast<const float*>(bytes + (stage + col) + (j * BN + L::across(q)) * 4));
    };
    int ring = 0, parity = 0;
    mbarrier_wait(filled, 0);
#pragma unroll
    for (int r = 0; r < TM; ++r) read_left(r, 0, 0);
    read_right(right[0], 0, 0);
    for (int t = 0; t < tiles; ++t) {
        const int next = ring + 1 == STAGES ? 0 : ring + 1, next_parity = next == 0 ? parity ^ 1 : parity;
#pragma unroll
        for (int j = 0; j < BK; ++j) {
            unsigned stage = ring * STAGE;
            if (j + 1 == BK) {
                stage = next * STAGE;
                __syncwarp();
                if (threadIdx.x % 32 == 0) mbarrier_arrive(free + ring * 8);
                if (t + 1 < tiles) mbarrier_wait(filled + next * 8, next_parity);
            }
            read_right(right[(j + 1) % 2], stage, (j + 1) % BK);
#pragma unroll
            for (int r = 0; r < TM; ++r) {
#pragma unroll
                for (int q = 0; q < TN; ++q) sum[r][q] = fmaf(left[r][j % 4], right[j % 2][q], sum[r][q]);
                if (j % 4 == 3) read_left(r, stage, (j + 1) % BK);
            }
            if (j == BK / 2 && threadIdx.x == 0 && t > 0 && t - 1 + STAGES < tiles) {
                // The previous stage: the other warps have had half a tile's time to release it.
                const int last = ring == 0 ? STAGES - 1 : ring - 1;
                mbarrier_wait(free + last * 8, ring == 0 ? parity ^ 1 : parity);
                copy(t - 1 + STAGES, last);
            }
        }
        ring = next, parity = next_parity;
    }
    store(c, sum, lanes, origin, m, n, true);
}
