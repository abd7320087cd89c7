"""Types of PyTorch that device code computes with, for sources whose headers of PyTorch are left out as host code.

The classes have the layout, the conversions and the operators of PyTorch's (c10/util/Half.h, c10/util/BFloat16.h): the result
of an operation with a float or a double has that type, and one with an integer has the type of the class.
"""

from __future__ import annotations

from collections.abc import Collection

_CLASS = """namespace c10 {
struct alignas(2) NAME {
    unsigned short x;
    struct from_bits_t {};
    static constexpr __host__ __device__ from_bits_t from_bits() { return {}; }
    NAME() = default;
    constexpr __host__ __device__ NAME(unsigned short bits, from_bits_t) : x(bits) {}
    __device__ NAME(float v) : x(BITS(FROM(v))) {}
    __device__ NAME(const CUDA& v) : x(BITS(v)) {}
    __device__ operator float() const { return TO(MAKE(x)); }
    __device__ operator CUDA() const { return MAKE(x); }
};
__device__ inline NAME operator-(const NAME& a) { return NAME((unsigned short)(a.x ^ 0x8000), NAME::from_bits()); }
OPERATORS
COMPARISONS
__device__ inline NAME atomicAdd(NAME* to, NAME v) { return atomicAdd(reinterpret_cast<CUDA*>(to), CUDA(v)); }
__device__ inline NAME& operator++(NAME& a) { return a = float(a) + 1; }
__device__ inline NAME& operator--(NAME& a) { return a = float(a) - 1; }
}
namespace at { using c10::NAME; }
"""
_OPERATOR = """\
__device__ inline NAME operator@(const NAME& a, const NAME& b) { return float(a) @ float(b); }
template <typename T> __device__ inline Common<T, NAME> operator@(const NAME& a, T b)
{ return Common<T, NAME>(a) @ Common<T, NAME>(b); }
template <typename T> __device__ inline Common<T, NAME> operator@(T a, const NAME& b)
{ return Common<T, NAME>(a) @ Common<T, NAME>(b); }
__device__ inline NAME& operator@=(NAME& a, const NAME& b) { return a = a @ b; }
__device__ inline float& operator@=(float& a, const NAME& b) { return a = a @ float(b); }
"""
_COMPARISON = """\
__device__ inline bool operator@(const NAME& a, const NAME& b) { return float(a) @ float(b); }
template <typename T, typename = Common<T, NAME>> __device__ inline bool operator@(const NAME& a, T b) { return float(a) @ b; }
template <typename T, typename = Common<T, NAME>> __device__ inline bool operator@(T a, const NAME& b) { return a @ float(b); }
"""
_INTEGERS = (
    *("bool", "char"),
    *(f"{sign} {kind}" for sign in ("signed", "unsigned") for kind in ("char", "short", "int", "long", "long long")),
)
_COMMON = (
    "namespace c10 {\ntemplate <typename T, typename N> struct CommonOf {};\n"
    "template <typename N> struct CommonOf<float, N> { using type = float; };\n"
    "template <typename N> struct CommonOf<double, N> { using type = double; };\n"
    + "".join(f"template <typename N> struct CommonOf<{kind}, N> {{ using type = N; }};\n" for kind in _INTEGERS)
    + "template <typename T, typename N> using Common = typename CommonOf<T, N>::type;\n}\n"
)
"""The type of the result of an operation with a number of a built-in type."""


def _number(name: str, header: str, cuda: str, to: str, from_: str, bits: str, make: str) -> str:
    text = _CLASS.replace("OPERATORS", "".join(_OPERATOR.replace("@", op) for op in "+-*/"))
    text = text.replace("COMPARISONS", "".join(_COMPARISON.replace("@", op) for op in ("==", "!=", "<", "<=", ">", ">=")))
    for word, value in (("NAME", name), ("CUDA", cuda), ("TO(", f"{to}("), ("FROM", from_), ("BITS", bits), ("MAKE", make)):
        text = text.replace(word, value)
    return f"#include <{header}>\n{text}"


