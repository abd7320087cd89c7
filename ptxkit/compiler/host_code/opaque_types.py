"""Types of the standard library that libcu++ does not have, as far as device code needs them.

Classes of a source may have members or bases of such types, and device code may use the rest of these classes. The types
therefore have the sizes that they have in nvcc's host compiler, so that the layout of the classes is the same, and nothing can
be done with them: a constructor is an error in device code, as with nvcc.

The sizes are those of libstdc++ on 64-bit x86 Linux (GCC's ABI, measured with ``sizeof``). Types whose size depends on template
arguments other than the first ones, and streams that are only passed by reference, are declared without a size.
"""

from __future__ import annotations

from collections.abc import Collection

CLASSES = {
    "string": 32,
    "wstring": 32,
    "mutex": 40,
    "recursive_mutex": 40,
    "thread": 8,
    "condition_variable": 48,
    "any": 16,
    "exception": 8,
    "bad_alloc": 8,
    "runtime_error": 16,
    "logic_error": 16,
    "invalid_argument": 16,
    "out_of_range": 16,
    "ofstream": 512,
    "ifstream": 520,
    "fstream": 528,
    "stringstream": 392,
    "ostringstream": 376,
    "istringstream": 384,
    "ostream": 0,
    "istream": 0,
    "iostream": 0,
    "random_device": 5000,
    "mt19937": 5000,
    "mt19937_64": 2504,
    "regex": 32,
}
"""Class -> its size in bytes; 0 for one that is only declared. All are aligned to 8 bytes."""

TEMPLATES = {
    "vector": (1, 24),
    "deque": (1, 80),
    "list": (1, 24),
    "forward_list": (1, 8),
    "set": (1, 48),
    "multiset": (1, 48),
    "map": (2, 48),
    "multimap": (2, 48),
    "unordered_set": (1, 56),
    "unordered_multiset": (1, 56),
    "unordered_map": (2, 56),
    "unordered_multimap": (2, 56),
    "function": (1, 32),
    "shared_ptr": (1, 16),
    "weak_ptr": (1, 16),
    "unique_ptr": (1, 8),
    "future": (1, 16),
    "promise": (1, 24),
    "basic_string": (1, 32),
    "queue": (1, 80),
    "stack": (1, 80),
    "priority_queue": (0, 0),
    "lock_guard": (0, 0),
    "unique_lock": (0, 0),
    "uniform_int_distribution": (0, 0),
    "uniform_real_distribution": (0, 0),
    "normal_distribution": (0, 0),
    "hash": (0, 0),
}
"""Template -> how many arguments have no default, and its size with these alone; (0, 0) for one that is only declared."""


def opaque_types(names: Collection[str]) -> list[str]:
    """A declaration of each of these names of namespace std that is a type of the host."""
    made = [
        f"#ifndef _PTXKIT_STD_{name.upper()}\n#define _PTXKIT_STD_{name.upper()}\n"
        f"namespace std {{ class {name}{_body(name, size)} }}\n#endif\n"
        for name, size in CLASSES.items()
        if name in names
    ]
    lines = []
    for name, (count, size) in TEMPLATES.items():
        if name not in names:
            continue
        text = f"template <typename...> class {name};"
        if size:
            arguments = ", ".join(f"T{n}" for n in range(count))
            text += f" template <{', '.join(f'typename T{n}' for n in range(count))}> "
            text += f"class {name}<{arguments}>{_body(name, size)}"
        if name == "vector":
            text += f" template <> class vector<bool>{_body(name, 40)}"
        lines.append(text)
    return made + [f"namespace std {{ {line} }}\n" for line in lines]


def _body(name: str, size: int) -> str:
    return f" {{ void* opaque[{size // 8}]; public: {name}() = delete; }};" if size else ";"
