"""scripts/regret.py: the regret of recorded cases, and its errors."""

from __future__ import annotations

import pytest

from ptxkit.bench.results import expectations
from ptxkit.targets.gpus import DeviceFacts, find_gpu, target_of


@pytest.fixture(scope="module")
def script(load_script):
    return load_script("regret")


@pytest.fixture(scope="module")
def facts():
    gpu = find_gpu("NVIDIA H200")
    return DeviceFacts(gpu.name, target_of(gpu), gpu.sms, gpu.l2_bytes, gpu.name)


def recorded(**times):
    rows = {name: {"kind": "variant", "cold": {"median_us": time}} for name, time in times.items()}
    return {"cases": {"saxpy n=1048576": {"rows": rows}}}


def test_the_regret_is_the_time_of_the_choice_over_the_best(script, facts):
    (found,) = script.found_of(recorded(scalar=10.0, vectorized=12.0, ptx=20.0), facts)
    assert found.regret(found.choice.variant) == pytest.approx(0.2)
    assert (found.last, found.unobjectionable) == ("ptx", "vectorized")
    assert script.worst([found], 1) == [["saxpy n=1048576", "vectorized", "scalar", "20.0%"]]
    assert script.summary([found])[0][1:4] == ["1", "0", "0"]


def test_cases_with_one_variant_are_left_out_and_missing_times_are_counted(script, facts):
    assert script.found_of(recorded(vectorized=1.0), facts) == []
    (found,) = script.found_of(recorded(scalar=1.0, ptx=2.0), facts)
    assert found.regret(found.choice.variant) is None


def test_the_choice_is_near_the_fastest_recorded_variant(script, facts):
    values = expectations.load(expectations.path_for("NVIDIA H200"))
    regrets = [r for f in script.found_of(values, facts) if (r := f.regret(f.choice.variant)) is not None]
    assert len(regrets) > 50
    assert sorted(regrets)[len(regrets) // 2] <= 0.01
    assert sorted(regrets)[int(0.95 * len(regrets))] <= 0.05


def test_coefficients_are_those_that_the_times_give(script, facts):
    from ptxkit.targets import achievable

    values = expectations.load(expectations.path_for("NVIDIA H200"))
    fitted = script.fitted(script.found_of(values, facts), values)
    assert fitted["WAVE_US"] == pytest.approx(achievable.WAVE_US, rel=0.1)
    assert fitted["WARP_PRODUCT"] == pytest.approx(achievable.WARP_PRODUCT, rel=0.1)


def test_an_unknown_gpu_is_one_line(script, capsys):
    assert script.main(["--gpu", "H9000"]) == 2
    assert capsys.readouterr().err.startswith("error: there is no documented GPU 'H9000'")
    assert script.main(["--gpu", "NVIDIA B200"]) == 2
    assert "no expectations found" in capsys.readouterr().err
