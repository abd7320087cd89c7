"""scripts/small_rows.py: its pieces compute what their names say, and what it says where it cannot measure."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

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


def test_turns_are_taken_in_random_order_and_the_first_is_for_warming_up(script):
    lines = [script.Line(name, name) for name in "abc"]
    taken = []

    def replays(replay, samples, warm):
        taken.append(replay)
        return [script.NODES * 2.0] * samples

    script.measure(SimpleNamespace(timing=SimpleNamespace(replays=replays)), lines, 1e-9)
    assert sorted(taken[:3]) == sorted(taken[3:6]) == ["a", "b", "c"]
    assert all(line.times_us == [2.0] * (len(taken) // 3 - 1) * script.BATCH for line in lines)
    assert len(lines[0].times_us) >= 20


def test_quotients_are_with_torch_compile_of_the_same_kernel(script):
    copy = script.Line("copy", None, times_us=[1.0, 1.0])
    ours = script.Line("softmax, ptxkit", None, "softmax", times_us=[2.0, 2.0])
    theirs = script.Line("softmax, torch.compile", None, "softmax", peer=True, times_us=[3.0, 3.0])
    alone = script.Line("rmsnorm, ptxkit", None, "rmsnorm", times_us=[2.0, 2.0])
    rows = [
        [cell.strip() for cell in row.split("|")[1:-1]]
        for row in script.table([copy, ours, theirs, alone], True).split("\n")[2:]
    ]
    assert [row[3] for row in rows] == ["", "1.50", "1.00", ""]
    assert rows[1][:3] == ["softmax, ptxkit", "2.000", "0.000"]
