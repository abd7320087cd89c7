"""Functions that device code calls and the driver provides: vprintf, __assertfail, malloc, free."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ptxkit.emulator.arrays import Lanes
from ptxkit.emulator.memory.allocations import LOCAL_WINDOW, SHARED_WINDOW, WINDOW_BYTES, label
from ptxkit.emulator.memory.layout import CLUSTER_RANK_SHIFT
from ptxkit.emulator.simt.operands import operand_lanes
from ptxkit.emulator.simt.state import LaunchState
from ptxkit.emulator.simt.threads import CallSite, Group
from ptxkit.emulator.simt.where import source_lines
from ptxkit.errors import MemoryFault, TrapError
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
        width = take("i") if m["width"] == "*" else int(m["width"] or 0)
        flags = m["flags"]
        if width < 0:
            flags, width = flags + "-", -width
        precision = m["precision"]
        digits = None if precision is None else take("i") if precision == ".*" else int(precision[1:] or 0)
        if digits is not None and digits < 0:
            digits = None
        if what in "csp":
            return _padded(_characters(what, digits, take, string), flags.replace("0", ""), width)
        if what in "diouxX":
            value = _integer(what, m["length"] or "", take)
            return _padded(*_digits(value, what, flags, digits), width)
        return _padded(*_real(float(take("d")), what, flags, digits), width)

    return _CONVERSION.sub(one, text)


def _padded(text: str, flags: str, width: int) -> str:
    """The text in a field of a width: left-justified, or with zeros after the sign and the prefix, or with blanks before it."""
    if len(text) >= width:
        return text
    if "-" in flags:
        return text.ljust(width)
    if "0" in flags:
        head = re.match(r"[-+ ]?(0[xX])?", text)
        assert head is not None
        return head[0] + text[head.end() :].rjust(width - head.end(), "0")
    return text.rjust(width)


def _characters(what: str, digits: int | None, take: Callable[[str], Any], string: Callable[[int], str]) -> str:
    if what == "c":
        return chr(take("i") & 0xFF)
    address = take("Q")
    if what == "p":
        return hex(address) if address else "(nil)"
    return string(address)[:digits]


_BITS = {"hh": 8, "h": 16, "": 32}


def _integer(what: str, length: str, take: Callable[[str], Any]) -> int:
    """An argument as the integer of the length that the conversion states."""
    bits = _BITS.get(length, 64)
    value = int(take("Q" if bits == 64 else "I")) & ((1 << bits) - 1)
    return value - (1 << bits) if what in "di" and value >> (bits - 1) else value


def _digits(value: int, what: str, flags: str, digits: int | None) -> tuple[str, str]:
    """An integer with sign and prefix, and the flags for its padding: a precision turns off padding with zeros."""
    text = {"o": f"{abs(value):o}", "x": f"{value:x}", "X": f"{value:X}"}.get(what) or str(abs(value))
    if digits == 0 and value == 0:
        text = ""
    text = text.rjust(digits or 0, "0")
    if "#" in flags and what == "o" and not text.startswith("0"):
        text = "0" + text
    elif "#" in flags and what in "xX" and value:
        text = f"0{what}{text}"
    sign = ("-" if value < 0 else "+" if "+" in flags else " " if " " in flags else "") if what in "di" else ""
    return sign + text, flags if digits is None else flags.replace("0", "")


def _real(value: float, what: str, flags: str, digits: int | None) -> tuple[str, str]:
    """A floating-point number with its sign, and the flags for its padding: infinity and NaN have no zeros."""
    sign = "-" if math.copysign(1, value) < 0 else "+" if "+" in flags else " " if " " in flags else ""
    if not math.isfinite(value):
        text = "nan" if math.isnan(value) else "inf"
        return sign + (text.upper() if what.isupper() else text), flags.replace("0", "")
    if what in "aA":
        text = _hexadecimal(abs(value), digits, "#" in flags)
        return sign + (text.upper() if what == "A" else text), flags
    alternate = "#" if "#" in flags else ""
    return sign + f"%{alternate}.{6 if digits is None else digits}{what}" % abs(value), flags


def _hexadecimal(value: float, digits: int | None, point: bool) -> str:
    """``%a``: without a precision, as many digits as the value needs; else rounded to nearest even."""
    bits = int(np.float64(value).view(np.uint64))
    exponent, fraction = bits >> 52, bits & ((1 << 52) - 1)
    whole, power = (1, exponent - 1023) if exponent else (0, -1022 if fraction else 0)
    if digits is None:
        text = f"{fraction:013x}".rstrip("0")
    else:
        mantissa = whole << 52 | fraction
        drop = 52 - 4 * min(digits, 13)
        low, mantissa = mantissa & ((1 << drop) - 1), mantissa >> drop
        if low * 2 > 1 << drop or (low * 2 == 1 << drop and low and mantissa & 1):
            mantissa += 1
        whole, kept = mantissa >> (52 - drop), mantissa & ((1 << (52 - drop)) - 1)
        text = (f"{kept:0{(52 - drop) // 4}x}" if drop < 52 else "").ljust(digits, "0")
    return f"0x{whole}{'.' if text or point else ''}{text}p{power:+d}"


def _lanes_of(group: Group) -> list[tuple[int, tuple[int, ...]]]:
    active = group.active()
    threads = np.broadcast_to(group.thread, active.shape)[active]
    places = zip(*(k.tolist() for k in np.nonzero(active)), strict=True)
    return list(zip(threads.tolist(), places, strict=True))


def _string(group: Group, thread: int, address: int) -> str:
    return read_string(group, address, thread) if address else "(null)"


def _vprintf(group: Group, site: CallSite) -> None:
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
        counts[at] = sum(m["what"] != "%" for m in _CONVERSION.finditer(text))
    _return(group, site, counts)


GUARD = "ptxkit::unsupported"
"""The function that a guard of cu/ptxkit/ptx/guard.cuh names when a kernel executes an instruction that its target lacks."""


def _unsupported(group: Group, site: CallSite, message: str) -> str:
    """The ``message`` of a guard (``"wgmma.fence needs sm_90a"``) with the place and the target to use."""
    target = group.wave.launch.code.target
    place = (source_lines(site.where.instruction) or [str(site.where)])[-1]
    wanted = re.search(r"needs (sm_\w+)", message)
    fix = f"; compile for {wanted[1]} (--arch {wanted[1]})" if wanted else ""
    return f"{place}: {message}; the target is {target}{fix}"


def _assertfail(group: Group, site: CallSite) -> None:
    messages, files = _argument(group, site, 0, np.uint64), _argument(group, site, 1, np.uint64)
    lines, functions = _argument(group, site, 2, np.uint32), _argument(group, site, 3, np.uint64)
    thread, at = _lanes_of(group)[0]
    cta, coordinates = group.first(group.active())
    group.wave.flush_output()
    if read_string(group, int(functions[at]), thread) == GUARD:
        raise TrapError(_unsupported(group, site, read_string(group, int(messages[at]), thread)))
    raise TrapError(
        f"{read_string(group, int(files[at]), thread)}:{int(lines[at])}: {read_string(group, int(functions[at]), thread)}: "
        f"thread {coordinates} of CTA {cta}: assertion `{read_string(group, int(messages[at]), thread)}` failed"
    )


MALLOC, FREE = "malloc", "free"

_HEAP = "device malloc"
"""The name of allocations by device code."""


def allocated(launch: LaunchState, sizes: Sequence[int]) -> NDArray[np.uint64]:
    """What malloc returns to threads, in this order, for these sizes in bytes."""
    machine, limit = launch.machine, launch.heap_bytes
    with machine.atomic_lock:
        memory, got, fitting = machine.memory, 0, []
        room = min(limit - memory.heap, memory.capacity - memory.used)
        for n, nbytes in enumerate(sizes):
            if got + nbytes <= room:
                fitting.append((n, nbytes))
                got += nbytes
        found = np.zeros(len(sizes), np.uint64)
        found[[n for n, _ in fitting]] = machine.allocate_all([nbytes for _, nbytes in fitting], _HEAP)
        memory.heap += got
    return found


def _malloc(group: Group, site: CallSite) -> None:
    sizes = _argument(group, site, 0, np.uint64)
    out, active = np.zeros(group.shape, np.uint64), group.active()
    out[active] = allocated(group.wave.launch, sizes[active].tolist())
    _return(group, site, out)


def _what_is_at(group: Group, address: int) -> str:
    memory = group.wave.launch.machine.memory
    owner = memory.owner(address)
    if owner is None:
        return memory.explain(address, 1)
    return f"{address - owner.base} bytes into {label(owner.name, owner.nbytes)}"


def freed(launch: LaunchState, addresses: Sequence[int]) -> bool:
    """Free what threads pass to free; false, and nothing is done, where one of them may not."""
    machine = launch.machine
    with machine.atomic_lock:
        given = [a for a in addresses if a]
        owners = machine.memory.starting_at(given)
        good = all(a is not None and a.nbytes and a.symbol == _HEAP for a in owners) and len(set(given)) == len(given)
        if good:
            machine.memory.free_all(given)
            machine.memory.heap -= sum([a.nbytes for a in owners if a is not None])
    return good


def _free(group: Group, site: CallSite) -> None:
    lanes = _argument(group, site, 0, np.uint64)
    launch = group.wave.launch
    with launch.machine.atomic_lock:
        if freed(launch, lanes[group.active()].tolist()):
            return
        for _, at in _lanes_of(group):
            if address := int(lanes[at]):
                _free_one(group, site, address, at)


def _free_one(group: Group, site: CallSite, address: int, at: tuple[int, ...]) -> None:
    """Free the memory at ``address`` for the lane at the place ``at`` of the group."""
    memory = group.wave.launch.machine.memory
    owner = memory.owner(address)
    if owner is None or owner.base != address or owner.symbol != _HEAP:
        here = np.zeros(group.shape, np.bool_)
        here[at] = True
        cta, thread = group.first(here)
        group.wave.flush_output()
        raise MemoryFault(
            f"{site.where}: thread {thread} of CTA {cta} frees {address:#x}, which is not the start of memory "
            f"that malloc has returned and that has not been freed: {_what_is_at(group, address)}"
        )
    memory.free(address)
    memory.heap -= owner.nbytes


BUILTINS: dict[str, Callable[[Group, CallSite], None]] = {
    "vprintf": _vprintf,
    "__assertfail": _assertfail,
    MALLOC: _malloc,
    FREE: _free,
}
"""The functions by the name under which device code declares them."""

_GRAPH = "part of the device runtime for CUDA graphs, which the emulator does not have: it executes single launches"
_LAUNCH = "part of dynamic parallelism, which the emulator does not have: launch the inner kernel from the host"

NOT_PROVIDED = {
    "cudaGraphSetConditional": _GRAPH,
    "cudaGraphLaunch": _GRAPH,
    "cudaGetCurrentGraphExec": _GRAPH,
    **dict.fromkeys(
        (
            "cudaCGGetIntrinsicHandle",
            "cudaCGSynchronize",
            "cudaDeviceGetAttribute",
            "cudaDeviceSynchronize",
            "__cudaDeviceSynchronizeDeprecationAvoidance",
            "cudaEventRecordWithFlags",
            "cudaFuncGetAttributes",
            "cudaGetDevice",
            "cudaGetErrorString",
            "cudaGetLastError",
            "cudaGetParameterBuffer",
            "cudaGetParameterBufferV2",
            "cudaLaunchDevice",
            "cudaLaunchDeviceV2",
            "cudaMalloc",
            "cudaMemcpyAsync",
            "cudaMemsetAsync",
            "cudaPeekAtLastError",
            "cudaStreamCreateWithFlags",
            "cudaStreamDestroy",
            "cudaStreamWaitEvent",
        ),
        _LAUNCH,
    ),
}
"""Functions of NVIDIA's device runtime (libcudadevrt) that the emulator lacks, and the reasons."""
