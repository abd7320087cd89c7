"""Peers are discovered, absent packages are reported, and the discovery imports nothing heavy."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import types

import numpy as np
import pytest

from ptxkit.bench import peers as package
from ptxkit.bench.peers import Peer, PeerCall, names, peers
from ptxkit.errors import DescriptionError, UnavailableError, UsageError
from ptxkit.runtime.device import device as open_device
from ptxkit.workload import registry


class Fake(Peer):
    """A peer of another package."""

    name = "fake"
    packages = ("numpy",)

    def offers(self, workload):
        return workload.name == "saxpy"

    def prepare(self, workload, inputs):
        self.enter(inputs)
        return PeerCall(lambda: None, {})


class Lacking(Fake):
    """A peer that requires a package that does not exist."""

    name = "lacking"
    packages = ("no_such_package_here", "numpy", "nor_this_one")


class Point:
    """An entry point."""

    def __init__(self, value):
        self.name, self.value, self.loaded = "theirs", "their.package", value

    def load(self):
        if isinstance(self.loaded, Exception):
            raise self.loaded
        return self.loaded


@pytest.fixture
def offering(monkeypatch):
    """Registers entry points of other packages."""

    def offer(*values):
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [Point(v) for v in values])
        package._classes.cache_clear()

    yield offer
    monkeypatch.undo()
    package._classes.cache_clear()


def test_the_bundled_ones_are_found():
    assert {"torch", "compile", "triton", "cupy", "cublas"} <= set(names())


def test_finding_them_imports_nothing_heavy():
    code = (
        "import sys\nfrom ptxkit.bench.peers import peers\nfrom ptxkit.workload import registry\nfound, absent = peers()\n"
        "w = registry.get('softmax').make()\n[p.offers(w) for p in found]\n"
        "print([m for m in ('torch', 'triton', 'cupy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_unknown_name_is_a_usage_error():
    with pytest.raises(UsageError, match="no peer 'trition'; did you mean 'triton'"):
        peers(["torch", "trition"])


def test_what_is_absent_is_said_with_the_reason(offering):
    offering(Lacking)
    found, absent = peers(["lacking"])
    assert found == []
    assert absent == [
        (
            "lacking",
            "no_such_package_here and nor_this_one are not installed; pip install no_such_package_here nor_this_one",
        )
    ]


def test_what_to_install_is_a_wheel(monkeypatch):
    from ptxkit.bench.peers import base
    from ptxkit.bench.peers.cupy_peer import CupyPeer

    monkeypatch.setattr(base.importlib.util, "find_spec", lambda name: None)
    assert CupyPeer().absent() == "cupy is not installed; pip install cupy-cuda13x"


def test_every_peer_is_either_found_or_absent():
    found, absent = peers()
    assert sorted([p.name for p in found] + [name for name, _ in absent]) == list(names())


def test_the_order_asked_for_is_kept_and_names_count_once(offering):
    module = types.ModuleType("theirs")
    module.Fake = Fake
    Fake.__module__, before = "theirs", Fake.__module__
    try:
        offering(module)
        found, _ = peers(["fake", "fake"])
        assert [p.name for p in found] == ["fake"]
        assert found[0].version() == f"numpy {np.__version__}"
        assert found[0].offers(registry.get("saxpy").make())
    finally:
        Fake.__module__ = before


def test_two_of_one_name_are_refused(offering):
    offering(Fake, Fake)
    with pytest.raises(DescriptionError, match="two peers are called fake"):
        names()


def test_an_entry_point_that_is_no_peer_is_refused(offering):
    offering(dict)
    with pytest.raises(DescriptionError, match="is neither a Peer"):
        names()
    offering(ImportError("broken"))
    with pytest.raises(DescriptionError, match=r"their\.package cannot be loaded: broken"):
        names()


def test_inputs_in_the_emulator_are_refused():
    inputs = {"x": open_device("emulator").upload(np.zeros(4, np.float32), "x")}
    with pytest.raises(UnavailableError, match="fake computes on a GPU; these inputs are on ptxkit emulator"):
        Fake().prepare(None, inputs)
    with pytest.raises(UnavailableError, match="these inputs are on the host"):
        Fake().prepare(None, {"x": np.float32(1)})
    with pytest.raises(UnavailableError, match="nothing is prepared"):
        Fake().graph([])


def test_cupy_offers_what_it_has_types_for():
    from ptxkit.bench.peers.cupy_peer import KERNELS, CupyPeer

    for name in KERNELS:
        assert CupyPeer().offers(registry.get(name).make())
    assert CupyPeer().offers(registry.get("swiglu").make([], {"dtype": "f16"}))
    assert not CupyPeer().offers(registry.get("swiglu").make([], {"dtype": "bf16"}))
    assert not CupyPeer().offers(registry.get("softmax").make())
