// The accumulators of a wgmma.mma_async as operands of an asm: PTXKIT_RN lists the first N in the text of the
// instruction, and PTXKIT_DN(i) binds d[i] to d[i + N - 1], of f32 sums; PTXKIT_IN(i) binds those of s32 sums.
#pragma once

#define PTXKIT_R4 "%0, %1, %2, %3"
#define PTXKIT_R8 PTXKIT_R4 ", %4, %5, %6, %7"
#define PTXKIT_R16 PTXKIT_R8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define PTXKIT_R24 PTXKIT_R16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define PTXKIT_R32 PTXKIT_R24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define PTXKIT_R48 \
    PTXKIT_R32 \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define PTXKIT_R64 \
    PTXKIT_R48 \
    ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define PTXKIT_R88 \
    PTXKIT_R64 \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
    ", %80, %81, %82, %83, %84, %85, %86, %87"
#define PTXKIT_R96 PTXKIT_R88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define PTXKIT_R100 PTXKIT_R96 ", %96, %97, %98, %99"
#define PTXKIT_R128 \
    PTXKIT_R100 \
    ", %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
    ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define PTXKIT_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define PTXKIT_D8(i) PTXKIT_D4(i), PTXKIT_D4(i + 4)
#define PTXKIT_D32(i) PTXKIT_D8(i), PTXKIT_D8(i + 8), PTXKIT_D8(i + 16), PTXKIT_D8(i + 24)
#define PTXKIT_I4(i) "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3])
#define PTXKIT_I8(i) PTXKIT_I4(i), PTXKIT_I4(i + 4)
#define PTXKIT_I32(i) PTXKIT_I8(i), PTXKIT_I8(i + 8), PTXKIT_I8(i + 16), PTXKIT_I8(i + 24)
