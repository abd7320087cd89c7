// Limits of the target that is compiled for. ptxkit defines the macros for each compilation, from its table of hardware
// limits, ptxkit/targets/sm.py; for another compiler, define them on the command line.
#pragma once

#if !defined(PTXKIT_REGISTERS_PER_SM) || !defined(PTXKIT_SHARED_BYTES_PER_CTA) || \
    !defined(PTXKIT_TENSOR_MEMORY_COLUMNS) || !defined(PTXKIT_THREADS_PER_CTA) || !defined(PTXKIT_THREADS_PER_SM)
#error "compile with ptxkit, or define the PTXKIT_ macros of ptxkit/target.cuh"
#endif

namespace ptxkit {

// Enumerators, because NVRTC stores a constexpr variable in the image.
struct TargetLimits {
    enum : int {
        REGISTERS_PER_SM = PTXKIT_REGISTERS_PER_SM,            // of 32 bits
        SHARED_BYTES_PER_CTA = PTXKIT_SHARED_BYTES_PER_CTA,    // maximum, static and dynamic together
        TENSOR_MEMORY_COLUMNS = PTXKIT_TENSOR_MEMORY_COLUMNS,  // where the target has tensor memory
        THREADS_PER_CTA = PTXKIT_THREADS_PER_CTA,              // maximum
        THREADS_PER_SM = PTXKIT_THREADS_PER_SM,                // maximum, of all resident CTAs
    };
};

}  // namespace ptxkit
