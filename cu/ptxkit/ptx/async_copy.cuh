// cp.async, cp.async.commit_group, cp.async.wait_group, cp.async.wait_all. PTX ISA, "Data Movement and Conversion
// Instructions: Asynchronous copy: Non-bulk copy". Target: sm_80 or newer.
//
// cp.async copies 4, 8 or 16 bytes from global to shared memory without passing through registers. It is asynchronous:
// the thread that issued the copy may read the destination after cp.async.wait_group or cp.async.wait_all, and other
// threads after a barrier that follows the wait.
//
// Operands: shared_address is the destination, a byte address in the shared window (cvta_to_shared); pointer is a
// generic address in global memory. Both are aligned to the size of the copy.
#pragma once
#include "ptxkit/ptx/data_movement.cuh"

namespace ptxkit {

// cp.async.cg: copies 16 bytes, caching them in L2 only.
__device__ __forceinline__ void cp_async_cg_shared_global(unsigned shared_address, const void* pointer) {
#if PTXKIT_SM >= 80
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address), "l"(cvta_to_global(pointer))
                 : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async", "sm_80");
#endif
}

// cp.async.cg with a source size: copies the first `bytes` (0 to 16) of 16 bytes and fills the rest with zeros. With
// bytes = 0, global memory is not accessed.
__device__ __forceinline__ void cp_async_cg_shared_global(unsigned shared_address, const void* pointer,
                                                          unsigned bytes) {
#if PTXKIT_SM >= 80
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(shared_address), "l"(cvta_to_global(pointer)), "r"(bytes) : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async", "sm_80");
#endif
}

// The same with the hint that L2 may load all of the 128 bytes that contain the source from device memory.
__device__ __forceinline__ void cp_async_cg_shared_global_L2_128B(unsigned shared_address, const void* pointer,
                                                                  unsigned bytes) {
#if PTXKIT_SM >= 80
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 :: "r"(shared_address), "l"(cvta_to_global(pointer)), "r"(bytes) : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async", "sm_80");
#endif
}

__device__ __forceinline__ void cp_async_cg_shared_global_L2_128B(unsigned shared_address, const void* pointer) {
#if PTXKIT_SM >= 80
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;"
                 :: "r"(shared_address), "l"(cvta_to_global(pointer)) : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async", "sm_80");
#endif
}

// cp.async.ca: copies 4 or 8 bytes, caching them in L1 and L2.
__device__ __forceinline__ void cp_async_ca_shared_global_4(unsigned shared_address, const void* pointer) {
#if PTXKIT_SM >= 80
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address), "l"(cvta_to_global(pointer))
                 : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async", "sm_80");
#endif
}

__device__ __forceinline__ void cp_async_ca_shared_global_8(unsigned shared_address, const void* pointer) {
#if PTXKIT_SM >= 80
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared_address), "l"(cvta_to_global(pointer))
                 : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async", "sm_80");
#endif
}

// The same with a source size: `bytes` is the size of the copy, or 0 to write zeros without accessing global memory.
__device__ __forceinline__ void cp_async_ca_shared_global_4(unsigned shared_address, const void* pointer,
                                                            unsigned bytes) {
#if PTXKIT_SM >= 80
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 :: "r"(shared_address), "l"(cvta_to_global(pointer)), "r"(bytes) : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async", "sm_80");
#endif
}

__device__ __forceinline__ void cp_async_ca_shared_global_8(unsigned shared_address, const void* pointer,
                                                            unsigned bytes) {
#if PTXKIT_SM >= 80
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
                 :: "r"(shared_address), "l"(cvta_to_global(pointer)), "r"(bytes) : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async", "sm_80");
#endif
}

// Combines the cp.async of this thread since its last commit into a group, which may be empty.
__device__ __forceinline__ void cp_async_commit_group() {
#if PTXKIT_SM >= 80
    asm volatile("cp.async.commit_group;" ::: "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async", "sm_80");
#endif
}

// Waits until at most the PENDING most recent groups of this thread are incomplete.
template <int PENDING>
__device__ __forceinline__ void cp_async_wait_group() {
#if PTXKIT_SM >= 80
    asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async", "sm_80");
#endif
}

// Waits until all cp.async of this thread are complete.
__device__ __forceinline__ void cp_async_wait_all() {
#if PTXKIT_SM >= 80
    asm volatile("cp.async.wait_all;" ::: "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async", "sm_80");
#endif
}

}  // namespace ptxkit
