"""scripts/small_rows.py: the results of its kernels, and its errors where it cannot measure."""

from __future__ import annotations

import numpy as np
import pytest

from ptxkit.bench.results.results import Row, Timed
from ptxkit.errors import PtxkitError
from ptxkit.runtime.emulated import EmulatedDevice


@pytest.fixture(scope="module")
def script(load_script):
    return load_script("small_rows")


def test_the_emulator_has_no_times(script, monkeypatch, capsys):
    monkeypatch.setattr(script.ptxkit, "device", EmulatedDevice)
    assert script.main([]) == 2
    assert capsys.readouterr().err == "error: measuring needs a GPU; the emulator has no times\n"


@pytest.mark.parametrize("seconds", ["0", "-1", "nan"])
def test_seconds_are_above_zero(script, capsys, seconds):
    with pytest.raises(SystemExit) as ended:
        script.main([f"--seconds={seconds}"])
    assert ended.value.code == 2
    assert "error: --seconds must be above 0, not" in capsys.readouterr().err


def test_pieces_compute_what_their_names_say(script):
    device = EmulatedDevice()
    module = device.load(script.compiled("sm_90a"))
    for size in script.SIZES:
        x = np.random.default_rng(0).uniform(-1, 1, (3, size.cols)).astype(np.float32)
        sums = (x.astype(np.float64) ** 2).sum(1, keepdims=True)
        expected = {"COPY": x, "WHOLE": x, "WARPS": x * sums, "L2NORM": x / np.sqrt(sums)}
        for _, piece, follows in script.PIECES:
            y = device.upload(np.full_like(x, 7))
            kernel = module[script.name_of(piece, follows, size)]
            kernel(device.upload(x), y, script.EPS, grid=3, block=size.threads)
            if piece in expected:
                np.testing.assert_allclose(y.numpy(), expected[piece], rtol=1e-5, err_msg=piece)
            else:
                assert (y.numpy() == 7).all() == (piece in ("EMPTY", "READ")), piece


def row(name, kind, us):
    return Row(name, kind, hot=Timed(us, us, 0.0, (us, us), 0.0, 20, 0, 200, 1))


def test_graphs_have_as_many_launches_as_the_page_says(script):
    assert script.method_for(10.0).calls_for(20.0, 1) == script.LAUNCHES


def test_ratios_are_with_torch_compile_of_the_same_kernel(script):
    kernels = {
        "softmax": [row("vectorized", "variant", 2.0), row("compile", "peer", 3.0)],
        "rmsnorm": [row("vectorized", "variant", 2.0)],
    }
    text = script.table([row("copy", "variant", 1.0)], kernels, True)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.split("\n")[2:]]
    assert [cells[3] for cells in rows] == ["", "1.50", "1.00", ""]
    assert rows[1][:3] == ["softmax, ptxkit", "2.000", "0.000"]


def test_a_kernel_without_a_time_is_an_error(script):
    with pytest.raises(PtxkitError, match="vectorized has no time: wrong at"):
        script.table([], {"softmax": [Row("vectorized", verified=False, worst="wrong at 3")]}, False)
