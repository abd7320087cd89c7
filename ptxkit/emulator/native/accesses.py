"""Machine code for loads and stores: where an address is in the host's memory, its checks, and the count of its traffic."""

from __future__ import annotations

from dataclasses import dataclass

from ptxkit.emulator.lowering.typed import TypedInstruction
from ptxkit.emulator.memory.allocations import LOCAL_WINDOW, SHARED_WINDOW, WINDOW_BYTES
from ptxkit.emulator.native.context import SPACES, Field
from ptxkit.emulator.native.operands import Places, width
from ptxkit.emulator.native.text import Text
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

    def _require(self, condition: str) -> None:
        t = self.t
        good = t.name("good")
        t.put(f"br i1 {condition}, label %{good}, label %{self.slow}")
        t.label(good)

    def _aligned(self, address: str, size: int) -> None:
        if size > 1:
            low = self.t.value(f"and i64 {address}, {size - 1}")
            self._require(self.t.value(f"icmp eq i64 {low}, 0"))

    def _remember(self, access: Access, space: str, address: str) -> None:
        """Keep the address of the lane for the counts of its warp."""
        t, stem = self.t, f"{access.number}_{space}"
        t.put(f"store i64 {address}, ptr {t.value(f'getelementptr i64, ptr %addresses{stem}, i64 %lane64')}")
        old = t.value(f"load i32, ptr %mask{stem}")
        t.put(f"store i32 {t.value(f'or i32 {old}, %bit')}, ptr %mask{stem}")

    def place(self, access: Access, address: str) -> str:
        """The host's address for a lane's, after all checks; also keeps it for the counts."""
        t = self.t
        self._aligned(address, access.size)
        if access.space:
            return getattr(self, f"_{access.space}")(access, address)
        out = t.name("where")
        made = []
        window = {}
        for name, begin in (("shared", SHARED_WINDOW), ("local", LOCAL_WINDOW)):
            at = t.value(f"sub i64 {address}, {begin}")
            window[name] = t.value(f"icmp ult i64 {at}, {WINDOW_BYTES}")
        labels = {name: t.name(name) for name in SPACES}
        other = t.name("other")
        t.put(f"br i1 {window['shared']}, label %{labels['shared']}, label %{other}")
        t.label(other)
        t.put(f"br i1 {window['local']}, label %{labels['local']}, label %{labels['global']}")
        for name in SPACES:
            t.label(labels[name])
            pointer = getattr(self, f"_{name}")(access, address)
            last = t.name("from")
            t.put(f"br label %{last}")
            t.label(last)
            t.put(f"br label %{out}")
            made.append(f"[{pointer}, %{last}]")
        t.label(out)
        return t.value(f"phi ptr {', '.join(made)}")

    def _global(self, access: Access, address: str) -> str:
        t, size = self.t, access.size
        hint = t.value(f"getelementptr i64, ptr {t.array(Field.HINTS)}, i64 {access.number}")
        h = t.value(f"load i64, ptr {hint}")
        base = t.value(f"load i64, ptr {t.value(f'getelementptr i64, ptr {t.array(Field.BASE)}, i64 {h}')}")
        end = t.value(f"load i64, ptr {t.value(f'getelementptr i64, ptr {t.array(Field.END)}, i64 {h}')}")
        after = t.value(f"icmp uge i64 {address}, {base}")
        before = t.value(f"icmp ule i64 {t.value(f'add i64 {address}, {size}')}, {end}")
        hit, miss, found, go = (t.name(n) for n in ("hit", "miss", "found", "go"))
        t.put(f"br i1 {t.value(f'and i1 {after}, {before}')}, label %{hit}, label %{miss}")
        t.label(miss)
        k = t.value(f"call i64 @find(ptr %C, i64 {address}, i64 {size}, ptr {hint})")
        t.put(f"br i1 {t.value(f'icmp slt i64 {k}, 0')}, label %{self.slow}, label %{found}")
        t.label(found)
        t.put(f"br label %{go}")
        t.label(hit)
        t.put(f"br label %{go}")
        t.label(go)
        n = t.value(f"phi i64 [{h}, %{hit}], [{k}, %{found}]")
        start = t.value(f"load i64, ptr {t.value(f'getelementptr i64, ptr {t.array(Field.BASE)}, i64 {n}')}")
        if access.store:
            no = t.value(f"load i64, ptr {t.value(f'getelementptr i64, ptr {t.array(Field.NO_STORES)}, i64 {n}')}")
            self._require(t.value(f"icmp eq i64 {no}, 0"))
        else:
            p = t.value(f"getelementptr i64, ptr {t.array(Field.SENTINEL)}, i64 {n}")
            t.put(f"store i64 {t.value(f'load i64, ptr {p}')}, ptr %sentinel{access.number}")
        self._remember(access, "global", address)
        host = t.value(f"load ptr, ptr {t.value(f'getelementptr ptr, ptr {t.array(Field.HOST)}, i64 {n}')}")
        return t.at(host, t.value(f"sub i64 {address}, {start}"))

    def _window(self, address: str, begin: int) -> str:
        """A generic address as an offset in its window."""
        t = self.t
        at = t.value(f"sub i64 {address}, {begin}")
        inside = t.value(f"icmp ult i64 {at}, {WINDOW_BYTES}")
        return t.select(inside, "i64", at, address)

    def _shared(self, access: Access, address: str) -> str:
        t = self.t
        a = self._window(address, SHARED_WINDOW)
        self._require(t.value(f"icmp uge i64 {a}, {t.field(Field.SHARED_BEGIN)}"))
        end = t.value(f"add i64 {a}, {access.size}")
        self._require(t.value(f"icmp ule i64 {end}, {t.field(Field.SHARED_END)}"))
        self._remember(access, "shared", a)
        start = t.value(f"mul i64 %cta, {t.field(Field.SHARED_STRIDE)}")
        return t.at(t.array(Field.SHARED), t.value(f"add i64 {start}, {a}"))

    def _local(self, access: Access, address: str) -> str:
        t = self.t
        a = self._window(address, LOCAL_WINDOW)
        depth = t.field(Field.LOCAL_BYTES)
        self._require(t.value(f"icmp ult i64 {a}, {depth}"))
        self._require(t.value(f"icmp ule i64 {t.value(f'add i64 {a}, {access.size}')}, {depth}"))
        at = t.value(f"add i64 {t.value(f'mul i64 %thread, {depth}')}, {a}")
        undefined = t.field(Field.UNDEFINED)
        followed, go = t.name("followed"), t.name("go")
        t.put(f"br i1 {t.value(f'icmp ne i64 {undefined}, 0')}, label %{followed}, label %{go}")
        t.label(followed)
        bits = access.size * 8
        p = t.at(t.value(f"inttoptr i64 {undefined} to ptr"), at)
        if access.store:
            t.put(f"store i{bits} 0, ptr {p}, align 1")
        else:
            marks = t.load(f"i{bits}", p)
            self._require(t.value(f"icmp eq i{bits} {marks}, 0"))
        t.put(f"br label %{go}")
        t.label(go)
        self._remember(access, "local", a)
        return t.at(t.array(Field.LOCAL), at)

    # -- counts ------------------------------------------------------------------------------------------------------

    def begin_row(self, access: Access) -> None:
        """No lane of the warp has performed the access."""
        for space in access.spaces:
            self.t.put(f"store i32 0, ptr %mask{access.number}_{space}")

    def end_row(self, access: Access) -> None:
        """Count the traffic of the warp."""
        t = self.t
        for space in access.spaces:
            stem = f"{access.number}_{space}"
            mask = t.value(f"load i32, ptr %mask{stem}")
            some, none = t.name("some"), t.name("none")
            t.put(f"br i1 {t.value(f'icmp ne i32 {mask}, 0')}, label %{some}, label %{none}")
            t.label(some)
            slot = access.number * len(SPACES) + SPACES.index(space)
            head = f"ptr %C, ptr %addresses{stem}, i32 {mask}, i64 {slot}"
            if space == "global":
                t.put(f"call void @count_global({head})")
            elif space == "local":
                t.put(f"call void @count_local({head}, i64 {max(1, access.size // 4)})")
            else:
                shift = max(4, access.size).bit_length() - 1
                load = "false" if access.store else "true"
                t.put(f"call void @count_shared({head}, i64 {shift}, i1 {load})")
            if access.store and space != "local":  # local memory is part of the state by which a deadlock is recognised
                t.put(f"call void @set_field(ptr %C, i64 {int(Field.STORED)}, i64 1)")
            t.put(f"br label %{none}")
            t.label(none)

    @staticmethod
    def allocas(access: Access) -> list[str]:
        """The variables of an access, at the beginning of the function."""
        lines = [] if access.store else [f"  %sentinel{access.number} = alloca i64"]
        for space in access.spaces:
            stem = f"{access.number}_{space}"
            lines += [f"  %addresses{stem} = alloca [32 x i64]", f"  %mask{stem} = alloca i32"]
        return lines
