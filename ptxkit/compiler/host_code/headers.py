"""Where the headers of a source with host code come from: libcu++, files, or nothing, if only hosts need them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from ptxkit.compiler.cache import digest
from ptxkit.compiler.host_code import thrust
from ptxkit.compiler.host_code.device_part import DevicePart, Dropped, device_part
from ptxkit.compiler.host_code.opaque_types import opaque_types
from ptxkit.compiler.host_code.preprocessor import Inclusion
from ptxkit.compiler.host_code.torch_types import torch_types
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
    "any cctype cerrno cfenv clocale codecvt condition_variable csetjmp csignal cstdarg cstdio cwchar "
    "cwctype deque filesystem forward_list fstream future iomanip ios iosfwd iostream istream list locale map mutex "
    "ostream queue regex set shared_mutex sstream stack stop_token streambuf string strstream syncstream "
    "system_error thread unordered_map unordered_set valarray vector ctype.h errno.h fcntl.h getopt.h "
    "malloc.h memory.h omp.h pthread.h signal.h sys/mman.h sys/stat.h sys/time.h sys/types.h time.h unistd.h "
    "wchar.h windows.h mpi.h cuda_runtime_api.h cuda_profiler_api.h cudaProfiler.h nvToolsExt.h nvrtc.h nvml.h "
    "cublas.h cublas_v2.h cublasLt.h cublasXt.h cusparse.h cusparse_v2.h cusolverDn.h cufft.h cufftXt.h curand.h "
    "cudnn.h nccl.h cudaTypedefs.h cuda_runtime_api.h ATen/ATen.h helper_cuda.h helper_functions.h helper_string.h "
    "helper_timer.h helper_image.h exception.h nvtx3/nvToolsExt.h torch/extension.h torch/torch.h torch/library.h "
    "torch/types.h torch/all.h Python.h pybind11/pybind11.h gtest/gtest.h stdbool.h stdarg.h stdalign.h stdnoreturn.h "
    "dirent.h locale.h setjmp.h libgen.h cuda_gl_interop.h cuda_egl_interop.h cuda_vdpau_interop.h cudaGL.h cudaEGL.h "
    "cuda_d3d9_interop.h cuda_d3d10_interop.h cuda_d3d11_interop.h cuda_profiler.h nvjpeg.h nvblas.h cufile.h".split()
)
"""Headers that declare nothing for device code, or nothing that NVRTC does not have already."""

_OF_SYSTEMS = frozenset(
    "aio.h byteswap.h conio.h cpio.h direct.h dlfcn.h elf.h endian.h err.h error.h execinfo.h fnmatch.h ftw.h glob.h grp.h "
    "iconv.h io.h langinfo.h libintl.h monetary.h mqueue.h netdb.h nl_types.h poll.h process.h pwd.h regex.h sched.h search.h "
    "semaphore.h spawn.h strings.h syslog.h tar.h termios.h ucontext.h ulimit.h utime.h utmpx.h wctype.h winsock2.h wordexp.h "
    "immintrin.h x86intrin.h xmmintrin.h emmintrin.h arm_neon.h cpuid.h".split()
)
"""Headers of POSIX, Linux, Windows and of the instruction sets of hosts."""

_HOST_DIRECTORIES = (
    "arpa/ asm/ linux/ mach/ net/ netinet/ sys/ X11/ GL/ GLES2/ GLES3/ GLFW/ EGL/ SDL2/ vulkan/ gtest/ gmock/ benchmark/ "
    "torch/ pybind11/ nvtx3/ opencv2/ openssl/ tbb/ nvml/"
).split()
"""Directories whose headers are all for hosts."""


def is_of_the_host(name: str) -> bool:
    """Whether a header, by the name under which it is included, has nothing for device code."""
    return name in HOST_ONLY or name in _OF_SYSTEMS or name.startswith(tuple(_HOST_DIRECTORIES))

LIBRARIES = ("cutlass/", "cute/", "thrust/", "cub/", "cuda/", "nv/", "cooperative_groups/")
"""Directories of large libraries that are made for NVRTC, too: their headers are used as they are."""

STD_NAMES = {
    name: header
    for header, names in {
        "type_traits": "enable_if enable_if_t is_same is_same_v is_integral is_integral_v is_floating_point "
        "is_floating_point_v "
        "is_arithmetic is_arithmetic_v is_signed is_signed_v is_unsigned is_unsigned_v is_void is_void_v is_pointer "
        "is_pointer_v is_const is_const_v is_base_of is_base_of_v is_convertible is_convertible_v is_invocable "
        "is_invocable_v is_trivially_copyable is_trivially_copyable_v is_array is_array_v is_enum is_enum_v is_class "
        "is_empty_v is_reference_v is_lvalue_reference_v is_default_constructible_v conditional conditional_t "
        "integral_constant bool_constant true_type false_type remove_cv remove_cv_t remove_const remove_const_t "
        "remove_reference remove_reference_t remove_cvref remove_cvref_t remove_pointer remove_pointer_t remove_extent_t "
        "remove_volatile_t decay decay_t add_const_t add_pointer_t add_lvalue_reference_t make_signed make_signed_t "
        "make_unsigned make_unsigned_t underlying_type_t common_type common_type_t void_t invoke_result_t result_of_t "
        "alignment_of aligned_storage_t negation_v conjunction_v disjunction_v type_identity_t is_constant_evaluated",
        "algorithm": "min max minmax clamp min_element max_element lower_bound upper_bound fill copy",
        "utility": "move forward swap exchange declval pair make_pair index_sequence make_index_sequence integer_sequence "
        "make_integer_sequence index_sequence_for as_const in_place",
        "tuple": "tuple make_tuple tie get apply tuple_size tuple_size_v tuple_element tuple_element_t tuple_cat "
        "forward_as_tuple",
        "array": "array to_array",
        "limits": "numeric_limits",
        "cstdint": "int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t intptr_t uintptr_t",
        "cstddef": "size_t ptrdiff_t nullptr_t byte max_align_t",
        "cmath": "abs fabs sqrt cbrt exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh pow "
        "hypot fmin fmax floor ceil round trunc fma fmod erf isnan isinf isfinite signbit copysign rint nearbyint",
        "cstring": "memcpy memset memmove",
        "functional": "plus minus multiplies divides less greater less_equal greater_equal equal_to not_equal_to logical_and "
        "logical_or bit_and bit_or bit_xor invoke",
        "numeric": "accumulate iota gcd lcm",
        "bit": "bit_cast popcount countl_zero countr_zero has_single_bit bit_ceil bit_floor bit_width",
        "complex": "complex",
        "optional": "optional nullopt nullopt_t",
        "variant": "variant visit monostate",
        "span": "span dynamic_extent",
        "initializer_list": "initializer_list",
        "iterator": "iterator_traits random_access_iterator_tag begin end distance advance",
        "memory": "addressof pointer_traits construct_at destroy_at",
        "ratio": "ratio",
        "compare": "strong_ordering weak_ordering partial_ordering common_comparison_category_t compare_three_way "
        "compare_three_way_result_t three_way_comparable three_way_comparable_with is_eq is_neq is_lt is_lteq is_gt is_gteq",
        "concepts": "same_as integral floating_point convertible_to signed_integral unsigned_integral",
    }.items()
    for name in names.split()
}
"""Names of namespace std that device code may use -> the header that has them, which libcu++ offers. On a host other headers
include these as well, so that sources often do not include them themselves."""

LEVELS = 8  # directories above that of a source in which its headers are looked for
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
    (r"CUDART_\w+", "math_constants.h"),
    (r"INFINITY|NAN|HUGE_VALF?|M_(E|LOG2E|LOG10E|LN2|LN10|PI|PI_2|PI_4|1_PI|2_PI|2_SQRTPI|SQRT2|SQRT1_2)", "math.h"),
    (r"CUtensorMap", "cuda.h"),
    (r"cooperative_groups|cg", "cooperative_groups.h"),
    (r"nvcuda|wmma", "mma.h"),
    (r"size_t|ptrdiff_t", "stddef.h"),
    (r"assert", "assert.h"),
    (r"cudaGridDependencySynchronize|cudaTriggerProgrammaticLaunchCompletion", "ptxkit_programmatic_launch.h"),
    (r"WARP_(SHFL(_XOR|_UP|_DOWN)?|BALLOT)|C10_WARP_SIZE|gpuAtomicAdd", "ptxkit_torch_functions.h"),
    (r"cuDoubleComplex|cuComplex|cuFloatComplex|make_cu\w*Complex", "cuComplex.h"),
)
"""Names -> the header that defines them. Headers of the host, such as torch's and cuBLAS's, include these."""

WHEELS = {
    "crt/": "nvidia-cuda-crt",
    "curand_kernel.h": "nvidia-curand",
    "cutlass/": "nvidia-cutlass",
    "cute/": "nvidia-cutlass",
}
"""Headers for device code -> the wheel that holds them, if it is not installed."""

PROGRAMMATIC_LAUNCH = """#pragma once
__device__ inline void cudaGridDependencySynchronize() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ inline void cudaTriggerProgrammaticLaunchCompletion() { asm volatile("griddepcontrol.launch_dependents;"); }
"""
"""Two functions of nvcc's device runtime that NVRTC lacks (CUDA C++ Programming Guide, "Programmatic Dependent Launch")."""

