// The gradients of silu(gate) * up: dgate = dy * up * silu'(gate), dup = dy * silu(gate), n elements of f32, f16 or bf16, all
// arrays contiguous, computed in f32.
#include "ptxkit/elementwise/activations.cuh"
#include "ptxkit/elementwise/elementwise.cuh"

using namespace ptxkit;

struct GateGradient {
    __device__ __forceinline__ float operator()(float dy, float gate, float up) const { return dy * up * silu_derivative(gate); }
};
struct UpGradient {
    __device__ __forceinline__ float operator()(float dy, float gate) const { return dy * silu(gate); }
};

template <class T, int THREADS, int VECTORS, int CACHE, bool STRIDE>
__global__ void __launch_bounds__(THREADS) gate_gradient(const T* dy, const T* gate, const T* up, T* dgate, long long n) {
    elementwise<THREADS, VECTORS, CACHE, STRIDE>(n, GateGradient(), dgate, dy, gate, up);
}

template <class T, int THREADS, int VECTORS, int CACHE, bool STRIDE>
__global__ void __launch_bounds__(THREADS) up_gradient(const T* dy, const T* gate, T* dup, long long n) {
    elementwise<THREADS, VECTORS, CACHE, STRIDE>(n, UpGradient(), dup, dy, gate);
}

template <class T, int THREADS>
__global__ void __launch_bounds__(THREADS) swiglu_backward_fused(const T* dy, const T* gate, const T* up, T* dgate, T* dup,
                                                                 long long n) {
    const long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    follow_with_requests([&] {
        if (i < n) prefetch_global_L2(dy + i), prefetch_global_L2(gate + i), prefetch_global_L2(up + i);
    });
    if (i >= n) return;
    const float d = load_after_wait(dy + i), g = load_after_wait(gate + i), u = load_after_wait(up + i);
    dgate[i] = Convert<T>::from_f32(GateGradient()(d, g, u));
    dup[i] = Convert<T>::from_f32(UpGradient()(d, g));
}

template <class T, int THREADS, int VECTORS, int CACHE, bool STRIDE>
__global__ void __launch_bounds__(THREADS) swiglu_backward_vectorized(const T* dy, const T* gate, const T* up, T* dgate, T* dup,
                                                                      long long n) {
    constexpr int width = vector_width<T>;
    const unsigned long long policy = load_policy<CACHE>();
    Vector<T, width> d[VECTORS], g[VECTORS], u[VECTORS];
    auto load = [&](int k, long long i) {
        d[k].template load<CACHE>(dy + i, policy);
        g[k].template load<CACHE>(gate + i, policy);
        u[k].template load<CACHE>(up + i, policy);
    };
    auto store = [&](int k, long long i) {
        Vector<T, width> result;
        result.fill([&](int j) { return GateGradient()(d[k][j], g[k][j], u[k][j]); });
        result.template store<CACHE>(dgate + i);
        result.fill([&](int j) { return UpGradient()(d[k][j], g[k][j]); });
        result.template store<CACHE>(dup + i);
    };
    auto one = [&](long long i) {
        const float d = load_element(dy + i), g = load_element(gate + i), u = load_element(up + i);
        dgate[i] = Convert<T>::from_f32(GateGradient()(d, g, u));
        dup[i] = Convert<T>::from_f32(UpGradient()(d, g));
    };
    auto request = [&](long long i) { prefetch_global_L2(dy + i), prefetch_global_L2(gate + i), prefetch_global_L2(up + i); };
    for_each_vector<THREADS, VECTORS, width, STRIDE>(n, aligned16(dy, gate, up, dgate, dup), load, store, one, request);
}
