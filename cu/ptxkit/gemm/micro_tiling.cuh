// Building blocks of the f32 matrix products on the CUDA cores: the tile parameters of a CTA, which elements of c each
// lane of a warp computes, and the inner loop, which multiplies from a ring of buffers that bulk copies fill.
#pragma once
#include "ptxkit/gemm/gemm.cuh"
#include "ptxkit/ptx/data_movement.cuh"
#include "ptxkit/ptx/floating_point.cuh"
#include "ptxkit/ptx/tensor_map.cuh"
#include "ptxkit/target.cuh"

namespace ptxkit::micro_tiling {

// Tile parameters. Descriptions give them by name (MicroTile in ptxkit/kernels/gemm/micro_tiling_matmul.py).
template <int BM_, int BN_, int BK_, int TM_, int TN_, int WM_, int WN_, int STAGES_ = 1, int GROUP_ = 1, int CTAS_ = 1>
struct MicroTile {
    static constexpr int BM = BM_, BN = BN_, BK = BK_;  // of a CTA: rows and columns of c, elements of k in a stage
    static constexpr int TM = TM_, TN = TN_;            // rows and columns of c that a thread computes
    static constexpr int WM = WM_, WN = WN_;            // rows and columns of c that a warp computes
    static constexpr int STAGES = STAGES_;              // of the ring of tiles of a and b
    static constexpr int GROUP = GROUP_;                // of grouped_tile
    static constexpr int CTAS = CTAS_;                  // resident CTAs of an SM, for which registers are limited
};

// The first row and column of a tile of c.
struct TileOrigin {
    int row, col;
};

// Elements of k of which the last step multiplies whole chunks, and for which the loop of a step is unrolled.
constexpr int CHUNK = 8;

// How many elements of k of the last step are multiplied.
template <int BK>
__device__ __forceinline__ int last_depth(int k) {
    return ((k - 1) % BK + CHUNK) / CHUNK * CHUNK;
}

template <int BM, int BN, int GROUP>
__device__ __forceinline__ TileOrigin tile_origin(unsigned tile, int m, int n) {
    const TileIndex t = grouped_tile<GROUP>(tile, (m + BM - 1) / BM, (n + BN - 1) / BN);
    return {static_cast<int>(t.row) * BM, static_cast<int>(t.col) * BN};
}

// A warp computes a WM x WN tile; its 32 lanes form a grid of DOWN x ACROSS. Each lane computes micro-tiles of 4 x 4,
// which are 4 DOWN rows and 4 ACROSS columns apart. In one 16-byte load the ACROSS lanes of a row of the grid then read
// 16 ACROSS contiguous bytes of b, and the same bytes of a, which is a broadcast.
template <int BM, int BN, int TM, int TN, int WM, int WN>
struct Lanes {
    static constexpr int DOWN = WM / TM, ACROSS = WN / TN;  // lanes of a warp
    static constexpr int WARPS = (BM / WM) * (BN / WN), THREADS = WARPS * 32;
    static_assert(TM % 4 == 0 && TN % 4 == 0, "128-bit reads of both operands");
    static_assert(WM % TM == 0 && WN % TN == 0 && DOWN * ACROSS == 32, "32 lanes of TM x TN cover WM x WN");
    static_assert(BM % WM == 0 && BN % WN == 0, "warps cover the tile");
    static_assert(THREADS <= TargetLimits::THREADS_PER_CTA, "more threads than a CTA can have");

    int row, col;  // the lane's first element in the tile

    __device__ __forceinline__ Lanes() {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        row = warp / (BN / WN) * WM + lane / ACROSS * 4;
        col = warp % (BN / WN) * WN + lane % ACROSS * 4;
    }
    static __device__ __forceinline__ int down(int r) { return r / 4 * DOWN * 4 + r % 4; }
    static __device__ __forceinline__ int across(int q) { return q / 4 * ACROSS * 4 + q % 4; }
};

template <class Tile>
using LanesOf = Lanes<Tile::BM, Tile::BN, Tile::TM, Tile::TN, Tile::WM, Tile::WN>;

__device__ __forceinline__ void load4(float* to, const float* from) {
    const float4 v = *reinterpret_cast<const float4*>(from);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}

// An order of the lanes in which lane i reads the same bytes of a as lane i ^ 1, and the same bytes of b as lane i ^ 2:
// one shared-memory pass then serves 128-bit reads of 16 such lanes, instead of 8. The rows of a lane are DOWN apart,
// so that rows that are read at the same time are neighbours, which the swizzle keeps in different banks.
template <int BM, int BN, int TM, int TN, int WM, int WN>
struct InterleavedLanes {
    using Tiles = Lanes<BM, BN, TM, TN, WM, WN>;
    static constexpr int DOWN = Tiles::DOWN, ACROSS = Tiles::ACROSS, WARPS = Tiles::WARPS, THREADS = Tiles::THREADS;
    static_assert(DOWN >= 2 && ACROSS >= 2, "neighbours both ways");
    static_assert((TM & (TM - 1)) == 0, "a row's number is put together from bits");

