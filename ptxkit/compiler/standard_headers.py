"""Replacements for the C standard headers and ``cuda.h``, which CUDA sources commonly include and NVRTC lacks.

NVRTC has no host headers: ``#include <stdint.h>`` fails, and so does NVIDIA's own ``cuda.h``, which kernels include for
``CUtensorMap``. What such headers hold for device code is either built in (``printf``, ``assert``, ``memcpy``, ``sqrtf``) or a
few definitions. The 64-bit types are ``long long``, as in libcu++'s ``<cuda/std/cstdint>``, so that both can be included.
"""

from __future__ import annotations

from ptxkit.compiler.comparison_header import COMPARE

_INTEGERS = "".join(
    f"""\
typedef signed {c} int{bits}_t, int_least{bits}_t, int_fast{bits}_t;
typedef unsigned {c} uint{bits}_t, uint_least{bits}_t, uint_fast{bits}_t;
#define INT{bits}_MAX {(1 << bits - 1) - 1}{suffix}
#define INT{bits}_MIN (-INT{bits}_MAX - 1)
#define UINT{bits}_MAX {(1 << bits) - 1}{unsigned}
"""
    for bits, c, suffix, unsigned in (
        (8, "char", "", ""),
        (16, "short", "", ""),
        (32, "int", "", "u"),
        (64, "long long", "ll", "ull"),
    )
)

_STDINT = f"""#pragma once
{_INTEGERS}
typedef long long intptr_t, intmax_t;
typedef unsigned long long uintptr_t, uintmax_t;
#define SIZE_MAX UINT64_MAX
#define INTPTR_MAX INT64_MAX
#define UINTPTR_MAX UINT64_MAX
"""

_FORMATS = "".join(
    f'#define PRI{conversion}{name} "{length}{conversion}"\n'
    for conversion in "diouxX"
    for name, length in [
        *((f"{kind}{bits}", "ll" if bits == 64 else "") for kind in ("", "LEAST", "FAST") for bits in (8, 16, 32, 64)),
        ("PTR", "ll"),
        ("MAX", "ll"),
    ]
)

_STDDEF = """#pragma once
typedef decltype(sizeof(0)) size_t;
typedef decltype(static_cast<char*>(nullptr) - static_cast<char*>(nullptr)) ptrdiff_t;
#ifndef offsetof
#define offsetof(type, member) reinterpret_cast<size_t>(&static_cast<type*>(nullptr)->member)
#endif
"""

_LIMITS = """#pragma once
#define CHAR_BIT 8
#define SCHAR_MAX 127
#define SCHAR_MIN (-128)
#define UCHAR_MAX 255
#define SHRT_MAX 32767
#define SHRT_MIN (-32768)
#define USHRT_MAX 65535
#define INT_MAX 2147483647
#define INT_MIN (-INT_MAX - 1)
#define UINT_MAX 4294967295u
#define LONG_MAX 9223372036854775807l
#define LONG_MIN (-LONG_MAX - 1)
#define ULONG_MAX 18446744073709551615ul
#define LLONG_MAX 9223372036854775807ll
#define LLONG_MIN (-LLONG_MAX - 1)
#define ULLONG_MAX 18446744073709551615ull
"""

_FLOAT = """#pragma once
#define FLT_RADIX 2
#define FLT_DIG 6
#define FLT_MIN_EXP (-125)
#define FLT_MAX_EXP 128
#define FLT_MIN_10_EXP (-37)
#define FLT_MAX_10_EXP 38
#define FLT_TRUE_MIN 0x1p-149f
#define DBL_DIG 15
#define DBL_MIN_EXP (-1021)
#define DBL_MAX_EXP 1024
#define DBL_MIN_10_EXP (-307)
#define DBL_MAX_10_EXP 308
#define DBL_TRUE_MIN 0x1p-1074
#define FLT_MANT_DIG 24
#define FLT_MAX 0x1.fffffep127f
#define FLT_MIN 0x1p-126f
#define FLT_EPSILON 0x1p-23f
#define DBL_MANT_DIG 53
#define DBL_MAX 0x1.fffffffffffffp1023
#define DBL_MIN 0x1p-1022
#define DBL_EPSILON 0x1p-52
"""

_MATH = """#pragma once
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#define HUGE_VALF INFINITY
#define HUGE_VAL __longlong_as_double(0x7ff0000000000000)
#define M_E 2.71828182845904523536
#define M_LOG2E 1.44269504088896340736
#define M_LOG10E 0.43429448190325182765
#define M_LN2 0.69314718055994530942
#define M_LN10 2.30258509299404568402
#define M_PI 3.14159265358979323846
#define M_PI_2 1.57079632679489661923
#define M_PI_4 0.78539816339744830962
#define M_1_PI 0.31830988618379067154
#define M_2_PI 0.63661977236758134308
#define M_2_SQRTPI 1.12837916709551257390
#define M_SQRT2 1.41421356237309504880
#define M_SQRT1_2 0.70710678118654752440
"""

_EMPTY = "#pragma once\n"

_C_HEADERS = {
    "stdint": (_STDINT, [f"{u}int{bits}_t" for u in ("", "u") for bits in (8, 16, 32, 64)] + ["intptr_t", "uintptr_t"]),
    "inttypes": (f'#pragma once\n#include "stdint.h"\n{_FORMATS}', []),
    "stddef": (_STDDEF, ["size_t", "ptrdiff_t"]),
    "limits": (_LIMITS, []),
    "float": (_FLOAT, []),
    "math": (
        _MATH,
        "abs fabs sqrt cbrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh pow hypot "
        "fmin fmax floor ceil round trunc fma fmod erf isnan isinf isfinite signbit copysign".split(),
    ),
    "stdlib": (_EMPTY, []),
    "stdio": (_EMPTY, ["printf"]),
    "string": (_EMPTY, ["memcpy", "memset"]),
    "assert": (_EMPTY, []),
}


# cuda.h declares host functions, which NVRTC rejects. Device code only needs the type of a tensor map from it (CUDA
# Driver API, "CUtensorMap"), and headers that it shares with host code name the types of handles (CUDA Driver API, "Data
# types used by CUDA driver").
_HANDLES = {
    "context": "ctx",
    "event": "event",
    "function": "func",
    "graph": "graph",
    "graphExec": "graphExec",
    "graphNode": "graphNode",
    "kernel": "kern",
    "library": "lib",
    "memoryPool": "memPoolHandle",
    "module": "mod",
    "stream": "stream",
}
_CUDA = """#pragma once
typedef int CUdevice;
typedef unsigned long long CUdeviceptr, CUtexObject, CUsurfObject, CUmemGenericAllocationHandle;
"""
_CUDA += "".join(f"typedef struct CU{struct}_st* CU{name};\n" for name, struct in _HANDLES.items())
_CUDA += """\
typedef struct alignas(64) CUtensorMap_st {
    unsigned long long opaque[16];
} CUtensorMap;
"""


def _in_namespace_std(header: str, names: list[str]) -> str:
    using = "".join(f"using ::{name}; " for name in names)
    return f'#pragma once\n#include "{header}"\nnamespace std {{ {using}}}\n'


STANDARD_HEADERS: dict[str, str] = {
    **{f"{stem}.h": text for stem, (text, _) in _C_HEADERS.items()},
    "cuda.h": _CUDA,
    "compare": COMPARE,
    **{f"c{stem}": _in_namespace_std(f"{stem}.h", names) for stem, (_, names) in _C_HEADERS.items()},
}
"""Name as included -> text. NVRTC takes these before it looks on the include path."""
