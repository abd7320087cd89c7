// Sums of a tile of c^T whose terms the CTAs of a cluster have computed: each has multiplied a part of k.
//
// Each CTA owns some rows of the tile of c. The CTAs send their sums to the owners (st.async), and an owner adds what it
// has received in the order of the senders' ranks, so that every launch gives the same bits. The mbarrier of the owner
// counts the bytes; no CTA waits for another one to read its memory, and none needs a release at cluster scope, which
// waits for all earlier writes of the CTA.
#pragma once
#include "ptxkit/ptx/cluster.cuh"
#include "ptxkit/ptx/mbarrier.cuh"

namespace ptxkit {

// The tile has TOKENS rows of c and WEIGHTS columns. With one CTA, the sums go to its own shared memory, for the
// transposition alone.
template <int WEIGHTS, int TOKENS>
struct ClusterSums {
    // Elements from a row to the next one: for half a warp that stores pairs of eight rows, 4 modulo 32.
    static constexpr unsigned pitch = WEIGHTS + 4;
    static_assert(WEIGHTS % 32 == 0 && TOKENS % 8 == 0 && TOKENS <= 256, "whole tiles of the tensor cores");

    float* received;       // from each sender the rows that this CTA owns
    unsigned barrier;      // of eight bytes
    unsigned ctas, rank;   // number of the CTAs that multiply parts of k of the same tile, and this one among them
    unsigned first, step;  // CTA i of these has rank first + step i in the cluster
    unsigned tokens;       // rows of the tile that c has
    unsigned share;        // of them that a CTA owns
    unsigned inverse;      // 2^16 / share, rounded up: x / share = x inverse / 2^16 for x < 256

    __device__ __forceinline__ ClusterSums(float* received, unsigned barrier, unsigned ctas, unsigned rank,
                                           unsigned first, unsigned step, unsigned rows)
        : received(received), barrier(barrier), ctas(ctas), rank(rank), first(first), step(step),
          tokens(min(rows, static_cast<unsigned>(TOKENS))), share((tokens - 1) / ctas + 1),
          inverse(65535 / share + 1) {}

    // Rows that this CTA owns.
    __device__ __forceinline__ unsigned owned() const { return min(share, tokens - min(tokens, rank * share)); }

    // One thread calls it, before a barrier of the cluster; the first send() follows that barrier.
    __device__ __forceinline__ void init() const {
        mbarrier_init(barrier, 1);
        fence_mbarrier_init_release_cluster();
        if (ctas > 1) mbarrier_arrive_expect_tx(barrier, owned() * WEIGHTS * 4 * ctas);
    }

    // Sends two neighbouring columns of c^T, x in column `token`, of a thread of wgmma whose row is `weight`, that of
    // lane / 4. All lanes of the warp call it. Two lanes exchange sums first, so that each has two neighbours along a row
    // of c.
    __device__ __forceinline__ void send(unsigned weight, unsigned token, float x, float y) const {
        const unsigned odd = laneid() / 4 % 2;
        const float other = shfl_sync_bfly(all_lanes, odd ? x : y, 4);
        const float2 pair = odd ? float2{other, y} : float2{x, other};
        const unsigned row = token + odd, col = weight - odd;
        if (row >= tokens) return;
        if (ctas == 1) {
            *reinterpret_cast<float2*>(received + row * pitch + col) = pair;
        } else {
            const unsigned owner = row * inverse >> 16, cta = first + step * owner;
            const float* to = received + (rank * share + row - owner * share) * pitch + col;
            st_async_shared_cluster(mapa_shared_cluster(cvta_to_shared(to), cta), pair,
                                    mapa_shared_cluster(barrier, cta));
        }
    }

    // Adds the sums of the rows that this CTA owns, and stores them through the epilogue; (row, col) is the first element
    // of the tile in c. All threads call it after the last send().
    template <class Out>
    __device__ __forceinline__ void store(const Out& output, unsigned row, unsigned col) const {
        if (ctas == 1) barrier_sync();
        else mbarrier_wait(barrier, 0);
        const unsigned sender = share * pitch;  // elements from one sender to the next
        for (unsigned i = threadIdx.x; i < owned() * (WEIGHTS / 4); i += blockDim.x) {
            const unsigned token = i / (WEIGHTS / 4), weight = i % (WEIGHTS / 4) * 4;
            const float* from = received + token * pitch + weight;
            float4 sum = *reinterpret_cast<const float4*>(from);
#pragma unroll 4
            for (unsigned cta = 1; cta < ctas; cta++) {
                const float4 more = *reinterpret_cast<const float4*>(from + cta * sender);
                sum = {sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w};
            }
            const unsigned r = row + rank * share + token, c = col + weight;
            const auto of_row = output.of_row(r);
            output.store(sum.x, sum.y, r, c, of_row);
            output.store(sum.z, sum.w, r, c + 2, of_row);
        }
    }
};

}  // namespace ptxkit
