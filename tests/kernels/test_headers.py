"""The headers below cu/ptxkit/: every instruction compiles for every target, sums are right, and an instruction that a
target lacks traps."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest

from ptxkit.compiler.explain import explain
from ptxkit.compiler.nvrtc import compile_source
from ptxkit.compiler.paths import include_dir
from ptxkit.errors import FaultError, TrapError
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.targets import TARGETS

ROOT = include_dir() / "ptxkit"
HEADERS = sorted(str(path.relative_to(ROOT)) for path in ROOT.rglob("*.cuh") if path.parent.name != "cutlass")

EVERYTHING = """
using namespace ptxkit;
__global__ void everything(const float4* x, float4* y, unsigned long long* out) {
    __shared__ float shared[32];
    float4 v = ld_global_nc(x), w = ld_global_nc_L1_no_allocate(x);
    v.x += ld_global_nc(&x->x) + ld_global_nc_L1_no_allocate(&x->y);
    v.y += ld_global_nc_L1_no_allocate(x, createpolicy_L2_evict_first()).x;
    v.z += ld_global_nc_L1_no_allocate(x, createpolicy_L2_evict_last()).y;
    prefetch_global_L2(x);
    st_global(y, v);
    st_global_L1_no_allocate(y, w);
    st_global_L1_no_allocate(&y->x, v.x);
    st_global_cs(y, v);
    st_global_cs(&y->x, v.x);
    w.x = shfl_sync_bfly(all_lanes, v.x, 1);
    w.y = shfl_sync_bfly(all_lanes, double(v.x), 2);
    w.z = shfl_sync_idx(all_lanes, laneid(), 3);
    w.x += optimization_barrier(v.y);
    w.x += rsqrt_approx(v.x) + rsqrt_approx_ftz(v.x);
    w.x += rcp_approx(v.y) + ex2_approx(v.z) + lg2_approx(v.w) + tanh_approx(v.x) + max_NaN_f32(v.x, v.y);
    unsigned slot = mapa_shared_cluster(cvta_to_shared(shared), 0);
    st_shared_cluster(slot, v.x);
    st_shared_cluster(slot, double(v.x));
    w.w = ld_shared_cluster_f32(slot) + ld_shared_cluster_u32(slot) + ld_shared_cluster_v4(slot).y + ld_shared_u32(slot);
    w.w += ld_shared_v4(slot).x;
    ld_shared(v.x, v.y, v.z, v.w, slot);
    ld_volatile_shared(w.x, w.y, w.z, w.w, slot);
    st_shared(slot, make_uint4(1, 2, 3, 4));
    st_shared(slot, make_uint2(1, 2));
    st_shared(slot, 1u);
    st_shared(slot, static_cast<unsigned short>(1));
    fma_rn_f32(v.x, w.x, w.y);
    red_global_add(y, v);
    red_global_add(&y->x, v.x);
    st_release_gpu_global(reinterpret_cast<unsigned*>(y), ld_acquire_gpu_global(reinterpret_cast<unsigned*>(y)));
    barrier_sync();
    barrier_sync(1, 32);
    barrier_arrive(1, 32);
    barrier_sync<2>(32);
    bar_warp_sync(all_lanes);
    barrier_cluster_arrive_relaxed();
    barrier_cluster_wait_acquire();
    barrier_cluster_arrive_release();
    barrier_cluster_wait_acquire();
    out[0] = vote_sync_any(all_lanes, v.x > 0) + vote_sync_ballot(all_lanes, v.x > 1);
    out[1] = redux_sync_add(all_lanes, laneid()) + redux_sync_max(all_lanes, laneid()) + elect_sync(all_lanes);
    out[2] = smid() + nsmid() + cluster_ctarank() + cluster_nctarank() + globaltimer();
    st_global(y + 1, w);
    uint4* q = reinterpret_cast<uint4*>(y + 2);
    uint2* p = reinterpret_cast<uint2*>(q);
    unsigned* u = reinterpret_cast<unsigned*>(q);
    uint4 a = ld_global(q), b = ld_global_L1_no_allocate(q), c = ld_global_L1_no_allocate(q, out[0]);
    uint2 d = ld_global(p), e = ld_global_L1_no_allocate(p), f = ld_global_L1_no_allocate(p, out[0]);
    a.x += ld_global(u) + ld_global_L1_no_allocate(u) + ld_global_L1_no_allocate(u, out[0]);
    a.y += b.x + c.x + d.x + e.x + f.x;
    a.z += ld_global(q, out[0]).x + ld_global(p, out[0]).y + ld_global(u, out[0]);
    st_global_cs(q, a);
    st_global_cs(p, d);
    st_global_cs(u, a.x);
    w.x += rcp_approx_ftz(v.x) + ex2_approx_ftz(v.x) + cvt_f32_f16(cvt_rn_f16_f32(v.x)) + f32_of_bf16(cvt_rn_bf16_f32(v.y));
    a.x = max_NaN_f16x2(add_f16x2(cvt_rn_f16x2_f32(v.x, v.y), a.x), mul_f16x2(a.x, a.y));
    a.y = fma_rn_f16x2(a.x, a.y, fma_rn_relu_f16x2(a.x, a.y, a.z));
    a.z = max_NaN_bf16x2(add_bf16x2(cvt_rn_bf16x2_f32(v.x, v.y), a.x), mul_bf16x2(a.x, a.y));
    a.w = fma_rn_bf16x2(a.x, a.y, fma_rn_relu_bf16x2(a.x, a.y, a.z));
    v.x += fma_rn_f32x2(make_float2(v.x, v.y), make_float2(v.z, v.w), make_float2(w.x, w.y)).x;
    float eight[8] = {};
    griddepcontrol_wait();
    ld_global_nc_L1_no_allocate_v8(&x->x, eight);
    cp_async_cg_shared_global(cvta_to_shared(shared), x);
    cp_async_commit_group();
    cp_async_wait_group<1>();
    cp_async_wait_all();
    griddepcontrol_launch_dependents();
    v.y += redux_sync_max_abs_NaN_f32(all_lanes, eight[3]) + shared[0] + prmt_b32(a.x, a.y, 0x0123);
    out[3] = mul_wide_u32(a.x, lop3_b32<0x96>(a.x, a.y, min_u16x2(a.z, max_u16x2(a.x, a.w))));
    a.x += cvt_pack_sat_s8_s32(a.x, a.y, a.z);
    a.y += cvt_rn_satfinite_e4m3x2_f32(v.x, v.y) + cvt_rn_f16x2_e4m3x2(a.x) + cvt_rn_satfinite_e2m1x2_f32(eight);
    a.y += cvt_rn_satfinite_e5m2x2_f32(v.x, v.y) + cvt_rn_f16x2_e5m2x2(a.x);
    a.z += cvt_rn_f16x2_e2m1x2(a.x) + cvt_rp_satfinite_ue8m0_f32(v.x);
    st_global_cs(q + 1, a);
    st_global(y + 3, w);
}
"""

ASYNCHRONOUS = """
using namespace ptxkit;
__global__ void copies(const __grid_constant__ TensorMap map, float* x, unsigned long long* out) {
    __shared__ alignas(128) float shared[32];
    __shared__ unsigned long long barrier;
    unsigned a = cvta_to_shared(shared), b = cvta_to_shared(&barrier);
    mbarrier_init(b, 4);
    fence_mbarrier_init_release_cluster();
    out[0] = mbarrier_arrive(b);
    mbarrier_arrive_release_cluster(b);
    mbarrier_arrive_shared_cluster(b);
    mbarrier_expect_tx(b, 16);
    mbarrier_arrive_expect_tx(b, 16);
    mbarrier_complete_tx(b, 32);
    cp_async_mbarrier_arrive_noinc(b);
    out[1] = mbarrier_test_wait(b, out[0]) + mbarrier_test_wait_parity(b, 0) + mbarrier_try_wait_parity(b, 0);
    out[2] = mbarrier_try_wait_parity_acquire_cluster(b, 0);
    cp_async_cg_shared_global(a, x, 4);
    cp_async_cg_shared_global_L2_128B(a, x, 4);
    cp_async_ca_shared_global_4(a, x);
    cp_async_ca_shared_global_4(a, x, 4);
    cp_async_ca_shared_global_8(a, x);
    cp_async_ca_shared_global_8(a, x, 8);
    fence_proxy_async();
    fence_proxy_async_shared_cta();
    cp_async_bulk_shared_global(a, x, 128, b);
    cp_async_bulk_shared_global_L2_cache_hint(a, x, 128, b, createpolicy_L2_evict_last());
    cp_async_bulk_shared_global_multicast(a, x, 128, b, 3);
    cp_async_bulk_shared_cluster_shared(a, a, 128, b);
    cp_async_bulk_global_shared(x, a, 128);
    cp_reduce_async_bulk_global_shared_add_f32(x, a, 128);
    cp_async_bulk_prefetch_L2_global(x, 128);
    prefetch_tensormap(map);
    cp_async_bulk_tensor_1d_shared_global(a, map, 1, b);
    cp_async_bulk_tensor_1d_global_shared(map, 1, a);
    cp_async_bulk_tensor_2d_shared_global(a, map, 1, 1, b);
    cp_async_bulk_tensor_2d_global_shared(map, 1, 1, a);
    cp_async_bulk_tensor_3d_shared_global(a, map, 1, 1, 1, b);
    cp_async_bulk_tensor_3d_global_shared(map, 1, 1, 1, a);
    cp_async_bulk_tensor_4d_shared_global(a, map, 1, 1, 1, 1, b);
    cp_async_bulk_tensor_4d_global_shared(map, 1, 1, 1, 1, a);
    cp_async_bulk_tensor_5d_shared_global(a, map, 1, 1, 1, 1, 1, b);
    cp_async_bulk_tensor_5d_global_shared(map, 1, 1, 1, 1, 1, a);
    cp_async_bulk_tensor_2d_shared_global_multicast(a, map, 1, 1, b, 3);
    cp_async_bulk_tensor_3d_shared_global_multicast(a, map, 1, 1, 1, b, 3);
    cp_async_bulk_tensor_2d_shared_global_cta_group_2(a, map, 1, 1, b);
    cp_async_bulk_tensor_2d_shared_global_cta_group_2_multicast(a, map, 1, 1, b, 3);
    cp_reduce_async_bulk_tensor_2d_global_shared_add(map, 1, 1, a);
    cp_async_bulk_prefetch_tensor_2d_L2_global(map, 1, 1);
    cp_async_bulk_commit_group();
    cp_async_bulk_wait_group_read<1>();
    cp_async_bulk_wait_group<0>();
    st_async_shared_cluster(a, b, b);
    st_async_shared_cluster(a, float2(), b);
    st_async_shared_cluster(a, float4(), b);
    red_async_shared_cluster_add_u32(a, 1, b);
    out[3] = getctarank_shared_cluster(a) + swizzled<128>(a);
    mbarrier_inval(b);
}

