// PTX ISA, "Data Movement and Conversion Instructions: Non-bulk copy": cp.async, its groups, and the waits for them.
#pragma once
#include "ptxkit/ptx/data_movement.cuh"

namespace ptxkit {

// cp.async: from global to shared memory, past the registers; it has arrived after a wait. cg goes past L1, too, 16
// bytes at a time.

__device__ __forceinline__ void cp_async_cg_shared_global(unsigned shared_address, const void* pointer) {
#if PTXKIT_SM >= 80
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address), "l"(cvta_to_global(pointer))
                 : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async", "sm_80");
#endif
}

// 16 bytes past L1, of which only the first `bytes` are read; the others become zero. With 0 the pointer is not read.
__device__ __forceinline__ void cp_async_cg_shared_global(unsigned shared_address, const void* pointer,
                                                          unsigned bytes) {
#if PTXKIT_SM >= 80
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(shared_address), "l"(cvta_to_global(pointer)), "r"(bytes) : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async", "sm_80");
#endif
}

// 4 bytes through L1, or zero where `bytes` is 0 and the pointer is not read.
__device__ __forceinline__ void cp_async_ca_shared_global_4(unsigned shared_address, const void* pointer,
                                                            unsigned bytes) {
#if PTXKIT_SM >= 80
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 :: "r"(shared_address), "l"(cvta_to_global(pointer)), "r"(bytes) : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async", "sm_80");
#endif
}

// What this thread has begun to copy since the last commit is a group. wait_group returns when all but the last PENDING
// are there.

__device__ __forceinline__ void cp_async_commit_group() {
#if PTXKIT_SM >= 80
    asm volatile("cp.async.commit_group;" ::: "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async", "sm_80");
#endif
}

template <int PENDING>
__device__ __forceinline__ void cp_async_wait_group() {
#if PTXKIT_SM >= 80
    asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async", "sm_80");
#endif
}

// Until everything that this thread has begun to copy is there; other threads see it after a barrier.
__device__ __forceinline__ void cp_async_wait_all() {
#if PTXKIT_SM >= 80
    asm volatile("cp.async.wait_all;" ::: "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async", "sm_80");
#endif
}

}  // namespace ptxkit
