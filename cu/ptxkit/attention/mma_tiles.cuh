// Tiles of attention for mma.sync: ROWS rows of D elements of 16 bits in shared memory, as D / 64 boxes of rows of 128
// bytes with the 128-byte swizzle. A warp computes 16 rows.
#pragma once
#include "ptxkit/attention/online_softmax.cuh"
#include "ptxkit/gemm/mma.cuh"

namespace ptxkit {

// d[0] to d[3] += a b.
template <class T>
__device__ __forceinline__ void mma(float* d, const unsigned (&a)[4], const unsigned (&b)[2], T type) {
    mma(*reinterpret_cast<float(*)[4]>(d), a, b, type);
}

// The offset of an element in a tile of ROWS rows: as swizzled<128> (tensor_map.cuh) of the offset in its box, with the
// row outside of the exclusive or, so that addresses of rows 8 apart differ by a constant.
template <int ROWS>
__device__ __forceinline__ unsigned tile_offset(unsigned row, unsigned column) {
    return column / 64 * (ROWS * 128) + row * 128 + (column % 64 * 2 ^ row % 8 * 16);
}

// Copies ROWS rows, `stride` elements apart, to a tile. Rows from number `count` on are zero.
template <int ROWS, int D, int THREADS, class T>
__device__ __forceinline__ void copy_rows(unsigned tile, const T* from, size_t stride, int count) {
    constexpr int atoms = D / 8, step = THREADS / atoms;  // 16-byte atoms of a row; rows from one copy to the next
    static_assert(ROWS * atoms % THREADS == 0, "as many atoms for each thread");
    const int first = threadIdx.x / atoms, column = threadIdx.x % atoms * 8;
    from += first * stride + column;
#pragma unroll
    for (int i = 0; i < ROWS / step; i++) {
        cp_async_cg_shared_global(tile + tile_offset<ROWS>(first + i * step, column), from + i * step * stride,
                                  first + i * step < count ? 16 : 0);
    }
}

// s = q k^T for 16 rows of q, from number `row` of a tile of Q_ROWS rows, and KEYS rows of k.
template <int Q_ROWS, int KEYS, int D, class T>
__device__ __forceinline__ void multiply_scores(float (&s)[KEYS / 2], unsigned q, unsigned row, unsigned k) {
    const unsigned lane = laneid();
#pragma unroll
    for (float& sum : s) sum = 0;
#pragma unroll 4
    for (int d = 0; d < D; d += 16) {
        unsigned a[4], both[4];
        ldmatrix_x4(a, q + tile_offset<Q_ROWS>(row + lane % 16, d + lane / 16 * 8));
#pragma unroll
        for (int j = 0; j < KEYS / 8; j += 2) {
            ldmatrix_x4(both, k + tile_offset<KEYS>(8 * j + lane % 8 + lane / 16 * 8, d + lane / 8 % 2 * 8));
            mma(&s[4 * j], a, {both[0], both[1]}, T());
            mma(&s[4 * j + 4], a, {both[2], both[3]}, T());
        }
    }
}

// o += p v for the operands p of 16 keys, from number `key` of a tile v of KEYS rows, and D columns of v from number
// `column` on, a multiple of 16.
template <int KEYS, int D, class T>
__device__ __forceinline__ void multiply_values(float (&o)[D / 2], const unsigned (&p)[4], unsigned v, unsigned key,
                                                unsigned column = 0) {
    const unsigned lane = laneid();
#pragma unroll
    for (int j = 0; j < D / 8; j += 2) {
        unsigned both[4];
        ldmatrix_x4_trans(both, v + tile_offset<KEYS>(key + lane % 16, column + 8 * j + lane / 16 * 8));
        mma(&o[4 * j], p, {both[0], both[1]}, T());
        mma(&o[4 * j + 4], p, {both[2], both[3]}, T());
    }
}

// Stores a warp's 16 rows of D sums to global memory through their place in a tile of ROWS rows, from number `row`:
// whole rows, 16 bytes for each thread. out: the first row, `stride` elements before the next. count: rows to store.
template <int ROWS, int D, class T>
__device__ __forceinline__ void store_through_tile(const float (&o)[D / 2], unsigned char* tile, unsigned row, T* out,
                                                   size_t stride, int count) {
    const unsigned lane = laneid();
#pragma unroll
    for (int i = 0; i < D / 2; i += 2) {
        const unsigned offset = tile_offset<ROWS>(row + lane / 4 + i / 2 % 2 * 8, i / 4 * 8 + lane % 4 * 2);
        *reinterpret_cast<unsigned*>(tile + offset) = Convert<T>::pack(o[i], o[i + 1]);
    }
    __syncwarp();
    constexpr int lanes = D / 8;  // that store a row
#pragma unroll
    for (int r = lane / lanes; r < 16; r += 32 / lanes) {
        const unsigned column = lane % lanes * 8;
        if (r < count) {
            *reinterpret_cast<uint4*>(out + r * stride + column) =
                *reinterpret_cast<const uint4*>(tile + tile_offset<ROWS>(row + r, column));
        }
    }
}

}  // namespace ptxkit
