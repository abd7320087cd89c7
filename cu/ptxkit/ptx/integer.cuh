// mul.wide.u32, lop3.b32, max.u16x2, min.u16x2. PTX ISA, "Integer Arithmetic Instructions" and "Logic and Shift Instructions".
// Target: sm_75 or newer, u16x2: sm_90 or newer.
#pragma once
#include "ptxkit/ptx/guard.cuh"

namespace ptxkit {

// No instruction. The compiler does not know the value of the result, so that it computes what depends on it where it is used.
__device__ __forceinline__ unsigned optimization_barrier(unsigned x) {
    asm volatile("" : "+r"(x));
    return x;
}
template <class T>
__device__ __forceinline__ T* optimization_barrier(T* pointer) {
    asm volatile("" : "+l"(pointer));
    return pointer;
}

// mul.wide: the 64-bit product of two 32-bit numbers. In CUDA C++ this is a multiplication of 64-bit operands, for
// which ptxas also multiplies and adds the upper halves, which are zero.
__device__ __forceinline__ unsigned long long mul_wide_u32(unsigned a, unsigned b) {
    unsigned long long product;
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
    return product;
}

// lop3: any bitwise logic function of three operands. TABLE is the truth table of the function, which is the result of
// the function for a = 0xf0, b = 0xcc, c = 0xaa. Example: a ^ b ^ c has the table 0xf0 ^ 0xcc ^ 0xaa = 0x96.
template <unsigned TABLE>
__device__ __forceinline__ unsigned lop3_b32(unsigned a, unsigned b, unsigned c) {
    static_assert(TABLE < 256, "a truth table of three operands has eight bits");
    unsigned result;
    asm("lop3.b32 %0, %1, %2, %3, %4;" : "=r"(result) : "r"(a), "r"(b), "r"(c), "n"(TABLE));
    return result;
}

// max and min of both halves of two words.
__device__ __forceinline__ unsigned max_u16x2(unsigned a, unsigned b) {
    unsigned larger;
#if PTXKIT_SM >= 90
    asm("max.u16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
#else
    larger = max(a & 0xffff, b & 0xffff) | max(a >> 16, b >> 16) << 16;
#endif
    return larger;
}
__device__ __forceinline__ unsigned min_u16x2(unsigned a, unsigned b) {
    unsigned smaller;
#if PTXKIT_SM >= 90
    asm("min.u16x2 %0, %1, %2;" : "=r"(smaller) : "r"(a), "r"(b));
#else
    smaller = min(a & 0xffff, b & 0xffff) | min(a >> 16, b >> 16) << 16;
#endif
    return smaller;
}

}  // namespace ptxkit
