"""Sessions: breakpoints, stepping, the values of threads, watchpoints, faults, restarts."""

import numpy as np
import pytest

import ptxkit
from ptxkit.debugger.syntax import parse
from ptxkit.errors import UsageError

SOURCE = """
struct P { int a; float b[3]; };
__device__ __noinline__ float sq(float v, int k) { float w = v * v; return w + k; }
__constant__ float coef[4];
extern "C" __global__ void k(const float* x, float* y, int n, P p) {
  __shared__ float tile[64];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float acc = 0;
  for (int j = 0; j < 3; ++j) {
    float t = x[i] * j;
    acc += t + p.b[j];
  }
  tile[threadIdx.x] = acc;
  __syncthreads();
  if (i < n) y[i] = sq(tile[threadIdx.x ^ 1], i) + coef[1];
}
"""
X = np.arange(128, dtype=np.float32)
P = np.array([(7, [1, 2, 3])], dtype=[("a", "i4"), ("b", "f4", 3)])[0]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("debug") / "k.cu"
    path.write_text(SOURCE.lstrip("\n"))
    return path


def session(source, *options, y=None, **settings):
    module = ptxkit.compile(source, device="emulator", options=options)
    out = np.zeros(128, np.float32) if y is None else y
    return ptxkit.debug(module["k"], X, out, np.int32(100), P, grid=2, block=64, **settings)


def test_breakpoint_gives_each_thread_its_own_registers(source):
    with session(source) as s:
        s.break_at("k.cu:12")
        stop = s.run()
        assert (stop.reason, stop.line, stop.threads) == ("breakpoint", 12, 128)
        for thread, cta in ((3, 1), (63, 0), (40, 1)):
            view = stop.thread(thread, cta=cta)
            assert view["%tid.x"] == thread
            assert view["blockIdx.x * blockDim.x + threadIdx.x"] == cta * 64 + thread
            assert view["x[%tid.x + 64 * %ctaid.x]"] == cta * 64 + thread
            assert view["n"] == 100


def test_variables_need_debug_information(source):
    with session(source) as s:
        s.break_at("k.cu:10")
        stop = s.run()
        with pytest.raises(UsageError, match="without -G"):
            stop["acc"]
    with session(source, "-G") as s:
        s.break_at("k.cu:10", "i == 5 && j == 2")
        stop = s.run()
        assert stop.thread().thread == (5, 0, 0)
        assert stop.variables["j"] == 2
        assert stop.variables["acc"] == 5 * 1 + 1 + 2
        assert stop.variables["p"] == {"a": 7, "b": [1.0, 2.0, 3.0]}
        assert stop.thread(6)["acc"] == 6 + 1 + 2
        assert stop["&p.b[1]"] == stop["&p"] + 8
        assert s.resume().reason == "finished"


def test_a_function_stops_where_its_arguments_can_be_read(source):
    with session(source, "-G") as s:
        s.break_at("sq", "k == 70")
        stop = s.run()
        assert (stop.thread().cta, stop.thread().thread) == ((1, 0, 0), (6, 0, 0))
        assert stop.variables["k"] == 70
        assert s.resume().reason == "finished"


ENDLESS = """.version 8.0
.target sm_90a
.address_size 64
.visible .func f(.param .b32 n)
{
    .reg .pred %p; .reg .b32 %r<2>;
    ld.param.b32 %r0, [n];
LOOP:
    sub.s32 %r0, %r0, 1; setp.gt.s32 %p, %r0, 0; @%p bra LOOP;
    ret;
}
.visible .entry k() { { .param .b32 a; st.param.b32 [a], 3; call f, (a); } ret; }
"""


def test_the_beginning_of_a_function_is_outside_of_a_loop():
    module = ptxkit.compile(ENDLESS, device="emulator")
    with ptxkit.debug(module["k"], grid=1, block=1) as s:
        s.break_at("f")
        assert s.run().reason == "breakpoint"
        assert s.resume().reason == "finished"


def test_stepping_moves_one_warp(source):
    with session(source) as s:
        s.break_at("k.cu:12")
        stop = s.run()
        s.focus(3, 1)
        s.delete(1)
        before = stop.ptx_line
        stop = s.stepi()
        assert stop.reason == "step"
        assert stop.ptx_line > before
        assert stop.thread(31, cta=1).ptx_line == stop.ptx_line
        assert stop.thread(32, cta=1).ptx_line == before
        assert stop.thread(3, cta=0).ptx_line == before


def test_stepping_over_a_barrier_lets_the_others_arrive(source):
    with session(source) as s:
        s.break_at("k.cu:13", thread=3, cta=1)
        stop = s.run()
        assert stop.thread().focus.cta == 1
        stop = s.next()
        assert stop.line == 14
        assert stop.thread(40).line >= 13


def test_calls(source):
    y = np.zeros(128, np.float32)
    with session(source, y=y) as s:
        s.break_at("sq")
        stop = s.run()
        assert [c.function for c in stop.thread().backtrace()] == ["sq", "k"]
        assert [c.line for c in stop.thread().backtrace()] == [2, 14]
        stop = s.finish()
        assert stop.thread().function == "k"
        with pytest.raises(UsageError, match="finish"):
            s.finish()
        s.delete(1)
        assert s.resume().reason == "finished"
    acc = X * 3 + 6
    assert np.array_equal(y[:100], (acc**2)[np.arange(100) ^ 1] + np.arange(100))


def test_next_steps_over_calls_and_step_into_them(source):
    with session(source, "-G") as s:
        s.break_at("k.cu:14", "i == 0")
        s.run()
        s.delete(1)
        assert s.next().line == 15
    with session(source, "-G") as s:
        s.break_at("k.cu:14", "i == 0")
        s.run()
        stop = s.step()
        assert (stop.thread().function, stop.line) == ("sq", 2)


def test_watchpoint_stops_at_the_writing_thread(source):
    with session(source) as s:
        s.break_at("k", temporary=True)
        s.run()
        s.watch("y[3]")
        stop = s.resume()
        assert stop.reason == "watchpoint"
        assert stop.thread().thread == (3, 0, 0)
        assert "k.cu:14" in stop.message
        assert stop["y[3]"] == (3 * 2 + 6) ** 2 + 3
        assert s.resume().reason == "finished"


def test_run_again_starts_with_the_same_memory(source):
    y = np.full(128, 5, np.float32)
    with session(source, y=y) as s:
        assert s.run().reason == "finished"
        assert y[0] != 5
        s.break_at("k")
        assert s.run()["y[0]"] == 5


def test_a_stop_is_over_when_the_session_goes_on(source):
    with session(source) as s:
        s.break_at("k")
        stop = s.run()
        s.stepi()
        with pytest.raises(UsageError, match="this stop is no longer current"):
            stop.thread(0)


@pytest.mark.parametrize("text", ["(" * 100 + "1" + ")" * 100, "-" * 150 + "1" + "+1" * 60, "(" * 3000])
def test_an_expression_that_is_too_large_is_refused(text):
    with pytest.raises(UsageError, match="print its parts one by one"):
        parse(text)


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("nothing.cu:3", "no code comes from a file"),
        ("k.cu:99", "after the last line with code"),
        ("kk", "no function"),
        ("k.ptx:9999", "after the last instruction"),
    ],
)
def test_bad_locations(source, location, message):
    with session(source) as s, pytest.raises(UsageError, match=message):
        s.break_at(location)
