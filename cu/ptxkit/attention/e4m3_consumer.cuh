// What the kernels of attention_e4m3.cu and attention_e4m3_continuous.cu share: the tile parameters, the columns of the
// transposed values, and what a warpgroup computes.
#pragma once
#include "ptxkit/attention/consumer.cuh"
#include "ptxkit/ptx/narrow.cuh"
#include "ptxkit/ptx/wgmma.cuh"
#include "ptxkit/ptx/wgmma_e4m3.cuh"

namespace ptxkit {

// The first column of sequence i, which has at least as many columns as keys before sequence i + 1: for each n,
// (n + 15) / 16 * 16 <= (a + n + 15) / 16 * 16 - a / 16 * 16.
__device__ __forceinline__ int first_column(const int* k_starts, int i) { return (k_starts[i] + 15 * i) / 16 * 16; }

// Parameters of attention_e4m3. The description gives them by name (E4m3Tile in
// ptxkit/kernels/attention/attention_e4m3.py).
template <int D_, int BN_, int STAGES_, bool OVERLAP_, bool PING_PONG_, bool LATE_WAIT_>
struct E4m3Tile {
    static constexpr int D = D_;                  // elements of a head
    static constexpr int CONSUMERS = 2;           // warpgroups that multiply 64 queries each
    static constexpr int BM = 64 * CONSUMERS;     // queries of a CTA
    static constexpr int BN = BN_;                // keys of a tile
    static constexpr int STAGES = STAGES_;        // tiles of keys, and of values, in shared memory
    static constexpr bool OVERLAP = OVERLAP_;     // the next scores are computed during the product with the values
    static constexpr bool PING_PONG = PING_PONG_; // the warpgroups issue products one after the other
    static constexpr bool LATE_WAIT = LATE_WAIT_; // the previous product with values is waited for after the maxima
    static constexpr int REGISTERS = 240;
    // Bytes of a row of a box, which is the span of its swizzle: of queries and keys, and of transposed values.
    static constexpr int k_span = D < 128 ? D : 128, v_span = BN;
    // The product with the values is computed in parts of this many elements of a head.
    static constexpr int PART = D == 256 ? 64 : D;
    static_assert(BN == 64 || BN == 128, "a row of transposed values is a span of a swizzle");
    static_assert(!OVERLAP || PART == D, "the product with the values that overlaps has one part");
    // Shared memory as byte offsets: queries, tiles of keys and values, results, mbarriers.
    static constexpr int q_bytes = BM * D, tile_bytes = BN * D, k = q_bytes, v = k + STAGES * tile_bytes;
    static constexpr int results = v + STAGES * tile_bytes, barriers = results + BM * D * 2;
};

// The tiles of keys and transposed values in shared memory and their mbarriers, as the producer warp sees them.
template <class Tile>
struct E4m3KeysAndValues {
    unsigned k_tiles, v_tiles, k_full, k_empty, v_full, v_empty;  // shared addresses
    Ring<Tile::STAGES> at;

