// A tour of inline PTX. Each step is a pair of kernels that compute the same: `..._plain` in CUDA C++, `..._ptx` with
// the instruction the step is about, called through its wrapper in ptxkit/ptx/*.cuh. Some have a third version for a
// newer target.
//
// A wrapper is one instruction behind a guard: on a target that lacks it, PTXKIT_UNSUPPORTED says so and traps. So this
// file compiles for every target, and the description decides who may launch what (`requires`).
//
// All arrays have n elements, n a multiple of 256; one thread an element unless a kernel says otherwise. All results
// are exact or rounded once, so the versions agree.
#include "ptxkit/ptx/async_copy.cuh"
#include "ptxkit/ptx/data_movement.cuh"
#include "ptxkit/ptx/floating_point.cuh"
#include "ptxkit/ptx/half.cuh"
#include "ptxkit/ptx/integer.cuh"
#include "ptxkit/ptx/special_registers.cuh"
#include "ptxkit/ptx/synchronization.cuh"

using namespace ptxkit;

constexpr int threads = 256;

__device__ __forceinline__ unsigned thread_index() { return blockIdx.x * threads + threadIdx.x; }

// ---------------------------------------------------------------------------------------------------------------------
// 1. Cache hints: data that is read once should neither stay in L1 (L1::no_allocate) nor evict other data from L2 (a
//     policy with evict_first); data that is written once is stored as streaming (cs). Hints change no result.

__global__ void __launch_bounds__(threads) stream_plain(const float* x, const float* y, float* out) {
    unsigned i = thread_index();
    out[i] = fmaf(x[i], y[i], x[i]);
}

// Four elements a thread.
__global__ void __launch_bounds__(threads) stream_ptx(const float4* x, const float4* y, float4* out) {
    unsigned i = thread_index();
    unsigned long long policy = createpolicy_L2_evict_first();
    float4 a = ld_global_nc_L1_no_allocate(x + i, policy), b = ld_global_nc_L1_no_allocate(y + i, policy);
    st_global_cs(out + i,
                 make_float4(fmaf(a.x, b.x, a.x), fmaf(a.y, b.y, a.y), fmaf(a.z, b.z, a.z), fmaf(a.w, b.w, a.w)));
}

