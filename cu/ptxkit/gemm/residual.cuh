// Requests of a residual, which an epilogue adds, before the products of its tile: the epilogue then waits for L2, not for memory.
#pragma once
#include "ptxkit/ptx/data_movement.cuh"

namespace ptxkit {

// Whether an epilogue adds the m x n elements of its member `residual`.
template <class Out>
constexpr bool adds_residual = false;

// Requests that the ROWS x COLS elements from (row, col) on of an m x n matrix be loaded into L2; `thread` is one of THREADS.
template <int ROWS, int COLS, int THREADS, class T>
__device__ __forceinline__ void request_elements(const T* x, unsigned row, unsigned col, unsigned m, unsigned n, unsigned thread) {
    constexpr unsigned LINE = 128 / sizeof(T), LINES = (COLS + LINE - 1) / LINE;
    for (unsigned i = thread; i < ROWS * LINES; i += THREADS) {
        const unsigned r = row + i / LINES, c = col + i % LINES * LINE;
        if (r < m && c < n) prefetch_global_L2(x + static_cast<size_t>(r) * n + c);
    }
}

}  // namespace ptxkit
