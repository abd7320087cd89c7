// Sums of wgmma stored by TMA: each warp puts 16 rows of its sums, as elements of c, into swizzled boxes in shared memory, and
// one lane issues their stores. A warp uses only its own boxes, so that warps do not synchronize.
//
// The epilogue says by FormOf how pairs of sums become elements of a box. Boxes of 16 rows have 128 bytes in a row, or 64 or 32
// where the columns of a tile are no multiple of 128 or 64 bytes.
#pragma once
#include "ptxkit/ptx/bulk_copy.cuh"
#include "ptxkit/ptx/mbarrier.cuh"
#include "ptxkit/ptx/matrix.cuh"
#include "ptxkit/ptx/special_registers.cuh"
#include "ptxkit/ptx/tensor_map.cuh"

namespace ptxkit {

constexpr int BOX_ROWS = 16, BOX_BYTES = BOX_ROWS * 128;  // of which a narrow box uses a part

// Elements of 16 bits, one for each column of the sums. `fill` stores the first 16 ROW_BYTES / 32 columns of the rows r and
// r + 8 of a thread, from column `col` on, where `upper` and `lower` are what output.of_row() has returned for the two rows.
struct SixteenBitForm {
    static constexpr int ELEMENT = 2;  // bytes
    static constexpr int COLUMNS = 1;  // of the sums for an element

    template <int ROW_BYTES, class Sum, class Out, class OfRow>
    static __device__ __forceinline__ void fill(const Sum* sums, Out& output, unsigned r, unsigned col, const OfRow& upper,
                                                const OfRow& lower, unsigned box) {
        // stmatrix: lanes 0-7 and 8-15 hold the addresses of rows 0-7 and 8-15 of 8 columns, lanes 16-31 those of the next
        // 8 columns.
        const unsigned lane = laneid(), offset = (lane % 16) * ROW_BYTES, column = lane / 16;
#pragma unroll
        for (int q = 0; q < ROW_BYTES / 32; q++) {
            const Sum* d = sums + 8 * q;
            const unsigned at = col + 16 * q + lane % 4 * 2;
            const unsigned pairs[4] = {
                output.finish(d[0], d[1], r, at, upper), output.finish(d[2], d[3], r + 8, at, lower),
                output.finish(d[4], d[5], r, at + 8, upper), output.finish(d[6], d[7], r + 8, at + 8, lower)};
            stmatrix_x4(box + swizzled<ROW_BYTES>(offset + (2 * q + column) * 16), pairs);
        }
    }
};

// The form of an epilogue.
template <class Out>
struct FormOf {
    using type = SixteenBitForm;
};
template <class Out>
struct FormOf<const Out> : FormOf<Out> {};

// Bytes of a row of the boxes of a tile with COLS columns of sums.
template <class Form, int COLS, int COLS_BYTES = COLS / Form::COLUMNS * Form::ELEMENT>
constexpr int box_row_bytes = COLS_BYTES % 128 == 0 ? 128 : COLS_BYTES % 64 == 0 ? 64 : 32;

// Stores the first COLS sums of each row through shared memory; up to BOXES stores of a warp are in flight. (row, col) is the
// warpgroup's first sum. With BATCHED the tensor map has the product as its first dimension.
template <int BOXES, int COLS, bool BATCHED, class Sum, int ROWS, int SUMS, class Out>
__device__ __forceinline__ void store_by_tma(const Sum (&sums)[ROWS][SUMS], Out& output, const TensorMap& c_map,
                                             unsigned boxes, unsigned row, unsigned col, unsigned product) {
    using Form = typename FormOf<Out>::type;
    constexpr int row_bytes = box_row_bytes<Form, COLS>, elements = row_bytes / Form::ELEMENT;
    constexpr int width = elements * Form::COLUMNS;  // of a box, in columns of the sums
    constexpr int boxes_across = COLS / width, all = ROWS * boxes_across, used = BOXES < all ? BOXES : all;
    static_assert(COLS % width == 0, "whole boxes");
    static_assert(all % used == 0,
                  "a tile begins with the first box, which must be the one that has been on its way longest");
    const unsigned lane = laneid();
    row += threadIdx.x % 128 / 32 * 16;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const unsigned r = row + 64 * i + lane / 4;
        const auto upper = output.of_row(r), lower = output.of_row(r + 8);
#pragma unroll
        for (int j = 0; j < boxes_across; j++) {
            const unsigned box = boxes + (i * boxes_across + j) % used * BOX_BYTES;
            // the previous contents of this box have been read
            if (lane == 0) cp_async_bulk_wait_group_read<used - 1>();
            __syncwarp();
            Form::template fill<row_bytes>(&sums[i][width / 2 * j], output, r, col + width * j, upper, lower, box);
            fence_proxy_async_shared_cta();
            __syncwarp();
            if (lane == 0) {
                const int x = col / Form::COLUMNS + elements * j, y = row + 64 * i;
                if constexpr (BATCHED) cp_async_bulk_tensor_3d_global_shared(c_map, x, y, product, box);
                else cp_async_bulk_tensor_2d_global_shared(c_map, x, y, box);
                cp_async_bulk_commit_group();
            }
        }
    }
}

}  // namespace ptxkit
