"""Include directories and macros that a description gives its sources."""

from __future__ import annotations

import pytest

from ptxkit.bench.measure.run import Run
from ptxkit.errors import DescriptionError
from ptxkit.runtime.device import device
from ptxkit.workload import registry
from ptxkit.workload.build import build

INCLUDING = '''
import numpy as np
from ptxkit import Launch, Work, Workload, variant

class Including(Workload):
    source = "including.cu"
    include_dirs = {dirs}
    defines = {{"BY": 3, "OF": "int"}}
    n: int = 32
    def inputs(self, rng): return {{"x": np.arange(self.n, dtype=np.int32)}}
    def reference(self, x): return {{"x": x * 3 + 4}}
    def work(self): return Work(flops=0, bytes=8 * self.n)

    @variant
    def plain(self): return [Launch("including", 1, self.n, ("x",), defines={{"PLUS": 4}})]

    @variant
    def replaced(self): return [Launch("including", 1, self.n, ("x",), defines={{"PLUS": 4, "BY": "(1 + 2)"}})]
'''


def including(tmp_path, dirs):
    (tmp_path / "headers").mkdir(exist_ok=True)
    (tmp_path / "headers" / "by.cuh").write_text("__device__ int by(int x) { return x * BY + PLUS; }\n")
    (tmp_path / "including.cu").write_text(
        '#include "by.cuh"\nextern "C" __global__ void including(OF* x) { x[threadIdx.x] = by(x[threadIdx.x]); }\n'
    )
    (tmp_path / "including.py").write_text(INCLUDING.format(dirs=dirs))
    return registry.load_file(tmp_path / "including.py").make()


def test_a_description_may_name_include_directories_and_macros(tmp_path):
    report = Run(including(tmp_path, ["headers"]), device("emulator")).run()
    assert [(v.name, v.verified) for v in report.cases[0].rows] == [("plain", True), ("replaced", True)]


@pytest.mark.parametrize(
    ("dirs", "message"),
    [('"headers"', "include_dirs must be a list of dir.*, not 'headers'"), (["nowhere"], "there is no directory .*nowhere")],
)
def test_include_directories_that_are_none(tmp_path, dirs, message):
    workload = including(tmp_path, dirs)
    with pytest.raises(DescriptionError, match=message):
        build(workload, workload.variant("plain"))
