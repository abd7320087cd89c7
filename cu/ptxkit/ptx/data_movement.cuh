// PTX ISA, "Data Movement and Conversion Instructions": ld, st, shfl, prmt, cvta, mapa, createpolicy, prefetch.
#pragma once
#include "ptxkit/ptx/guard.cuh"

namespace ptxkit {

// cvta.to: generic address -> address in a state space.

__device__ __forceinline__ unsigned long long cvta_to_global(const void* pointer) {
    unsigned long long address;
    asm("cvta.to.global.u64 %0, %1;" : "=l"(address) : "l"(pointer));
    return address;
}

__device__ __forceinline__ unsigned cvta_to_shared(const void* pointer) {
    unsigned long long address;
    asm("cvta.to.shared.u64 %0, %1;" : "=l"(address) : "l"(pointer));
    return static_cast<unsigned>(address);
}

// ld.global.nc: memory that nobody writes while the kernel runs. L1::no_allocate: read once, so do not keep it in L1.
// The asm is not volatile: such a load may move and may be dropped.

__device__ __forceinline__ float4 ld_global_nc(const float4* pointer) {
    float4 v;
    asm("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];"
        : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
        : "l"(cvta_to_global(pointer)));
    return v;
}

__device__ __forceinline__ float ld_global_nc(const float* pointer) {
    float v;
    asm("ld.global.nc.f32 %0, [%1];" : "=f"(v) : "l"(cvta_to_global(pointer)));
    return v;
}

__device__ __forceinline__ float4 ld_global_nc_L1_no_allocate(const float4* pointer) {
    float4 v;
    asm("ld.global.nc.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];"
        : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
        : "l"(cvta_to_global(pointer)));
    return v;
}

__device__ __forceinline__ float ld_global_nc_L1_no_allocate(const float* pointer) {
    float v;
    asm("ld.global.nc.L1::no_allocate.f32 %0, [%1];" : "=f"(v) : "l"(cvta_to_global(pointer)));
    return v;
}

// ld.global: 16, 8 and 4 bytes of whatever type, of memory that a grid may have written that has not ended when this
// one starts. So the asm is volatile: nothing moves ahead of a griddepcontrol.wait.

__device__ __forceinline__ uint4 ld_global(const uint4* pointer) {
    uint4 v;
    asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(cvta_to_global(pointer)));
    return v;
}

__device__ __forceinline__ uint2 ld_global(const uint2* pointer) {
    uint2 v;
    asm volatile("ld.global.v2.b32 {%0, %1}, [%2];"
        : "=r"(v.x), "=r"(v.y)
        : "l"(cvta_to_global(pointer)));
    return v;
}

__device__ __forceinline__ unsigned ld_global(const unsigned* pointer) {
    unsigned v;
    asm volatile("ld.global.b32 %0, [%1];"
        : "=r"(v)
        : "l"(cvta_to_global(pointer)));
    return v;
}

__device__ __forceinline__ uint4 ld_global_L1_no_allocate(const uint4* pointer) {
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(cvta_to_global(pointer)));
    return v;
}

__device__ __forceinline__ uint2 ld_global_L1_no_allocate(const uint2* pointer) {
    uint2 v;
    asm volatile("ld.global.L1::no_allocate.v2.b32 {%0, %1}, [%2];"
        : "=r"(v.x), "=r"(v.y)
        : "l"(cvta_to_global(pointer)));
    return v;
}

__device__ __forceinline__ unsigned ld_global_L1_no_allocate(const unsigned* pointer) {
    unsigned v;
    asm volatile("ld.global.L1::no_allocate.b32 %0, [%1];"
        : "=r"(v)
        : "l"(cvta_to_global(pointer)));
    return v;
}

// 256 bits in one access, from an address that is a multiple of 32. A thread's 32 bytes are one sector.
__device__ __forceinline__ void ld_global_nc_L1_no_allocate_v8(const float* pointer, float (&v)[8]) {
#if PTXKIT_SM >= 100
    asm("ld.global.nc.L1::no_allocate.v8.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
        : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]), "=f"(v[4]), "=f"(v[5]), "=f"(v[6]), "=f"(v[7])
        : "l"(cvta_to_global(pointer)));
#else
    PTXKIT_UNSUPPORTED("ld.global.v8", "sm_100");
#endif
}

// createpolicy: how L2 treats the lines of the accesses that carry the policy (.L2::cache_hint, sm_80). A hint changes
// no result, so older targets do without it instead of trapping.

__device__ __forceinline__ unsigned long long createpolicy_L2_evict_first() {
    unsigned long long policy = 0;
#if PTXKIT_SM >= 80
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
    return policy;
}

__device__ __forceinline__ unsigned long long createpolicy_L2_evict_last() {
    unsigned long long policy = 0;
#if PTXKIT_SM >= 80
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
#endif
    return policy;
}

__device__ __forceinline__ float4 ld_global_nc_L1_no_allocate(const float4* pointer, unsigned long long policy) {
#if PTXKIT_SM >= 80
    float4 v;
    asm("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.f32 {%0, %1, %2, %3}, [%4], %5;"
        : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
        : "l"(cvta_to_global(pointer)), "l"(policy));
    return v;
#else
    return ld_global_nc_L1_no_allocate(pointer);
#endif
}