def _same(name: str, header: str, cuda: str) -> str:
    return f"#include <{header}>\nnamespace c10 {{ using {name} = {cuda}; }}\nnamespace at {{ using {name} = {cuda}; }}\n"


_ACCESSORS = """namespace at {
template <typename T> struct DefaultPtrTraits { typedef T* PtrType; };
template <typename T> struct RestrictPtrTraits { typedef T* __restrict__ PtrType; };
template <typename T, decltype(sizeof(0)) N, template <typename> class P = DefaultPtrTraits, typename I = long long>
class TensorAccessor {
    typename P<T>::PtrType data_;
    const I *sizes_, *strides_;
public:
    __device__ TensorAccessor(typename P<T>::PtrType data, const I* sizes, const I* strides)
        : data_(data), sizes_(sizes), strides_(strides) {}
    __device__ I size(I i) const { return sizes_[i]; }
    __device__ I stride(I i) const { return strides_[i]; }
    __device__ typename P<T>::PtrType data() const { return data_; }
    __device__ decltype(auto) operator[](I i) const {
        if constexpr (N == 1) return (data_[strides_[0] * i]);
        else return TensorAccessor<T, N - 1, P, I>(data_ + strides_[0] * i, sizes_ + 1, strides_ + 1);
    }
};
template <typename T, decltype(sizeof(0)) N, template <typename> class P = DefaultPtrTraits, typename I = long long>
class GenericPackedTensorAccessor {
    typename P<T>::PtrType data_;
    I sizes_[N], strides_[N];
public:
    __device__ I size(I i) const { return sizes_[i]; }
    __device__ I stride(I i) const { return strides_[i]; }
    __device__ typename P<T>::PtrType data() const { return data_; }
    __device__ decltype(auto) operator[](I i) const { return TensorAccessor<T, N, P, I>(data_, sizes_, strides_)[i]; }
};
template <typename T, decltype(sizeof(0)) N, template <typename> class P = DefaultPtrTraits>
using PackedTensorAccessor32 = GenericPackedTensorAccessor<T, N, P, int>;
template <typename T, decltype(sizeof(0)) N, template <typename> class P = DefaultPtrTraits>
using PackedTensorAccessor64 = GenericPackedTensorAccessor<T, N, P, long long>;
}
namespace torch {
using at::DefaultPtrTraits; using at::RestrictPtrTraits; using at::TensorAccessor; using at::GenericPackedTensorAccessor;
using at::PackedTensorAccessor32; using at::PackedTensorAccessor64;
}
"""
"""Views of tensors that kernels take by value, laid out as those of ATen/core/TensorAccessor.h."""

_OF_ACCESSORS = frozenset(
    "DefaultPtrTraits RestrictPtrTraits TensorAccessor GenericPackedTensorAccessor PackedTensorAccessor32 "
    "PackedTensorAccessor64".split()
)

_TYPES = {
    "Half": _number(
        "Half", "cuda_fp16.h", "__half", "__half2float", "__float2half_rn", "__half_as_ushort", "__ushort_as_half"
    ),
    "BFloat16": _number(
        "BFloat16",
        "cuda_bf16.h",
        "__nv_bfloat16",
        "__bfloat162float",
        "__float2bfloat16_rn",
        "__bfloat16_as_ushort",
        "__ushort_as_bfloat16",
    ),
    "Float8_e4m3fn": _same("Float8_e4m3fn", "cuda_fp8.h", "__nv_fp8_e4m3"),
    "Float8_e5m2": _same("Float8_e5m2", "cuda_fp8.h", "__nv_fp8_e5m2"),
}
"""Types of namespaces at and c10 -> their declaration."""


def torch_types(names: Collection[str]) -> list[str]:
    """The declarations of the types among names of the namespaces at, c10 and torch."""
    found = [text for name, text in _TYPES.items() if name in names]
    accessors = [_ACCESSORS] if _OF_ACCESSORS & set(names) else []
    return [_COMMON, *found, *accessors] if found else accessors