    // Loads the tiles steps - 1 to 0 of a head of a sequence. column: of its first value. One thread calls it.
    __device__ __forceinline__ void load(const TensorMap& k_map, const TensorMap& v_map, const Sequence& sequence, int column,
                                         int kv_head, int steps) {
        constexpr int BN = Tile::BN, tile_bytes = Tile::tile_bytes;
        for (int step = steps - 1; step >= 0; step--) {
            const unsigned k_tile = k_tiles + at.stage * tile_bytes, v_tile = v_tiles + at.stage * tile_bytes;
            mbarrier_wait(k_empty + 8 * at.stage, at.parity ^ 1);
            mbarrier_arrive_expect_tx(k_full + 8 * at.stage, tile_bytes);
            for (int d = 0; d < Tile::D; d += Tile::k_span) {
                cp_async_bulk_tensor_3d_shared_global(k_tile + d * BN, k_map, d, kv_head, sequence.k_first + step * BN,
                                                      k_full + 8 * at.stage);
            }
            mbarrier_wait(v_empty + 8 * at.stage, at.parity ^ 1);
            mbarrier_arrive_expect_tx(v_full + 8 * at.stage, tile_bytes);
            cp_async_bulk_tensor_3d_shared_global(v_tile, v_map, column + step * BN, 0, kv_head, v_full + 8 * at.stage);
            at.advance();
        }
    }
};

// The descriptor of a K-major tile with rows of SPAN bytes and the swizzle of that span.
template <int SPAN>
__device__ __forceinline__ unsigned long long matrix_descriptor(unsigned address) {
    if constexpr (SPAN == 128) return matrix_descriptor_128B(address);
    else return matrix_descriptor_64B(address);
}

// A warpgroup's exponentials of 32 keys, from number 32 k, as the first operand of a product with values in the order of
// key_of_column.
template <int N>
__device__ __forceinline__ void pack_e4m3(unsigned (&a)[4], const float (&s)[N], int k) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int at = 16 * k + i / 2 * 8 + i % 2 * 2;
        a[i] = cvt_rn_satfinite_e4m3x2_f32(s[at], s[at + 1]) | cvt_rn_satfinite_e4m3x2_f32(s[at + 4], s[at + 5]) << 16;
    }
}

// What a consumer warpgroup computes of a tile of queries, in registers: `sums` become the results.
template <class Tile>
struct E4m3Consumer {
    static constexpr int D = Tile::D, BM = Tile::BM, BN = Tile::BN, STAGES = Tile::STAGES, PART = Tile::PART;

    // Shared addresses: the warpgroup's queries, the stages, their mbarriers.
    unsigned q_rows, k_tiles, v_tiles, k_full, k_empty, v_full, v_empty;
    unsigned number;  // of the warpgroup
    Ring<STAGES> k_at, v_at;
    RaisedSoftmax<8> softmax;
    float sums[D / 2], s[BN / 2], part[PART / 2];
    float factor[2];  // of the sums, when the latest product with values is added
    unsigned p[BN / 32][4];

    __device__ __forceinline__ void signal(unsigned barrier) const {
        if (laneid() == 0) mbarrier_arrive(barrier);
    }

    // Starts s = q k^T.
    __device__ __forceinline__ void start_scores() {
        constexpr int span = Tile::k_span;
        const unsigned k_tile = k_tiles + k_at.stage * Tile::tile_bytes;
        wgmma_fence();
#pragma unroll
        for (int d = 0; d < D; d += 32) {
            const unsigned box = d / span, column = d % span;
            wgmma_e4m3(s, matrix_descriptor<span>(q_rows + box * BM * span + column),
                       matrix_descriptor<span>(k_tile + box * BN * span + column), d > 0);
        }
        wgmma_commit_group();
    }

