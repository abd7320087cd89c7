"""The diagnostics of NVRTC's front end, read out of its log.

They come as ``file(line): error: ...`` with the source line and a caret, among counts and remarks that are dropped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ptxkit.compiler.diagnostics import Diagnostic, SourceText

_FRONT_END = re.compile(
    r"^(?P<file>.+?)\((?P<line>\d+)\): (?:catastrophic )?(?P<severity>error|warning|note)(?: #[\w-]+)?: (?P<message>.*)$"
)
_NOISE = re.compile(
    r"^(\d+ (catastrophic )?errors? detected in the compilation of|Compilation terminated|Remark: |"
    r"Error limit reached|At end of source)"
)
_NO_PLACE = re.compile(r"^nvrtc: (?P<severity>error|warning)\s*: (?P<message>.*)$")
_AT_END = re.compile(r"^At end of source: (?P<severity>error|warning)(?: #[\w-]+)?: (?P<message>.*)$")
_NAME_MAP = "__nv_name_map"  # NVRTC's own pseudo file, where it parses name expressions


def read(log: str, sources: SourceText, names: Sequence[str] = ()) -> list[Diagnostic]:
    """The diagnostics in NVRTC's log, without those of ptxas and without NVRTC's closing lines.

    Args:
        log: as nvrtcGetProgramLog gives it.
        sources: where source lines are read.
        names: the name expressions of the compile, in order, to name the one that does not parse.
    """
    found: list[Diagnostic] = []
    block: list[str] = []
    header: re.Match[str] | None = None

    def close() -> None:
        if header is not None:
            found.append(_front_end_diagnostic(header, block, sources))
        block.clear()

    for line in log.splitlines():
        if line.startswith("ptxas") or (_NOISE.match(line) and not _AT_END.match(line)):
            close()
            header = None
        elif match := (_FRONT_END.match(line) or _AT_END.match(line) or _NO_PLACE.match(line)):
            close()
            header = match
        elif header is not None and line.strip():
            block.append(line)
    close()
    return _with_notes_folded(_name_expressions_named(found, names))


def _front_end_diagnostic(header: re.Match[str], block: list[str], sources: SourceText) -> Diagnostic:
    values = header.groupdict()
    file, number = values.get("file", ""), int(values.get("line") or 0)
    if header.re is _AT_END:
        file, number = sources.end
    column, notes = 0, []
    text = [values["message"]]
    shown: str | None = None
    for index, line in enumerate(block):
        if re.fullmatch(r"\s*\^\s*", line):
            shown = block[index - 1][2:] if index else None
            column = line.index("^") - 1  # the log indents source and caret by two
        elif index + 1 < len(block) and re.fullmatch(r"\s*\^\s*", block[index + 1]):
            continue
        elif column or line.lstrip().startswith("detected during"):
            notes.append(" ".join(line.split()))
        else:
            text.append(line.strip())  # a long message goes over several lines
    source_line = sources.line(file, number) if file != _NAME_MAP else None
    if source_line is None:
        source_line = shown
    elif shown is not None and shown.strip() != source_line.strip():
        column = 0  # the log shows another part of a long or continued line
    severity = values["severity"]
    return Diagnostic(severity, " ".join(text), file, number, column, source_line, tuple(notes))


def _with_notes_folded(diagnostics: list[Diagnostic]) -> list[Diagnostic]:
    folded: list[Diagnostic] = []
    for d in diagnostics:
        if d.severity == "note" and folded:
            last = folded.pop()
            note = (f"{d.file}:{d.line}: " if (d.file, d.line) != (last.file, last.line) else "") + f"note: {d.message}"
            d = Diagnostic(
                last.severity, last.message, last.file, last.line, last.column, last.source_line,
                (*last.notes, note, *d.notes),
            )  # fmt: skip
        folded.append(d)
    return folded


def _name_expressions_named(diagnostics: list[Diagnostic], names: Sequence[str]) -> list[Diagnostic]:
    """Errors in NVRTC's pseudo file, reported as template instantiations that do not exist."""
    out: list[Diagnostic] = []
    seen: dict[str, str] = {}
    for d in diagnostics:
        if d.file != _NAME_MAP:
            out.append(d)
            continue
        shown = (d.source_line or "").strip().removeprefix("#pragma nv_mangled_name").strip()
        expression = next((n for n in names if n.split() == shown.split()), shown)
        if not d.message.startswith("Error in parsing name expression"):
            seen.setdefault(expression, d.message)
        elif expression not in seen:
            seen[expression] = "it does not name a function"
    for expression, reason in seen.items():
        out.append(Diagnostic("error", f"cannot instantiate {expression!r}: {reason}"))
    return out