// sm_100: eight elements a thread in one 256-bit access, and two fma an instruction.
__global__ void __launch_bounds__(threads) stream_sm100(const float* x, const float* y, float4* out) {
    unsigned i = thread_index();
    float a[8] = {}, b[8] = {};
    ld_global_nc_L1_no_allocate_v8(x + 8 * i, a);
    ld_global_nc_L1_no_allocate_v8(y + 8 * i, b);
#pragma unroll
    for (int j = 0; j < 8; j += 4) {
        float2 a0 = make_float2(a[j], a[j + 1]), a1 = make_float2(a[j + 2], a[j + 3]);
        float2 low = fma_rn_f32x2(a0, make_float2(b[j], b[j + 1]), a0);
        float2 high = fma_rn_f32x2(a1, make_float2(b[j + 2], b[j + 3]), a1);
        st_global_cs(out + 2 * i + j / 4, make_float4(low.x, low.y, high.x, high.y));
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// 2. prmt picks any four of eight bytes: the other byte order in one instruction instead of shifts and masks.

__global__ void __launch_bounds__(threads) swap_plain(const unsigned* a, unsigned* swapped) {
    unsigned w = a[thread_index()];
    swapped[thread_index()] = w << 24 | (w << 8 & 0xff0000) | (w >> 8 & 0xff00) | w >> 24;
}

__global__ void __launch_bounds__(threads) swap_ptx(const unsigned* a, unsigned* swapped) {
    swapped[thread_index()] = prmt_b32(a[thread_index()], 0, 0x0123);
}

// ---------------------------------------------------------------------------------------------------------------------
// 3. lop3 is any function of three bits. The table is the function's value for a = 0xf0, b = 0xcc, c = 0xaa; here "a ?
//     b : c" is (0xf0 & 0xcc) | (~0xf0 & 0xaa) = 0xca, and "at least two of three" 0xe8.

__global__ void __launch_bounds__(threads) blend_plain(const unsigned* a, const unsigned* b, const unsigned* c,
                                                       unsigned* blended, unsigned* majority) {
    unsigned i = thread_index();
    blended[i] = (a[i] & b[i]) | (~a[i] & c[i]);
    majority[i] = (a[i] & b[i]) | (a[i] & c[i]) | (b[i] & c[i]);
}

__global__ void __launch_bounds__(threads) blend_ptx(const unsigned* a, const unsigned* b, const unsigned* c,
                                                     unsigned* blended, unsigned* majority) {
    unsigned i = thread_index();
    blended[i] = lop3_b32<0xca>(a[i], b[i], c[i]);
    majority[i] = lop3_b32<0xe8>(a[i], b[i], c[i]);
}

// ---------------------------------------------------------------------------------------------------------------------
// 4. Packed halves: two multiply-adds per instruction, each rounded once, with relu at no cost: u * v + u, negatives
//     become zero.

template <class T>
__global__ void __launch_bounds__(threads) relu_plain(const T* u, const T* v, T* out) {
    unsigned i = thread_index();
    out[i] = Convert<T>::from_f32(fmaxf(fmaf(to_f32(u[i]), to_f32(v[i]), to_f32(u[i])), 0.0f));
}

// Two elements a thread.
__global__ void __launch_bounds__(threads) relu_f16_ptx(const unsigned* u, const unsigned* v, unsigned* out) {
    unsigned i = thread_index();
    out[i] = fma_rn_relu_f16x2(u[i], v[i], u[i]);
}

__global__ void __launch_bounds__(threads) relu_bf16_ptx(const unsigned* u, const unsigned* v, unsigned* out) {
    unsigned i = thread_index();
    out[i] = fma_rn_relu_bf16x2(u[i], v[i], u[i]);
}

// ---------------------------------------------------------------------------------------------------------------------
// 5. redux: a warp's sum or maximum in one instruction, where shuffles take five and five additions. For integers; but
//     the bits of non-negative floats are ordered as integers, so that the largest |x| is an integer maximum, too.

__global__ void __launch_bounds__(threads) reduce_plain(const unsigned* a, const float* x, unsigned* sums,
                                                        float* peaks) {
    unsigned i = thread_index(), sum = a[i];
    float peak = fabsf(x[i]);
    for (int distance = 16; distance > 0; distance /= 2) {
        sum += __shfl_xor_sync(all_lanes, sum, distance);
        peak = fmaxf(peak, __shfl_xor_sync(all_lanes, peak, distance));
    }
    if (threadIdx.x % 32 == 0) sums[i / 32] = sum, peaks[i / 32] = peak;
}

__global__ void __launch_bounds__(threads) reduce_ptx(const unsigned* a, const float* x, unsigned* sums, float* peaks) {
    unsigned i = thread_index();
    unsigned sum = redux_sync_add(all_lanes, a[i]);
    unsigned peak = redux_sync_max(all_lanes, __float_as_uint(x[i]) & 0x7fffffff);
    if (laneid() == 0) sums[i / 32] = sum, peaks[i / 32] = __uint_as_float(peak);
}

// sm_100a: redux on f32 itself, with |x| as part of the instruction.
__global__ void __launch_bounds__(threads) reduce_sm100a(const unsigned* a, const float* x, unsigned* sums,
                                                         float* peaks) {
    unsigned i = thread_index();
    unsigned sum = redux_sync_add(all_lanes, a[i]);
    float peak = redux_sync_max_abs_NaN_f32(all_lanes, x[i]);
    if (elect_sync(all_lanes)) sums[i / 32] = sum, peaks[i / 32] = peak;
}

// ---------------------------------------------------------------------------------------------------------------------
// 6. elect: one lane of the warp, whichever; ptxas then knows that it is one, and can use the uniform datapath.

__global__ void __launch_bounds__(threads) vote_plain(const float* x, const float* y, unsigned* ballots) {
    unsigned i = thread_index();
    unsigned ballot = __ballot_sync(all_lanes, x[i] > y[i]);
    if (threadIdx.x % 32 == 0) ballots[i / 32] = ballot;
}

__global__ void __launch_bounds__(threads) vote_ptx(const float* x, const float* y, unsigned* ballots) {
    unsigned i = thread_index();
    unsigned ballot = vote_sync_ballot(all_lanes, x[i] > y[i]);
    if (laneid() == 0) ballots[i / 32] = ballot;
}

__global__ void __launch_bounds__(threads) vote_sm90(const float* x, const float* y, unsigned* ballots) {
    unsigned i = thread_index();
    unsigned ballot = vote_sync_ballot(all_lanes, x[i] > y[i]);
    if (elect_sync(all_lanes)) ballots[i / 32] = ballot;
}

// ---------------------------------------------------------------------------------------------------------------------
// 7. cp.async: copies a tile from global to shared memory without registers, 16 bytes per thread; each tile is stored
//     in reverse order.

__global__ void __launch_bounds__(threads) reverse_plain(const float* x, float* reversed) {
    __shared__ float tile[threads];
    tile[threadIdx.x] = x[thread_index()];
    __syncthreads();
    reversed[thread_index()] = tile[threads - 1 - threadIdx.x];
}

__global__ void __launch_bounds__(threads) reverse_async(const float* x, float* reversed) {
    __shared__ alignas(16) float tile[threads];
    if (threadIdx.x < threads / 4) {
        cp_async_cg_shared_global(cvta_to_shared(tile + 4 * threadIdx.x), x + blockIdx.x * threads + 4 * threadIdx.x);
    }
    cp_async_wait_all();  // the copies of this thread are complete
    barrier_sync();       // and those of the other threads
    reversed[thread_index()] = tile[threads - 1 - threadIdx.x];
}

// ---------------------------------------------------------------------------------------------------------------------
// 8. griddepcontrol: the second of two kernels may start, and read what the first does not write, before the first has
//     ended, if it was launched with the attribute for programmatic launches. Without the attribute both instructions
//     do nothing.

__global__ void __launch_bounds__(threads) double_plain(const float* x, float* twice) {
    twice[thread_index()] = 2.0f * x[thread_index()];
}

__global__ void __launch_bounds__(threads) add_plain(const float* twice, const float* y, float* sum) {
    sum[thread_index()] = twice[thread_index()] + y[thread_index()];
}

__global__ void __launch_bounds__(threads) double_sm90(const float* x, float* twice) {
    griddepcontrol_launch_dependents();
    twice[thread_index()] = 2.0f * x[thread_index()];
}

__global__ void __launch_bounds__(threads) add_sm90(const float* twice, const float* y, float* sum) {
    float b = ld_global_nc(y + thread_index());
    griddepcontrol_wait();
    sum[thread_index()] = twice[thread_index()] + b;  // not ld.global.nc: another grid has just written it
}