// All tcgen05 instructions of a kernel have the same cta_group.
__global__ void tensor_memory(unsigned a, unsigned b, unsigned long long descriptor, float* x, unsigned* first) {
    float values[32] = {};
    clusterlaunchcontrol_try_cancel(a, b);
    clusterlaunchcontrol_try_cancel_multicast(a, b);
    if (clusterlaunchcontrol_query_cancel(a, first[0])) first[1] = 1;
    tcgen05_alloc<1>(a, 64);
    tcgen05_relinquish_alloc_permit<1>();
    tcgen05_cp_32x128b_warpx4<1>(a, tcgen05_descriptor_rows_of_16_bytes(b));
    tcgen05_mma_kind_f16<1>(a, descriptor, descriptor, b, true);
    tcgen05_mma_kind_tf32<1>(a, descriptor, descriptor, b, true);
    tcgen05_mma_kind_f8f6f4<1>(a, descriptor, descriptor, b, true);
    tcgen05_mma_kind_mxf8f6f4<1>(a, descriptor, descriptor, b, a, a, true);
    tcgen05_mma_kind_mxf4_block32<1>(a, descriptor, descriptor, b, a, a, true);
    tcgen05_mma_kind_mxf4nvf4_block16<1>(a, descriptor, descriptor, b, a, a, true);
    tcgen05_commit(b);
    tcgen05_fence_before_thread_sync();
    tcgen05_fence_after_thread_sync();
    tcgen05_ld_32x32b_x32(values, a);
    float eight[8] = {};
    tcgen05_ld_32x32b_x8(eight, a);
    tcgen05_wait_ld(values);
    tcgen05_dealloc<1>(a, 64);
    x[threadIdx.x] = values[threadIdx.x % 32] + eight[threadIdx.x % 8];
}

