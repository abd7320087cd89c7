// Sums over a warp, a CTA and a cluster, and maxima over a warp and a CTA. Every participant gets the same result, bit
// for bit: lanes combine in a butterfly, and all warps add the same partial sums in the same order.
//
// T is float or double. A maximum ignores NaN.
#pragma once
#include "ptxkit/ptx/data_movement.cuh"
#include "ptxkit/ptx/special_registers.cuh"
#include "ptxkit/ptx/synchronization.cuh"

namespace ptxkit {

__device__ __forceinline__ float infinity() { return __uint_as_float(0x7f800000); }

// Sum over aligned groups of LANES lanes (1, 2, 4, ... 32). All 32 lanes take part.
template <int LANES, class T>
__device__ __forceinline__ T warp_sum(T value) {
    static_assert(LANES >= 1 && LANES <= 32 && (LANES & (LANES - 1)) == 0, "LANES is a power of two up to 32");
#pragma unroll
    for (int distance = LANES / 2; distance > 0; distance /= 2) value += shfl_sync_bfly(all_lanes, value, distance);
    return value;
}

// Two sums at a time. Their shuffles alternate, so that the latency of one hides that of the other.
struct Pair {
    float x, y;

    __device__ __forceinline__ void operator+=(Pair other) { x += other.x, y += other.y; }
};

template <int LANES>
__device__ __forceinline__ Pair warp_sum(Pair value) {
    static_assert(LANES >= 1 && LANES <= 32 && (LANES & (LANES - 1)) == 0, "LANES is a power of two up to 32");
#pragma unroll
    for (int distance = LANES / 2; distance > 0; distance /= 2) {
        value += {shfl_sync_bfly(all_lanes, value.x, distance), shfl_sync_bfly(all_lanes, value.y, distance)};
    }
    return value;
}

template <int LANES>
__device__ __forceinline__ float warp_max(float value) {
    static_assert(LANES >= 1 && LANES <= 32 && (LANES & (LANES - 1)) == 0, "LANES is a power of two up to 32");
#pragma unroll
    for (int distance = LANES / 2; distance > 0; distance /= 2)
        value = fmaxf(value, shfl_sync_bfly(all_lanes, value, distance));
    return value;
}

// Shared memory for group_sum: two buffers of one slot per warp, used alternately. One barrier per sum is then enough,
// since a slot is written again only after the barrier of the sum between, which its readers have passed.
template <class T, int WARPS>
struct GroupSlots {
    T partial[2][WARPS];
};

// Sum over a group of THREADS consecutive threads of a CTA, which is a whole number of warps; a CTA may have GROUPS
// such groups, up to 16, each with its own barrier (`group`) and slots. `iteration` counts the sums done with these
// slots.
template <int THREADS, int GROUPS = 16, class T>
__device__ __forceinline__ T group_sum(T value, GroupSlots<T, THREADS / 32>& slots, unsigned group,
                                       unsigned iteration) {
    static_assert(THREADS % 32 == 0 && THREADS <= 1024, "THREADS is a whole number of warps");
    constexpr int warps = THREADS / 32;
    value = warp_sum<32>(value);
    if constexpr (warps == 1) return value;
    T* partial = slots.partial[iteration & 1];
    if (laneid() == 0) partial[threadIdx.x / 32 % warps] = value;
    barrier_sync_below<GROUPS>(group, THREADS);
    if constexpr ((warps & (warps - 1)) == 0) return warp_sum<warps>(partial[laneid() & (warps - 1)]);
    return warp_sum<32>(laneid() < warps ? partial[laneid()] : T(0));
}

// Sum over a CTA of THREADS threads.
template <int THREADS, class T>
__device__ __forceinline__ T cta_sum(T value, GroupSlots<T, THREADS / 32>& slots, unsigned iteration = 0) {
    return group_sum<THREADS, 1>(value, slots, 0, iteration);
}

// Maximum over a CTA of THREADS threads, with the slots of sums.
template <int THREADS>
__device__ __forceinline__ float cta_max(float value, GroupSlots<float, THREADS / 32>& slots, unsigned iteration = 0) {
    constexpr int warps = THREADS / 32;
    value = warp_max<32>(value);
    float* partial = slots.partial[iteration & 1];
    if (laneid() == 0) partial[threadIdx.x / 32] = value;
    barrier_sync();
    return warp_max<32>(laneid() < warps ? partial[laneid()] : -infinity());
}

// Shared memory for cluster_sum, at the same address in every CTA: two buffers of one slot per warp of the cluster.
template <class T, int CTAS, int WARPS>
struct ClusterSlots {
    T partial[2][CTAS * WARPS];
};

// Sum over a cluster of CTAS CTAs of THREADS threads. Each warp stores its sum to every CTA's shared memory, so that
// one cluster barrier orders all stores and each CTA then reads only its own memory. Before the first sum all CTAs must
// have started: barrier_cluster_arrive_relaxed(), then barrier_cluster_wait_acquire().
template <int THREADS, int CTAS, class T>
__device__ __forceinline__ T cluster_sum(T value, ClusterSlots<T, CTAS, THREADS / 32>& slots, unsigned iteration) {
    static_assert(CTAS <= 32, "one lane stores to each CTA");
    constexpr int warps = THREADS / 32;
    value = warp_sum<32>(value);
    T* partial = slots.partial[iteration & 1];
    if (laneid() < CTAS) {
        unsigned slot = cvta_to_shared(&partial[cluster_ctarank() * warps + threadIdx.x / 32]);
        st_shared_cluster(mapa_shared_cluster(slot, laneid()), value);
    }
    barrier_cluster_arrive_release();
    barrier_cluster_wait_acquire();
    T total = 0;
    for (int i = laneid(); i < CTAS * warps; i += 32) total += partial[i];
    return warp_sum<32>(total);
}

}  // namespace ptxkit
