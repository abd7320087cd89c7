"""One self-contained HTML page for some kernels: source, PTX and SASS side by side, linked through the line tables.

The page loads nothing: style, script and data are in it, and its content security policy names the hashes of the first two.
The data is the document of :mod:`ptxkit.inspect.report` with, for each kernel, the source of every PTX line and the
emulator's counts for every line of PTX and source (:mod:`ptxkit.inspect.heat`).
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ptxkit.inspect.heat import heat_of, ptx_sources
from ptxkit.inspect.report import document
from ptxkit.inspect.subject import Subject

PARTS = Path(__file__).parent / "page"


def page(subjects: Sequence[Subject], *, heat: bool = True) -> str:
    """The page's text.

    Args:
        subjects: the kernels that can be chosen on it, in order.
        heat: run variants in the emulator, at their emulator sizes, for the counts of each line.
    """
    value = document(subjects)
    for kernel, subject in zip(value["kernels"], subjects, strict=True):
        first, last = kernel["ptx_lines"] or (1, 0)
        kernel["ptx_first"] = first
        kernel["ptx_sources"] = ptx_sources(subject.function.ptx)[first - 1 : last]
        kernel["heat"], kernel["heat_note"] = heat_of(subject) if heat else (None, "not counted")
    style, script = ((PARTS / f"page.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    template = string.Template((PARTS / "page.html").read_text(encoding="utf-8"))
    titles = ", ".join(dict.fromkeys(s.title for s in subjects))
    return template.substitute(
        title=html.escape(f"{titles} - ptxkit inspect"),
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        data=embedded(value),
    )


def embedded(value: Any) -> str:
    """JSON that is safe inside a script element: no text in it can end the element or begin a comment."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"sha256-{digest}"
