// d (256 x 128, f32) = a (256 x DEPTH) b^T (128 x DEPTH), bf16, by a pair of CTAs. Rows of a go through registers to the tensor memory
// of both CTAs, b through shared memory, and all threads of both arrive at mbarriers of the first. Tests change lines that end with a
// name in brackets.
#include "ptxkit/ptx/cluster.cuh"
#include "ptxkit/ptx/data_movement.cuh"
#include "ptxkit/ptx/mbarrier.cuh"
#include "ptxkit/ptx/special_registers.cuh"
#include "ptxkit/ptx/synchronization.cuh"
#include "ptxkit/ptx/tcgen05.cuh"

using namespace ptxkit;

constexpr int N = 128, STEPS = 5, DEPTH = 64 * STEPS, TILE = 64 * 128;

__device__ void meet() { asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory"); }

__device__ unsigned of_first(void* p) {
    unsigned address;
    asm("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(address) : "r"(cvta_to_shared(p)));
    return address;
}

__device__ void store(unsigned to, const unsigned* v) {
    asm volatile("tcgen05.st.sync.aligned.32x32b.x8.b32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8};" ::"r"(to), "r"(v[0]), "r"(v[1]),
                 "r"(v[2]), "r"(v[3]), "r"(v[4]), "r"(v[5]), "r"(v[6]), "r"(v[7]) : "memory");
}

__device__ void multiply(unsigned d, unsigned a, unsigned long long b, bool accumulate) {
    const unsigned instruction = 1u << 4 | 1u << 7 | 1u << 10 | (N / 8) << 17 | (256 / 16) << 24;
    asm volatile("{.reg .pred p; setp.ne.b32 p, %4, 0; tcgen05.mma.cta_group::2.kind::f16 [%0], [%1], %2, %3, p;}" ::"r"(d), "r"(a),
                 "l"(b), "r"(instruction), "r"(static_cast<int>(accumulate)) : "memory");
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(160)
pair_of_registers(const unsigned* a, const uint4* b, float* d) {
    extern __shared__ __align__(1024) unsigned char tiles[];
    __shared__ unsigned long long full[2], empty[2], done;
    __shared__ unsigned where;
    const unsigned warp = threadIdx.x / 32, rank = cluster_ctarank();
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            mbarrier_init(cvta_to_shared(&full[i]), 256);
            mbarrier_init(cvta_to_shared(&empty[i]), 1);
        }
        mbarrier_init(cvta_to_shared(&done), 1);
        fence_mbarrier_init_release_cluster();
    }
    if (warp == 4) tcgen05_alloc<2>(cvta_to_shared(&where), 256);
    __syncthreads();
    meet();  // [FIRST]
    const unsigned sums = where, rows = sums + N;
    if (warp < 4) {
        for (int t = 0; t < STEPS; t++) {
            const int s = t % 2;
            if (t >= 2) mbarrier_wait(cvta_to_shared(&empty[s]), t / 2 - 1 & 1);
            tcgen05_fence_after_thread_sync();  // [AFTER]
            const unsigned* row = a + (rank * 128 + threadIdx.x) * (DEPTH / 2) + t * 32;
            for (int c = 0; c < 32; c += 8) store(rows + s * 32 + c + (warp * 32 << 16), row + c);
            asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory");  // [STORED]
            for (int i = threadIdx.x; i < 64 * 8; i += 128)
                *reinterpret_cast<uint4*>(tiles + s * TILE + i / 8 * 128 + ((i % 8) ^ (i / 8 % 8)) * 16) =
                    b[(rank * 64 + i / 8) * (DEPTH / 8) + t * 8 + i % 8];
            fence_proxy_async_shared_cta();
            tcgen05_fence_before_thread_sync();  // [BEFORE]
            mbarrier_arrive_release_cluster(of_first(&full[s]));  // [ARRIVE]
        }
    } else if (threadIdx.x == 128 && rank == 0) {
        for (int t = 0; t < STEPS; t++) {
            const int s = t % 2;
            while (!mbarrier_try_wait_parity_acquire_cluster(cvta_to_shared(&full[s]), t / 2 & 1)) continue;  // [WAIT]
            tcgen05_fence_after_thread_sync();
            unsigned left = rows + s * 32;
            // [OPERAND]
            for (int k = 0; k < 4; k++)
                multiply(sums, left + k * 8, tcgen05_descriptor_128B(cvta_to_shared(tiles + s * TILE)) + 2 * k, t + k > 0);
            tcgen05_commit_cta_group_2_multicast(cvta_to_shared(&empty[s]), 3);
        }
        tcgen05_commit_cta_group_2_multicast(cvta_to_shared(&done), 3);
    }
    __syncwarp();
    if (warp < 4) {
        mbarrier_wait(cvta_to_shared(&done), 0);  // [DONE]
        tcgen05_fence_after_thread_sync();
        for (int c = 0; c < N; c += 32) {
            float v[32];
            tcgen05_ld_32x32b_x32(v, sums + (warp * 32 << 16) + c);
            tcgen05_wait_ld(v);
            for (int i = 0; i < 32; i++) d[(rank * 128 + threadIdx.x) * N + c + i] = v[i];
        }
        tcgen05_fence_before_thread_sync();
    }
    meet();
    if (warp == 4) tcgen05_dealloc<2>(sums, 256);  // [FREE]
}
