// y = gelu(x) * gate, n elements of f32, with inputs that pass through shared memory in tiles: producer warps copy
// tiles and consumer warps compute them.
//
// 1. `serial`: all warps copy a tile, synchronize, compute it, synchronize. Copies and computation do not overlap.
// 2. `named_barriers`: PRODUCERS threads copy (cp.async), CONSUMERS threads compute. Each of STAGES buffers has two
//     named barriers: the threads that finished with a buffer arrive without waiting, the threads that need it wait.
// 3. `mbarriers`: one producer thread uses TMA. mbarriers in shared memory count bytes and arrivals, so that copies
//     take no warps and STAGES is not limited by the 16 barriers of a CTA.
//
// With one CTA per SM nothing else hides the latency of device memory; see two_stage_pipeline.cu.
//
// n is a multiple of 4, so that all accesses have 16 bytes. A tile has QUADS * CONSUMERS vectors of 16 bytes; `quads`
// is the number of these vectors in an array.
#include "ptxkit/elementwise/gate.cuh"
#include "ptxkit/ptx/async_copy.cuh"
#include "ptxkit/ptx/bulk_copy.cuh"
#include "ptxkit/ptx/data_movement.cuh"
#include "ptxkit/ptx/mbarrier.cuh"
#include "ptxkit/ptx/synchronization.cuh"

using namespace ptxkit;

template <int TILE>
struct Buffer {
    float4 x[TILE], gate[TILE];
};

// Copies a tile with THREADS threads; `thread` is the index of the calling one among them.
template <int THREADS, int TILE>
__device__ __forceinline__ void copy_tile(Buffer<TILE>& buffer, const float4* x, const float4* gate, unsigned first,
                                          unsigned quads, unsigned thread) {
#pragma unroll
    for (int i = 0; i < TILE / THREADS; i++) {
        const unsigned at = i * THREADS + thread;
        if (first + at < quads) {
            cp_async_cg_shared_global(cvta_to_shared(&buffer.x[at]), x + first + at);
            cp_async_cg_shared_global(cvta_to_shared(&buffer.gate[at]), gate + first + at);
        }
    }
}

// Computes a tile with THREADS threads.
template <int THREADS, int TILE>
__device__ __forceinline__ void compute_tile(const Buffer<TILE>& buffer, float4* y, unsigned first, unsigned quads,
                                             unsigned thread) {
#pragma unroll
    for (int i = 0; i < TILE / THREADS; i++) {
        const unsigned at = i * THREADS + thread;
        if (first + at < quads) st_global(y + first + at, gated(buffer.x[at], buffer.gate[at]));
    }
}

template <int CONSUMERS, int QUADS>
__global__ void __launch_bounds__(CONSUMERS) serial(const float4* x, const float4* gate, float4* y, int quads) {
    constexpr unsigned tile = CONSUMERS * QUADS;
    extern __shared__ __align__(128) unsigned char shared[];
    Buffer<tile>& buffer = *reinterpret_cast<Buffer<tile>*>(shared);
    for (unsigned first = blockIdx.x * tile; first < quads; first += gridDim.x * tile) {
        copy_tile<CONSUMERS>(buffer, x, gate, first, quads, threadIdx.x);
        cp_async_wait_all();
        barrier_sync();
        compute_tile<CONSUMERS>(buffer, y, first, quads, threadIdx.x);
        barrier_sync();
    }
}

template <int CONSUMERS, int QUADS, int PRODUCERS, int STAGES>
__global__ void __launch_bounds__(CONSUMERS + PRODUCERS) named_barriers(const float4* x, const float4* gate, float4* y,
                                                                        int quads) {
    constexpr unsigned tile = CONSUMERS * QUADS, all = CONSUMERS + PRODUCERS;
    static_assert(2 * STAGES <= 15, "a CTA has 16 barriers, and barrier_sync() uses barrier 0");
    static_assert(tile % PRODUCERS == 0 && CONSUMERS % 32 == 0 && PRODUCERS % 32 == 0,
                  "producers and consumers are whole warps, and all producers copy the same number of vectors");
    extern __shared__ __align__(128) unsigned char shared[];
    Buffer<tile>* buffers = reinterpret_cast<Buffer<tile>*>(shared);
    auto full = [](unsigned stage) { return 1 + stage; };
    auto empty = [](unsigned stage) { return 1 + STAGES + stage; };
    const unsigned stride = gridDim.x * tile;
    unsigned first = blockIdx.x * tile;
    Ring<STAGES> at;

    if (threadIdx.x < PRODUCERS) {
        // Waits for the copy of a tile after STAGES - 1 later ones have started; groups past the last tile are empty.
        Ring<STAGES> copied;
        for (unsigned iteration = 0; first < quads + (STAGES - 1) * stride; first += stride, iteration++) {
            if (first < quads) {
                if (iteration >= STAGES) barrier_sync(empty(at.stage), all);
                copy_tile<PRODUCERS>(buffers[at.stage], x, gate, first, quads, threadIdx.x);
            }
            cp_async_commit_group();
            at.advance();
            if (iteration >= STAGES - 1) {
                cp_async_wait_group<STAGES - 1>();
                barrier_arrive(full(copied.stage), all);
                copied.advance();
            }
        }
    } else {
        for (; first < quads; first += stride, at.advance()) {
            barrier_sync(full(at.stage), all);
            compute_tile<CONSUMERS>(buffers[at.stage], y, first, quads, threadIdx.x - PRODUCERS);
            if (first + STAGES * stride < quads) barrier_arrive(empty(at.stage), all);  // the producers wait for it
        }
    }
}

template <int CONSUMERS, int QUADS, int STAGES>
__global__ void __launch_bounds__(CONSUMERS + 32) mbarriers(const float4* x, const float4* gate, float4* y, int quads) {
    constexpr unsigned tile = CONSUMERS * QUADS;
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ unsigned long long barriers[2 * STAGES];
    Buffer<tile>* buffers = reinterpret_cast<Buffer<tile>*>(shared);
    const unsigned full = cvta_to_shared(barriers), empty = full + 8 * STAGES, stride = gridDim.x * tile;
    if (threadIdx.x == 0) init_ring<STAGES>(full, 1, empty, CONSUMERS / 32);
    barrier_sync();
    unsigned first = blockIdx.x * tile;
    Ring<STAGES> at;

    if (threadIdx.x < 32) {
        if (threadIdx.x == 0) {
            for (; first < quads; first += stride, at.advance()) {
                const unsigned bytes = 16 * min(tile, quads - first), barrier = full + 8 * at.stage;
                mbarrier_wait(empty + 8 * at.stage, at.parity ^ 1);
                mbarrier_arrive_expect_tx(barrier, 2 * bytes);
                cp_async_bulk_shared_global(cvta_to_shared(buffers[at.stage].x), x + first, bytes, barrier);
                cp_async_bulk_shared_global(cvta_to_shared(buffers[at.stage].gate), gate + first, bytes, barrier);
            }
        }
    } else {
        for (; first < quads; first += stride, at.advance()) {
            mbarrier_wait(full + 8 * at.stage, at.parity);
            compute_tile<CONSUMERS>(buffers[at.stage], y, first, quads, threadIdx.x - 32);
            __syncwarp();
            if (threadIdx.x % 32 == 0) mbarrier_arrive(empty + 8 * at.stage);
        }
    }
}
