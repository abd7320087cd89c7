"""The description model: sizes, options, variants, tiles, launches."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxkit import Launch, Tile, Work, Workload, cdiv, uniform, variant
from ptxkit.errors import DescriptionError, UsageError
from ptxkit.targets import Target
from ptxkit.workload import registry
from ptxkit.workload.data import Data
from ptxkit.workload.launch import dim3
from ptxkit.workload.variant import require_tile_parameters
from ptxkit.workload.workload import snake_case


class Base(Workload):
    """The common base of the sample kernels; it has no variants, so it is not a kernel itself."""

    def inputs(self, rng):
        return {"x": uniform(rng, 4)}

    def reference(self, x):
        return {"y": x}

    def work(self):
        return Work(flops=10, bytes=40)


class RowScale(Base):
    source = "row_scale.cu"
    rows: int = 128
    cols: int = 64
    dtype: Literal["f32", "bf16"] = "f32"
    eps: float = 1e-6
    bias: bool = False
    emulator_sizes = {"rows": 2}

    def constraints(self):
        if self.cols % 2:
            yield "cols must be even"

    def temporaries(self):
        return {"t": ((self.rows, self.cols), "bf16"), "s": (self.rows, np.float64)}

    @variant
    def unfused(self):
        """Two launches."""
        return [
            Launch("square", 1, 2, template=(2, True, "float")),
            Launch("sum", (1, 2), (3, 4, 5), source="sum.cu"),
        ]

    @variant(
        tile={"THREADS": [128, 256], "CLUSTER": [1, 2]},
        constraint=lambda w, t: w.cols * 4 >= t.THREADS or f"{t.THREADS} threads for {w.cols} columns",
        prefer=lambda w: [{"THREADS": 256, "CLUSTER": 2}],
    )
    def fused(self, t):
        return [Launch("fused", 4, t.THREADS, ("x", self.rows), cluster=t.CLUSTER if t.CLUSTER > 1 else None)]

    @variant(requires="sm_100a")
    def newest(self):
        return [Launch("newest", 1, 1)]


def test_sizes_are_the_int_fields_in_order():
    assert RowScale.size_names() == ("rows", "cols")
    assert RowScale().sizes == {"rows": 128, "cols": 64}
    assert RowScale().options == {"dtype": "f32", "eps": 1e-6, "bias": False}
    assert RowScale.name == "row_scale"
    assert list(RowScale.variants()) == ["unfused", "fused", "newest"]


def test_make_reads_words():
    made = RowScale.make(["7", "1_000"], {"dtype": "bf16", "eps": "1e-3", "bias": "true"})
    assert made == RowScale(rows=7, cols=1000, dtype="bf16", eps=1e-3, bias=True)
    assert RowScale.make(small=True).sizes == {"rows": 2, "cols": 64}
    assert RowScale.make(["5", "6"], small=True).sizes == {"rows": 5, "cols": 6}


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (["12a", "4"], "size rows must be a whole number, not '12a'"),
        (["4", ""], "size cols must be a whole number"),
        (["4", "1e6"], "size cols must be a whole number"),
        (["0", "4"], "size rows must be at least 1, not 0"),
        (["4", "-6"], "size cols must be at least 1, not -6"),
        (["4", "2147483648"], r"size cols must be at most 2147483647 \(2\^31 - 1\), not 2147483648"),
        (["9" * 5000, "4"], "size rows must be at most 2147483647"),
        (["4"], r"takes 2 sizes \(ROWS COLS\); too few"),
        (["4", "4", "4"], "too many"),
        (["4", "5"], "row_scale with rows=4, cols=5: cols must be even"),
    ],
)
def test_bad_sizes_are_named(sizes, message):
    with pytest.raises(UsageError, match=message):
        RowScale.make(sizes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtyp": "f32"}, "no option 'dtyp'; did you mean 'dtype'"),
        ({"dtype": "f64"}, "option dtype must be one of f32, bf16, not 'f64'"),
        ({"eps": "small"}, "option eps must be float"),
        ({"bias": "maybe"}, "option bias must be true or false"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(UsageError, match=message):
        RowScale.make((), options)


@given(st.text())
def test_any_text_for_a_size_is_taken_or_refused_with_one_line(text):
    try:
        made = RowScale.make([text, "2"])
    except UsageError as error:
        assert "size rows" in str(error)
        assert len(str(error)) < 200 + 10 * len(text)
    else:
        assert made.rows == int(text)


def test_bytes_needed_counts_temporaries():
    assert RowScale(rows=2, cols=4).bytes_needed() == 40 + 2 * 4 * 2 + 2 * 8


def test_a_workload_is_immutable():
    with pytest.raises(AttributeError):
        RowScale().rows = 5


def test_unknown_variant_names_the_nearest():
    with pytest.raises(UsageError, match="row_scale has no variant 'fussed'; did you mean 'fused'"):
        RowScale.variant("fussed")


def test_template_arguments_become_a_name_expression():
    square, total = RowScale.variant("unfused").launches(RowScale(), {})
    assert square.entry == "square<2, true, float>"
    assert (square.grid, square.block) == ((1, 1, 1), (2, 1, 1))
    assert (total.entry, total.grid, total.block) == ("sum", (1, 2, 1), (3, 4, 5))
    assert RowScale.variant("unfused").source_of(RowScale(), square) == "row_scale.cu"
    assert RowScale.variant("unfused").source_of(RowScale(), total) == "sum.cu"
    assert RowScale.variant("unfused").description == "Two launches."


class TestTiles:
    fused = RowScale.variant("fused")

    def test_preferred_first_when_the_target_can(self):
        chosen = self.fused.select_tile(RowScale(), Target.parse("sm_90a"))
        assert chosen == {"THREADS": 256, "CLUSTER": 2}

    def test_a_target_without_clusters_gets_the_first_that_it_can_run(self):
        assert self.fused.select_tile(RowScale(), Target.parse("sm_80")) == {"THREADS": 128, "CLUSTER": 1}

    def test_constraint_filters(self):
        assert [str(t) for t in self.fused.tiles(RowScale(cols=32))] == [
            "THREADS=128 CLUSTER=1",
            "THREADS=128 CLUSTER=2",
        ]
        with pytest.raises(UsageError, match="no tile for rows=128, cols=2: 128 threads for 2 columns"):
            self.fused.select_tile(RowScale(cols=2), Target.parse("sm_90a"))

    def test_overrides_hold(self):
        chosen = self.fused.select_tile(RowScale(), Target.parse("sm_90a"), {"CLUSTER": "1"})
        assert chosen == {"THREADS": 256, "CLUSTER": 1}
        assert isinstance(chosen.CLUSTER, int)

    @pytest.mark.parametrize(
        ("target", "overrides", "message"),
        [
            ("sm_90a", {"THREAD": "128"}, "has no tile parameter THREAD; it has THREADS, CLUSTER"),
            ("sm_90a", {"THREADS": "100"}, "tile THREADS=100: variant fused of row_scale offers 128, 256"),
            ("sm_80", {"CLUSTER": "2"}, "with CLUSTER=2 for rows=128, cols=64: clusters needs sm_90 or newer"),
        ],
    )
    def test_bad_overrides_are_named(self, target, overrides, message):
        with pytest.raises(UsageError, match=message):
            self.fused.select_tile(RowScale(), Target.parse(target), overrides)

    def test_a_parameter_of_another_variant_is_refused_with_the_names_of_the_chosen_ones(self):
        """The kernel has the parameter: without the name of the variant the message would be wrong."""
        complaint = "row_scale has no tile parameter STAGES; there are THREADS, CLUSTER$"
        with pytest.raises(UsageError, match=f"^variant fused of {complaint}"):
            require_tile_parameters(RowScale(), [self.fused], ["CLUSTER", "STAGES"], every=False)
        with pytest.raises(UsageError, match=f"^{complaint}"):
            require_tile_parameters(RowScale(), list(RowScale.variants().values()), ["STAGES"], every=True)

    def test_a_tile_is_a_hashable_mapping_with_attributes(self):
        tile = Tile({"A": 1, "B": "x"})
        assert (tile.A, tile["B"], str(tile), len({tile, Tile({"A": 1, "B": "x"})})) == (1, "x", "A=1 B=x", 1)
        with pytest.raises(DescriptionError, match="no tile parameter C; the variant declares A, B"):
            _ = tile.C


def test_incomplete_descriptions_are_refused():
    class NoReference(Workload):
        def inputs(self, rng):
            return {}

        def work(self):
            return Work(1, 1)

        @variant
        def only(self):
            return [Launch("k", 1, 1)]

    class NoVariant(Base):
        pass

    class NoDefault(RowScale):
        depth: int = None

    class BadType(RowScale):
        shape: list = ()

    class BadLaunches(Base):
        @variant
        def only(self):
            return "k"

    with pytest.raises(DescriptionError, match=r"NoReference has no reference\(\)"):
        NoReference()
    with pytest.raises(DescriptionError, match="NoVariant has no variant"):
        NoVariant()
    with pytest.raises(UsageError, match="size depth must be a whole number, not None"):
        NoDefault()
    with pytest.raises(DescriptionError, match="field shape must be int"):
        BadType()
    with pytest.raises(DescriptionError, match="must return a list of Launch"):
        BadLaunches.variant("only").launches(BadLaunches(), {})
    with pytest.raises(DescriptionError, match="offers no values"):
        variant(tile={"THREADS": []})


@given(st.integers(1, 10**9), st.integers(1, 10**6))
def test_cdiv(a, b):
    assert (cdiv(a, b) - 1) * b < a <= cdiv(a, b) * b


@pytest.mark.parametrize("bad", [0, -1, (1, 0), (1, 1, 1, 1), (), 1.5, "x"])
def test_bad_dimensions_are_refused(bad):
    with pytest.raises(DescriptionError, match="the grid"):
        dim3(bad, "the grid")


@pytest.mark.parametrize(
    ("name", "snake"), [("Saxpy", "saxpy"), ("FusedL2norm", "fused_l2norm"), ("InlinePTX", "inline_ptx")]
)
def test_snake_case(name, snake):
    assert snake_case(name) == snake


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16", np.float32])
def test_uniform_fills_the_interval(dtype):
    values = uniform(np.random.default_rng(1), (100, 50), dtype)
    wide = values.astype(np.float64)
    assert values.shape == (100, 50)
    assert -1 <= wide.min() < -0.99
    assert 0.99 < wide.max() <= 1
    assert abs(wide.mean()) < 0.03


def test_unknown_dtype():
    with pytest.raises(UsageError, match="no dtype 'f33'"):
        uniform(np.random.default_rng(1), 3, "f33")


@pytest.mark.parametrize(
    "option",
    [
        "layernorm eps=inf",
        "layernorm eps=1e39",
        "matmul_tcgen05 beta=1e39",
        "moe_routed routing_seed=-1",
        "ffn_sublayer offset=inf",
    ],
)
def test_options_that_kernels_cannot_represent_are_refused(option):
    kernel, _, setting = option.partition(" ")
    name, _, value = setting.partition("=")
    cls = registry.find(kernel)
    with pytest.raises(UsageError, match=name):
        Data(cls(**{**cls.emulator_sizes, name: int(value) if "seed" in name else float(value)})).inputs


def test_fields_and_variants_that_hide_a_method_are_refused():
    with pytest.raises(DescriptionError, match="the field options hides a method of Workload"):

        class Field(Workload):
            options: float = 2.0

    with pytest.raises(DescriptionError, match="the variant sizes hides a method of Workload"):

        class Named(Workload):
            @variant
            def sizes(self):
                return []
