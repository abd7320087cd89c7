// What CUDA's own headers make of asynchronous copies and clusters: cooperative groups, cuda::barrier, cuda::ptx.
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cuda/barrier>
#include <cuda/ptx>
namespace cg = cooperative_groups;
extern "C" __global__ void __cluster_dims__(4, 1, 1) k(const int* x, int* y) {
    __shared__ alignas(128) int tile[256];
    __shared__ int total;
    __shared__ cuda::barrier<cuda::thread_scope_block> bar;
    cg::cluster_group cluster = cg::this_cluster();
    if (threadIdx.x == 0) { init(&bar, blockDim.x); cuda::ptx::fence_proxy_async(cuda::ptx::space_shared); total = 0; }
    __syncthreads();
    cuda::barrier<cuda::thread_scope_block>::arrival_token token;
    if (threadIdx.x == 0) {
        cuda::device::memcpy_async_tx(tile, x + 256 * blockIdx.x, cuda::aligned_size_t<16>(1024), bar);
        token = cuda::device::barrier_arrive_tx(bar, 1, 1024);
    } else token = bar.arrive();
    bar.wait(std::move(token));
    cluster.sync();
    int* remote = cluster.map_shared_rank(&total, 0);
    atomicAdd(remote, tile[threadIdx.x]);
    int* next = cluster.map_shared_rank(tile, (cluster.block_rank() + 1) % cluster.num_blocks());
    int v = next[threadIdx.x];
    cluster.sync();
    y[blockIdx.x * 256 + threadIdx.x] = v + (cluster.block_rank() == 0 ? total : 0);
    __syncthreads();
    tile[threadIdx.x] *= 2;
    cuda::ptx::fence_proxy_async(cuda::ptx::space_shared);
    __syncthreads();
    if (threadIdx.x == 0) {
        cuda::ptx::cp_async_bulk(cuda::ptx::space_global, cuda::ptx::space_shared, y + 1024 * 2 + 256 * blockIdx.x, tile, 1024);
        cuda::ptx::cp_async_bulk_commit_group();
        cuda::ptx::cp_async_bulk_wait_group_read(cuda::ptx::n32_t<0>());
    }
}
extern "C" __global__ void p(const int* x, int* y) {
    __shared__ int tile[256];
    auto block = cg::this_thread_block();
    cg::memcpy_async(block, tile, x + 256 * blockIdx.x, 1024);
    cg::wait(block);
    y[blockIdx.x * 256 + threadIdx.x] = tile[255 - threadIdx.x];
}
