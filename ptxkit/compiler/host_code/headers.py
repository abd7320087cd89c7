"""Where the headers of a source with host code come from: libcu++, files, or nothing, if only hosts need them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from ptxkit.compiler.host_code.device_part import DevicePart, Dropped
from ptxkit.compiler.host_code.preprocessor import Inclusion
from ptxkit.compiler.paths import include_dir
from ptxkit.compiler.standard_headers import STANDARD_HEADERS

LIBCUDACXX = frozenset(
    "algorithm array atomic barrier bit bitset cassert ccomplex cfloat chrono climits cmath complex concepts "
    "cstddef cstdint cstdlib cstring ctime cuchar exception execution expected functional initializer_list "
    "inplace_vector iterator latch limits linalg mdspan memory memory_resource new numbers numeric optional random "
    "ranges ratio semaphore source_location span stdexcept string_view tuple type_traits typeindex typeinfo utility "
    "variant version".split()
)
"""Standard headers that libcu++ offers as ``<cuda/std/NAME>``, or would offer; those that do not exist are left out."""

HOST_ONLY = frozenset(
    "any cctype cerrno cfenv cinttypes clocale codecvt condition_variable csetjmp csignal cstdarg cstdio cwchar "
    "cwctype deque filesystem forward_list fstream future iomanip ios iosfwd iostream istream list locale map mutex "
    "ostream queue regex set shared_mutex sstream stack stop_token streambuf string strstream syncstream "
    "system_error thread unordered_map unordered_set valarray vector ctype.h errno.h fcntl.h getopt.h inttypes.h "
    "malloc.h memory.h omp.h pthread.h signal.h sys/mman.h sys/stat.h sys/time.h sys/types.h time.h unistd.h "
    "wchar.h windows.h mpi.h cuda_runtime_api.h cuda_profiler_api.h cudaProfiler.h nvToolsExt.h nvrtc.h nvml.h "
    "cublas.h cublas_v2.h cublasLt.h cublasXt.h cusparse.h cusparse_v2.h cusolverDn.h cufft.h cufftXt.h curand.h "
    "cudnn.h nccl.h cudaTypedefs.h cuda_runtime_api.h ATen/ATen.h helper_cuda.h helper_functions.h helper_string.h "
    "helper_timer.h helper_image.h exception.h nvtx3/nvToolsExt.h torch/extension.h torch/torch.h torch/library.h "
    "torch/types.h torch/all.h Python.h pybind11/pybind11.h gtest/gtest.h".split()
)
"""Headers that declare nothing for device code, or nothing that NVRTC does not have already."""

LIBRARIES = ("cutlass/", "cute/", "thrust/", "cub/", "cuda/", "nv/", "cooperative_groups/")
"""Directories of large libraries that are made for NVRTC, too: their headers are used as they are."""

LEVELS = 4  # directories above that of a source in which its headers are looked for
HEADER_DIRECTORIES = ("include", "inc", "Common", "common", "utils", "src", "csrc")

ON_DEMAND: tuple[tuple[str, str], ...] = (
    (r"(__)?half2?|half2?|__half2?_raw|__float2half\w*|__half2float\w*|h2?exp|__h\w+2?", "cuda_fp16.h"),
    (r"(__)?nv_bfloat162?|__nv_bfloat162?|__float2bfloat16\w*|__bfloat162float", "cuda_bf16.h"),
    (r"__nv_fp8\w*", "cuda_fp8.h"),
    (r"__nv_fp4\w*", "cuda_fp4.h"),
    (r"__nv_fp6\w*", "cuda_fp6.h"),
    (r"u?int(8|16|32|64)_t|u?intptr_t|U?INT(8|16|32|64)_(MAX|MIN)", "stdint.h"),
    (r"(FLT|DBL)_(MAX|MIN|EPSILON|DIG)", "float.h"),
    (r"(U?INT|U?LONG|U?CHAR|U?SHRT|U?LLONG)_(MAX|MIN)|CHAR_BIT", "limits.h"),
    (r"CUtensorMap", "cuda.h"),
    (r"cooperative_groups|cg", "cooperative_groups.h"),
    (r"nvcuda|wmma", "mma.h"),
    (r"size_t|ptrdiff_t", "stddef.h"),
    (r"assert", "assert.h"),
    (r"cuDoubleComplex|cuComplex|cuFloatComplex|make_cu\w*Complex", "cuComplex.h"),
)
"""Names -> the header that defines them. Headers of the host, such as torch's and cuBLAS's, include these."""

WHEELS = {"curand_kernel.h": "nvidia-curand", "cutlass/": "nvidia-cutlass", "cute/": "nvidia-cutlass"}
"""Headers for device code -> the wheel that holds them, if it is not installed."""

# why an include is left out
OF_THE_HOST = "of the host"
NOT_FOUND = "not found, and taken as a header of the host"

PRELUDE_NAME = "ptxkit_host_types.h"
PRELUDE = """#pragma once
namespace std {}
typedef unsigned char uchar;
typedef unsigned char u_char;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif
@MATH@#ifndef __asm__
#define __asm__ asm
#endif
#ifndef __volatile__
#define __volatile__ volatile
#endif
"""
PRELUDE = PRELUDE.replace(
    "@MATH@",
    "".join(
        f"#ifndef {name}\n#define {name} {value}\n#endif\n"
        for name, value in {
            "M_E": "2.71828182845904523536",
            "M_LOG2E": "1.44269504088896340736",
            "M_LOG10E": "0.43429448190325182765",
            "M_LN2": "0.69314718055994530942",
            "M_LN10": "2.30258509299404568402",
            "M_PI": "3.14159265358979323846",
            "M_PI_2": "1.57079632679489661923",
            "M_PI_4": "0.78539816339744830962",
            "M_1_PI": "0.31830988618379067154",
            "M_2_PI": "0.63661977236758134308",
            "M_2_SQRTPI": "1.12837916709551257390",
            "M_SQRT2": "1.41421356237309504880",
            "M_SQRT1_2": "0.70710678118654752440",
        }.items()
    ),
)
"""What nvcc's host compiler defines for every source, and device code uses."""


