"""``ptxkit list``: shows the kernels that can be run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ptxkit.cli._kernel import kernel_argument
from ptxkit.cli._options import group_option
from ptxkit.cli._output import stdout_set_aside

if TYPE_CHECKING:
    from ptxkit.workload.workload import Workload


@click.command()
@click.argument("kernels", nargs=-1, shell_complete=kernel_argument, metavar="[KERNEL]...")
@group_option
@click.option(
    "--requires",
    metavar="NAME",
    help="Show only variants that state this feature or target, such as tcgen05 or sm_90a, or a feature that needs the target.",
)
@click.option(
    "--groups", "only_groups", is_flag=True, help="Show the groups and the names of their kernels, nothing else."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def command(
    kernels: tuple[str, ...], groups: tuple[str, ...], requires: str | None, only_groups: bool, as_json: bool
) -> None:
    """Show kernels, their sizes and their variants.

    The list has the default sizes, and the target or features that each variant requires.

    KERNEL: show only these; each is a name, a pattern such as 'attention*', or a description file. Without one, all kernels
    are shown. A group is a family of kernels, such as attention or gemm.
    """
    from ptxkit.cli._kernel import find_kernel
    from ptxkit.cli._text import print_json
    from ptxkit.errors import UsageError
    from ptxkit.targets import rule_of
    from ptxkit.workload import registry

    if requires is not None:
        rule_of(requires)  # an unknown name is refused even where no kernel is left
    with stdout_set_aside():
        described = [describe(find_kernel(name)) for name in registry.selected(kernels, groups)]
    if requires is not None:
        for kernel in described:
            kernel["variants"] = [v for v in kernel["variants"] if needs(v["requires"], requires)]
        described = [kernel for kernel in described if kernel["variants"]]
        if not described:
            raise UsageError(f"no variant of these kernels requires {requires}")
    if only_groups:
        found: dict[str, list[str]] = {}
        for kernel in described:
            found.setdefault(kernel["group"], []).append(kernel["name"])
        print_groups(found, as_json)
        return
    if as_json:
        print_json({"schema": "ptxkit.list/1", "kernels": described})
        return
    for index, kernel in enumerate(described):
        if index:
            click.echo()
        click.echo(text(kernel))


def needs(requirements: Sequence[str], name: str) -> bool:
    """Whether a variant requires a feature or target by name, or a feature that exists on the target of that name."""
    from ptxkit.targets import rule_of

    return name in requirements or any(name in rule_of(requirement) for requirement in requirements)


def print_groups(groups: dict[str, list[str]], as_json: bool) -> None:
    """Print groups with the names of their kernels."""
    from ptxkit.cli._text import print_json, terminal_width
    from ptxkit.columns import hanging

    if as_json:
        print_json({"schema": "ptxkit.list/1", "groups": groups})
        return
    width = max(map(len, groups))
    for group in sorted(groups):
        click.echo(hanging(f"{group:<{width}}  {' '.join(groups[group])}", width + 2, terminal_width()))


def describe(workload: type[Workload]) -> dict[str, Any]:
    """A kernel as JSON values."""
    from ptxkit.workload import registry

    made = workload()
    return {
        "name": workload.name,
        "group": registry.group_of(workload),
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
    """Option name -> its permitted values, for options with a fixed set of values."""
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
        if doc and not doc.startswith(f"{workload.__name__}("):  # generated by dataclass for a class without one
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
