"""Machine code for loads and stores: where an address is in the host's memory, its checks, and the count of its traffic."""

from __future__ import annotations

from dataclasses import dataclass

from ptxkit.emulator.lowering.typed import TypedInstruction
from ptxkit.emulator.native.context import SPACES, Field
from ptxkit.emulator.native.memory_code import Record
from ptxkit.emulator.native.operands import Places, width
from ptxkit.emulator.native.text import Text, ints
from ptxkit.isa.model import Address, Immediate, Operand, Register, Symbol, Vector
from ptxkit.isa.types import TYPES, PtxType


@dataclass(frozen=True)
class Access:
    """A load or store.

    Attributes:
        number: of the instruction in the program.
        space: ``"global"``, ``"shared"``, ``"local"``, or "" for generic addresses.
        base, offset: the address. type: of an element. elements: registers or values.
        at: byte in the kernel's parameters, for a load of one; else -1.
    """

    number: int
    store: bool
    space: str
    base: Operand
    offset: int
    type: PtxType
    elements: tuple[Operand | None, ...]
    at: int = -1

    @property
    def size(self) -> int:
        """Bytes that a lane accesses."""
        return self.type.dtype.itemsize * len(self.elements)

    @property
    def spaces(self) -> tuple[str, ...]:
        """State spaces that it can access."""
        return (self.space,) if self.space else SPACES


def access_of(typed: TypedInstruction, places: Places) -> Access | None:
    """The access of a typed instruction; None where machine code cannot perform it."""
    i, form = typed.instruction, typed.form
    if i.name not in ("ld", "st") or form is None or len(i.operands) != 2:
        return None
    if form.get("sem") not in (None, "", "weak") or form.get("scope") or "hint" in form.opcode:
        return None
    t = TYPES.get(form["t"])
    if t is None or width(t) not in (8, 16, 32, 64):
        return None
    store = i.name == "st"
    address, values = (i.operands[0], i.operands[1]) if store else (i.operands[1], i.operands[0])
    elements = values.items if isinstance(values, Vector) else (values,)
    usable = places.can_read if store else places.can_write
    if not isinstance(address, Address) or not all(usable(e, t) for e in elements):
        return None
    space = (form.get("space") or ("global" if ".nc" in form.opcode else "")).partition("::")[0]
    if "cluster" in (form.get("space") or ""):
        return None
    function, layout = places.code.function, places.layout
    base: Operand = Immediate(address.offset) if address.base is None else address.base
    offset = 0 if address.base is None else address.offset
    if isinstance(base, Symbol):
        offset += base.offset
        base = Symbol(base.name)
    at = -1
    if space == "param":
        if function.is_entry and isinstance(base, Symbol) and base.name in layout.params:
            at = layout.params[base.name][0] + offset
            if store or at < 0 or at + t.dtype.itemsize * len(elements) > layout.param_bytes:
                return None
        space = "global" if function.is_entry and not isinstance(base, Symbol) else "local"
    if space == "const":
        space = "global"
    if space not in ("global", "shared", "local", "") or t.dtype.itemsize * len(elements) > 32:
        return None
    if at < 0 and not _readable(base, places):
        return None
    return Access(typed.number, store, space, base, offset, t, elements, at)


def _readable(base: Operand, places: Places) -> bool:
    if isinstance(base, Register):
        k = places.register(base)
        return k is not None and places.bits(k) in (32, 64)
    if isinstance(base, Symbol) and base.name in places.frame:
        return True
    return places.constant(base, TYPES["u64"]) is not None


