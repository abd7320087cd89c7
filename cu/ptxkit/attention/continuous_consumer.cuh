// What a consumer warpgroup of step 7 of attention computes. In contrast to Consumer:
//
// 1. Tiles of queries follow each other: the first scores of the next one are computed during the last product with values.
// 2. The wait for that product is after the maxima of the scores. ptxas moves a wait for wgmma to the beginning of its basic
//     block. In Consumer, whose block begins with the maxima, the exponentials are therefore never computed during the
//     product of the same warpgroup, although the wait follows them in PTX. Here the loop that waits for the mbarrier of the
//     tile's own values ends the block of the maxima.
// 3. The low words of the matrix descriptors are computed once for a tile, and each instruction adds a constant.
#pragma once
#include "ptxkit/attention/consumer.cuh"

namespace ptxkit {

// The descriptor of a matrix with the 128-byte swizzle from its low word; n more in that word move the matrix by 16 n bytes.
__device__ __forceinline__ unsigned long long descriptor_of(unsigned low) {
    constexpr unsigned upper = 1024 >> 4 | 1u << 30;  // as in matrix_descriptor_128B and transposed_descriptor_128B
    return static_cast<unsigned long long>(upper) << 32 | low;
}

template <class T, class Tile>
struct ContinuousConsumer : Consumer<T, Tile> {
    using Base = Consumer<T, Tile>;
    static constexpr int D = Tile::D, BM = Tile::BM, BN = Tile::BN, STAGES = Tile::STAGES;
    using Base::k_at, Base::v_at, Base::number, Base::p, Base::s, Base::softmax, Base::sums;

    // Starts s = q k^T.
    __device__ __forceinline__ void start_scores() {
        const unsigned q = static_cast<unsigned>(matrix_descriptor_128B(Base::q_rows));
        const unsigned k =
            static_cast<unsigned>(matrix_descriptor_128B(Base::k_tiles + k_at.stage * Tile::tile_bytes));
        wgmma_fence();
#pragma unroll
        for (int d = 0; d < D; d += 16) {
            const int box = d / 64, column = d % 64 * 2;
            multiply(s, descriptor_of(q + (box * BM * 128 + column) / 16),
                     descriptor_of(k + (box * BN * 128 + column) / 16), d > 0, T());
        }
        wgmma_commit_group();
    }

    // Starts sums += p v.
    __device__ __forceinline__ void start_values() {
        const unsigned v = static_cast<unsigned>(
            transposed_descriptor_128B(Base::v_tiles + v_at.stage * Tile::tile_bytes, BN * 128));
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < BN / 16; i++) wgmma_transposed(sums, p[i], descriptor_of(v + i * (2048 / 16)), true, T());
        wgmma_commit_group();
    }

    // The product of the latest exponentials with their values, for which exponentials() has waited.
    __device__ __forceinline__ void multiply_values() {
        start_values();
        Base::wait_for_values();
    }

    // The scores of a tile. PREVIOUS: the product of the previous tile's exponentials with their values is computed at the
    // same time. masked: some rows do not see all keys, of which the first has the number `key`.
    template <bool PREVIOUS>
    __device__ __forceinline__ void multiply_scores(bool masked, int key, const int (&visible)[2]) {
        mbarrier_wait(Base::k_full + 8 * k_at.stage, k_at.parity);
        if constexpr (Tile::PING_PONG) barrier_sync(1 + number, 256);
        start_scores();
        if constexpr (PREVIOUS) start_values();
        if constexpr (Tile::PING_PONG) barrier_arrive(1 + (number ^ 1), 256);  // the other warpgroup issues its products
        wgmma_wait_group<PREVIOUS ? 1 : 0>();  // the scores
        warpgroup_fence_operand(s);
        Base::signal(Base::k_empty + 8 * k_at.stage);
        k_at.advance();
        if (masked) mask_scores(s, key, visible);
    }

    // The exponentials of the scores. Waits for the previous product, and for the values of this tile. Returns as
    // OnlineSoftmax::raise.
    template <bool PREVIOUS>
    __device__ __forceinline__ bool exponentials(float (&factor)[2]) {
        float base[2];
        const bool scaled = softmax.template raise<Tile::RESCALE_ABOVE>(s, factor, base);
        Ring<STAGES> own = v_at;
        if constexpr (PREVIOUS) own.advance();
        mbarrier_wait(Base::v_full + 8 * own.stage, own.parity);
        softmax.exponentiate(s, factor, base);
        if constexpr (PREVIOUS) Base::wait_for_values();
        Base::pack();
        return scaled;
    }

    // The scores of a tile, as multiply_scores, and their exponentials.
    template <bool PREVIOUS>
    __device__ __forceinline__ void multiply_tile(bool masked, int key, const int (&visible)[2]) {
        multiply_scores<PREVIOUS>(masked, key, visible);
        float factor[2];
        if (exponentials<PREVIOUS>(factor)) scale_rows(sums, factor);
    }

    // The same for the first tile of other queries, at q_rows: `store` stores the results of the previous ones, which are in
    // `sums`, and takes their maxima and sums of exponentials.
    template <class Store>
    __device__ __forceinline__ void multiply_first_tile(bool masked, int key, const int (&visible)[2], Store store) {
        multiply_scores<true>(masked, key, visible);
        OnlineSoftmax previous = softmax;
        softmax = OnlineSoftmax{previous.scale};
        float factor[2];
        exponentials<true>(factor);
        store(previous);
        Base::clear();
    }
};

}  // namespace ptxkit
