// Examples of inline PTX. Each step introduces one instruction with two kernels that compute the same result:
// `..._plain` in CUDA C++, and `..._ptx` (in steps 7 to 9 `..._async`, `..._sm90` and `..._sm100a`) with the
// instruction, called through its wrapper in ptxkit/ptx/*.cuh. Some steps have a third kernel for a newer target.
//
// A wrapper contains one instruction and a guard: on a target that lacks the instruction, PTXKIT_UNSUPPORTED prints a
// message and traps. This file therefore compiles for every target. The description, ptxkit/kernels/inline_ptx.py,
// states which variants a target can launch.
//
// All arrays have n elements, n a multiple of 256, with one element per thread unless a comment states otherwise. All
// results are exact or rounded once, so that the kernels of a step agree bit for bit.
#include "ptxkit/ptx/async_copy.cuh"
#include "ptxkit/ptx/data_movement.cuh"
#include "ptxkit/ptx/floating_point.cuh"
#include "ptxkit/ptx/half.cuh"
#include "ptxkit/ptx/integer.cuh"
#include "ptxkit/ptx/mbarrier.cuh"
#include "ptxkit/ptx/special_registers.cuh"
#include "ptxkit/ptx/synchronization.cuh"
#include "ptxkit/ptx/tcgen05.cuh"
#include "ptxkit/ptx/tensor_map.cuh"

using namespace ptxkit;

constexpr int threads = 256;

__device__ __forceinline__ unsigned thread_index() { return blockIdx.x * threads + threadIdx.x; }

// ---------------------------------------------------------------------------------------------------------------------
// 1. Cache hints. Data that is read once should neither be allocated in L1 (L1::no_allocate) nor evict other data from
//    L2 (a policy with evict_first); data that is written once is stored as streaming data (cs). Hints do not change
//    results.

__global__ void __launch_bounds__(threads) stream_plain(const float* x, const float* y, float* out) {
    unsigned i = thread_index();
    out[i] = fmaf(x[i], y[i], x[i]);
}

// Four elements per thread.
__global__ void __launch_bounds__(threads) stream_ptx(const float4* x, const float4* y, float4* out) {
    unsigned i = thread_index();
    unsigned long long policy = createpolicy_L2_evict_first();
    float4 a = ld_global_nc_L1_no_allocate(x + i, policy), b = ld_global_nc_L1_no_allocate(y + i, policy);
    st_global_cs(out + i,
                 make_float4(fmaf(a.x, b.x, a.x), fmaf(a.y, b.y, a.y), fmaf(a.z, b.z, a.z), fmaf(a.w, b.w, a.w)));
}

// sm_100: eight elements per thread in one 256-bit access, and two fma per instruction.
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
// 2. prmt selects any four bytes of two registers: it reverses the byte order of a word in one instruction instead of
//    shifts and masks.

__global__ void __launch_bounds__(threads) swap_plain(const unsigned* a, unsigned* swapped) {
    unsigned w = a[thread_index()];
    swapped[thread_index()] = w << 24 | (w << 8 & 0xff0000) | (w >> 8 & 0xff00) | w >> 24;
}

__global__ void __launch_bounds__(threads) swap_ptx(const unsigned* a, unsigned* swapped) {
    swapped[thread_index()] = prmt_b32(a[thread_index()], 0, 0x0123);
}

// ---------------------------------------------------------------------------------------------------------------------
// 3. lop3 computes any bitwise function of three operands, given by its truth table: the value of the function for
//    a = 0xf0, b = 0xcc, c = 0xaa. The selection a ? b : c has the table (0xf0 & 0xcc) | (~0xf0 & 0xaa) = 0xca, and the
//    majority of a, b and c has the table 0xe8.

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
// 4. fma.relu on packed f16 and bf16: max(u * v + u, 0) of two elements in one instruction, each rounded once.

template <class T>
__global__ void __launch_bounds__(threads) relu_plain(const T* u, const T* v, T* out) {
    unsigned i = thread_index();
    out[i] = Convert<T>::from_f32(fmaxf(fmaf(to_f32(u[i]), to_f32(v[i]), to_f32(u[i])), 0.0f));
}

// Two elements per thread.
__global__ void __launch_bounds__(threads) relu_f16_ptx(const unsigned* u, const unsigned* v, unsigned* out) {
    unsigned i = thread_index();
    out[i] = fma_rn_relu_f16x2(u[i], v[i], u[i]);
}

__global__ void __launch_bounds__(threads) relu_bf16_ptx(const unsigned* u, const unsigned* v, unsigned* out) {
    unsigned i = thread_index();
    out[i] = fma_rn_relu_bf16x2(u[i], v[i], u[i]);
}

// ---------------------------------------------------------------------------------------------------------------------
// 5. redux computes the sum or the maximum of a warp in one instruction, instead of five shuffles and five operations.
//    It operates on integers; since the bit patterns of non-negative floats have the order of integers, it also
//    computes the maximum of |x|.

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

// sm_100a: redux on f32, including the absolute value.
__global__ void __launch_bounds__(threads) reduce_sm100a(const unsigned* a, const float* x, unsigned* sums,
                                                         float* peaks) {
    unsigned i = thread_index();
    unsigned sum = redux_sync_add(all_lanes, a[i]);
    float peak = redux_sync_max_abs_NaN_f32(all_lanes, x[i]);
    if (elect_sync(all_lanes)) sums[i / 32] = sum, peaks[i / 32] = peak;
}

