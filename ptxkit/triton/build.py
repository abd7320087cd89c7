"""A function of Triton with the types of its parameters and the values of its constants, compiled."""

from __future__ import annotations

import ast
import hashlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from ptxkit.compiler.assemble import written_target
from ptxkit.compiler.elf import Cubin
from ptxkit.compiler.image import Image, shorten
from ptxkit.errors import CompileError, UnavailableError, UsageError
from ptxkit.targets import Target
from ptxkit.triton.module import Function
from ptxkit.triton.recorded import Launch
from ptxkit.triton.types import DIVISOR, ArgumentType, number_type, parse_type, pointer_to
from ptxkit.workload.workload import suggestion

THREADS_PER_WARP = 32
SCRATCH = ("global_scratch", "profile_scratch")
"""The parameters that Triton appends to those of each kernel."""
_NOT_OPTIONS = frozenset({"arch", "backend_name", "extern_libs", "ir_override", "debug", "target"})


@dataclass(frozen=True)
class Signature:
    """What a function is compiled for.

    Attributes:
        types: of the parameters that the kernel takes, in order.
        constants: values of the others.
        options: of the compiler, such as num_warps.
    """

    types: Mapping[str, ArgumentType]
    constants: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Kernel:
    """A compiled function.

    Attributes:
        image: PTX and cubin, both as Triton made them.
        signature: what it was compiled for.
        threads: of a CTA.
        shared: bytes of dynamic shared memory.
        cluster: CTAs of a cluster.
        cooperative: whether all CTAs must be resident at once.
        scratch: bytes for each CTA, of the parameters in :data:`SCRATCH`.
    """

    image: Image
    signature: Signature
    threads: int
    shared: int
    cluster: tuple[int, int, int] | None
    cooperative: bool
    scratch: Mapping[str, int]

    @property
    def entry(self) -> str:
        """The name of the kernel in the PTX."""
        return next(iter(self.image.functions))

    @property
    def parameters(self) -> dict[str, str]:
        """Name -> declaration of each parameter of the kernel in the PTX, in order."""
        named = {n: f"{t.declaration} {n}" for n, t in self.signature.types.items()}
        return {**named, **{n: f"uint8* {n}" for n in self.scratch}}


def signature_of(
    function: Function, launch: Launch | None, given: Mapping[str, str], arguments: Mapping[str, Any] = {}
) -> Signature:
    """The types, constants and options for a compilation, by parameter: from ``given``, else from ``arguments``, else from what
    the file's decorators fix, else from the recorded launch.

    Args:
        launch: the recorded launch; None without one.
        given: name -> a type, a value, or the value of an option, as text.
        arguments: name -> a dtype of numpy for an array, or a number.

    Raises:
        UsageError: a parameter of which neither type nor value is known, or a name that is neither a parameter nor an option.
    """
    names = [p.name for p in function.jit.params]
    options = {**(launch.options if launch else {}), **{n: v for n, v in function.given.items() if n not in names}}
    known = option_names()
    for name, text in given.items():
        if name in names:
            continue
        if name not in known:
            raise UsageError(f"{function.title} has no parameter or option {name!r}; {suggestion(name, [*names, *known])}")
        options[name] = _value(function, name, text)
    types: dict[str, ArgumentType] = {}
    constants: dict[str, Any] = {}
    missing: list[str] = []
    for parameter in function.jit.params:
        name = parameter.name
        found = _of(function, parameter, launch, given, arguments)
        if isinstance(found, ArgumentType):
            types[name] = found
        elif found is _UNKNOWN:
            missing.append(name)
        else:
            constants[name] = found
    if missing:
        raise UsageError(_incomplete(function, missing))
    return Signature(types, constants, options)


_UNKNOWN = object()


def _of(
    function: Function, parameter: Any, launch: Launch | None, given: Mapping[str, str], arguments: Mapping[str, Any]
) -> Any:
    """The type of a parameter, or the value of a constant; ``_UNKNOWN`` if neither is known."""
    name = parameter.name
    if name in given:
        if parameter.is_constexpr:
            return _value(function, name, given[name])
        found = parse_type(given[name])
        return _value(function, name, given[name]) if found is None else found
    if name in arguments:
        value = arguments[name]
        if parameter.is_constexpr:
            if isinstance(value, np.dtype):
                raise UsageError(f"{function.title}: {name} is a constant of the code, not an array; give -D {name}=VALUE")
            return value
        return _typed(function, parameter, value, True)
    if name in function.given:
        value = function.given[name]
        return value if not isinstance(value, str) or parameter.is_constexpr else parse_type(value) or value
    if launch is not None and name in launch.arguments:
        value = launch.arguments[name]
        if parameter.is_constexpr or value is None or isinstance(value, str):
            return value
        if isinstance(value, np.ndarray):
            value = value.dtype
        return _typed(function, parameter, value, launch.same.get(name, name) in launch.divisible)
    if parameter.has_default:
        return parameter.default if parameter.is_constexpr else _typed(function, parameter, parameter.default, False)
    return _UNKNOWN


