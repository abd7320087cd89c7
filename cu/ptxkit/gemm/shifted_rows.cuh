// Sums of wgmma stored to rows of c that begin anywhere, by vectors of 16 bytes.
//
// Each warp puts 16 rows of its sums, as elements of c, into shared memory by stmatrix. It then stores the vectors at multiples
// of 16 bytes in memory, neighbouring lanes neighbouring ones: each is shifted together from the two vectors in shared memory
// that contain it. Only the elements of a row before the first and after the last of these vectors are stored one by one. A warp
// uses only its own shared memory, so that warps do not synchronize.
//
// The loads of several vectors are in flight before the first of them is stored: the tensor cores wait for a warp that stores,
// or, with consumers that compute tiles in turn, for one that takes longer to store than the other one to multiply.
#pragma once
#include "ptxkit/ptx/data_movement.cuh"
#include "ptxkit/ptx/matrix.cuh"
#include "ptxkit/ptx/special_registers.cuh"

namespace ptxkit {

constexpr int SHIFTED_ROWS = 16;   // that a warp stores at a time
constexpr int SHIFTED_VECTOR = 8;  // elements of 16 bits in a vector

// Bytes of a row of WIDTH elements in shared memory, an odd number of vectors, so that eight neighbouring rows begin in different
// banks.
template <int WIDTH>
constexpr int shifted_pitch = 2 * SHIFTED_VECTOR * (WIDTH / SHIFTED_VECTOR + 1 + WIDTH / SHIFTED_VECTOR % 2);

// Bytes of shared memory of a warp.
template <int WIDTH>
constexpr int shifted_bytes = SHIFTED_ROWS * shifted_pitch<WIDTH>;

// The fewest pieces of a multiple of 8 columns, at most 64, of the COLUMNS of a tile.
template <int COLUMNS, int PIECES = 1, bool FITS = COLUMNS % (8 * PIECES) == 0 && COLUMNS / PIECES <= 64>
constexpr int shifted_pieces = shifted_pieces<COLUMNS, PIECES + 1>;
template <int COLUMNS, int PIECES>
constexpr int shifted_pieces<COLUMNS, PIECES, true> = PIECES;

// Whether an epilogue is for rows of c that begin anywhere.
template <class Out>
constexpr bool shifts_rows = false;
template <class Out>
constexpr bool shifts_rows<const Out> = shifts_rows<Out>;

// Stores the first `lines` rows of `width` elements, at most WIDTH, that a warp has in `staged`. `corner`: the first element in
// memory, of which `head` elements precede a multiple of 16 bytes; those of each following row are `pitch` elements further.
template <int WIDTH, class T>
__device__ __forceinline__ void store_staged_vectors(const unsigned char* staged, T* corner, unsigned pitch, unsigned head,
                                                     unsigned lines, unsigned width) {
    constexpr int VECTOR = SHIFTED_VECTOR, GROUPS = WIDTH / VECTOR, PITCH = shifted_pitch<WIDTH>;
    constexpr int VECTORS = SHIFTED_ROWS * GROUPS, TIMES = (VECTORS - 1) / 32 + 1, MOST = 5;  // MOST: loads in flight
    constexpr int BATCHES = (TIMES - 1) / MOST + 1, BATCH = (TIMES - 1) / BATCHES + 1;
    const unsigned lane = laneid();
    auto head_of = [&](unsigned line) { return (head - line * pitch) % VECTOR; };
    {  // vector number i: of row i / GROUPS, beginning `head` elements after vector i % GROUPS of shared memory
#pragma unroll 1
        for (int batch = 0; batch < BATCHES; batch++) {
            uint4 low[BATCH], high[BATCH];
            auto number = [&](int i) {
                const unsigned found = 32 * (BATCH * batch + i) + lane;
                return 32 * BATCH * BATCHES > VECTORS ? min(found, VECTORS - 1u) : found;
            };
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                const unsigned line = number(i) / GROUPS, vector = number(i) % GROUPS;
                const uint4* const from = reinterpret_cast<const uint4*>(staged + line * PITCH);
                low[i] = from[vector];
                high[i] = from[min(vector + 1, GROUPS - 1u)];  // that after the last one is not needed
            }
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                const unsigned line = number(i) / GROUPS, first = VECTOR * (number(i) % GROUPS) + head_of(line);
                const uint4 found = shifted<sizeof(T)>(low[i], high[i], sizeof(T) * head_of(line));
                T* const to = corner + static_cast<size_t>(line) * pitch + first;
                if (line < lines && first + VECTOR <= width) *reinterpret_cast<uint4*>(to) = found;
            }
        }
    }
    // Elements before the first and after the last vector. Together they are at most 8 if the width is a multiple of 8.
    constexpr int AT_ONCE = 32 / VECTOR, TURNS = SHIFTED_ROWS / AT_ONCE;