__global__ void tensor_memory_of_a_pair(unsigned a, unsigned b, unsigned long long descriptor) {
    tcgen05_alloc<2>(a, 64);
    tcgen05_relinquish_alloc_permit<2>();
    tcgen05_mma_kind_f16<2>(a, descriptor, descriptor, b, true);
    tcgen05_mma_kind_tf32<2>(a, descriptor, descriptor, b, true);
    tcgen05_mma_kind_f8f6f4<2>(a, descriptor, descriptor, b, true);
    tcgen05_cp_32x128b_warpx4<2>(a, tcgen05_descriptor_rows_of_16_bytes(b));
    tcgen05_mma_kind_mxf8f6f4<2>(a, descriptor, descriptor, b, a, a, true);
    tcgen05_mma_kind_mxf4_block32<2>(a, descriptor, descriptor, b, a, a, true);
    tcgen05_mma_kind_mxf4nvf4_block16<2>(a, descriptor, descriptor, b, a, a, true);
    tcgen05_commit_cta_group_2_multicast(b, 3);
    tcgen05_dealloc<2>(a, 64);
}

__global__ void __launch_bounds__(128, 1) matrices(unsigned a, unsigned long long descriptor, float* x) {
    unsigned m1[1] = {}, m2[2] = {}, m4[4] = {};
    float d[4] = {}, d48[24] = {}, d64[32] = {}, d96[48] = {};
    float d128[64] = {}, d176[88] = {}, d192[96] = {}, d200[100] = {}, d256[128] = {};
    int integers[4] = {}, i8[4] = {}, i16[8] = {}, i32[16] = {}, i64[32] = {}, i128[64] = {}, i256[128] = {};
    float d8[4] = {}, d16[8] = {}, d32[16] = {};
    float d24[12] = {}, d40[20] = {}, d56[28] = {}, d80[40] = {}, d112[56] = {};
    float d144[72] = {}, d160[80] = {}, d208[104] = {}, d224[112] = {}, d240[120] = {};
    int i24[12] = {}, i48[24] = {}, i80[40] = {}, i96[48] = {}, i112[56] = {}, i160[80] = {}, i192[96] = {}, i224[112] = {};
    int i144[72] = {}, i176[88] = {}, i208[104] = {}, i240[120] = {};
    float d72[36] = {}, d88[44] = {}, d104[52] = {}, d120[60] = {}, d136[68] = {}, d152[76] = {};
    float d168[84] = {}, d184[92] = {}, d216[108] = {}, d232[116] = {}, d248[124] = {};
    setmaxnreg_dec<200>();
    setmaxnreg_inc<240>();
    ldmatrix_x1(m1, a);
    stmatrix_x1(a, m1);
    ldmatrix_x1_trans(m1, a);
    stmatrix_x1_trans(a, m1);
    ldmatrix_x2(m2, a);
    stmatrix_x2(a, m2);
    ldmatrix_x2_trans(m2, a);
    stmatrix_x2_trans(a, m2);
    ldmatrix_x4(m4, a);
    stmatrix_x4(a, m4);
    ldmatrix_x4_trans(m4, a);
    stmatrix_x4_trans(a, m4);
    m1[0] = movmatrix_trans(m1[0]);
    mma_sync_m16n8k16_f32_bf16_bf16(d, m4, m2);
    mma_sync_m16n8k16_f32_f16_f16(d, m4, m2);
    mma_sync_m16n8k8_f32_tf32_tf32(d, m4, m2);
    mma_sync_m16n8k32_s32_s8_s8(integers, m4, m2);
    mma_sync_m16n8k32_f32_e4m3_e4m3(d, m4, m2);
    mma_sync_m16n8k32_mxf8f6f4_e4m3(d, m4, m2, a, a, 3, 1, 3);
    mma_sync_m16n8k32_mxf8f6f4_e5m2(d, m4, m2, a, a, 3, 1, 3);
    mma_sync_m16n8k64_mxf4_2X(d, m4, m2, a, a, 2, 1, 3);
    mma_sync_m16n8k64_mxf4nvf4_4X(d, m4, m2, a, a, 0, 1, 3);
    mma_sp_sync_m16n8k32_f32_bf16_bf16<0>(d, m4, m4, a);
    mma_sp_sync_m16n8k32_f32_f16_f16<1>(d, m4, m4, a);
    wgmma_fence();
    wgmma_mma_async_m64n8k16_f32_bf16_bf16(d8, descriptor, descriptor, a);
    wgmma_mma_async_m64n16k16_f32_bf16_bf16(d16, descriptor, descriptor, a);
    wgmma_mma_async_m64n32k16_f32_bf16_bf16(d32, descriptor, descriptor, a);
    wgmma_mma_async_m64n8k16_f32_f16_f16(d8, descriptor, descriptor, a);
    wgmma_mma_async_m64n16k16_f32_f16_f16(d16, descriptor, descriptor, a);
    wgmma_mma_async_m64n32k16_f32_f16_f16(d32, descriptor, descriptor, a);
    wgmma_mma_async_m64n48k16_f32_bf16_bf16(d48, descriptor, descriptor, a);
    wgmma_mma_async_m64n64k16_f32_bf16_bf16(d64, descriptor, descriptor, a);
    wgmma_mma_async_m64n96k16_f32_bf16_bf16(d96, descriptor, descriptor, a);
    wgmma_mma_async_m64n128k16_f32_bf16_bf16(d128, descriptor, descriptor, a);
    wgmma_mma_async_m64n192k16_f32_bf16_bf16(d192, descriptor, descriptor, a);
    wgmma_mma_async_m64n256k16_f32_bf16_bf16(d256, descriptor, descriptor, a);
    wgmma_mma_async_m64n48k16_f32_f16_f16(d48, descriptor, descriptor, a);
    wgmma_mma_async_m64n64k16_f32_f16_f16(d64, descriptor, descriptor, a);
    wgmma_mma_async_m64n96k16_f32_f16_f16(d96, descriptor, descriptor, a);
    wgmma_mma_async_m64n128k16_f32_f16_f16(d128, descriptor, descriptor, a);
    wgmma_mma_async_m64n192k16_f32_f16_f16(d192, descriptor, descriptor, a);
    wgmma_mma_async_m64n256k16_f32_f16_f16(d256, descriptor, descriptor, a);
    wgmma_mma_async_m64n64k16_f32_bf16_bf16(d64, m4, descriptor, a);
    wgmma_mma_async_m64n128k16_f32_bf16_bf16(d128, m4, descriptor, a);
    wgmma_mma_async_m64n256k16_f32_bf16_bf16(d256, m4, descriptor, a);
    wgmma_mma_async_m64n64k16_f32_f16_f16(d64, m4, descriptor, a);
    wgmma_mma_async_m64n128k16_f32_f16_f16(d128, m4, descriptor, a);
    wgmma_mma_async_m64n256k16_f32_f16_f16(d256, m4, descriptor, a);
    wgmma_mma_async_m64n64k32_f32_e4m3_e4m3(d64, descriptor, descriptor, a);
    wgmma_mma_async_m64n128k32_f32_e4m3_e4m3(d128, descriptor, descriptor, a);
    wgmma_mma_async_m64n64k8_f32_tf32_tf32(d64, descriptor, descriptor, a);
    wgmma_mma_async_m64n128k8_f32_tf32_tf32(d128, descriptor, descriptor, a);
    wgmma_mma_async_m64n256k8_f32_tf32_tf32(d256, descriptor, descriptor, a);
    wgmma_mma_async_m64n64k32_f32_e4m3_e4m3(d64, m4, descriptor, a);
    wgmma_mma_async_m64n128k32_f32_e4m3_e4m3(d128, m4, descriptor, a);
    wgmma_mma_async_m64n24k16_f32_bf16_bf16(d24, descriptor, descriptor, a);
    wgmma_mma_async_m64n40k16_f32_bf16_bf16(d40, descriptor, descriptor, a);
    wgmma_mma_async_m64n56k16_f32_bf16_bf16(d56, descriptor, descriptor, a);
    wgmma_mma_async_m64n80k16_f32_bf16_bf16(d80, descriptor, descriptor, a);
    wgmma_mma_async_m64n112k16_f32_bf16_bf16(d112, descriptor, descriptor, a);
    wgmma_mma_async_m64n144k16_f32_bf16_bf16(d144, descriptor, descriptor, a);
    wgmma_mma_async_m64n160k16_f32_bf16_bf16(d160, descriptor, descriptor, a);
    wgmma_mma_async_m64n176k16_f32_bf16_bf16(d176, descriptor, descriptor, a);
    wgmma_mma_async_m64n208k16_f32_bf16_bf16(d208, descriptor, descriptor, a);
    wgmma_mma_async_m64n224k16_f32_bf16_bf16(d224, descriptor, descriptor, a);
    wgmma_mma_async_m64n240k16_f32_bf16_bf16(d240, descriptor, descriptor, a);
    wgmma_mma_async_m64n24k16_f32_f16_f16(d24, descriptor, descriptor, a);
    wgmma_mma_async_m64n40k16_f32_f16_f16(d40, descriptor, descriptor, a);
    wgmma_mma_async_m64n56k16_f32_f16_f16(d56, descriptor, descriptor, a);
    wgmma_mma_async_m64n80k16_f32_f16_f16(d80, descriptor, descriptor, a);
    wgmma_mma_async_m64n112k16_f32_f16_f16(d112, descriptor, descriptor, a);
    wgmma_mma_async_m64n144k16_f32_f16_f16(d144, descriptor, descriptor, a);
    wgmma_mma_async_m64n160k16_f32_f16_f16(d160, descriptor, descriptor, a);
    wgmma_mma_async_m64n176k16_f32_f16_f16(d176, descriptor, descriptor, a);
    wgmma_mma_async_m64n208k16_f32_f16_f16(d208, descriptor, descriptor, a);
    wgmma_mma_async_m64n224k16_f32_f16_f16(d224, descriptor, descriptor, a);
    wgmma_mma_async_m64n240k16_f32_f16_f16(d240, descriptor, descriptor, a);
    wgmma_mma_async_m64n8k8_f32_tf32_tf32(d8, descriptor, descriptor, a);
    wgmma_mma_async_m64n16k8_f32_tf32_tf32(d16, descriptor, descriptor, a);
    wgmma_mma_async_m64n24k8_f32_tf32_tf32(d24, descriptor, descriptor, a);
    wgmma_mma_async_m64n32k8_f32_tf32_tf32(d32, descriptor, descriptor, a);
    wgmma_mma_async_m64n40k8_f32_tf32_tf32(d40, descriptor, descriptor, a);
    wgmma_mma_async_m64n48k8_f32_tf32_tf32(d48, descriptor, descriptor, a);
    wgmma_mma_async_m64n56k8_f32_tf32_tf32(d56, descriptor, descriptor, a);
    wgmma_mma_async_m64n80k8_f32_tf32_tf32(d80, descriptor, descriptor, a);
    wgmma_mma_async_m64n96k8_f32_tf32_tf32(d96, descriptor, descriptor, a);
    wgmma_mma_async_m64n112k8_f32_tf32_tf32(d112, descriptor, descriptor, a);
    wgmma_mma_async_m64n144k8_f32_tf32_tf32(d144, descriptor, descriptor, a);
    wgmma_mma_async_m64n160k8_f32_tf32_tf32(d160, descriptor, descriptor, a);
    wgmma_mma_async_m64n176k8_f32_tf32_tf32(d176, descriptor, descriptor, a);
    wgmma_mma_async_m64n192k8_f32_tf32_tf32(d192, descriptor, descriptor, a);
    wgmma_mma_async_m64n208k8_f32_tf32_tf32(d208, descriptor, descriptor, a);
    wgmma_mma_async_m64n224k8_f32_tf32_tf32(d224, descriptor, descriptor, a);
    wgmma_mma_async_m64n240k8_f32_tf32_tf32(d240, descriptor, descriptor, a);
    wgmma_mma_async_m64n24k32_f32_e4m3_e4m3(d24, descriptor, descriptor, a);
    wgmma_mma_async_m64n40k32_f32_e4m3_e4m3(d40, descriptor, descriptor, a);
    wgmma_mma_async_m64n48k32_f32_e4m3_e4m3(d48, descriptor, descriptor, a);
    wgmma_mma_async_m64n56k32_f32_e4m3_e4m3(d56, descriptor, descriptor, a);
    wgmma_mma_async_m64n80k32_f32_e4m3_e4m3(d80, descriptor, descriptor, a);
    wgmma_mma_async_m64n96k32_f32_e4m3_e4m3(d96, descriptor, descriptor, a);
    wgmma_mma_async_m64n112k32_f32_e4m3_e4m3(d112, descriptor, descriptor, a);
    wgmma_mma_async_m64n144k32_f32_e4m3_e4m3(d144, descriptor, descriptor, a);
    wgmma_mma_async_m64n160k32_f32_e4m3_e4m3(d160, descriptor, descriptor, a);
    wgmma_mma_async_m64n176k32_f32_e4m3_e4m3(d176, descriptor, descriptor, a);
    wgmma_mma_async_m64n192k32_f32_e4m3_e4m3(d192, descriptor, descriptor, a);
    wgmma_mma_async_m64n208k32_f32_e4m3_e4m3(d208, descriptor, descriptor, a);
    wgmma_mma_async_m64n224k32_f32_e4m3_e4m3(d224, descriptor, descriptor, a);
    wgmma_mma_async_m64n240k32_f32_e4m3_e4m3(d240, descriptor, descriptor, a);
    wgmma_mma_async_m64n24k32_s32_s8_s8(i24, descriptor, descriptor, a);
    wgmma_mma_async_m64n48k32_s32_s8_s8(i48, descriptor, descriptor, a);
    wgmma_mma_async_m64n80k32_s32_s8_s8(i80, descriptor, descriptor, a);
    wgmma_mma_async_m64n96k32_s32_s8_s8(i96, descriptor, descriptor, a);
    wgmma_mma_async_m64n112k32_s32_s8_s8(i112, descriptor, descriptor, a);
    wgmma_mma_async_m64n144k32_s32_s8_s8(i144, descriptor, descriptor, a);
    wgmma_mma_async_m64n160k32_s32_s8_s8(i160, descriptor, descriptor, a);
    wgmma_mma_async_m64n176k32_s32_s8_s8(i176, descriptor, descriptor, a);
    wgmma_mma_async_m64n192k32_s32_s8_s8(i192, descriptor, descriptor, a);
    wgmma_mma_async_m64n208k32_s32_s8_s8(i208, descriptor, descriptor, a);
    wgmma_mma_async_m64n224k32_s32_s8_s8(i224, descriptor, descriptor, a);
    wgmma_mma_async_m64n240k32_s32_s8_s8(i240, descriptor, descriptor, a);
    wgmma_mma_async_m64n72k16_f32_bf16_bf16(d72, descriptor, descriptor, a);
    wgmma_mma_async_m64n88k16_f32_bf16_bf16(d88, descriptor, descriptor, a);
    wgmma_mma_async_m64n104k16_f32_bf16_bf16(d104, descriptor, descriptor, a);
    wgmma_mma_async_m64n120k16_f32_bf16_bf16(d120, descriptor, descriptor, a);
    wgmma_mma_async_m64n136k16_f32_bf16_bf16(d136, descriptor, descriptor, a);
    wgmma_mma_async_m64n152k16_f32_bf16_bf16(d152, descriptor, descriptor, a);
    wgmma_mma_async_m64n168k16_f32_bf16_bf16(d168, descriptor, descriptor, a);
    wgmma_mma_async_m64n184k16_f32_bf16_bf16(d184, descriptor, descriptor, a);
    wgmma_mma_async_m64n200k16_f32_bf16_bf16(d200, descriptor, descriptor, a);
    wgmma_mma_async_m64n216k16_f32_bf16_bf16(d216, descriptor, descriptor, a);
    wgmma_mma_async_m64n232k16_f32_bf16_bf16(d232, descriptor, descriptor, a);
    wgmma_mma_async_m64n248k16_f32_bf16_bf16(d248, descriptor, descriptor, a);
    wgmma_mma_async_m64n72k16_f32_f16_f16(d72, descriptor, descriptor, a);
    wgmma_mma_async_m64n88k16_f32_f16_f16(d88, descriptor, descriptor, a);
    wgmma_mma_async_m64n104k16_f32_f16_f16(d104, descriptor, descriptor, a);
    wgmma_mma_async_m64n120k16_f32_f16_f16(d120, descriptor, descriptor, a);
    wgmma_mma_async_m64n136k16_f32_f16_f16(d136, descriptor, descriptor, a);
    wgmma_mma_async_m64n152k16_f32_f16_f16(d152, descriptor, descriptor, a);
    wgmma_mma_async_m64n168k16_f32_f16_f16(d168, descriptor, descriptor, a);
    wgmma_mma_async_m64n184k16_f32_f16_f16(d184, descriptor, descriptor, a);
    wgmma_mma_async_m64n200k16_f32_f16_f16(d200, descriptor, descriptor, a);
    wgmma_mma_async_m64n216k16_f32_f16_f16(d216, descriptor, descriptor, a);
    wgmma_mma_async_m64n232k16_f32_f16_f16(d232, descriptor, descriptor, a);
    wgmma_mma_async_m64n248k16_f32_f16_f16(d248, descriptor, descriptor, a);
    wgmma_mma_async_m64n72k8_f32_tf32_tf32(d72, descriptor, descriptor, a);
    wgmma_mma_async_m64n88k8_f32_tf32_tf32(d88, descriptor, descriptor, a);
    wgmma_mma_async_m64n104k8_f32_tf32_tf32(d104, descriptor, descriptor, a);
    wgmma_mma_async_m64n120k8_f32_tf32_tf32(d120, descriptor, descriptor, a);
    wgmma_mma_async_m64n136k8_f32_tf32_tf32(d136, descriptor, descriptor, a);
    wgmma_mma_async_m64n152k8_f32_tf32_tf32(d152, descriptor, descriptor, a);
    wgmma_mma_async_m64n168k8_f32_tf32_tf32(d168, descriptor, descriptor, a);
    wgmma_mma_async_m64n184k8_f32_tf32_tf32(d184, descriptor, descriptor, a);
    wgmma_mma_async_m64n200k8_f32_tf32_tf32(d200, descriptor, descriptor, a);
    wgmma_mma_async_m64n216k8_f32_tf32_tf32(d216, descriptor, descriptor, a);
    wgmma_mma_async_m64n232k8_f32_tf32_tf32(d232, descriptor, descriptor, a);
    wgmma_mma_async_m64n248k8_f32_tf32_tf32(d248, descriptor, descriptor, a);
    wgmma_mma_async_m64n72k32_f32_e4m3_e4m3(d72, descriptor, descriptor, a);
    wgmma_mma_async_m64n88k32_f32_e4m3_e4m3(d88, descriptor, descriptor, a);
    wgmma_mma_async_m64n104k32_f32_e4m3_e4m3(d104, descriptor, descriptor, a);
    wgmma_mma_async_m64n120k32_f32_e4m3_e4m3(d120, descriptor, descriptor, a);
    wgmma_mma_async_m64n136k32_f32_e4m3_e4m3(d136, descriptor, descriptor, a);
    wgmma_mma_async_m64n152k32_f32_e4m3_e4m3(d152, descriptor, descriptor, a);
    wgmma_mma_async_m64n168k32_f32_e4m3_e4m3(d168, descriptor, descriptor, a);
    wgmma_mma_async_m64n184k32_f32_e4m3_e4m3(d184, descriptor, descriptor, a);
    wgmma_mma_async_m64n200k32_f32_e4m3_e4m3(d200, descriptor, descriptor, a);
    wgmma_mma_async_m64n216k32_f32_e4m3_e4m3(d216, descriptor, descriptor, a);
    wgmma_mma_async_m64n232k32_f32_e4m3_e4m3(d232, descriptor, descriptor, a);
    wgmma_mma_async_m64n248k32_f32_e4m3_e4m3(d248, descriptor, descriptor, a);
    wgmma_mma_async_m64n64k16_f32_bf16_bf16<K_MAJOR, MN_MAJOR>(d64, descriptor, descriptor, a);
    wgmma_mma_async_m64n64k16_f32_f16_f16<MN_MAJOR, K_MAJOR>(d64, descriptor, descriptor, a);
    wgmma_mma_async_sp_m64n64k32_f32_bf16_bf16<0>(d64, descriptor, descriptor, a, a);
    wgmma_mma_async_sp_m64n128k32_f32_bf16_bf16<0>(d128, descriptor, descriptor, a, a);
    wgmma_mma_async_sp_m64n176k32_f32_bf16_bf16<0>(d176, descriptor, descriptor, a, a);
    wgmma_mma_async_sp_m64n192k32_f32_bf16_bf16<0>(d192, descriptor, descriptor, a, a);
    wgmma_mma_async_sp_m64n200k32_f32_bf16_bf16<0>(d200, descriptor, descriptor, a, a);
    wgmma_mma_async_sp_m64n256k32_f32_bf16_bf16<0>(d256, descriptor, descriptor, a, a);
    wgmma_mma_async_sp_m64n64k32_f32_f16_f16<1>(d64, descriptor, descriptor, a, a);
    wgmma_mma_async_sp_m64n128k32_f32_f16_f16<1>(d128, descriptor, descriptor, a, a);
    wgmma_mma_async_sp_m64n176k32_f32_f16_f16<1>(d176, descriptor, descriptor, a, a);
    wgmma_mma_async_sp_m64n192k32_f32_f16_f16<1>(d192, descriptor, descriptor, a, a);
    wgmma_mma_async_sp_m64n200k32_f32_f16_f16<1>(d200, descriptor, descriptor, a, a);
    wgmma_mma_async_sp_m64n256k32_f32_f16_f16<1>(d256, descriptor, descriptor, a, a);
    wgmma_mma_async_sp_m64n64k64_f32_e4m3_e4m3(d64, descriptor, descriptor, a, a);
    wgmma_mma_async_sp_m64n128k64_f32_e4m3_e4m3(d128, descriptor, descriptor, a, a);
    wgmma_mma_async_sp_m64n176k64_f32_e4m3_e4m3(d176, descriptor, descriptor, a, a);
    wgmma_mma_async_sp_m64n192k64_f32_e4m3_e4m3(d192, descriptor, descriptor, a, a);
    wgmma_mma_async_sp_m64n200k64_f32_e4m3_e4m3(d200, descriptor, descriptor, a, a);
    wgmma_mma_async_sp_m64n256k64_f32_e4m3_e4m3(d256, descriptor, descriptor, a, a);
    wgmma_mma_async_m64n8k32_s32_s8_s8(i8, descriptor, descriptor, a);
    wgmma_mma_async_m64n16k32_s32_s8_s8(i16, descriptor, descriptor, a);
    wgmma_mma_async_m64n32k32_s32_s8_s8(i32, descriptor, descriptor, a);
    wgmma_mma_async_m64n64k32_s32_s8_s8(i64, descriptor, descriptor, a);
    wgmma_mma_async_m64n128k32_s32_s8_s8(i128, descriptor, descriptor, a);
    wgmma_mma_async_m64n256k32_s32_s8_s8(i256, descriptor, descriptor, a);
    wgmma_mma_async_m64n8k32_f32_e4m3_e4m3(d, descriptor, descriptor, a);
    wgmma_mma_async_m64n16k32_f32_e4m3_e4m3(d16, descriptor, descriptor, a);
    wgmma_mma_async_m64n32k32_f32_e4m3_e4m3(d32, descriptor, descriptor, a);
    wgmma_mma_async_m64n256k32_f32_e4m3_e4m3(d256, descriptor, descriptor, a);
    wgmma_commit_group();
    wgmma_wait_group<0>();
    warpgroup_fence_operand(d256);
    warpgroup_fence_operand(i256);
    x[threadIdx.x] = i8[0] + i16[0] + i32[0] + i64[0] + i128[0] + i256[0] + d8[0] + d16[0] + d32[0];
    x[threadIdx.x] += d[0] + d48[0] + d64[0] + d96[0] + d128[0] + d192[0] + d256[0] + integers[0] + m1[0];
}
"""


def includes(*names):
    return "".join(f'#include "ptxkit/{name}"\n' for name in names or HEADERS)


@pytest.mark.parametrize("header", HEADERS)
def test_each_header_stands_alone_and_may_be_included_twice(header):
    compile_source(includes(header, header) + "__global__ void nothing() {}\n", target="sm_90a")


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90", "sm_90a", "sm_100a", "sm_120", "sm_120a"])
def test_every_function_compiles_for_every_target(target):
    image = compile_source(includes() + EVERYTHING, target=target)
    compile_source(includes() + ASYNCHRONOUS, target=target)
    has_clusters = target not in ("sm_75", "sm_80")
    assert ("barrier.cluster.arrive" in image.ptx) is has_clusters
    assert ("__assertfail" in image.ptx) is (target != "sm_100a")  # the only target with all of these features


@pytest.mark.parametrize(("target", "ctas"), [("sm_90a", 8), ("sm_120a", 6)])
def test_the_ctas_that_an_sm_holds_follow_from_the_threads_of_the_target(target, ctas):
    code = f"static_assert(ptxkit::RESIDENT_CTAS == {ctas}, \"CTAs\");"
    compile_source(f'#include "ptxkit/elementwise/elementwise.cuh"\n{code}\n', target=target)


def test_every_function_with_asm_is_in_the_test_above():
    for name in HEADERS:
        text = (ROOT / name).read_text()
        for function, body in re.findall(
            r"^__device__ __forceinline__ \S+(?: \S+)? (\w+)\(.*?\{(.*?)^\}", text, re.MULTILINE | re.DOTALL
        ):
            if "asm" in body:
                called = re.search(rf"\b{function}(<\w+>)?\(", EVERYTHING + ASYNCHRONOUS)
                assert called, f"{name}: {function}"


def test_the_wrapped_opcode_is_the_functions_name():
    """ld_global_nc wraps ld.global.nc: the words of the name are words of the opcode, in order."""
    for name in HEADERS:
        text = (ROOT / name).read_text()
        for function, body in re.findall(
            r"__forceinline__ \S+(?: \S+)? (\w+)\(.*?\{(.*?)^\}", text, re.MULTILINE | re.DOTALL
        ):
            lines = re.findall(r'asm(?: volatile)?\("(.*)', body)
            opcodes = [
                line for line in lines if "%%" not in line and not line.startswith('"')
            ]  # "" only orders, and is no instruction
            if opcodes:
                pattern = ".*".join(map(re.escape, function.removesuffix("_f32").split("_")))
                assert re.search(pattern, " ".join(opcodes).replace("::", ".")), f"{function}: {opcodes}"


def test_what_a_target_lacks_traps_and_says_so(device):
    source = (
        includes("ptx/synchronization.cuh") + "__global__ void cluster() { ptxkit::barrier_cluster_wait_acquire(); }\n"
    )
    image = compile_source(source, target="sm_80")
    assert "barrier.cluster.wait" in bytes_of_strings(image.ptx)
    if device.target is not None and device.target.cc >= 90:
        pytest.skip("an sm_80 cubin does not load here")
    kernel = device.load(image)["cluster"]
    with pytest.raises(FaultError):
        kernel(grid=1, block=32)
        device.synchronize()


@pytest.mark.parametrize("first", [0, 33])
def test_the_first_thread_that_executes_a_guard_says_what_is_missing(first):
    """The text does not depend on which thread traps first; the place is the line of the kernel that calls the function."""
    source = includes("ptx/wgmma.cuh") + (
        f"__global__ void k() {{ if (threadIdx.x < {first}) return;\n"
        "    ptxkit::setmaxnreg_inc<240>();\n"
        "}\n"
    )
    image = compile_source(source, target="sm_90", name="kernel.cu")
    message = r"kernel.cu:3: setmaxnreg needs sm_90a, .*; the target is sm_90; compile for sm_90a \(--arch sm_90a\)$"
    with pytest.raises(TrapError, match=message):
        EmulatedDevice().load(image)["k"](grid=2, block=64)


MACROS = ("PTXKIT_SM", "PTXKIT_SM90A", "PTXKIT_SM100F", "PTXKIT_SM110F", "PTXKIT_SM120F", "PTXKIT_TCGEN05", "PTXKIT_BLACKWELL")


@cache
def macros(target):
    """The values of :data:`MACROS` for a target."""
    source = includes("ptx/guard.cuh") + "".join(f"__device__ int value_of_{name} = {name};\n" for name in MACROS)
    found = dict(re.findall(r"value_of_(\w+)(?: = (\d+))?;", compile_source(source, target=target).ptx))
    return {name: int(found[name] or 0) for name in MACROS}


def guards():
    """(header, condition, opcode, targets in words) of every guard; both texts with the macros of their words expanded."""
    words = dict(re.findall(r'#define (PTXKIT_\w+_TARGETS) "(.*)"', (ROOT / "ptx/guard.cuh").read_text()))
    for name in HEADERS:
        text = re.sub(r"PTXKIT_\w+_TARGETS", lambda m: f'"{words[m[0]]}"' if m[0] in words else m[0], (ROOT / name).read_text())
        for condition, body in re.findall(r"^#if (PTXKIT_[^\n]*)\n(.*?)^#endif", text, re.MULTILINE | re.DOTALL):
            for exact, opcode, targets in re.findall(r'PTXKIT_UNSUPPORTED(_EXCEPT)?\("([^"]*)", ("[^;]*")\);', body):
                targets = re.sub(r'"\s*"', "", targets).strip('"')
                yield name, condition, opcode, targets if exact else f"{targets} or newer"


GUARDS = sorted(set(guards()))
COMPILED = [t for t in TARGETS.values() if t.cc != 107]
"""The targets that NVRTC compiles for."""


def test_every_guard_is_examined():
    assert sum((ROOT / name).read_text().count("PTXKIT_UNSUPPORTED") for name in HEADERS) - 4 == len(list(guards()))


@pytest.mark.parametrize("guard", sorted({g[1:] for g in GUARDS}), ids=" ".join)
def test_guards_admit_the_targets_that_the_table_of_features_has(guard):
    """The condition holds for the targets that the message names, and these are the targets that have the instruction."""
    condition, opcode, targets = guard
    if not targets.endswith("newer"):
        refused = explain(f"Instruction '{opcode}' not supported on .target 'sm_75'", opcode, TARGETS["sm_75"])
        assert refused is not None and refused.startswith(f"{opcode} needs {targets}; the target is")
    named = set(re.findall(r"sm_\w+", targets))
    for target in COMPILED:
        values = macros(target.name)
        holds = bool(eval(re.sub(r"\w+", lambda m: str(values.get(m[0], m[0])), condition).replace("||", " or ")))
        if targets.endswith("newer"):
            wanted = target.cc >= int(targets.split()[0][3:])
        else:
            family = "an f form of these" in targets and target.suffix == "f" and f"sm_{target.cc}a" in named
            wanted = target.name in named or family
        assert holds is wanted, target


def bytes_of_strings(ptx):
    """The text of a module's byte arrays."""
    arrays = re.findall(r"\.b8 [^=]*= \{([^}]*)\}", ptx)
    return " ".join(bytes(int(b) & 255 for b in array.split(",")).decode("latin1") for array in arrays)


