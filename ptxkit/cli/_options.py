"""Options that several commands share, and what their values mean."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from ptxkit.errors import UnavailableError, UsageError
from ptxkit.runtime import registry as devices

if TYPE_CHECKING:
    from ptxkit.runtime.device import Device
    from ptxkit.targets import Target

Command = TypeVar("Command", bound=Callable[..., Any])


class FiniteNumber(click.FloatRange):
    """A finite number in a range: click's own type accepts ``nan`` and ``inf``."""

    noun = "a finite number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not {self.noun}", param, ctx)
        return number


class Seconds(FiniteNumber):
    """A finite number of seconds."""

    noun = "a number of seconds"


class WholeNumber(click.IntRange):
    """A whole number in a range, which may be written as ``1e9``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str):
            try:
                int(value)
            except ValueError:
                try:
                    number = float(value)
                except ValueError:
                    number = math.nan
                if not (number.is_integer() and abs(number) < 2**53):
                    self.fail(f"{value!r} is not a whole number", param, ctx)
                value = int(number)
        return super().convert(value, param, ctx)


def is_given(name: str) -> bool:
    """Whether the command that is running was given a value for the parameter ``name``, instead of its default."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


device_option = click.option(
    "--device",
    "device_kind",
    type=click.Choice(devices.choices()),
    default=devices.AUTO,
    show_default=True,
    help="Run on this device; auto takes the GPU where there is one, else the emulator.",
)
"""``--device``, which offers the registered devices."""

