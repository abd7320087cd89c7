"""Arguments of ``ptxkit run`` that are refused before anything is compiled."""

from __future__ import annotations

import os
import sys

import pytest

from ptxkit import cli
from ptxkit.cli.run import split_numbers, stdout_set_aside
from ptxkit.errors import UsageError
from ptxkit.quantities import quantity, time_text


def exit_of(*args):
    with pytest.raises(SystemExit) as stopped:
        cli.main(list(args))
    return stopped.value.code


REFUSED = [
    ("fused_l2norn 128 4096", 2, "did you mean 'fused_l2norm'?"),
    ("fused_l2norm abc 4096", 2, "rows must be a whole number, not 'abc'"),
    ("fused_l2norm 12.5 4096", 2, "rows must be a whole number"),
    ("fused_l2norm 0 4096", 2, "rows must be at least 1, not 0"),
    ("fused_l2norm 128 -5", 2, "cols must be at least 1, not -5"),
    ("fused_l2norm 128 99999999999999999999999", 2, "cols must be at most"),
    ("fused_l2norm 128", 2, "ROWS COLS"),
    ("fused_l2norm 1 2 3 4", 2, "too many"),
    ("fused_l2norm 1 2 x", 2, "ITERATIONS must be a whole number, not 'x'"),
    ("fused_l2norm 1 2 0", 2, "ITERATIONS must be between"),
    ("fused_l2norm 1 2 -3", 2, "ITERATIONS must be between"),
    ("fused_l2norm 4 4 --arch sm_91", 3, "sm_90"),
    ("fused_l2norm 4 4 --arch nonsense", 3, "nonsense"),
    ("fused_l2norm 4 4 --variant fusd", 2, "did you mean 'fused' or 'unfused'?"),
    ("fused_l2norm 4 4 --device tpu", 2, "tpu"),
    ("fused_l2norm 4 4 --seed -1", 2, "seed"),
    ("fused_l2norm 4 4 --tile THREADS", 2, "--tile takes NAME=VALUE, not 'THREADS'"),
    ("fused_l2norm 4 4 --tile A=1 --tile A=2", 2, "given twice"),
    ("fused_l2norm 4 4 --device emulator --variant vectorized --tile THREADS=77", 2, "THREADS=77"),
    ("fused_l2norm 4 4 --device emulator --variant vectorized --tile NOPE=77", 2, "NOPE"),
    ("fused_l2norm 4 4 --device emulator --tile NOPE=77", 2, "NOPE"),
    ("fused_l2norm 4 4 --option nope=1", 2, "nope"),
    ("fused_l2norm 4 4 --completion-seed 1", 2, "--completion-seed applies to --completion random; add it"),
    ("fused_l2norm 4 4 --completion eager --completion-seed 1", 2, "--completion-seed applies to --completion random"),
    ("fused_l2norm 4 4 --completion random --completion-seed -1", 2, "--completion-seed"),
    ("fused_l2norm 4 4 --completion late", 2, "'eager', 'latest-legal', 'random'"),
    ("fused_l2norm 4 4 --vairant fused", 2, "did you mean '--variant'?"),
    ("./missing.py 4", 2, "no file ./missing.py"),
    ("fused_l2norm.cu 4", 2, "fused_l2norm.cu"),
    ("", 2, "KERNEL"),
]


@pytest.mark.parametrize("line, code, part", REFUSED)
def test_refused(line, code, part, capsys):
    assert exit_of("run", *line.split()) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert part.lower() in err.lower()
    assert err.startswith("error: ") and err.count("\n") == 1


class Sized:
    @classmethod
    def size_names(cls):
        return ("rows", "cols")


@pytest.mark.parametrize(
    "numbers, sizes, iterations",
    [
        ((), (), None),
        (("1", "2"), ("1", "2"), None),
        (("1", "2", "100"), ("1", "2"), 100),
        (("1", "2", "3", "4"), ("1", "2", "3", "4"), None),  # too many; the message is that of the workload
    ],
)
def test_iterations_are_the_number_beyond_the_sizes(numbers, sizes, iterations):
    assert split_numbers(Sized, numbers) == (sizes, iterations)


def test_too_many_iterations():
    with pytest.raises(UsageError, match="ITERATIONS"):
        split_numbers(Sized, ("1", "2", "1000001"))


@pytest.mark.parametrize(
    "value, text",
    [(4194304, "4.19 MB"), (0, "0 B"), (999, "999 B"), (999999, "1 MB"), (12, "12 B"), (3.2e12, "3.2 TB")],
)
def test_quantities(value, text):
    assert quantity(value, "B") == text


def test_times_have_a_unit():
    assert [time_text(t) for t in (3.14159, 999.9, 12345.6)] == ["3.142 us", "999.9 us", "12.35 ms"]


def test_what_a_kernel_prints_stays_out_of_the_json(capfd):
    with stdout_set_aside(True):
        os.write(1, b"from the driver\n")
        print("from python")
    print("{}")
    sys.stdout.flush()
    out, err = capfd.readouterr()
    assert out == "{}\n"
    assert set(err.splitlines()) == {"from the driver", "from python"}