TORCH_FUNCTIONS = """#pragma once
#define C10_WARP_SIZE 32
template <typename T> __device__ inline T WARP_SHFL(T v, int lane, int width = 32, unsigned mask = 0xffffffffu)
{ return __shfl_sync(mask, v, lane, width); }
template <typename T> __device__ inline T WARP_SHFL_XOR(T v, int lanes, int width = 32, unsigned mask = 0xffffffffu)
{ return __shfl_xor_sync(mask, v, lanes, width); }
template <typename T> __device__ inline T WARP_SHFL_UP(T v, unsigned by, int width = 32, unsigned mask = 0xffffffffu)
{ return __shfl_up_sync(mask, v, by, width); }
template <typename T> __device__ inline T WARP_SHFL_DOWN(T v, unsigned by, int width = 32, unsigned mask = 0xffffffffu)
{ return __shfl_down_sync(mask, v, by, width); }
__device__ inline unsigned WARP_BALLOT(int predicate, unsigned mask = 0xffffffffu) { return __ballot_sync(mask, predicate); }
template <typename T> __device__ inline T gpuAtomicAdd(T* address, T value) { return atomicAdd(address, value); }
"""
"""Functions of torch's headers ATen/cuda/DeviceUtils.cuh and Atomic.cuh, which NVRTC cannot compile."""

