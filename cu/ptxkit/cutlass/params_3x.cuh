// The builder kernel for CUTLASS 3.x. Launched as <<<1, 1>>>, it computes on the device what
// device::GemmUniversalAdapter computes on the host: the parameters and the launch configuration of `Kernel`, the type
// of the kernel to be launched. In place of each tensor map, the parameters contain a TensorMapNote
// (tensor_map_note.cuh), which the host encodes.
#pragma once
#include "ptxkit/cutlass/params.cuh"

namespace ptxkit::cutlass {

// A CuTe stride of (row, column, matrix). One of the first two modes is the constant 1; the other one is set to the
// leading dimension, and the third to the distance between the matrices of a batch.
template <class Stride>
__device__ Stride stride(long long leading, long long batch) {
    Stride made{};
    if constexpr (!cute::is_static<cute::remove_cvref_t<decltype(cute::get<0>(made))>>::value) {
        cute::get<0>(made) = leading;
    }
    if constexpr (!cute::is_static<cute::remove_cvref_t<decltype(cute::get<1>(made))>>::value) {
        cute::get<1>(made) = leading;
    }
    if constexpr (!cute::is_static<cute::remove_cvref_t<decltype(cute::get<2>(made))>>::value) {
        cute::get<2>(made) = batch;
    }
    return made;
}

// The sizes of a static CuTe shape of three modes.
template <class Shape>
__device__ dim3 as_dim3(Shape) {
    return dim3(cute::size<0>(Shape{}), cute::size<1>(Shape{}), cute::size<2>(Shape{}));
}

// Size in bytes of the barriers at the end of a stream-K workspace. The kernel does not reset them when it ends, so
// that they must be cleared before each launch. 0 for other tile schedulers.
template <class K>
__device__ unsigned long long barrier_bytes(typename K::Arguments const& arguments) {
    if constexpr (cute::is_same_v<typename K::TileSchedulerTag, ::cutlass::gemm::StreamKScheduler> &&
                  K::ArchTag::kMinComputeCapability >= 100) {
        auto bytes = [&](unsigned barriers) {
            return K::TileScheduler::template get_workspace_size<typename K::ProblemShape,
                                                                 typename K::ElementAccumulator>(
                arguments.scheduler, arguments.problem_shape, arguments.hw_info, barriers, K::NumEpilogueSubTiles,
                K::CollectiveEpilogue::NumAccumulatorMtxs);
        };
        return bytes(K::NumFixupBarriers) - bytes(0);
    } else if constexpr (cute::is_same_v<typename K::TileSchedulerTag, ::cutlass::gemm::StreamKScheduler>) {
        auto bytes = [&](unsigned warpgroups) {
            return K::TileScheduler::template get_workspace_size<typename K::ProblemShape,
                                                                 typename K::ElementAccumulator>(
                arguments.scheduler, arguments.problem_shape, arguments.hw_info, warpgroups,
                K::CollectiveEpilogue::get_store_pipe_increment(typename K::TileShape{}));
        };
        return bytes(K::NumMmaWarpGroups) - bytes(0);  // the barriers are the part that depends on the warpgroups
    }
    return 0;
}

template <class Mainloop, class = void>
constexpr bool is_block_scaled = false;
template <class Mainloop>
constexpr bool is_block_scaled<Mainloop, cute::void_t<typename Mainloop::Sm1xxBlkScaledConfig>> = true;

// Sets the scale factors of block-scaled kernels, in the layout that CUTLASS defines for the sizes of the problem.
template <class Mainloop, class Arguments>
__device__ void set_scales(Arguments& main, Problem const& problem) {
    if constexpr (is_block_scaled<Mainloop>) {
        using Config = typename Mainloop::Sm1xxBlkScaledConfig;
        auto sizes = cute::make_shape(problem.m, problem.n, problem.k, problem.batches);
        main.ptr_SFA = static_cast<decltype(main.ptr_SFA)>(problem.a_scales);
        main.ptr_SFB = static_cast<decltype(main.ptr_SFB)>(problem.b_scales);
        main.layout_SFA = Config::tile_atom_to_shape_SFA(sizes);
        main.layout_SFB = Config::tile_atom_to_shape_SFB(sizes);
    }
}

}  // namespace ptxkit::cutlass

