// Products of mxf8 operands by one CTA, which its threads copy to shared memory. Warps 0 to 3 copy tile t + 1 and store the sums of
// tile t; a thread of warp 4 multiplies. Tests change lines that end with a name in brackets.
#include "ptxkit/ptx/data_movement.cuh"
#include "ptxkit/ptx/mbarrier.cuh"
#include "ptxkit/ptx/synchronization.cuh"
#include "ptxkit/ptx/tcgen05.cuh"

using namespace ptxkit;

constexpr int M = 128, N = 64, TILES = 4;

struct __align__(1024) Stage {
    unsigned char a[M * 128], b[N * 128], a_scales[512], b_scales[512];
};

__device__ void copy(unsigned char* tile, const uint4* from, int rows) {
    for (int i = threadIdx.x; i < rows * 8; i += 128)
        *reinterpret_cast<uint4*>(tile + i / 8 * 128 + ((i % 8) ^ (i / 8 % 8)) * 16) = from[i];
}

extern "C" __global__ void __launch_bounds__(160)
scaled_ring(const uint4* a, const uint4* b, const uint4* a_scales, const uint4* b_scales, float* d) {
    extern __shared__ __align__(1024) unsigned char memory[];
    Stage* stages = reinterpret_cast<Stage*>(memory);
    __shared__ unsigned long long full[2], empty[2], sums_full[2], sums_empty[2];
    __shared__ unsigned where;
    const unsigned warp = threadIdx.x / 32;
    if (warp == 4) tcgen05_alloc<1>(cvta_to_shared(&where), 256);
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            mbarrier_init(cvta_to_shared(&full[i]), 128);
            mbarrier_init(cvta_to_shared(&empty[i]), 1);
            mbarrier_init(cvta_to_shared(&sums_full[i]), 1);
            mbarrier_init(cvta_to_shared(&sums_empty[i]), 4);
        }
        fence_mbarrier_init_release_cluster();
    }
    __syncthreads();
    const unsigned sums = where, scales = sums + 2 * N;
    if (warp < 4) {
        for (int t = 0; t <= TILES; t++) {
            const int s = t % 2, u = t - 1;
            if (t < TILES) {
                if (t >= 2) mbarrier_wait(cvta_to_shared(&empty[s]), t / 2 - 1 & 1);
                copy(stages[s].a, a + t * M * 8, M);
                copy(stages[s].b, b + t * N * 8, N);
                if (warp == 0) reinterpret_cast<uint4*>(stages[s].a_scales)[threadIdx.x] = a_scales[t * 32 + threadIdx.x];
                if (warp == 1) reinterpret_cast<uint4*>(stages[s].b_scales)[threadIdx.x - 32] = b_scales[t * 32 + threadIdx.x - 32];
                fence_proxy_async_shared_cta();  // [PROXY]
                mbarrier_arrive(cvta_to_shared(&full[s]));  // [FULL]
                // [EARLY]
            }
            if (t == 0) continue;
            mbarrier_wait(cvta_to_shared(&sums_full[u % 2]), u / 2 & 1);  // [DONE]
            tcgen05_fence_after_thread_sync();  // [AFTER]
            for (int c = 0; c < N; c += 32) {
                float v[32];
                unsigned column = u % 2 * N + c;
                // [COLUMN]
                tcgen05_ld_32x32b_x32(v, sums + (warp * 32 << 16) + column);
                tcgen05_wait_ld(v);  // [LOADED]
                for (int i = 0; i < 32; i++) d[(u * M + threadIdx.x) * N + c + i] = v[i];
            }
            tcgen05_fence_before_thread_sync();  // [BEFORE]
            __syncwarp();
            if (threadIdx.x % 32 == 0) mbarrier_arrive(cvta_to_shared(&sums_empty[u % 2]));
        }
    } else if (threadIdx.x == 128) {
        for (int t = 0; t < TILES; t++) {
            const int s = t % 2;
            mbarrier_wait(cvta_to_shared(&full[s]), t / 2 & 1);  // [READY]
            if (t >= 2) mbarrier_wait(cvta_to_shared(&sums_empty[s]), t / 2 - 1 & 1);
            tcgen05_fence_after_thread_sync();
            const unsigned to = scales + 8 * s;
            tcgen05_cp_32x128b_warpx4<1>(to, tcgen05_descriptor_rows_of_16_bytes(cvta_to_shared(stages[s].a_scales)));
            tcgen05_cp_32x128b_warpx4<1>(to + 4, tcgen05_descriptor_rows_of_16_bytes(cvta_to_shared(stages[s].b_scales)));
            unsigned instruction = tcgen05_instruction_block_scaled(0, true, M, N);
            // [INSTRUCTION]
            for (int k = 0; k < 4; k++) {
                unsigned long long left = tcgen05_descriptor_128B(cvta_to_shared(stages[s].a)) + 2 * k;
                unsigned long long right = tcgen05_descriptor_128B(cvta_to_shared(stages[s].b)) + 2 * k;
                // [DESCRIPTOR]
                tcgen05_mma_kind_mxf8f6f4<1>(sums + s * N, left, right, tcgen05_scale_factor_byte(instruction, k), to, to + 4, k > 0);
            }
            tcgen05_commit(cvta_to_shared(&empty[s]));
            tcgen05_commit(cvta_to_shared(&sums_full[s]));  // [COMMIT]
        }
    }
    __syncwarp();
    __syncthreads();  // [LAST]
    if (warp == 4) tcgen05_dealloc<1>(sums, 256);  // [FREE]
    // [AGAIN]
}
