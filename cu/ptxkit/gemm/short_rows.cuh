// Rows of a tile for mma.sync that stay in shared memory where copies put them, and begin anywhere.
#pragma once
#include "ptxkit/gemm/mma.cuh"
#include "ptxkit/ptx/bulk_copy.cuh"

namespace ptxkit {

constexpr unsigned SHORT_VECTOR = 8;  // elements

// Rows of a matrix in a tile. `stride`: elements from one row to the next in shared memory. PIECE: it is that of a contiguous matrix.
template <class T>
struct ShortRows {
    const T* from;
    unsigned lines, elements, k, pitch, stride;
    unsigned after;  // rows of the matrix after these
    bool contiguous, piece;

    __device__ __forceinline__ ShortRows(const T* matrix, unsigned first, unsigned most, unsigned all_rows, unsigned k, unsigned pitch,
                                         unsigned stride)
        : from(matrix + static_cast<size_t>(first) * pitch), lines(min(most, all_rows - first)), elements(lines * k), k(k), pitch(pitch),
          stride(stride), after(all_rows - first - lines), contiguous(pitch == k), piece(contiguous && stride == k) {}

    // Elements of the aligned vector with the first element of a row that are before this element.
    __device__ __forceinline__ unsigned before(unsigned line) const { return line * (pitch % SHORT_VECTOR) % SHORT_VECTOR; }

    // Elements from the first byte of the tile in shared memory to a row.
    __device__ __forceinline__ unsigned offset(unsigned line) const { return line * stride + (piece ? 0 : before(line)); }

    // Bytes of the whole vectors of contiguous rows, and whether there are elements after them, which the matrix then ends with.
    __device__ __forceinline__ unsigned vector_bytes() const { return elements / SHORT_VECTOR * 16; }
    __device__ __forceinline__ bool has_rest() const { return piece && elements % SHORT_VECTOR > 0; }

    // Requests contiguous rows in L2.
    __device__ __forceinline__ void request() const {
        if (contiguous && vector_bytes() > 0) cp_async_bulk_prefetch_L2_global(from, vector_bytes());
    }

    // Copies element number `i` after the whole vectors.
    __device__ __forceinline__ void copy_rest(unsigned to, unsigned i) const {
        const unsigned x = elements / SHORT_VECTOR * SHORT_VECTOR + i;
        if (x < elements) st_shared(to + x * 2, reinterpret_cast<const unsigned short*>(from)[x]);
    }

    // Copies the vectors that contain a row, for all rows, by all threads. What follows the matrix is not read.
    template <unsigned THREADS>
    __device__ __forceinline__ void copy_rows(unsigned to) const {
        constexpr unsigned LANES = 16;
        for (unsigned line = threadIdx.x / LANES; line < lines; line += THREADS / LANES) {
            const unsigned end = before(line) + k;
            const T* const row = from + static_cast<size_t>(line) * pitch - before(line);
            const unsigned available = min(after + lines - 1 - line, SHORT_VECTOR) * pitch + end;
            for (unsigned x = threadIdx.x % LANES * SHORT_VECTOR; x < end; x += LANES * SHORT_VECTOR) {
                cp_async_cg_shared_global(to + (line * stride + x) * 2, row + x, min(available - x, SHORT_VECTOR) * 2);
            }
        }
    }
};

// The part of a word with elements `first` and `first` + 1 that is among `count` elements.
__device__ __forceinline__ unsigned short_mask(unsigned first, unsigned count) {
    return first + 1 < count ? 0xffffffff : first < count ? 0xffff : 0;
}

// Where rows begin in shared memory: at multiples of 16 bytes, at a word, or anywhere.
enum class Begin { VECTOR, WORD, ANYWHERE };

// The operands of a lane for 16 elements of a row, or for the first `left` of them if MASKED. `at`: address of the word with the lane's first
// element. Products may be added in any order of k: in rows that begin anywhere, a lane takes four neighbouring elements, of which the first
// one is the upper half of a word if `halves` says so.
template <Begin BEGIN, bool MASKED>
__device__ __forceinline__ void short_operands(unsigned (&found)[2], unsigned at, unsigned halves, unsigned left) {
    constexpr bool FOUR = BEGIN == Begin::ANYWHERE;
    const unsigned first = ld_shared_u32(at);
    if constexpr (FOUR) {
        const unsigned second = ld_shared_u32(at + 4), third = ld_shared_u32(at + 8);
        found[0] = prmt_b32(first, second, halves), found[1] = prmt_b32(second, third, halves);
    } else {
        found[0] = first, found[1] = ld_shared_u32(at + 16);
    }
    if constexpr (MASKED) {
        const unsigned x = laneid() % 4 * (FOUR ? 4 : 2);
        found[0] &= short_mask(x, left), found[1] &= short_mask(x + (FOUR ? 2 : 8), left);
    }
}

// Where the operands of a lane are in shared memory, of WM rows of a and WN rows of b.
template <int WM, int WN, Begin BEGIN>
struct ShortOperands {
    unsigned a[WM / 8], b[WN / 8];  // of each 8 rows; with VECTOR, the addresses for ldmatrix of each 16
    unsigned a_halves, b_halves;