SUMS = """
using namespace ptxkit;
template <int LANES, class T>
__global__ void warps(const T* x, T* y) { y[threadIdx.x] = warp_sum<LANES>(x[threadIdx.x]); }

template <int THREADS, int SUMS, class T>
__global__ void ctas(const T* x, T* y) {
    __shared__ CtaSlots<T, THREADS / 32> slots;
    for (unsigned iteration = 0; iteration < SUMS; iteration++) {
        unsigned i = iteration * THREADS + threadIdx.x;
        y[i] = cta_sum<THREADS>(x[i], slots, iteration);
    }
}

template <int THREADS, int LANES, int CTAS, int SUMS, class T>
__global__ void rows(const T* x, T* y) {
    using S = RowShape<THREADS, LANES, 1, CTAS, 4>;
    __shared__ RowRecords<T, S, 2> slots;
    row_arrive<S>();
    row_wait<S>();
    for (unsigned iteration = 0; iteration < SUMS; iteration++) {
        unsigned i = iteration * gridDim.x * THREADS + blockIdx.x * THREADS + threadIdx.x;
        y[i] = row_sum(x[i], slots, iteration & 1);
    }
}
"""


def summed(device, expression, count, dtype, part, **launch):
    """Run a kernel of SUMS over ``count`` small integers and compare with sums over parts of ``part``."""
    image = compile_source(includes("rows/row.cuh") + SUMS, target=device.target or "sm_90a", instantiate=[expression])
    x = np.random.default_rng(3).integers(-50, 50, count).astype(dtype)  # integers: sums are exact in any order
    on_device, y = device.upload(x), device.empty(count, dtype)
    device.load(image)[expression](on_device, y, **launch)
    device.synchronize()
    expected = np.repeat(x.reshape(-1, part).sum(1), part)
    np.testing.assert_array_equal(y.numpy(), expected)