    int row, col;

    __device__ __forceinline__ InterleavedLanes() : InterleavedLanes(threadIdx.x) {}
    __device__ __forceinline__ explicit InterleavedLanes(unsigned thread) {
        const int warp = thread / 32, lane = thread % 32;
        row = warp / (BN / WN) * WM + (lane >> 1 & 1) + lane / 4 / (ACROSS / 2) * 2;
        col = warp % (BN / WN) * WN + ((lane & 1) + lane / 4 % (ACROSS / 2) * 2) * 4;
    }
    static __device__ __forceinline__ constexpr int down(int r) { return r * DOWN; }
    static __device__ __forceinline__ constexpr int across(int q) { return q / 4 * ACROSS * 4 + q % 4; }
};

template <class Tile>
using InterleavedLanesOf = InterleavedLanes<Tile::BM, Tile::BN, Tile::TM, Tile::TN, Tile::WM, Tile::WN>;

template <class L, int TM, int TN>
__device__ __forceinline__ void store(float* c, const float (&sum)[TM][TN], const L& lanes, TileOrigin origin, int m,
                                      int n, bool whole) {
#pragma unroll
    for (int r = 0; r < TM; ++r) {
        const int i = origin.row + lanes.row + L::down(r);
        if (i >= m) continue;
        float* out = c + static_cast<size_t>(i) * n;
#pragma unroll
        for (int q = 0; q < TN; q += 4) {
            const int j = origin.col + lanes.col + L::across(q);
            if (whole) {
                if (j < n)
                    *reinterpret_cast<float4*>(out + j) = {sum[r][q], sum[r][q + 1], sum[r][q + 2], sum[r][q + 3]};
            } else {
#pragma unroll
                for (int s = 0; s < 4; ++s)
                    if (j + s < n) out[j + s] = sum[r][q + s];
            }
        }
    }
}

// The same for rows of c that begin anywhere, by elements that are contiguous over the lanes of a warp: with `store`, each
// instruction writes every fourth element, and the time grows by 0.65 us for each MB of c on an H200. `shared` is room for BM BN
// sums of all warps; odd rows are shifted by half of the banks.
template <class Tile, class L, int TM, int TN>
__device__ __forceinline__ void store_by_rows(float* c, const float (&sum)[TM][TN], const L& lanes, TileOrigin origin, int m, int n,
                                              unsigned char* shared) {
    constexpr int WM = Tile::WM, WN = Tile::WN, ACROSS = Tile::BN / WN;
    const int warp = threadIdx.x / 32, row = warp / ACROSS * WM, col = warp % ACROSS * WN;
    float* sums = reinterpret_cast<float*>(shared) + warp * WM * WN;
    auto place = [](int r, int q) { return r * WN + (WN % 32 == 0 ? q ^ (r & 1) << 4 : q); };
#pragma unroll
    for (int r = 0; r < TM; ++r)
#pragma unroll
        for (int q = 0; q < TN; q += 4)
            st_shared(cvta_to_shared(sums + place(lanes.row + L::down(r) - row, lanes.col + L::across(q) - col)),
                      uint4{__float_as_uint(sum[r][q]), __float_as_uint(sum[r][q + 1]), __float_as_uint(sum[r][q + 2]),
                            __float_as_uint(sum[r][q + 3])});
    __syncwarp();
    constexpr int COLS = WN % 32 == 0 ? 32 : 16, ROWS = 32 / COLS;  // that the lanes store at a time
    const int lane_row = threadIdx.x % 32 / COLS, lane_col = threadIdx.x % COLS;
    const int rows = m - origin.row - row - lane_row, cols = n - origin.col - col - lane_col;
    float* out = c + static_cast<size_t>(origin.row + row + lane_row) * n + origin.col + col + lane_col;
    const size_t further = static_cast<size_t>(ROWS) * n;
#pragma unroll 4
    for (int r = 0; r < WM; r += ROWS, out += further) {
        if (r >= rows) break;
#pragma unroll
        for (int q = 0; q < WN; q += COLS)
            if (q < cols) out[q] = sums[place(r + lane_row, q + lane_col)];
    }
}

// The same with less shared memory: a warp has room for one row of each of its lanes, L::DOWN rows of its columns, at a time.
template <class Tile, class L, int TM, int TN>
__device__ __forceinline__ void store_row_by_row(float* c, const float (&sum)[TM][TN], const L& lanes, TileOrigin origin, int m, int n,
                                                 unsigned char* shared) {
    constexpr int WM = Tile::WM, WN = Tile::WN, ACROSS = Tile::BN / WN, HEIGHT = L::DOWN;
    const int warp = threadIdx.x / 32, row = warp / ACROSS * WM, col = warp % ACROSS * WN;
    float* sums = reinterpret_cast<float*>(shared) + warp * HEIGHT * WN;
    // Rows of 48 columns are half of the banks apart by themselves.
    auto place = [](int r, int q) { return r * WN + (WN % 32 == 0 ? q ^ (r & 1) << 4 : q); };
    constexpr int COLS = WN % 32 == 0 ? 32 : 16, ROWS = 32 / COLS;  // that the lanes store at a time
    static_assert(HEIGHT % ROWS == 0 && WN % COLS == 0, "whole passes");
    static_assert(L::down(1) == L::DOWN, "the rows of a lane are DOWN apart");
#pragma unroll
    for (int begin = 0; begin < TM; ++begin) {
        if (begin > 0) __syncwarp();
#pragma unroll
        for (int q = 0; q < TN; q += 4)
            st_shared(cvta_to_shared(sums + place(lanes.row - row, lanes.col + L::across(q) - col)),
                      uint4{__float_as_uint(sum[begin][q]), __float_as_uint(sum[begin][q + 1]), __float_as_uint(sum[begin][q + 2]),
                            __float_as_uint(sum[begin][q + 3])});
        __syncwarp();
        const int lane_row = threadIdx.x % 32 / COLS, lane_col = threadIdx.x % COLS, first = origin.row + row + begin * L::DOWN + lane_row;
        const int rows = m - first, cols = n - origin.col - col - lane_col;
        float* out = c + static_cast<size_t>(first) * n + origin.col + col + lane_col;
        const size_t further = static_cast<size_t>(ROWS) * n;
#pragma unroll 4
        for (int r = 0; r < HEIGHT; r += ROWS, out += further) {
            if (r >= rows) break;
#pragma unroll
            for (int q = 0; q < WN; q += COLS)
                if (q < cols) out[q] = sums[place(r + lane_row, q + lane_col)];
        }
    }
}

// Stores four neighbouring elements of row i from column j on. whole: rows are multiples of 16 bytes.
__device__ __forceinline__ void store_vector(float* c, float4 v, int i, int j, int m, int n, bool whole) {
    if (i >= m) return;
    float* out = c + static_cast<size_t>(i) * n + j;
    if (whole) {
        if (j < n) *reinterpret_cast<float4*>(out) = v;
    } else {
        if (j < n) out[0] = v.x;
        if (j + 1 < n) out[1] = v.y;
        if (j + 2 < n) out[2] = v.z;
        if (j + 3 < n) out[3] = v.w;
    }
}

// Adds to c in L2 (red): nothing is read, and no thread waits. whole: rows are multiples of 16 bytes.
template <class L, int TM, int TN>
__device__ __forceinline__ void add(float* c, const float (&sum)[TM][TN], const L& lanes, TileOrigin origin, int m,
                                    int n, bool whole) {
#pragma unroll
    for (int r = 0; r < TM; ++r) {
        const int i = origin.row + lanes.row + L::down(r);
        if (i >= m) continue;
        float* out = c + static_cast<size_t>(i) * n;
#pragma unroll
        for (int q = 0; q < TN; q += 4) {
            const int j = origin.col + lanes.col + L::across(q);
            if (whole) {
                const float4 v = {sum[r][q], sum[r][q + 1], sum[r][q + 2], sum[r][q + 3]};
                if (j < n) red_global_add(reinterpret_cast<float4*>(out + j), v);
            } else {
#pragma unroll
                for (int s = 0; s < 4; ++s)
                    if (j + s < n) red_global_add(out + j + s, sum[r][q + s]);
            }
        }
    }
}

// The operands of a lane from a ring's stages, each a swizzled box of BM x BK of a and a box of BK x BN of b: those of
// a are read for four steps of k at once, as a row stores them, those of b for one. Written for ptxas -O1, which keeps
// the order of the source.
//
// Register banks: registers lie in two banks, even and odd. One FFMA per cycle needs an operand from each bank, and the
// third from the operand cache of the previous instruction (.reuse). Along a row that is the element of a; rows
// alternate in direction, so that the element of b is reused at their ends. Registers that one instruction loads,
// right[q] and its neighbours, begin at an even register. The sums are loaded in the same way, as zeros from shared
// memory with neighbours exchanged, so that sum[r][q] lies in the other bank than right[q].
//
// Loop length: CHUNK elements of k. Unrolling all 32 steps of a stage would take 70 KB of instructions, and the warps of
// an SM would wait for instruction fetches as soon as they are at different places.
template <class L, int BM, int BN, int BK, int TM, int TN>
struct BankedOperands {
    static constexpr unsigned SPAN = BK * 4, STAGE_A = BM * SPAN, STAGE = STAGE_A + BK * BN * 4;
    static_assert(BK == 16 || BK == 32, "a row of a in shared memory is a swizzle span of 64 or 128 bytes");
    static_assert(BM <= 256 && BN <= 256, "a box has up to 256 elements a dimension");
    static_assert(STAGE % 1024 == 0, "swizzled boxes begin at multiples of 1024 bytes");

