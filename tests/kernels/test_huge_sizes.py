"""Sizes near the limits of the index types: each kernel refuses them, or a variant is chosen; nothing is allocated."""

from __future__ import annotations

import pytest

from ptxkit.errors import PtxkitError, UnavailableError, UsageError
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.workload import execute, registry
from ptxkit.workload.choice import choose

SMALL = {"d": 128, "experts": 8, "top_k": 2}


@pytest.mark.parametrize("name", registry.names())
def test_a_huge_size_is_refused_or_has_launches(name):
    kind = registry.get(name)
    sizes = kind.size_names()
    large = [dict.fromkeys(sizes, 2 ** 16)]
    for of_row, size in ((16, 2**31 - 1), (128, 2**31 - 64), (128, 2**27)):
        large += [{n: size if n == only else of_row for n in sizes} for only in sizes]
    for given in large:
        try:
            choose(kind(**(given | {n: SMALL[n] for n in sizes if n in SMALL})))
        except PtxkitError as error:
            assert isinstance(error, UsageError | UnavailableError), error


def test_memory_is_the_first_reason(monkeypatch):
    """`run` with sizes for which no variant should be tried: it says how much memory they need."""
    from ptxkit.bench.measure import run

    monkeypatch.setattr(run, "choose", lambda *args: pytest.fail("a variant was chosen"))
    workload = registry.get("saxpy")(n=2**31 - 64)
    device = EmulatedDevice()
    monkeypatch.setattr(execute, "check_memory", _too_little)
    with pytest.raises(UnavailableError, match="too little memory"):
        run.Run(workload, device).choice()


def _too_little(workload, device):
    raise UnavailableError("too little memory")
