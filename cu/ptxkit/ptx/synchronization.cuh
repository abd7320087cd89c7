// barrier, bar.warp.sync, barrier.cluster, vote.sync, redux.sync, elect.sync, griddepcontrol. PTX ISA, "Parallel
// Synchronization and Communication Instructions". Target: sm_75 or newer for barrier, bar.warp.sync and vote.sync;
// sm_80 for redux.sync on integers; sm_90 for the others, unless a comment states another one.
//
// Operand `members` is a mask with a bit set for each lane of the warp that executes the instruction, all with the same
// mask.
#pragma once
#include "ptxkit/ptx/guard.cuh"

namespace ptxkit {

constexpr unsigned all_lanes = 0xffffffff;

// Waits until all threads of the CTA have arrived at barrier 0.
__device__ __forceinline__ void barrier_sync() { asm volatile("barrier.sync 0;" ::: "memory"); }

// Waits until `threads` threads of the CTA, a multiple of 32, have arrived at barrier number `barrier`, 0 to 15.
__device__ __forceinline__ void barrier_sync(unsigned barrier, unsigned threads) {
    asm volatile("barrier.sync %0, %1;" :: "r"(barrier), "r"(threads) : "memory");
}

// Arrives at barrier number `barrier` without waiting; `threads` counts the arriving threads and those that wait in
// barrier_sync.
__device__ __forceinline__ void barrier_arrive(unsigned barrier, unsigned threads) {
    asm volatile("barrier.arrive %0, %1;" :: "r"(barrier), "r"(threads) : "memory");
}

// The same as barrier_sync(BARRIER, threads). With a constant number, ptxas knows which barriers the kernel uses.
template <int BARRIER>
__device__ __forceinline__ void barrier_sync(unsigned threads) {
    asm volatile("barrier.sync %0, %1;" :: "n"(BARRIER), "r"(threads) : "memory");
}

// The same for a barrier number below BARRIERS that is known only at run time, with a branch for each number. If the
// number were a register operand, ptxas would allocate all 16 barriers to the CTA, and an SM has only 64 for all its
// CTAs.
template <int BARRIERS>
__device__ __forceinline__ void barrier_sync_below(unsigned barrier, unsigned threads) {
    if constexpr (BARRIERS > 1) {
        if (barrier != BARRIERS - 1) return barrier_sync_below<BARRIERS - 1>(barrier, threads);
    }
    barrier_sync<BARRIERS - 1>(threads);
}

// Synchronizes the lanes in `members` and orders their memory accesses.
__device__ __forceinline__ void bar_warp_sync(unsigned members) {
    asm volatile("bar.warp.sync %0;" ::"r"(members) : "memory");
}

// barrier.cluster: each thread of each CTA of the cluster arrives once and waits once per phase. Writes before
// arrive.release are visible to all threads of the cluster after wait.acquire. All threads of a warp must execute the
// .aligned forms together.

__device__ __forceinline__ void barrier_cluster_arrive_release() {
#if PTXKIT_SM >= 90
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#else
    PTXKIT_UNSUPPORTED("barrier.cluster.arrive", "sm_90");
#endif
}

// Arrives without ordering memory accesses: to signal that the CTA has started, or that it no longer accesses the
// memory of other CTAs.
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

// vote.sync. any: whether `value` is true in any lane. ballot: a mask with a bit set for each lane in which it is.

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

// redux.sync: the sum or the maximum of a 32-bit unsigned integer over the lanes, in one instruction instead of five
// shuffles and five operations.

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

// elect.sync: returns true in one lane of `members`, which is the same one for the same mask.
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

// redux.sync.max.abs.NaN.f32: the maximum of |value| over the lanes, or NaN if any is NaN. Target: sm_100a, sm_100f or
// another one of this family; the instruction is not part of sm_100.
__device__ __forceinline__ float redux_sync_max_abs_NaN_f32(unsigned members, float value) {
#if PTXKIT_SM100F
    float result;
    asm volatile("redux.sync.max.abs.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(value), "r"(members));
    return result;
#else
    PTXKIT_UNSUPPORTED_EXCEPT("redux.sync.max.f32", PTXKIT_SM100F_TARGETS);
    return 0;
#endif
}

// griddepcontrol: programmatic dependent launch, for grids that were launched with the attribute
// cudaLaunchAttributeProgrammaticStreamSerialization. launch_dependents: when all CTAs of this grid have executed it or
// have exited, the next grid in the stream may start. wait: blocks until the previous grid has completed and its writes
// are visible. For a launch without the attribute neither has an effect.

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

// Executes both instructions, and nothing on targets before sm_90. A kernel calls it before its first access to global
// memory, so that its launch overlaps with the end of the previous grid.
//
// NO_EARLY_LAUNCH: omits launch_dependents; the next grid then starts when all CTAs of this one have exited, which is
// still before its writes are visible. A grid that starts earlier takes issue slots from the running one, and its CTAs
// are placed on the SMs that have room, several on some of them. For a grid of few CTAs that runs a few microseconds,
// this costs more time than the early start saves.
template <bool NO_EARLY_LAUNCH = false>
__device__ __forceinline__ void follow_previous_grid() {
#if PTXKIT_SM >= 90
    if constexpr (!NO_EARLY_LAUNCH) griddepcontrol_launch_dependents();
    griddepcontrol_wait();
#endif
}

// Executes both instructions in the other order. When the next grid starts, all grids before this one have completed, so
// that it may read their results before its own wait.
__device__ __forceinline__ void follow_previous_grid_later() {
#if PTXKIT_SM >= 90
    griddepcontrol_wait();
    griddepcontrol_launch_dependents();
#endif
}

// The two halves of it, where a part of the work needs nothing of the previous grid.
__device__ __forceinline__ void launch_next_grid() {
#if PTXKIT_SM >= 90
    griddepcontrol_launch_dependents();
#endif
}
__device__ __forceinline__ void wait_for_previous_grid() {
#if PTXKIT_SM >= 90
    griddepcontrol_wait();
#endif
}

}  // namespace ptxkit
