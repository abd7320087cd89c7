"""Makes Thrust's algorithms compile in device code.

NVRTC refuses Thrust's headers, because they have functions for hosts, throw exceptions and use classes of the standard library
that libcu++ does not have. nvcc compiles the same functions for the host and for the device. Here they are compiled for the
device alone: ``_CCCL_HOST`` and ``_CCCL_HOST_DEVICE``, with which CCCL marks its functions, are redefined, and the classes are
declared.

``thrust::seq`` and ``thrust::device`` both execute an algorithm in the calling thread. For ``thrust::device`` that is what nvcc
compiles in device code, too, unless dynamic parallelism is enabled (CCCL, "thrust/system/cuda/detail/cdp_dispatch.h").
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ptxkit.compiler.host_code.device_part import DevicePart

TYPES = frozenset("tuple make_tuple tie get tuple_size tuple_element pair make_pair complex".split())
"""Names of namespace thrust whose headers NVRTC compiles as they are, in a fraction of the time."""

PRELUDE_NAME = "ptxkit_thrust.h"
INCLUDE = f"#include <{PRELUDE_NAME}>\n"
PRELUDE = """#pragma once
#include <cuda/std/__cccl/execution_space.h>
#undef _CCCL_HOST
#define _CCCL_HOST
#undef _CCCL_HOST_DEVICE
#define _CCCL_HOST_DEVICE __device__
#include <cuda/std/cstddef>
#include <cuda/std/functional>
#include <cuda/std/iterator>
#include <cuda/std/type_traits>
#include <cuda/std/utility>
#include <cuda/__nvtx/nvtx.h>
#ifndef _CCCL_NVTX_RANGE_SCOPE
#define _CCCL_NVTX_RANGE_SCOPE(...)
#endif
#include <thrust/detail/config.h>
#include <thrust/version.h>
THRUST_NAMESPACE_BEGIN
template <typename, typename, typename, typename> class pointer;
#if THRUST_MAJOR_VERSION >= 3
template <typename Argument, typename Result> struct unary_function {
    using argument_type = Argument;
    using result_type = Result;
};
template <typename First, typename Second, typename Result> struct binary_function {
    using first_argument_type = First;
    using second_argument_type = Second;
    using result_type = Result;
};
#endif
THRUST_NAMESPACE_END
namespace cuda { namespace std {
template <typename Element, typename Tag, typename Reference, typename Derived>
struct iterator_traits<THRUST_NS_QUALIFIER::pointer<Element, Tag, Reference, Derived>> {
    using pointer = THRUST_NS_QUALIFIER::pointer<Element, Tag, Reference, Derived>;
    using iterator_category = typename pointer::iterator_category;
    using value_type = typename pointer::value_type;
    using difference_type = typename pointer::difference_type;
    using reference = typename pointer::reference;
};
} }
namespace std {
using namespace ::cuda::std;
template <typename Iterator> struct iterator_traits : ::cuda::std::iterator_traits<Iterator> {};
template <typename T> class allocator;
#ifndef _PTXKIT_STD_STRING
#define _PTXKIT_STD_STRING
class string {
    void* opaque[4];
public:
    __device__ string(const char* = "") {}
    __device__ string& operator+=(const char*) { return *this; }
    __device__ string& operator+=(const string&) { return *this; }
    __device__ const char* c_str() const { return ""; }
    __device__ bool empty() const { return true; }
};
#endif
#ifndef _PTXKIT_STD_EXCEPTION
#define _PTXKIT_STD_EXCEPTION
class exception {
public:
    __device__ virtual ~exception() {}
    __device__ virtual const char* what() const noexcept { return ""; }
};
#endif
#ifndef _PTXKIT_STD_BAD_ALLOC
#define _PTXKIT_STD_BAD_ALLOC
class bad_alloc : public exception {};
#endif
#ifndef _PTXKIT_STD_RUNTIME_ERROR
#define _PTXKIT_STD_RUNTIME_ERROR
class runtime_error : public exception {
    void* opaque;
public:
    __device__ runtime_error(const char*) {}
};
#endif
}
"""
"""Precedes the source. Thrust 3 (CUDA 13) no longer has the base classes of function objects that older sources derive
theirs from. ``std::iterator_traits`` is what Thrust specialises for its iterators; on a host libcu++ looks there. The
classes of std have the sizes of :data:`ptxkit.compiler.host_code.opaque_types.CLASSES`; whichever text comes first defines
them."""

CONTAINERS = """#pragma once
#include <thrust/device_ptr.h>
#include <thrust/execution_policy.h>
#include <thrust/functional.h>
"""
_HOST_HEADERS = (
    "device_vector host_vector universal_vector device_allocator device_malloc device_malloc_allocator device_free "
    "device_new device_delete device_new_allocator universal_allocator universal_ptr per_device_resource future event"
).split()
"""Headers of containers and of memory on the host, from which device code needs no more than ``CONTAINERS``."""

EMPTY_HEADERS = (
    "algorithm atomic chrono complex cstdio cstdlib cstring exception iosfwd iostream istream iterator limits list map memory "
    "mutex new numeric ostream sstream stdexcept string system_error thread unordered_map utility vector"
).split()
"""Headers of the standard library that Thrust includes for functions of hosts, or whose names ``PRELUDE`` has."""

_THROWN = re.compile(r"\bthrow\b[^;]*;")


def is_needed(part: DevicePart) -> bool:
    """Whether device code uses more of Thrust than its types."""
    if "thrust" not in part.words:
        return False
    names = part.names_of("thrust")
    return not names or bool(names - TYPES)


def options(given: Iterable[str]) -> list[str]:
    """Options for NVRTC. The sequential system takes the place of the one for launches, unless the user names another."""
    named = any("THRUST_DEVICE_SYSTEM=" in option for option in given)
    return ["-default-device", *([] if named else ["-DTHRUST_DEVICE_SYSTEM=THRUST_DEVICE_SYSTEM_CPP"])]


def headers(search: Iterable[str]) -> dict[str, str]:
    """Name as included -> text, of the headers that take a file's place.

    Args:
        search: the directories of the CUDA headers. An exception that one of these headers throws becomes a trap.
    """
    memory = {PRELUDE_NAME: PRELUDE, **{f"thrust/{name}.h": CONTAINERS for name in _HOST_HEADERS}}
    name = "thrust/detail/allocator/temporary_allocator.inl"
    for place in search:
        path = Path(place) / name
        if path.is_file():
            memory[name] = _THROWN.sub("__trap();", path.read_text(encoding="utf-8"))
            break
    return memory
