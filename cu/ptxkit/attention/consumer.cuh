// What the kernels of attention.cu and attention_continuous.cu share: the tile parameters of those by TMA and wgmma, what a
// warpgroup of these computes, and the stores of results. continuous_consumer.cuh has what differs in the latter.
#pragma once
#include "ptxkit/attention/mma_tiles.cuh"
#include "ptxkit/attention/sequence.cuh"
#include "ptxkit/attention/wgmma_tiles.cuh"
#include "ptxkit/ptx/mbarrier.cuh"
#include "ptxkit/ptx/wgmma_registers.cuh"

namespace ptxkit {

// Where a warp stores the results of 16 rows of queries.
template <class T>
struct WarpRows {
    T* o;        // of the first row
    float* lse;  // of the first row
    int stride;  // elements from one row of o to the next
    int count;   // rows that exist, if fewer than 16

    WarpRows() = default;

    // query: of the first row.
    __device__ __forceinline__ WarpRows(T* o, float* lse, const Sequence& sequence, int query, int tokens, int heads, int head,
                                        int d)
        : o(o + (size_t(sequence.q_first + query) * heads + head) * d),
          lse(lse + size_t(head) * tokens + sequence.q_first + query),
          stride(heads * d),
          count(sequence.q_count - query) {}
};

// Divides a warp's 16 rows of results by the sums of their exponentials and stores them, multiplied by `scale`, through their
// place in `tile`, of ROWS rows, from number `row`: whole rows, 16 bytes for each thread. Stores the logarithms, too.
template <int ROWS, int D, class T, int RAISED>
__device__ __forceinline__ void store_rows(float (&sums)[D / 2], RaisedSoftmax<RAISED>& softmax, unsigned char* tile,
                                           unsigned row, const WarpRows<T>& rows, float scale = 1) {
    softmax.finish();
    scale_rows(sums, {softmax.normalization(0) * scale, softmax.normalization(1) * scale});
    store_through_tile<ROWS, D>(sums, tile, row, rows.o, rows.stride, rows.count);
    const int first = laneid() / 4;
    if (laneid() % 4 == 0) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (first + 8 * r < rows.count) rows.lse[first + 8 * r] = softmax.log_sum_exp(r);
        }
    }
}

// Results 0 and logarithms of minus infinity for 16 rows whose queries see no key.
template <int D, class T>
__device__ __forceinline__ void store_nothing(const WarpRows<T>& rows) {
    const int lane = laneid();
    for (int i = lane; i < 16 * D / 8; i += 32) {
        const int row = i / (D / 8), column = i % (D / 8) * 8;
        if (row < rows.count) *reinterpret_cast<uint4*>(rows.o + size_t(row) * rows.stride + column) = uint4{};
    }
    if (lane < 16 && lane < rows.count) rows.lse[lane] = -infinity();
}

// Parameters of attention_specialized. The description gives them by name (AttentionTile in
// ptxkit/kernels/attention/tiles.py).
template <int D_, int CONSUMERS_, int BN_, int STAGES_, bool OVERLAP_, bool PING_PONG_, int REGISTERS_>
struct AttentionTile {
    static constexpr int D = D_;                  // elements of a head
    static constexpr int CONSUMERS = CONSUMERS_;  // warpgroups that multiply 64 queries each
    static constexpr int BM = 64 * CONSUMERS;     // queries of a CTA
    static constexpr int BN = BN_;                // keys of a tile
    static constexpr int STAGES = STAGES_;        // tiles of keys, and of values, in shared memory
    static constexpr bool OVERLAP = OVERLAP_;     // the next scores are computed during the product with the values
    static constexpr bool PING_PONG = PING_PONG_; // the warpgroups issue products one after the other
    static constexpr int REGISTERS = REGISTERS_;  // of a consumer thread after setmaxnreg; 0: no setmaxnreg
    static constexpr bool LATE_WAIT = false;      // the previous product with values is waited for after the maxima
    // Shared memory as byte offsets: the queries, which the results replace, tiles of keys and values, mbarriers.
    static constexpr int q_bytes = BM * D * 2, tile_bytes = BN * D * 2;
    static constexpr int k = q_bytes, v = k + STAGES * tile_bytes, barriers = v + STAGES * tile_bytes;
    static constexpr int bytes = barriers + 8 * (2 + 4 * STAGES);
};

// The same with LATE_WAIT: see Consumer::exponentials.
template <int D, int CONSUMERS, int BN, int STAGES, bool OVERLAP, bool PING_PONG, int REGISTERS>
struct LateAttentionTile : AttentionTile<D, CONSUMERS, BN, STAGES, OVERLAP, PING_PONG, REGISTERS> {
    static constexpr bool LATE_WAIT = true;
};

