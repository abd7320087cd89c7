// out = f(f(... f(x))), f(v) = a v + b applied FMAS times: n elements of f32, 8 bytes and 2 FMAS flops each. FMAS sets
// the arithmetic intensity, from a few fma (memory_bound) to thousands (compute_bound).
//
// Each element is a chain of dependent fma, whose latency other chains hide: those of other warps in `chain_fused`, and
// those of the same thread in `chain_vectorized`, whose vectors have four, and `chain_packed`, which has two per
// instruction. The results of all variants are bit-identical.
#include "ptxkit/elementwise/elementwise.cuh"
#include "ptxkit/ptx/floating_point.cuh"
#include "ptxkit/ptx/special_registers.cuh"

using namespace ptxkit;

// The loop is unrolled by UNROLL steps, because its counter and branch take three issue slots.
template <int FMAS, int UNROLL = 32>
struct Chain {
    float a, b;

    // N independent chains: fma i of all before fma i + 1 of any.
    template <int N>
    __device__ __forceinline__ void apply(float (&v)[N]) const {
#pragma unroll UNROLL
        for (int i = 0; i < FMAS; i++) {
#pragma unroll
            for (int j = 0; j < N; j++) v[j] = fmaf(v[j], a, b);
        }
    }

    __device__ __forceinline__ float operator()(float x) const {
        float v[1] = {x};
        apply(v);
        return v[0];
    }
};

// Returns `value` in a vector register. laneid() / 32 is 0, which ptxas does not know; it therefore cannot place the
// value in a uniform register, as it does with a kernel parameter, which is the same for all threads.
__device__ __forceinline__ float in_vector_register(float value) {
    return __uint_as_float(__float_as_uint(value) + laneid() / 32);
}

// The register file has two banks, each of which delivers one register of a warp per cycle. An fma of three registers
// takes two cycles unless the operand cache holds one of them, and that cache is valid only for the next instruction of
// the same warp, which here depends on this one. With b in a vector register, a stays in a uniform register, and v and
// b are in different banks.
template <int FMAS, int THREADS>
__global__ void __launch_bounds__(THREADS) chain_fused(const float* x, float* out, long long n, float a, float b) {
    elementwise_scalar<THREADS>(n, Chain<FMAS, 256>{a, in_vector_register(b)}, out, x);
}

template <int FMAS, int THREADS, int VECTORS, int CACHE, bool STRIDE>
__global__ void __launch_bounds__(THREADS) chain_vectorized(const float* x, float* out, long long n, float a, float b) {
    const Chain<FMAS, 64> chain{a, b};
    const unsigned long long policy = load_policy<CACHE>();
    Vector<float, 4> v[VECTORS];
    auto load = [&](int k, long long i) { v[k].template load<CACHE>(x + i, policy); };
    auto store = [&](int k, long long i) {
        float values[4] = {v[k][0], v[k][1], v[k][2], v[k][3]};
        chain.apply(values);
        v[k].fill([&](int j) { return values[j]; });
        v[k].template store<CACHE>(out + i);
    };
    auto one = [&](long long i) { out[i] = Chain<FMAS>{a, b}(load_element(x + i)); };
    for_each_vector<THREADS, VECTORS, 4, STRIDE>(n, aligned16(x, out), load, store, one);
}

// Two chains per instruction: fma.rn.f32x2 of sm_100.
template <int FMAS, int THREADS, int VECTORS, int CACHE, bool STRIDE>
__global__ void __launch_bounds__(THREADS) chain_packed(const float* x, float* out, long long n, float a, float b) {
    const float2 factor = make_float2(a, a), summand = make_float2(b, b);
    const unsigned long long policy = load_policy<CACHE>();
    Vector<float, 4> v[VECTORS];
    auto load = [&](int k, long long i) { v[k].template load<CACHE>(x + i, policy); };
    auto store = [&](int k, long long i) {
        float2 low = make_float2(v[k][0], v[k][1]), high = make_float2(v[k][2], v[k][3]);
#pragma unroll 32
        for (int step = 0; step < FMAS; step++) {
            low = fma_rn_f32x2(low, factor, summand);
            high = fma_rn_f32x2(high, factor, summand);
        }
        v[k].fill([&](int j) { return j == 0 ? low.x : j == 1 ? low.y : j == 2 ? high.x : high.y; });
        v[k].template store<CACHE>(out + i);
    };
    auto one = [&](long long i) { out[i] = Chain<FMAS>{a, b}(load_element(x + i)); };
    for_each_vector<THREADS, VECTORS, 4, STRIDE>(n, aligned16(x, out), load, store, one);
}