def _typed(function: Function, parameter: Any, value: Any, divisible: bool) -> Any:
    """The type of an argument, or its value where it becomes a constant."""
    what = f"{function.title}: {parameter.name}"
    if value is None:
        return None
    aligned = not (parameter.do_not_specialize or parameter.do_not_specialize_on_alignment)
    try:
        if isinstance(value, np.dtype):
            return pointer_to(value.name, divisible and aligned)
        found = number_type(value, parameter.annotation_type or "", not parameter.do_not_specialize)
    except UsageError as error:
        raise UsageError(f"{what}: {error}") from None
    return int(value) if found is None else replace(found, divisible=found.divisible and aligned)


def _value(function: Function, name: str, text: str) -> Any:
    """The value that a text stands for: a literal of Python, or a name of the file."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        if text in function.names:
            return function.names[text]
    raise UsageError(
        f"{function.title}: {name}={text} is neither a value of Python nor a name in {function.path}"
        + (f", nor a type such as '*fp32' or 'i32:{DIVISOR}'" if not name.isupper() else "")
    )


def _incomplete(function: Function, missing: list[str]) -> str:
    constant = {p.name for p in function.jit.params if p.is_constexpr}
    example = " ".join(f"-D {n}=128" if n in constant else f"-D '{n}=*fp32'" for n in missing)
    return (
        f"{function.title}: neither types nor values are known of {', '.join(missing)}: give {example}, or define a function "
        f"launch() in {function.path} that launches it, from which ptxkit takes them"
    )


def option_names() -> list[str]:
    """The options of Triton's compiler for NVIDIA GPUs."""
    from triton.backends.nvidia.compiler import CUDAOptions

    return [name for name in CUDAOptions.__dataclass_fields__ if name not in _NOT_OPTIONS]


def compile_function(function: Function, signature: Signature, target: Target) -> Kernel:
    """Compile a function of Triton. Needs no GPU.

    Raises:
        CompileError: Triton refuses it. UnavailableError: this Triton does not know the target.
    """
    from triton.backends.compiler import GPUTarget

    options = {n: v for n, v in signature.options.items() if n in option_names()}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about defaults of later versions of Triton
            made = _compiled(function, signature, GPUTarget("cuda", target.cc, THREADS_PER_WARP), options)
    except Exception as error:
        raise CompileError(shorten(f"{function.title}: Triton cannot compile it for {target}: {_reason(error)}")) from error
    text, metadata = made.asm["ptx"], made.metadata
    cubin = Cubin(made.asm["cubin"], function.title)
    name = metadata.name
    found = written_target(text, function.title)
    if not found.accepts(target) and target != found:
        raise UnavailableError(f"{function.title}: Triton compiles for {found}, not for {target}")
    image = Image(
        found.name,
        text,
        made.asm["cubin"],
        functions={name: cubin.resources(name)},
        source_name=f"{function.title}.ptx",
        sources=(str(function.path.resolve()),),
        key=hashlib.sha256(made.asm["cubin"] + text.encode()).hexdigest(),
    )
    shape = tuple(getattr(metadata, "cluster_dims", None) or (metadata.num_ctas, 1, 1))
    return Kernel(
        image,
        signature,
        threads=metadata.num_warps * THREADS_PER_WARP,
        shared=metadata.shared,
        cluster=(shape[0], shape[1], shape[2]) if prod(shape) > 1 else None,
        cooperative=bool(getattr(metadata, "launch_cooperative_grid", False)),
        scratch={n: int(getattr(metadata, f"{n}_size", 0) or 0) for n in SCRATCH},
    )


def _compiled(function: Function, signature: Signature, target: Any, options: Mapping[str, Any]) -> Any:
    """Triton's compiled kernel."""
    import triton
    from triton.compiler import ASTSource

    order = [p.name for p in function.jit.params]
    constants = {(order.index(n),): v for n, v in signature.constants.items()}
    marks = {(order.index(n),): [["tt.divisibility", DIVISOR]] for n, t in signature.types.items() if t.divisible}
    words = {n: signature.types[n].word if n in signature.types else "constexpr" for n in order}
    source = ASTSource(fn=function.jit, signature=words, constexprs=constants, attrs=marks)
    return triton.compile(source, target=target, options=dict(options))


def _reason(error: BaseException) -> str:
    """The lines of Triton's error that state what is wrong, as one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [line for line in lines if "rror" in line or line.startswith("at ")]
    chosen = (said or lines)[:2] + (lines[-1:] if lines and lines[-1] not in (said or lines)[:2] else [])
    return " ".join([type(error).__name__ + ":", *chosen])
