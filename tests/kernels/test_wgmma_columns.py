"""The numbers of columns of wgmma: what the instruction has, what the sources wrap, and what the choice of a product takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ptxkit import Tile
from ptxkit.compiler.nvrtc import compile_source
from ptxkit.emulator import Machine
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import UsageError
from ptxkit.kernels.gemm import fused_tiles, steps
from ptxkit.kernels.gemm.matmul_fused import TYPES, MatmulFused
from ptxkit.kernels.gemm.matmul_wgmma import MatmulWgmma
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.targets import Target
from ptxkit.targets.gpus import reference_facts
from ptxkit.targets.wgmma import columns_of
from ptxkit.workload import execute
from ptxkit.workload.build import build
from ptxkit.workload.choice import choose

SM_90A = Target.parse("sm_90a")
DTYPES = {"bf16": "bf16", "f16": "f16", "tf32": "f32", "e4m3": "e4m3", "s8": "s8"}  # of a product, of its elements

CALL = "{ S d[N / 2]; WgmmaOf<T>::multiply<Operands<>>(d, a, b, true); x[N] = d[0]; }"


@pytest.mark.parametrize("kind", DTYPES.values())
def test_the_sources_wrap_the_instructions_of_all_columns(kind):
    sums = "int" if kind == "s8" else "float"
    columns = columns_of(kind)
    calls = "\n".join(CALL.replace("N", str(n)).replace("S", sums).replace("T>", f"{TYPES[kind]}>") for n in columns)
    source = (
        '#include "ptxkit/gemm/wgmma_types.cuh"\nusing namespace ptxkit;\n'
        f"__global__ void k(unsigned long long a, unsigned long long b, {sums}* x) {{ {calls} wgmma_commit_group(); }}\n"
    )
    compiled = compile_source(source, target="sm_90a").ptx
    assert all(f".m64n{n}k" in compiled for n in columns)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(DTYPES)),
    *(st.integers(1, 40_000), st.integers(1, 40_000), st.integers(1, 20_000)),
    *(st.sampled_from([132, 114, 20]), st.integers(1, 5)),
)
@example("e4m3", 64, 18432, 7168, 132, 1)
@example("s8", 64, 5376, 3584, 132, 1)
@example("s8", 1, 3584, 3584, 132, 1)
def test_the_kernel_accepts_what_the_choice_considers(dtype, m, n, k, sms, batch):
    facts = replace(reference_facts("sm_90a"), sms=sms)
    whole = 16 // (4 if dtype == "tf32" else 1 if dtype in ("e4m3", "s8") else 2)
    fused = MatmulFused(m=m, n=n, k=-(-k // whole) * whole, dtype=dtype, batch=batch).on(facts)
    found = [(fused, list(fused_tiles.options(fused)), fused_tiles.choice(fused))]
    if dtype in ("bf16", "f16"):
        own = MatmulWgmma(m=m, n=n, k=k, dtype=dtype).on(facts)
        found.append((own, [option for step in steps.TILES for option in steps.options(own, step)], steps.choice(own)))
    for workload, options, choice in found:
        for option in options:
            variant = workload.variant(option.variant)
            tile = {name: value for name, value in option.tile.items() if name in variant.tile}
            assert variant.constraint(workload, Tile(tile)) is True, (option.variant, tile)
            assert tile.get("COLUMNS", tile.get("TOKENS", 8)) in columns_of(workload.kind)
        taken = workload.variant(choice.taken.variant)
        chosen = taken.select_tile(workload, SM_90A, {k: v for k, v in choice.taken.tile.items() if k in taken.tile})
        assert chosen == next(iter(taken.tiles(workload)))


@pytest.mark.parametrize("sizes", [("e4m3", 64, 18432, 7168), ("s8", 64, 9216, 2304), ("tf32", 64, 18944, 3584)], ids=str)
def test_what_is_chosen_compiles(sizes):
    workload = MatmulFused(*sizes[1:], dtype=sizes[0]).on(reference_facts("sm_90a"))
    chosen = choose(workload, target=SM_90A).chosen.resolved
    assert build(workload, chosen.variant, SM_90A, dict(chosen.tile)).steps


@pytest.mark.parametrize("columns", [40, 56])
def test_a_tile_of_s8_without_an_instruction_is_refused_in_words(columns):
    workload = MatmulFused(64, 256, 128, dtype="s8").on(reference_facts("sm_90a"))
    with pytest.raises(UsageError, match=rf"wgmma has no instruction for s8 with {columns} columns: it takes multiples of 16"):
        workload.variant("stream_k").select_tile(workload, SM_90A, {"COLUMNS": columns})


@pytest.mark.parametrize(("dtype", "columns"), [("e4m3", 144), ("s8", 176), ("tf32", 208), ("s8", 240)])
def test_products_of_more_columns(dtype, columns):
    """In the emulator, with the wide instructions of types that are not of 16 bits."""
    workload = MatmulFused(70, columns + 5, 96, dtype=dtype)
    device = EmulatedDevice(Machine(sms=2), EmulatorSettings(completion="latest-legal"))
    case = execute.Case(workload, device, seed=3)
    result = execute.run(case, workload.variant("stream_k"), None, {"COLUMNS": columns, "ROWS": 1}, explicit=True)
    assert result.verdict.verified, result.verdict.worst
