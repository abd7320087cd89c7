"""Fixtures of the tests of ``ptxkit.torch``, which run where torch can be imported.

The directory is not called ``torch``: ``tests`` is on the path of tests, and Python would take it for the package.
"""

from __future__ import annotations

import pytest


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests with the fixture ``where`` run on the CPU, in the emulator, and on the GPU if there is one."""
    if "where" in metafunc.fixturenames:
        from ptxkit.runtime.device import gpu_present

        wanted = metafunc.config.getoption("--device")
        places = {"all": ["cpu", "cuda"] if gpu_present() else ["cpu"], "emulator": ["cpu"], "gpu": ["cuda"]}[wanted]
        metafunc.parametrize("where", places)
