// PTX ISA, "Parallel Synchronization and Communication Instructions": barrier, barrier.cluster, vote, redux, elect,
// griddepcontrol.
#pragma once
#include "ptxkit/ptx/guard.cuh"

namespace ptxkit {

constexpr unsigned all_lanes = 0xffffffff;

// All threads of the CTA.
__device__ __forceinline__ void barrier_sync() { asm volatile("barrier.sync 0;" ::: "memory"); }

// `threads` threads of the CTA (whole warps) that name the same barrier, 0 to 15.
__device__ __forceinline__ void barrier_sync(unsigned barrier, unsigned threads) {
    asm volatile("barrier.sync %0, %1;" :: "r"(barrier), "r"(threads) : "memory");
}

// Arrives at the barrier of those `threads` without waiting for the others, which call barrier_sync.
__device__ __forceinline__ void barrier_arrive(unsigned barrier, unsigned threads) {
    asm volatile("barrier.arrive %0, %1;" :: "r"(barrier), "r"(threads) : "memory");
}

template <int BARRIER>
__device__ __forceinline__ void barrier_sync(unsigned threads) {
    asm volatile("barrier.sync %0, %1;" :: "n"(BARRIER), "r"(threads) : "memory");
}

// The same for a barrier number below BARRIERS that is only known at run time, with a branch for each number: for a
// computed number ptxas reports that the kernel uses all 16, of which an SM has only 64 for all its CTAs.
template <int BARRIERS>
__device__ __forceinline__ void barrier_sync_below(unsigned barrier, unsigned threads) {
    if constexpr (BARRIERS > 1) {
        if (barrier != BARRIERS - 1) return barrier_sync_below<BARRIERS - 1>(barrier, threads);
    }
    barrier_sync<BARRIERS - 1>(threads);
}

// Synchronizes the lanes of `members`, which all pass the same mask.
__device__ __forceinline__ void bar_warp_sync(unsigned members) {
    asm volatile("bar.warp.sync %0;" ::"r"(members) : "memory");
}

// barrier.cluster: every thread of every CTA of the cluster arrives once and waits once. What was written before
// arrive.release is visible after wait.acquire. The aligned forms need all threads of a warp to execute them together.

__device__ __forceinline__ void barrier_cluster_arrive_release() {
#if PTXKIT_SM >= 90
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#else
    PTXKIT_UNSUPPORTED("barrier.cluster.arrive", "sm_90");
#endif
}

// Orders no memory: for "this CTA has started" and "this CTA needs nothing more".
__device__ __forceinline__ void barrier_cluster_arrive_relaxed() {
#if PTXKIT_SM >= 90
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#else
    PTXKIT_UNSUPPORTED("barrier.cluster.arrive", "sm_90");
#endif
}

__device__ __forceinline__ void barrier_cluster_wait_acquire() {
#if PTXKIT_SM >= 90
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
    PTXKIT_UNSUPPORTED("barrier.cluster.wait", "sm_90");
#endif
}

// vote.sync

__device__ __forceinline__ bool vote_sync_any(unsigned members, bool value) {
    unsigned result;
    asm volatile(
        "{\n\t.reg .pred p, q;\n\tsetp.ne.u32 p, %1, 0;\n\tvote.sync.any.pred q, p, %2;\n\tselp.u32 %0, 1, 0, q;\n\t}"
        : "=r"(result)
        : "r"(static_cast<unsigned>(value)), "r"(members));
    return result;
}

__device__ __forceinline__ unsigned vote_sync_ballot(unsigned members, bool value) {
    unsigned result;
    asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %1, 0;\n\tvote.sync.ballot.b32 %0, p, %2;\n\t}"
                 : "=r"(result) : "r"(static_cast<unsigned>(value)), "r"(members));
    return result;
}

// redux.sync: one instruction instead of five shuffles, for 32-bit integers.

__device__ __forceinline__ unsigned redux_sync_add(unsigned members, unsigned value) {
#if PTXKIT_SM >= 80
    unsigned result;
    asm volatile("redux.sync.add.u32 %0, %1, %2;" : "=r"(result) : "r"(value), "r"(members));
    return result;
#else
    PTXKIT_UNSUPPORTED("redux.sync", "sm_80");
    return 0;
#endif
}

__device__ __forceinline__ unsigned redux_sync_max(unsigned members, unsigned value) {
#if PTXKIT_SM >= 80
    unsigned result;
    asm volatile("redux.sync.max.u32 %0, %1, %2;" : "=r"(result) : "r"(value), "r"(members));
    return result;
#else
    PTXKIT_UNSUPPORTED("redux.sync", "sm_80");
    return 0;
#endif
}

// elect.sync: true for one lane of `members`, the same one each time.
__device__ __forceinline__ bool elect_sync(unsigned members) {
#if PTXKIT_SM >= 90
    unsigned elected;
    asm volatile("{\n\t.reg .pred p;\n\telect.sync _|p, %1;\n\tselp.u32 %0, 1, 0, p;\n\t}"
                 : "=r"(elected)
                 : "r"(members));
    return elected;
#else
    PTXKIT_UNSUPPORTED("elect.sync", "sm_90");
    return false;
#endif
}

// The largest |value| of f32, NaN if one is NaN. Only for the "a" and "f" targets of the family; sm_100 itself refuses
// it.
__device__ __forceinline__ float redux_sync_max_abs_NaN_f32(unsigned members, float value) {
#if PTXKIT_SM100F
    float result;
    asm volatile("redux.sync.max.abs.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(value), "r"(members));
    return result;
#else
    PTXKIT_UNSUPPORTED("redux.sync.max.f32", "sm_100a or sm_100f");
    return 0;
#endif
}

// griddepcontrol: programmatic dependent launch. launch_dependents lets the next grid in the stream start now, if it
// was launched with that attribute; in the next grid, wait returns when the previous one has ended and its writes are
// visible. Without the attribute both do nothing, so a kernel with them may be launched either way.

__device__ __forceinline__ void griddepcontrol_launch_dependents() {
#if PTXKIT_SM >= 90
    asm volatile("griddepcontrol.launch_dependents;");
#else
    PTXKIT_UNSUPPORTED("griddepcontrol", "sm_90");
#endif
}

__device__ __forceinline__ void griddepcontrol_wait() {
#if PTXKIT_SM >= 90
    asm volatile("griddepcontrol.wait;" ::: "memory");
#else
    PTXKIT_UNSUPPORTED("griddepcontrol", "sm_90");
#endif
}

// Both instructions, for kernels that older targets run, too. To be called before the first access to global memory; a
// launch then overlaps with the end of the previous grid. NO_EARLY_LAUNCH: the next grid starts only when all CTAs of
// this one have ended, still before its writes are visible. A grid that starts at once takes issue slots from this one,
// and its CTAs are placed where SMs have room, several on some SMs; for a kernel of few CTAs and few microseconds that
// costs more than the early start saves.
template <bool NO_EARLY_LAUNCH = false>
__device__ __forceinline__ void follow_previous_grid() {
#if PTXKIT_SM >= 90
    if constexpr (!NO_EARLY_LAUNCH) griddepcontrol_launch_dependents();
    griddepcontrol_wait();
#endif
}

}  // namespace ptxkit
