"""``ptxkit debug`` on the command line: scripts, JSON, exit codes."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from ptxkit.cli import cli
from ptxkit.errors import PtxkitError

FAULTS = str(Path(__file__).parents[1] / "debugger" / "faults.cu")
LAUNCH = ("--arg", "y=i32[64]:zeros", "--grid", "1", "--block", "64")


def debug(*words, stdin=None):
    return CliRunner().invoke(cli, ["debug", *words], standalone_mode=False, input=stdin)


def test_json_is_one_object():
    result = debug(
        "saxpy", "500", "--json", "--command", "break saxpy.cu:6 thread 7", "--command", "run", "--command", "p x[7]"
    )
    found = json.loads(result.stdout)
    assert found["schema"] == "ptxkit.debug/1"
    assert found["exit_code"] == result.return_value == 0
    broken, stopped, printed = found["commands"]
    assert broken["kind"] == "breakpoint"
    assert (stopped["reason"], stopped["thread"], stopped["line"]) == ("breakpoint", [7, 0, 0], 6)
    assert isinstance(printed["value"], float)


def test_the_end_is_verified():
    result = debug("saxpy", "500", "--command", "run")
    assert "The result is verified." in result.output
    assert result.return_value == 0


def test_a_fault_is_exit_code_5():
    assert debug(f"{FAULTS}:traps", *LAUNCH, "--command", "run", "--command", "p %tid.x").return_value == 5


def test_a_command_in_error_ends_a_script_with_2():
    result = debug("saxpy", "500", "--command", "frobnicate", "--command", "run")
    assert result.return_value == 2
    assert "ended" not in result.output


def test_commands_from_standard_input():
    result = debug(f"{FAULTS}:diverge", *LAUNCH, "--arg", "n=3", stdin="b diverge\nr\np n\n\nq\n")
    assert "n = 3" in result.output
    assert result.return_value == 0


def test_some_of_the_arrays_of_a_source_file_are_compared(tmp_path):
    source = tmp_path / "k.cu"
    source.write_text("__global__ void k(int* a, char* b) { a[threadIdx.x] = 1; b[threadIdx.x] = 2; }")
    np.save(tmp_path / "a.npy", np.ones(64, np.int32))
    np.save(tmp_path / "b.npy", np.full(64, 3, np.int8))
    words = (str(source), "--arg", "a=i32[64]", "--arg", "b=i8[64]", "--grid", "1", "--block", "64", "--command", "run")
    right = debug(*words, "--expect", f"a={tmp_path}/a.npy")
    assert "The result is verified." in right.output and right.return_value == 0
    wrong = debug(*words, "--expect", f"b={tmp_path}/b.npy")
    assert "WRONG RESULT: b[0] is 2" in wrong.output
    within = debug(*words, "--expect", f"b={tmp_path}/b.npy", "--tolerance", "absolute=1")
    assert "The result is verified." in within.output
    assert isinstance(debug(*words, "--tolerance", "absolute=1").exception, PtxkitError)
    assert "verified" not in debug(*words).output


def test_every_option_of_the_emulator_is_an_option_of_debug_and_run():
    from ptxkit.cli import debug as debug_command
    from ptxkit.cli import run as run_command
    from ptxkit.cli._options import _EMULATOR_OPTIONS
    from ptxkit.emulator.settings import EmulatorSettings

    options = [{name for p in c.command.params for name in p.opts} for c in (debug_command, run_command)]
    for name in ("completion", "completion_seed", "racecheck", "max_instructions", "initcheck", "trap"):
        assert name in EmulatorSettings.__dataclass_fields__
        assert all("--" + name.replace("_", "-") in known for known in options)
    assert len(_EMULATOR_OPTIONS) == 7


@pytest.mark.parametrize(
    ("entry", "option", "message"),
    [
        ("spins", ("--max-instructions", "5000"), "stopped by max_instructions"),
        ("divides", ("--trap", "div0"), "divides an integer by zero"),
        ("unwritten", ("--initcheck",), "never initialised"),
    ],
)
def test_the_limits_and_checks_of_the_emulator_stop_the_debugger(tmp_path, entry, option, message):
    source = tmp_path / "k.cu"
    source.write_text("""
extern "C" __global__ void spins(volatile int* y) { while (y[0] == 0) y[1] = y[1] + 1; }
extern "C" __global__ void divides(int* y) { y[threadIdx.x] = 7 / y[threadIdx.x]; }
extern "C" __global__ void unwritten(int* y) { __shared__ int s[64]; y[threadIdx.x] = s[threadIdx.x]; }
""")
    result = debug(f"{source}:{entry}", *LAUNCH, *option, "--command", "run", "--command", "p %tid.x")
    assert message in result.output
    assert result.return_value == 5


def test_command_file(tmp_path):
    script = tmp_path / "script"
    script.write_text("# a comment\nstart\np n\n")
    assert "n = 500" in debug("saxpy", "500", "-x", str(script)).output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("saxpy", "500", "-x", "/nothing/here"), "cannot read the --command-file"),
        (("saxpy", "500", "--thread", "a"), "number or x,y,z"),
        (("saxpy", "500", "--thread", "2000"), "no thread 2000"),
        (("saxpy", "500", "--break", "nothing"), "no function"),
        (("saxpy", "500", "--variant", "nothing"), "no variant"),
        (("saxpy", "500", "--tile", "NOTHING=3"), "no tile parameter"),
        (("saxpy", "500", "--grid", "3"), "--grid is for source files"),
        ((FAULTS + ":traps", *LAUNCH, "--tile", "A=3"), "--tile is for kernels with a description"),
        ((FAULTS + ":traps", "12", *LAUNCH), "takes no sizes"),
    ],
)
def test_bad_words(words, message):
    result = debug(*words, "--command", "run")
    assert isinstance(result.exception, PtxkitError)
    assert message in str(result.exception)