arch_option = click.option(
    "--arch", metavar="TARGET", help="Compile for this target, such as sm_90a; default: the one of the GPU, or sm_90a."
)
group_option = click.option(
    "--group",
    "groups",
    multiple=True,
    metavar="GROUP",
    help="Take only the kernels of this group (ptxkit list --groups), such as attention; may be given several times.",
)
seed_option = click.option(
    "--seed",
    type=WholeNumber(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="Generate the input data from this seed.",
)
tile_option = click.option(
    "--tile", "tiles", multiple=True, metavar="NAME=VALUE", help="Fix a tile parameter, such as THREADS=256."
)
kernel_option = click.option(
    "--option", "options", multiple=True, metavar="NAME=VALUE", help="Set an option of the kernel (ptxkit list)."
)

_CLUSTER_OPTIONS = (
    click.option(
        "--tls",
        type=click.Path(),
        metavar="DIRECTORY",
        help="Encrypt connections with the keys in DIRECTORY, which `ptxkit cluster keys DIRECTORY` writes.",
    ),
    click.option(
        "--insecure",
        is_flag=True,
        help="Permit connections without TLS to other machines; whoever can connect can then execute code on all of them.",
    ),
)


def renamed_option(old: str, new: str) -> Callable[[Command], Command]:
    """A hidden option that refuses the former name of an option, and names the present one."""

    def refuse(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if value and not ctx.resilient_parsing:
            raise UsageError(f"{old} is called {new} in `{ctx.command_path}`")

    # Its parameter has a name of its own, since click would give the value of a parameter of the same name to both options.
    parameter = "former_" + old.strip("-").replace("-", "_")
    return click.option(old, parameter, hidden=True, expose_value=False, multiple=True, callback=refuse)


cluster_option = click.option(
    "--cluster",
    metavar="ADDRESS",
    help="Compile and measure on the workers of the Dask scheduler at ADDRESS, such as tls://node1:8786; local: on worker "
    "processes of this machine, in the emulator; local-gpus: on all GPUs of this machine.",
)


def on_cluster(command: Command) -> Command:
    """``--cluster`` with :func:`cluster_options`; see :mod:`ptxkit.cli._cluster`."""
    return cluster_option(cluster_options(command))


def cluster_options(command: Command) -> Command:
    """``--tls`` and ``--insecure``, see :func:`ptxkit.cluster.security.endpoint`."""
    for option in reversed(_CLUSTER_OPTIONS):
        command = option(command)
    return command


max_instructions_option = click.option(
    "--max-instructions",
    type=WholeNumber(min=1),
    metavar="N",
    help="Stop a launch in the emulator after N thread instructions and show where its threads are, as for an endless loop.",
)

_EMULATOR_OPTIONS = (
    click.option(
        "--completion",
        type=click.Choice(["eager", "latest-legal", "random"]),
        help="Perform asynchronous copies and matrix products in the emulator when they are issued (default), as late as the "
        "kernel's waits allow, which makes a missing wait visible, or at random points in between.",
    ),
    click.option(
        "--completion-seed",
        type=WholeNumber(min=0),
        metavar="N",
        help="Draw the points of --completion random from this seed, 0 by default; the same seed repeats the run exactly.",
    ),
    click.option(
        "--racecheck",
        is_flag=True,
        help="Check accesses to shared memory in the emulator: a missing __syncthreads or mbarrier wait between warps is an "
        "error that names both accesses. Takes two to four times as long.",
    ),
    click.option(
        "--racecheck-lanes",
        is_flag=True,
        help="Apply --racecheck to the lanes of a warp, too, which finds a missing __syncwarp.",
    ),
    max_instructions_option,
    click.option(
        "--initcheck",
        is_flag=True,
        help="Report the use of shared or global memory that was never initialised, in the emulator. Registers and local "
        "memory are always checked. Takes several times as long.",
    ),
    click.option(
        "--trap",
        metavar="KIND[,KIND...]",
        help="Stop the emulator at the first integer division by zero (div0), NaN (nan) or infinity (inf) that a kernel "
        "produces, such as --trap div0,nan,inf. A GPU does not trap.",
    ),
)


def emulator_options(command: Command) -> Command:
    """Add the options for the checks and limits of the emulator to a command; see :func:`emulator_changes`."""
    for option in reversed(_EMULATOR_OPTIONS):
        command = option(command)
    return command


def emulator_changes(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the emulator that options change.

    Args:
        given: click's parameters, those of :func:`emulator_options` among them or some of these.

    Raises:
        UsageError: a kind of ``--trap`` does not exist.
    """
    changes = {
        name: given[name]
        for name in ("completion", "max_instructions", "initcheck")
        if given.get(name) not in (None, False)
    }
    if given.get("completion_seed") is not None:
        if given["completion"] != "random":
            raise UsageError("--completion-seed applies to --completion random; add it")
        changes["completion_seed"] = given["completion_seed"]
    if given.get("racecheck") or given.get("racecheck_lanes"):
        changes["racecheck"] = "lanes" if given.get("racecheck_lanes") else "warps"
    if given.get("trap") is not None:
        changes["trap"] = parse_traps(given["trap"])
    return changes


def emulator_settings(device: Device, changes: Mapping[str, Any]) -> contextlib.AbstractContextManager[object]:
    """A context in which the emulator has the settings given as options.

    Raises:
        UsageError: the device is a GPU.
    """
    from ptxkit.runtime.device import is_emulating

    if not changes:
        return contextlib.nullcontext()
    if not is_emulating(device):
        option = "--" + next(iter(changes)).replace("_", "-")
        raise UsageError(f"{option} is for the emulator only, and this is {device.name}; add --device emulator")
    return device.settings(**changes)


def parse_traps(text: str) -> tuple[str, ...]:
    """The kinds of ``--trap``.

    Raises:
        UsageError: a kind does not exist, or none is given.
    """
    from ptxkit.emulator.settings import TRAPS

    kinds = tuple(word.strip() for word in text.split(","))
    for kind in kinds:
        if kind not in TRAPS:
            raise UsageError(f"--trap takes {', '.join(TRAPS)}, separated by commas; it cannot be {kind!r}")
    return tuple(dict.fromkeys(kinds))


def parse_arch(arch: str | None) -> Target | None:
    """The target named by ``--arch``.

    Raises:
        UnavailableError: there is no such target; the message names near ones.
    """
    if arch is None:
        return None
    from ptxkit.targets import Target

    try:
        return Target.parse(arch)
    except UsageError as error:
        raise UnavailableError(str(error)) from None


def parse_pairs(pairs: tuple[str, ...], option: str) -> dict[str, str]:
    """``("THREADS=256",)`` -> ``{"THREADS": "256"}``; raises UsageError for anything else."""
    parsed: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals and value):
            raise UsageError(f"{option} takes NAME=VALUE, not {pair!r}")
        if name in parsed:
            raise UsageError(f"{option} {name} is given twice")
        parsed[name] = value
    return parsed


def refuse_options(numbers: Sequence[str]) -> None:
    """Raise UsageError for unknown options, which click passes on among the positional numbers."""
    for word in numbers:
        if word.startswith("-") and not word[1:2].isdigit():
            from ptxkit.cli._text import nearest

            params = click.get_current_context().command.params
            offered = [param for param in params if isinstance(param, click.Option) and not param.hidden]
            known = [name for param in offered for name in param.opts]
            raise click.UsageError(f"no such option {word!r}{nearest(word, known)}")
