// Sums of wgmma in the order of memory: each warp puts 8 rows of 64 of its sums into shared memory at a time, from where it
// reads whole rows, so that neighbouring lanes have neighbouring columns. For epilogues whose rows TMA cannot store, because
// of their pitch, or because they read arrays by row and column.
#pragma once
#include "ptxkit/ptx/special_registers.cuh"

namespace ptxkit {

constexpr int STAGED_COLUMNS = 64;
constexpr int STAGED_PITCH = 72;                       // words; two lanes at a time store to one bank
constexpr int STAGED_BYTES = 8 * STAGED_PITCH * 4;  // of shared memory for a warp

// Calls output.row(sums, row, col, columns) for each row of 64 sums in shared memory that a consumer warp has, where (row,
// col) is the place of the first one in c and columns what output.columns(col) has returned for these columns. All lanes
// call it. (row, col) of the arguments is the place of the warpgroup's first sum; `box` has STAGED_BYTES for this warp.
template <int BN, class Sum, int ROWS, int SUMS, class Out>
__device__ __forceinline__ void use_staged_rows(const Sum (&sums)[ROWS][SUMS], Sum* box, unsigned row, unsigned col,
                                                Out& output) {
    static_assert(sizeof(Sum) == 4 && BN % STAGED_COLUMNS == 0, "passes of 64 columns of 4 bytes");
    const unsigned lane = laneid();
    row += threadIdx.x % 128 / 32 * 16;
    Sum* own = box + lane / 4 * STAGED_PITCH + lane % 4 * 2;
#pragma unroll
    for (int pass = 0; pass < BN / STAGED_COLUMNS; pass++) {
        const unsigned first = col + STAGED_COLUMNS * pass;
        const auto columns = output.columns(first);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                __syncwarp();  // the previous rows have been read
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    own[8 * j] = sums[i][32 * pass + 4 * j + 2 * half];
                    own[8 * j + 1] = sums[i][32 * pass + 4 * j + 2 * half + 1];
                }
                __syncwarp();
#pragma unroll 4
                for (int r = 0; r < 8; r++) {
                    output.row(box + r * STAGED_PITCH, row + 64 * i + 8 * half + r, first, columns);
                }
            }
        }
    }
}

}  // namespace ptxkit
