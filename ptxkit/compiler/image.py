"""The result of a compilation: :class:`Image`, and its serialisation for the cache."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ptxkit.compiler.templates import templates
from ptxkit.errors import MissingKernelError
from ptxkit.isa.comments import without_comments
from ptxkit.isa.mangled import base_name, parameter_list, qualified_name, signature, spellings, template_list


@dataclass(frozen=True)
class FunctionResources:
    """The resources that ptxas allocated to one function; all zero if the PTX was not assembled.

    Attributes:
        registers: per thread.
        shared_bytes: static shared memory per CTA.
        local_bytes: stack frame per thread.
        spill_store_bytes, spill_load_bytes: register spills per thread, in bytes of code, as ptxas counts them.
        barriers: named barriers per CTA.
        constant_bytes: of all constant banks.
    """

    registers: int = 0
    shared_bytes: int = 0
    local_bytes: int = 0
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0
    barriers: int = 0
    constant_bytes: int = 0


@dataclass(frozen=True)
class Image:
    """One compiled translation unit.

    Attributes:
        target: ``"sm_90a"``.
        ptx: the PTX text.
        cubin: machine code, or None when only PTX was requested.
        log: warnings, mapped to source lines; ``""`` when there are none.
        functions: mangled entry name -> its resources.
        names: name expression (``"l2norm<256, float>"``) -> mangled name.
        source_name: name of the source in messages.
        sources: absolute paths of the source, when it is a file, and of every header that it may include.
        macros: macros of ``-D`` options.
        key: content hash, under which the cache stores it.
        from_cache: whether it was loaded from the cache.
        expanded: of a source with host code: its text with headers and macros, which declares the kernels; "" otherwise. The
            cache does not hold it.
        left_out: what was left out as host code, such as ``"3 functions, 2 includes"``; "" where nothing was. The cache does
            not hold it.
        ltoir: with ``-dlto``, the code for the linker, in place of PTX and cubin; b"" otherwise. The cache does not hold it.
    """

    target: str
    ptx: str
    cubin: bytes | None
    log: str = ""
    functions: Mapping[str, FunctionResources] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    source_name: str = ""
    sources: tuple[str, ...] = ()
    macros: Mapping[str, str] = field(default_factory=dict)
    key: str = ""
    from_cache: bool = False
    expanded: str = field(default="", repr=False, compare=False)
    left_out: str = field(default="", repr=False, compare=False)
    ltoir: bytes = field(default=b"", repr=False, compare=False)

    def entry(self, name: str) -> str:
        """The mangled name of a kernel given by mangled name, name expression, or a name that only one kernel has.

        The name may have namespaces, and parameter types or template arguments: ``copy``, ``ns::copy``, ``copy(float*)``,
        ``ns::copy<float, 4>``.

        Raises:
            MissingKernelError: no such kernel, or several; the message lists similar names.
        """
        if name in self.functions:
            return name
        wanted = _normal(name)
        for expression, mangled in self.names.items():
            if _normal(expression) == wanted:
                return mangled
        matches = [m for m in self.functions if wanted in {_normal(name) for name in _spellings(m)}]
        if len(matches) > 1:  # k is that of no namespace, if there is one
            whole = [m for m in matches if wanted in map(_normal, (qualified_name(m), signature(m)))]
            matches = whole if len(whole) == 1 else matches
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise MissingKernelError(f"{self.source_name} has {len(matches)} kernels {name!r}: {self._listed(matches)}")
        raise MissingKernelError(f"{self.source_name} has no kernel {name!r}{self._hint(name)}")

    def readable(self, mangled: str) -> str:
        """The readable name of a kernel: its name expression, else its plain name."""
        return next((e for e, m in self.names.items() if m == mangled), base_name(mangled))

    def _hint(self, name: str) -> str:
        from difflib import get_close_matches

        if not self.functions:
            return "; it has no kernels (a template counts once it is instantiated)"
        bases = {mangled: base_name(mangled) for mangled in self.functions}
        plain = base_name(re.split("[<(]", _normal(name))[0].rpartition("::")[2])
        if parameters := dict(templates(self._text())).get(plain):
            return f"; it is a template, which is named with its arguments: '{plain}<...>' for <{parameters}>"
        near = get_close_matches(plain, set(bases.values()), n=3, cutoff=0.6)
        if near:
            return f"; did you mean {self._listed([m for m, base in bases.items() if base in near])}?"
        return f"; it has {self._listed(list(self.functions))}"

    def _text(self) -> str:
        """The source, as far as it is known and a file."""
        try:
            return self.expanded or Path(self.sources[0]).read_text(encoding="utf-8", errors="replace")
        except (IndexError, OSError):
            return ""

    def _listed(self, mangled: list[str]) -> str:
        return ", ".join(sorted(self.distinct_names(mangled).values()))

    def distinct_names(self, mangled: Iterable[str]) -> dict[str, str]:
        """Mangled name -> the shortest name that :meth:`entry` accepts: the name expression or the plain name, or if several
        kernels have it, that with namespaces, or also with the types of the parameters, or the mangled name."""
        found: dict[str, str] = {}
        left = list(mangled)
        for shown in (self.readable, qualified_name, signature):
            times = Counter(map(shown, self.functions))
            found |= {m: shown(m) for m in left if times[shown(m)] == 1}
            left = [m for m in left if m not in found]
        return found | {m: m for m in left}


def _spellings(mangled: str) -> tuple[str, ...]:
    """The names by which a kernel may be given."""
    types, arguments = parameter_list(mangled), template_list(mangled)
    return tuple(name + more for name in spellings(mangled) for more in dict.fromkeys(("", types, arguments)))


def entry_names(ptx: str) -> list[str]:
    """Names of the ``.entry`` functions of a PTX text, in order."""
    return re.findall(r"\.entry\s+([\w$%.]+)", without_comments(ptx))


def _normal(name: str) -> str:
    # "tk< 128,float >", "tk<128u, float>" and "tk<128, float>" are one name; "unsigned int" keeps its space.
    name = re.sub(r"\b(\d+)[uUlL]+\b", r"\1", name)
    return re.sub(r"\s+", " ", re.sub(r"\s*([<>,*&()])\s*", r"\1", name)).strip()


# The file form: one JSON line (everything but the two texts, and their lengths), then PTX, then cubin.


def to_bytes(image: Image) -> bytes:
    """The bytes that :func:`from_bytes` reads; ``key`` and ``from_cache`` are not part of them."""
    ptx = image.ptx.encode()
    header = {
        "target": image.target,
        "log": image.log,
        "functions": {name: asdict(resources) for name, resources in image.functions.items()},
        "names": dict(image.names),
        "source_name": image.source_name,
        "sources": image.sources,
        "macros": dict(image.macros),
        "ptx": len(ptx),
        "cubin": None if image.cubin is None else len(image.cubin),
    }
    return json.dumps(header).encode() + b"\n" + ptx + (image.cubin or b"")


def from_bytes(data: bytes, key: str) -> Image:
    """The image that :func:`to_bytes` wrote, marked as coming from the cache.

    Raises:
        ValueError, KeyError, TypeError: these are not such bytes.
    """
    line, _, body = data.partition(b"\n")
    header = json.loads(line)
    size = header["ptx"]
    cubin = None if header["cubin"] is None else body[size : size + header["cubin"]]
    if len(body) != size + (header["cubin"] or 0):
        raise ValueError("wrong length")
    return Image(
        target=header["target"],
        ptx=body[:size].decode(),
        cubin=cubin,
        log=header["log"],
        functions={name: FunctionResources(**values) for name, values in header["functions"].items()},
        names=header["names"],
        source_name=header["source_name"],
        sources=tuple(header["sources"]),
        macros=header["macros"],
        key=key,
        from_cache=True,
    )


def shorten(text: str) -> str:
    """A message whose paths under the working directory are made relative to it."""
    here = str(Path.cwd())
    return text if here == "/" else re.sub(rf"(?<![\w./-]){re.escape(here)}/", "", text)
