// The sums of a warpgroup that wgmma computes asynchronously: waiting for them, and how they are stored.
#pragma once
#include "ptxkit/ptx/wgmma.cuh"

namespace ptxkit {

// Directly, through shared memory by TMA, through shared memory row by row (staged_rows.cuh), or by vectors to rows that begin
// anywhere (shifted_rows.cuh).
enum Store { FROM_REGISTERS = 0, BY_TMA = 1, STAGED = 2, SHIFTED = 3 };

// Waits until all products of this warpgroup are complete. ROWS: number of wgmmas with sums of their own.
template <class Sum, int ROWS, int SUMS>
__device__ __forceinline__ void wait_for_sums(Sum (&sums)[ROWS][SUMS]) {
    wgmma_wait_group<0>();
#pragma unroll
    for (int i = 0; i < ROWS; i++) warpgroup_fence_operand(sums[i]);
}

}  // namespace ptxkit
