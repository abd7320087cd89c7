// The parts of a matrix product by mma.sync: copies of tiles to shared memory, operands, and the stores of the sums.
#pragma once
#include "ptxkit/gemm/gemm.cuh"
#include "ptxkit/ptx/async_copy.cuh"
#include "ptxkit/ptx/matrix.cuh"
#include "ptxkit/ptx/special_registers.cuh"
#include "ptxkit/ptx/synchronization.cuh"
#include "ptxkit/ptx/tensor_map.cuh"

namespace ptxkit {

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
template <int WM, int WN, class Out>
__device__ __forceinline__ void store_from_registers(const float (&sums)[WM / 16][WN / 8][4], const Out& output,
                                                     unsigned row, unsigned col) {
    row += laneid() / 4;
    col += laneid() % 4 * 2;
#pragma unroll
    for (int i = 0; i < WM / 16; i++) {
        const auto upper = output.of_row(row + 16 * i), lower = output.of_row(row + 16 * i + 8);
#pragma unroll
        for (int j = 0; j < WN / 8; j++) {
            output.store(sums[i][j][0], sums[i][j][1], row + 16 * i, col + 8 * j, upper);
            output.store(sums[i][j][2], sums[i][j][3], row + 16 * i + 8, col + 8 * j, lower);
        }
    }
}

// Stores the sums through `box`, 16 x WN swizzled elements of shared memory that belong to the warp: 16 bytes per
// thread, whole rows of the box.
template <int WM, int WN, class Out>
__device__ __forceinline__ void store_through_shared(const float (&sums)[WM / 16][WN / 8][4], const Out& output,
                                                     unsigned char* box, unsigned row, unsigned col) {
    constexpr int row_bytes = 2 * WN, lanes = row_bytes / 16;
    const unsigned lane = laneid();
    auto pair = [&](unsigned r, unsigned c) {
        return reinterpret_cast<unsigned*>(box + swizzled<row_bytes>(r * row_bytes + c * 2));
    };
#pragma unroll
    for (int i = 0; i < WM / 16; i++, row += 16) {
        if (i > 0) __syncwarp();  // all lanes have read the box
        const auto upper = output.of_row(row + lane / 4), lower = output.of_row(row + lane / 4 + 8);
#pragma unroll
        for (int j = 0; j < WN / 8; j++) {
            const unsigned r = lane / 4, c = 8 * j + lane % 4 * 2;
            *pair(r, c) = output.finish(sums[i][j][0], sums[i][j][1], row + r, col + c, upper);
            *pair(r + 8, c) = output.finish(sums[i][j][2], sums[i][j][3], row + r + 8, col + c, lower);
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

}  // namespace ptxkit
