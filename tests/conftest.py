"""The environment of every test: no CUDA toolkit, no personal settings, and a compile cache for this run alone."""

from __future__ import annotations

import atexit
import gc
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from ptxkit.runtime.device import Device

sys.path.insert(0, str(Path(__file__).parent))  # for ptxkit_*.py; tests are imported without their directory

TOOLKIT_PROGRAMS = {"nvcc", "ptxas", "nvlink", "fatbinary", "cuobjdump", "nvdisasm", "cicc", "cudafe++"}


def _path_without_toolkit(path: str, scratch: Path) -> str:
    """PATH without programs of a toolkit: a directory that contains one is replaced by links to its other programs."""
    kept = []
    for index, directory in enumerate(filter(None, path.split(os.pathsep))):
        here = Path(directory)
        if not here.is_dir() or "cuda" in directory.lower():
            continue
        if TOOLKIT_PROGRAMS.isdisjoint(entry.name for entry in here.iterdir()):
            kept.append(directory)
            continue
        links = scratch / f"path{index}"
        links.mkdir()
        for entry in here.iterdir():
            if entry.name not in TOOLKIT_PROGRAMS:
                (links / entry.name).symlink_to(entry)
        kept.append(str(links))
    return os.pathsep.join(kept)


def _prepare_environment() -> None:
    """Done at import and once: pytest-xdist's workers inherit the environment of the process that starts them."""
    if "PTXKIT_TEST_SCRATCH" in os.environ:
        return
    scratch = Path(tempfile.mkdtemp(prefix="ptxkit-tests-"))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    for name in list(os.environ):
        if name.startswith(("CUDA_", "CUDATOOLKIT_", "NVCC_", "PTXKIT_")) and name != "CUDA_VISIBLE_DEVICES":
            del os.environ[name]
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of tests start Python; each would compile every module anew
    os.environ["PTXKIT_TEST_SCRATCH"] = str(scratch)
    os.environ["PTXKIT_CACHE_DIR"] = str(scratch / "cache")
    os.environ["PTXKIT_EMULATOR_THREADS"] = "1"  # the processors are divided among the workers of pytest-xdist
    os.environ["PATH"] = _path_without_toolkit(os.environ.get("PATH", os.defpath), scratch)


_prepare_environment()

# so that no test fails because the machine is busy
hypothesis.settings.register_profile(
    "ptxkit", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large]
)
hypothesis.settings.load_profile("ptxkit")


SAMPLED = {"kernels": 5, "emulator": 3, "compiler": 2, "inspect": 2, "expression": 3}
"""Folder -> in how many cases of a function one runs, unless a marker says otherwise; ``--slow`` runs all of them."""

pytest_plugins = ["ptxkit_long_tests"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--device",
        choices=("all", "emulator", "gpu"),
        default="all",
        help="devices that kernel tests run on; default: every one that is there",
    )
    parser.addoption("--slow", action="store_true", help="also run the tests that are marked slow")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests with the ``device`` fixture run once on each device."""
    if "device" in metafunc.fixturenames:
        from ptxkit.runtime.device import gpu_present

        wanted = metafunc.config.getoption("--device")
        kinds = ["emulator", "gpu"] if wanted == "all" else [wanted]
        if wanted == "all" and not gpu_present():
            kinds.remove("gpu")
        metafunc.parametrize("device", kinds, indirect=True)


def pytest_collection_finish() -> None:
    """Let the garbage collector run less often, and without visiting the collected tests and the imported modules."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of the GPU alone are skipped where there is none, and where another device is requested; slow ones by default."""
    from ptxkit_long_tests import DEFAULT, listed

    left_out = _not_sampled(items)
    if not config.getoption("--slow"):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="takes more than 30 seconds; make test-all runs it"))
        for item in left_out:
            item.add_marker(pytest.mark.skip(reason="not in the sample of its cases; make test-all runs it"))
        long = set() if config.getoption("--device") == "gpu" else listed()
        for item in items:
            if item.nodeid in long:
                item.add_marker(pytest.mark.skip(reason="in tests/long_tests.txt; make test-all runs it"))
    elif config.getoption("--write-long"):
        kept = {item.nodeid for item in items if not item.get_closest_marker("slow")} - {item.nodeid for item in left_out}
        for item in items:
            item.user_properties.append((DEFAULT, item.nodeid in kept))
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked:
        from ptxkit.runtime.device import gpu_present

        if config.getoption("--device") == "emulator" or not gpu_present():
            for item in marked:
                item.add_marker(pytest.mark.skip(reason="needs a GPU"))


def _not_sampled(items: list[pytest.Item]) -> list[pytest.Item]:
    """The cases that are left out of the samples of :data:`SAMPLED` and of the marker, the same ones in each run.

    All cases run on a GPU, which takes little time for them.
    """
    functions: dict[str, list[pytest.Item]] = {}
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if not item.get_closest_marker("slow") and parameters.get("device") != "gpu":
            functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out = []
    for name, cases in functions.items():
        marker = cases[0].get_closest_marker("sampled")
        one_in = marker.args[0] if marker else SAMPLED.get(name.split("/")[1], 1)
        kept = set(random.Random(name).sample(range(len(cases)), -(-len(cases) // one_in)))
        left_out += [case for index, case in enumerate(cases) if index not in kept]
    return left_out


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Device:
    """The device a kernel test runs on."""
    from ptxkit.runtime.device import device as open_device

    return open_device(request.param)


@pytest.fixture
def require_target() -> Callable[[str], None]:
    """Skips the test where the installed NVRTC is older than a target."""
    from ptxkit.compiler import compile_source
    from ptxkit.errors import UnavailableError

    def require(target: str) -> None:
        try:
            compile_source('extern "C" __global__ void k() {}', target=target)
        except UnavailableError as error:
            pytest.skip(str(error))

    return require
