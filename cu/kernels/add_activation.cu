// out = activation(x + residual), n elements of f32, f16 or bf16, computed in f32. The activation (NONE, RELU, GELU or
// SILU) is a template argument, so that a kernel contains the code of its own activation only.
#include "ptxkit/elementwise/activations.cuh"
#include "ptxkit/elementwise/elementwise.cuh"

using namespace ptxkit;

struct Add {
    __device__ __forceinline__ float operator()(float x, float y) const { return x + y; }
};
template <Activation A>
struct Activate {
    __device__ __forceinline__ float operator()(float x) const { return activate<A>(x); }
};
template <Activation A>
struct AddActivate {
    __device__ __forceinline__ float operator()(float x, float y) const { return activate<A>(x + y); }
};

template <class T, int THREADS, int VECTORS, int CACHE, bool STRIDE>
__global__ void __launch_bounds__(THREADS) add(const T* x, const T* residual, T* out, long long n) {
    elementwise<THREADS, VECTORS, CACHE, STRIDE>(n, Add(), out, x, residual);
}

template <class T, Activation A, int THREADS, int VECTORS, int CACHE, bool STRIDE>
__global__ void __launch_bounds__(THREADS) activation(const T* x, T* out, long long n) {
    elementwise<THREADS, VECTORS, CACHE, STRIDE>(n, Activate<A>(), out, x);
}

template <class T, Activation A, int THREADS>
__global__ void __launch_bounds__(THREADS) add_activation_fused(const T* x, const T* residual, T* out, long long n) {
    elementwise_scalar<THREADS>(n, AddActivate<A>(), out, x, residual);
}

template <class T, Activation A, int THREADS, int VECTORS, int CACHE, bool STRIDE>
__global__ void __launch_bounds__(THREADS) add_activation_vectorized(const T* x, const T* residual, T* out,
                                                                     long long n) {
    elementwise<THREADS, VECTORS, CACHE, STRIDE>(n, AddActivate<A>(), out, x, residual);
}