    // Starts part = p v for PART elements from `first`.
    __device__ __forceinline__ void start_values(int first) {
        const unsigned v_tile = v_tiles + v_at.stage * Tile::tile_bytes + first * Tile::v_span;
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < BN / 32; i++) {
            wgmma_e4m3(part, p[i], matrix_descriptor<Tile::v_span>(v_tile + i * 32), i > 0);
        }
        wgmma_commit_group();
    }

    // Adds the part from `first` to the sums.
    __device__ __forceinline__ void add_values(int first) {
        wgmma_wait_group<0>();
        warpgroup_fence_operand(part);
#pragma unroll
        for (int i = 0; i < PART / 2; i++) sums[first / 2 + i] = fmaf(sums[first / 2 + i], factor[i / 2 % 2], part[i]);
    }

    __device__ __forceinline__ void release_values() {
        signal(v_empty + 8 * v_at.stage);
        v_at.advance();
    }

    // The product of the latest exponentials with their values.
    __device__ __forceinline__ void multiply_values() {
        if constexpr (!Tile::LATE_WAIT) mbarrier_wait(v_full + 8 * v_at.stage, v_at.parity);
#pragma unroll
        for (int first = 0; first < D; first += PART) {
            start_values(first);
            add_values(first);
        }
        release_values();
    }

    // The exponentials of the scores. With LATE_WAIT, this waits for the tile's own values after the maxima: the loop of that
    // wait ends the basic block of the maxima, to whose beginning ptxas otherwise moves the wait for the previous product.
    template <bool PREVIOUS>
    __device__ __forceinline__ void exponentials(float (&next)[2]) {
        if constexpr (Tile::LATE_WAIT) {
            float base[2];
            softmax.template raise<0>(s, next, base);
            Ring<STAGES> own = v_at;
            if constexpr (PREVIOUS) own.advance();
            mbarrier_wait(v_full + 8 * own.stage, own.parity);
            softmax.exponentiate(s, next, base);
        } else {
            softmax.add(s, next);
        }
    }

    // The scores of a tile. PREVIOUS: the product of the previous tile's exponentials with their values is computed at the
    // same time. last: no tile follows. masked: some rows do not see all keys, of which the first has the number `key`.
    template <bool PREVIOUS>
    __device__ __forceinline__ void multiply_scores(bool last, bool masked, int key, const int (&visible)[2]) {
        mbarrier_wait(k_full + 8 * k_at.stage, k_at.parity);
        if constexpr (PREVIOUS && !Tile::LATE_WAIT) mbarrier_wait(v_full + 8 * v_at.stage, v_at.parity);
        if constexpr (Tile::PING_PONG) barrier_sync(1 + number, 256);
        start_scores();
        if constexpr (PREVIOUS) start_values(0);
        if constexpr (Tile::PING_PONG) {
            // The other warpgroup issues its next products. After the last ones of the second, the first has none.
            if (number == 0 || !last) barrier_arrive(1 + (number ^ 1), 256);
        }
        wgmma_wait_group<PREVIOUS ? 1 : 0>();  // the scores
        warpgroup_fence_operand(s);
        signal(k_empty + 8 * k_at.stage);
        k_at.advance();
        if (masked) mask_scores(s, key, visible);
    }

    // Packs the exponentials, which the previous product does not read any more. next: the factor of the sums when their
    // product is added.
    __device__ __forceinline__ void pack(const float (&next)[2]) {
        warpgroup_fence_operand(s);
#pragma unroll
        for (int i = 0; i < BN / 32; i++) pack_e4m3(p[i], s, i);
        factor[0] = next[0], factor[1] = next[1];
    }

    // The scores of a tile, as multiply_scores, and their exponentials, which wait for the previous product.
    template <bool PREVIOUS>
    __device__ __forceinline__ void multiply_tile(bool last, bool masked, int key, const int (&visible)[2]) {
        multiply_scores<PREVIOUS>(last, masked, key, visible);
        float next[2];
        exponentials<PREVIOUS>(next);
        if constexpr (PREVIOUS) {
            add_values(0);
            release_values();
        }
        pack(next);
        if constexpr (!Tile::OVERLAP) multiply_values();
    }

    // The same for the first tile of other queries, at q_rows, whose scores have the scale of `first`: `store` stores the
    // results of the previous ones, which are in `sums`, and takes their maxima and sums of exponentials.
    template <class Store>
    __device__ __forceinline__ void multiply_first_tile(bool masked, int key, const int (&visible)[2],
                                                        const RaisedSoftmax<8>& first, Store store) {
        multiply_scores<true>(false, masked, key, visible);
        RaisedSoftmax<8> previous = softmax;
        softmax = first;
        float next[2];
        exponentials<true>(next);
        add_values(0);
        release_values();
        pack(next);
        store(previous);
        clear();
    }

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (float& sum : sums) sum = 0;
    }
};

}  // namespace ptxkit
