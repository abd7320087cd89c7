"""Numbers for display: with an SI prefix, a unit, and only significant digits."""

from __future__ import annotations

SI = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def quantity(value: float, unit: str = "") -> str:
    """Three significant digits with an SI prefix: ``quantity(4194304, "B") == "4.19 MB"``."""
    for scale, prefix in SI:
        if abs(value) >= 0.9995 * scale:
            return f"{value / scale:.3g} {prefix}{unit}".rstrip()
    return f"{value:.3g} {unit}".rstrip()


def time_text(time_us: float) -> str:
    """A time with four significant digits in a suitable unit."""
    return f"{time_us / 1000:.4g} ms" if time_us >= 1000 else f"{time_us:.4g} us"


def optional(value: float | None, spec: str, unit: str = "") -> str:
    """A formatted number, or a dash for None."""
    return "-" if value is None else f"{value:{spec}}{unit}"
