// Sums of wgmma stored to rows of c that begin anywhere, by vectors of 16 bytes.
//
// Each warp puts 16 rows of its sums, as elements of c, into shared memory, each row as many elements after a multiple of 16
// bytes as it begins after one in memory, its phase. What it then stores are whole vectors at aligned addresses, neighbouring
// lanes neighbouring ones, and only the first and the last elements of a row one by one. A warp uses only its own shared memory,
// so that warps do not synchronize.
//
// wgmma gives a thread pairs of neighbouring sums. A row with an odd phase has the second element of each pair in one word of
// shared memory with the first one of the next pair, which comes from the next lane.
#pragma once
#include "ptxkit/ptx/data_movement.cuh"
#include "ptxkit/ptx/special_registers.cuh"

namespace ptxkit {

constexpr int SHIFTED_VECTOR = 8;  // elements of 16 bits in a vector

// Bytes of a row in shared memory of WIDTH elements with any phase. If WIDTH is a multiple of 16, rows begin in different banks,
// because the words of these bytes are 4 times an odd number.
template <int WIDTH>
constexpr int shifted_pitch = 2 * (WIDTH + SHIFTED_VECTOR);

// Bytes of shared memory of a warp.
template <int WIDTH>
constexpr int shifted_bytes = 16 * shifted_pitch<WIDTH>;

// The word of shared memory with the pair of elements `now` of a lane, and after an odd phase with the second element of the
// pair before: that of the previous lane of the four, or `before` of the last of them.
__device__ __forceinline__ unsigned shifted_pair(unsigned before, unsigned now, bool odd) {
    const unsigned lane = laneid(), member = lane % 4;
    const unsigned from = shfl_sync_idx(0xffffffff, member == 3 ? before : now, lane - member + (member + 3) % 4);
    return odd ? prmt_b32(from, now, 0x5432) : now;
}

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

// Stores the sums of a warpgroup, whose first one is at (row, col), in PIECES of the COLS columns of the tile, one at a time.
// `staged`: shifted_bytes<COLS / PIECES> of shared memory of this warp. All lanes call it.
template <int PIECES, int COLS, class Sum, int ROWS, int SUMS, class Out>
__device__ __forceinline__ void store_shifted_rows(const Sum (&sums)[ROWS][SUMS], Out& output, unsigned char* staged,
                                                   unsigned row, unsigned col) {
    constexpr int WIDTH = COLS / PIECES, GROUPS = WIDTH / 8, PITCH = shifted_pitch<WIDTH>, VECTOR = SHIFTED_VECTOR;
    static_assert(COLS % PIECES == 0 && WIDTH % 8 == 0, "pieces of whole vectors");
    using T = typename Out::Element;
    static_assert(sizeof(T) == 2, "elements of 16 bits");
    const unsigned lane = laneid(), member = lane % 4;
    row += threadIdx.x % 128 / 32 * 16;
    const unsigned first = reinterpret_cast<unsigned long long>(output.c) / sizeof(T) % VECTOR;
    auto phase = [&](unsigned r) { return (first + r * output.pitch) % VECTOR; };
    const unsigned own = phase(row + lane / 4);  // of all rows of a lane, which are multiples of 8 rows apart
    const bool any_odd = (first | output.pitch) % 2;
    unsigned char* const to = staged + lane / 4 * PITCH + 4 * (own / 2 + member);
    auto word = [&](int at) -> unsigned& { return *reinterpret_cast<unsigned*>(to + at); };
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const unsigned top = row + 64 * i, upper = top + lane / 4, lower = upper + 8;
#pragma unroll
        for (int piece = 0; piece < PIECES; piece++) {
            const unsigned left = col + WIDTH * piece;
            __syncwarp();  // the previous rows have been read
            unsigned before_upper = 0, before_lower = 0;
#pragma unroll
            for (int q = 0; q < GROUPS; q++) {
                const Sum* d = sums[i] + WIDTH / 2 * piece + 4 * q;
                const unsigned at = left + 8 * q + 2 * member;
                const unsigned x = output.finish(d[0], d[1], upper, at), y = output.finish(d[2], d[3], lower, at);
                word(16 * q) = any_odd ? shifted_pair(before_upper, x, own % 2) : x;
                word(16 * q + 8 * PITCH) = any_odd ? shifted_pair(before_lower, y, own % 2) : y;
                before_upper = x;
                before_lower = y;
            }
            if (own % 2 && member == 3) {  // the last element of the row, in a word of its own
                word(16 * GROUPS - 12) = before_upper >> 16;
                word(16 * GROUPS - 12 + 8 * PITCH) = before_lower >> 16;
            }
            __syncwarp();
            const unsigned width = left < output.n ? min(output.n - left, static_cast<unsigned>(WIDTH)) : 0;
            const unsigned lines = top < output.m ? min(output.m - top, 16u) : 0;
            T* const corner = output.c + static_cast<size_t>(top) * output.pitch + left;
            {  // whole vectors: LANES neighbouring lanes store those of a row
                constexpr unsigned LANES = GROUPS <= 8 ? 8 : GROUPS <= 16 ? 16 : 32, ROWS_AT_ONCE = 32 / LANES;
                unsigned line = lane / LANES, shift = phase(top + line);
                T* place = corner + static_cast<size_t>(line) * output.pitch;
#pragma unroll 8
                for (unsigned i = 0; i < 16 / ROWS_AT_ONCE; i++) {
                    const unsigned vector = lane % LANES + (shift > 0);
                    if (line < lines && vector < (shift + width) / VECTOR) {
                        const uint4 found = *reinterpret_cast<const uint4*>(staged + line * PITCH + 16 * vector);
                        *reinterpret_cast<uint4*>(place + VECTOR * vector - shift) = found;
                    }
                    line += ROWS_AT_ONCE;
                    shift = (shift + ROWS_AT_ONCE * output.pitch) % VECTOR;
                    place += ROWS_AT_ONCE * static_cast<size_t>(output.pitch);
                }
            }
            {  // elements before the first and after the last of them
                unsigned line = lane / VECTOR, shift = phase(top + line);
                const unsigned element = lane % VECTOR;
                T* place = corner + static_cast<size_t>(line) * output.pitch;
#pragma unroll
                for (unsigned i = 0; i < 16 * VECTOR / 32; i++) {
                    const unsigned end = shift + width, last = end - end % VECTOR;
                    const T* const from = reinterpret_cast<const T*>(staged + line * PITCH);
                    if (line < lines) {
                        if (shift > 0 && element >= shift && element < end) place[element - shift] = from[element];
                        if ((last > 0 || shift == 0) && last + element < end) place[last + element - shift] = from[last + element];
                    }
                    line += 32 / VECTOR;
                    shift = (shift + 32 / VECTOR * output.pitch) % VECTOR;
                    place += 32 / VECTOR * static_cast<size_t>(output.pitch);
                }
            }
        }
    }
}

}  // namespace ptxkit