# why an include is left out
OF_THE_HOST = "of the host"
NOT_FOUND = "not found, and taken as a header of the host"

PRELUDE_NAME = "ptxkit_host_types.h"
PRELUDE = """#pragma once
namespace std {}
struct _IO_FILE;
typedef struct _IO_FILE FILE;
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
#ifndef __extension__
#define __extension__
#endif
@BUILTINS@"""
_BUILTINS = {  # of GCC, for which CUDA has functions: name -> macro; the names with l and ll take 64 bits
    "popcount": "__popc{ll}({x})",
    "clz": "__clz{ll}({x})",
    "ctz": "(__ffs{ll}({x}) - 1)",
    "ffs": "__ffs{ll}({x})",
    "parity": "(__popc{ll}({x}) & 1)",
}
PRELUDE = PRELUDE.replace(
    "@BUILTINS@",
    "".join(
        f"#define __builtin_{name}{length}(x) {text.format(ll='ll' if length else '', x=f'static_cast<{kind}>(x)')}\n"
        for name, text in _BUILTINS.items()
        for length, kind in (("", "unsigned"), ("l", "unsigned long long"), ("ll", "unsigned long long"))
    )
    + "#define __builtin_bswap16(x) static_cast<unsigned short>(__byte_perm(static_cast<unsigned short>(x), 0, 0x4401))\n"
    "#define __builtin_bswap32(x) __byte_perm(static_cast<unsigned>(x), 0, 0x0123)\n",
).replace(
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
PRELUDE_NAMES = frozenset(name for pair in re.findall(r"#define (\w+)|typedef [\w ]+ (\w+);", PRELUDE) for name in pair if name)


@dataclass
class Headers:
    """The headers of one source.

    Attributes:
        memory: name as included -> text, for NVRTC.
        search: the include path. own: the directories on it whose files are device code already, and are not entered.
        directory, source: of the source.
        missing: headers that were not found.
        standard: standard headers that libcu++ may offer.
        roots: directories that are not on the include path, and that hold libraries which are used as they are.
        read: path -> digest of each header that was entered. looked_up: each path at which a header was looked for -> whether
            there is one.
    """

    search: tuple[str, ...]
    own: tuple[str, ...]
    directory: str
    source: str
    memory: dict[str, str] = field(
        default_factory=lambda: {
            PRELUDE_NAME: PRELUDE,
            "ptxkit_programmatic_launch.h": PROGRAMMATIC_LAUNCH,
            "ptxkit_torch_functions.h": TORCH_FUNCTIONS,
        }
    )
    missing: set[str] = field(default_factory=set)
    standard: set[str] = field(default_factory=set)
    roots: list[str] = field(default_factory=list)
    read: dict[str, str] = field(default_factory=dict)
    looked_up: dict[str, bool] = field(default_factory=dict)

    def find(self, name: str, quoted: bool, includer: str) -> tuple[str, str] | str | None:
        """The path and text of a header to enter; the text of one of whose code nothing can be host code; or None."""
        if name in STANDARD_HEADERS:
            return STANDARD_HEADERS[name]
        directory = self.directory if includer == self.source else str(Path(includer).parent)
        path = self._file(name, quoted, directory)
        is_own = path is not None and str(path).startswith(self.own)
        if path is None or (is_own and is_of_the_host(name)):
            (self.standard if name in LIBCUDACXX else self.missing).add(name)
            return None
        if name.startswith(LIBRARIES) or "site-packages" in path.parts:
            root = str(Path(*path.parts[: -len(Path(name).parts)]))
            if root not in (*self.search, *self.roots) and path.parts[-len(Path(name).parts) :] == Path(name).parts:
                self.roots.append(root)
            return None
        try:
            if is_own:
                return path.read_text(encoding="utf-8") if str(path).startswith(str(include_dir())) else None
            data = path.read_bytes()
            self.read[str(path)] = digest(data)
            text = data.decode("utf-8-sig", errors="replace")
            return str(path), text.replace("\r\n", "\n").replace("\r", "\n")
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
            return OF_THE_HOST if is_of_the_host(name) else NOT_FOUND
        if name in self.standard:
            # headers of libcu++ take a second to compile, so that sources whose device code uses none of std get none
            if "std" not in words:
                return "not used by the device code"
            self.memory[name] = _from_libcudacxx(name, self.search)
        if name in STANDARD_HEADERS and "std" not in words and not words & _defined(STANDARD_HEADERS[name]):
            return "not used by the device code"
        return ""

    def preinclude(self, part: DevicePart) -> None:
        """Let the text that precedes the source declare names that headers of the host would, if device code uses them."""
        names = part.names_of("std")
        lines = []
        if thrust.is_needed(part):
            self.memory |= thrust.headers(self.own)
            for name in thrust.EMPTY_HEADERS:
                self.memory.setdefault(name, "#pragma once\n")
            lines.append(thrust.INCLUDE)
        lines += self.of_std(names)
        lines += opaque_types(names)
        launched = {name for one in part.launches for name in re.findall(r"\b(?:at|c10)::(\w+)", one.kernel)}
        lines += torch_types({*part.names_of("(?:at|c10|torch)"), *launched})
        known = self.memory[PRELUDE_NAME]
        self.memory[PRELUDE_NAME] = known + "".join(line for line in lines if line not in known)

    def supply(self, name: str) -> bool:
        """Put a header that NVRTC did not find, and that a library's header includes, into memory; False if it is not known."""
        if name in self.memory or not (name in LIBCUDACXX or is_of_the_host(name)):
            return False
        self.memory[name] = _from_libcudacxx(name, self.search) if name in LIBCUDACXX else "#pragma once\n"
        return True

    def of_std(self, names: Iterable[str]) -> list[str]:
        """Lines that include the standard headers with these names of namespace std, which a library expects from others."""
        wanted = sorted({STD_NAMES[name] for name in names if name in STD_NAMES})
        for header in wanted:
            self.memory[header] = STANDARD_HEADERS.get(header) or _from_libcudacxx(header, self.search)
        return [f"#include <{header}>\n" for header in wanted]

    def open_library(self, file: str) -> bool:
        """Put the device part of a library's header, which is otherwise used as it is, into memory; False if it was before.

        Args:
            file: its path, as the compiler names it.
        """
        path = Path(file)
        root = next((root for root in (*self.roots, *self.search) if path.is_relative_to(root)), None)
        if root is None or file.startswith(self.own):
            return False
        name = str(path.relative_to(root))
        if name in self.memory or not self._is_file(path):
            return False
        data = path.read_bytes()
        self.read[file] = digest(data)
        self.memory[name] = device_part(data.decode("utf-8-sig", errors="replace"), file).text
        return True

    def dropped(self, part: DevicePart) -> list[Dropped]:
        """The includes that are left out."""
        return [
            Dropped("include", include.name, include.line, reason, part.file_of(inclusion))
            for inclusion in part.unit.inclusions
            for include in inclusion.includes
            if include.inclusion is None and (reason := self.reason(include.name, part))
        ]


    # -- where headers are looked for

    def _exists(self, path: Path) -> bool:
        return self.looked_up.setdefault(str(path), path.exists())

    def _is_file(self, path: Path) -> bool:
        return self._exists(path) and path.is_file()

    def _file(self, name: str, quoted: bool, directory: str) -> Path | None:
        for place in (directory, *self.search) if quoted else self.search:
            path = Path(place) / name
            if self._is_file(path):
                return path.resolve()
        if not quoted and (is_of_the_host(name) or name in LIBCUDACXX or not Path(name).suffix):
            return None  # a file nearby with the name of a header of the system is another one
        return self._nearby(name, Path(directory)) or self._in_wheel(name)

    def _in_wheel(self, name: str) -> Path | None:
        """A header of a library for device code that is installed as a wheel, in a directory of its own."""
        if not name.startswith(("cutlass/", "cute/")):
            return None
        for site in dict.fromkeys(sys.path):
            path = Path(site) / "cutlass_library" / "source" / "include" / name
            if self._is_file(path):
                return path.resolve()
        return None

    def _nearby(self, name: str, directory: Path) -> Path | None:
        """A header in a directory above, or in a directory for headers there, where build files would have pointed with -I."""
        for above in (directory, *directory.parents[:LEVELS]):
            if above == Path.home() or above.parent == above:
                return None
            for beside in ("", *HEADER_DIRECTORIES):
                path = above / beside / name
                if self._is_file(path):
                    return path.resolve()
            if self._exists(above / ".git"):  # the root of the project
                return None
        return None


def library_type(name: str) -> str:
    """A declaration of a type of a library for hosts, such as ``cublasLtHandle_t``; "" for other names.

    Headers that device code includes name such types, although device code does not use them.

    Handles and descriptors of these libraries are pointers to structures that only the library defines; statuses and modes are
    enumerations of the size of an int (cuBLAS, cuSPARSE, cuSOLVER, cuDNN and NCCL documentation).
    """
    library = re.match("cublas|cusparse|cusolver|cudnn|curand|nccl|cutensor", name)
    kind = re.search(r"([A-Z][a-z]+)_t$", name)
    if library is None or kind is None:
        return ""
    if kind[1] in ("Handle", "Desc", "Descr", "Descriptor", "Layout", "Preference", "Generator", "Comm", "Info"):
        return f"typedef struct {name}_of_the_host* {name};\n"
    return f"enum {name} : int;\n" if kind[1] in ("Status", "Operation", "Mode", "Type", "Result") else ""


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
