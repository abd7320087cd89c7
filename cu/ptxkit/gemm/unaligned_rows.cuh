// Vectors of 16 bytes from rows in memory that begin anywhere, for matrices whose pitch is no multiple of 16 bytes, which a
// tensor map cannot describe.
//
// A vector is put together from the two aligned vectors that contain it. Only bytes of the matrix are read, and what lies
// after the end of a row is replaced by zeros, as TMA does.
#pragma once
#include "ptxkit/ptx/data_movement.cuh"
#include "ptxkit/ptx/tensor_map.cuh"

namespace ptxkit {

constexpr int VECTOR_BYTES = 16;

// Rows of elements of type T, whose size is 1, 2 or 4 bytes; lengths are in bytes.
template <class T>
struct UnalignedRows {
    const unsigned char* start;
    unsigned rows, length;
    size_t pitch;
    const unsigned char* end;

    // `columns` and `pitch` in elements.
    __device__ __forceinline__ UnalignedRows(const T* matrix, unsigned rows, unsigned columns, unsigned pitch)
        : start(reinterpret_cast<const unsigned char*>(matrix)), rows(rows), length(columns * sizeof(T)),
          pitch(static_cast<size_t>(pitch) * sizeof(T)), end(start + (rows - 1) * this->pitch + length) {}

    // The two aligned vectors with the 16 bytes at `x` of a row.
    struct Pair {
        uint4 low, high;
    };

    __device__ __forceinline__ const unsigned char* at(unsigned row, unsigned x) const {
        return start + row * pitch + x;
    }

    // Bytes of a vector that the row has.
    __device__ __forceinline__ unsigned present(unsigned row, unsigned x) const {
        return row < rows && x < length ? min(length - x, static_cast<unsigned>(VECTOR_BYTES)) : 0;
    }

    static __device__ __forceinline__ unsigned shift(const unsigned char* from) {
        return reinterpret_cast<unsigned long long>(from) % VECTOR_BYTES;
    }

    __device__ __forceinline__ Pair load(unsigned row, unsigned x) const {
        const unsigned count = present(row, x);
        const unsigned char* from = at(row, x);
        const unsigned before = shift(from);
        const uint4 none = {0, 0, 0, 0};
        return {count > 0 ? aligned_vector(from - before) : none,
                before + count > VECTOR_BYTES ? aligned_vector(from - before + VECTOR_BYTES) : none};
    }

    // The 16 bytes of a pair that was loaded for them.
    __device__ __forceinline__ uint4 select(const Pair& pair, unsigned row, unsigned x) const {
        const unsigned before = shift(at(row, x)), count = present(row, x);
        uint4 found = shifted(pair.low, pair.high, before);
        if (count < VECTOR_BYTES) {
            found.x &= first_bytes(count, 0);
            found.y &= first_bytes(count, 4);
            found.z &= first_bytes(count, 8);
            found.w &= first_bytes(count, 12);
        }
        return found;
    }

private:
    // A mask for the bytes of the word at `from` that are among the first `count`.
    static __device__ __forceinline__ unsigned first_bytes(unsigned count, unsigned from) {
        if (count >= from + 4) return ~0u;
        return count <= from ? 0u : (1u << 8 * (count - from)) - 1;
    }

    // An aligned vector, with zeros for what lies before or after the matrix.
    __device__ __forceinline__ uint4 aligned_vector(const unsigned char* from) const {
        if (from >= start && from + VECTOR_BYTES <= end) return ld_global(reinterpret_cast<const uint4*>(from));
        unsigned long long halves[2] = {0, 0};
#pragma unroll
        for (int half = 0; half < 2; half++) {
#pragma unroll 1
            for (int i = 0; i < 8; i += sizeof(T)) {
                const unsigned char* element = from + 8 * half + i;
                if (element >= start && element < end) halves[half] |= bits_of(element) << 8 * i;
            }
        }
        return {unsigned(halves[0]), unsigned(halves[0] >> 32), unsigned(halves[1]), unsigned(halves[1] >> 32)};
    }

    static __device__ __forceinline__ unsigned long long bits_of(const unsigned char* element) {
        if constexpr (sizeof(T) == 1) return *element;
        else if constexpr (sizeof(T) == 2) return *reinterpret_cast<const unsigned short*>(element);
        else return *reinterpret_cast<const unsigned*>(element);
    }
};

// Writes LINES rows of 128 bytes with the 128-byte swizzle to shared memory, as TMA does, by THREADS threads, number
// `thread` of them. place(line, row, x) sets the row of the matrix and the byte in it with which a line begins. BATCH: the
// vectors whose loads a thread has in flight.
template <int LINES, int THREADS, int BATCH, class T, class Place>
__device__ __forceinline__ void store_swizzled(unsigned to, const UnalignedRows<T>& matrix, unsigned thread,
                                               const Place& place) {
    constexpr int VECTORS = LINES * 8 / THREADS;
    static_assert(LINES * 8 % THREADS == 0 && VECTORS % BATCH == 0, "each thread stores the same number of vectors");
#pragma unroll 1
    for (int first = 0; first < VECTORS; first += BATCH) {
        typename UnalignedRows<T>::Pair pairs[BATCH];
        struct Vector {
            unsigned row, x, to;
        };
        auto vector = [&](int i) {
            const unsigned index = (first + i) * THREADS + thread, line = index / 8, column = index % 8 * VECTOR_BYTES;
            Vector found;
            place(line, found.row, found.x);
            found.x += column;
            found.to = to + swizzled<128>(line * 128 + column);
            return found;
        };
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const Vector at = vector(i);
            pairs[i] = matrix.load(at.row, at.x);
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const Vector at = vector(i);
            st_shared(at.to, matrix.select(pairs[i], at.row, at.x));
        }
    }
}

}  // namespace ptxkit
