"""scripts/measure_register_banks.py: its errors where it cannot measure."""

from __future__ import annotations

from ptxkit.runtime.emulated import EmulatedDevice


def test_the_emulator_has_no_times(load_script, monkeypatch, capsys):
    script = load_script("measure_register_banks")
    monkeypatch.setattr(script.ptxkit, "device", EmulatedDevice)
    assert script.main([]) == 2
    assert capsys.readouterr().err == "error: measuring needs a GPU; the emulator has no times\n"
