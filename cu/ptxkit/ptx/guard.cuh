// Guards for instructions that not all targets have, so that a source compiles for every target. If a kernel executes
// an instruction that its target lacks, an assertion fails, whose text names the instruction and the required targets.
//
// A guarded wrapper has two branches, and the second one is never empty:
//
//     #if PTXKIT_SM >= 90
//         asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
//     #else
//         PTXKIT_UNSUPPORTED("barrier.cluster.arrive", "sm_90");
//     #endif
#pragma once

// The number of the target: 90 for sm_90 and sm_90a, 0 in host code.
#ifdef __CUDA_ARCH__
#define PTXKIT_SM (__CUDA_ARCH__ / 10)
#else
#define PTXKIT_SM 0
#endif

// PTXKIT_SM90A: the target is sm_90a. PTXKIT_SM100F: the target is sm_100f, sm_100a or another one of this family.
// PTXKIT_SM110F and PTXKIT_SM120F: the same for sm_110f (with sm_101, its earlier name) and sm_120f.
// Architecture-specific ("a") instructions exist on one architecture only, family-specific ("f") ones on the later
// architectures of the same family as well. CUDA C++ Programming Guide, "Feature Set Compiler Targets".
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define PTXKIT_SM90A 1
#else
#define PTXKIT_SM90A 0
#endif
#if defined(__CUDA_ARCH_FEAT_SM100_ALL) || defined(__CUDA_ARCH_FEAT_SM103_ALL) || \
    (defined(__CUDA_ARCH_FAMILY_SPECIFIC__) && __CUDA_ARCH_FAMILY_SPECIFIC__ / 100 == 10 && \
     __CUDA_ARCH_FAMILY_SPECIFIC__ / 10 != 101)
#define PTXKIT_SM100F 1
#else
#define PTXKIT_SM100F 0
#endif
#if defined(__CUDA_ARCH_FEAT_SM101_ALL) || defined(__CUDA_ARCH_FEAT_SM110_ALL) || \
    (defined(__CUDA_ARCH_FAMILY_SPECIFIC__) &&                                      \
     (__CUDA_ARCH_FAMILY_SPECIFIC__ / 10 == 101 || __CUDA_ARCH_FAMILY_SPECIFIC__ / 10 == 110))
#define PTXKIT_SM110F 1
#else
#define PTXKIT_SM110F 0
#endif
#if defined(__CUDA_ARCH_FEAT_SM120_ALL) || defined(__CUDA_ARCH_FEAT_SM121_ALL) || \
    (defined(__CUDA_ARCH_FAMILY_SPECIFIC__) && __CUDA_ARCH_FAMILY_SPECIFIC__ / 100 == 12)
#define PTXKIT_SM120F 1
#else
#define PTXKIT_SM120F 0
#endif

// The targets of these conditions in words, and of unions of them. They are those of ptxkit/targets.
#define PTXKIT_SM100F_TARGETS "sm_100a, sm_103a or sm_107a, or an f form of these"
#define PTXKIT_SM120F_TARGETS "sm_120a or sm_121a, or an f form of these"
#define PTXKIT_TCGEN05 (PTXKIT_SM100F || PTXKIT_SM110F)
#define PTXKIT_TCGEN05_TARGETS "sm_100a, sm_103a, sm_107a or sm_110a, or an f form of these"
#define PTXKIT_BLACKWELL (PTXKIT_SM100F || PTXKIT_SM110F || PTXKIT_SM120F)
#define PTXKIT_BLACKWELL_TARGETS "sm_100a, sm_103a, sm_107a, sm_110a, sm_120a or sm_121a, or an f form of these"

namespace ptxkit {

// Fails as an assertion does: the thread that fails gives its message before the trap, whichever thread is the first.
__device__ __forceinline__ void unsupported(const char* message, const char* file, unsigned line) {
    __assertfail(message, file, line, "ptxkit::unsupported", 1);
}

}  // namespace ptxkit

// For an instruction that `target` and all newer targets have; both are string literals.
#define PTXKIT_UNSUPPORTED(instruction, target) PTXKIT_UNSUPPORTED_EXCEPT(instruction, target " or newer")
// For an instruction that only `targets` have.
#define PTXKIT_UNSUPPORTED_EXCEPT(instruction, targets) \
    ::ptxkit::unsupported(instruction " needs " targets, __FILE__, __LINE__)
