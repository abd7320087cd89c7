"""What to do about errors whose cause the compiler does not state: features of CUDA that a compiler at run time lacks."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ptxkit.compiler.host_code.headers import wheel_of
from ptxkit.errors import CompileError


@dataclass(frozen=True)
class Advice:
    """One cause.

    Attributes:
        pattern: a regular expression of the errors. fix: what to do.
    """

    pattern: str
    fix: str


LAUNCHES = Advice(
    r"device-side kernel launch could not be processed|a kernel launch from __device__ or __global__ functions|"
    r'"cuda(DeviceSynchronize|StreamTailLaunch|StreamFireAndForget|GetParameterBuffer\w*|LaunchDevice\w*)" is '
    r"undefined|cudaGraphSetConditional|cudaGraphLaunch",
    "launch the kernel from the host: the device runtime (cudadevrt) that device-side launches need is not linked",
)
LINKING = Advice(
    r"Unresolved extern (function|variable)|Undefined reference to|Unresolved symbol",
    "another source defines the function or variable; link both: ptxkit.compile([FILE, OTHER])",
)
TEXTURES = Advice(
    r'"?(texture|surface)"? (is undefined|is not a template)|no instance of overloaded function "(tex[123]D|tex2D\w*|tex1D\w*|'
    r'surf[123]D\w*|texCubemap\w*)"|texture references?',
    "texture and surface references were removed in CUDA 12: take a texture object, cudaTextureObject_t, or a surface object, "
    "cudaSurfaceObject_t, as a parameter of the kernel",
)
COROUTINES = Advice(
    r'cannot open source file "coroutine"|co_(await|yield|return)',
    "write the steps as a loop: device code cannot have coroutines",
)
MODULES = Advice(
    r'identifier "import" is undefined|identifier "module" is undefined',
    "include headers instead: NVRTC cannot import modules",
)
GNU = Advice(
    r'identifier "__builtin_\w+" is undefined|'
    r'error: expected an expression[^\n]*\n[^\n]*(\(\s*\{|\?\s*:)|error: expected a ":"[^\n]*\n[^\n]*\bcase\b[^:\n]*\.\.\.',
    "this is a GNU extension, which nvcc takes and NVRTC does not: write the labels of a case range one by one, a function in "
    "place of a statement expression ({ ... }), a ? a : b in place of a ?: b, and a function of CUDA in place of a builtin",
)

ALL = (LAUNCHES, LINKING, TEXTURES, COROUTINES, MODULES, GNU)


def advised(error: CompileError) -> CompileError:
    """The error, with what to do about it where that is known."""
    log = error.log or str(error)
    fixes = [advice.fix for advice in ALL if re.search(advice.pattern, log)]
    absent = re.findall(r'cannot open source file "([^"]+)"', log)
    fixes += [f"pip install {wheel}" for name in absent if (wheel := wheel_of(name))]
    fixes = [fix for fix in dict.fromkeys(fixes) if fix not in str(error)]
    if not fixes:
        return error
    notes = "".join(f"\nnote: {fix}" for fix in fixes)
    return CompileError("; ".join([str(error), *fixes]), f"{error.log}{notes}" if error.log else "")