__device__ __forceinline__ uint4 ld_global(const uint4* pointer, unsigned long long policy) {
#if PTXKIT_SM >= 80
    uint4 v;
    asm volatile("ld.global.L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%4], %5;"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(cvta_to_global(pointer)), "l"(policy));
    return v;
#else
    return ld_global(pointer);
#endif
}

__device__ __forceinline__ uint2 ld_global(const uint2* pointer, unsigned long long policy) {
#if PTXKIT_SM >= 80
    uint2 v;
    asm volatile("ld.global.L2::cache_hint.v2.b32 {%0, %1}, [%2], %3;"
        : "=r"(v.x), "=r"(v.y)
        : "l"(cvta_to_global(pointer)), "l"(policy));
    return v;
#else
    return ld_global(pointer);
#endif
}

__device__ __forceinline__ unsigned ld_global(const unsigned* pointer, unsigned long long policy) {
#if PTXKIT_SM >= 80
    unsigned v;
    asm volatile("ld.global.L2::cache_hint.b32 %0, [%1], %2;"
        : "=r"(v)
        : "l"(cvta_to_global(pointer)), "l"(policy));
    return v;
#else
    return ld_global(pointer);
#endif
}

__device__ __forceinline__ uint4 ld_global_L1_no_allocate(const uint4* pointer, unsigned long long policy) {
#if PTXKIT_SM >= 80
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%4], %5;"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(cvta_to_global(pointer)), "l"(policy));
    return v;
#else
    return ld_global_L1_no_allocate(pointer);
#endif
}

__device__ __forceinline__ uint2 ld_global_L1_no_allocate(const uint2* pointer, unsigned long long policy) {
#if PTXKIT_SM >= 80
    uint2 v;
    asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v2.b32 {%0, %1}, [%2], %3;"
        : "=r"(v.x), "=r"(v.y)
        : "l"(cvta_to_global(pointer)), "l"(policy));
    return v;
#else
    return ld_global_L1_no_allocate(pointer);
#endif
}

__device__ __forceinline__ unsigned ld_global_L1_no_allocate(const unsigned* pointer, unsigned long long policy) {
#if PTXKIT_SM >= 80
    unsigned v;
    asm volatile("ld.global.L1::no_allocate.L2::cache_hint.b32 %0, [%1], %2;"
        : "=r"(v)
        : "l"(cvta_to_global(pointer)), "l"(policy));
    return v;
#else
    return ld_global_L1_no_allocate(pointer);
#endif
}

// st.global. cs: streaming, likely written once; L1::no_allocate: do not keep the line in L1.

__device__ __forceinline__ void st_global(float4* pointer, float4 v) {
    asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};"
                 :: "l"(cvta_to_global(pointer)), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}

__device__ __forceinline__ void st_global_L1_no_allocate(float4* pointer, float4 v) {
    asm volatile("st.global.L1::no_allocate.v4.f32 [%0], {%1, %2, %3, %4};"
                 :: "l"(cvta_to_global(pointer)), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}

__device__ __forceinline__ void st_global_L1_no_allocate(float* pointer, float v) {
    asm volatile("st.global.L1::no_allocate.f32 [%0], %1;" :: "l"(cvta_to_global(pointer)), "f"(v) : "memory");
}

__device__ __forceinline__ void st_global_cs(float4* pointer, float4 v) {
    asm volatile("st.global.cs.v4.f32 [%0], {%1, %2, %3, %4};"
                 :: "l"(cvta_to_global(pointer)), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}

__device__ __forceinline__ void st_global_cs(float* pointer, float v) {
    asm volatile("st.global.cs.f32 [%0], %1;" :: "l"(cvta_to_global(pointer)), "f"(v) : "memory");
}

__device__ __forceinline__ void st_global_cs(uint4* pointer, uint4 v) {
    asm volatile("st.global.cs.v4.b32 [%0], {%1, %2, %3, %4};"
                 :: "l"(cvta_to_global(pointer)), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

__device__ __forceinline__ void st_global_cs(uint2* pointer, uint2 v) {
    asm volatile("st.global.cs.v2.b32 [%0], {%1, %2};"
                 :: "l"(cvta_to_global(pointer)), "r"(v.x), "r"(v.y) : "memory");
}

__device__ __forceinline__ void st_global_cs(unsigned* pointer, unsigned v) {
    asm volatile("st.global.cs.b32 [%0], %1;"
                 :: "l"(cvta_to_global(pointer)), "r"(v) : "memory");
}

// ld.shared, 16 bytes at an address in the shared window. The asm is volatile, so loads stay where they are in the
// source; ld.volatile is read as often as it is written, even where nothing has changed.

__device__ __forceinline__ void ld_shared(float& x, float& y, float& z, float& w, unsigned address) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x), "=f"(y), "=f"(z), "=f"(w) : "r"(address));
}

__device__ __forceinline__ void st_shared(unsigned address, uint4 value) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
                 :: "r"(address), "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w) : "memory");
}

