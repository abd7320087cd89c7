// Small kernels, each of which shows one thing that the inspector must see.
#include <cuda_fp16.h>

// A loop with 32-bit accesses to neighbouring addresses, unrolled by four.
extern "C" __global__ void narrow(const float* x, float* y, int n) {
    for (int i = 4 * threadIdx.x; i < n; i += 4 * blockDim.x) {
#pragma unroll
        for (int k = 0; k < 4; k++) y[i + k] = x[i + k] * 2.0f;
    }
}

// The same in one 128-bit access.
extern "C" __global__ void wide(const float4* x, float4* y, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        float4 v = x[i];
        v.x *= 2.0f, v.y *= 2.0f, v.z *= 2.0f, v.w *= 2.0f;
        y[i] = v;
    }
}

// An array with a runtime index lives in local memory.
extern "C" __global__ void local(const int* index, float* y, int n) {
    float table[32];
    for (int i = 0; i < 32; i++) table[i] = i * y[i];
    for (int i = 0; i < n; i++) table[index[i] & 31] += 1.0f;
    y[threadIdx.x] = table[index[threadIdx.x] & 31];
}

// More live values than 32 registers hold.
extern "C" __global__ void __launch_bounds__(1024, 2) spilling(const float* x, float* y, int n) {
    float v[48];
#pragma unroll
    for (int k = 0; k < 48; k++) v[k] = x[threadIdx.x + 1024 * k];
    for (int i = 0; i < n; i++) {
#pragma unroll
        for (int k = 0; k < 48; k++) v[k] = v[k] * v[(k + 7) % 48] + v[(k + 13) % 48];
    }
#pragma unroll
    for (int k = 0; k < 48; k++) y[threadIdx.x + 1024 * k] = v[k];
}

// A loop in a loop, a barrier, shared memory, a special function.
extern "C" __global__ void __launch_bounds__(256) nested(const float* x, float* y, int n, int m) {
    __shared__ float tile[256];
    float sum = 0;
#pragma unroll 1
    for (int i = 0; i < n; i++) {
        tile[threadIdx.x] = x[i * 256 + threadIdx.x];
        __syncthreads();
#pragma unroll 1
        for (int j = 0; j < m; j++) sum += __expf(tile[(threadIdx.x + j) & 255]);
        __syncthreads();
    }
    y[threadIdx.x] = sum;
}

// A barrier that some threads of a CTA do not reach together.
extern "C" __global__ void divergent(float* y, int n) {
    __shared__ float tile[1024];
    tile[threadIdx.x] = y[threadIdx.x];
    if (threadIdx.x % 3 == 0) {
        asm volatile("barrier.sync 1, 64;" ::: "memory");
        y[threadIdx.x] = tile[threadIdx.x ^ 1];
    }
}

__device__ __noinline__ float helper(float a, int n) {
    for (int i = 0; i < n; i++) a = a * a + 1.0f;
    return a;
}

extern "C" __global__ void calling(float* y, int n) { y[threadIdx.x] = helper(y[threadIdx.x], n); }

#if __CUDA_ARCH__ >= 800
// One warp, one mma.sync: HMMA.
extern "C" __global__ void hmma(const unsigned* a, const unsigned* b, float* c) {
    unsigned t = threadIdx.x;
    float d0 = 0, d1 = 0, d2 = 0, d3 = 0;
    for (int k = 0; k < 4; k++) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3)
                     : "r"(a[t]), "r"(a[t + 32]), "r"(a[t + 64]), "r"(a[t + 96]), "r"(b[t]), "r"(b[t + 32]));
        a += 128, b += 64;
    }
    c[t] = d0, c[t + 32] = d1, c[t + 64] = d2, c[t + 96] = d3;
}
#endif

#if __CUDA_ARCH_FEAT_SM90_ALL
template <bool TOUCH>
__device__ __forceinline__ void wgmma_loop(unsigned long long a, unsigned long long b, float* c, int n) {
    float d[4] = {0, 0, 0, 0};
    for (int k = 0; k < n; k++) {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0,%1,%2,%3}, %4, %5, 1, 1, 1, 0, 0;"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(b));
        if (TOUCH) d[0] += 1.0f;  // before the wait: ptxas serialises the wgmma
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        a += 2, b += 2;
    }
    for (int k = 0; k < 4; k++) c[threadIdx.x + 128 * k] = d[k];
}
extern "C" __global__ void hgmma(unsigned long long a, unsigned long long b, float* c, int n) { wgmma_loop<false>(a, b, c, n); }
extern "C" __global__ void hgmma_serialised(unsigned long long a, unsigned long long b, float* c, int n) { wgmma_loop<true>(a, b, c, n); }
#endif

#if __CUDA_ARCH_FEAT_SM100_ALL
extern "C" __global__ void utcmma(unsigned long long a, unsigned long long b, unsigned tmem, unsigned idesc, float* out) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, 0, 1; tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p; }"
                 :: "r"(tmem), "l"(a), "l"(b), "r"(idesc) : "memory");
    unsigned v0, v1;
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x2.b32 {%0, %1}, [%2];" : "=r"(v0), "=r"(v1) : "r"(tmem));
    asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
    out[threadIdx.x] = __uint_as_float(v0) + __uint_as_float(v1);
}
#endif

// __syncthreads() that only some lanes of a warp reach, and one that only some warps reach, which is allowed by its count.
extern "C" __global__ void divergent_aligned(float* y, int n) {
    __shared__ float tile[1024];
    if (y[threadIdx.x] > 0.0f) {
        tile[threadIdx.x] = y[threadIdx.x];
        __syncthreads();
        y[threadIdx.x] = tile[threadIdx.x ^ 1];
    }
    y[n] = 1.0f;
}
extern "C" __global__ void by_warps(float* y) {
    __shared__ float tile[1024];
    tile[threadIdx.x] = y[threadIdx.x];
    if (threadIdx.x / 32 % 4 < 2 && threadIdx.x < 96) {
        asm volatile("bar.sync 1, 64;" ::: "memory");
        y[threadIdx.x] = tile[threadIdx.x ^ 1];
    }
}

// An outer product in registers: every operand of an FFMA is used again by the next.
extern "C" __global__ void __launch_bounds__(256) outer(const float4* a, const float4* b, float* c, int n) {
    float sum[4][4] = {};
    for (int k = 0; k < n; k++) {
        float4 va = a[k * 256 + threadIdx.x], vb = b[k * 256 + threadIdx.x];
        float x[4] = {va.x, va.y, va.z, va.w}, y[4] = {vb.x, vb.y, vb.z, vb.w};
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) sum[i][j] += x[i] * y[j];
    }
#pragma unroll
    for (int i = 0; i < 16; i++) c[i * 256 + threadIdx.x] = sum[i / 4][i % 4];
}
