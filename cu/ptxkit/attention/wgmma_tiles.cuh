// Tiles of attention for wgmma: rows of D elements of 16 bits in shared memory, as D / 64 boxes of rows of 128 bytes with
// the 128-byte swizzle, as a tensor map with that swizzle copies them. A warpgroup computes 64 rows.
#pragma once
#include "ptxkit/attention/sequence.cuh"
#include "ptxkit/ptx/bulk_copy.cuh"
#include "ptxkit/ptx/half.cuh"
#include "ptxkit/ptx/mbarrier.cuh"
#include "ptxkit/ptx/wgmma.cuh"

namespace ptxkit {

// wgmma of two K-major operands in shared memory for the element type.
template <int N>
__device__ __forceinline__ void multiply(float (&s)[N], unsigned long long a, unsigned long long b, bool add, bf16) {
    wgmma_bf16(s, a, b, add);
}
template <int N>
__device__ __forceinline__ void multiply(float (&s)[N], unsigned long long a, unsigned long long b, bool add, f16) {
    wgmma_f16(s, a, b, add);
}

// Copies the D elements of ROWS rows of a head, from `row` on, to a tile at a shared address. One thread calls it.
template <int D, int ROWS>
__device__ __forceinline__ void load_rows_of_head(unsigned tile, const TensorMap& map, int head, int row,
                                                  unsigned barrier) {
    for (int d = 0; d < D; d += 64) {
        cp_async_bulk_tensor_3d_shared_global(tile + d / 64 * ROWS * 128, map, d, head, row, barrier);
    }
}

// Copies the D elements of ROWS rows of a head of a sequence of `count` rows, of which row `first` of all is the first one, from
// its number `row` on, to a tile at a shared address. Rows beyond the end of the sequence, where the next one is in memory, are
// zero. `map` is sequence_map of ptxkit/kernels/attention/tiles.py: it has `tokens` rows, and the last coordinate says which row
// of all follows the last one. One thread calls it.
template <int D, int ROWS, int COLUMNS = 64, int SPAN = 128>
__device__ __forceinline__ void load_rows_of_sequence(unsigned tile, const TensorMap& map, int head, int first, int count,
                                                      int row, int tokens, unsigned barrier) {
    for (int d = 0; d < D; d += COLUMNS) {
        cp_async_bulk_tensor_4d_shared_global(tile + d / COLUMNS * ROWS * SPAN, map, d, head, tokens - count + row,
                                              first + count, barrier);
    }
}

// The tiles of keys and values in shared memory and their mbarriers, as the producer warp sees them.
template <class Tile>
struct KeysAndValues {
    unsigned k_tiles, v_tiles, k_full, k_empty, v_full, v_empty;  // shared addresses
    Ring<Tile::STAGES> at;

    // Loads the tiles steps - 1 to 0 of a head of a sequence, counted from its key number `begin`. Values beyond the end of the
    // sequence are zero: their exponentials are, too, and the product with a NaN would be one. tokens: keys of all sequences.
    // One thread calls it.
    __device__ __forceinline__ void load(const TensorMap& k_map, const TensorMap& v_map, const Sequence& sequence, int tokens,
                                         int kv_head, int steps, int begin = 0) {
        constexpr int D = Tile::D, BN = Tile::BN, tile_bytes = Tile::tile_bytes;
        for (int step = steps - 1; step >= 0; step--) {
            const int key = sequence.k_first + begin + step * BN;
            const unsigned k_tile = k_tiles + at.stage * tile_bytes, v_tile = v_tiles + at.stage * tile_bytes;
            mbarrier_wait(k_empty + 8 * at.stage, at.parity ^ 1);
            mbarrier_arrive_expect_tx(k_full + 8 * at.stage, tile_bytes);
            load_rows_of_head<D, BN>(k_tile, k_map, kv_head, key, k_full + 8 * at.stage);
            mbarrier_wait(v_empty + 8 * at.stage, at.parity ^ 1);
            mbarrier_arrive_expect_tx(v_full + 8 * at.stage, tile_bytes);
            load_rows_of_sequence<D, BN>(v_tile, v_map, kv_head, sequence.k_first, sequence.k_count, begin + step * BN, tokens,
                                         v_full + 8 * at.stage);
            at.advance();
        }
    }
};

// Starts s = q k^T for 64 rows from the shared address q, in boxes of Q_ROWS rows, and the KEYS rows of a tile at k.
template <int Q_ROWS, int KEYS, int D, class T>
__device__ __forceinline__ void start_scores(float (&s)[KEYS / 2], unsigned q, unsigned k, T type) {
    wgmma_fence();
#pragma unroll
    for (int d = 0; d < D; d += 16) {
        const unsigned box = d / 64, column = d % 64 * 2;
        multiply(s, matrix_descriptor_128B(q + box * Q_ROWS * 128 + column),
                 matrix_descriptor_128B(k + box * KEYS * 128 + column), d > 0, type);
    }
    wgmma_commit_group();
}

}  // namespace ptxkit
