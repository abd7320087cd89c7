"""Write docs/api.md from the docstrings of the public names, and the table of docs/environment.md.

::

    python scripts/write_api.py            # writes both pages
    python scripts/write_api.py --check    # exits with 1 where one of them is not up to date
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ptxkit
import ptxkit.errors
import ptxkit.testing
from ptxkit import environment

DOCS = Path(__file__).resolve().parents[1] / "docs"
HEAD = """# Python API

This page is written by `scripts/write_api.py` from the docstrings; edit those. It covers the names of `ptxkit`, of
`ptxkit.testing`, and the errors. `ptxkit` imports each name when it is first used, so `import ptxkit` itself is quick.
"""


def page() -> str:
    """The text of docs/api.md."""
    names = sorted(ptxkit._HOMES, key=str.lower)
    parts = [HEAD, "## ptxkit\n", *(entry(f"ptxkit.{name}", getattr(ptxkit, name)) for name in names)]
    parts += ["## ptxkit.testing\n", text_of(ptxkit.testing), ""]
    parts += [entry(f"ptxkit.testing.{name}", value) for name, value in own(ptxkit.testing)]
    parts += ["## ptxkit.errors\n", text_of(ptxkit.errors), ""]
    parts += [entry(f"ptxkit.errors.{name}", value, methods=False) for name, value in own(ptxkit.errors)]
    return "\n".join(parts).rstrip() + "\n"


def own(module: Any) -> Iterator[tuple[str, Any]]:
    """Public functions and classes that a module or package defines, in their order."""
    for name, value in vars(module).items():
        if not name.startswith("_") and getattr(value, "__module__", "").startswith(module.__name__) and callable(value):
            yield name, value


def entry(title: str, value: Any, *, methods: bool = True) -> str:
    """One name with its signature, its docstring, and the documented methods of a class."""
    lines = [f"### {title}\n", f"```python\n{signature(title.rpartition('.')[2], value)}\n```\n", text_of(value), ""]
    for name, member in members(value) if inspect.isclass(value) and methods else ():
        if isinstance(member, property):
            lines += [f"#### {name}\n", text_of(member.fget), ""]
        else:
            lines += [f"#### {name}\n", f"```python\n{signature(name, member)}\n```\n", text_of(member), ""]
    return "\n".join(lines)


def members(value: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties of a class with a docstring, those of its bases in this package included."""
    seen = set()
    for base in value.__mro__:
        if not base.__module__.startswith("ptxkit."):
            continue
        for name, member in vars(base).items():
            plain = getattr(member, "__func__", member)
            if name.startswith("_") or name in seen or not (inspect.isfunction(plain) or isinstance(plain, property)):
                continue
            seen.add(name)
            if inspect.getdoc(plain):
                yield name, plain


def signature(name: str, value: Any) -> str:
    """``name(arguments) -> result``, with an address in a default left out."""
    if inspect.isclass(value) and issubclass(value, BaseException):
        return f"class {name}({value.__base__.__name__})"
    try:
        found = str(inspect.signature(value))
    except (TypeError, ValueError):
        found = ""
    found = re.sub(r"(: |-> )'([^']*)'", r"\1\2", found)  # annotations are strings
    text = re.sub(r" at 0x[0-9a-f]+", "", f"{'class ' if inspect.isclass(value) else ''}{name}{found}")
    return text if len(text) <= 100 else wrapped(text)


def wrapped(text: str) -> str:
    """A long signature with one argument on each line."""
    name, _, rest = text.partition("(")
    inside, _, result = rest.rpartition(")")
    parts, depth = [""], 0
    for c in inside:
        depth += {"[": 1, "(": 1, "]": -1, ")": -1}.get(c, 0)
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return f"{name}(\n" + "".join(f"    {part.strip()},\n" for part in parts) + f"){result}"


def text_of(value: Any) -> str:
    """A docstring as Markdown: roles become code, ``::`` blocks fenced code, sections of arguments lists."""
    text = inspect.getdoc(value) or ""
    if not inspect.ismodule(value) and text.startswith(f"{getattr(value, '__name__', '')}("):
        return ""  # what dataclasses make up where there is no docstring
    text = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", text).replace("``", "`")
    out: list[str] = []
    lines = text.split("\n")
    i = 0
    while i < len(lines):
        line = lines[i]
        if line.rstrip().endswith("::"):
            out += [line.rstrip().removesuffix("::").rstrip() + (":" if line.strip() != "::" else ""), "```"]
            i += 1
            block = []
            while i < len(lines) and (not lines[i].strip() or lines[i].startswith(" ")):
                block.append(lines[i])
                i += 1
            out += [*inspect.cleandoc("\n" + "\n".join(block)).strip("\n").split("\n"), "```", ""]
            continue
        if match := re.fullmatch(r"(Args|Attributes|Class attributes|Returns|Raises):", line):
            out += [f"**{match[1]}**", ""]
            i += 1
            while i < len(lines) and (not lines[i].strip() or lines[i].startswith("    ")):
                item = lines[i]
                out.append(f"- {item.strip()}" if re.match(r" {4}\S", item) else f"  {item.strip()}".rstrip())
                i += 1
            continue
        out.append(line)
        i += 1
    return re.sub(r"\n{3,}", "\n\n", "\n".join(out)).strip()


def environment_page(text: str) -> str:
    """docs/environment.md with the present table."""
    return text.split("| Variable |")[0].rstrip() + "\n\n" + environment.table() + "\n"


def main() -> int:
    """Write the pages, or compare them."""
    api, variables = DOCS / "api.md", DOCS / "environment.md"
    wanted = {api: page(), variables: environment_page(variables.read_text(encoding="utf-8"))}
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path} is not up to date; run: python scripts/write_api.py")
        return int(bool(stale))
    for path in stale:
        path.write_text(wanted[path], encoding="utf-8")
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
