// cvta, ld, st, red, createpolicy, prefetch, shfl.sync, prmt, mapa, cvt.pack. PTX ISA, "Data Movement and Conversion
// Instructions", and "Parallel Synchronization and Communication Instructions" for red.
//
// Target: sm_75 or newer, unless a comment states another one.
//
// Operands: pointers are generic addresses, aligned to the size of the access. Shared addresses are byte addresses in
// the shared window (cvta_to_shared) or, for shared::cluster, from mapa_shared_cluster.
#pragma once
#include "ptxkit/ptx/guard.cuh"

namespace ptxkit {

// cvta.to: converts a generic address to an address in a state space. Shared addresses fit in 32 bits.

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

// ld.global.nc: loads 4 or 16 bytes through the non-coherent cache. No thread may write the memory while the kernel
// runs. L1::no_allocate: the line is not allocated in L1, for data that is read once. The asm is not volatile, so the
// compiler may move a load, or remove it if its result is not used.

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

// ld.global: loads 16, 8, 4 or 2 bytes of any type. With programmatic dependent launch, the previous grid may still be
// writing this memory when the kernel starts; the asm is volatile so that the compiler does not move the load to before
// griddepcontrol.wait.

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

__device__ __forceinline__ unsigned short ld_global(const unsigned short* pointer) {
    unsigned short v;
    asm volatile("ld.global.b16 %0, [%1];"
        : "=h"(v)
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

// ld.global.nc.v8: loads 32 bytes, one sector, in one access from an address that is a multiple of 32. Target: sm_100
// or newer.
__device__ __forceinline__ void ld_global_nc_L1_no_allocate_v8(const float* pointer, float (&v)[8]) {
#if PTXKIT_SM >= 100
    asm("ld.global.nc.L1::no_allocate.v8.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
        : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]), "=f"(v[4]), "=f"(v[5]), "=f"(v[6]), "=f"(v[7])
        : "l"(cvta_to_global(pointer)));
#else
    PTXKIT_UNSUPPORTED("ld.global.v8", "sm_100");
#endif
}

// createpolicy: creates an L2 eviction policy, which accesses receive as an operand (.L2::cache_hint). Target: sm_80 or
// newer; since a hint never changes a result, the functions on older targets omit it instead of trapping.

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

// ld.global.nc and ld.global with an L2 policy.

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

// st.global: stores 4, 8 or 16 bytes. cs: cache streaming, for data that is not accessed again soon. L1::no_allocate:
// the line is not allocated in L1.

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

// ld.shared: loads 16 bytes. The asm is volatile, so that the loads keep their order in the source. ld.volatile, in
// addition, keeps ptxas from merging several loads of the same address into one.

__device__ __forceinline__ void ld_shared(float& x, float& y, float& z, float& w, unsigned address) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x), "=f"(y), "=f"(z), "=f"(w) : "r"(address));
}

__device__ __forceinline__ uint4 ld_shared_v4(unsigned address) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address) : "memory");
    return v;
}

__device__ __forceinline__ unsigned ld_shared_u32(unsigned address) {
    unsigned value;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
    return value;
}

__device__ __forceinline__ void st_shared(unsigned address, unsigned short value) {
    asm volatile("st.shared.b16 [%0], %1;" :: "r"(address), "h"(value) : "memory");
}

__device__ __forceinline__ void st_shared(unsigned address, unsigned value) {
    asm volatile("st.shared.b32 [%0], %1;" :: "r"(address), "r"(value) : "memory");
}

__device__ __forceinline__ void st_shared(unsigned address, uint2 value) {
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" :: "r"(address), "r"(value.x), "r"(value.y) : "memory");
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

// red.add.f32: atomically adds v to the number in memory, without returning the old value.
__device__ __forceinline__ void red_global_add(float* pointer, float v) {
    asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" :: "l"(cvta_to_global(pointer)), "f"(v) : "memory");
}

// red.add.v4.f32: atomically adds each component of v to the component in memory, without returning the old value.
// Rounded to nearest even; subnormal operands and results are flushed to zero. Target: sm_90 or newer.
__device__ __forceinline__ void red_global_add(float4* pointer, float4 v) {
#if PTXKIT_SM >= 90
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
        :: "l"(cvta_to_global(pointer)), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
#else
    PTXKIT_UNSUPPORTED("red.v4.f32", "sm_90");
#endif
}

// ld.acquire, st.release at GPU scope, for flags in global memory: the writes of the releasing thread, and writes that
// a barrier has ordered before its st.release, are visible to a thread of any CTA whose ld.acquire returns the value
// stored. PTX ISA, "Memory Consistency Model: Release and Acquire Patterns".

__device__ __forceinline__ unsigned ld_acquire_gpu_global(const unsigned* flag) {
    unsigned value;
    asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(value) : "l"(cvta_to_global(flag)) : "memory");
    return value;
}