@dataclass
class Headers:
    """The headers of one source.

    Attributes:
        memory: name as included -> text, for NVRTC.
        search: the include path. own: the directories on it whose files are device code already, and are not entered.
        directory, source: of the source.
        missing: headers that were not found.
        standard: standard headers that libcu++ may offer.
    """

    search: tuple[str, ...]
    own: tuple[str, ...]
    directory: str
    source: str
    memory: dict[str, str] = field(default_factory=lambda: {PRELUDE_NAME: PRELUDE})
    missing: set[str] = field(default_factory=set)
    standard: set[str] = field(default_factory=set)

    def find(self, name: str, quoted: bool, includer: str) -> tuple[str, str] | str | None:
        """The path and text of a header to enter; the text of one of whose code nothing can be host code; or None."""
        if name in STANDARD_HEADERS:
            return STANDARD_HEADERS[name]
        directory = self.directory if includer == self.source else str(Path(includer).parent)
        path = _file(name, quoted, directory, self.search)
        is_own = path is not None and str(path).startswith(self.own)
        if path is None or (name in HOST_ONLY and is_own):
            (self.standard if name in LIBCUDACXX else self.missing).add(name)
            return None
        if name.startswith(LIBRARIES) or "site-packages" in path.parts:
            return None
        try:
            if is_own:
                return path.read_text(encoding="utf-8") if str(path).startswith(str(include_dir())) else None
            return str(path), path.read_text(encoding="utf-8-sig", errors="replace")
        except OSError:
            return None  # NVRTC reports it

    def names(self, part: DevicePart, inclusion: Inclusion, virtual: Mapping[int, str]) -> dict[int, str | None]:
        """What becomes of the includes of a file: for :meth:`DevicePart.text_of`.

        Args:
            virtual: identity of an inclusion -> its name in memory.
        """
        out: dict[int, str | None] = {}
        for include in inclusion.includes:
            if include.inclusion is not None:
                if id(include.inclusion) in virtual:
                    out[include.start] = f'"{virtual[id(include.inclusion)]}"'
            elif self.reason(include.name, part):
                out[include.start] = None
        return out

    def reason(self, name: str, part: DevicePart) -> str:
        """Why an include is left out; "" if it stays."""
        words = part.words
        for library in ("thrust", "cub"):
            if name.startswith(f"{library}/"):
                if library not in words:
                    return "not used by the device code"
                if name == "cub/cub.cuh":
                    self.memory[name] = _cub(self.search)
                    return ""
        if name in self.missing:
            return OF_THE_HOST if name in HOST_ONLY else NOT_FOUND
        if name in self.standard:
            # headers of libcu++ take a second to compile, so that sources whose device code uses none of std get none
            if "std" not in words:
                return "not used by the device code"
            self.memory[name] = _from_libcudacxx(name, self.search)
        if name in STANDARD_HEADERS and "std" not in words and not words & _defined(STANDARD_HEADERS[name]):
            return "not used by the device code"
        return ""

    def dropped(self, part: DevicePart) -> list[Dropped]:
        """The includes that are left out."""
        return [
            Dropped("include", include.name, include.line, reason, part.file_of(inclusion))
            for inclusion in part.unit.inclusions
            for include in inclusion.includes
            if include.inclusion is None and (reason := self.reason(include.name, part))
        ]


