"""Arguments of wrong types, to every public function: one UsageError of one line that names the argument."""

from __future__ import annotations

import numpy as np
import pytest

import ptxkit
from ptxkit import testing
from ptxkit.arguments import FLAG, MAPPING, NOTHING, TEXT, check, shown, takes, whole
from ptxkit.errors import UsageError
from ptxkit.kernels.elementwise.saxpy import Saxpy

SOURCE = 'extern "C" __global__ void k(float* y, int n) { y[threadIdx.x] = n; }'
WRONG = (
    5, -1, 1.5, "nonsense", b"x", None, True, [], ["a", 5], {"a": 1}, object(), int, np.float32(3), np.zeros(3),
    (1, 2, 3, 4), float("nan"), "\0", 10**30, len,
)  # fmt: skip


@pytest.fixture(scope="module")
def calls():
    """Name -> (function, right positional arguments, right named arguments)."""
    device = ptxkit.device("emulator")
    module = ptxkit.compile(SOURCE, device=device)
    kernel, array = module["k"], device.upload(np.zeros(8, np.float32))
    y, launch = np.zeros(8, np.float32), {"grid": 1, "block": 8, "shared": 0, "cluster": None, "cooperative": False}
    session = ptxkit.debug(kernel, y, np.int32(3), grid=1, block=8)
    stop = session.run(stop_at_entry=True)
    limits = dict.fromkeys(("sectors", "bank_conflicts", "instructions", "spills", "registers"))
    verified = {"variants": "scalar", "device": device, "target": None, "seed": 0, "inputs": None, "tile": None, **limits}
    verified |= {"tolerance": None, "completion": "eager", "racecheck": False}
    sass = {"has": (), "lacks": (), "spills": None, "max_registers": None, "max_instructions": None, "min_ctas_per_sm": None}
    where = {"thread": 0, "cta": 0}
    yield {
        "cdiv": (ptxkit.cdiv, (5, 2), {}),
        "compile": (ptxkit.compile, (SOURCE,), {"target": None, "defines": None, "device": device, "options": ()}),
        "debug": (ptxkit.debug, (kernel, y, np.int32(3)), launch),
        "device": (ptxkit.device, ("emulator",), {}),
        "facts_for": (device.facts_for, (None,), {}),
        "upload": (device.upload, (y,), {"name": ""}),
        "empty": (device.empty, ((3,), np.float32), {"name": ""}),
        "load": (device.load, (module.image,), {"source": None}),
        "measure": (device.measure, (lambda: None,), {"samples": 1}),
        "settings": (device.settings, (), {"racecheck": "warps", "trap": (), "max_instructions": 5, "completion": "eager"}),
        "copy_from": (array.copy_from, (y,), {}),
        "fill": (array.fill, (0,), {}),
        "poison": (array.poison, (0,), {}),
        "view": (array.view, (np.int32,), {"shape": (8,)}),
        "DeviceArray": (ptxkit.DeviceArray, (device, (3,), np.float32), {"name": ""}),
        "Launch": (ptxkit.Launch, ("k", 1, 32), {"args": (), "shared": 0, "cooperative": False, "template": (), "defines": {}}),
        "Tile": (ptxkit.Tile, ({"A": 1},), {}),
        "Tolerance": (ptxkit.Tolerance, (), {"relative": 1e-3}),
        "uniform": (ptxkit.uniform, (np.random.default_rng(0), (3,)), {}),
        "Work": (ptxkit.Work, (), {"flops": 1, "bytes": 2, "unit": "f32"}),
        "Saxpy": (Saxpy, (), {"n": 100}),
        "make": (Saxpy.make, ((100,),), {"options": {}, "small": False}),
        "of": (Saxpy.of, ({"n": 5},), {}),
        "variant": (Saxpy.variant, ("scalar",), {}),
        "kernel": (kernel, (y, np.int32(3)), launch),
        "prepare": (kernel.prepare, (array, np.int32(3)), launch),
        "TensorMap": (ptxkit.TensorMap, (array,), {"box": (8,)}),
        "assert_verified": (testing.assert_verified, (Saxpy(n=64),), verified),
        "assert_sass": (testing.assert_sass, ("saxpy:scalar@sm_80",), sass),
        "break_at": (session.break_at, ("k",), {"condition": None, **where}),
        "watch": (session.watch, ("n",), {}),
        "delete": (session.delete, (99,), {}),
        "focus": (session.focus, (), where),
        "thread_view": (session.view, (), where),
        "thread": (stop.thread, (), where),
        "value": (stop.__getitem__, ("n",), {}),
        "text": (session.here.text, ("n",), {"style": ""}),
    }
    session.close()


