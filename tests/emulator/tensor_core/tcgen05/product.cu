// D = A B^T: one CTA, 128 x 128 x 128, bf16 with f32 sums in tensor memory. Both tiles are K-major, swizzled by 128 bytes.
#include <cuda_bf16.h>

namespace {

constexpr int M = 128, N = 128, K = 128, WIDTH = 64;  // elements in a row of a swizzled tile

__device__ unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

// Tiles of 64 elements along K, one after the other; 16-byte chunks are swizzled.
__device__ void fill(unsigned char* tile, const __nv_bfloat16* matrix, int rows) {
    for (int i = threadIdx.x; i < rows * K / 8; i += blockDim.x) {
        int row = i / (K / 8), chunk = i % (K / 8);
        int at = chunk / 8 * rows * 128 + row * 128 + ((chunk % 8) ^ (row % 8)) * 16;
        *reinterpret_cast<uint4*>(tile + at) = reinterpret_cast<const uint4*>(matrix)[i];
    }
}

__device__ unsigned long long descriptor(unsigned address) {
    return (address & 0x3ffff) >> 4 | 1ull << 16 | (1024ull >> 4) << 32 | 1ull << 46 | 2ull << 61;
}

}  // namespace

extern "C" __global__ void product(const __nv_bfloat16* a, const __nv_bfloat16* b, float* d) {
    extern __shared__ __align__(1024) unsigned char tiles[];
    __shared__ unsigned tensor_memory;
    __shared__ __align__(8) unsigned long long barrier;
    unsigned char *tile_a = tiles, *tile_b = tiles + M * K * 2;
    fill(tile_a, a, M);
    fill(tile_b, b, N);
    if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&barrier)) : "memory");
    if (threadIdx.x < 32) {
        asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(
                         shared_address(&tensor_memory)), "r"(N) : "memory");
        asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    unsigned address = tensor_memory;
    if (threadIdx.x == 0) {
        unsigned instruction = 1u << 4 | 1u << 7 | 1u << 10 | (N / 8) << 17 | (M / 16) << 24;
        for (int k = 0; k < K; k += 16) {
            unsigned offset = k / WIDTH * M * 128 + k % WIDTH * 2;
            asm volatile(
                "{ .reg .pred p; setp.ne.u32 p, %4, 0; tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p; }" ::"r"(address),
                "l"(descriptor(shared_address(tile_a) + offset)), "l"(descriptor(shared_address(tile_b) + offset)),
                "r"(instruction), "r"(k) : "memory");
        }
        asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(
                         shared_address(&barrier)) : "memory");
    }
    asm volatile(
        "{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra again; }" ::"r"(
            shared_address(&barrier)) : "memory");
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
    unsigned lane = threadIdx.x / 32 * 32;
    for (int column = 0; column < N; column += 8) {
        float v[8];
        asm volatile("tcgen05.ld.sync.aligned.32x32b.x8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
                     : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]), "=f"(v[4]), "=f"(v[5]), "=f"(v[6]), "=f"(v[7])
                     : "r"(address + (lane << 16) + column));
        asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
        for (int i = 0; i < 8; i++) d[threadIdx.x * N + column + i] = v[i];
    }
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
    __syncthreads();
    if (threadIdx.x < 32) {
        asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(address), "r"(N));
    }
}