// ---------------------------------------------------------------------------------------------------------------------
// 6. vote.ballot collects one predicate of each lane in a mask, and elect selects one lane to store it. With elect,
//    ptxas knows that exactly one lane is active and can use the uniform datapath.

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
// 7. cp.async copies a tile from global to shared memory without passing through registers, 16 bytes per thread. The
//    example stores each tile in reverse order.

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
    barrier_sync();       // the copies of all threads are complete
    reversed[thread_index()] = tile[threads - 1 - threadIdx.x];
}

// ---------------------------------------------------------------------------------------------------------------------
// 8. griddepcontrol: with programmatic dependent launch, the second of two kernels starts before the first one has
//    ended and loads data that the first one does not write. For launches without the attribute, the instructions have
//    no effect.

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
    sum[thread_index()] = twice[thread_index()] + b;  // not ld.global.nc: the previous grid writes `twice`
}

// ---------------------------------------------------------------------------------------------------------------------
// 9. tcgen05 multiplies tiles of shared memory; the sums are in tensor memory. Each CTA computes a product of 128 x 16
//    elements from 128 rows of p and 16 rows of q, each of 16 bf16. One thread issues the loads and the product, which
//    are asynchronous and complete on mbarriers. matmul_tcgen05.cu builds a matrix product of any size from this.

constexpr int product_rows = 128, product_cols = 16, product_depth = 16;

// The row and the first of eight columns that a thread computes: warp w can read lanes 32 (w % 4) to 32 (w % 4) + 31 of
// tensor memory.
__device__ __forceinline__ unsigned product_row() { return threadIdx.x % product_rows; }
__device__ __forceinline__ unsigned product_col() { return threadIdx.x / product_rows * 8; }
__device__ __forceinline__ void store_product(const float (&sums)[8], float4* product) {
    float4* to = product + ((blockIdx.x * product_rows + product_row()) * product_cols + product_col()) / 4;
    to[0] = make_float4(sums[0], sums[1], sums[2], sums[3]);
    to[1] = make_float4(sums[4], sums[5], sums[6], sums[7]);
}

__global__ void __launch_bounds__(threads) product_plain(const bf16* p, const bf16* q, float4* product) {
    const bf16* a = p + (blockIdx.x * product_rows + product_row()) * product_depth;
    const bf16* b = q + (blockIdx.x * product_cols + product_col()) * product_depth;
    float sums[8] = {};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        for (int k = 0; k < product_depth; k++) sums[i] += to_f32(a[k]) * to_f32(b[i * product_depth + k]);
    }
    store_product(sums, product);
}

__global__ void __launch_bounds__(threads) product_sm100a(const __grid_constant__ TensorMap p,
                                                          const __grid_constant__ TensorMap q, float4* product) {
    constexpr int row_bytes = product_depth * sizeof(bf16), a_bytes = product_rows * row_bytes;
    constexpr int bytes = a_bytes + product_cols * row_bytes, columns = tcgen05_columns(product_cols);
    __shared__ alignas(256) unsigned char tiles[bytes];
    __shared__ unsigned long long barriers[2];
    __shared__ volatile unsigned address;
    const unsigned a = cvta_to_shared(tiles), b = a + a_bytes, warp = shfl_sync_idx(all_lanes, threadIdx.x / 32, 0);
    const unsigned loaded = cvta_to_shared(barriers), multiplied = loaded + 8;

    // A whole warp allocates columns of tensor memory, whose address arrives in shared memory.
    if (warp == 0) {
        tcgen05_alloc<1>(cvta_to_shared(const_cast<unsigned*>(&address)), columns);
        tcgen05_relinquish_alloc_permit<1>();
    }
    if (threadIdx.x == 32) {
        mbarrier_init(loaded, 1);
        mbarrier_init(multiplied, 1);
        fence_mbarrier_init_release_cluster();
    }
    barrier_sync();
    const unsigned sums = address;
    if (warp == 0 && elect_sync(all_lanes)) {
        mbarrier_arrive_expect_tx(loaded, bytes);
        cp_async_bulk_tensor_2d_shared_global(a, p, 0, blockIdx.x * product_rows, loaded);
        cp_async_bulk_tensor_2d_shared_global(b, q, 0, blockIdx.x * product_cols, loaded);
        mbarrier_wait(loaded, 0);
        tcgen05_mma<bf16, 1>(sums, tcgen05_descriptor_32B(a), tcgen05_descriptor_32B(b),
                             tcgen05_instruction<bf16>(product_rows, product_cols), false);
        tcgen05_commit(multiplied);
    }
    __syncwarp();
    mbarrier_wait(multiplied, 0);
    tcgen05_fence_after_thread_sync();
    float row[8];
    tcgen05_ld_32x32b_x8(row, sums + (warp % 4 * 32 << 16) + product_col());
    tcgen05_wait_ld(row);
    store_product(row, product);
    barrier_sync();  // all warps have read the sums
    if (warp == 0) tcgen05_dealloc<1>(sums, columns);
}
