"""``ptxkit list``: the kernels that can be run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ptxkit.cli._kernel import kernel_argument
from ptxkit.cli._output import stdout_set_aside

if TYPE_CHECKING:
    from ptxkit.workload.workload import Workload


@click.command()
@click.argument("kernels", nargs=-1, shell_complete=kernel_argument, metavar="[KERNEL]...")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(kernels: tuple[str, ...], as_json: bool) -> None:
    """Show kernels, their sizes with defaults, and their variants with what each requires.

    KERNEL: only these; a name or a description file. Everything if left out.
    """
    from ptxkit.cli._kernel import find_kernel
    from ptxkit.cli._text import print_json
    from ptxkit.workload import registry

    with stdout_set_aside():
        described = [describe(find_kernel(name)) for name in (kernels or registry.names())]
    if as_json:
        print_json({"schema": "ptxkit.list/1", "kernels": described})
        return
    for index, kernel in enumerate(described):
        if index:
            click.echo()
        click.echo(text(kernel))


def describe(workload: type[Workload]) -> dict[str, Any]:
    """A kernel as JSON values."""
    made = workload()
    return {
        "name": workload.name,
        "summary": summary(workload),
        "source": workload.source,
        "sizes": made.sizes,
        "emulator_sizes": {**made.sizes, **workload.emulator_sizes},
        "options": made.options,
        "choices": choices(workload),
        "variants": [
            {
                "name": variant.name,
                "summary": variant.description,
                "requires": list(variant.requires),
                "tile": {name: list(values) for name, values in variant.tile.items()},
            }
            for variant in workload.variants().values()
        ],
    }


def choices(workload: type[Workload]) -> dict[str, list[Any]]:
    """Option name -> the values it may have, for options with a fixed set of them."""
    from typing import Literal, get_args, get_origin

    found: dict[str, list[Any]] = {}
    for name, kind in workload.option_types().items():
        if get_origin(kind) is Literal:
            found[name] = list(get_args(kind))
        elif kind is bool:
            found[name] = [False, True]
    return found


def option_text(name: str, value: Any, offered: list[Any] | None) -> str:
    """``"dtype=f32 (f32|f16|bf16)"``: an option's default, and its choices where they are fixed."""

    def written(item: Any) -> str:
        return str(item).lower() if isinstance(item, bool) else str(item)

    text = f"{name}={written(value)}"
    return f"{text} ({'|'.join(map(written, offered))})" if offered else text


def summary(workload: type[Workload]) -> str:
    """First line of the class's docstring or of its file's, without the kernel's name in front."""
    import sys

    documented = (workload.__doc__, getattr(sys.modules.get(workload.__module__), "__doc__", None))
    for doc in documented:
        if doc and not doc.startswith(f"{workload.__name__}("):  # what dataclass writes when there is none
            line: str = doc.strip().split("\n", 1)[0].removesuffix(".")
            return line.removeprefix(f"{workload.name}: ")
    return ""


def text(kernel: dict[str, Any]) -> str:
    """A kernel as lines of text."""
    from ptxkit.cli._text import styled, terminal_width
    from ptxkit.columns import hanging

    sizes = sizes_text(kernel["sizes"])
    if kernel["emulator_sizes"] != kernel["sizes"]:
        sizes += f" (emulator: {sizes_text(kernel['emulator_sizes'])})"
    lines = [f"{styled(kernel['name'], bold=True)}  {sizes}", f"  {kernel['summary']}"]
    if kernel["options"]:
        lines.append(
            "  options: " + "  ".join(option_text(n, v, kernel["choices"].get(n)) for n, v in kernel["options"].items())
        )
    width = max(len(variant["name"]) for variant in kernel["variants"])
    for variant in kernel["variants"]:
        lines.append(f"    {variant['name']:<{width}}  {variant['summary']}")
        tile = " ".join(f"{name}={'|'.join(map(str, values))}" for name, values in variant["tile"].items())
        for what, value in (("requires", ", ".join(variant["requires"])), ("tile", tile)):
            if value:
                lines.append(f"    {'':<{width}}  {what} {value}")
    shown = terminal_width()
    return "\n".join(hanging(line.rstrip(), 4 + width + 2 if line.startswith("    ") else 2, shown) for line in lines)


def sizes_text(sizes: dict[str, int]) -> str:
    """``"ROWS=128 COLS=4096"``."""
    return " ".join(f"{name.upper()}={value}" for name, value in sizes.items())
