// PTX ISA, "Data Movement and Conversion Instructions: cp.async.bulk.tensor" and "Tensors": copies of a box of a
// tensor, whose shape, strides and swizzle a tensor map holds. Coordinates are in elements, the contiguous dimension
// first; what lies outside the tensor is filled on the way in and left out on the way back. Shared addresses are
// multiples of 128 bytes.
#pragma once
#include "ptxkit/ptx/data_movement.cuh"

namespace ptxkit {

// 128 opaque bytes that the host encodes (ptxkit.TensorMap), as a parameter `const __grid_constant__ TensorMap`.
struct alignas(64) TensorMap {
    unsigned long long opaque[16];
};

__device__ __forceinline__ unsigned long long address_of(const TensorMap& map) {
    return reinterpret_cast<unsigned long long>(&map);
}

// The map itself, before it is first used.
__device__ __forceinline__ void prefetch_tensormap(const TensorMap& map) {
#if PTXKIT_SM >= 90
    asm volatile("prefetch.tensormap [%0];" :: "l"(address_of(map)) : "memory");
#else
    PTXKIT_UNSUPPORTED("prefetch.tensormap", "sm_90");
#endif
}

// Global to shared memory. The mbarrier counts the bytes of the whole box, filled ones included.

__device__ __forceinline__ void cp_async_bulk_tensor_1d_shared_global(
    unsigned to, const TensorMap& map, int x, unsigned barrier) {
#if PTXKIT_SM >= 90
    asm volatile(
        "cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2}], [%3];" ::
            "r"(to),
        "l"(address_of(map)), "r"(x), "r"(barrier)
        : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async.bulk.tensor", "sm_90");
#endif
}

__device__ __forceinline__ void cp_async_bulk_tensor_2d_shared_global(
    unsigned to, const TensorMap& map, int x, int y, unsigned barrier) {
#if PTXKIT_SM >= 90
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
        "[%4];" ::"r"(to),
        "l"(address_of(map)), "r"(x), "r"(y), "r"(barrier)
        : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async.bulk.tensor", "sm_90");
#endif
}

__device__ __forceinline__ void cp_async_bulk_tensor_3d_shared_global(
    unsigned to, const TensorMap& map, int x, int y, int z, unsigned barrier) {
#if PTXKIT_SM >= 90
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
        "[%5];" ::"r"(to),
        "l"(address_of(map)), "r"(x), "r"(y), "r"(z), "r"(barrier)
        : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async.bulk.tensor", "sm_90");
#endif
}

__device__ __forceinline__ void cp_async_bulk_tensor_4d_shared_global(
    unsigned to, const TensorMap& map, int x, int y, int z, int u, unsigned barrier) {
#if PTXKIT_SM >= 90
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, "
        "%5}], [%6];" ::"r"(to),
        "l"(address_of(map)), "r"(x), "r"(y), "r"(z), "r"(u), "r"(barrier)
        : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async.bulk.tensor", "sm_90");
#endif
}

__device__ __forceinline__ void cp_async_bulk_tensor_5d_shared_global(
    unsigned to, const TensorMap& map, int x, int y, int z, int u, int v, unsigned barrier) {
#if PTXKIT_SM >= 90
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5, "
        "%6}], [%7];" ::"r"(to),
        "l"(address_of(map)), "r"(x), "r"(y), "r"(z), "r"(u), "r"(v), "r"(barrier)
        : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async.bulk.tensor", "sm_90");
#endif
}

// To the same offset of every CTA that has a bit in `ctas`, by rank in the cluster, and to its mbarrier at that offset.
__device__ __forceinline__ void cp_async_bulk_tensor_2d_shared_global_multicast(
    unsigned to, const TensorMap& map, int x, int y, unsigned barrier, unsigned short ctas) {
#if PTXKIT_SM >= 90
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
        "[%1, {%2, %3}], [%4], %5;" ::"r"(to),
        "l"(address_of(map)), "r"(x), "r"(y), "r"(barrier), "h"(ctas)
        : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async.bulk.tensor.multicast", "sm_90");
#endif
}

// Into this CTA's shared memory, with the bytes counted at the mbarrier at this offset in the CTA of even rank of its
// pair. Bit 24 of a shared::cluster address is the lowest bit of the CTA's rank.
__device__ __forceinline__ void cp_async_bulk_tensor_2d_shared_global_cta_group_2(
    unsigned to, const TensorMap& map, int x, int y, unsigned barrier) {
#if PTXKIT_SM100F
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.cta_group::2 [%0], "
        "[%1, {%2, %3}], [%4];" ::"r"(to),
        "l"(address_of(map)), "r"(x), "r"(y), "r"(barrier & 0xfeffffff)
        : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async.bulk.tensor.cta_group::2", "sm_100a or sm_100f");
#endif
}

// Shared to global memory, in this thread's bulk group; see bulk_copy.cuh for commit and wait.

__device__ __forceinline__ void cp_async_bulk_tensor_1d_global_shared(const TensorMap& map, int x, unsigned from) {
#if PTXKIT_SM >= 90
    asm volatile("cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%0, {%1}], [%2];"
                 :: "l"(address_of(map)), "r"(x), "r"(from) : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async.bulk.tensor", "sm_90");
#endif
}

__device__ __forceinline__ void cp_async_bulk_tensor_2d_global_shared(const TensorMap& map, int x, int y,
                                                                      unsigned from) {
#if PTXKIT_SM >= 90
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];"
                 :: "l"(address_of(map)), "r"(x), "r"(y), "r"(from) : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async.bulk.tensor", "sm_90");
#endif
}

__device__ __forceinline__ void cp_async_bulk_tensor_3d_global_shared(const TensorMap& map, int x, int y, int z,
                                                                      unsigned from) {
#if PTXKIT_SM >= 90
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];"
                 :: "l"(address_of(map)), "r"(x), "r"(y), "r"(z), "r"(from) : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async.bulk.tensor", "sm_90");
#endif
}

__device__ __forceinline__ void cp_async_bulk_tensor_4d_global_shared(const TensorMap& map, int x, int y, int z, int u,
                                                                      unsigned from) {
#if PTXKIT_SM >= 90
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4}], [%5];"
                 :: "l"(address_of(map)), "r"(x), "r"(y), "r"(z), "r"(u), "r"(from) : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async.bulk.tensor", "sm_90");
