// Copies of matrices to rows that TMA can read, for steps 12 to 15 of matmul_wgmma.cu. In a source of its own, because one program
// serves all of them.
#include "ptxkit/gemm/unaligned_rows.cuh"
#include "ptxkit/ptx/half.cuh"
#include "ptxkit/ptx/synchronization.cuh"

using namespace ptxkit;

constexpr int THREADS = 256, BATCH = 4;  // vectors of a thread, whose loads are in flight together

// Copies a matrix to rows that are `pitch` vectors of 16 bytes apart, and a second one in the CTAs from number `ctas` on; what
// follows the elements of a row is zero. A CTA copies THREADS x BATCH vectors that follow each other in the copy.
template <class T>
__global__ void __launch_bounds__(THREADS) align_rows(const T* from, uint4* to, unsigned rows, unsigned columns,
                                                      unsigned from_pitch, unsigned pitch, unsigned ctas, const T* second,
                                                      uint4* second_to, unsigned second_rows, unsigned second_columns,
                                                      unsigned second_from_pitch, unsigned second_pitch) {
    unsigned cta = blockIdx.x;
    if (cta >= ctas) {
        cta -= ctas;
        from = second;
        to = second_to;
        rows = second_rows;
        columns = second_columns;
        from_pitch = second_from_pitch;
        pitch = second_pitch;
    }
    const size_t first = static_cast<size_t>(cta) * (THREADS * BATCH) + threadIdx.x;
    unsigned row = first / pitch, vector = first % pitch;
    const unsigned rows_further = THREADS / pitch, further = THREADS % pitch;
    follow_previous_grid();
    const UnalignedRows<T> matrix(from, rows, columns, from_pitch);
    typename UnalignedRows<T>::Pair pairs[BATCH];
    unsigned y[BATCH], x[BATCH];
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
        y[i] = row;
        x[i] = vector * VECTOR_BYTES;
        pairs[i] = matrix.load(row, x[i]);
        row += rows_further;
        vector += further;
        if (vector >= pitch) {
            vector -= pitch;
            row++;
        }
    }
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
        if (y[i] < rows) to[first + THREADS * i] = matrix.select(pairs[i], y[i], x[i]);
    }
}
