"""A launch of a Triton function as a call: from arguments on the command line, and from a launch that its file records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from ptxkit.errors import UsageError
from ptxkit.source_run.call import Call, Geometry, make_call
from ptxkit.source_run.entries import CompiledFile
from ptxkit.source_run.grammar import ArgumentText, ArrayText, Initialiser, NullText, ScalarText, Value
from ptxkit.targets import TARGETS, Target
from ptxkit.triton import PREFIX
from ptxkit.triton.build import SCRATCH, Kernel, compile_function, signature_of
from ptxkit.triton.module import Function, find, split_words
from ptxkit.triton.recorded import Launch
from ptxkit.workload.inputs import dtype_of
from ptxkit.workload.workload import suggestion

RECORDED = Initialiser("recorded")
"""The initialiser of an array whose content is that of a recorded launch."""


@dataclass(frozen=True)
class TritonFile:
    """A compiled function of Triton.

    Attributes:
        file: its PTX and cubin as those of a source file.
        function, kernel: what was compiled, and how.
        launch: the recorded launch; None without one.
    """

    file: CompiledFile
    function: Function
    kernel: Kernel
    launch: Launch | None


def compiled(
    words: str, defines: Mapping[str, str], arguments: Sequence[ArgumentText] = (), target: Target | None = None
) -> TritonFile:
    """Compile the function that ``triton:FILE.py:FUNCTION`` names, for the types of arguments.

    Args:
        defines: types, constants and options of the compiler, by name.
        arguments: of a launch; where there is none, those of the recorded launch count.
        target: None for sm_90a.

    Raises:
        UsageError: no such file or function, or types that are not known. UnavailableError: Triton is not installed.
        CompileError: Triton refuses the function.
    """
    named = split_words(words)
    assert named is not None
    function = find(*named)
    launch = function.launches[0] if function.launches else None
    signature = signature_of(function, launch, defines, _examples(function, arguments))
    kernel = compile_function(function, signature, target or TARGETS["sm_90a"])
    file = CompiledFile(function.path, kernel.image, prefix=PREFIX, declared=kernel.parameters)
    return TritonFile(file, function, kernel, launch)


def call_of(
    found: TritonFile,
    arguments: Sequence[ArgumentText],
    geometry: Geometry,
    expected: Mapping[str, str],
    saved: Mapping[str, str],
) -> Call:
    """The launch: with the given arguments, and for others those of the recorded launch.

    Raises:
        UsageError: an argument that is missing or does not fit.
    """
    entry = found.file.entry("")
    launch, types = found.launch, found.kernel.signature.types
    texts = [replace(a, key=_name(found.function, a)) for a in arguments]
    texts = [a for a in texts if a.key not in found.kernel.signature.constants]
    given = {a.key for a in texts}
    contents: dict[str, np.ndarray[Any, Any]] = {}
    for name in types:
        if launch is None or name in given or name not in launch.arguments:
            continue
        value = launch.arguments[name]
        if isinstance(value, np.ndarray) and value.size:
            contents[name] = value if value.ndim else value.reshape(1)
        texts.append(ArgumentText(name, _text(value)))
    grid = geometry.grid or (launch.grid if launch is not None else None)
    if grid is not None and not prod(grid):
        raise UsageError(f"{found.function.title}: the recorded launch has an empty grid {grid}; give --grid")
    kernel = found.kernel
    for name in SCRATCH:
        if name not in given:
            size = kernel.scratch[name] * prod(grid or (1,))
            zeros = ArrayText("uint8", (size,), Initialiser("zeros"))
            texts.append(ArgumentText(name, zeros if size else NullText()))
    launched = replace(
        geometry,
        grid=grid,
        block=geometry.block or (kernel.threads, 1, 1),
        shared=geometry.shared or kernel.shared,
        cluster=geometry.cluster or kernel.cluster,
        cooperative=geometry.cooperative or kernel.cooperative,
    )
    call = make_call(found.file, entry, texts, launched, expected, saved)
    same = {} if launch is None else {n: o for n, o in launch.same.items() if n in contents and o in contents}
    arrays = {n: text for n, text in call.arrays.items() if n not in same}
    values = tuple(same.get(v, v) if isinstance(v, str) else v for v in call.values)
    return replace(call, arrays=arrays, values=values, contents={n: contents[n] for n in arrays if n in contents})


def _text(value: Any) -> Value:
    if isinstance(value, np.ndarray):
        return ArrayText(value.dtype.name, value.shape or (1,), RECORDED) if value.size else NullText()
    if value is None:
        return NullText()
    return ScalarText(value.item() if isinstance(value, np.generic) else value)


def _name(function: Function, argument: ArgumentText) -> str:
    """The parameter of the function that an argument is for; a position counts the parameters of the function."""
    names = [str(p.name) for p in function.jit.params]
    if argument.position is not None and argument.position < len(names):
        return names[argument.position]
    if argument.key in (*names, *SCRATCH):
        return argument.key
    raise UsageError(f"--arg {argument}: {function.title} has no parameter {argument.key!r}; {suggestion(argument.key, names)}")


def _examples(function: Function, arguments: Sequence[ArgumentText]) -> dict[str, Any]:
    """Name -> what Triton derives a type from: the type of an array's elements, or a number."""
    found: dict[str, Any] = {}
    for argument in arguments:
        name, value = _name(function, argument), argument.value
        if isinstance(value, ArrayText):
            if not value.dtype:
                from ptxkit.source_run.arrays import read_npy

                found[name] = read_npy(value.initialiser.file, f"--arg {argument}").dtype
            else:
                found[name] = dtype_of(value.dtype)
        elif isinstance(value, ScalarText):
            number = dtype_of(value.dtype).type(value.value) if value.dtype else value.value
            found[name] = number
        elif not isinstance(value, NullText):  # the type of a null pointer has to be known otherwise
            raise UsageError(f"--arg {argument}: functions of Triton take numbers and arrays")
    return found