    unsigned base, row, col;  // address of the ring; offsets of the lane's first elements in a stage
    float left[TM][4], right[2][TN];

    __device__ __forceinline__ BankedOperands(unsigned base, const L& lanes)
        : base(base), row(swizzled<SPAN>(lanes.row * SPAN)), col(STAGE_A + lanes.col * 4) {}

    // Sets the sums to zero. `zeros` is the address of four zeros in shared memory.
    static __device__ __forceinline__ void clear(float (&sum)[TM][TN], unsigned zeros) {
#pragma unroll
        for (int r = 0; r < TM; ++r)
#pragma unroll
            for (int q = 0; q < TN; q += 4)
                ld_volatile_shared(sum[r][q + 1], sum[r][q], sum[r][q + 3], sum[r][q + 2], zeros);
    }

    // here: offset in the ring of the lane's first element of a chunk of a or b.
    __device__ __forceinline__ void read_left(int r, unsigned here, int j) {
        // Each bit of the row number comes either from the lane or from r, and so does each bit of the swizzle.
        const unsigned offset = swizzled<SPAN>(L::down(r) * SPAN + j * 4), atom = offset & (SPAN - 16);
        ld_shared(left[r][0], left[r][1], left[r][2], left[r][3], base + (here ^ atom) + (offset - atom));
    }
    __device__ __forceinline__ void read_right(float (&to)[TN], unsigned here, int j) {
#pragma unroll
        for (int q = 0; q < TN; q += 4)
            ld_shared(to[q], to[q + 1], to[q + 2], to[q + 3], base + here + (j * BN + L::across(q)) * 4);
    }

