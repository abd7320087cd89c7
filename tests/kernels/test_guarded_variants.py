"""The targets that variants require have every instruction that they execute: no guard is left in their kernels."""

from __future__ import annotations

import pytest

from ptxkit.targets import TARGETS, missing, rule_of
from ptxkit.workload import registry
from ptxkit.workload.build import build


def cases():
    """The variants that need instructions of a family, each with the first target of every family that has them."""
    for name in registry.names():
        for variant in registry.get(name).variants().values():
            if any(token.endswith("f") for requirement in variant.requires for token in rule_of(requirement)):
                for target in ("sm_90a", "sm_100f", "sm_110f", "sm_120f"):
                    if missing(variant.requires, TARGETS[target]) is None:
                        yield name, variant.name, target


@pytest.mark.parametrize(("name", "variant", "target"), list(cases()))
def test_a_variant_executes_no_guard_on_the_targets_that_it_requires(name, variant, target):
    kind = registry.get(name)
    for step in build(kind(), kind.variant(variant), TARGETS[target]).steps:
        body = step.image.ptx[step.image.ptx.index(f".entry {step.image.entry(step.launch.entry)}") :]
        assert "__assertfail" not in body[: body.index("\n}")]
