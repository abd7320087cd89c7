// Functions of CUDA's headers, each applied to every element: row k of the output is the k-th function of the list.
#include <cuComplex.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#define LANES int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return; int k = 0;
#define OUT(value) y[k++ * n + i] = (value);

extern "C" __global__ void float_unary(const float* x, float* y, int n) {
    LANES float a = x[i];
    OUT(sinf(a)) OUT(cosf(a)) OUT(tanf(a)) OUT(asinf(a / 40)) OUT(acosf(a / 40)) OUT(atanf(a)) OUT(sinhf(a)) OUT(coshf(a))
    OUT(tanhf(a)) OUT(asinhf(a)) OUT(acoshf(a * a + 1)) OUT(atanhf(a / 40)) OUT(expf(a)) OUT(exp2f(a)) OUT(exp10f(a))
    OUT(expm1f(a)) OUT(logf(a * a)) OUT(log2f(a * a)) OUT(log10f(a * a)) OUT(log1pf(a * a)) OUT(sqrtf(a * a)) OUT(cbrtf(a))
    OUT(erff(a)) OUT(erfcf(a)) OUT(lgammaf(a * a + 0.5f)) OUT(tgammaf(a / 10 + 5)) OUT(rsqrtf(a * a)) OUT(floorf(a))
    OUT(ceilf(a)) OUT(truncf(a)) OUT(roundf(a)) OUT(rintf(a)) OUT(fabsf(a)) OUT(sinpif(a)) OUT(cospif(a))
}

extern "C" __global__ void float_binary(const float* x, const float* z, float* y, int n) {
    LANES float a = x[i], b = z[i];
    OUT(powf(fabsf(a), b / 8)) OUT(atan2f(a, b)) OUT(fmodf(a, b)) OUT(hypotf(a, b)) OUT(remainderf(a, b)) OUT(fdimf(a, b))
    OUT(fmaxf(a, b)) OUT(fminf(a, b)) OUT(copysignf(a, b)) OUT(__fdividef(a, b)) OUT(ldexpf(a, (int)b))
    OUT(nextafterf(a, b)) OUT(a / b) OUT(fmaf(a, b, a))
}

extern "C" __global__ void float_rounding(const float* x, const float* z, float* y, int n) {
    LANES float a = x[i], b = z[i];
    OUT(__fadd_rn(a, b)) OUT(__fadd_rz(a, b)) OUT(__fadd_rd(a, b)) OUT(__fadd_ru(a, b))
    OUT(__fmul_rn(a, b)) OUT(__fmul_rz(a, b)) OUT(__fmul_rd(a, b)) OUT(__fmul_ru(a, b))
    OUT(__fdiv_rn(a, b)) OUT(__fdiv_rz(a, b)) OUT(__fdiv_rd(a, b)) OUT(__fdiv_ru(a, b))
    OUT(__fmaf_rn(a, b, b)) OUT(__fmaf_rz(a, b, b)) OUT(__fmaf_rd(a, b, b)) OUT(__fmaf_ru(a, b, b))
    OUT(__fsqrt_rn(a * a)) OUT(__fsqrt_rz(a * a)) OUT(__fsqrt_rd(a * a)) OUT(__fsqrt_ru(a * a)) OUT(__saturatef(a))
}

extern "C" __global__ void double_unary(const double* x, double* y, int n) {
    LANES double a = x[i];
    OUT(sin(a)) OUT(cos(a)) OUT(tan(a)) OUT(asin(a / 40)) OUT(acos(a / 40)) OUT(atan(a)) OUT(sinh(a)) OUT(cosh(a))
    OUT(tanh(a)) OUT(asinh(a)) OUT(acosh(a * a + 1)) OUT(atanh(a / 40)) OUT(exp(a)) OUT(exp2(a)) OUT(exp10(a))
    OUT(expm1(a)) OUT(log(a * a)) OUT(log2(a * a)) OUT(log10(a * a)) OUT(log1p(a * a)) OUT(sqrt(a * a)) OUT(cbrt(a))
    OUT(erf(a)) OUT(erfc(a)) OUT(lgamma(a * a + 0.5)) OUT(tgamma(a / 10 + 5)) OUT(rsqrt(a * a)) OUT(floor(a))
    OUT(ceil(a)) OUT(trunc(a)) OUT(round(a)) OUT(rint(a)) OUT(fabs(a)) OUT(__dsqrt_rd(a * a)) OUT(__dsqrt_ru(a * a))
}

