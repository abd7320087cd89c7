// Copies of matrices to rows that TMA can read, for steps 12 to 15 of matmul_wgmma.cu. In a source of its own, because one program
// serves all of them.
#include "ptxkit/gemm/unaligned_rows.cuh"
#include "ptxkit/ptx/half.cuh"
#include "ptxkit/ptx/synchronization.cuh"

using namespace ptxkit;

constexpr int THREADS = 256;

// Copies a matrix to rows that are `pitch` vectors of 16 bytes apart, and a second one in the CTAs from number `ctas` on; what
// follows the elements of a row is zero. A CTA copies THREADS x BATCH vectors that follow each other in the copy.
template <class T>
__global__ void __launch_bounds__(THREADS) align_rows(const T* from, uint4* to, unsigned rows, unsigned columns,
                                                      unsigned from_pitch, unsigned pitch, unsigned ctas, const T* second,
                                                      uint4* second_to, unsigned second_rows, unsigned second_columns,
                                                      unsigned second_from_pitch, unsigned second_pitch) {
    constexpr int BATCH = 4;  // vectors of a thread, whose loads are in flight together
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

// Copies a matrix `copies` times, each time with other elements 0 before each row: number i with i x `shift` modulo 8 of them. What
// follows the elements of a row is zero, too.
template <class T>
__global__ void __launch_bounds__(THREADS) shift_rows(const T* from, uint4* to, unsigned rows, unsigned columns, unsigned from_pitch,
                                                      unsigned pitch, unsigned copies, unsigned shift) {
    const size_t i = static_cast<size_t>(blockIdx.x) * THREADS + threadIdx.x;
    const unsigned line = i / pitch, x = i % pitch * VECTOR_BYTES, copy = line / rows, row = line % rows;
    const unsigned before = copy * shift % (VECTOR_BYTES / sizeof(T)) * sizeof(T);
    follow_previous_grid();
    if (copy >= copies) return;
    const UnalignedRows<T> matrix(from, rows, columns, from_pitch);
    const unsigned first = x > 0 ? x - before : 0;
    uint4 found = matrix.select(matrix.load(row, first), row, first);
    if (x == 0 && before > 0) found = shifted<sizeof(T)>(uint4{0, 0, 0, 0}, found, VECTOR_BYTES - before);
    to[i] = found;
}
