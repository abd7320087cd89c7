// The bf16 rate of the tensor cores when nothing else limits it: two warpgroups of a CTA repeat wgmma on tiles that
// stay in shared memory. `ptxkit bench` measures the roof with this kernel; it is not listed as a kernel of its own.
#include "ptxkit/ptx/data_movement.cuh"
#include "ptxkit/ptx/mbarrier.cuh"
#include "ptxkit/ptx/synchronization.cuh"
#include "ptxkit/ptx/wgmma.cuh"

using namespace ptxkit;

constexpr int TILE_A = 64 * 64 * 2, TILE_B = 256 * 64 * 2, THREADS = 256;

// A round is four wgmma of 64 x 256 x 16 per warpgroup. data: TILE_A + TILE_B bytes of bf16. sums: one number per
// thread, so that nothing is optimized away.
extern "C" __global__ void __launch_bounds__(THREADS, 1) tensor_peak(const uint4* data, float* sums, int rounds) {
    extern __shared__ __align__(1024) uint4 tiles[];
    for (int i = threadIdx.x; i < (TILE_A + TILE_B) / 16; i += THREADS) tiles[i] = data[i];
    fence_proxy_async_shared_cta();
    barrier_sync();
    const unsigned a = cvta_to_shared(tiles), b = a + TILE_A;
    float d[128] = {};
    wgmma_fence();
    for (int round = 0; round < rounds; ++round) {
#pragma unroll
        for (int k = 0; k < 4; ++k)
            wgmma_bf16(d, matrix_descriptor_128B(a + k * 32), matrix_descriptor_128B(b + k * 32), true);
        wgmma_commit_group();
        wgmma_wait_group<1>();
    }
    wgmma_wait_group<0>();
    warpgroup_fence_operand(d);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 128; ++i) sum += d[i];
    sums[blockIdx.x * THREADS + threadIdx.x] = sum;
}
