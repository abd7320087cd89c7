// mbarrier.init, inval, arrive, expect_tx, complete_tx, test_wait, try_wait; cp.async.mbarrier.arrive;
// fence.mbarrier_init and fence.proxy.async. PTX ISA, "Parallel Synchronization and Communication Instructions:
// mbarrier" and "membar/fence". Target: sm_80 or newer for init, inval, arrive, test_wait and cp.async.mbarrier.arrive;
// sm_90 or newer for the others.
//
// An mbarrier is an object of 8 bytes in shared memory that counts pending arrivals and pending bytes (tx-count). A
// phase completes when the number of arrivals given to mbarrier.init has been reached and all expected bytes have been
// copied; the mbarrier then begins the next phase with the same number of pending arrivals. Waits identify a phase by
// its parity, which is 0 for the first phase and alternates. On an mbarrier in its first phase, a wait for parity 1
// returns at once, so a producer that begins with parity 1 does not wait in its first pass through a ring of buffers.
//
// Operand `barrier` is a byte address in the shared window (cvta_to_shared), a multiple of 8.
#pragma once
#include "ptxkit/ptx/guard.cuh"

namespace ptxkit {

// Initializes an mbarrier with the number of arrivals that complete a phase.
__device__ __forceinline__ void mbarrier_init(unsigned barrier, unsigned arrivals) {
#if PTXKIT_SM >= 80
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(arrivals) : "memory");
#else
    PTXKIT_UNSUPPORTED("mbarrier.init", "sm_80");
#endif
}

// Invalidates an mbarrier, so that its memory may be used for another purpose.
__device__ __forceinline__ void mbarrier_inval(unsigned barrier) {
#if PTXKIT_SM >= 80
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" :: "r"(barrier) : "memory");
#else
    PTXKIT_UNSUPPORTED("mbarrier.inval", "sm_80");
#endif
}

// Makes earlier mbarrier.init of this thread visible to the other CTAs of the cluster and to asynchronous copies.
__device__ __forceinline__ void fence_mbarrier_init_release_cluster() {
#if PTXKIT_SM >= 90
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#else
    PTXKIT_UNSUPPORTED("fence.mbarrier_init", "sm_90");
#endif
}

// Performs one arrival. Returns the state, which identifies the phase that the arrival belongs to, for
// mbarrier_test_wait.
__device__ __forceinline__ unsigned long long mbarrier_arrive(unsigned barrier) {
    unsigned long long state = 0;
#if PTXKIT_SM >= 80
    asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(barrier) : "memory");
#else
    PTXKIT_UNSUPPORTED("mbarrier.arrive", "sm_80");
#endif
    return state;
}

// Performs one arrival on an mbarrier of any CTA of the cluster; `barrier` is an address from mapa_shared_cluster. The
// release has the default scope, the CTA. That suffices to signal that shared memory has been read and that an
// asynchronous copy may overwrite it.
__device__ __forceinline__ void mbarrier_arrive_shared_cluster(unsigned barrier) {
#if PTXKIT_SM >= 90
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" :: "r"(barrier) : "memory");
#else
    PTXKIT_UNSUPPORTED("mbarrier.arrive.shared::cluster", "sm_90");
#endif
}

// The same with release at cluster scope: earlier writes of this thread are visible to threads that wait with
// mbarrier_try_wait_parity_acquire_cluster. It is needed for data that threads exchange by ordinary stores and loads,
// and expensive, because it compiles to MEMBAR.ALL.GPU, which waits until all earlier writes are visible to the whole
// GPU.
__device__ __forceinline__ void mbarrier_arrive_release_cluster(unsigned barrier) {
#if PTXKIT_SM >= 90
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" :: "r"(barrier) : "memory");
#else
    PTXKIT_UNSUPPORTED("mbarrier.arrive.shared::cluster", "sm_90");
#endif
}

// Adds `bytes` to the bytes that the current phase expects. It is not an arrival.
__device__ __forceinline__ void mbarrier_expect_tx(unsigned barrier, unsigned bytes) {
#if PTXKIT_SM >= 90
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
#else
    PTXKIT_UNSUPPORTED("mbarrier.expect_tx", "sm_90");
#endif
}

// Adds `bytes` to the bytes that the current phase expects, and performs one arrival.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(unsigned barrier, unsigned bytes) {
#if PTXKIT_SM >= 90
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
#else
    PTXKIT_UNSUPPORTED("mbarrier.arrive.expect_tx", "sm_90");
#endif
}

// Subtracts `bytes` from the bytes that the current phase expects, as the completion of an asynchronous copy does.
__device__ __forceinline__ void mbarrier_complete_tx(unsigned barrier, unsigned bytes) {
#if PTXKIT_SM >= 90
    asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
#else
    PTXKIT_UNSUPPORTED("mbarrier.complete_tx", "sm_90");
#endif
}

