// Sums and maxima over a warp and a CTA; RowRecords of row.cuh extends them to rows of several warps or CTAs. Every
// participant gets the same result, bit for bit: lanes combine in a butterfly, and all warps add the same partial sums
// in the same order.
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

// Shared memory for cta_sum and cta_max: two buffers of one slot per warp, used alternately. One barrier per sum is
// then enough, since a slot is written again only after the barrier of the sum between, which its readers have passed.
template <class T, int WARPS>
struct CtaSlots {
    T partial[2][WARPS];
};

// Sum over a CTA of THREADS threads, a whole number of warps. `iteration` counts the sums done with these slots.
template <int THREADS, class T>
__device__ __forceinline__ T cta_sum(T value, CtaSlots<T, THREADS / 32>& slots, unsigned iteration = 0) {
    static_assert(THREADS % 32 == 0 && THREADS <= 32 * 32, "whole warps, at most 32");
    constexpr int warps = THREADS / 32;
    value = warp_sum<32>(value);
    if constexpr (warps == 1) return value;
    T* partial = slots.partial[iteration & 1];
    if (laneid() == 0) partial[threadIdx.x / 32] = value;
    barrier_sync<0>(THREADS);
    if constexpr ((warps & (warps - 1)) == 0) return warp_sum<warps>(partial[laneid() & (warps - 1)]);
    return warp_sum<32>(laneid() < warps ? partial[laneid()] : T(0));
}

// Maximum over a CTA of THREADS threads.
template <int THREADS>
__device__ __forceinline__ float cta_max(float value, CtaSlots<float, THREADS / 32>& slots, unsigned iteration = 0) {
    constexpr int warps = THREADS / 32;
    value = warp_max<32>(value);
    float* partial = slots.partial[iteration & 1];
    if (laneid() == 0) partial[threadIdx.x / 32] = value;
    barrier_sync();
    return warp_max<32>(laneid() < warps ? partial[laneid()] : -infinity());
}

}  // namespace ptxkit