def wheel_of(name: str) -> str:
    """The wheel that holds a header for device code; "" for a header of no known wheel."""
    return next((wheel for start, wheel in WHEELS.items() if name.startswith(start)), "")


@cache
def _defined(text: str) -> frozenset[str]:
    """The names that one of the replacements for standard headers defines, and those of headers that it includes."""
    included = re.findall(r"#include [<\"]([^>\"]+)", text)
    more = [_defined(STANDARD_HEADERS[name]) for name in included if name in STANDARD_HEADERS]
    bare = re.sub(r"//[^\n]*|^namespace.*", "", text, flags=re.MULTILINE)
    macros = re.findall(r"#define[ ]+(\w+)", bare)
    types = re.findall(r"(\w+)\s*[,;]", bare)
    return frozenset((*macros, *types)).union(*more)


def _cub(search: tuple[str, ...]) -> str:
    """In place of ``cub/cub.cuh``, whose algorithms for whole devices are host code: those of blocks and warps."""
    lines = ["#pragma once"]
    for place in search:
        for part in ("block", "warp"):
            lines += [
                f"#include <cub/{part}/{file.name}>" for file in sorted((Path(place) / "cub" / part).glob("*.cuh"))
            ]
    return "\n".join(lines) + "\n"


def _from_libcudacxx(name: str, search: tuple[str, ...]) -> str:
    for file in (name, f"__{name}_"):  # libcu++ has <algorithm> and others as internal headers only
        if any((Path(place) / "cuda" / "std" / file).is_file() for place in search):
            return f"#pragma once\n#include <cuda/std/{file}>\nnamespace std {{ using namespace ::cuda::std; }}\n"
    return "#pragma once\n"


def _file(name: str, quoted: bool, directory: str, search: tuple[str, ...]) -> Path | None:
    for place in (directory, *search) if quoted else search:
        path = Path(place) / name
        if path.is_file():
            return path.resolve()
    return _nearby(name, Path(directory)) if quoted or "/" in name else None


def _nearby(name: str, directory: Path) -> Path | None:
    """A header in a directory above, or in a directory for headers there, where build files would have pointed with -I."""
    for above in (directory, *directory.parents[:LEVELS]):
        if above == Path.home() or above.parent == above:
            return None
        for beside in ("", *HEADER_DIRECTORIES):
            path = above / beside / name
            if path.is_file():
                return path.resolve()
    return None
