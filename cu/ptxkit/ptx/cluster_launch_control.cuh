// PTX ISA, "clusterlaunchcontrol": a CTA or a cluster that runs takes over the work of one that has not started, whose
// launch it cancels. A grid then has one CTA for each tile, and a CTA computes tile after tile as long as there are
// tiles left; the hardware balances the load.
#pragma once
#include "ptxkit/ptx/guard.cuh"

namespace ptxkit {

// Requests a cluster of this grid that has not started. The answer, 16 bytes, is written to shared memory
// asynchronously and performs complete-tx on the mbarrier. After an answer without a cluster no further request may be made.
__device__ __forceinline__ void clusterlaunchcontrol_try_cancel(unsigned response, unsigned barrier) {
#if PTXKIT_SM >= 100
    asm volatile("clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%0], [%1];"
                 :: "r"(response), "r"(barrier) : "memory");
#else
    PTXKIT_UNSUPPORTED("clusterlaunchcontrol.try_cancel", "sm_100");
#endif
}

// The same, with the answer at the same offset in every CTA of the cluster and the complete-tx on the mbarrier of each.
// One CTA of the cluster calls it.
__device__ __forceinline__ void clusterlaunchcontrol_try_cancel_multicast(unsigned response, unsigned barrier) {
#if PTXKIT_BLACKWELL
    asm volatile(
        "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.multicast::cluster::all.b128 "
        "[%0], [%1];"
        :: "r"(response), "r"(barrier) : "memory");
#else
    PTXKIT_UNSUPPORTED_EXCEPT("clusterlaunchcontrol.try_cancel.multicast::cluster::all", PTXKIT_BLACKWELL_TARGETS);
#endif
}

// Whether the answer at a shared address names a cluster, and blockIdx.x of its first CTA.
__device__ __forceinline__ bool clusterlaunchcontrol_query_cancel(unsigned response, unsigned& first_cta) {
#if PTXKIT_SM >= 100
    unsigned canceled;
    asm volatile(
        "{\n\t.reg .pred p;\n\t.reg .b128 answer;\n\t"
        "ld.shared.b128 answer, [%2];\n\t"
        "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p, answer;\n\t"
        "selp.u32 %0, 1, 0, p;\n\t"
        "mov.u32 %1, 0;\n\t"
        "@p clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %1, answer;\n\t}"
        : "=r"(canceled), "=r"(first_cta) : "r"(response) : "memory");
    return canceled;
#else
    PTXKIT_UNSUPPORTED("clusterlaunchcontrol.query_cancel", "sm_100");
    return false;
#endif
}

}  // namespace ptxkit
