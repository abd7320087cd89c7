"""Values as text, in the formats of gdb: /x /d /u /o /t /f /c /a."""

from __future__ import annotations

from typing import Any

import numpy as np

from ptxkit.debugger.ctypes import CType, numpy_type
from ptxkit.debugger.evaluate import Value
from ptxkit.errors import UsageError

SHOWN = 200
"""Elements of an array that are shown."""

FORMATS = "xduotfca"


def scalar_text(made: CType, raw: bytes, style: str = "") -> str:
    """One number in a format; ``""`` is the one that its type suggests."""
    if not style:
        return _natural(made, raw)
    size = max(len(raw), 1)
    number = int.from_bytes(raw, "little")
    match style:
        case "x" | "a":
            return f"{number:#x}"
        case "o":
            return f"0{number:o}" if number else "0"
        case "t":
            return f"{number:b}"
        case "u":
            return str(number)
        case "d":
            return str(number - (1 << 8 * size) if number >> (8 * size - 1) else number)
        case "c":
            code = number & 0xFF
            return f"{code} {chr(code)!r}" if 32 <= code < 127 else f"{code} '\\{code:o}'"
        case "f":
            if made.kind == "float":
                return _natural(made, raw)
            if size in (2, 4, 8):
                return _float(np.frombuffer(raw, f"f{size}")[0])
            return str(number)
    raise UsageError(f"no format /{style}; there are /{' /'.join(FORMATS)}")


def _natural(made: CType, raw: bytes) -> str:
    value = made.decode(raw)
    match made.kind:
        case "float":
            return _float(np.frombuffer(raw[: made.size], numpy_type(made.dtype))[0])
        case "bool":
            return "true" if value else "false"
        case "pointer":
            return f"({made.name}) {value:#x}"
        case "bits":
            return f"{value:#x} ({value})" if value > 9 else str(value)
        case "char":
            return f"{value} {chr(value)!r}" if 32 <= value < 127 else str(value)
        case "enum":
            return dict(made.values).get(value, str(value))
    return str(value)


def _float(value: Any) -> str:
    return repr(float(value)) if isinstance(value, float) else str(np.asarray(value)[()])


def value_text(made: CType, raw: bytes | None, style: str = "") -> str:
    """A value in a format, arrays and structures with their elements."""
    if raw is None:
        return "<no value>"
    if made.kind == "array" and made.target is not None:
        size = made.target.size
        texts = [value_text(made.target, raw[k * size : (k + 1) * size], style) for k in range(min(made.count, SHOWN))]
        return "{" + ", ".join(_repeats(texts)) + (", ..." if made.count > SHOWN else "") + "}"
    if made.kind == "struct":
        inside = (
            f"{f.name} = {value_text(f.type, raw[f.offset : f.offset + f.type.size], style)}" for f in made.fields
        )
        return "{" + ", ".join(inside) + "}"
    if made.kind == "void":
        return "void"
    return scalar_text(made, raw, style)


def _repeats(texts: list[str]) -> list[str]:
    out: list[str] = []
    k = 0
    while k < len(texts):
        n = k
        while n < len(texts) and texts[n] == texts[k]:
            n += 1
        out += [f"{texts[k]} <repeats {n - k} times>"] if n - k >= 10 else texts[k:n]
        k = n
    return out


def text_of(value: Value, style: str = "") -> str:
    """A value as text, or the reason why it is missing."""
    return value.missing or "<no value>" if value.raw is None else value_text(value.type, value.raw, style)
