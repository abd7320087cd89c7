// PTX ISA, "Integer Arithmetic Instructions" and "Logic and Shift Instructions".
#pragma once
#include "ptxkit/ptx/guard.cuh"

namespace ptxkit {

// All 64 bits of a product. In CUDA C++ it is a 64-bit multiplication, and ptxas adds the zero upper halves up all the
// same.
__device__ __forceinline__ unsigned long long mul_wide_u32(unsigned a, unsigned b) {
    unsigned long long product;
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
    return product;
}

// Any logic function of three words, bit by bit. TABLE is the function of a = 0xf0, b = 0xcc, c = 0xaa: 0x96 = 0xf0 ^
// 0xcc ^ 0xaa.
template <unsigned TABLE>
__device__ __forceinline__ unsigned lop3_b32(unsigned a, unsigned b, unsigned c) {
    static_assert(TABLE < 256, "a table has eight bits, one for each combination");
    unsigned result;
    asm("lop3.b32 %0, %1, %2, %3, %4;" : "=r"(result) : "r"(a), "r"(b), "r"(c), "n"(TABLE));
    return result;
}

}  // namespace ptxkit
