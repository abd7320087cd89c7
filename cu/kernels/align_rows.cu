// Copies of matrices to rows that TMA can read, for steps 12 to 14 of matmul_wgmma.cu. In a source of its own, because one program
// serves all of them.
#include "ptxkit/gemm/unaligned_rows.cuh"
#include "ptxkit/ptx/half.cuh"
#include "ptxkit/ptx/synchronization.cuh"

using namespace ptxkit;

// Copies a matrix to rows that are `pitch` vectors of 16 bytes apart, and a second one in the CTAs from number `ctas` on; what
// follows the elements of a row is zero. Each thread copies one vector.
template <class T>
__global__ void __launch_bounds__(256) align_rows(const T* from, uint4* to, unsigned rows, unsigned columns,
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
    const size_t i = static_cast<size_t>(cta) * 256 + threadIdx.x;
    follow_previous_grid();
    const unsigned row = i / pitch, x = i % pitch * VECTOR_BYTES;
    if (row >= rows) return;
    const UnalignedRows<T> matrix(from, rows, columns, from_pitch);
    to[i] = matrix.select(matrix.load(row, x), row, x);
}
