"""The report of ``bench overhead``, and its refusal without a GPU."""

from __future__ import annotations

import csv
import io
import json

import pytest

from ptxkit.bench.measure import overhead
from ptxkit.bench.report import overhead as report
from ptxkit.bench.results.overhead import GROUP, Cost
from ptxkit.bench.results.statistics import summarize
from ptxkit.compiler import compile_source
from ptxkit.runtime.device import device as open_device

FOUND = [Cost("bound", summarize([20.0, 21.0, 22.0])), Cost("prepared", summarize([2.0]), summarize([1.5, 1.5]))]


def test_a_line_for_each_way():
    table = report.table("a GPU", 4, FOUND)
    assert table.rows == [["bound", "21.00 ± 0.50", "-"], ["prepared", "2.00 ± 0.00", "1.50 ± 0.00"]]
    lines = list(csv.DictReader(io.StringIO(report.csv(FOUND))))
    assert [line["device_us"] for line in lines] == ["", "1.5"]


@pytest.mark.parametrize("arguments", [0, 4, 64])
def test_the_kernel_compiles(arguments):
    image = compile_source(overhead.source(arguments), target="sm_90a", name="nothing.cu")
    assert list(image.functions) == ["nothing"]


@pytest.mark.gpu
def test_costs_on_a_gpu():
    gpu = open_device("gpu")
    found = overhead.costs(gpu, 2, 2)
    assert [cost.launch for cost in found][-1] == f"graph of {GROUP} launches"
    assert found[0].device is None
    assert json.dumps(report.to_json(gpu, 2, 2, found))