class Accesses:
    """Writes the accesses of one segment.

    Args:
        t: receives the text. slow: the label to go to where an access needs numpy's checks.
    """

    def __init__(self, t: Text, slow: str) -> None:
        self.t = t
        self.slow = slow

    @staticmethod
    def allocas(access: Access) -> list[str]:
        """The variables of an access, at the beginning of the function."""
        n, bits = access.number, width(access.type)
        return [f"  %record{n} = alloca [{Record.SIZE} x i64]", f"  %element{n} = alloca {ints(bits)}"]

    def begin_row(self, access: Access) -> None:
        """No lane of the warp has performed the access."""
        for k in (Record.GLOBAL, Record.SHARED, Record.LOCAL, Record.MARKED, Record.UNWRITTEN):
            self.t.put(f"store i64 0, ptr {self._record(access, k)}")

    def _record(self, access: Access, k: int) -> str:
        return self.t.value(f"getelementptr i64, ptr %record{access.number}, i64 {k}")

    def locate(self, access: Access, address: str, mask: str) -> None:
        """Find where the lanes in ``mask`` (at least one) access memory; also kept for the counts."""
        t, size = self.t, access.size
        record, store = f"ptr %C, ptr %record{access.number}, i32 {mask}", "true" if access.store else "false"
        t.store(ints(64), address, f"%record{access.number}")
        call = {
            "global": f"global({record}, i64 {size}, i64 {access.number}, i1 {store})",
            "shared": f"shared({record}, i64 {size}, i64 %cta)",
            "local": f"local_{size}({record}, i64 %first, i1 {store})",
            "": f"any_{size}({record}, i64 {access.number}, i64 %cta, i64 %first, i1 {store})",
        }[access.space]
        good = t.name("good")
        t.put(f"br i1 {t.value(f'call i1 @ptxkit_locate_{call}')}, label %{good}, label %{self.slow}")
        t.label(good)

    def load(self, access: Access, k: int, mask: str) -> str:
        """Element ``k`` of what the lanes in ``mask`` access."""
        bits, n = width(access.type), access.number
        self.t.put(f"call void @ptxkit_load_{bits}(ptr %record{n}, i32 {mask}, i64 {k * bits // 8}, ptr %element{n})")
        return self.t.load(ints(bits), f"%element{n}")

    def store(self, access: Access, k: int, mask: str, value: str) -> None:
        """Let element ``k`` of what the lanes in ``mask`` access be ``value``."""
        bits, n = width(access.type), access.number
        self.t.store(ints(bits), value, f"%element{n}")
        self.t.put(f"call void @ptxkit_store_{bits}(ptr %record{n}, i32 {mask}, i64 {k * bits // 8}, ptr %element{n})")

    def end_row(self, access: Access) -> None:
        """Count the traffic of the warp."""
        t, n = self.t, access.number
        for space in access.spaces:
            mask = t.value(f"load i64, ptr {self._record(access, Record[space.upper()])}")
            some, none = t.name("some"), t.name("none")
            t.put(f"br i1 {t.value(f'icmp ne i64 {mask}, 0')}, label %{some}, label %{none}")
            t.label(some)
            slot = n * len(SPACES) + SPACES.index(space)
            head = f"ptr %C, ptr %record{n}, i32 {t.value(f'trunc i64 {mask} to i32')}, i64 {slot}"
            if space == "global":
                t.put(f"call void @ptxkit_count_global({head})")
                if not access.store:
                    unwritten = t.value(f"load i64, ptr {self._record(access, Record.UNWRITTEN)}")
                    t.put(f"call void @add_to(ptr %C, i64 {int(Field.UNWRITTEN)}, i64 {n}, i64 {unwritten})")
            elif space == "local":
                t.put(f"call void @ptxkit_count_local({head}, i64 {max(1, access.size // 4)})")
            else:
                shift = max(4, access.size).bit_length() - 1
                load = "false" if access.store else "true"
                t.put(f"call void @ptxkit_count_shared({head}, i64 {shift}, i1 {load})")
            if access.store and space != "local":  # local memory is part of the state by which a deadlock is recognised
                t.put(f"call void @set_field(ptr %C, i64 {int(Field.STORED)}, i64 1)")
            t.put(f"br label %{none}")
            t.label(none)
