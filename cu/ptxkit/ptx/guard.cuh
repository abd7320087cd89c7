// What a kernel does when it was compiled for a target that lacks an instruction: it says so and traps.
//
// A guarded function has two branches, and the second is never empty:
//
//     #if PTXKIT_SM >= 90
//         asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
//     #else
//         PTXKIT_UNSUPPORTED("barrier.cluster.arrive", "sm_90");
//     #endif
#pragma once

#ifdef __CUDA_ARCH__
#define PTXKIT_SM (__CUDA_ARCH__ / 10)  // 90 for sm_90, sm_90a
#else
#define PTXKIT_SM 0
#endif

// Instructions of the "a" targets exist for one architecture only, those of the "f" targets for its family.
// CUDA C++ Programming Guide, "Feature Set Compiler Targets".
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define PTXKIT_SM90A 1
#else
#define PTXKIT_SM90A 0
#endif
#if defined(__CUDA_ARCH_FEAT_SM100_ALL) || defined(__CUDA_ARCH_FEAT_SM103_ALL) || \
    (defined(__CUDA_ARCH_FAMILY_SPECIFIC__) && __CUDA_ARCH_FAMILY_SPECIFIC__ / 100 == 10)
#define PTXKIT_SM100F 1
#else
#define PTXKIT_SM100F 0
#endif

namespace ptxkit {

// One thread of a CTA prints; all trap, so the launch fails instead of leaving garbage.
__device__ __noinline__ inline void unsupported(const char* instruction, const char* target) {
    if (threadIdx.x + threadIdx.y + threadIdx.z == 0) {
        printf("%s needs %s or later; this kernel was compiled for sm_%d\n", instruction, target, PTXKIT_SM);
    }
    asm volatile("trap;");
}

}  // namespace ptxkit

#define PTXKIT_UNSUPPORTED(instruction, target) ::ptxkit::unsupported(instruction, target)
