"""Prints a module as flat PTX text: one instruction per line, every name unique in its function.

``parse(format_module(module))`` gives the same module except for line numbers and the text itself. Line numbers of the
source (``.loc``) are kept; debug sections are not part of the model and are not written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ptxkit.isa.model import Function, Loc, Module, Prototype, Variable

_NAME_LABEL = "$ptxkit_inlined"  # inlined_at requires the name of the inlined function, which the model does not store


def format_module(module: Module) -> str:
    """The module as PTX text."""
    return "\n".join(_module_lines(module)) + "\n"


def format_function(function: Function, files: Mapping[str, int] | None = None) -> str:
    """One function as PTX text. ``files`` maps paths to ``.file`` indices; without it no ``.loc`` is written."""
    return "\n".join(_function_lines(function, files or {})) + "\n"


def _module_lines(module: Module) -> Iterator[str]:
    yield f".version {module.version[0]}.{module.version[1]}"
    yield ".target " + ", ".join((module.target, *module.target_options))
    yield f".address_size {module.address_size}"
    files = {path: index for index, path in module.files.items()}
    for index, path in module.files.items():
        yield f".file {index} {_quoted(path)}"
    for function in module.functions.values():  # prototypes first: initialisers and calls may name functions
        if not function.is_entry:
            yield _header(function) + ";"
    for variable in module.variables.values():
        yield _declaration(variable) + ";"
    for function in module.functions.values():
        if not function.declared_only:
            yield from _function_lines(function, files)
    if any(i.loc and i.loc.inlined_at for f in module.functions.values() for i in f.instructions):
        yield f".section .debug_str {{ {_NAME_LABEL}: .b8 0 }}"


def _function_lines(function: Function, files: Mapping[str, int]) -> Iterator[str]:
    yield _header(function)
    if function.declared_only:
        yield ";"
        return
    yield "{"
    parameters = {p.name for p in (*function.params, *function.returns) if p.space == "reg"}
    for name, ptx_type in function.registers.items():
        if name not in parameters:
            yield f"\t.reg .{ptx_type.name} {name};"
    for variable in function.variables.values():
        yield f"\t{_declaration(variable)};"
    for label, prototype in function.prototypes.items():
        yield _prototype(label, prototype)
    for label, targets in function.branch_targets.items():
        directive = ".branchtargets" if all(t in function.labels for t in targets) else ".calltargets"
        yield f"{label}: {directive} {', '.join(targets)};"
    yield from _statements(function, files)
    yield "}"


def _statements(function: Function, files: Mapping[str, int]) -> Iterator[str]:
    labels: dict[int, list[str]] = {}
    for name, index in function.labels.items():
        labels.setdefault(index, []).append(name)
    seen: dict[tuple[str, int, int], Loc] = {}
    current: Loc | None = None
    for index, instruction in enumerate(function.instructions):
        if files and instruction.loc is not None and instruction.loc != current:
            current = instruction.loc
            yield from _loc_lines(current, files, seen)
        for label in labels.get(index, ()):
            yield f"{label}:"
        yield f"\t{instruction}"
    for label in labels.get(len(function.instructions), ()):
        yield f"{label}:"


def _loc_lines(loc: Loc, files: Mapping[str, int], seen: dict[tuple[str, int, int], Loc]) -> Iterator[str]:
    """``.loc`` of a place, after those of its call sites where these are not the ones last printed."""
    place = f"\t.loc {files.get(loc.file, 0)} {loc.line} {loc.column}"
    outer = loc.inlined_at
    if outer is not None:
        if seen.get((outer.file, outer.line, outer.column)) != outer:
            yield from _loc_lines(outer, files, seen)
        place += f", function_name {_NAME_LABEL}, inlined_at {files.get(outer.file, 0)} {outer.line} {outer.column}"
    seen[loc.file, loc.line, loc.column] = loc
    yield place


def _header(function: Function) -> str:
    words = [f".{function.linkage}"] if function.linkage else []
    words.append(".entry" if function.is_entry else ".func")
    attributes = function.directives.get("attribute", ())
    if attributes:
        words.append(_attributes(tuple(str(a) for a in attributes)))
    if function.returns:
        words.append(_parameters(function.returns))
    words.append(function.name)
    words.append(_parameters(function.params))
    for name, values in function.directives.items():
        if name != "attribute":
            text = ", ".join(_quoted(v) if isinstance(v, str) else str(v) for v in values)
            words.append(f".{name} {text}".rstrip() + (";" if name in ("pragma", "minperctamemory") else ""))
    return " ".join(words)


def _attributes(names: tuple[str, ...]) -> str:
    written = (f".{name}(0, 0)" if name == "unified" else f".{name}" for name in names)  # the uuid is not kept
    return f".attribute({', '.join(written)})"


def _parameters(parameters: tuple[Variable, ...]) -> str:
    return "(" + ", ".join(map(_declaration, parameters)) + ")"


def _prototype(label: str, prototype: Prototype) -> str:
    before = f"{_parameters(prototype.returns)} " if prototype.returns else ""
    return f"{label}: .callprototype {before}_ {_parameters(prototype.params)}{' .noreturn' if prototype.noreturn else ''};"


def _declaration(variable: Variable) -> str:
    words = [f".{variable.linkage}"] if variable.linkage else []
    words.append(f".{variable.space}")
    if variable.attributes:
        words.append(_attributes(variable.attributes))
    natural = variable.type.bytes * variable.vector
    if variable.align != natural:
        words.append(f".align {variable.align}")
    if variable.vector > 1:
        words.append(f".v{variable.vector}")
    words.append(f".{variable.type.name}")
    if variable.ptr is not None:
        space, align = variable.ptr
        words.append(f".ptr {'.' + space + ' ' if space else ''}.align {align}")
    words.append((variable.name or "_") + "".join(f"[{n or ''}]" for n in variable.shape))
    text = " ".join(words)
    return text if variable.init is None else f"{text} = {_initial_value(variable, variable.init)}"


def _initial_value(variable: Variable, init: bytes) -> str:
    """Element by element, as integers or exact floats; addresses as symbols."""
    step = variable.type.bytes
    symbols = {relocation[0]: relocation[1:] for relocation in variable.relocations}
    elements: list[str] = []
    for at in range(0, len(init), step):
        if at in symbols:
            elements.append(_symbol(*symbols[at]))
            continue
        bits = int.from_bytes(init[at : at + step], "little")
        exact = {"f32": f"0f{bits:08X}", "f64": f"0d{bits:016X}"}
        elements.append(exact.get(variable.type.name, str(bits)))
    scalar = not variable.shape and variable.vector == 1
    return elements[0] if scalar else "{" + ", ".join(elements) + "}"


def _symbol(name: str, addend: int, generic: bool, mask: int) -> str:
    text = f"generic({name})" if generic else name
    if addend:
        text += f"+{addend}"  # ptxas accepts +-4, not -4
    return f"{mask:#x}({text})" if mask else text


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
