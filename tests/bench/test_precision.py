"""A kernel's dtypes compared with one reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from ptxkit_bench_samples import make_results

from ptxkit.bench.measure.benchmark import case_result
from ptxkit.bench.measure.precision import compare_dtypes, dtypes_of, with_times
from ptxkit.bench.report.precision import precision_csv, precision_json, precision_table
from ptxkit.errors import UsageError
from ptxkit.runtime.device import emulating_device
from ptxkit.workload import registry

DEVICE = {"kind": "emulator", "name": "ptxkit emulator", "target": "sm_90a"}


def workloads(name, **fields):
    kernel = registry.get(name)
    return {value: kernel(dtype=value, **fields) for value in dtypes_of(kernel)}


@pytest.fixture(scope="module")
def compared():
    found = compare_dtypes(workloads("softmax", rows=4, cols=256), emulating_device(), variants=("fused",))
    return {of.value: case_result(of.workload, of.rows, emulating_device(), 0) for of in found}


def test_fewer_bits_have_larger_errors_against_the_one_reference(compared):
    largest = {value: case.rows[0].accuracy.max_abs for value, case in compared.items()}
    assert largest["f32"] < largest["f16"] < largest["bf16"]
    assert all(case.rows[0].verified for case in compared.values())


def test_errors_include_the_rounding_of_the_inputs():
    """A copy of the rounded input is right, and differs from the unrounded data by half an ulp at most."""
    found = compare_dtypes(workloads("swiglu", rows=2, cols=64), emulating_device(), variants=("fused",))
    errors = {of.value: of.rows[0].accuracy.max_ulp for of in found}
    own = {of.value: of.rows[0].verified for of in found}
    assert errors["bf16"] > 0.5 and set(own.values()) == {True}


def test_half_the_bytes_in_half_the_bits(compared):
    assert compared["f32"].bytes == 2 * compared["f16"].bytes
    assert compared["f32"].rows[0].counted.moved_bytes == 2 * compared["f16"].rows[0].counted.moved_bytes


def test_every_form_has_a_line_for_each_variant_and_dtype(compared):
    table = precision_table(compared, DEVICE, "dtype")
    assert [row[:2] for row in table.rows] == [["f32", "fused"], ["f16", "fused"], ["bf16", "fused"]]
    assert all(len(row) == len(table.headers) for row in table.rows)
    header, *lines = precision_csv(compared, "dtype").splitlines()
    assert header.startswith("dtype,candidate") and len(lines) == 3 and "ulp_p99" in header
    value = precision_json(compared, DEVICE, "dtype", 0)
    assert [v["value"] for v in value["values"]] == ["f32", "f16", "bf16"]
    points = value["values"][0]["variants"][0]["percentiles"]["y"]["ulp"]
    assert {"50", "90", "99"} <= points.keys() and "dtype" not in value["options"]


def test_times_of_a_gpu_join_the_errors(compared):
    (measured,) = make_results().cases
    row = replace(measured.rows[1], name="fused")
    joined = with_times(compared["f32"], replace(measured, rows=(row,)))
    assert joined.rows[0].cold is row.cold and joined.rows[0].accuracy is compared["f32"].rows[0].accuracy
    table = precision_table({"f32": joined}, DEVICE, "dtype")
    assert "time" in table.headers and "25 us" in table.rows[0]
    wrong = with_times(compared["f32"], replace(measured, rows=(replace(row, verified=False, worst="y[1]"),)))
    assert wrong.rows[0].verified is False and wrong.rows[0].worst == "y[1]"


def test_integer_outputs_are_left_out():
    found = compare_dtypes(workloads("layernorm_quantize", rows=2, cols=64), emulating_device(), variants=("unfused",))
    assert {name for of in found for name in of.rows[0].accuracy.percentiles} == {"scales"}


@pytest.mark.parametrize(
    ("kernel", "option", "wanted", "complaint"),
    [
        ("saxpy", "dtype", (), "no option 'dtype'"),
        ("softmax", "dtype", ("f64",), "no value 'f64'"),
        ("softmax", "seed", (), "no fixed values"),
        ("attention_e4m3", "dtype", (), "exists in e4m3 only"),
    ],
)
def test_what_cannot_be_compared_is_refused(kernel, option, wanted, complaint):
    with pytest.raises(UsageError, match=complaint):
        dtypes_of(registry.get(kernel), option, wanted)


@pytest.mark.parametrize(
    ("name", "option", "fields"),
    [
        ("add_activation", "activation", {"n": 64, "dtype": "bf16"}),
        ("attention", "causal", {"batch": 1, "heads": 1, "q": 8, "k": 8}),
    ],
)
def test_values_that_compute_different_functions_are_refused(name, option, fields):
    kernel = registry.get(name)
    made = {value: kernel(**fields, **{option: value}) for value in dtypes_of(kernel, option)}
    with pytest.raises(UsageError, match=f"{name} computes another .* from the same data"):
        compare_dtypes(made, emulating_device(), variants=("fused",))


def test_quantized_inputs_are_refused():
    kernel = registry.get("moe_int8")
    small = {value: kernel.make((), {"dtype": value}, small=True) for value in ("s8", "e4m3")}
    with pytest.raises(UsageError, match="is no rounding of that in"):
        compare_dtypes(small, emulating_device())


def test_a_type_of_other_data_is_left_out_where_two_others_remain():
    kernel = registry.get("matmul_fused")
    sizes = {"m": 64, "n": 64, "k": 64}
    made = {value: kernel(**sizes, dtype=value) for value in ("bf16", "f16", "s8")}
    left_out: list[str] = []
    found = compare_dtypes(made, emulating_device(), variants=("fused",), leave_out=left_out.append)
    assert [of.value for of in found] == ["bf16", "f16"]
    assert left_out == ["s8 is left out: its inputs are no roundings of those in f16"]
    del made["f16"]
    with pytest.raises(UsageError, match="is no rounding of that in"):
        compare_dtypes(made, emulating_device(), variants=("fused",), leave_out=left_out.append)


def test_the_same_seed_gives_the_same_errors():
    runs = [
        compare_dtypes(workloads("swiglu", rows=2, cols=64), emulating_device(), variants=("fused",), seed=s)
        for s in (1, 1, 2)
    ]
    a, b, c = ([of.rows[0].accuracy.max_abs for of in run] for run in runs)
    assert np.array_equal(a, b) and not np.array_equal(a, c)