#pragma unroll 1
    for (unsigned element = lane % VECTOR; element < (width % VECTOR ? 2 * VECTOR : VECTOR); element += VECTOR) {
        T found[TURNS];
        struct Place {
            unsigned line, column;
            bool exists;
        };
        auto place = [&](int i) -> Place {
            const unsigned line = lane / VECTOR + AT_ONCE * i, before = head_of(line);
            const unsigned by_vectors = width > before ? (width - before) / VECTOR * VECTOR : 0;
            return {line, min(element < before ? element : element + by_vectors, WIDTH - 1u),
                    line < lines && element + by_vectors < width};
        };
#pragma unroll
        for (int i = 0; i < TURNS; i++) {
            const Place at = place(i);
            found[i] = reinterpret_cast<const T*>(staged + at.line * PITCH)[at.column];
        }
#pragma unroll
        for (int i = 0; i < TURNS; i++) {
            const Place at = place(i);
            T* const to = corner + static_cast<size_t>(at.line) * pitch + at.column;
            if (at.exists) *to = found[i];
        }
    }
}

// Stores the sums of a warpgroup, whose first one is at (row, col), in PIECES of the COLS columns of the tile, one at a time.
// `staged`: shifted_bytes<COLS / PIECES> of shared memory of this warp. All lanes call it.
template <int PIECES, int COLS, class Sum, int ROWS, int SUMS, class Out>
__device__ __forceinline__ void store_shifted_rows(const Sum (&sums)[ROWS][SUMS], Out& output, unsigned char* staged,
                                                   unsigned row, unsigned col) {
    constexpr int WIDTH = COLS / PIECES, GROUPS = WIDTH / SHIFTED_VECTOR, PITCH = shifted_pitch<WIDTH>;
    static_assert(COLS % PIECES == 0 && WIDTH % SHIFTED_VECTOR == 0, "pieces of whole vectors");
    using T = typename Out::Element;
    static_assert(sizeof(T) == 2, "elements of 16 bits");
    const unsigned lane = laneid(), member = lane % 4;
    row += threadIdx.x % 128 / 32 * 16;
    // stmatrix: lanes 0-7 and 8-15 hold the addresses of rows 0-7 and 8-15 of 8 columns, lanes 16-31 those of the next 8 columns
    const unsigned to = cvta_to_shared(staged) + lane % 16 * PITCH + lane / 16 * 16;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const unsigned top = row + 64 * i, upper = top + lane / 4, lower = upper + 8;
#pragma unroll
        for (int piece = 0; piece < PIECES; piece++) {
            const unsigned left = col + WIDTH * piece;
            __syncwarp();  // the previous rows have been read
#pragma unroll
            for (int q = 0; q < GROUPS; q += 2) {
                const Sum* d = sums[i] + WIDTH / 2 * piece + 4 * q;
                const unsigned at = left + 8 * q + 2 * member;
                const unsigned x = output.finish(d[0], d[1], upper, at), y = output.finish(d[2], d[3], lower, at);
                if constexpr (GROUPS % 2) {
                    if (q == GROUPS - 1) {
                        stmatrix_x2(to + 16 * q, {x, y});
                        break;
                    }
                }
                stmatrix_x4(to + 16 * q, {x, y, output.finish(d[4], d[5], upper, at + 8), output.finish(d[6], d[7], lower, at + 8)});
            }
            __syncwarp();
            if (top >= output.m || left >= output.n) continue;
            T* const corner = output.c + static_cast<size_t>(top) * output.pitch + left;
            const unsigned phase = reinterpret_cast<unsigned long long>(corner) / sizeof(T) % SHIFTED_VECTOR;
            store_staged_vectors<WIDTH>(staged, corner, output.pitch, (SHIFTED_VECTOR - phase) % SHIFTED_VECTOR,
                                        min(output.m - top, unsigned(SHIFTED_ROWS)), min(output.n - left, unsigned(WIDTH)));
        }
    }
}

}  // namespace ptxkit
