"""Breakpoints and watchpoints, and the instructions at which a source line, a PTX line or a function begins."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from ptxkit.errors import UsageError
from ptxkit.isa.mangled import base_name
from ptxkit.isa.model import Function, Instruction, Module, Symbol, symbols_in

if TYPE_CHECKING:
    from ptxkit.debugger.syntax import Node

_FILE_LINE = re.compile(r"(.+):(\d+)")


@dataclass(frozen=True)
class Address:
    """An instruction: the function by name, and the index of the instruction in it."""

    function: str
    position: int


@dataclass(frozen=True)
class Where:
    """A location in a command, resolved to instructions.

    Attributes:
        text: as given.
        addresses: instructions at which execution stops.
        place: its position, ``saxpy.cu:12``; a later line if the given one has no code.
    """

    text: str
    addresses: tuple[Address, ...]
    place: str


@dataclass
class Breakpoint:
    """A breakpoint.

    Attributes:
        number: names it in commands.
        where: its instructions.
        condition: stop only for threads for which this expression is true; None stops for all.
        thread: stop only for this thread: (linear CTA, linear thread); either may be None for all.
        temporary: it is deleted when it is hit.
        hits: how often it has stopped the kernel.
        ignore: number of stops that are still to be skipped.
        problem: why the latest evaluation of the condition failed.
    """

    number: int
    where: Where
    condition: Node | None = None
    condition_text: str = ""
    thread: tuple[int | None, int | None] = (None, None)
    temporary: bool = False
    enabled: bool = True
    hits: int = 0
    ignore: int = 0
    problem: str = ""


@dataclass
class Watchpoint:
    """A watched expression: the kernel stops after the instruction that changes its value.

    Attributes:
        space, address, nbytes: memory that is watched; ``nbytes`` 0 where a register or a computed value is watched.
        old: the bytes at the latest check; None without a value.
        seen: whether they have been checked before.
        owner: (linear CTA, linear thread) for which the expression is evaluated.
    """

    number: int
    text: str
    node: Node
    owner: tuple[int, int]
    space: str = ""
    address: int = 0
    nbytes: int = 0
    type: Any = None
    old: bytes | None = None
    enabled: bool = True
    hits: int = 0
    seen: bool = False


def resolve(text: str, modules: Iterable[Module], entries: Iterable[str], file: str | None = None) -> Where:
    """The instructions that a location means.

    Args:
        text: ``file.cu:12``, ``file.ptx:40``, ``12`` in the file ``file``, or the name of a function.
        modules: the debugged ones. entries: the launched kernels, whose code comes first.

    Raises:
        UsageError: no such file, line or function; the message names the existing ones.
    """
    text = text.strip()
    modules = list({id(m): m for m in modules}.values())
    match = _FILE_LINE.fullmatch(text)
    if text.isdecimal():
        if file is None:
            raise UsageError(f"line {text} of which file? write file:{text}")
        match = _FILE_LINE.fullmatch(f"{file}:{text}")
    if match:
        return _at_line(text, match[1], int(match[2]), modules)
    if not text:
        raise UsageError("a location is missing: file.cu:12, file.ptx:40, or the name of a function")
    return _at_function(text, modules, list(entries))


def _at_function(text: str, modules: list[Module], entries: list[str]) -> Where:
    functions = {n: f for m in modules for n, f in m.functions.items() if not f.declared_only}
    wanted = re.sub(r"\s", "", text)
    found = [n for n in functions if n == text or base_name(n) == wanted or base_name(n) == wanted.split("<")[0]]
    launched = [n for n in found if n in entries]
    if not found:
        from difflib import get_close_matches

        names = sorted({base_name(n) for n in functions})
        near = get_close_matches(text, names, n=1)
        raise UsageError(
            f"no function {text!r}; {f'did you mean {near[0]}?' if near else 'there is ' + ', '.join(names)}; "
            f"a line is given as file.cu:12 or file.ptx:40"
        )
    chosen = launched or found
    return Where(
        text,
        tuple(Address(n, _after_prologue(functions[n])) for n in chosen),
        f"the beginning of {', '.join(base_name(n) for n in chosen)}",
    )


def _after_prologue(function: Function) -> int:
    """The instruction at which a breakpoint of a function stops: the first one of a kernel, whose parameters can be read
    everywhere, and of another function the one after those that load its parameters and set up its stack frame."""
    if function.is_entry:
        return 0
    used = function.symbols().union(*function.branch_targets.values())
    labelled = {at for name, at in function.labels.items() if name in used}  # a loop may return to it
    position = 0
    for k, instruction in enumerate(function.instructions[:-1]):
        sets_frame_up = any(name.startswith("__local_depot") for o in instruction.operands for name in symbols_in(o))
        if not (instruction.opcode.startswith(("ld.param", "cvta.local")) or sets_frame_up) or k + 1 in labelled:
            break
        position = k + 1
    return position


def _at_line(text: str, name: str, line: int, modules: list[Module]) -> Where:
    for module in modules:
        if _names(name, module.path):
            return _at_ptx_line(text, module, line)
    lines = _source_lines(modules, name)
    if not lines:
        files = sorted({m.path for m in modules} | {PurePath(p).name for m in modules for p in _files_with_code(m)})
        raise UsageError(f"no code comes from a file {name!r}; there is {', '.join(files)}")
    later = sorted(n for n in lines if n >= line)
    if not later:
        raise UsageError(f"{name}:{line} is after the last line with code, which is {max(lines)}")
    found = tuple(a for m in modules for f in m.functions.values() for a in _entries(f, name, later[0]))
    return Where(text, found, f"{PurePath(name).name}:{later[0]}")


def _at_ptx_line(text: str, module: Module, line: int) -> Where:
    best: tuple[int, Address] | None = None
    for f in module.functions.values():
        for k, i in enumerate(f.instructions):
            if i.line >= line and (best is None or i.line < best[0]):
                best = i.line, Address(f.name, k)
    if best is None:
        raise UsageError(f"{module.path}:{line} is after the last instruction")
    return Where(text, (best[1],), f"{module.path}:{best[0]}")


def _names(name: str, path: str) -> bool:
    """Whether ``name``, a file name or the end of a path, means ``path``."""
    parts, have = PurePath(name).parts, PurePath(path).parts
    return bool(parts) and have[-len(parts) :] == parts


def same_file(name: str, path: str) -> bool:
    """Whether a file name, or the end of a path, means the file at ``path``."""
    return _names(name, path)


def chain(i: Instruction) -> tuple[tuple[str, int], ...]:
    """(file, line) of an instruction and of the calls that it has been inlined at, the outermost first; no line 0."""
    found = []
    loc = i.loc
    while loc is not None:
        if loc.line:
            found.append((loc.file, loc.line))
        loc = loc.inlined_at
    return tuple(reversed(found))


def _source_lines(modules: list[Module], name: str) -> set[int]:
    return {
        line
        for m in modules
        for f in m.functions.values()
        for i in f.instructions
        for path, line in chain(i)
        if _names(name, path)
    }


def _files_with_code(module: Module) -> set[str]:
    return {path for f in module.functions.values() for i in f.instructions for path, _ in chain(i)}


def _entries(function: Function, name: str, line: int) -> list[Address]:
    """Where control enters a line: its first instruction in each basic block, unless all predecessors are of the same line."""
    lines: list[bool] = []
    for i in function.instructions:
        places = chain(i)  # empty for instructions that the compiler added, which belong to the line before them
        own = any(n == line and _names(name, path) for path, n in places)
        lines.append(own if places else bool(lines) and lines[-1])
    of_line = lines.__getitem__

    leaders, before = _flow(function)
    found = []
    seen = False
    for k in range(len(function.instructions)):
        if k in leaders:
            seen = False
        if not of_line(k):
            continue
        if not seen and not (k in leaders and before.get(k) and all(of_line(p) for p in before[k])):
            found.append(Address(function.name, k))
        seen = True
    return found


def _flow(function: Function) -> tuple[frozenset[int], dict[int, tuple[int, ...]]]:
    """First instructions of basic blocks, and for each the instructions from which control reaches it."""
    branches: dict[int, list[int]] = {}
    leaders = {0}
    items = function.instructions
    for k, i in enumerate(items):
        if i.name in ("bra", "brx"):
            for target in _targets(function, i):
                branches.setdefault(target, []).append(k)
                leaders.add(target)
        if i.name in ("bra", "brx", "ret", "exit", "trap"):
            leaders.add(k + 1)
    before = {}
    for k in leaders:
        sources = branches.get(k, [])
        if k and not (items[k - 1].predicate is None and items[k - 1].name in ("bra", "brx", "ret", "exit", "trap")):
            sources = [*sources, k - 1]
        before[k] = tuple(sources)
    return frozenset(leaders), before


def _targets(function: Function, i: Instruction) -> list[int]:
    names = [o.name for o in i.operands if isinstance(o, Symbol)]
    labels = [label for n in names for label in function.branch_targets.get(n, (n,))]
    return [function.labels[label] for label in labels if label in function.labels]


@lru_cache(maxsize=64)
def source_text(path: str) -> tuple[str, ...] | None:
    """The lines of a source file; None if it cannot be read."""
    from ptxkit.files import native_path

    try:
        return tuple(native_path(path).read_text(encoding="utf-8", errors="replace").split("\n"))
    except OSError:
        return None
