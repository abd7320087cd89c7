"""Every form that the manual lists, compared with the forms that ptxas accepts and those that the emulator supports."""

from __future__ import annotations

import re
from functools import cache

import manual_forms
import ptxas_oracle
import pytest

from ptxkit.emulator import Machine
from ptxkit.errors import UnsupportedError
from ptxkit.isa.parser import parse

SECTIONS = """
    ld ld.global.nc ldu st st.async st.bulk multimem prefetch applypriority discard createpolicy isspacep cvta mapa getctarank
    cp.async cp.async.commit_group cp.async.wait_group cp.async.wait_all cp.async.bulk cp.reduce.async.bulk
    cp.async.bulk.prefetch cp.async.bulk.tensor cp.reduce.async.bulk.tensor cp.async.bulk.prefetch.tensor
    cp.async.bulk.commit_group cp.async.bulk.wait_group tensormap.replace tensormap.cp_fenceproxy
    bar barrier bar.warp.sync barrier.cluster fence membar atom red red.async vote.sync match.sync activemask redux.sync
    griddepcontrol elect.sync mbarrier.init mbarrier.inval mbarrier.expect_tx mbarrier.arrive mbarrier.test_wait
    mbarrier.try_wait mbarrier.pending_count cp.async.mbarrier.arrive clusterlaunchcontrol shfl.sync
    tex tld4 txq istypep suld sust sured suq
    ldmatrix stmatrix movmatrix wgmma.fence wgmma.wait_group setmaxnreg nanosleep pmevent trap
"""
"""PTX ISA 9.1, "Data Movement", "Parallel Synchronization and Communication", "Warp Level Matrix", "Asynchronous Warpgroup
Level Matrix", "Miscellaneous": what is not there (prmt, mov, cvt, mma, wmma, wgmma.mma_async) is in the other tables."""


def statements() -> list[str]:
    """The forms of all rows; one call of ptxas checks them."""
    return [s for row in manual_forms.ROWS for s in manual_forms.sample(row)]


@cache
def refused(target: str) -> dict[str, str]:
    """Statements that ptxas does not take, with its message."""
    every = statements()
    return {every[n]: why for n, why in ptxas_oracle.refused(every, target, compiled=False).items()}


@cache
def unbound(target: str) -> dict[str, str]:
    """Statements that the emulator refuses to bind, with its message."""
    every = statements()
    program = Machine(capacity=1 << 20).load(parse(ptxas_oracle.module(every, target, "9.0"), "forms.ptx"), target)
    try:
        program.bind("k")
    except UnsupportedError as e:
        lines = [(m[1], line) for line in e.places if (m := re.search(r"forms\.ptx:(\d+)", line))]
        return {every[int(number) - ptxas_oracle.FIRST_LINE]: line.strip() for number, line in lines}
    return {}


def test_every_section_has_its_forms():
    assert {row.section for row in manual_forms.ROWS} == set(SECTIONS.split())


@pytest.mark.parametrize("target", [pytest.param("sm_90a", marks=pytest.mark.slow), "sm_100a"])
def test_what_ptxas_takes_is_bound(target):
    """One test for each target: ptxas and the emulator examine the statements of all rows in one call, which takes 10 s."""
    complaints = []
    for row in manual_forms.ROWS:
        mine = manual_forms.sample(row)
        ours = [s for s in mine if s in unbound(target)]
        missing = [(s, unbound(target)[s]) for s in ours if s not in refused(target)]
        if missing:
            complaints.append(f"{row.section}: {len(missing)} of {len(mine)}: {missing[:5]}")
    assert not complaints, "\n".join(complaints)


DISPUTED = "st.async{|.mmio}.release", "red.async{|.mmio}.release"
"""The manual has more than ptxas takes: .b8, .cluster, .mmio with .gpu."""


def test_what_no_target_has_is_refused():
    disputed = {s for row in manual_forms.ROWS if row.opcode.startswith(DISPUTED) for s in manual_forms.sample(row)}
    suspects = [
        s for s in statements() if s not in unbound("sm_100a") and s not in disputed and s in refused("sm_100a")
    ]
    others = [target for target in ptxas_oracle.TARGETS if target != "sm_100a"]
    odd = ptxas_oracle.refused_everywhere(suspects, others, compiled=False)
    assert not odd, f"{len(odd)}: {[(suspects[n], why) for n, why in odd.items()][:5]}"


def test_most_of_the_manual_is_there():
    """The number of forms, which would decrease if templates were expanded wrongly."""
    assert len(manual_forms.ROWS) >= 150 and len(statements()) > 14_000
