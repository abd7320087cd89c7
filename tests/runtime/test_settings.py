"""The emulator's settings: of a launch, of a ``with`` block, of a device; later launches are not affected."""

from __future__ import annotations

import threading
from dataclasses import FrozenInstanceError, fields, replace

import numpy as np
import pytest

import ptxkit
from ptxkit.emulator import Machine
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import RaceError, UsageError
from ptxkit.runtime.device import device as open_device
from ptxkit.runtime.emulated import EmulatedDevice

SOURCE = r"""
extern "C" __global__ void races(int* y) {
    __shared__ int s[64];
    s[threadIdx.x] = threadIdx.x;
    y[threadIdx.x] = s[63 - threadIdx.x];
}
"""
LATE = EmulatorSettings(completion="latest-legal")


@pytest.fixture
def device():
    return EmulatedDevice(Machine(capacity=1 << 26))


@pytest.fixture
def races(device):
    kernel = ptxkit.compile(SOURCE, device=device)["races"]

    def found(**options) -> bool:
        """Whether a launch with these options raises a RaceError."""
        try:
            kernel(np.zeros(64, np.int32), grid=1, block=64, **options)
        except RaceError:
            return True
        return False

    found.kernel = kernel
    return found


def test_a_launch_has_its_own(races):
    assert [races(), races(settings=EmulatorSettings(racecheck="warps")), races()] == [False, True, False]


def test_a_block_has_its_own(device, races):
    with device.settings(racecheck="warps") as settings:
        assert settings == EmulatorSettings(racecheck="warps") == device.current_settings
        assert races()
    assert not races()


def test_blocks_nest_and_change_only_what_they_name(device):
    with device.settings(racecheck="lanes", completion="latest-legal"):
        with device.settings(racecheck=False):
            assert device.current_settings == LATE
        assert device.current_settings == replace(LATE, racecheck="lanes")
    assert device.current_settings == EmulatorSettings()


def test_a_block_that_raises_restores(device):
    with pytest.raises(KeyError), device.settings(racecheck=True):
        raise KeyError
    assert device.current_settings == EmulatorSettings()


def test_a_launch_within_a_block_takes_its_own_settings_only(device, races):
    with device.settings(racecheck="warps"):
        assert not races(settings=EmulatorSettings())
        assert not races(settings=replace(device.current_settings, racecheck=False))


def test_a_prepared_launch_takes_the_settings_in_force_when_it_is_called(device, races):
    prepared = races.kernel.prepare(device.upload(np.zeros(64, np.int32)), grid=1, block=64)
    prepared()
    with device.settings(racecheck="warps"), pytest.raises(RaceError):
        prepared()
    prepared()


def test_a_prepared_launch_keeps_what_it_was_given(device, races):
    y = device.upload(np.zeros(64, np.int32))
    prepared = races.kernel.prepare(y, grid=1, block=64, settings=EmulatorSettings(racecheck=True))
    with device.settings(racecheck=False), pytest.raises(RaceError):
        prepared()


def test_a_device_made_with_settings():
    made = EmulatedDevice(Machine(capacity=1 << 20), LATE)
    with made.settings(racecheck=True):
        assert made.current_settings == replace(LATE, racecheck=True)
    assert made.current_settings == LATE


def test_other_devices_keep_theirs(device):
    with device.settings(completion="latest-legal"):
        assert open_device("emulator").current_settings == EmulatorSettings()


def test_other_threads_keep_theirs(device):
    inside, done, seen = threading.Event(), threading.Event(), []

    def work() -> None:
        with device.settings(racecheck="lanes"):
            inside.set()
            done.wait(10)
            seen.append(device.current_settings.racecheck)

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(10)
    assert device.current_settings.racecheck is False
    with device.settings(racecheck="warps"):
        done.set()
        thread.join(10)
        assert device.current_settings.racecheck == "warps"
    assert seen == ["lanes"]


def test_a_block_as_a_decorator(device, races):
    @device.settings(racecheck=True)
    def check() -> bool:
        return races()

    assert [check(), check(), races()] == [True, True, False]