__device__ __forceinline__ void ld_volatile_shared(float& x, float& y, float& z, float& w, unsigned address) {
    asm volatile("ld.volatile.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x), "=f"(y), "=f"(z), "=f"(w)
                 : "r"(address));
}

// red.add: what is there plus v, rounded to nearest; subnormal operands and sums count as zero.
__device__ __forceinline__ void red_global_add(float4* pointer, float4 v) {
#if PTXKIT_SM >= 90
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
        :: "l"(cvta_to_global(pointer)), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
#else
    PTXKIT_UNSUPPORTED("red.v4.f32", "sm_90");
#endif
}

// ld.acquire, st.release at GPU scope, for flags: what this thread wrote, or saw written before a barrier, before it
// sets one is visible to whoever has seen it set. PTX ISA, "Memory Consistency Model: Release and Acquire Patterns".

__device__ __forceinline__ unsigned ld_acquire_gpu_global(const unsigned* flag) {
    unsigned value;
    asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(value) : "l"(cvta_to_global(flag)) : "memory");
    return value;
}

__device__ __forceinline__ void st_release_gpu_global(unsigned* flag, unsigned value) {
    asm volatile("st.release.gpu.global.b32 [%0], %1;" :: "l"(cvta_to_global(flag)), "r"(value) : "memory");
}

__device__ __forceinline__ void prefetch_global_L2(const void* pointer) {
    asm volatile("prefetch.global.L2 [%0];" :: "l"(cvta_to_global(pointer)));
}

// shfl.sync: lanes of a warp exchange registers. `members` has a bit for every lane that executes it.

__device__ __forceinline__ float shfl_sync_bfly(unsigned members, float value, unsigned lane_mask) {
    float result;
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, %3;" : "=f"(result) : "f"(value), "r"(lane_mask), "r"(members));
    return result;
}

__device__ __forceinline__ unsigned shfl_sync_bfly(unsigned members, unsigned value, unsigned lane_mask) {
    unsigned result;
    asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 0x1f, %3;" : "=r"(result) : "r"(value), "r"(lane_mask), "r"(members));
    return result;
}

// shfl moves 32 bits; a double goes in two halves.
__device__ __forceinline__ double shfl_sync_bfly(unsigned members, double value, unsigned lane_mask) {
    unsigned low = __double2loint(value), high = __double2hiint(value);
    low = shfl_sync_bfly(members, low, lane_mask);
    high = shfl_sync_bfly(members, high, lane_mask);
    return __hiloint2double(high, low);
}

__device__ __forceinline__ unsigned shfl_sync_idx(unsigned members, unsigned value, unsigned lane) {
    unsigned result;
    asm volatile("shfl.sync.idx.b32 %0, %1, %2, 0x1f, %3;" : "=r"(result) : "r"(value), "r"(lane), "r"(members));
    return result;
}

__device__ __forceinline__ float shfl_sync_idx(unsigned members, float value, unsigned lane) {
    return __uint_as_float(shfl_sync_idx(members, __float_as_uint(value), lane));
}

// prmt: any four of the eight bytes of two words; a nibble of the selector for each, its upper bit replicating the
// byte's sign.
__device__ __forceinline__ unsigned prmt_b32(unsigned low, unsigned high, unsigned selector) {
    unsigned bytes;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(selector));
    return bytes;
}

// Distributed shared memory: mapa gives the address that a shared variable has in another CTA of the cluster.

__device__ __forceinline__ unsigned mapa_shared_cluster(unsigned shared_address, unsigned cta_rank) {
#if PTXKIT_SM >= 90
    unsigned address;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address), "r"(cta_rank));
    return address;
#else
    PTXKIT_UNSUPPORTED("mapa", "sm_90");
    return 0;
#endif
}

__device__ __forceinline__ void st_shared_cluster(unsigned address, float value) {
#if PTXKIT_SM >= 90
    asm volatile("st.shared::cluster.f32 [%0], %1;" :: "r"(address), "f"(value) : "memory");
#else
    PTXKIT_UNSUPPORTED("st.shared::cluster", "sm_90");
#endif
}

__device__ __forceinline__ void st_shared_cluster(unsigned address, double value) {
#if PTXKIT_SM >= 90
    asm volatile("st.shared::cluster.f64 [%0], %1;" :: "r"(address), "d"(value) : "memory");
#else
    PTXKIT_UNSUPPORTED("st.shared::cluster", "sm_90");
#endif
}

__device__ __forceinline__ float ld_shared_cluster_f32(unsigned address) {
#if PTXKIT_SM >= 90
    float value;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
    return value;
#else
    PTXKIT_UNSUPPORTED("ld.shared::cluster", "sm_90");
    return 0;
#endif
}

// cvt.pack: two integers clamped to 8 bits, `upper` in byte 1 and `lower` in byte 0, below the lower half of `above`.
__device__ __forceinline__ unsigned cvt_pack_sat_s8_s32(int upper, int lower, unsigned above) {
    unsigned bytes;
    asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(upper), "r"(lower), "r"(above));
    return bytes;
}

}  // namespace ptxkit