extern "C" __global__ void double_binary(const double* x, const double* z, double* y, int n) {
    LANES double a = x[i], b = z[i];
    OUT(pow(fabs(a), b / 8)) OUT(atan2(a, b)) OUT(fmod(a, b)) OUT(hypot(a, b)) OUT(remainder(a, b)) OUT(fmax(a, b))
    OUT(a / b) OUT(__dadd_rz(a, b)) OUT(__dmul_rd(a, b)) OUT(__fma_ru(a, b, b)) OUT(__ddiv_rz(a, b)) OUT(__drcp_rn(b))
}

typedef unsigned int u32;
typedef unsigned long long u64;

extern "C" __global__ void integers(const u32* x, const u32* z, u32* y, int n) {
    LANES u32 a = x[i], b = z[i];
    OUT(__byte_perm(a, b, 0x5140)) OUT(__byte_perm(a, b, b)) OUT(__funnelshift_l(a, b, a)) OUT(__funnelshift_r(a, b, a))
    OUT(__funnelshift_lc(a, b, 40)) OUT(__funnelshift_rc(a, b, 7)) OUT(__dp4a((int)a, (int)b, 5)) OUT(__dp4a(a, b, 5u))
    OUT(__dp2a_lo((int)a, (int)b, 5)) OUT(__dp2a_hi(a, b, 5u)) OUT(__brev(a)) OUT(__ffs(a)) OUT(__clz(a)) OUT(__popc(a))
    OUT(__mulhi((int)a, (int)b)) OUT(__umulhi(a, b)) OUT(__mul24(a, b)) OUT(__umul24(a, b)) OUT(__sad(a, b, 3)) OUT(__usad(a, b, 3))
    OUT(__hadd((int)a, (int)b)) OUT(__rhadd((int)a, (int)b)) OUT(__uhadd(a, b)) OUT(__urhadd(a, b)) OUT(a / (b | 1)) OUT((int)a % (int)(b | 1))
    OUT(__vadd4(a, b)) OUT(__vsub4(a, b)) OUT(__vabsdiffu4(a, b)) OUT(__vsadu4(a, b)) OUT(__vmaxu4(a, b)) OUT(__vmins4(a, b))
    OUT(__vaddus4(a, b)) OUT(__vaddss4(a, b)) OUT(__vcmpltu4(a, b)) OUT(__vseteq4(a, b)) OUT(__vavgu4(a, b)) OUT(__vneg4(a))
    OUT(__vadd2(a, b)) OUT(__vmaxs2(a, b)) OUT(__vminu2(a, b)) OUT(__vsubss2(a, b)) OUT(__vabs2(a)) OUT(__vcmpgts2(a, b))
    OUT(__viaddmax_s32(a, b, 7)) OUT(__vimax3_s32(a, b, 9)) OUT(__vimin_s16x2_relu(a, b)) OUT(__vimax3_u16x2(a, b, 0x00400040))
}

extern "C" __global__ void long_integers(const u64* x, const u64* z, u64* y, int n) {
    LANES u64 a = x[i], b = z[i];
    unsigned __int128 w = (unsigned __int128)a * b + (a ^ b);
    OUT(__brevll(a)) OUT(__ffsll(a)) OUT(__clzll(a)) OUT(__popcll(a)) OUT(__mul64hi(a, b)) OUT(__umul64hi(a, b)) OUT(a / (b | 1))
    OUT((long long)a % (long long)(b | 1)) OUT((u64)w) OUT((u64)(w >> 64)) OUT((u64)(w / (b | 1))) OUT((u64)(w % ((a >> 3) | 1)))
    OUT((u64)__double2ll_rz((double)a)) OUT((u64)__ll2float_rd(a)) OUT(a >> (b & 63)) OUT(a << (b & 63))
}

__device__ u32 bits(half v) { return __half_as_ushort(v); }
__device__ u32 bits(__nv_bfloat16 v) { return __bfloat16_as_ushort(v); }
__device__ u32 bits(half2 v) { return *(u32*)&v; }
__device__ u32 bits(__nv_bfloat162 v) { return *(u32*)&v; }