// Performs one arrival, asynchronously, when all earlier cp.async of this thread are complete. noinc: the arrival is
// one of those given to mbarrier.init; without it, the instruction would increment the pending count first.
__device__ __forceinline__ void cp_async_mbarrier_arrive_noinc(unsigned barrier) {
#if PTXKIT_SM >= 80
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" :: "r"(barrier) : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async.mbarrier.arrive", "sm_80");
#endif
}

// test_wait: returns whether a phase is complete, without waiting. The phase is that of a state that mbarrier_arrive
// has returned, or the current or the preceding phase, identified by its parity.

__device__ __forceinline__ bool mbarrier_test_wait(unsigned barrier, unsigned long long state) {
    unsigned ended = 0;
#if PTXKIT_SM >= 80
    asm volatile("{\n\t.reg .pred p;\n\tmbarrier.test_wait.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
                 : "=r"(ended) : "r"(barrier), "l"(state) : "memory");
#else
    PTXKIT_UNSUPPORTED("mbarrier.test_wait", "sm_80");
#endif
    return ended;
}

__device__ __forceinline__ bool mbarrier_test_wait_parity(unsigned barrier, unsigned parity) {
    unsigned ended = 0;
#if PTXKIT_SM >= 80
    asm volatile(
        "{\n\t.reg .pred p;\n\tmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(ended)
        : "r"(barrier), "r"(parity)
        : "memory");
#else
    PTXKIT_UNSUPPORTED("mbarrier.test_wait.parity", "sm_80");
#endif
    return ended;
}

// try_wait: the same, but the instruction may suspend the thread for a system-dependent time before it returns false.
__device__ __forceinline__ bool mbarrier_try_wait_parity(unsigned barrier, unsigned parity) {
    unsigned ended = 0;
#if PTXKIT_SM >= 90
    asm volatile(
        "{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(ended)
        : "r"(barrier), "r"(parity)
        : "memory");
#else
    PTXKIT_UNSUPPORTED("mbarrier.try_wait", "sm_90");
#endif
    return ended;
}

// The same with acquire at cluster scope: if it returns true, the writes of threads of other CTAs before their
// mbarrier_arrive_release_cluster are visible.
__device__ __forceinline__ bool mbarrier_try_wait_parity_acquire_cluster(unsigned barrier, unsigned parity) {
    unsigned ended = 0;
#if PTXKIT_SM >= 90
    asm volatile(
        "{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n\tselp.u32 %0, "
        "1, 0, p;\n\t}"
        : "=r"(ended)
        : "r"(barrier), "r"(parity)
        : "memory");
#else
    PTXKIT_UNSUPPORTED("mbarrier.try_wait", "sm_90");
#endif
    return ended;
}

// Waits until the phase with this parity is complete.
__device__ __forceinline__ void mbarrier_wait(unsigned barrier, unsigned parity) {
#if PTXKIT_SM >= 90
    while (!mbarrier_try_wait_parity(barrier, parity)) {
    }
#else
    while (!mbarrier_test_wait_parity(barrier, parity)) {
    }
#endif
}

// fence.proxy.async: orders memory accesses of this thread through the generic proxy (ld, st) with accesses through the
// async proxy (bulk copies, wgmma) to the same memory; all state spaces, or shared memory of the CTA only.

__device__ __forceinline__ void fence_proxy_async() {
#if PTXKIT_SM >= 90
    asm volatile("fence.proxy.async;" ::: "memory");
#else
    PTXKIT_UNSUPPORTED("fence.proxy.async", "sm_90");
#endif
}

__device__ __forceinline__ void fence_proxy_async_shared_cta() {
#if PTXKIT_SM >= 90
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#else
    PTXKIT_UNSUPPORTED("fence.proxy.async", "sm_90");
#endif
}

// Initializes the mbarriers of a ring of STAGES buffers: STAGES consecutive ones at address `full` with `full_arrivals`
// arrivals each, and STAGES at `empty` with `empty_arrivals`. One thread calls it; a barrier of all threads that use
// the mbarriers follows.
template <int STAGES>
__device__ __forceinline__ void init_ring(unsigned full, unsigned full_arrivals, unsigned empty,
                                          unsigned empty_arrivals) {
    for (int s = 0; s < STAGES; s++) {
        mbarrier_init(full + s * 8, full_arrivals);
        mbarrier_init(empty + s * 8, empty_arrivals);
    }
    fence_mbarrier_init_release_cluster();
}

// A position in a ring of STAGES buffers: the index of the buffer, and the parity of the phase to wait for, which flips
// each time the position returns to buffer 0.
template <int STAGES>
struct Ring {
    unsigned stage = 0, parity = 0;

    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
    __device__ __forceinline__ void advance(unsigned buffers) {
        parity ^= (stage + buffers) / STAGES % 2;
        stage = (stage + buffers) % STAGES;
    }
};

// The same in a ring of a number of buffers that is known at run time.
struct RingOf {
    const unsigned stages;
    unsigned stage = 0, parity = 0;

    __device__ __forceinline__ explicit RingOf(unsigned stages) : stages(stages) {}
    __device__ __forceinline__ void advance() {
        if (++stage == stages) {
            stage = 0;
            parity ^= 1;
        }
    }
};

}  // namespace ptxkit
