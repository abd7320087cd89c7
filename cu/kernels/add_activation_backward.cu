// dx = dy * activation'(x + residual), n elements of f32, f16 or bf16, computed in f32: the gradient of x, which is also that of
// residual. The activation (RELU, GELU or SILU) is a template argument.
#include "ptxkit/elementwise/activations.cuh"
#include "ptxkit/elementwise/elementwise.cuh"

using namespace ptxkit;

struct Add {
    __device__ __forceinline__ float operator()(float x, float y) const { return x + y; }
};
struct Multiply {
    __device__ __forceinline__ float operator()(float x, float y) const { return x * y; }
};
template <Activation A>
struct Derive {
    __device__ __forceinline__ float operator()(float x) const { return activation_derivative<A>(x); }
};
template <Activation A>
struct AddActivateBackward {
    __device__ __forceinline__ float operator()(float dy, float x, float residual) const {
        return dy * activation_derivative<A>(x + residual);
    }
};

template <class T, int THREADS, int VECTORS, int CACHE, bool STRIDE>
__global__ void __launch_bounds__(THREADS) add(const T* x, const T* residual, T* out, long long n) {
    elementwise<THREADS, VECTORS, CACHE, STRIDE>(n, Add(), out, x, residual);
}

template <class T, Activation A, int THREADS, int VECTORS, int CACHE, bool STRIDE>
__global__ void __launch_bounds__(THREADS) derivative(const T* x, T* out, long long n) {
    elementwise<THREADS, VECTORS, CACHE, STRIDE>(n, Derive<A>(), out, x);
}

template <class T, int THREADS, int VECTORS, int CACHE, bool STRIDE>
__global__ void __launch_bounds__(THREADS) multiply(const T* a, const T* b, T* out, long long n) {
    elementwise<THREADS, VECTORS, CACHE, STRIDE>(n, Multiply(), out, a, b);
}

template <class T, Activation A, int THREADS>
__global__ void __launch_bounds__(THREADS) add_activation_backward_fused(const T* dy, const T* x, const T* residual, T* dx,
                                                                         long long n) {
    elementwise_scalar<THREADS>(n, AddActivateBackward<A>(), dx, dy, x, residual);
}

template <class T, Activation A, int THREADS, int VECTORS, int CACHE, bool STRIDE>
__global__ void __launch_bounds__(THREADS) add_activation_backward_vectorized(const T* dy, const T* x, const T* residual,
                                                                              T* dx, long long n) {
    elementwise<THREADS, VECTORS, CACHE, STRIDE>(n, AddActivateBackward<A>(), dx, dy, x, residual);
}
