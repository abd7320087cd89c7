// The builder kernel for CUTLASS 2.x. Launched as <<<1, 1>>>, it computes on the device what device::GemmUniversal
// computes on the host: the parameters and the launch configuration of `Kernel`, the type of the kernel to be launched.
#pragma once
#include "ptxkit/cutlass/params.cuh"

extern "C" __global__ void ptxkit_build(ptxkit::cutlass::Problem problem, Kernel::Params* out,
                                        ptxkit::cutlass::Answer* answer) {
    using Compute = typename Kernel::EpilogueOutputOp::ElementCompute;
    auto mode =
        problem.batches > 1 ? cutlass::gemm::GemmUniversalMode::kBatched : cutlass::gemm::GemmUniversalMode::kGemm;
    cutlass::gemm::GemmCoord size(problem.m, problem.n, problem.k);
    typename Kernel::EpilogueOutputOp::Params epilogue(static_cast<Compute>(problem.alpha),
                                                       static_cast<Compute>(problem.beta));
    typename Kernel::Arguments arguments(mode, size, problem.batches, epilogue, problem.a, problem.b, problem.c,
                                         problem.d, problem.batch_a, problem.batch_b, problem.batch_c, problem.batch_d,
                                         problem.lda, problem.ldb, problem.ldc, problem.ldd);
    // The last argument is the occupancy, which only stream-K reads; -1: unknown.
    typename Kernel::Params params(arguments, problem.multiprocessors, -1);
    params.semaphore = static_cast<int*>(problem.workspace);
    *out = params;
    dim3 grid = params.get_grid_dims();
    answer->grid[0] = grid.x;
    answer->grid[1] = grid.y;
    answer->grid[2] = grid.z;
    answer->block[0] = Kernel::kThreadCount;
    answer->block[1] = answer->block[2] = 1;
    answer->params_bytes = sizeof(params);
    answer->workspace_bytes = params.get_workspace_size();
    answer->clear_bytes = 0;
    answer->shared_bytes = sizeof(typename Kernel::SharedStorage);
    answer->possible = Kernel::can_implement(size) == cutlass::Status::kSuccess;
}

// Facts that the host reads from the cubin, without a GPU: size of Params in bytes, shared memory in bytes, threads of
// a CTA, alignment of Params in bytes, cluster dimensions.
extern "C" __device__ const unsigned ptxkit_facts[7] = {
    sizeof(Kernel::Params), sizeof(Kernel::SharedStorage), Kernel::kThreadCount, alignof(Kernel::Params), 1, 1, 1,
};
