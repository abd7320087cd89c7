// 2:4 sparse matrices in device memory: of every four neighbouring elements of a row, two are stored.
//
// A matrix of `rows` x `k` elements of T consists of two arrays:
//
// - values: rows x k / 2, row-major, the stored elements in their order.
// - metadata: the positions of the stored elements, in 32-bit words in the order in which the threads of a warpgroup
//   pass them to wgmma.mma_async.sp, and those of a warp to mma.sp (wgmma_sparse.cuh): for each block of 64 rows, for
//   each SPARSE_BYTES of a row (a stage, two instructions), for each of 128 threads, its words. Rows and columns beyond
//   the matrix have the positions 0 and 1, which are valid.
#pragma once
#include "ptxkit/ptx/data_movement.cuh"
#include "ptxkit/ptx/integer.cuh"
#include "ptxkit/ptx/narrow.cuh"

namespace ptxkit {

constexpr int SPARSE_BYTES = 128;  // of a row of the dense matrix in a stage
constexpr int SPARSE_ROWS = 64;    // rows of a block of the metadata
constexpr unsigned FIRST_TWO = 0x44444444;  // the smallest valid word: each nibble is 0b0100 or larger

template <class T>
struct Sparse {
    static constexpr int k = SPARSE_BYTES / sizeof(T);           // elements of a stage
    static constexpr int words = 2 / sizeof(T);                  // of metadata of a thread
    static constexpr int block = 128 * words;                    // words of a block of 64 rows in a stage
    static constexpr int rows = sizeof(T);                       // that a word describes: 1 of 8-bit elements, 2 of 16-bit ones, 8 apart
    static constexpr int elements = 32 / sizeof(T);              // of such a row
};

// The elements that a word of metadata describes: k to k + Sparse<T>::elements - 1 of `row` and, if elements have 16
// bits, of row + 8.
struct SparsePlace {
    unsigned row, k;
};

// The place of word `word` of the metadata of a matrix with `stages` stages in a row.
template <class T>
__device__ __forceinline__ SparsePlace sparse_place(unsigned word, unsigned stages) {
    using S = Sparse<T>;
    const unsigned within = word % S::block, stage = word / S::block % stages, block = word / S::block / stages;
    const unsigned thread = within / S::words, part = within % S::words, q = thread % 4;
    const unsigned row = block * SPARSE_ROWS + thread / 32 * 16 + thread % 32 / 4;
    if constexpr (sizeof(T) == 2) return {row, stage * S::k + q * S::elements};
    else return {row + q % 2 * 8, stage * S::k + part * (S::k / 2) + q / 2 * S::elements};
}

// Metadata that was read outside of the array, where copies give zeros, becomes valid; other words do not change.
__device__ __forceinline__ unsigned valid_metadata(unsigned word) {
    return max(word, FIRST_TWO);
}

// The positions of the two of four elements with the larger magnitudes, as four bits of metadata. The order of
// magnitudes is that of the bits without the sign: infinity is larger than every number, and NaN larger than infinity.
// Of equal ones the elements with the lower positions are selected.
template <class T>
__device__ __forceinline__ unsigned select_two(unsigned long long four) {
    constexpr int bits = 8 * sizeof(T);
    unsigned keys[4];  // all different
#pragma unroll
    for (int i = 0; i < 4; i++) {
        keys[i] = (static_cast<unsigned>(four >> i * bits) & ((1u << (bits - 1)) - 1)) << 2 | (3 - i);
    }
    const unsigned low = max(keys[0], keys[1]), high = max(keys[2], keys[3]);
    const unsigned first = max(low, high);
    const unsigned rest = low > high ? min(keys[0], keys[1]) : min(keys[2], keys[3]);
    const unsigned p = 3 - (first & 3), q = 3 - (max(min(low, high), rest) & 3);
    return min(p, q) | max(p, q) << 2;
}

// Of four elements of T, the two at the positions in four bits of metadata.
template <class T>
__device__ __forceinline__ unsigned two_of(unsigned long long four, unsigned positions) {
    constexpr int bits = 8 * sizeof(T);
    const unsigned mask = (1u << bits) - 1;
    return (static_cast<unsigned>(four >> (positions & 3) * bits) & mask) |
           (static_cast<unsigned>(four >> (positions >> 2) * bits) & mask) << bits;
}

// Of each of two words of four 8-bit elements, the two with the larger magnitudes in `kept`, those of the first word in its lower half, and
// their positions, those of the first word in bits 0-3 and those of the second in bits 4-7. The order is that of select_two; the keys have
// nine bits, so that both words are compared at the same time, in the halves of a word.
__device__ __forceinline__ unsigned select_two_of_each(unsigned first, unsigned second, unsigned& kept) {
    unsigned keys[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        keys[i] = (prmt_b32(first, second, 0x4400 + 0x1111 * i) & 0x007f007f) * 4 + 0x00010001 * (3 - i);
    }
    const unsigned low = max_u16x2(keys[0], keys[1]), high = max_u16x2(keys[2], keys[3]);
    const unsigned others = max_u16x2(min_u16x2(keys[0], keys[1]), min_u16x2(keys[2], keys[3]));
    // The second largest: the smaller of the two maxima, or one of the others, which are not larger than the maximum of their pair.
    const unsigned p = max_u16x2(low, high) & 0x00030003, q = max_u16x2(min_u16x2(low, high), others) & 0x00030003;
    const unsigned lower = 0x00030003 - max_u16x2(p, q), upper = 0x00030003 - min_u16x2(p, q);  // positions: 3 - the bits of the key
    const unsigned bytes = lower + upper * 16 + 0x00440000;  // the second word has bytes 4 to 7 of both
    kept = prmt_b32(first, second, bytes | bytes >> 8);
    const unsigned positions = lower + upper * 4;
    return (positions | positions >> 12) & 0xff;
}

// Four elements of T, of which two are at these positions, and the others are zero.
template <class T>
__device__ __forceinline__ unsigned long long four_of(unsigned two, unsigned positions) {
    constexpr int bits = 8 * sizeof(T);
    const unsigned long long mask = (1u << bits) - 1;
    return (two & mask) << (positions & 3) * bits | (two >> bits & mask) << (positions >> 2) * bits;
}

}  // namespace ptxkit
