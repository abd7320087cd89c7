"""Cases whose results were recorded on a GPU, by a digest of all their words."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np
from texture_programs import Form, numbers, sust, table, tex, texels, tld4, uniform

from ptxkit import Surface, Texture

N = 500
MODES = ("wrap", "clamp", "mirror", "border")
BORDER = (1.5, -2.25, 300.0, 0.7)


@dataclass(frozen=True)
class Case:
    """A form, what it reads or writes, and its rows of words."""

    name: str
    form: Form
    image: Texture | Surface
    rows: np.ndarray


def digest(words: np.ndarray) -> str:
    """A digest of the words that all lanes got."""
    return hashlib.sha256(np.ascontiguousarray(words).tobytes()).hexdigest()[:16]


def _around(seed: int, size: int, normalized: bool) -> np.ndarray:
    """Coordinates within a texture and a little outside, half of them on multiples of 1/512 of a texel."""
    x = uniform(seed, N, -1.5 * size, 2.5 * size) if normalized else uniform(seed, N, -2, size + 2)
    x = np.where(np.arange(N) % 2, x, np.rint(x * 512) / 512)
    return (x / size if normalized else x).astype(np.float32)


def cases() -> Iterator[Case]:
    """All of them."""
    seed = count(1)
    shapes = {"1d": (13,), "2d": (6, 9), "3d": (4, 5, 6), "1d_layered": (3, 13), "2d_layered": (3, 6, 9)}
    geometry = {"1d": "1d", "2d": "2d", "3d": "3d", "1d_layered": "a1d", "2d_layered": "a2d"}
    for kind, shape in shapes.items():
        sizes = shape[::-1] if "layered" not in kind else shape[:0:-1]
        for dtype in ("uint8", "uint16", "int16", "float16", "float32"):
            read = "element" if dtype.startswith("f") else "normalized"
            for k, mode in enumerate(MODES):
                for kernel_filter in ("point", "linear"):
                    if kind == "3d" and dtype.startswith("f") and kernel_filter == "linear":
                        continue  # one in 2000 differs in the last bit; docs/emulator.md, "Textures"
                    normalized = mode in ("wrap", "mirror") or k % 2 == 1
                    columns = [_around(next(seed), n, normalized) for n in sizes]
                    if "layered" in kind:
                        columns.insert(0, numbers(next(seed), N) % 5)
                    image = Texture(
                        texels(next(seed), shape, dtype), kind, address=mode, filter=kernel_filter, normalized=normalized,
                        read=read, border=BORDER if dtype.startswith("f") else (0.0,) * 4,
                    )  # fmt: skip
                    name = f"{kind}.{dtype}.{mode}.{kernel_filter}"
                    yield Case(name, tex(geometry[kind]), image, table(*columns))
    for seamless in (False, True):
        for kernel_filter in ("point", "linear"):
            image = Texture(texels(next(seed), (6, 8, 8), "float32"), "cube", filter=kernel_filter, normalized=True,
                            seamless=seamless)  # fmt: skip
            directions = [uniform(next(seed), N, -1, 1) for _ in range(3)]
            yield Case(f"cube.{kernel_filter}.{seamless}", tex("cube"), image, table(*directions))
    for component in "rgba":
        for mode in MODES:
            image = Texture(
                texels(next(seed), (6, 9, 4), "float32"), channels=4, address=mode, normalized=True, border=BORDER
            )
            columns = [_around(next(seed), n, True) for n in (9, 6)]
            yield Case(f"tld4.{component}.{mode}", tld4(component), image, table(*columns))
    for kernel_filter in ("point", "linear"):
        for between in ("point", "linear"):
            pyramid = texels(next(seed), (341,), "uint16")
            levels = {"shape": (16, 16), "levels": 5, "mip_filter": between, "mip_bias": 0.3, "mip_clamp": (0.4, 3.6)}
            image = Texture(
                pyramid, "2d", normalized=True, read="normalized", filter=kernel_filter, address="mirror", **levels
            )
            columns = [*(_around(next(seed), 16, True) for _ in range(2)), uniform(next(seed), N, -1, 5)]
            yield Case(f"level.{kernel_filter}.{between}", tex("2d", mip="level"), image, table(*columns))
    for result in ("f16", "f16x2"):
        image = Texture(texels(next(seed), (6, 9, 4), "float32"), channels=4, filter="linear")
        yield Case(f"2d.{result}", tex("2d", result), image, table(*(_around(next(seed), n, False) for n in (9, 6))))
    for offset in ((3, -5), (-8, 7)):
        image = Texture(
            texels(next(seed), (6, 9), "float32"), filter="linear", normalized=True, address=("clamp", "wrap")
        )
        yield Case(
            f"offset{offset}", tex("2d", offset=offset), image, table(*(_around(next(seed), n, True) for n in (9, 6)))
        )
    image = Texture(texels(next(seed), (16,), "uint8"), "linear", read="normalized")
    yield Case("linear", tex("1d", real=False), image, table(np.arange(N) - 20))
    image = Texture(texels(next(seed), (6, 8), "float32"), "pitch2d", filter="linear")
    yield Case("pitch2d", tex("2d"), image, table(*(_around(next(seed), n, False) for n in (8, 6))))
    for dtype in ("int8", "uint16", "float16", "float32"):
        values = uniform(next(seed), N, -70000, 70000)
        values = values if dtype.startswith("f") else values.astype(np.int64)
        image = Surface(np.zeros((N, 2), dtype), "1d", channels=2)
        yield Case(f"sust.p.{dtype}", sust("1d", vec="v2", mode="p"), image, table(np.arange(N), values, values[::-1]))
