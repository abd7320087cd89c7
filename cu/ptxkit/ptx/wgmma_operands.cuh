// The accumulators of a wgmma.mma_async as operands of an asm: PTXKIT_RN lists the first N in the text of the
// instruction, and PTXKIT_DN(i) binds d[i] to d[i + N - 1], of f32 sums; PTXKIT_IN(i) binds those of s32 sums.
#pragma once

#define PTXKIT_R4 "%0, %1, %2, %3"
#define PTXKIT_R8 PTXKIT_R4 ", %4, %5, %6, %7"
#define PTXKIT_R12 PTXKIT_R8 ", %8, %9, %10, %11"
#define PTXKIT_R16 PTXKIT_R12 ", %12, %13, %14, %15"
#define PTXKIT_R20 PTXKIT_R16 ", %16, %17, %18, %19"
#define PTXKIT_R24 PTXKIT_R20 ", %20, %21, %22, %23"
#define PTXKIT_R28 PTXKIT_R24 ", %24, %25, %26, %27"
#define PTXKIT_R32 PTXKIT_R28 ", %28, %29, %30, %31"
#define PTXKIT_R36 PTXKIT_R32 ", %32, %33, %34, %35"
#define PTXKIT_R40 PTXKIT_R36 ", %36, %37, %38, %39"
#define PTXKIT_R44 PTXKIT_R40 ", %40, %41, %42, %43"
#define PTXKIT_R48 PTXKIT_R44 ", %44, %45, %46, %47"
#define PTXKIT_R52 PTXKIT_R48 ", %48, %49, %50, %51"
#define PTXKIT_R56 PTXKIT_R52 ", %52, %53, %54, %55"
#define PTXKIT_R60 PTXKIT_R56 ", %56, %57, %58, %59"
#define PTXKIT_R64 PTXKIT_R60 ", %60, %61, %62, %63"
#define PTXKIT_R68 PTXKIT_R64 ", %64, %65, %66, %67"
#define PTXKIT_R72 PTXKIT_R68 ", %68, %69, %70, %71"
#define PTXKIT_R76 PTXKIT_R72 ", %72, %73, %74, %75"
#define PTXKIT_R80 PTXKIT_R76 ", %76, %77, %78, %79"
#define PTXKIT_R84 PTXKIT_R80 ", %80, %81, %82, %83"
#define PTXKIT_R88 PTXKIT_R84 ", %84, %85, %86, %87"
#define PTXKIT_R92 PTXKIT_R88 ", %88, %89, %90, %91"
#define PTXKIT_R96 PTXKIT_R92 ", %92, %93, %94, %95"
#define PTXKIT_R100 PTXKIT_R96 ", %96, %97, %98, %99"
#define PTXKIT_R104 PTXKIT_R100 ", %100, %101, %102, %103"
#define PTXKIT_R108 PTXKIT_R104 ", %104, %105, %106, %107"
#define PTXKIT_R112 PTXKIT_R108 ", %108, %109, %110, %111"
#define PTXKIT_R116 PTXKIT_R112 ", %112, %113, %114, %115"
#define PTXKIT_R120 PTXKIT_R116 ", %116, %117, %118, %119"
#define PTXKIT_R124 PTXKIT_R120 ", %120, %121, %122, %123"
#define PTXKIT_R128 PTXKIT_R124 ", %124, %125, %126, %127"
#define PTXKIT_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define PTXKIT_D8(i) PTXKIT_D4(i), PTXKIT_D4(i + 4)
#define PTXKIT_D16(i) PTXKIT_D8(i), PTXKIT_D8(i + 8)
#define PTXKIT_D32(i) PTXKIT_D16(i), PTXKIT_D16(i + 16)
#define PTXKIT_I4(i) "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3])
#define PTXKIT_I8(i) PTXKIT_I4(i), PTXKIT_I4(i + 4)
#define PTXKIT_I16(i) PTXKIT_I8(i), PTXKIT_I8(i + 8)
#define PTXKIT_I32(i) PTXKIT_I16(i), PTXKIT_I16(i + 16)
