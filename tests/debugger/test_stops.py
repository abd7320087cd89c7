"""Faults, deadlocks and races stop at their instruction; stepping works in diverged, waiting and polling warps."""

from pathlib import Path

import numpy as np
import pytest

import ptxkit
from ptxkit.debugger import overview
from ptxkit.debugger.commands import Interpreter
from ptxkit.errors import DeadlockError, MemoryFault, RaceError, TrapError, UsageError

SOURCE = Path(__file__).with_name("faults.cu")


def session(entry, *more, y=None, threads=64, **settings):
    module = ptxkit.compile(SOURCE, device="emulator")
    dtype = np.float32 if entry == "oob" else np.int32
    out = np.zeros(64, dtype) if y is None else y
    return ptxkit.debug(module[entry], out, *more, grid=1, block=threads, **settings)


@pytest.mark.parametrize(
    ("entry", "error", "thread", "line", "settings"),
    [
        ("oob", MemoryFault, 0, 1, {}),
        ("traps", TrapError, 37, 9, {}),
        ("dead", DeadlockError, 0, 3, {}),
    ],
)
def test_a_fault_stops_with_its_state(entry, error, thread, line, settings):
    with session(entry, **settings) as s:
        stop = s.run()
        assert (stop.reason, stop.line) == ("fault", line)
        assert isinstance(stop.error, error)
        assert stop["%tid.x"] == thread
        assert stop["y[0]"] == {"oob": 0, "traps": 3, "dead": 0}[entry]
        ended = s.resume()
        assert ended.reason == "failed"
        with pytest.raises(UsageError, match="has ended"):
            s.stepi()


def test_a_race_stops_at_the_access_that_completes_it():
    with session("race", racecheck="warps") as s:
        stop = s.run()
        assert stop.reason == "race"
        assert stop.line == 15
        assert stop.thread(40)["s[40]"] == 40
        assert isinstance(s.resume().error, RaceError)


def test_a_deadlock_says_what_each_warp_waits_for():
    with session("dead") as s:
        s.run()
        rows = overview.warps(s)
        assert [r["state"] for r in rows] == ["waiting", "waiting"]
        assert "barrier 1 with 32 of 64" in rows[0]["waits_for"]
        assert [(r["barrier"], r["arrived"], r["expected"]) for r in overview.barriers(s)] == [
            ("1", 32, 64),
            ("2", 32, 64),
        ]


def test_stepping_over_a_polling_loop_lets_the_others_run():
    y = np.zeros(64, np.int32)
    with session("flag", y=y) as s:
        s.break_at("faults.cu:20", temporary=True)
        stop = s.run()
        assert stop.thread().thread == (0, 0, 0)
        while stop.line < 21:
            stop = s.next()
        assert s.resume().reason == "finished"
    assert list(y[:2]) == [1, 2]


@pytest.mark.parametrize("thread", [4, 5])
def test_diverged_lanes_meet_again_when_stepped(thread):
    y = np.arange(64, dtype=np.int32)
    with session("diverge", np.int32(100), y=y, threads=32) as s:
        s.break_at("diverge", temporary=True)
        s.run()
        s.focus(thread)
        for _ in range(2000):
            stop = s.stepi()
            if stop.reason == "exited":
                break
        assert s.resume().reason == "finished"
    assert (y[:32] == 100).all()  # lane 1 sums y[0] = 0, which is the value of its warp


def test_a_register_shows_only_what_its_thread_has_written():
    with session("partly", threads=32) as s:
        s.break_at("faults.cu:38", thread=3)
        stop = s.run()
        assert 7 in stop.thread(3).registers.values()
        name = next(n for n, v in stop.thread(3).registers.items() if v == 7)
        assert stop.thread(3)[name] == 7
        with pytest.raises(UsageError, match="not written"):
            stop.thread(20)[name]


def test_info_shows_parts_of_a_diverged_warp():
    with session("diverge", np.int32(0), threads=32) as s:
        s.break_at("faults.cu:27", thread=5)
        s.run()
        masks = {r["lanes"] for r in overview.warps(s) if r["state"] == "ready"}
        assert sum(m.bit_count() for m in masks) == 32
        assert any(m & 0xAAAAAAAA and not m & 0x55555555 for m in masks)


