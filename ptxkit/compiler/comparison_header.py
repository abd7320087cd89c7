"""``<compare>`` for device code: the types that ``<=>`` needs, which libcu++ lacks (C++20, 17.11 "Comparisons")."""

from __future__ import annotations

_CATEGORIES = {
    "partial_ordering": ({"less": -1, "equivalent": 0, "greater": 1, "unordered": 2}, ()),
    "weak_ordering": ({"less": -1, "equivalent": 0, "greater": 1}, ("partial_ordering",)),
    "strong_ordering": ({"less": -1, "equal": 0, "equivalent": 0, "greater": 1}, ("partial_ordering", "weak_ordering")),
}
"""Name -> its values, and the categories that it converts to."""

# whether the value of an ordering compares with zero; 2 is unordered
_TESTS = {"==": "== 0", "!=": "!= 0", "<": "== -1", ">": "== 1", "<=": "<= 0", ">=": "== 0 || {} == 1"}
_TURNED = {"==": "==", "!=": "!=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}


def _category(name: str) -> str:
    values, others = _CATEGORIES[name]
    lines = [
        f"class {name} {{",
        "    signed char value;",
        f"    ptxkit_both explicit {name}(int v) noexcept : value(static_cast<signed char>(v)) {{}}",
        *(f"    friend class {other};" for other in _CATEGORIES if other != name),
        "public:",
        f"    static const {name} {', '.join(values)};",
        *(f"    ptxkit_both operator {o}() const noexcept {{ return {o}(value); }}" for o in others),
        f"    friend ptxkit_both bool operator==({name} a, {name} b) noexcept {{ return a.value == b.value; }}",
        f"    friend ptxkit_both {name} operator<=>({name} a, ptxkit_zero) noexcept {{ return a; }}",
    ]
    turned = f"a.value == 2 ? a : {name}(-a.value)"
    lines.append(f"    friend ptxkit_both {name} operator<=>(ptxkit_zero, {name} a) noexcept {{ return {turned}; }}")
    for op in _TESTS:
        for given, tested in ((f"{name} a, ptxkit_zero", op), (f"ptxkit_zero, {name} a", _TURNED[op])):
            test = _TESTS[tested].replace("{}", "a.value")
            lines.append(f"    friend ptxkit_both bool operator{op}({given}) noexcept {{ return a.value {test}; }}")
    lines.append("};")
    lines += [f"inline constexpr {name} {name}::{value}({number});" for value, number in values.items()]
    return "\n".join(lines)


_NAMED = "\n".join(
    f"ptxkit_both bool is_{name}(partial_ordering c) noexcept {{ return c {op} 0; }}"
    for name, op in (("eq", "=="), ("neq", "!="), ("lt", "<"), ("lteq", "<="), ("gt", ">"), ("gteq", ">="))
)

COMPARE = f"""#pragma once
#if __cplusplus >= 202002L
#define ptxkit_both __host__ __device__ constexpr
namespace std {{
struct ptxkit_zero {{ __host__ __device__ consteval ptxkit_zero(ptxkit_zero*) noexcept {{}} }};
class partial_ordering; class weak_ordering; class strong_ordering;
{chr(10).join(map(_category, _CATEGORIES))}
{_NAMED}
template <int N> struct ptxkit_category {{ using type = void; }};
template <> struct ptxkit_category<3> {{ using type = strong_ordering; }};
template <> struct ptxkit_category<2> {{ using type = weak_ordering; }};
template <> struct ptxkit_category<1> {{ using type = partial_ordering; }};
template <class T> struct ptxkit_strength {{ static constexpr int value = 0; }};
template <> struct ptxkit_strength<strong_ordering> {{ static constexpr int value = 3; }};
template <> struct ptxkit_strength<weak_ordering> {{ static constexpr int value = 2; }};
template <> struct ptxkit_strength<partial_ordering> {{ static constexpr int value = 1; }};
template <class... T> struct ptxkit_weakest {{ static constexpr int value = 3; }};
template <class T, class... More> struct ptxkit_weakest<T, More...> {{
    static constexpr int first = ptxkit_strength<T>::value, rest = ptxkit_weakest<More...>::value;
    static constexpr int value = first < rest ? first : rest;
}};
template <class... T> struct common_comparison_category : ptxkit_category<ptxkit_weakest<T...>::value> {{}};
template <class... T> using common_comparison_category_t = typename common_comparison_category<T...>::type;
template <class T> __host__ __device__ T const& ptxkit_const() noexcept;
template <class T, class U = T> struct compare_three_way_result {{}};
template <class T, class U> requires requires {{ ptxkit_const<T>() <=> ptxkit_const<U>(); }}
struct compare_three_way_result<T, U> {{ using type = decltype(ptxkit_const<T>() <=> ptxkit_const<U>()); }};
template <class T, class U = T> using compare_three_way_result_t = typename compare_three_way_result<T, U>::type;
template <class T, class Category = partial_ordering> concept three_way_comparable = requires(T const& a, T const& b) {{
    static_cast<bool>(a == b); static_cast<bool>(a != b); static_cast<bool>(a < b); static_cast<bool>(a > b);
    requires ptxkit_strength<decltype(a <=> b)>::value >= ptxkit_strength<Category>::value;
}};
template <class T, class U, class Category = partial_ordering> concept three_way_comparable_with =
    three_way_comparable<T, Category> && three_way_comparable<U, Category> && requires(T const& a, U const& b) {{
    static_cast<bool>(a == b); static_cast<bool>(b == a);
    requires ptxkit_strength<decltype(a <=> b)>::value >= ptxkit_strength<Category>::value;
    requires ptxkit_strength<decltype(b <=> a)>::value >= ptxkit_strength<Category>::value;
}};
struct compare_three_way {{
    using is_transparent = void;
    template <class T, class U> ptxkit_both auto operator()(T&& a, U&& b) const {{ return a <=> b; }}
}};
}}
#undef ptxkit_both
#endif
"""
