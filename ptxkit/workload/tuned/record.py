"""One measured winner with its provenance, its JSON form, and the class of shapes that it stands for."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any, Literal

Scope = Literal["tile", "variant"]
SCOPES: tuple[Scope, ...] = ("tile", "variant")
EXACT_UP_TO = 16  # sizes up to here are a class each: a batch of 1 and one of 16 take other kernels
PARTS = 4  # classes of each power of two: sizes of a class differ by at most a fifth
ALIGNMENT = 64  # elements: powers of two up to here that divide a size are told apart
LONGEST_US = 1e15  # of a time, about 30 years; larger values are damage, and quotients of them may overflow
MOST_SAMPLES = 1_000_000  # of a time; no command takes more
Scalar = str | int | float | bool


class MalformedError(ValueError):
    """A JSON value that is no record; the message names the key."""


@dataclass(frozen=True)
class Measured:
    """A candidate that was measured beside the winner, in the same session.

    Attributes:
        variant, tile: what was launched. time_us: its median.
    """

    variant: str
    tile: Mapping[str, Scalar]
    time_us: float


@dataclass(frozen=True)
class Record:
    """A winner.

    Attributes:
        kernel: name. sizes, options: of the workload. variant, tile: the winner.
        scope: ``"variant"`` if candidates of several variants were measured (``run --tune``), ``"tile"`` if only tiles of this
            one were (``sweep tiles --apply``).
        time_us, spread_us, samples: median with a cold L2, half the interquartile range, number of samples; None and 0 in
            records of older versions.
        at: time of the measurement, UTC, ISO 8601 with seconds.
        target: compiled for. driver, nvrtc, ptxkit: versions. uuid: of the GPU.
        inputs: hash of source, headers, options and compiler. code: hash of machine code and launch geometry.
        others: what was measured beside it, the fastest first.
    """

    kernel: str
    sizes: Mapping[str, int]
    options: Mapping[str, Scalar]
    variant: str
    tile: Mapping[str, Scalar]
    scope: Scope = "tile"
    time_us: float | None = None
    spread_us: float | None = None
    samples: int = 0
    at: str = ""
    target: str = ""
    driver: str = ""
    nvrtc: str = ""
    ptxkit: str = ""
    uuid: str = ""
    inputs: str = ""
    code: str = ""
    others: tuple[Measured, ...] = field(default=())

    @cached_property
    def key(self) -> str:
        """What the record decides: two records with one key exclude each other.

        Machine code depends on the version of NVRTC, so that winners of several versions stand side by side.
        """
        scope = self.scope if self.scope == "variant" else f"tile of {self.variant}"
        return _canonical([self.kernel, dict(self.sizes), dict(self.options), scope, self.target, self.nvrtc])

    @cached_property
    def text(self) -> str:
        """The record as JSON text that is the same for equal records."""
        return _canonical(self.to_json())

    @property
    def case(self) -> str:
        """The kernel with its sizes and options: ``"rmsnorm rows=4 cols=64 dtype=f32"``."""
        return " ".join([self.kernel, *(f"{k}={v}" for k, v in {**self.sizes, **self.options}.items())])

    @property
    def winner(self) -> str:
        """``"vectorized THREADS=128"``."""
        return " ".join([self.variant, *(f"{k}={v}" for k, v in self.tile.items())])

    def note(self, sizes: Mapping[str, int]) -> str:
        """What to say where the record determines the tile at some sizes: ``"tuned by a sweep"``."""
        by = "by a sweep" if self.scope == "tile" else "by --tune"
        at = "" if dict(self.sizes) == dict(sizes) else f" at {' '.join(f'{k}={v}' for k, v in self.sizes.items())}"
        return f"tuned {by}{at}"

    @property
    def day(self) -> str:
        """The date of the measurement, UTC; "" where it is not known."""
        return moment(self).date().isoformat() if self.at else ""

    @property
    def size_class(self) -> str:
        """The class of its sizes, see :func:`size_class`."""
        return size_class(self.sizes)

    @property
    def incomplete(self) -> str:
        """Why what was measured cannot be compared with the code of today; "" if it can be."""
        missing = "a hash of its machine code" if not self.code else "its target" if not self.target else ""
        return f"it was recorded by an older version, without {missing}" if missing else ""

    def to_json(self) -> dict[str, Any]:
        """The record as JSON values."""
        return {**asdict(self), "others": [asdict(other) for other in self.others]}


def size_class(sizes: Mapping[str, int]) -> str:
    """Sizes for which the same variant and tile are expected to win.

    Two sizes are of one class if they are at most 16 and equal; or if they lie in the same quarter of an octave, so that they
    differ by at most 19%, and are divisible by the same power of two, up to 64. Vectors, boxes of TMA and remainders of tiles
    depend on that divisor.
    """
    return " ".join(f"{name}:{_class_of(value)}" for name, value in sizes.items())


def _class_of(value: int) -> str:
    if value <= EXACT_UP_TO:
        return str(value)
    part = math.floor(PARTS * math.log2(value) + 1e-9)
    return f"2^{part / PARTS:g}/{math.gcd(value, ALIGNMENT)}"


def distance(one: Mapping[str, int], other: Mapping[str, int]) -> float:
    """How much sizes differ: the sum of the logarithms of their ratios."""
    return sum(abs(math.log(one[name] / other[name])) for name in one)


def parsed(value: Any) -> Record:
    """A record from its JSON value; keys that this version does not know are left out.

    Raises:
        MalformedError: a key is missing or has a value of another type or out of range, or text with control characters; the
            message names the key.
    """
    if not isinstance(value, dict):
        raise MalformedError("is no object")
    known = {f.name for f in fields(Record)}
    given = {name: v for name, v in value.items() if name in known}
    for name, each in given.items():
        _expect(name, _is_printable(each))
    for name in ("kernel", "variant"):
        _expect(name, isinstance(given.get(name), str) and given[name])
    for name in ("sizes", "options", "tile"):
        _expect(name, _is_map(given.get(name)))
    _expect("sizes", all(isinstance(v, int) and not isinstance(v, bool) and v >= 1 for v in given["sizes"].values()))
    _expect("scope", given.setdefault("scope", "tile") in SCOPES)
    for name in ("time_us", "spread_us"):
        _expect(name, given.get(name) is None or _is_time(given[name], at_least_0=name == "spread_us"))
    samples = given.setdefault("samples", 0)
    _expect("samples", isinstance(samples, int) and not isinstance(samples, bool) and 0 <= samples <= MOST_SAMPLES)
    for name in ("at", "target", "driver", "nvrtc", "ptxkit", "uuid", "inputs", "code"):
        _expect(name, isinstance(given.setdefault(name, ""), str))
    _expect("at", given["at"] == "" or _moment(given["at"]) is not None)
    given["others"] = tuple(_other(v) for v in _list(given.get("others", [])))
    return Record(**given)


def moment(record: Record) -> datetime.datetime:
    """The time of the measurement; the earliest one where it is not known."""
    return _moment(record.at) or datetime.datetime.min.replace(tzinfo=datetime.UTC)


def _moment(text: str) -> datetime.datetime | None:
    try:
        found = datetime.datetime.fromisoformat(text)
        return found.astimezone(datetime.UTC) if found.tzinfo is not None else None
    except (ValueError, OverflowError):  # the second where it is before the year 1 or after 9999 in UTC
        return None


def _other(value: Any) -> Measured:
    _expect("others", isinstance(value, dict) and isinstance(value.get("variant"), str) and _is_map(value.get("tile")))
    _expect("others", _is_time(value.get("time_us")))
    return Measured(value["variant"], value["tile"], value["time_us"])


def _list(value: Any) -> list[Any]:
    _expect("others", isinstance(value, list))
    return list(value)


def _is_map(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_scalar(v) for v in value.values())


def _is_scalar(value: Any) -> bool:
    return math.isfinite(value) if isinstance(value, float) else isinstance(value, (str, int, bool))


def _is_printable(value: Any) -> bool:
    """Whether all text of a JSON value can be printed: winners of other people could otherwise control a terminal."""
    if isinstance(value, dict):
        return all(_is_printable(name) and _is_printable(each) for name, each in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_printable, value))
    return value.isprintable() if isinstance(value, str) else True


def _is_time(value: Any, *, at_least_0: bool = False) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return (value >= 0 if at_least_0 else value > 0) and value <= LONGEST_US


def _expect(name: str, holds: object) -> None:
    if not holds:
        raise MalformedError(f"has no valid {name!r}")


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