def test_a_block_can_be_entered_again(device):
    block = device.settings(racecheck=True)
    for _ in range(2):
        with block, block:
            assert device.current_settings.racecheck is True
        assert device.current_settings == EmulatorSettings()


def test_a_device_is_not_made_with_a_mapping():
    with pytest.raises(UsageError, match="a device's settings are an EmulatorSettings, not {'racecheck': True}"):
        EmulatedDevice(Machine(capacity=1 << 20), {"racecheck": True})


def test_reading_a_setting_from_the_device_names_the_place(device):
    with pytest.raises(AttributeError, match="no attribute 'racecheck'; read current_settings.racecheck"):
        device.racecheck
    assert not hasattr(device, "other")


@pytest.mark.parametrize("name", [f.name for f in fields(EmulatorSettings)])
def test_assignment_to_a_device_is_refused(name):
    with pytest.raises(UsageError, match=rf"`with device.settings\({name}='x'\):`"):
        setattr(open_device("emulator"), name, "x")


def test_a_value_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        EmulatorSettings().racecheck = True


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"racechek": True}, "no setting 'racechek'; did you mean racecheck?"),
        ({"zzz": 1}, "no setting 'zzz'; it has counting, completion"),
        ({"completion": "late"}, "completion is 'eager', 'latest-legal' or 'random', not 'late'"),
        ({"completion": ["eager"]}, "completion is 'eager', 'latest-legal' or 'random', not"),
        ({"completion_seed": -1}, "completion_seed is an integer of at least 0, not -1"),
        ({"completion_seed": True}, "completion_seed is an integer of at least 0, not True"),
        ({"racecheck": "words"}, "racecheck is False, True, 'warps' or 'lanes', not 'words'"),
        ({"racecheck": 1}, "racecheck is False, True, 'warps' or 'lanes', not 1"),
        ({"racecheck": None}, "racecheck is False, True, 'warps' or 'lanes', not None"),
        ({"counting": "no"}, "counting is True or False, not 'no'"),
        ({"write_output": "file"}, "write_output is a function of one string, not 'file'"),
    ],
)
def test_bad_settings_are_refused_before_the_block(device, changes, message):
    with pytest.raises(UsageError) as refused:
        device.settings(**changes)
    assert message in str(refused.value)
    assert device.current_settings == EmulatorSettings()


def test_a_mapping_is_not_settings(races):
    with pytest.raises(UsageError, match="races: settings= is an EmulatorSettings"):
        races(settings={"racecheck": True})


@pytest.mark.gpu
def test_a_gpu_has_none():
    gpu = open_device("gpu")
    with pytest.raises(UsageError, match="racecheck: for the emulator only"):
        gpu.settings(racecheck=True)
    kernel = ptxkit.compile(SOURCE, device=gpu)["races"]
    with pytest.raises(UsageError, match="races: settings= is for the emulator only"):
        kernel(np.zeros(64, np.int32), grid=1, block=64, settings=EmulatorSettings())


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("racechek", "did you mean 'racecheck'? Write `with device.settings(racecheck=...):`"),
        ("completon", "did you mean 'completion'? Write `with device.settings(completion=...):`"),
        ("counter", "did you mean 'counters'?"),
        ("zzz", "nothing would read it"),
    ],
)
def test_an_attribute_that_a_device_does_not_have_is_refused(device, name, hint):
    with pytest.raises(UsageError) as caught:
        setattr(device, name, True)
    assert f"EmulatedDevice has no attribute {name!r}" in str(caught.value) and hint in str(caught.value)
    assert not hasattr(device, name)


def test_attributes_that_a_device_has_can_be_replaced(device, monkeypatch):
    monkeypatch.setattr(device, "measure", lambda launch, samples: None)
    device.counters = ptxkit.EmulatorSettings()
    assert device.measure(None, 1) is None


def test_a_misspelt_setting_is_refused_by_its_name():
    for make in (EmulatorSettings, lambda **given: replace(LATE, **given)):
        with pytest.raises(UsageError, match="the emulator has no setting 'racechek'; did you mean racecheck"):
            make(racechek=True)