extern "C" __global__ void ptxkit_build(ptxkit::cutlass::Problem problem, Kernel::Params* out,
                                        ptxkit::cutlass::Answer* answer) {
    typename Kernel::Arguments arguments{};
    arguments.mode =
        problem.batches > 1 ? cutlass::gemm::GemmUniversalMode::kBatched : cutlass::gemm::GemmUniversalMode::kGemm;
    arguments.problem_shape = {problem.m, problem.n, problem.k, problem.batches};
    auto& main = arguments.mainloop;
    main.ptr_A = static_cast<decltype(main.ptr_A)>(problem.a);
    main.dA = ptxkit::cutlass::stride<typename Kernel::StrideA>(problem.lda, problem.batch_a);
    main.ptr_B = static_cast<decltype(main.ptr_B)>(problem.b);
    main.dB = ptxkit::cutlass::stride<typename Kernel::StrideB>(problem.ldb, problem.batch_b);
    ptxkit::cutlass::set_scales<typename Kernel::CollectiveMainloop>(main, problem);
    auto& epilogue = arguments.epilogue;
    epilogue.thread.alpha = static_cast<decltype(epilogue.thread.alpha)>(problem.alpha);
    epilogue.thread.beta = static_cast<decltype(epilogue.thread.beta)>(problem.beta);
    epilogue.ptr_C = static_cast<decltype(epilogue.ptr_C)>(problem.c);
    epilogue.dC = ptxkit::cutlass::stride<typename Kernel::StrideC>(problem.ldc, problem.batch_c);
    epilogue.ptr_D = static_cast<decltype(epilogue.ptr_D)>(problem.d);
    epilogue.dD = ptxkit::cutlass::stride<typename Kernel::StrideD>(problem.ldd, problem.batch_d);
    dim3 cluster = ptxkit::cutlass::as_dim3(typename Kernel::ClusterShape{});
    arguments.hw_info.sm_count = problem.multiprocessors;
    arguments.hw_info.max_active_clusters = problem.clusters;
    arguments.hw_info.cluster_shape = arguments.hw_info.cluster_shape_fallback = cluster;
    answer->possible = Kernel::can_implement(arguments);
    auto params = Kernel::to_underlying_arguments(arguments, problem.workspace);
    *out = params;
    dim3 grid = Kernel::get_grid_shape(params), block = Kernel::get_block_shape();
    answer->grid[0] = grid.x;
    answer->grid[1] = grid.y;
    answer->grid[2] = grid.z;
    answer->block[0] = block.x;
    answer->block[1] = block.y;
    answer->block[2] = block.z;
    answer->params_bytes = sizeof(params);
    answer->workspace_bytes = Kernel::get_workspace_size(arguments);
    answer->clear_bytes = ptxkit::cutlass::barrier_bytes<Kernel>(arguments);
    answer->shared_bytes = Kernel::SharedStorageSize;
}

// Facts that the host reads from the cubin, without a GPU: size of Params in bytes, shared memory in bytes, threads of
// a CTA, alignment of Params in bytes, cluster dimensions.
extern "C" __device__ const unsigned ptxkit_facts[7] = {
    sizeof(Kernel::Params),
    unsigned(Kernel::SharedStorageSize),
    Kernel::MaxThreadsPerBlock,
    alignof(Kernel::Params),
    unsigned(cute::size<0>(typename Kernel::ClusterShape{})),
    unsigned(cute::size<1>(typename Kernel::ClusterShape{})),
    unsigned(cute::size<2>(typename Kernel::ClusterShape{})),
};