#endif
}

__device__ __forceinline__ void cp_async_bulk_tensor_5d_global_shared(const TensorMap& map, int x, int y, int z, int u,
                                                                      int v, unsigned from) {
#if PTXKIT_SM >= 90
    asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4, %5}], [%6];"
                 :: "l"(address_of(map)), "r"(x), "r"(y), "r"(z), "r"(u), "r"(v), "r"(from) : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async.bulk.tensor", "sm_90");
#endif
}

// The same, but added to what is there, in the map's element type.
__device__ __forceinline__ void cp_reduce_async_bulk_tensor_2d_global_shared_add(const TensorMap& map, int x, int y,
                                                                                 unsigned from) {
#if PTXKIT_SM >= 90
    asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2}], [%3];"
                 :: "l"(address_of(map)), "r"(x), "r"(y), "r"(from) : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.reduce.async.bulk.tensor", "sm_90");
#endif
}

__device__ __forceinline__ void cp_async_bulk_prefetch_tensor_2d_L2_global(const TensorMap& map, int x, int y) {
#if PTXKIT_SM >= 90
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(address_of(map)), "r"(x),
                 "r"(y)
                 : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async.bulk.prefetch.tensor", "sm_90");
#endif
}

// Where the byte of a tile lies that would be at `offset` without the swizzle: a box whose rows are SPAN bytes long
// (32, 64 or 128) has its 16-byte atoms permuted within 8 * SPAN bytes, so that those of a column lie in different
// banks. The tile's shared address must be a multiple of 8 * SPAN. PTX ISA, "Tensors: Swizzling modes".
template <int SPAN>
__device__ __forceinline__ unsigned swizzled(unsigned offset) {
    static_assert(SPAN == 32 || SPAN == 64 || SPAN == 128, "there are swizzles of 32, 64 and 128 bytes");
    return offset ^ (offset >> 3 & (SPAN - 16));
}

}  // namespace ptxkit
