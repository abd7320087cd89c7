// wgmma.mma_async.sp with the other numbers of columns: all multiples of 8, so that a tile may have as many columns as a product has rows of
// its dense operand. PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions: wgmma.mma_async.sp". Target: sm_90a
// only. See wgmma_sparse.cuh for the operands and the metadata.
#pragma once
#include "ptxkit/ptx/wgmma_sparse.cuh"

namespace ptxkit {

#if PTXKIT_SM90A
#define PTXKIT_SPARSE_ASM(FORM, PART, REGISTERS, A, B, METADATA, ACCUMULATE, LAST, ...)                                           \
    asm volatile("{.reg .pred p; setp.ne.b32 p, " ACCUMULATE ", 0; wgmma.mma_async.sp.sync.aligned." FORM                         \
                 " {" REGISTERS "}, " A ", " B ", " METADATA ", " LAST ", p, 1, 1" PART ";}"                                      \
                 : __VA_ARGS__                                                                                                    \
                 : "l"(a), "l"(b), "r"(metadata), "r"(static_cast<int>(accumulate)), "n"(SELECTOR));
#else
#define PTXKIT_SPARSE_ASM(...) PTXKIT_UNSUPPORTED_EXCEPT("wgmma.mma_async.sp", "sm_90a");
#endif

// The overloads of wgmma_sparse for this number of columns. REGISTERS are the sums in the text of the instruction, the next ones the
// other operands of the asm, in their order, and the last ones bind the sums.
#define PTXKIT_SPARSE_COLUMNS(COLUMNS, ...)                                                                                       \
    template <int SELECTOR>                                                                                                       \
    __device__ __forceinline__ void wgmma_sparse(float (&d)[COLUMNS / 2], unsigned long long a, unsigned long long b,             \
                                                 unsigned metadata, bool accumulate, bf16) {                                      \
        PTXKIT_SPARSE_ASM("m64n" #COLUMNS "k32.f32.bf16.bf16", ", 0, 0", __VA_ARGS__)                                             \
    }                                                                                                                             \
    template <int SELECTOR>                                                                                                       \
    __device__ __forceinline__ void wgmma_sparse(float (&d)[COLUMNS / 2], unsigned long long a, unsigned long long b,             \
                                                 unsigned metadata, bool accumulate, f16) {                                       \
        PTXKIT_SPARSE_ASM("m64n" #COLUMNS "k32.f32.f16.f16", ", 0, 0", __VA_ARGS__)                                               \
    }                                                                                                                             \
    template <int PART>                                                                                                           \
    __device__ __forceinline__ void wgmma_sparse(float (&d)[COLUMNS / 2], unsigned long long a, unsigned long long b,             \
                                                 unsigned metadata, bool accumulate, e4m3) {                                      \
        constexpr int SELECTOR = 0; /* all threads give metadata */                                                               \
        PTXKIT_SPARSE_ASM("m64n" #COLUMNS "k64.f32.e4m3.e4m3", "", __VA_ARGS__)                                                   \
    }

PTXKIT_SPARSE_COLUMNS(8, PTXKIT_R4, "%4", "%5", "%6", "%7", "%8", PTXKIT_D4(0))
PTXKIT_SPARSE_COLUMNS(16, PTXKIT_R8, "%8", "%9", "%10", "%11", "%12", PTXKIT_D8(0))
PTXKIT_SPARSE_COLUMNS(24, PTXKIT_R12, "%12", "%13", "%14", "%15", "%16", PTXKIT_D8(0), PTXKIT_D4(8))
PTXKIT_SPARSE_COLUMNS(32, PTXKIT_R16, "%16", "%17", "%18", "%19", "%20", PTXKIT_D16(0))
PTXKIT_SPARSE_COLUMNS(40, PTXKIT_R20, "%20", "%21", "%22", "%23", "%24", PTXKIT_D16(0), PTXKIT_D4(16))
PTXKIT_SPARSE_COLUMNS(48, PTXKIT_R24, "%24", "%25", "%26", "%27", "%28", PTXKIT_D16(0), PTXKIT_D8(16))
PTXKIT_SPARSE_COLUMNS(56, PTXKIT_R28, "%28", "%29", "%30", "%31", "%32", PTXKIT_D16(0), PTXKIT_D8(16), PTXKIT_D4(24))
PTXKIT_SPARSE_COLUMNS(72, PTXKIT_R36, "%36", "%37", "%38", "%39", "%40", PTXKIT_D32(0), PTXKIT_D4(32))
PTXKIT_SPARSE_COLUMNS(80, PTXKIT_R40, "%40", "%41", "%42", "%43", "%44", PTXKIT_D32(0), PTXKIT_D8(32))
PTXKIT_SPARSE_COLUMNS(88, PTXKIT_R44, "%44", "%45", "%46", "%47", "%48", PTXKIT_D32(0), PTXKIT_D8(32), PTXKIT_D4(40))
PTXKIT_SPARSE_COLUMNS(96, PTXKIT_R48, "%48", "%49", "%50", "%51", "%52", PTXKIT_D32(0), PTXKIT_D16(32))
PTXKIT_SPARSE_COLUMNS(104, PTXKIT_R52, "%52", "%53", "%54", "%55", "%56", PTXKIT_D32(0), PTXKIT_D16(32), PTXKIT_D4(48))
PTXKIT_SPARSE_COLUMNS(112, PTXKIT_R56, "%56", "%57", "%58", "%59", "%60", PTXKIT_D32(0), PTXKIT_D16(32), PTXKIT_D8(48))
PTXKIT_SPARSE_COLUMNS(120, PTXKIT_R60, "%60", "%61", "%62", "%63", "%64", PTXKIT_D32(0), PTXKIT_D16(32), PTXKIT_D8(48), PTXKIT_D4(56))
PTXKIT_SPARSE_COLUMNS(136, PTXKIT_R68, "%68", "%69", "%70", "%71", "%72", PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D4(64))
PTXKIT_SPARSE_COLUMNS(144, PTXKIT_R72, "%72", "%73", "%74", "%75", "%76", PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D8(64))
PTXKIT_SPARSE_COLUMNS(152, PTXKIT_R76, "%76", "%77", "%78", "%79", "%80", PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D8(64), PTXKIT_D4(72))
PTXKIT_SPARSE_COLUMNS(160, PTXKIT_R80, "%80", "%81", "%82", "%83", "%84", PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D16(64))
PTXKIT_SPARSE_COLUMNS(168, PTXKIT_R84, "%84", "%85", "%86", "%87", "%88", PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D16(64), PTXKIT_D4(80))
PTXKIT_SPARSE_COLUMNS(184, PTXKIT_R92, "%92", "%93", "%94", "%95", "%96", PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D16(64), PTXKIT_D8(80), PTXKIT_D4(88))
PTXKIT_SPARSE_COLUMNS(208, PTXKIT_R104, "%104", "%105", "%106", "%107", "%108", PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64), PTXKIT_D8(96))
PTXKIT_SPARSE_COLUMNS(216, PTXKIT_R108, "%108", "%109", "%110", "%111", "%112", PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64), PTXKIT_D8(96), PTXKIT_D4(104))
PTXKIT_SPARSE_COLUMNS(224, PTXKIT_R112, "%112", "%113", "%114", "%115", "%116", PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64), PTXKIT_D16(96))
PTXKIT_SPARSE_COLUMNS(232, PTXKIT_R116, "%116", "%117", "%118", "%119", "%120", PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64), PTXKIT_D16(96), PTXKIT_D4(112))
PTXKIT_SPARSE_COLUMNS(240, PTXKIT_R120, "%120", "%121", "%122", "%123", "%124", PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64), PTXKIT_D16(96), PTXKIT_D8(112))
PTXKIT_SPARSE_COLUMNS(248, PTXKIT_R124, "%124", "%125", "%126", "%127", "%128", PTXKIT_D32(0), PTXKIT_D32(32), PTXKIT_D32(64), PTXKIT_D16(96), PTXKIT_D8(112), PTXKIT_D4(120))

#undef PTXKIT_SPARSE_COLUMNS
#undef PTXKIT_SPARSE_ASM

}  // namespace ptxkit
