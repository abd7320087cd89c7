// cp.async.bulk.tensor, cp.reduce.async.bulk.tensor, cp.async.bulk.prefetch.tensor, prefetch.tensormap. PTX ISA, "Data
// Movement and Conversion Instructions: Asynchronous copy: Tensor copy" and "Tensors". Target: sm_90 or newer.
//
// Each instruction copies a box of a tensor of one to five dimensions. The tensor map holds the address, sizes and
// strides of the tensor, the sizes of the box, and the swizzle. One thread issues the instruction, and the TMA unit
// performs it asynchronously, with the completion mechanisms of bulk_copy.cuh.
//
// Operands: x, y, z, u, v are the coordinates of the box's first element, in elements, x in the contiguous dimension;
// they may be negative. Elements outside the tensor are filled (with zeros or NaN, as the map states) by a copy to
// shared memory, and not written by a copy to global memory. `to` and `from` are addresses of a box in the shared
// window (cvta_to_shared), multiples of 128; `barrier` is the address of an mbarrier.
#pragma once
#include "ptxkit/ptx/data_movement.cuh"

namespace ptxkit {

// A tensor map: 128 opaque bytes that the host encodes (ptxkit.TensorMap) and that a kernel receives as a parameter of
// type `const __grid_constant__ TensorMap`.
struct alignas(64) TensorMap {
    unsigned long long opaque[16];
};

__device__ __forceinline__ unsigned long long address_of(const TensorMap& map) {
    return reinterpret_cast<unsigned long long>(&map);
}

// prefetch.tensormap: loads the tensor map into the cache before its first use.
__device__ __forceinline__ void prefetch_tensormap(const TensorMap& map) {
#if PTXKIT_SM >= 90
    asm volatile("prefetch.tensormap [%0];" :: "l"(address_of(map)) : "memory");
#else
    PTXKIT_UNSUPPORTED("prefetch.tensormap", "sm_90");
#endif
}

// Copy a box of the tensor to shared memory. The complete-tx on `barrier` has the size of the whole box in bytes,
// including elements that are filled.

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

// Copies a box to several CTAs of the cluster: to each CTA whose rank has its bit set in `ctas`. The data and the
// complete-tx go to the same CTA-relative offsets in each of them as `to` and `barrier` have in the executing CTA.
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

__device__ __forceinline__ void cp_async_bulk_tensor_3d_shared_global_multicast(
    unsigned to, const TensorMap& map, int x, int y, int z, unsigned barrier, unsigned short ctas) {
#if PTXKIT_SM >= 90
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
        "[%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
        "l"(address_of(map)), "r"(x), "r"(y), "r"(z), "r"(barrier), "h"(ctas)
        : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async.bulk.tensor.multicast", "sm_90");
#endif
}

// Copies a box to shared memory of the executing CTA, with the complete-tx on the mbarrier at the CTA-relative offset
// of `barrier` in the CTA of even rank of its CTA pair (cta_group::2). Bit 24 of a shared::cluster address is the
// lowest bit of the CTA's rank. Target: sm_100f or sm_110f, or another one of these families.
__device__ __forceinline__ void cp_async_bulk_tensor_2d_shared_global_cta_group_2(
    unsigned to, const TensorMap& map, int x, int y, unsigned barrier) {
#if PTXKIT_TCGEN05
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.cta_group::2 [%0], "
        "[%1, {%2, %3}], [%4];" ::"r"(to),
        "l"(address_of(map)), "r"(x), "r"(y), "r"(barrier & 0xfeffffff)
        : "memory");
#else
    PTXKIT_UNSUPPORTED_EXCEPT("cp.async.bulk.tensor.cta_group::2", PTXKIT_TCGEN05_TARGETS);
#endif
}

// The same to several CTAs of the cluster, at the same CTA-relative offset: to each CTA whose rank has its bit set in
// `ctas`, with a complete-tx on the mbarrier of the CTA of even rank of its pair.
__device__ __forceinline__ void cp_async_bulk_tensor_2d_shared_global_cta_group_2_multicast(
    unsigned to, const TensorMap& map, int x, int y, unsigned barrier, unsigned short ctas) {
#if PTXKIT_TCGEN05
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
        ".cta_group::2 [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
        "l"(address_of(map)), "r"(x), "r"(y), "r"(barrier & 0xfeffffff), "h"(ctas)
        : "memory");
#else
    PTXKIT_UNSUPPORTED_EXCEPT("cp.async.bulk.tensor.cta_group::2", PTXKIT_TCGEN05_TARGETS);
#endif
}

// Copy a box from shared memory to the tensor, as part of a bulk group of this thread: see cp_async_bulk_commit_group
// and cp_async_bulk_wait_group in bulk_copy.cuh.

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

// Adds a box in shared memory to the tensor, each element atomically, in the element type of the map.
__device__ __forceinline__ void cp_reduce_async_bulk_tensor_2d_global_shared_add(const TensorMap& map, int x, int y,
                                                                                 unsigned from) {
#if PTXKIT_SM >= 90
    asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2}], [%3];"
                 :: "l"(address_of(map)), "r"(x), "r"(y), "r"(from) : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.reduce.async.bulk.tensor", "sm_90");
#endif
}

// Requests that a box of the tensor be loaded into L2.
__device__ __forceinline__ void cp_async_bulk_prefetch_tensor_2d_L2_global(const TensorMap& map, int x, int y) {
#if PTXKIT_SM >= 90
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(address_of(map)), "r"(x),
                 "r"(y)
                 : "memory");
#else
    PTXKIT_UNSUPPORTED("cp.async.bulk.prefetch.tensor", "sm_90");
#endif
}

// The offset in a swizzled box of the byte whose offset without swizzle is `offset`. A box with rows of SPAN bytes (32,
// 64 or 128) has the 16-byte atoms of each row permuted, with a pattern that repeats after 8 * SPAN bytes, so that the
// atoms of a column are in different banks. The shared address of the box must be a multiple of 8 * SPAN. PTX ISA,
// "Tensors: Swizzling modes".
template <int SPAN>
__device__ __forceinline__ unsigned swizzled(unsigned offset) {
    static_assert(SPAN == 32 || SPAN == 64 || SPAN == 128, "the swizzle span is 32, 64 or 128 bytes");
    return offset ^ (offset >> 3 & (SPAN - 16));
}

}  // namespace ptxkit
