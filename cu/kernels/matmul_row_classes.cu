// Step 18 of matmul_wgmma.cu: step 15 for few rows of a and rows of b that are no multiples of 16 bytes apart, without a copy of b; or for
// few rows of b, with the operands exchanged.
//
// A tensor map needs an address and a distance of rows that are multiples of 16 bytes. Every eighth row of any matrix of 16-bit
// elements is a multiple of 16 bytes after the one before, so that eight tensor maps describe all rows, or fewer if the pitch is even.
// A tile has rows of one class, whose elements begin at the same place of 16 bytes, as many elements later than those of the map. Rows
// of a are copied once for each class, with as many zeros before them (`shift_rows` in align_rows.cu). What b has in that place are
// elements of another row, which are replaced by zeros, because their product with zero may not be zero.
#include "ptxkit/gemm/element_output.cuh"
#include "ptxkit/gemm/multicast_product.cuh"

using namespace ptxkit;

// The epilogue of sums of rows of b of one class: column j of a tile is column `period` j + row_class of c. TRANSPOSED: rows and columns of
// c are exchanged, as the operands are.
template <int EPILOGUE, class T, bool TRANSPOSED_>
struct ClassOutput {
    static constexpr bool TRANSPOSED = TRANSPOSED_;
    ElementOutput<EPILOGUE, T> output;
    unsigned m, period, row_class;

    __device__ __forceinline__ void store(float x, unsigned row, unsigned col) const {
        const unsigned place = period * col + row_class;
        if constexpr (TRANSPOSED) output.store(x, place, row, output.bias_of(row));
        else output.store(x, row, place, output.bias_of(place));
    }

    __device__ __forceinline__ void store(float x, float y, unsigned row, unsigned col) const {
        store(x, row, col);
        store(y, row, col + 1);
    }
};

template <int EPILOGUE, class T>
constexpr bool ptxkit::stores_transposed<ClassOutput<EPILOGUE, T, true>> = true;

// Both operands are contiguous along k. a_map: of the copies of a. Pitches are in elements. With TRANSPOSED, a is what descriptions call b,
// and c has m columns and n rows.
template <class Tile, class T, int EPILOGUE, int TRANSPOSED>
__global__ void __launch_bounds__(Tile::ALL_THREADS) matmul_row_classes(
    const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b0, const __grid_constant__ TensorMap b1,
    const __grid_constant__ TensorMap b2, const __grid_constant__ TensorMap b3, const __grid_constant__ TensorMap b4,
    const __grid_constant__ TensorMap b5, const __grid_constant__ TensorMap b6, const __grid_constant__ TensorMap b7, T* c,
    const T* bias, unsigned m, unsigned n, float alpha, float beta, unsigned pitch, unsigned b_pitch, unsigned period,
    unsigned a_sharing, unsigned b_sharing, unsigned parts, unsigned across, unsigned of_product, unsigned steps, unsigned stages) {
    const MulticastGrid grid = {a_sharing, b_sharing, parts, across, of_product};
    const RowClasses classes = {{&b0, &b1, &b2, &b3, &b4, &b5, &b6, &b7}, period, m, b_pitch};
    const ElementOutput<EPILOGUE, T> of_c{c, bias, TRANSPOSED ? n : m, TRANSPOSED ? m : n, pitch, alpha, beta};
    ClassOutput<EPILOGUE, T, TRANSPOSED> output{of_c, m, period, 0};
    multicast_products<Tile, T, Operands<>, 1, Follow::AT_ONCE>(a_map, b0, b0, output, grid, steps, stages, classes);
}