__device__ __forceinline__ void st_release_gpu_global(unsigned* flag, unsigned value) {
    asm volatile("st.release.gpu.global.b32 [%0], %1;" :: "l"(cvta_to_global(flag)), "r"(value) : "memory");
}

__device__ __forceinline__ unsigned long long ld_acquire_gpu_global(const unsigned long long* flag) {
    unsigned long long value;
    asm volatile("ld.acquire.gpu.global.b64 %0, [%1];" : "=l"(value) : "l"(cvta_to_global(flag)) : "memory");
    return value;
}

// atom.or with acquire and release: sets bits, and returns the old value.
__device__ __forceinline__ unsigned long long atom_or_acq_rel_gpu_global(unsigned long long* flags, unsigned long long bits) {
    unsigned long long old;
    asm volatile("atom.acq_rel.gpu.global.or.b64 %0, [%1], %2;" : "=l"(old) : "l"(cvta_to_global(flags)), "l"(bits) : "memory");
    return old;
}

// prefetch: requests that the cache line at this address be loaded into L2.
__device__ __forceinline__ void prefetch_global_L2(const void* pointer) {
    asm volatile("prefetch.global.L2 [%0];" :: "l"(cvta_to_global(pointer)));
}

// shfl.sync: exchanges a 32-bit register between the lanes of a warp; `members` has a bit set for each lane that
// executes it. bfly: returns the value of lane (own lane ^ lane_mask). idx: returns the value of lane `lane`.

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

// A double is exchanged as two 32-bit halves.
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

// prmt: selects four of the eight bytes of `low` (bytes 0-3) and `high` (bytes 4-7). Bits 0-2 of nibble i of the
// selector number the byte that becomes byte i of the result; bit 3 replicates the sign of that byte instead.
__device__ __forceinline__ unsigned prmt_b32(unsigned low, unsigned high, unsigned selector) {
    unsigned bytes;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(selector));
    return bytes;
}

// Distributed shared memory. Target: sm_90 or newer.

// mapa: the shared::cluster address of a variable of this CTA in the CTA with rank `cta_rank`.
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

// st.shared::cluster and ld.shared::cluster: access the shared memory of another CTA of the cluster, which must have
// started and must not exit before the access is complete.

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

__device__ __forceinline__ unsigned ld_shared_cluster_u32(unsigned address) {
#if PTXKIT_SM >= 90
    unsigned value;
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
    return value;
#else
    PTXKIT_UNSUPPORTED("ld.shared::cluster", "sm_90");
    return 0;
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

__device__ __forceinline__ uint4 ld_shared_cluster_v4(unsigned address) {
#if PTXKIT_SM >= 90
    uint4 v;
    asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address) : "memory");
    return v;
#else
    PTXKIT_UNSUPPORTED("ld.shared::cluster", "sm_90");
    return {};
#endif
}

// cvt.pack: clamps two integers to -128 ... 127 and packs them: `lower` in byte 0, `upper` in byte 1, and bytes 0 and 1
// of `above` in bytes 2 and 3.
__device__ __forceinline__ unsigned cvt_pack_sat_s8_s32(int upper, int lower, unsigned above) {
    unsigned bytes;
    asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(upper), "r"(lower), "r"(above));
    return bytes;
}

// The 16 bytes that begin with byte number `before` of the first one of two vectors, a multiple of SIZE: 1, 2 or 4.
template <int SIZE = 1>
__device__ __forceinline__ uint4 shifted(const uint4& low, const uint4& high, unsigned before) {
    const bool two = before & 8, one = before & 4;
    const unsigned w0 = two ? low.z : low.x, w1 = two ? low.w : low.y, w2 = two ? high.x : low.z;
    const unsigned w3 = two ? high.y : low.w, w4 = two ? high.z : high.x, w5 = two ? high.w : high.y;
    const unsigned v0 = one ? w1 : w0, v1 = one ? w2 : w1, v2 = one ? w3 : w2, v3 = one ? w4 : w3, v4 = one ? w5 : w4;
    const unsigned bits = 8 * (before & (4 - SIZE));
    return {__funnelshift_r(v0, v1, bits), __funnelshift_r(v1, v2, bits), __funnelshift_r(v2, v3, bits),
            __funnelshift_r(v3, v4, bits)};
}

}  // namespace ptxkit
