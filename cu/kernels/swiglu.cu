// out = silu(gate) * up, rows x cols elements of f32, f16 or bf16, all three arrays contiguous, computed in f32.
#include "ptxkit/elementwise/activations.cuh"
#include "ptxkit/elementwise/elementwise.cuh"

using namespace ptxkit;

struct Silu {
    __device__ __forceinline__ float operator()(float gate) const { return silu(gate); }
};
struct Multiply {
    __device__ __forceinline__ float operator()(float a, float b) const { return a * b; }
};
struct Swiglu {
    __device__ __forceinline__ float operator()(float gate, float up) const { return silu(gate) * up; }
};

template <class T, int THREADS, int VECTORS, int CACHE, bool STRIDE>
__global__ void __launch_bounds__(THREADS) silu(const T* gate, T* out, long long n) {
    elementwise<THREADS, VECTORS, CACHE, STRIDE>(n, Silu(), out, gate);
}

template <class T, int THREADS, int VECTORS, int CACHE, bool STRIDE>
__global__ void __launch_bounds__(THREADS) multiply(const T* a, const T* b, T* out, long long n) {
    elementwise<THREADS, VECTORS, CACHE, STRIDE>(n, Multiply(), out, a, b);
}

template <class T, int THREADS>
__global__ void __launch_bounds__(THREADS) swiglu_fused(const T* gate, const T* up, T* out, long long n) {
    elementwise_scalar<THREADS>(n, Swiglu(), out, gate, up);
}

template <class T, int THREADS, int VECTORS, int CACHE, bool STRIDE>
__global__ void __launch_bounds__(THREADS) swiglu_vectorized(const T* gate, const T* up, T* out, long long n) {
    elementwise<THREADS, VECTORS, CACHE, STRIDE>(n, Swiglu(), out, gate, up);
}