extern "C" __global__ void halves(const u32* x, const u32* z, u32* y, int n) {
    LANES u32 p = x[i], q = z[i];
    half2 a = *(half2*)&p, b = *(half2*)&q;
    half c = __low2half(a), d = __low2half(b);
    OUT(bits(__hadd2(a, b))) OUT(bits(__hsub2(a, b))) OUT(bits(__hmul2(a, b))) OUT(bits(__hfma2(a, b, a))) OUT(bits(__h2div(a, b)))
    OUT(bits(__hadd_sat(c, d))) OUT(bits(__hmax2(a, b))) OUT(bits(__hmin_nan(c, d))) OUT(bits(__hneg2(a))) OUT(bits(__habs2(a)))
    OUT(__hlt(c, d)) OUT(bits(__heq2(a, b))) OUT(__hbgt2(a, b)) OUT(bits(hsqrt(c))) OUT(bits(hrint(c))) OUT(bits(hfloor(c)))
    OUT(bits(hexp(c))) OUT(bits(h2exp2(a))) OUT(bits(hlog2(c))) OUT(bits(hsin(c))) OUT(__half2int_rn(c)) OUT(bits(__int2half_rz(i * 977)))
    OUT(bits(__float2half_rd(__half2float(c) * 1.37f))) OUT(bits(__floats2half2_rn(__half2float(c) / 3, __half2float(d) / 7)))
    OUT(bits(hrcp(c)))
#if __CUDA_ARCH__ >= 800
    OUT(bits(__hfma_relu(c, d, c)))
#endif
}

extern "C" __global__ void bfloats(const u32* x, const u32* z, u32* y, int n) {
    LANES u32 p = x[i], q = z[i];
    __nv_bfloat162 a = *(__nv_bfloat162*)&p, b = *(__nv_bfloat162*)&q;
    __nv_bfloat16 c = __low2bfloat16(a), d = __low2bfloat16(b);
    OUT(bits(__hadd2(a, b))) OUT(bits(__hsub2(a, b))) OUT(bits(__hmul2(a, b))) OUT(bits(__h2div(a, b)))
    OUT(bits(__hadd_sat(c, d))) OUT(bits(__hmax2(a, b))) OUT(bits(__hmin_nan(c, d))) OUT(bits(__hneg2(a))) OUT(bits(__habs2(a)))
    OUT(__hlt(c, d)) OUT(bits(__heq2(a, b))) OUT(__hbgt2(a, b)) OUT(bits(hsqrt(c))) OUT(bits(hrint(c))) OUT(bits(hfloor(c)))
    OUT(bits(hexp(c))) OUT(bits(h2exp2(a))) OUT(bits(hlog2(c))) OUT(bits(hsin(c))) OUT(__bfloat162int_rn(c)) OUT(bits(__int2bfloat16_rz(i * 977)))
    OUT(bits(__float2bfloat16_rd(__bfloat162float(c) * 1.37f))) OUT(bits(__floats2bfloat162_rn(__bfloat162float(c) / 3, __bfloat162float(d) / 7)))
    OUT(bits(hrcp(c)))
#if __CUDA_ARCH__ >= 800
    OUT(bits(__hfma_relu(c, d, c))) OUT(bits(__hfma2(a, b, a)))
#endif
}

extern "C" __global__ void narrow(const float* x, u32* y, int n) {
    LANES float a = x[i], b = a * 0.7f;
    OUT(__nv_cvt_float_to_fp8(a, __NV_SATFINITE, __NV_E4M3)) OUT(__nv_cvt_float_to_fp8(a, __NV_SATFINITE, __NV_E5M2))
    OUT(__nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3))
    OUT(bits(half2(__nv_cvt_fp8x2_to_halfraw2(i * 257, __NV_E4M3)))) OUT(bits(half2(__nv_cvt_fp8x2_to_halfraw2(i * 257, __NV_E5M2))))
    __nv_fp8_e4m3 v(a);
    OUT(__float_as_uint((float)v))
}

extern "C" __global__ void complex_numbers(const float* x, const float* z, float* y, int n) {
    LANES cuFloatComplex a = make_cuFloatComplex(x[i], z[i]), b = make_cuFloatComplex(z[i], x[n - 1 - i]);
    cuFloatComplex p = cuCmulf(a, b), q = cuCdivf(a, b);
    OUT(p.x) OUT(p.y) OUT(q.x) OUT(q.y) OUT(cuCabsf(a))
}

extern "C" __global__ void say() {
    printf("%d %u %lld %llx %5.2f %e %g %c %s %% %08x\n", -7, 7u, -1ll << 40, 1ull << 40, 2.0 / 3, 1e-7, 1e20f, 'x', "text", 0xBEEF);
    printf("%i %hd %5d|%-5d|%+d %o %p\n", 3, (short)-2, 42, 42, 42, 8, (void*)0);
}
