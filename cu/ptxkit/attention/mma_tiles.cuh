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

// The offset of an element in a tile of ROWS rows.
template <int ROWS>
__device__ __forceinline__ unsigned tile_offset(unsigned row, unsigned column) {
    return column / 64 * (ROWS * 128) + swizzled<128>(row * 128 + column % 64 * 2);
}

// Copies ROWS rows, `stride` elements apart, to a tile. Rows from number `count` on are zero.
template <int ROWS, int D, int THREADS, class T>
__device__ __forceinline__ void copy_rows(unsigned tile, const T* from, size_t stride, int count) {
    constexpr int atoms = D / 8;  // of a row, 16 bytes each
    static_assert(ROWS * atoms % THREADS == 0, "as many atoms for each thread");
#pragma unroll
    for (int i = 0; i < ROWS * atoms / THREADS; i++) {
        const int index = i * THREADS + threadIdx.x, row = index / atoms, column = index % atoms * 8;
        const bool inside = row < count;
        cp_async_cg_shared_global(tile + tile_offset<ROWS>(row, column), inside ? from + row * stride + column : from,
                                  inside ? 16 : 0);
    }
}

// s = q k^T for 16 rows of q, from number `row` of a tile of Q_ROWS rows, and KEYS rows of k.
template <int Q_ROWS, int KEYS, int D, class T>
__device__ __forceinline__ void multiply_scores(float (&s)[KEYS / 2], unsigned q, unsigned row, unsigned k) {
    const unsigned lane = laneid();
#pragma unroll
    for (float& sum : s) sum = 0;
#pragma unroll
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

// o += p v for the operands p of 16 keys, from number `key` of a tile v of KEYS rows.
template <int KEYS, int D, class T>
__device__ __forceinline__ void multiply_values(float (&o)[D / 2], const unsigned (&p)[4], unsigned v, unsigned key) {
    const unsigned lane = laneid();
#pragma unroll
    for (int j = 0; j < D / 8; j += 2) {
        unsigned both[4];
        ldmatrix_x4_trans(both, v + tile_offset<KEYS>(key + lane % 16, 8 * j + lane / 16 * 8));
        mma(&o[4 * j], p, {both[0], both[1]}, T());
        mma(&o[4 * j + 4], p, {both[2], both[3]}, T());
    }
}

}  // namespace ptxkit