TYPES = [("float", np.float32), ("double", np.float64)]


@pytest.mark.parametrize(("name", "dtype"), TYPES)
@pytest.mark.parametrize("lanes", [1, 2, 8, 32])
def test_warp_sum(device, lanes, name, dtype):
    summed(device, f"warps<{lanes}, {name}>", 64, dtype, lanes, grid=1, block=64)


@pytest.mark.parametrize(("name", "dtype"), TYPES)
@pytest.mark.parametrize("threads", [32, 64, 96, 160, 256, 1024])
def test_cta_sum(device, threads, name, dtype):
    summed(device, f"ctas<{threads}, 3, {name}>", 3 * threads, dtype, threads, grid=1, block=threads)


@pytest.mark.parametrize(("name", "dtype"), TYPES)
@pytest.mark.parametrize(("threads", "lanes"), [(64, 8), (64, 32), (1024, 64), (512, 256), (1024, 1024)])
def test_row_sum_of_rows_that_share_a_cta(device, threads, lanes, name, dtype):
    summed(device, f"rows<{threads}, {lanes}, 1, 3, {name}>", 3 * 2 * threads, dtype, lanes, grid=2, block=threads)


@pytest.mark.parametrize(("name", "dtype"), TYPES)
@pytest.mark.parametrize(("threads", "ctas"), [(32, 2), (64, 8), (256, 4), (1024, 2)])
def test_row_sum_of_a_cluster(device, threads, ctas, name, dtype):
    if device.target is not None and device.target.cc < 90:
        pytest.skip("no clusters here")
    count = 3 * 2 * ctas * threads
    expression = f"rows<{threads}, {threads}, {ctas}, 3, {name}>"
    summed(device, expression, count, dtype, ctas * threads, grid=2 * ctas, block=threads, cluster=ctas)


def test_no_generic_lambdas() -> None:
    """NVRTC 13.0 takes the call operator of a generic lambda for a host function and refuses it."""
    generic = re.compile(r"\[[^\]]*\]\s*\([^)]*\bauto\b")
    cu = include_dir()
    found = [
        f"{path.relative_to(cu)}:{number}"
        for path in sorted([*cu.rglob("*.cuh"), *cu.rglob("*.cu")])
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if generic.search(line)
    ]
    assert not found
