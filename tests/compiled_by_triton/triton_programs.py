"""Programs that Triton compiles for sm_100a without a GPU, or that it has compiled: the PTX and what a launch needs.

``python tests/compiled_by_triton/triton_programs.py`` writes the stored ones again.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

STORED = Path(__file__).parent / "stored"

POINTERS = {"a": "*fp16", "b": "*fp16", "c": "*fp16"}
SIZES = {"m": "i32", "n": "i32", "k": "i32"}
TILE = {"PROGRAMS": 2, "BM": 128, "BN": 64, "BK": 64}
MAPS = {"a": "tensordesc<fp16[128, 64]>", "b": "tensordesc<fp16[64, 64]>", "c": "tensordesc<fp16[128, 64]>"}
QKVO = dict.fromkeys("qkvo", "*fp16") | {"n": "i32", "scale": "fp32"}
SCALED = {"a_scale": "*u8", "b_scale": "*u8", "c": "*fp32", "n": "i32", "k": "i32"}
SCALED_TILE = {"BM": 128, "BN": 64, "BK": 128}

CASES: dict[str, tuple[str, dict[str, str], dict[str, Any]]] = {
    "matmul": ("matmul", MAPS | SIZES, TILE),
    "matmul_specialized": ("matmul_specialized", POINTERS | SIZES, TILE),
    "mxfp8": (
        "scaled_matmul",
        {"a": "*fp8e4nv", "b": "*fp8e4nv"} | SCALED,
        SCALED_TILE | {"FORMAT": "e4m3", "PACKED": 1},
    ),
    "mxfp4": ("scaled_matmul", {"a": "*u8", "b": "*u8"} | SCALED, SCALED_TILE | {"FORMAT": "e2m1", "PACKED": 2}),
    "attention": ("attention", QKVO, {"D": 64, "BM": 128, "BN": 64, "CAUSAL": False}),
    "attention_causal": ("attention", QKVO, {"D": 64, "BM": 128, "BN": 64, "CAUSAL": True}),
}
"""Name -> kernel, types of its arguments, constants."""


@dataclass(frozen=True)
class Program:
    """What Triton makes of a kernel.

    Attributes:
        ptx: its text.
        name: of the kernel.
        threads: in a CTA.
        shared: bytes of dynamic shared memory.
        scratch: bytes of global memory for each CTA, the kernel's last parameter but one.
        swizzles: of the tensor descriptors that the host makes, in bytes, in the order of the parameters.
        version: of Triton.
    """

    ptx: str
    name: str
    threads: int
    shared: int
    scratch: int
    swizzles: tuple[int, ...]
    version: str


def compiled(case: str) -> Program:
    """Have Triton compile a case.

    Raises:
        ImportError: there is no Triton.
    """
    import triton
    import triton_sources
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel, types, constants = CASES[case]
    function = getattr(triton_sources, kernel)
    names = function.arg_names
    aligned = {(names.index(n),): [["tt.divisibility", 16]] for n, t in types.items() if t[0] == "*" or n in "nk"}
    source = ASTSource(
        fn=function,
        signature={n: types.get(n, "constexpr") for n in names},
        constexprs={(names.index(n),): value for n, value in constants.items()},
        attrs=aligned,
    )
    with triton.knobs.compilation.scope():
        triton.knobs.compilation.disable_line_info = True
        made = triton.compile(source, target=GPUTarget("cuda", 100, 32))
    ptx = made.asm["ptx"]
    return Program(
        ptx="\n".join(line.rstrip() for line in ptx.splitlines()) + "\n",
        name=made.metadata.name,
        threads=int(ptx.partition(".reqntid ")[2].split()[0]),
        shared=made.metadata.shared,
        scratch=made.metadata.global_scratch_size,
        swizzles=tuple((0, 32, 64, 128)[m["swizzle"]] for m in made.metadata.tensordesc_meta or ()),
        version=triton.__version__,
    )


def stored(case: str) -> Program:
    """A program from :data:`STORED`."""
    given = json.loads((STORED / f"{case}.json").read_text())
    return Program(ptx=(STORED / f"{case}.ptx").read_text(), **given | {"swizzles": tuple(given["swizzles"])})


def write(case: str) -> None:
    """Compile a case and store it."""
    fields = asdict(compiled(case))
    (STORED / f"{case}.ptx").write_text(fields.pop("ptx"))
    (STORED / f"{case}.json").write_text(json.dumps(fields, indent=1) + "\n")


if __name__ == "__main__":
    for name in ("matmul", "mxfp8"):
        write(name)
