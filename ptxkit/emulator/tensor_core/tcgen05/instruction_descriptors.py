"""Instruction descriptors of tcgen05.mma: types and shape of a product. PTX ISA, "Instruction descriptor", "Matrix
Shape".

CUTLASS, ``cute/arch/mma_sm100_desc.hpp``, has the same fields as C++ bit fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

_F8F6F4 = {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"}
_E2M1 = {1: "e2m1"}

BITS = {
    "f16": 16,
    "bf16": 16,
    "tf32": 32,
    "e4m3": 8,
    "e5m2": 8,
    "e2m3": 6,
    "e3m2": 6,
    "e2m1": 4,
    "s8": 8,
    "u8": 8,
}
"""Bits of an element."""


@dataclass(frozen=True)
class KindOf:
    """The valid fields of a ``.kind``.

    Attributes:
        k: elements along K of a dense product.
        types: of A and B, by code.
        results: of D, by code; () where D is always f32 and the bits have another meaning.
        scaled: A and B have scale factors.
        container: bits that an element occupies in memory, on average; 0 for the type's own.
        transposes, negates: whether the bits for it may be set.
    """

    k: int
    types: Mapping[int, str]
    results: Mapping[int, str] = field(default_factory=dict)
    scaled: bool = False
    container: int = 0
    transposes: bool = True
    negates: bool = True


KINDS: dict[str, KindOf] = {
    "f16": KindOf(16, {0: "f16", 1: "bf16"}, {0: "f16", 1: "f32"}),
    "tf32": KindOf(8, {2: "tf32"}, {1: "f32"}),
    "f8f6f4": KindOf(32, _F8F6F4, {0: "f16", 1: "f32"}, container=8),
    "i8": KindOf(32, {0: "u8", 1: "s8"}, {2: "s32"}, negates=False),
    "mxf8f6f4": KindOf(32, _F8F6F4, scaled=True, container=8),
    "mxf4": KindOf(64, _E2M1, scaled=True, transposes=False),
    "mxf4nvf4": KindOf(64, _E2M1, scaled=True, transposes=False),
}


@dataclass(frozen=True)
class Product:
    """The fields of a descriptor.

    Attributes:
        m, n, k: shape of the product, over both CTAs of a pair; ``k`` of a sparse one counts the zeros.
        a, b, d: element types.
        saturate: integers are limited instead of wrapping.
        negate_a, negate_b: signs are flipped.
        mn_a, mn_b: the matrix is MN-major in shared memory ("transposed").
        selector: sparsity selector.
        sfa, sfb: scale factor ids.
        scale: type of the scale factors, ``"ue8m0"`` or ``"ue4m3"``; "" where there are none.
        max_shift: ``.ws``, columns by which B may be shifted.
    """

    m: int
    n: int
    k: int
    a: str
    b: str
    d: str
    saturate: bool = False
    negate_a: bool = False
    negate_b: bool = False
    mn_a: bool = False
    mn_b: bool = False
    selector: int = 0
    sfa: int = 0
    sfb: int = 0
    scale: str = ""
    max_shift: int = 0


class _Bad(Exception):
    """Bits that no descriptor has."""


@lru_cache(maxsize=1024)
def product(bits: int, kind: str, sparse: bool, ws: bool, group: int, target: int) -> Product | str:
    """The product that a descriptor describes, or the reason why the descriptor is not valid.

    Args:
        kind: the name without ``kind::``.
        sparse: of ``.sp``.
        ws: of ``.ws``.
        group: CTAs, 1 or 2.
        target: compute capability as a number.
    """
    try:
        found = _scaled(bits, kind, sparse, target) if KINDS[kind].scaled else _plain(bits, kind, sparse, ws)
        _require_shape(found, kind, sparse, ws, group)
    except _Bad as error:
        return str(error)
    return found


def _reserved(bits: int, *positions: int) -> None:
    for position in positions:
        if bits >> position & 1:
            raise _Bad(f"bit {position} is set, which is reserved")


def _type(bits: int, low: int, width: int, names: Mapping[int, str], what: str, kind: str) -> str:
    code = bits >> low & (1 << width) - 1
    if code not in names:
        known = ", ".join(f"{c} ({n})" for c, n in names.items())
        raise _Bad(f"bits {low} to {low + width - 1} (type of {what}) are {code}; .kind::{kind} has {known}")
    return names[code]


def _common(bits: int, kind: str, sparse: bool) -> None:
    rules = KINDS[kind]
    if bool(bits >> 2 & 1) != sparse:
        raise _Bad(
            f"bit 2 (sparse) is {bits >> 2 & 1}, but the instruction {'is' if sparse else 'is not'} tcgen05.mma.sp"
        )
    for low, may, what in ((13, rules.negates, "negate"), (15, rules.transposes, "transpose")):
        for position in (low, low + 1):
            if bits >> position & 1 and not may:
                raise _Bad(f"bit {position} ({what} {'AB'[position - low]}) is set, which .kind::{kind} does not have")


def _plain(bits: int, kind: str, sparse: bool, ws: bool) -> Product:
    rules = KINDS[kind]
    _reserved(bits, 6, 23, 29)
    _common(bits, kind, sparse)
    if bits & 3 and (not sparse or kind in ("f8f6f4", "i8")):
        raise _Bad(f"bits 0 and 1 (sparsity selector) are {bits & 3}; they must be 0")
    if bits >> 3 & 1 and kind != "i8":
        raise _Bad(f"bit 3 (saturate) is set, which .kind::{kind} does not have")
    if bits >> 30 and not ws:
        raise _Bad(f"bits 30 and 31 (maximum shift) are {bits >> 30}, which tcgen05.mma.ws alone has")
    a = _type(bits, 7, 3, rules.types, "A", kind)
    b = _type(bits, 10, 3, rules.types, "B", kind)
    d = _type(bits, 4, 2, rules.results, "D", kind)
    if kind == "f16" and a != b:
        raise _Bad(f"A is {a} and B is {b} (bits 7 to 12); .kind::f16 has the same type for both")
    if d == "f16" and a == "bf16":
        raise _Bad("bits 4 and 5 (type of D) are 0 (f16), but A and B are bf16, which accumulate in f32")
    return Product(
        (bits >> 24 & 31) << 4,
        (bits >> 17 & 63) << 3,
        rules.k * (2 if sparse else 1),
        a,
        b,
        d,
        saturate=bool(bits >> 3 & 1),
        negate_a=bool(bits >> 13 & 1),
        negate_b=bool(bits >> 14 & 1),
        mn_a=bool(bits >> 15 & 1),
        mn_b=bool(bits >> 16 & 1),
        selector=bits & 3,
        max_shift=(0, 8, 16, 32)[bits >> 30],
    )


def _scaled(bits: int, kind: str, sparse: bool, target: int) -> Product:
    rules = KINDS[kind]
    four = kind != "mxf8f6f4"
    _reserved(bits, 0, 1, 3, 6, 24, 25, 26)
    _common(bits, kind, sparse)
    k = rules.k * (2 if sparse else 1)
    if four:
        _reserved(bits, 12)
        if bits >> 31:
            if target != 103:
                raise _Bad("bit 31 (K = 96) is set, which needs sm_103a")
            if sparse:
                raise _Bad("bit 31 (K = 96) is set, which tcgen05.mma.sp does not have")
            k = 96
    else:
        _reserved(bits, 31)
    names = {1: "ue8m0"} if kind in ("mxf8f6f4", "mxf4") else {0: "ue4m3", 1: "ue8m0"}
    code = bits >> 23 & 1
    if code not in names:
        raise _Bad(f"bit 23 (type of the scale factors) is {code}; .kind::{kind} has 1 (ue8m0)")
    return Product(
        (bits >> 27 & 3) << 7,
        (bits >> 17 & 63) << 3,
        k,
        _type(bits, 7, 3, rules.types, "A", kind),
        _type(bits, 10, 2 if four else 3, rules.types, "B", kind),
        "f32",
        negate_a=bool(bits >> 13 & 1),
        negate_b=bool(bits >> 14 & 1),
        mn_a=bool(bits >> 15 & 1),
        mn_b=bool(bits >> 16 & 1),
        sfa=bits >> 29 & 3,
        sfb=bits >> 4 & 3,
        scale=names[code],
    )


def _require_shape(p: Product, kind: str, sparse: bool, ws: bool, group: int) -> None:
    """PTX ISA, table "Various combinations of .kind and shapes"."""
    rules = KINDS[kind]
    if ws:
        rows: tuple[int, ...] = (32, 64, 128)
    elif rules.scaled:
        rows = (128,) if group == 1 else ((256,) if sparse else (128, 256))
    else:
        rows = (64, 128) if group == 1 else (128, 256)
    place = "27 and 28" if rules.scaled else "24 to 28"
    form = f".cta_group::{group}{'.ws' if ws else ''}{'.sp' if sparse else ''}.kind::{kind}"
    if p.m not in rows:
        raise _Bad(f"bits {place} give M = {p.m}; {form} has {_listed(rows)}")
    if p.k == 96 and (p.m, group) not in ((128, 1), (256, 2)):
        raise _Bad(f"bit 31 (K = 96) is set with M = {p.m}; it needs {128 * group}")
    columns = _columns(p, kind, sparse, ws, group)
    if p.n not in columns:
        raise _Bad(f"bits 17 to 22 give N = {p.n}; {form} with M = {p.m} has {_spanned(columns)}")


def _columns(p: Product, kind: str, sparse: bool, ws: bool, group: int) -> tuple[int, ...]:
    if ws:
        return (64, 128) if sparse else (64, 128, 256)
    if kind == "i8":
        return (8, 16, 24, *range(32, 257, 16)) if group == 1 else tuple(range(32, 257, 32))
    step = 8 * group
    if p.mn_b and BITS[p.b] <= 8:
        step = (
            16 * group
        )  # PTX ISA, table "Various combinations of N shape with .cta_group qualifier for 8bit transpose B"
    return tuple(range(step, 257, step))


def _listed(values: tuple[int, ...]) -> str:
    return " or ".join(map(str, values))


def _spanned(values: tuple[int, ...]) -> str:
    step = values[1] - values[0]
    if values == tuple(range(values[0], values[-1] + 1, step)) and len(values) > 3:
        return f"{values[0]} to {values[-1]} in steps of {step}"
    return ", ".join(map(str, values))
