// y = gelu(x) * gate, n elements of f32, with inputs that pass through shared memory in tiles: the next tile is copied
// while the current one is computed.
//
// 1. `serial`: copy a tile, wait for it, compute, then start the next one. Device memory is idle during the
//     computation.
// 2. `two_stage`: two buffers and cp.async groups. The copy of the next tile starts before the wait for this one.
// 3. `bulk`: one thread issues TMA copies of whole tiles in both directions; one mbarrier per buffer signals their
//     arrival.
//
// With one CTA per SM nothing else hides the latency of device memory, so the difference is the gain of overlapping.
// (Several CTAs per SM hide it as well, where registers and shared memory allow; CTAS is their number.)
//
// n is a multiple of 4, so that all accesses have 16 bytes. A tile has QUADS * THREADS vectors of 16 bytes; `quads` is
// the number of these vectors in an array.
#include "ptxkit/elementwise/gate.cuh"
#include "ptxkit/ptx/async_copy.cuh"
#include "ptxkit/ptx/bulk_copy.cuh"
#include "ptxkit/ptx/data_movement.cuh"
#include "ptxkit/ptx/mbarrier.cuh"
#include "ptxkit/ptx/synchronization.cuh"

using namespace ptxkit;

template <int THREADS, int QUADS>
struct Buffer {
    float4 x[THREADS * QUADS], gate[THREADS * QUADS];
};

// Each thread copies what it will read itself, so that no thread waits for another.
template <int THREADS, int QUADS>
__device__ __forceinline__ void copy_tile(Buffer<THREADS, QUADS>& buffer, const float4* x, const float4* gate,
                                          unsigned first, unsigned quads) {
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
        const unsigned at = i * THREADS + threadIdx.x;
        if (first + at < quads) {
            cp_async_cg_shared_global(cvta_to_shared(&buffer.x[at]), x + first + at);
            cp_async_cg_shared_global(cvta_to_shared(&buffer.gate[at]), gate + first + at);
        }
    }
}

template <int THREADS, int QUADS>
__device__ __forceinline__ void compute_tile(const Buffer<THREADS, QUADS>& buffer, float4* y, unsigned first,
                                             unsigned quads) {
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
        const unsigned at = i * THREADS + threadIdx.x;
        if (first + at < quads) st_global(y + first + at, gated(buffer.x[at], buffer.gate[at]));
    }
}

template <int THREADS, int QUADS>
__global__ void __launch_bounds__(THREADS) serial(const float4* x, const float4* gate, float4* y, int quads) {
    extern __shared__ __align__(128) unsigned char shared[];
    Buffer<THREADS, QUADS>& buffer = *reinterpret_cast<Buffer<THREADS, QUADS>*>(shared);
    for (unsigned first = blockIdx.x * THREADS * QUADS; first < quads; first += gridDim.x * THREADS * QUADS) {
        copy_tile(buffer, x, gate, first, quads);
        cp_async_wait_all();
        compute_tile(buffer, y, first, quads);
    }
}

template <int THREADS, int QUADS>
__global__ void __launch_bounds__(THREADS) two_stage(const float4* x, const float4* gate, float4* y, int quads) {
    extern __shared__ __align__(128) unsigned char shared[];
    Buffer<THREADS, QUADS>* buffers = reinterpret_cast<Buffer<THREADS, QUADS>*>(shared);
    const unsigned stride = gridDim.x * THREADS * QUADS;
    unsigned first = blockIdx.x * THREADS * QUADS, current = 0;
    copy_tile(buffers[0], x, gate, first, quads);
    cp_async_commit_group();
    for (; first < quads; first += stride, current ^= 1) {
        copy_tile(buffers[current ^ 1], x, gate, first + stride, quads);
        cp_async_commit_group();
        cp_async_wait_group<1>();  // this tile has arrived; the next one may be in flight
        compute_tile(buffers[current], y, first, quads);
    }
}

// The inputs and the results of a tile. TMA stores the results from shared memory.
template <int THREADS, int QUADS>
struct Stage {
    Buffer<THREADS, QUADS> in;
    float4 y[THREADS * QUADS];
};

template <int THREADS, int QUADS>
__global__ void __launch_bounds__(THREADS) bulk(const float4* x, const float4* gate, float4* y, int quads) {
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ unsigned long long arrived[2];
    Stage<THREADS, QUADS>* stages = reinterpret_cast<Stage<THREADS, QUADS>*>(shared);
    constexpr unsigned tile = THREADS * QUADS;
    const unsigned barriers = cvta_to_shared(arrived), stride = gridDim.x * tile;
    auto bytes_of = [&](unsigned first) { return 16 * min(tile, quads - first); };
    auto copy = [&](unsigned stage, unsigned first) {
        if (first >= quads) return;
        const unsigned bytes = bytes_of(first), barrier = barriers + 8 * stage;
        mbarrier_arrive_expect_tx(barrier, 2 * bytes);
        cp_async_bulk_shared_global(cvta_to_shared(stages[stage].in.x), x + first, bytes, barrier);
        cp_async_bulk_shared_global(cvta_to_shared(stages[stage].in.gate), gate + first, bytes, barrier);
    };

    if (threadIdx.x == 0) {
        mbarrier_init(barriers, 1);
        mbarrier_init(barriers + 8, 1);
        fence_mbarrier_init_release_cluster();
    }
    barrier_sync();
    unsigned first = blockIdx.x * tile;
    if (threadIdx.x == 0) copy(0, first);
    Ring<2> at;
    for (; first < quads; first += stride, at.advance()) {
        Stage<THREADS, QUADS>& stage = stages[at.stage];
        if (threadIdx.x == 0) {
            copy(at.stage ^ 1, first + stride);
            cp_async_bulk_wait_group_read<1>();  // the results of two tiles ago have been read from this stage
        }
        barrier_sync();
        mbarrier_wait(barriers + 8 * at.stage, at.parity);
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
            const unsigned q = i * THREADS + threadIdx.x;
            stage.y[q] = gated(stage.in.x[q], stage.in.gate[q]);
        }
        fence_proxy_async_shared_cta();
        barrier_sync();  // all results are written, and no thread reads this stage any more
        if (threadIdx.x == 0) {
            cp_async_bulk_global_shared(y + first, cvta_to_shared(stage.y), bytes_of(first));
            cp_async_bulk_commit_group();
        }
    }
    if (threadIdx.x == 0) cp_async_bulk_wait_group_read<0>();  // shared memory is released when the CTA exits
}
