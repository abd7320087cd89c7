// y = a * x + y, n elements of f32, one element per thread.

template <int THREADS>
__global__ void __launch_bounds__(THREADS) saxpy(float a, const float* x, float* y, int n) {
    unsigned i = blockIdx.x * THREADS + threadIdx.x;
    if (i < n) y[i] = fmaf(a, x[i], y[i]);
}

#include "ptxkit/elementwise/elementwise.cuh"  // here, because the documentation names line numbers of the kernel above

// Four elements per thread in 128-bit accesses, if both arrays are aligned to 16 bytes. The last n % 4 elements, or all
// elements of unaligned arrays, are accessed individually.
template <int THREADS>
__global__ void __launch_bounds__(THREADS) saxpy_vectorized(float a, const float* x, float* y, int n) {
    unsigned first = 4 * (blockIdx.x * THREADS + threadIdx.x);
    bool aligned = ((reinterpret_cast<size_t>(x) | reinterpret_cast<size_t>(y)) & 15) == 0;
    ptxkit::follow_with_requests([&] {
        if (first < n) ptxkit::prefetch_global_L2(x + first), ptxkit::prefetch_global_L2(y + first);
    });
    if (aligned && first + 4 <= n) {
        float4 vx = *reinterpret_cast<const float4*>(x + first);
        float4 vy = *reinterpret_cast<const float4*>(y + first);
        vy.x = fmaf(a, vx.x, vy.x);
        vy.y = fmaf(a, vx.y, vy.y);
        vy.z = fmaf(a, vx.z, vy.z);
        vy.w = fmaf(a, vx.w, vy.w);
        *reinterpret_cast<float4*>(y + first) = vy;
    } else {
        for (unsigned i = first; i < n && i < first + 4; i++) y[i] = fmaf(a, x[i], y[i]);
    }
}