NAMES = """cdiv compile debug device facts_for upload empty load measure settings copy_from fill poison view DeviceArray Launch
Tile Tolerance uniform Work Saxpy make of variant kernel prepare TensorMap assert_verified assert_sass break_at watch delete
focus thread_view thread value text""".split()


def outcome(function, args, kwargs):
    """The message of the UsageError; None if the call is valid, or a value is wrong for another reason than its type."""
    try:
        function(*args, **kwargs)
    except UsageError as error:
        return str(error)
    except (ptxkit.errors.PtxkitError, AssertionError):
        return None
    return None


@pytest.mark.parametrize("name", NAMES)
def test_a_value_of_a_wrong_type_is_one_usage_error(calls, name):
    function, args, kwargs = calls[name]
    wrong = [value for value in WRONG if not (name == "measure" and value is len)]  # it is called, and raises an error
    messages = [outcome(function, (*args[:i], w, *args[i + 1 :]), kwargs) for i in range(len(args)) for w in wrong]
    messages += [outcome(function, args, {**kwargs, key: w}) for key in kwargs for w in wrong]
    found = [message for message in messages if message is not None]
    assert found, "nothing was refused"
    assert [message for message in found if "\n" in message] == []


def test_unknown_and_surplus_sizes_of_a_description():
    with pytest.raises(UsageError, match=r"saxpy has no size or option 'm'; there are n|did you mean 'n'"):
        Saxpy(m=1)
    with pytest.raises(UsageError, match="saxpy takes 1 values? by position, n, not 2"):
        Saxpy(1, 2)
    with pytest.raises(UsageError, match="n is given twice"):
        Saxpy(1, n=2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d, k: d.load(5), "load: image takes an Image of ptxkit.compiler"),
        (lambda d, k: d.measure(5, 1), "measure: launch takes a function without arguments, not 5"),
        (lambda d, k: d.measure(len, 0), "measure: samples takes a whole number of at least 1, not 0"),
        (lambda d, k: k(np.zeros(8, np.float32), np.int32(1), grid=1, block=8, cooperative="yes"), "cooperative takes True or"),
        (lambda d, k: ptxkit.DeviceArray(5, 3, "f4"), "DeviceArray: memory takes a device, not 5"),
        (lambda d, k: ptxkit.Launch("k", 1, 1, shared="1"), "shared of Launch k takes a whole number of at least 0, not '1'"),
        (lambda d, k: testing.assert_sass("saxpy", has=np.zeros(3)), "assert_sass: has takes .* not a ndarray"),
    ],
)
def test_messages_name_the_argument_and_what_it_takes(call, message):
    device = ptxkit.device("emulator")
    with pytest.raises(UsageError, match=message):
        call(device, ptxkit.compile(SOURCE, device=device)["k"])


def test_omitted_arguments_and_values_that_a_rule_allows_pass():
    @takes(a=whole(1, 3), b=TEXT | NOTHING, c=FLAG, d=MAPPING)
    def f(a, b=5, *, c=False, d=()):
        return a, b, c, d

    assert f(np.int8(3)) == (3, 5, False, ())
    assert f(1, None, c=np.True_, d={}) == (1, None, True, {})
    for wrong in ({"a": 0}, {"a": 4}, {"a": True}, {"a": 1, "c": 1}, {"a": 1, "d": []}):
        with pytest.raises(UsageError, match="^f: "):
            f(**wrong)


def test_a_value_is_shown_in_one_short_line():
    for value in (np.zeros(10000), "x" * 1000, [np.zeros(3)], {i: i for i in range(1000)}, object(), lambda: 0):
        assert len(shown(value)) < 62 and "\n" not in shown(value)
    assert (shown("a"), shown((1, 2)), shown(int)) == ("'a'", "(1, 2)", "<class 'int'>")
    with pytest.raises(UsageError, match="^x takes a string, not None$"):
        check("x", None, TEXT)
