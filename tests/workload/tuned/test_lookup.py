"""Recorded winners apply to these sizes and their class, on this GPU, as long as their machine code is that of today."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from ptxkit import Launch, variant
from ptxkit.runtime.device import device
from ptxkit.workload import execute, registry
from ptxkit.workload.choice import choose
from ptxkit.workload.resolve import resolve
from ptxkit.workload.tuned import store

NORM = registry.get("fused_l2norm")
SAXPY = registry.get("saxpy")


def tile_of(workload, variant="vectorized", **more):
    resolved = resolve(workload, workload.variant(variant), device=device("emulator"), **more)
    return resolved.tile["THREADS"] if resolved.tuned else None


def test_a_record_applies_to_its_sizes_options_and_variant_alone(recorded):
    recorded(NORM.make([64, 1024], {}), "vectorized", {"THREADS": 512})
    recorded(NORM.make([64, 1024], {}), "vectorized", {"THREADS": 256}, at="2026-11-27T10:00:00+00:00")
    assert tile_of(NORM.make([64, 1024], {})) == 256
    assert tile_of(NORM.make([64, 1024], {}), "fused") is None
    assert tile_of(NORM.make([65, 1024], {})) is None
    assert tile_of(NORM.make([64, 1024], {"eps": 1e-3})) is None


def test_a_record_applies_to_the_sizes_of_its_class_and_says_so(recorded):
    recorded(SAXPY(n=1 << 20), "vectorized", {"THREADS": 512})
    near = SAXPY(n=(1 << 20) + (1 << 17))
    resolved = resolve(near, near.variant("vectorized"), device=device("emulator"))
    assert resolved.tuned and resolved.tile_note == f"tuned by a sweep at n={1 << 20}"
    for other in ((1 << 20) + 1, 1 << 21, (1 << 20) - (1 << 17)):
        assert tile_of(SAXPY(n=other)) is None


def test_the_nearest_record_of_a_class_applies(recorded):
    recorded(SAXPY(n=1 << 20), "vectorized", {"THREADS": 512}, at="2026-11-27T10:00:00+00:00")
    recorded(SAXPY(n=(1 << 20) + (1 << 17)), "vectorized", {"THREADS": 128})
    assert tile_of(SAXPY(n=(1 << 20) + (1 << 16) + (1 << 15))) == 128
    assert tile_of(SAXPY(n=(1 << 20) + (1 << 14))) == 512


class Divided(SAXPY):
    """Sizes of one class of which some are multiples of a CTA."""

    @variant(tile={"THREADS": [64, 128]}, constraint=lambda w, t: w.n % t.THREADS == 0)
    def whole(self, t):
        return [Launch("saxpy", self.n // t.THREADS, t.THREADS, ("a", "x", "y", self.n), template=(t.THREADS,))]


def test_a_tile_that_another_size_of_the_class_refuses_is_left_out(recorded):
    recorded(Divided(n=4096), "whole", {"THREADS": 128})
    assert tile_of(Divided(n=4096 + 128), "whole") == 128
    assert tile_of(Divided(n=4096 + 64), "whole") is None


def test_fixed_parameters_precede_a_record(recorded):
    w = NORM.make([16, 1024], {})
    recorded(w, "vectorized", {"THREADS": 512})
    emulator = device("emulator")
    prepared = execute.prepare(execute.Case(w, emulator), w.variant("vectorized"))
    assert prepared.build.resolved.tuned and prepared.build.tile.THREADS == 512
    fixed = execute.prepare(execute.Case(w, emulator), w.variant("vectorized"), tile={"THREADS": "128"})
    assert fixed.build.tile.THREADS == 128 and not fixed.build.resolved.tuned
    assert tile_of(w, tile={"THREADS": 512}) == 512


def replaced(record, **changes):
    """Store the record with other values in place of the true ones, under the same key."""
    store.record("ptxkit emulator", replace(record, **changes))


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"tile": {"QUADS": 4}}, "vectorized does not offer this tile any more"),
        ({"tile": {"THREADS": 100}}, "vectorized does not offer this tile any more"),
        ({"inputs": "0", "code": "0"}, "its machine code has changed since"),
        ({"code": ""}, "recorded by an older version"),
    ],
)
def test_a_record_of_other_code_is_left_out_with_a_line(recorded, caplog, changes, reason):
    w = NORM.make([64, 1024], {})
    replaced(recorded(w, "vectorized", {"THREADS": 512}), **changes)
    with caplog.at_level(logging.WARNING, "ptxkit"):
        assert tile_of(w) is None
        assert tile_of(w) is None
    (line,) = caplog.messages
    assert reason in line and "fused_l2norm rows=64 cols=1024" in line


def test_other_inputs_with_the_same_machine_code_are_no_change(recorded):
    w = NORM.make([64, 1024], {})
    replaced(recorded(w, "vectorized", {"THREADS": 512}), inputs="a comment was edited")
    assert tile_of(w) == 512


def test_an_edited_source_ends_a_record(recorded, tmp_path, caplog):
    (tmp_path / "mine.py").write_text(
        "import numpy as np\nfrom ptxkit import Launch, Work, Workload, cdiv, variant\n\n\n"
        "class Mine(Workload):\n    source = 'mine.cu'\n    n: int = 4096\n\n"
        "    def inputs(self, rng):\n        return {'x': rng.random(self.n, np.float32)}\n\n"
        "    def reference(self, x):\n        return {'x': 2.0 * x}\n\n"
        "    def work(self):\n        return Work(flops=self.n, bytes=8 * self.n)\n\n"
        "    @variant(tile={'THREADS': [128, 256]})\n    def twice(self, t):\n"
        "        return [Launch('twice', cdiv(self.n, t.THREADS), t.THREADS, ('x', self.n))]\n"
    )
    source = tmp_path / "mine.cu"
    body = 'extern "C" __global__ void twice(float* x, int n) {{\n    int i = blockIdx.x * blockDim.x + threadIdx.x;\n'
    body += "    if (i < n) x[i] {} 2;\n}}\n"
    source.write_text(body.format("*="))
    workload = registry.find(str(tmp_path / "mine.py"))()
    recorded(workload, "twice", {"THREADS": 256})
    assert tile_of(workload, "twice") == 256
    source.write_text("// twice as much\n\n" + body.format("*="))
    assert tile_of(workload, "twice") == 256
    source.write_text(body.format("+="))
    assert tile_of(workload, "twice") is None
    assert "its machine code has changed" in caplog.text


def test_choose_takes_the_winner_of_tune(recorded):
    workload, emulator = SAXPY(n=1 << 20), device("emulator")
    assert choose(workload, emulator).variant == "vectorized"
    recorded(workload, "scalar", {"THREADS": 512}, "variant")
    choice = choose(workload, emulator)
    assert (choice.variant, choice.tile) == ("scalar", {"THREADS": 512})
    assert choice.reason == "the fastest of 1 candidates that --tune measured on 2026-11-26"
    assert choose(workload, emulator, tile={"THREADS": 128}).variant == "vectorized"
    near = choose(SAXPY(n=(1 << 20) + 4096), emulator)
    assert near.variant == "scalar" and f"at n={1 << 20}" in near.reason


def test_times_of_two_sweeps_precede_the_order(recorded):
    workload, emulator = SAXPY(n=1 << 20), device("emulator")
    recorded(workload, "vectorized", {"THREADS": 512}, time_us=5.0)
    assert choose(workload, emulator).variant == "vectorized"
    recorded(workload, "scalar", {"THREADS": 512}, time_us=4.0)
    choice = choose(workload, emulator)
    assert choice.variant == "scalar"
    assert choice.reason == "the fastest of 2 variants that sweeps measured at these sizes"
    assert str(choice).startswith("scalar THREADS=512 (tuned by a sweep): ")


@pytest.mark.parametrize("text", ["{", "[" * 100_000, '{"schema": "ptxkit.tuned/9", "gpu": "x", "records": []}', "\0"])
def test_a_damaged_file_is_one_line_and_no_winner(text, caplog):
    path = store.path_for("ptxkit emulator")
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with caplog.at_level(logging.WARNING, "ptxkit"):
        for _ in range(2):
            assert tile_of(NORM.make([16, 1024], {})) is None
    (line,) = caplog.messages
    assert str(path) in line and "the winners in it are not used" in line


def test_a_file_of_an_older_version_is_one_line_and_no_winner(caplog):
    import json

    path = store.path_for("ptxkit emulator")
    path.parent.mkdir(parents=True)
    w = NORM.make([16, 1024], {})
    entry = {"kernel": w.name, "variant": "vectorized", "sizes": w.sizes, "options": w.options, "tile": {"THREADS": 512}}
    old = {"schema": "ptxkit.tuned/1", "gpu": "ptxkit emulator", "entries": [{**entry, "time_us": 1.0}]}
    path.write_text(json.dumps(old))
    assert tile_of(w) is None
    assert "recorded by an older version" in caplog.text
