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
//
// Eight lanes store a row, so that a lane has one distance of shifting and one address for several vectors. Of a row that begins
// between multiples of 16 bytes, they store 128 bytes from a multiple of 32 on at a time, whole sectors.
template <int WIDTH, class T>
__device__ __forceinline__ void store_staged_vectors(const unsigned char* staged, T* corner, unsigned pitch, unsigned head,
                                                     unsigned lines, unsigned width) {
    constexpr int VECTOR = SHIFTED_VECTOR, GROUPS = WIDTH / VECTOR, PITCH = shifted_pitch<WIDTH>;
    constexpr int LANES = 8, LINES = 32 / LANES, TIMES = (GROUPS - 1) / LANES + 1;
    constexpr int TOGETHER = TIMES > 3 ? 1 : TIMES > 1 ? 2 : 4;  // rows of a lane whose loads are in flight at the same time
    const unsigned member = laneid() % LANES;
    const bool shifts = (head | pitch) % VECTOR;  // whether any row does
    unsigned line = laneid() / LANES;
    head = (head - line * pitch) % VECTOR;
    const unsigned char* from = staged + line * PITCH;
    T* to = corner + static_cast<size_t>(line) * pitch;
#pragma unroll TOGETHER
    for (int i = 0; i < SHIFTED_ROWS / LINES; i++) {
        const unsigned vectors = width > head ? (width - head) / VECTOR : 0;  // that are stored, from element `head` on
        // Elements before and after these. Together they are at most 8 if the width is a multiple of 8.
        const T* const elements = reinterpret_cast<const T*>(from);
        const unsigned first = member < head ? member : member + VECTOR * vectors, second = member + VECTOR * vectors + VECTOR;
        const bool one = line < lines && member + VECTOR * vectors < width, another = line < lines && second < width;
        const T element = elements[min(first, WIDTH - 1u)];
        // The first vector may be the second one of a sector. Without a head there may be GROUPS vectors, and no lane for one more.
        const unsigned late = head > 0 ? reinterpret_cast<unsigned long long>(to + head) / sizeof(uint4) % 2 : 0;
        uint4* const place = reinterpret_cast<uint4*>(to + head) + member - late;
        uint4 low[TIMES], high[TIMES];
#pragma unroll
        for (int j = 0; j < TIMES; j++) {
            const unsigned vector = j == 0 && member < late ? 0 : min(member + LANES * j - late, GROUPS - 1u);
            low[j] = reinterpret_cast<const uint4*>(from)[vector];
            high[j] = low[j];
            if (shifts) high[j] = reinterpret_cast<const uint4*>(from)[min(vector + 1, GROUPS - 1u)];
        }
#pragma unroll
        for (int j = 0; j < TIMES; j++) {
            const uint4 found = shifted<sizeof(T)>(low[j], high[j], sizeof(T) * head);
            if (line < lines && member + LANES * j - late < vectors) place[LANES * j] = found;
        }
        T* const single = to + first;
        if (one) *single = element;
        if (width % VECTOR && another) to[second] = elements[second];
        line += LINES;
        from += LINES * PITCH;
        to += LINES * static_cast<size_t>(pitch);
        head = (head - LINES * pitch) % VECTOR;
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
