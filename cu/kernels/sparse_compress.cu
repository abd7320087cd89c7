// 2:4 sparsity: of every four neighbouring elements of a row, the two with the larger magnitudes are stored, with their
// positions in the layout of mma.sp and wgmma.mma_async.sp (cu/ptxkit/gemm/sparse.cuh). The matrix is row-major with
// rows of a multiple of 64 bytes, in f16, bf16 or e4m3.
//
// `prune` writes the dense matrix with zeros instead of the other elements, `compress` the stored elements and their
// positions; it selects the elements itself, so that it needs no `prune` before it. `decompress` and `widen` are for
// products that compute with the dense matrix (matmul_sparse.cu).
#include "ptxkit/gemm/sparse.cuh"
#include "ptxkit/ptx/synchronization.cuh"

using namespace ptxkit;


template <class T>
constexpr int groups = 8 / sizeof(T);  // groups of four elements in 32 bytes

template <class T>
__device__ __forceinline__ unsigned long long group_of(const unsigned long long (&bytes)[4], int i) {
    if constexpr (sizeof(T) == 2) return bytes[i];
    else return bytes[i / 2] >> i % 2 * 32 & 0xffffffff;
}

template <class T>
__device__ __forceinline__ void load_32(const T* from, unsigned long long (&bytes)[4]) {
    const ulonglong2* x = reinterpret_cast<const ulonglong2*>(from);
    const ulonglong2 low = x[0], high = x[1];
    bytes[0] = low.x, bytes[1] = low.y, bytes[2] = high.x, bytes[3] = high.y;
}

// The number of this thread in the grid.
template <int THREADS>
__device__ __forceinline__ unsigned long long global_thread() {
    return blockIdx.x * static_cast<unsigned long long>(THREADS) + threadIdx.x;
}

// One thread for each 32 bytes; `pieces` of them.
template <class T, int THREADS>
__global__ void __launch_bounds__(THREADS) prune(const T* dense, T* pruned, unsigned long long pieces) {
    const unsigned long long i = global_thread<THREADS>();
    follow_previous_grid();
    if (i >= pieces) return;
    unsigned long long bytes[4], out[4] = {};
    load_32(dense + i * (32 / sizeof(T)), bytes);
#pragma unroll
    for (int g = 0; g < groups<T>; g++) {
        const unsigned long long four = group_of<T>(bytes, g);
        const unsigned positions = select_two<T>(four);
        const unsigned long long kept = four_of<T>(two_of<T>(four, positions), positions);
        if constexpr (sizeof(T) == 2) out[g] = kept;
        else out[g / 2] |= kept << g % 2 * 32;
    }
    ulonglong2* y = reinterpret_cast<ulonglong2*>(pruned + i * (32 / sizeof(T)));
    y[0] = make_ulonglong2(out[0], out[1]);
    y[1] = make_ulonglong2(out[2], out[3]);
}

// One thread for each word of metadata: 32 bytes of a row, or of each of two rows.
template <class T, int THREADS>
__global__ void __launch_bounds__(THREADS) compress(const T* dense, T* values, unsigned* metadata, int rows, int k,
                                                    unsigned words) {
    using S = Sparse<T>;
    const unsigned i = global_thread<THREADS>();
    follow_previous_grid();
    if (i >= words) return;
    const SparsePlace at = sparse_place<T>(i, (k - 1) / S::k + 1);
    unsigned word = 0;
#pragma unroll
    for (int r = 0; r < S::rows; r++) {
        const unsigned row = at.row + 8 * r;
        unsigned positions = FIRST_TWO >> (32 - 4 * groups<T>);
        if (row < rows && at.k < k) {
            unsigned long long bytes[4];
            unsigned kept[4] = {};
            load_32(dense + static_cast<size_t>(row) * k + at.k, bytes);
            positions = 0;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if constexpr (sizeof(T) == 2) {
                    const unsigned two = select_two<T>(bytes[i]);
                    positions |= two << 4 * i;
                    kept[i] = two_of<T>(bytes[i], two);
                } else {
                    const unsigned first = static_cast<unsigned>(bytes[i]), second = static_cast<unsigned>(bytes[i] >> 32);
                    positions |= select_two_of_each(first, second, kept[i]) << 8 * i;
                }
            }
            *reinterpret_cast<uint4*>(values + static_cast<size_t>(row) * (k / 2) + at.k / 2) =
                make_uint4(kept[0], kept[1], kept[2], kept[3]);
        }
        word |= positions << 16 * r;
    }
    metadata[i] = word;
}

// e4m3 as bf16, which is exact: a bf16 has more bits of the exponent and of the mantissa.
__device__ __forceinline__ bf16 converted(unsigned bits, bf16) {
    // the exponent of e4m3 is biased by 7, that of f32 by 127
    const float magnitude = __uint_as_float((bits & 0x7f) << 20) * __uint_as_float((127u + 120) << 23);
    const unsigned value = (bits & 0x7f) == 0x7f ? 0x7fc00000 : __float_as_uint(magnitude);
    return {static_cast<unsigned short>(value >> 16 | (bits & 0x80) << 8)};
}

// The dense matrix as Out, which is T or, of e4m3, bf16. One thread for each word of metadata.
template <class T, class Out, int THREADS>
__global__ void __launch_bounds__(THREADS) decompress(const T* values, const unsigned* metadata, Out* dense, int rows,
                                                      int k, unsigned words) {
    using S = Sparse<T>;
    const unsigned i = global_thread<THREADS>();
    follow_previous_grid();
    if (i >= words) return;
    const SparsePlace at = sparse_place<T>(i, (k - 1) / S::k + 1);
    const unsigned word = metadata[i];
#pragma unroll
    for (int r = 0; r < S::rows; r++) {
        const unsigned row = at.row + 8 * r;
        if (row >= rows || at.k >= k) continue;
        const uint4 v = *reinterpret_cast<const uint4*>(values + static_cast<size_t>(row) * (k / 2) + at.k / 2);
        const unsigned kept[4] = {v.x, v.y, v.z, v.w};
        Out* to = dense + static_cast<size_t>(row) * k + at.k;
#pragma unroll
        for (int g = 0; g < groups<T>; g++) {
            const unsigned positions = word >> (16 * r + 4 * g) & 15;
            if constexpr (sizeof(T) == 2) {
                reinterpret_cast<unsigned long long*>(to)[g] = four_of<T>(kept[g], positions);
            } else {
                const unsigned four = four_of<T>(kept[g / 2] >> g % 2 * 16, positions);
                unsigned long long wide = 0;
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    wide |= static_cast<unsigned long long>(converted(four >> 8 * e & 0xff, Out()).bits) << 16 * e;
                }
                reinterpret_cast<unsigned long long*>(to)[g] = wide;
            }
        }
    }
}

// e4m3 as bf16, four elements a thread.
template <int THREADS>
__global__ void __launch_bounds__(THREADS) widen(const e4m3* from, bf16* to, unsigned long long quads) {
    const unsigned long long i = global_thread<THREADS>();
    follow_previous_grid();
    if (i >= quads) return;
    const unsigned four = reinterpret_cast<const unsigned*>(from)[i];
    unsigned long long wide = 0;
#pragma unroll
    for (int e = 0; e < 4; e++) {
        wide |= static_cast<unsigned long long>(converted(four >> 8 * e & 0xff, bf16()).bits) << 16 * e;
    }
    reinterpret_cast<unsigned long long*>(to)[i] = wide;
}