def test_asynchronous_operations_are_listed_until_they_are_performed():
    source = """
#include <ptxkit/ptx/cp_async.cuh>
extern "C" __global__ void copy(const int4* x, int4* y) {
    __shared__ int4 s[32];
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"((unsigned)__cvta_generic_to_shared(s + threadIdx.x)),
                 "l"(x + threadIdx.x));
    asm volatile("cp.async.commit_group;");
    asm volatile("cp.async.wait_group 0;");
    y[threadIdx.x] = s[threadIdx.x];
}
""".replace("#include <ptxkit/ptx/cp_async.cuh>\n", "")
    module = ptxkit.compile(source, device="emulator")
    x, y = np.arange(128, dtype=np.int32), np.zeros(128, np.int32)
    with ptxkit.debug(module["copy"], x, y, grid=1, block=32, completion="latest-legal") as s:
        s.break_at("copy", temporary=True)
        stop = s.run()
        while "wait_group" not in stop.instruction:
            stop = s.stepi()
        (row,) = overview.operations(s)
        assert row["mechanism"] == "cp.async"
        assert row["elements"] == 32
        assert "cp.async" in row["issued_at"]
        assert stop["((@shared int*)s)[5]"] == int(np.array(0xCBCBCBCB, np.uint32).view(np.int32))
        stop = s.stepi()
        assert overview.operations(s) == []
        assert stop["((@shared int*)s)[5]"] == 5


def test_a_conditional_breakpoint_reports_a_condition_that_fails():
    with session("traps") as s:
        s.break_at("traps", "nothing > 3")
        stop = s.run()
        assert stop.reason == "breakpoint"
        assert "cannot be evaluated" in stop.message


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("expression", "shown"),
    [
        ("1.5", "1.5"),
        ("(float)1.5 / 0", "inf"),
        ("-1 / 0.0", "-inf"),
        ("0.0 / 0", "nan"),
        ("(float)3e38 * 2", "inf"),
    ],
)
def test_floating_point_numbers_are_shown_and_divided_as_on_the_device(expression, shown):
    with session("traps") as s:
        d = Interpreter(s)
        d.execute("start")
        assert d.execute(f"print {expression}").text == f"{expression} = {shown}"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("print", "expression is missing"),
        ("print 1 +", "not expected"),
        ("print nothing", "without -G"),
        ("print %r999", "no register"),
        ("print y[99999999]", "399999744 bytes past the end of .y."),
        ("print 1/0", "division by zero"),
        ("print 5 % 0", "division by zero"),
        ("print/q y", "no format"),
        ("x/4zz y", "a count, a format"),
        ("thread 99", "no thread 99"),
        ("cta 1", "no CTA 1"),
        ("thread x", "number or x,y,z"),
        ("frame 3", "no call 3"),
        ("delete 77", "no breakpoint 77"),
        ("step -1", "at least 1"),
        ("stepi many", "whole number"),
        ("break faults.cu:3 if", "condition is missing"),
        ("frobnicate", "no command"),
        ("info nothing", "no command"),
        ("finish", "the kernel itself"),
        ("lane 40", "0 to 31"),
        ("set scheduler-locking maybe", "step or off"),
    ],
)
def test_commands_in_error_leave_the_session_as_it_was(line, message):
    with session("traps") as s:
        d = Interpreter(s)
        d.execute("start")
        before = s.here.ptx_line
        with pytest.raises(UsageError, match=message):
            d.execute(line)
        assert s.here.ptx_line == before
        assert s.stepi().reason == "step"


def test_hand_written_ptx_is_stepped_by_its_own_lines():
    module = ptxkit.compile(Path(__file__).parents[2] / "ptx" / "saxpy.ptx", device="emulator")
    x, y = np.arange(64, dtype=np.float32), np.ones(64, np.float32)
    with ptxkit.debug(module["saxpy"], np.float32(2), x, y, np.uint32(64), grid=1, block=64) as s:
        stop = s.run(stop_at_entry=True)
        first = stop.ptx_line
        assert s.next().ptx_line == first + 1
        assert s.step().ptx_line == first + 2