    // `a_tile` and `b_tile`: addresses of the rows of a CTA. `row` and `col`: the first ones of the warp, multiples of 8.
    template <class T>
    __device__ __forceinline__ ShortOperands(const ShortRows<T>& of_a, const ShortRows<T>& of_b, unsigned a_tile, unsigned b_tile,
                                             unsigned row, unsigned col) {
        const unsigned lane = laneid();
        if constexpr (BEGIN == Begin::VECTOR) {
            a[0] = a_tile + (row + lane % 16) * of_a.stride * 2 + lane / 16 * 16;
            b[0] = b_tile + (col + lane % 8 + lane / 16 * 8) * of_b.stride * 2 + lane / 8 % 2 * 16;
        } else {
            const unsigned a_at = row * of_a.stride + of_a.offset(lane / 4), b_at = col * of_b.stride + of_b.offset(lane / 4);
            const unsigned own = lane % 4 * (BEGIN == Begin::ANYWHERE ? 8 : 4);
            a_halves = a_at % 2 ? 0x5432 : 0x3210, b_halves = b_at % 2 ? 0x5432 : 0x3210;
            a[0] = a_tile + a_at / 2 * 4 + own, b[0] = b_tile + b_at / 2 * 4 + own;
        }
#pragma unroll
        for (int i = 1; i < WM / 8; i++) a[i] = a[0] + i * 16 * of_a.stride;
#pragma unroll
        for (int j = 1; j < WN / 8; j++) b[j] = b[0] + j * 16 * of_b.stride;
    }

    // Adds the products of 16 elements of k, `at` bytes after the first ones, or of the first `left` of them if MASKED. What is beside a row
    // may be infinite or not a number, and must not be multiplied, not even by zero.
    template <bool MASKED, class T>
    __device__ __forceinline__ void multiply(float (&sums)[WM / 16][WN / 8][4], unsigned at, unsigned left) const {
        Fragments<WM, WN> of;
        if constexpr (BEGIN == Begin::VECTOR) {
#pragma unroll
            for (int i = 0; i < WM / 16; i++) {
                ldmatrix_x4(of.a[i], a[2 * i] + at);
                if (MASKED) of.a[i][2] = of.a[i][3] = 0;  // k is a multiple of 8
            }
#pragma unroll
            for (int j = 0; j < WN / 8; j += 2) {
                unsigned both[4];
                ldmatrix_x4(both, b[j] + at);
                of.b[j][0] = both[0], of.b[j][1] = MASKED ? 0 : both[1], of.b[j + 1][0] = both[2], of.b[j + 1][1] = MASKED ? 0 : both[3];
            }
        } else {
#pragma unroll
            for (int i = 0; i < WM / 8; i++) {
                unsigned found[2];
                short_operands<BEGIN, MASKED>(found, a[i] + at, a_halves, left);
                of.a[i / 2][i % 2] = found[0], of.a[i / 2][2 + i % 2] = found[1];
            }
#pragma unroll
            for (int j = 0; j < WN / 8; j++) short_operands<BEGIN, MASKED>(of.b[j], b[j] + at, b_halves, left);
        }
        of.template multiply<T>(sums);
    }

    // Adds the products of every DEEP-th step of 16 elements of k, from number `part` on.
    template <int DEEP, class T>
    __device__ __forceinline__ void multiply_all(float (&sums)[WM / 16][WN / 8][4], unsigned k, unsigned part) const {
        unsigned step = part, at = 32 * part;
#pragma unroll 2
        for (; step < k / 16; step += DEEP, at += 32 * DEEP) multiply<false, T>(sums, at, 16);
        if (step == k / 16 && k % 16 > 0) multiply<true, T>(sums, at, k % 16);
    }
};

// Adds the products of the WM rows of a from `row` on and the WN rows of b from `col` on: see ShortOperands.
template <int WM, int WN, int DEEP, class T>
__device__ __forceinline__ void multiply_short_rows(float (&sums)[WM / 16][WN / 8][4], const ShortRows<T>& of_a, const ShortRows<T>& of_b,
                                                    unsigned a_tile, unsigned b_tile, unsigned row, unsigned col, unsigned part) {
    const unsigned pitches = of_a.pitch | of_b.pitch, k = of_a.k;
    if ((pitches | k) % SHORT_VECTOR == 0) {
        const ShortOperands<WM, WN, Begin::VECTOR> of(of_a, of_b, a_tile, b_tile, row, col);
        of.template multiply_all<DEEP, T>(sums, k, part);
    } else if (pitches % 2 == 0) {
        const ShortOperands<WM, WN, Begin::WORD> of(of_a, of_b, a_tile, b_tile, row, col);
        of.template multiply_all<DEEP, T>(sums, k, part);
    } else {
        const ShortOperands<WM, WN, Begin::ANYWHERE> of(of_a, of_b, a_tile, b_tile, row, col);
        of.template multiply_all<DEEP, T>(sums, k, part);
    }
}

}  // namespace ptxkit
