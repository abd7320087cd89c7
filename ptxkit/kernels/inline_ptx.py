"""inline_ptx: examples of inline PTX in nine steps, each compared with the same computation in CUDA C++.

Every variant computes every output; they differ in the instructions that they may use. ``cu/kernels/inline_ptx.cu`` explains
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ptxkit import Launch, TensorMap, Tolerance, Work, Workload, uniform, variant
from ptxkit.workload.inputs import dtype_of

THREADS = 256
PRODUCT = (128, 16, 16)
"""Rows, columns and depth of a product."""

Step = tuple[str, int, tuple[object, ...]]
"""A kernel, the number of elements per thread, and its arguments."""

PLAIN: Mapping[str, tuple[Step, ...]] = {
    "stream": (("stream_plain", 1, ("x", "y", "streamed")),),
    "swap": (("swap_plain", 1, ("a", "swapped")),),
    "blend": (("blend_plain", 1, ("a", "b", "c", "blended", "majority")),),
    "relu": (
        ("relu_plain<f16>", 1, ("u16", "v16", "relu16")),
        ("relu_plain<bf16>", 1, ("ub16", "vb16", "relub16")),
    ),
    "reduce": (("reduce_plain", 1, ("a", "x", "sums", "peaks")),),
    "vote": (("vote_plain", 1, ("x", "y", "ballots")),),
    "reverse": (("reverse_plain", 1, ("x", "reversed")),),
    "chain": (("double_plain", 1, ("x", "twice")), ("add_plain", 1, ("twice", "y", "sum"))),
    "product": (("product_plain", 8, ("p", "q", "product")),),
}
"""Step -> its launches in CUDA C++."""

PTX = {
    **PLAIN,
    "stream": (("stream_ptx", 4, ("x", "y", "streamed")),),
    "swap": (("swap_ptx", 1, ("a", "swapped")),),
    "blend": (("blend_ptx", 1, ("a", "b", "c", "blended", "majority")),),
    "relu": (("relu_f16_ptx", 2, ("u16", "v16", "relu16")), ("relu_bf16_ptx", 2, ("ub16", "vb16", "relub16"))),
    "reduce": (("reduce_ptx", 1, ("a", "x", "sums", "peaks")),),
    "vote": (("vote_ptx", 1, ("x", "y", "ballots")),),
}
"""With the instructions of sm_80, except cp.async."""

HOPPER = {
    **PTX,
    "vote": (("vote_sm90", 1, ("x", "y", "ballots")),),
    "chain": (("double_sm90", 1, ("x", "twice")), ("add_sm90", 1, ("twice", "y", "sum"))),
}

BLACKWELL = {
    **HOPPER,
    "stream": (("stream_sm100", 8, ("x", "y", "streamed")),),
    "reduce": (("reduce_sm100a", 1, ("a", "x", "sums", "peaks")),),
}

TCGEN05 = {
    **BLACKWELL,
    "product": (
        (
            "product_sm100a",
            8,
            (
                TensorMap("p", box=(PRODUCT[0], PRODUCT[2]), swizzle="32B"),
                TensorMap("q", box=(PRODUCT[1], PRODUCT[2]), swizzle="32B"),
                "product",
            ),
        ),
    ),
}


class InlinePtx(Workload):
    """Nine steps: cache hints, prmt, lop3, packed halves, redux, elect, cp.async, griddepcontrol, tcgen05."""

    source = "inline_ptx.cu"
    n: int = 1 << 22
    emulator_sizes = {"n": 1 << 13}
    tolerance = Tolerance(ulp=0.501)  # all results are exact or rounded once

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        words = {name: rng.integers(0, 2**32, self.n, np.uint32) for name in "abc"}
        floats = {name: uniform(rng, self.n) for name in "xy"}
        halves = {name: uniform(rng, self.n, "f16") for name in ("u16", "v16")}
        halves |= {name: uniform(rng, self.n, "bf16") for name in ("ub16", "vb16")}
        _, cols, depth = PRODUCT
        rows = {"p": self.n // cols, "q": self.n // PRODUCT[0]}  # small integers, whose products have exact sums
        integers = {name: rng.integers(-8, 9, (count, depth)).astype(dtype_of("bf16")) for name, count in rows.items()}
        return words | floats | halves | integers

    def reference(self, **inputs: np.ndarray[Any, Any]) -> dict[str, Any]:
        a, b, c = (inputs[name] for name in "abc")
        x, y, u, v, ub, vb = (inputs[name].astype(np.float64) for name in ("x", "y", "u16", "v16", "ub16", "vb16"))
        rows, cols, depth = PRODUCT
        p, q = (inputs[name].astype(np.float64).reshape(-1, r, depth) for name, r in (("p", rows), ("q", cols)))
        return {
            "streamed": x * y + x,
            "swapped": a.byteswap(),
            "blended": (a & b) | (~a & c),
            "majority": (a & b) | (a & c) | (b & c),
            "relu16": np.maximum(u * v + u, 0),
            "relub16": np.maximum(ub * vb + ub, 0),
            "sums": a.reshape(-1, 32).sum(1, dtype=np.uint32),
            "peaks": np.abs(x).reshape(-1, 32).max(1),
            "ballots": np.packbits((x > y).reshape(-1, 32), axis=1, bitorder="little").view("<u4").reshape(-1),
            "reversed": x.reshape(-1, THREADS)[:, ::-1].reshape(-1),
            "sum": 2 * x + y,
            "product": (p @ q.transpose(0, 2, 1)).reshape(-1),
        }

    def outputs(self) -> Mapping[str, Any]:
        n, warps = self.n, self.n // 32
        words = dict.fromkeys(("swapped", "blended", "majority"), (n, "u32"))
        floats = dict.fromkeys(("streamed", "reversed", "sum", "product"), (n, "f32"))
        halves = {"relu16": (n, "f16"), "relub16": (n, "bf16")}
        return words | floats | halves | {"sums": (warps, "u32"), "peaks": (warps, "f32"), "ballots": (warps, "u32")}

    def temporaries(self) -> Mapping[str, Any]:
        return {"twice": (self.n, "f32")}

    def work(self) -> Work:
        # stream 12, swap 8, blend 20, relu 2 * 6, reduce 8, vote 8, reverse 8, chain 12, product 6.25; and 3 words per warp
        bytes = 94 * self.n + self.n // 4 + 12 * self.n // 32
        return Work(flops=(2 + 2 * 2 + 2 + 2 * PRODUCT[2]) * self.n, bytes=bytes)

    def constraints(self) -> Iterable[str]:
        if self.n % (8 * THREADS):
            yield f"n must be a multiple of {8 * THREADS}, the elements of a CTA with eight per thread"

    def launches(self, steps: Mapping[str, tuple[Step, ...]]) -> list[Launch]:
        """The launches of all steps, in order."""
        return [
            Launch(kernel.split("<")[0], self.n // (THREADS * each), THREADS, args, template=_template(kernel))
            for step in steps.values()
            for kernel, each, args in step
        ]

    @variant(requires=["bf16"])
    def plain(self) -> list[Launch]:
        """CUDA C++ only."""
        return self.launches(PLAIN)

    @variant(requires=["sm_80"])
    def ptx(self) -> list[Launch]:
        """Cache hints, prmt, lop3, packed halves, redux, ballot."""
        return self.launches(PTX)

    @variant(requires=["cp.async"])
    def async_copy(self) -> list[Launch]:
        """As ptx, and cp.async."""
        return self.launches({**PTX, "reverse": (("reverse_async", 1, ("x", "reversed")),)})

    @variant(requires=["elect", "griddepcontrol"])
    def hopper(self) -> list[Launch]:
        """As async_copy, and elect and griddepcontrol of sm_90."""
        return self.launches(HOPPER)

    @variant(requires=["f32x2", "ld.256", "redux.f32"])
    def blackwell(self) -> list[Launch]:
        """As hopper, and 256-bit loads and f32x2 of sm_100, redux on f32 of sm_100a."""
        return self.launches(BLACKWELL)

    @variant(requires=["tcgen05", "f32x2", "ld.256", "redux.f32"])
    def tcgen05(self) -> list[Launch]:
        """As blackwell, and a product by tcgen05 in tensor memory, with TMA loads."""
        return self.launches(TCGEN05)


def _template(kernel: str) -> tuple[str, ...]:
    """``relu_plain<f16>`` -> ``("f16",)``."""
    return tuple(kernel[kernel.index("<") + 1 : -1].split(", ")) if "<" in kernel else ()
