"""Reading sensors, with a scripted management library in place of a GPU."""

from __future__ import annotations

from types import SimpleNamespace

from ptxkit.runtime.gpu import facts as gpu_facts

GPU = SimpleNamespace(core=SimpleNamespace(pci_bus_id="0000:06:00.0"))


class Nvml:
    """Returns a value from ``values`` for every reading, or an error if there is none."""

    def __init__(self, **values):
        self.values = values

    def nvmlDeviceGetHandleByPciBusId_v2(self, bus, handle):
        return 0 if bus == b"0000:06:00.0" else 6

    def __getattr__(self, name):
        def read(handle, *arguments):
            which = name.removeprefix("nvmlDeviceGet") + (str(arguments[0].value) if len(arguments) == 2 else "")
            if which not in self.values:
                return 3
            arguments[-1]._obj.value = self.values[which]
            return 0

        return read


def read(monkeypatch, library):
    monkeypatch.setattr(gpu_facts, "_nvml", lambda: library)
    return gpu_facts.sensors(GPU)


def test_sensors(monkeypatch):
    library = Nvml(
        ClockInfo1=1980, ClockInfo2=3201, PowerUsage=121_600, Temperature0=39, CurrentClocksThrottleReasons=0x24
    )
    assert read(monkeypatch, library) == gpu_facts.Sensors(1980, 3201, 121.6, 39, ("power cap", "thermal"))


def test_the_version_of_the_kernel_driver(monkeypatch, tmp_path):
    def answer(buffer, length):
        buffer.value = b"580.95.05"
        return 0

    monkeypatch.setattr(gpu_facts, "_nvml", lambda: SimpleNamespace(nvmlSystemGetDriverVersion=answer))
    assert gpu_facts.kernel_driver() == "580.95.05"
    monkeypatch.setattr(gpu_facts, "_nvml", lambda: None)
    monkeypatch.setattr(gpu_facts, "MODULE_VERSION", tmp_path / "version")
    assert gpu_facts.kernel_driver() == "unknown"
    (tmp_path / "version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (builder@host)  Sun Jul 27\n"
        "GCC version:  gcc version 13.3.0\n"
    )
    assert gpu_facts.kernel_driver() == "580.65.06"


def test_what_cannot_be_read_is_none(monkeypatch):
    assert read(monkeypatch, Nvml(Temperature0=39)) == gpu_facts.Sensors(temperature_c=39)
    assert read(monkeypatch, None) == gpu_facts.Sensors()