    // Reads the first operands of the stage at this offset in the ring.
    __device__ __forceinline__ void read(unsigned stage) {
#pragma unroll
        for (int r = 0; r < TM; ++r) read_left(r, stage + row, 0);
        read_right(right[0], stage + col, 0);
    }

    // Adds the products of the first `depth` elements of k, a multiple of CHUNK, of a stage whose first operands have been read, and
    // reads the first operands of the next one. leave() releases the stage, all of which has been read, waits for the next one and
    // returns its offset.
    template <class Leave>
    __device__ __forceinline__ void multiply(float (&sum)[TM][TN], unsigned stage, int depth, Leave leave) {
        unsigned a_here = stage + row, b_here = stage + col;
#pragma unroll 1
        for (int end = CHUNK; end <= depth; end += CHUNK) {
            unsigned a_next = (stage + row) ^ end * 4, b_next = b_here + CHUNK * BN * 4;
#pragma unroll
            for (int j = 0; j < CHUNK; ++j) {
                if (j + 1 == CHUNK && end == depth) {
                    const unsigned next = leave();
                    a_next = next + row, b_next = next + col;
                }
                read_right(right[(j + 1) % 2], j + 1 == CHUNK ? b_next : b_here, (j + 1) % CHUNK);
#pragma unroll
                for (int r = 0; r < TM; ++r) {
#pragma unroll
                    for (int i = 0; i < TN; ++i) {
                        const int q = r % 2 ? TN - 1 - i : i;
                        fma_rn_f32(sum[r][q], left[r][j % 4], right[j % 2][q]);
                    }
                    if (j % 4 == 3) read_left(r, j + 1 == CHUNK ? a_next : a_here, (j + 1) % CHUNK);
                }
            }
            a_here = a_next, b_here = b_next;
        }
    }
};

}  // namespace ptxkit::micro_tiling
