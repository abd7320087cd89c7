// out = exp((x + y) * 2), n elements of f32: in three launches, as a framework does it, and fused into one.
//
// Each of the three launches loads its operands from memory and stores its result: 12 + 8 + 8 bytes per element,
// instead of 12. All variants execute the same f32 operations in the same order, so their results are bit-identical.
#include "ptxkit/elementwise/elementwise.cuh"

using namespace ptxkit;

struct Add {
    __device__ __forceinline__ float operator()(float x, float y) const { return x + y; }
};
struct Double {
    __device__ __forceinline__ float operator()(float x) const { return x * 2.0f; }
};
struct Exp {
    __device__ __forceinline__ float operator()(float x) const { return expf(x); }  // at most 1 ulp
};
struct AddMulExp {
    __device__ __forceinline__ float operator()(float x, float y) const { return Exp()(Double()(Add()(x, y))); }
};

template <int THREADS, int VECTORS, int CACHE, bool STRIDE>
__global__ void __launch_bounds__(THREADS) add(const float* x, const float* y, float* out, long long n) {
    elementwise<THREADS, VECTORS, CACHE, STRIDE>(n, Add(), out, x, y);
}

template <int THREADS, int VECTORS, int CACHE, bool STRIDE>
__global__ void __launch_bounds__(THREADS) mul(const float* x, float* out, long long n) {
    elementwise<THREADS, VECTORS, CACHE, STRIDE>(n, Double(), out, x);
}

template <int THREADS, int VECTORS, int CACHE, bool STRIDE>
__global__ void __launch_bounds__(THREADS) exponential(const float* x, float* out, long long n) {
    elementwise<THREADS, VECTORS, CACHE, STRIDE>(n, Exp(), out, x);
}

template <int THREADS>
__global__ void __launch_bounds__(THREADS) add_mul_exp_fused(const float* x, const float* y, float* out, long long n) {
    elementwise_scalar<THREADS>(n, AddMulExp(), out, x, y);
}

template <int THREADS, int VECTORS, int CACHE, bool STRIDE>
__global__ void __launch_bounds__(THREADS) add_mul_exp_vectorized(const float* x, const float* y, float* out,
                                                                  long long n) {
    elementwise<THREADS, VECTORS, CACHE, STRIDE>(n, AddMulExp(), out, x, y);
}
