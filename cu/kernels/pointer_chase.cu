// pointer_chase: a chain of dependent loads, each of which reads the address of the next one, so that the time of a step is
// the latency of a load. The table has one entry in each line of 128 bytes; `next` holds the number of the next line.
//
// - `chase_link` writes a table of addresses to global memory, so that a step of the chase is one load and nothing else.
// - `chase_global` follows it with ld.global.ca, which L1 caches, or ld.global.cg, which only L2 does.
// - `chase_shared` has the table in shared memory, as addresses in the shared window.
// - `chase_remote` reads the table from the shared memory of the other CTA of a cluster.
#include "ptxkit/ptx/data_movement.cuh"
#include "ptxkit/ptx/special_registers.cuh"
#include "ptxkit/ptx/synchronization.cuh"

using namespace ptxkit;

constexpr int LINE = 32;  // words of a line of 128 bytes

template <int THREADS>
__global__ void __launch_bounds__(THREADS) chase_link(const unsigned* next, unsigned long long* table, int lines) {
    const int line = blockIdx.x * THREADS + threadIdx.x;
    if (line < lines) {
        const unsigned long long* to = table + next[static_cast<size_t>(line) * LINE] * size_t(LINE / 2);
        table[static_cast<size_t>(line) * (LINE / 2)] = reinterpret_cast<unsigned long long>(to);
    }
}

// One thread. `end` is the line at which the chain arrives.
template <bool L1>
__global__ void __launch_bounds__(32) chase_global(const unsigned long long* table, unsigned* end, int steps) {
    if (threadIdx.x != 0) return;
    const unsigned long long* at = table;
#pragma unroll 16
    for (int i = 0; i < steps; i++) {
        at = reinterpret_cast<const unsigned long long*>(L1 ? __ldca(at) : __ldcg(at));
    }
    *end = static_cast<unsigned>((at - table) / (LINE / 2));
}

// Copies the chain to shared memory, as addresses: of this CTA, or with a cluster of the other one.
__device__ __forceinline__ unsigned table_in_shared(const unsigned* next, int lines, unsigned first) {
    extern __shared__ unsigned table[];
    for (int line = threadIdx.x; line < lines; line += blockDim.x) {
        table[line * LINE] = first + next[static_cast<size_t>(line) * LINE] * LINE * sizeof(unsigned);
    }
    return cvta_to_shared(table);
}

__global__ void __launch_bounds__(32) chase_shared(const unsigned* next, unsigned* end, int lines, int steps) {
    extern __shared__ unsigned table[];
    const unsigned first = cvta_to_shared(table);
    table_in_shared(next, lines, first);
    barrier_sync();
    if (threadIdx.x != 0) return;
    unsigned at = first;
#pragma unroll 16
    for (int i = 0; i < steps; i++) at = ld_shared_u32(at);
    *end = (at - first) / (LINE * sizeof(unsigned));
}

// Both CTAs hold the chain of the addresses in CTA 1, and CTA 0 follows it.
__global__ void __launch_bounds__(32) chase_remote(const unsigned* next, unsigned* end, int lines, int steps) {
    extern __shared__ unsigned table[];
    const unsigned first = mapa_shared_cluster(cvta_to_shared(table), 1);
    table_in_shared(next, lines, first);
    barrier_cluster_arrive_release();
    barrier_cluster_wait_acquire();
    if (cluster_ctarank() == 0 && threadIdx.x == 0) {
        unsigned at = first;
#pragma unroll 16
        for (int i = 0; i < steps; i++) at = ld_shared_cluster_u32(at);
        *end = (at - first) / (LINE * sizeof(unsigned));
    }
    __syncwarp();
    barrier_cluster_arrive_release();  // the table stays until it has been read
    barrier_cluster_wait_acquire();
}