// What a consumer warpgroup computes of a tile of queries, in registers: `sums` become the results.
template <class T, class Tile>
struct Consumer {
    static constexpr int D = Tile::D, BM = Tile::BM, BN = Tile::BN, STAGES = Tile::STAGES;

    // Shared addresses: the warpgroup's queries, the stages, their mbarriers.
    unsigned q_rows, k_tiles, v_tiles, k_full, k_empty, v_full, v_empty;
    unsigned number;  // of the warpgroup
    Ring<STAGES> k_at, v_at;
    OnlineSoftmax softmax;
    float sums[D / 2], s[BN / 2];
    unsigned p[BN / 16][4];

    __device__ __forceinline__ void signal(unsigned barrier) const {
        if (laneid() == 0) mbarrier_arrive(barrier);
    }

    // Starts s = q k^T.
    __device__ __forceinline__ void start_scores() {
        ptxkit::start_scores<BM, BN, D>(s, q_rows, k_tiles + k_at.stage * Tile::tile_bytes, T());
    }

    // Starts sums += p v.
    __device__ __forceinline__ void start_values() {
        const unsigned v_tile = v_tiles + v_at.stage * Tile::tile_bytes;
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < BN / 16; i++) {
            wgmma_transposed(sums, p[i], transposed_descriptor_128B(v_tile + i * 2048, BN * 128), true, T());
        }
        wgmma_commit_group();
    }

    __device__ __forceinline__ void wait_for_values() {
        wgmma_wait_group<0>();
        warpgroup_fence_operand(sums);
        signal(v_empty + 8 * v_at.stage);
        v_at.advance();
    }

    // The product of the latest exponentials with their values.
    __device__ __forceinline__ void multiply_values() {
        if constexpr (!Tile::LATE_WAIT) mbarrier_wait(v_full + 8 * v_at.stage, v_at.parity);
        start_values();
        wait_for_values();
    }

    // The scores of a tile. PREVIOUS: the product of the previous tile's exponentials with their values is computed at the
    // same time. last: no tile follows. masked: some rows do not see all keys, of which the first has the number `key`.
    template <bool PREVIOUS>
    __device__ __forceinline__ void multiply_scores(bool last, bool masked, int key, const int (&visible)[2]) {
        mbarrier_wait(k_full + 8 * k_at.stage, k_at.parity);
        if constexpr (PREVIOUS && !Tile::LATE_WAIT) mbarrier_wait(v_full + 8 * v_at.stage, v_at.parity);
        if constexpr (Tile::PING_PONG) barrier_sync(1 + number, 256);
        start_scores();
        if constexpr (PREVIOUS) start_values();
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

    // Packs the exponentials, which the previous product does not read any more.
    __device__ __forceinline__ void pack() {
        warpgroup_fence_operand(s);
#pragma unroll
        for (int i = 0; i < BN / 16; i++) pack_operand<T>(p[i], s, i);
    }

    // The exponentials of the scores. Returns whether results must be multiplied by `factor`. With LATE_WAIT, this waits for
    // the tile's own values after the maxima, and the loop of that wait ends their basic block: see continuous_consumer.cuh.
    template <bool PREVIOUS>
    __device__ __forceinline__ bool exponentials(float (&factor)[2]) {
        if constexpr (Tile::LATE_WAIT) {
            float base[2];
            const bool scaled = softmax.template raise<8>(s, factor, base);
            Ring<STAGES> own = v_at;
            if constexpr (PREVIOUS) own.advance();
            mbarrier_wait(v_full + 8 * own.stage, own.parity);
            softmax.exponentiate(s, factor, base);
            return scaled;
        } else {
            softmax.add(s, factor);
            return true;
        }
    }

    // The scores of a tile, as multiply_scores, and their exponentials, which wait for the previous product.
    template <bool PREVIOUS>
    __device__ __forceinline__ void multiply_tile(bool last, bool masked, int key, const int (&visible)[2]) {
        multiply_scores<PREVIOUS>(last, masked, key, visible);
        float factor[2];
        const bool scaled = exponentials<PREVIOUS>(factor);
        if constexpr (PREVIOUS) wait_for_values();
        pack();
        if (scaled) scale_rows(sums, factor);
        if constexpr (!Tile::OVERLAP) multiply_values();
    }

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (float& sum : sums) sum = 0;
    }
};

}  // namespace ptxkit
