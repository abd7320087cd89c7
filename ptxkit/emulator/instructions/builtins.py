"""Functions that device code calls and the driver provides: vprintf, __assertfail, malloc, free."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ptxkit.emulator.arrays import Lanes
from ptxkit.emulator.memory.allocations import LOCAL_WINDOW, SHARED_WINDOW, WINDOW_BYTES
from ptxkit.emulator.memory.layout import CLUSTER_RANK_SHIFT
from ptxkit.emulator.simt.operands import operand_lanes
from ptxkit.emulator.simt.threads import CallSite, Group
from ptxkit.errors import TrapError
from ptxkit.isa.model import Operand, Register, Symbol

_CONVERSION = re.compile(
    r"%(?P<flags>[-+ #0]*)(?P<width>\*|\d*)(?P<precision>\.(?:\*|\d*))?"
    r"(?P<length>hh|h|ll|l|j|z|t|L)?(?P<what>[diouxXcsfFeEgGaAp%])"
)


def _argument(group: Group, site: CallSite, k: int, dtype: DTypeLike) -> Lanes:
    """A scalar argument, from a call-parameter variable in local memory or from a register."""
    actual: Operand | None = site.arguments[k]
    if not isinstance(actual, Symbol):
        return np.broadcast_to(operand_lanes(group, actual, np.dtype(dtype)), group.shape)
    wave = group.wave
    at = group.frame.variable(actual)
    size = np.dtype(dtype).itemsize
    columns = wave.local[group.thread.reshape(-1), at : at + size]
    return np.ascontiguousarray(columns).view(dtype).reshape(group.shape)


def _return(group: Group, site: CallSite, lanes: Lanes) -> None:
    if not site.returns:
        return
    target = site.returns[0]
    wave = group.wave
    if isinstance(target, Symbol):
        at = group.frame.variable(target)
        lanes = np.ascontiguousarray(np.broadcast_to(lanes, group.shape))
        active = group.active().reshape(-1)
        data = lanes.reshape(-1, 1).view(np.uint8)
        threads = group.thread.reshape(-1)[active]
        wave.local[threads, at : at + lanes.dtype.itemsize] = data[active]
        for hook in wave.stack_hooks:
            hook.returned(threads, at, lanes.dtype.itemsize)
    elif isinstance(target, Register):
        group.store(group.frame.function.register_index[target.name], lanes)


def read_bytes(group: Group, address: int, nbytes: int, thread: int) -> bytes:
    """Reads memory at a generic address for one thread."""
    wave = group.wave
    if LOCAL_WINDOW <= address < LOCAL_WINDOW + WINDOW_BYTES:
        at = address - LOCAL_WINDOW
        return wave.local[thread, at : at + nbytes].tobytes()
    if SHARED_WINDOW <= address < SHARED_WINDOW + WINDOW_BYTES:
        at = thread // (wave.shape[1] * 32) * wave.shared_stride + address % (1 << CLUSTER_RANK_SHIFT)
        return wave.shared[at : at + nbytes].tobytes()
    return wave.launch.machine.memory.slice(address, nbytes).tobytes()


def read_string(group: Group, address: int, thread: int) -> str:
    """Reads a zero-terminated string at a generic address."""
    out = b""
    while len(out) < 65536:
        owner = group.wave.launch.machine.memory.owner(address + len(out))
        step = 64 if owner is None else min(64, owner.base + owner.nbytes - address - len(out))
        piece = read_bytes(group, address + len(out), step, thread)
        end = piece.find(b"\0")
        if end >= 0:
            return (out + piece[:end]).decode(errors="replace")
        if not piece:
            break
        out += piece
    return out.decode(errors="replace")


def format_printf(text: str, arguments: bytes, string: Callable[[int], str]) -> str:
    """The text that printf prints.

    Args:
        text: the format.
        arguments: the buffer that the compiler packs: every argument at its natural alignment, promoted as for varargs.
        string: reads the characters to which a ``%s`` argument points.
    """
    at = 0

    def take(code: str) -> Any:
        nonlocal at
        size = struct.calcsize(code)
        at = -(-at // size) * size
        (value,) = struct.unpack_from("<" + code, arguments, at) if at + size <= len(arguments) else (0,)
        at += size
        return value

    def one(m: re.Match[str]) -> str:
        what = m["what"]
        if what == "%":
            return "%"
        width = take("i") if m["width"] == "*" else m["width"]
        precision = m["precision"] or ""
        if precision == ".*":
            precision = f".{take('i')}"
        flags = m["flags"]
        if isinstance(width, int) and width < 0:
            flags, width = flags + "-", -width
        head = f"%{flags}{width}{precision}"
        wide = m["length"] in ("l", "ll", "j", "z", "t")
        match what:
            case "d" | "i":
                return str((head + "d") % take("q" if wide else "i"))
            case "u":
                return str((head + "d") % take("Q" if wide else "I"))
            case "o" | "x" | "X":
                return str((head + what) % take("Q" if wide else "I"))
            case "c":
                return (head + "s") % chr(take("i") & 0xFF)
            case "s":
                return (head + "s") % string(take("Q"))
            case "p":
                return (f"%{flags}{width}s") % hex(take("Q"))
            case "a" | "A":
                value = float(take("d")).hex()
                return value.upper() if what == "A" else value
            case _:
                return str((head + what) % take("d"))

    return _CONVERSION.sub(one, text)


def _lanes_of(group: Group) -> list[tuple[int, tuple[int, ...]]]:
    threads = group.thread
    return [(int(threads[tuple(at)]), tuple(int(k) for k in at)) for at in np.argwhere(group.active())]


def _string(group: Group, thread: int, address: int) -> str:
    return read_string(group, address, thread) if address else "(null)"


def _vprintf(group: Group, site: CallSite, back: int) -> None:
    formats = _argument(group, site, 0, np.uint64)
    buffers = _argument(group, site, 1, np.uint64)
    counts = np.zeros(group.shape, np.int32)
    for thread, at in _lanes_of(group):
        text = read_string(group, int(formats[at]), thread)
        address = int(buffers[at])
        room = 0
        if address:
            room = 1024
            if LOCAL_WINDOW <= address < LOCAL_WINDOW + WINDOW_BYTES:
                room = min(room, group.wave.local.shape[1] - (address - LOCAL_WINDOW))
        data = read_bytes(group, address, room, thread) if room else b""
        group.wave.changes += 1
        group.wave.output.append(format_printf(text, data, partial(_string, group, thread)))
        counts[at] = len(_CONVERSION.findall(text))
    _return(group, site, counts)
    group.wave.go(group, back)


def _assertfail(group: Group, site: CallSite, back: int) -> None:
    messages, files = _argument(group, site, 0, np.uint64), _argument(group, site, 1, np.uint64)
    lines, functions = _argument(group, site, 2, np.uint32), _argument(group, site, 3, np.uint64)
    thread, at = _lanes_of(group)[0]
    cta, coordinates = group.first(group.active())
    group.wave.flush_output()
    raise TrapError(
        f"{read_string(group, int(files[at]), thread)}:{int(lines[at])}: {read_string(group, int(functions[at]), thread)}: "
        f"thread {coordinates} of CTA {cta}: assertion `{read_string(group, int(messages[at]), thread)}` failed"
    )


def _malloc(group: Group, site: CallSite, back: int) -> None:
    sizes = _argument(group, site, 0, np.uint64)
    out = np.zeros(group.shape, np.uint64)
    machine = group.wave.launch.machine
    with machine.atomic_lock:
        for _, at in _lanes_of(group):
            nbytes = int(sizes[at])
            if machine.memory.used + nbytes <= machine.memory.capacity:  # else null, as from a full heap
                out[at] = machine.allocate(nbytes, "device malloc")
    _return(group, site, out)
    group.wave.go(group, back)


def _free(group: Group, site: CallSite, back: int) -> None:
    addresses = _argument(group, site, 0, np.uint64)
    machine = group.wave.launch.machine
    with machine.atomic_lock:
        for _, at in _lanes_of(group):
            if addresses[at]:
                machine.memory.free(int(addresses[at]))
    group.wave.go(group, back)


BUILTINS: dict[str, Callable[[Group, CallSite, int], None]] = {
    "vprintf": _vprintf,
    "__assertfail": _assertfail,
    "malloc": _malloc,
    "free": _free,
}
"""The functions by the name under which device code declares them."""
