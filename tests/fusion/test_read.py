"""Graphs from JSON and Python files."""

from __future__ import annotations

import copy
import json
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxkit.errors import DescriptionError, UnavailableError, UsageError
from ptxkit.fusion.read import from_json, read_graph

MLP = {
    "name": "mlp",
    "inputs": {
        "x": {"shape": [64, 128], "dtype": "bf16"},
        "w": {"shape": [512, 128], "dtype": "bf16"},
    },
    "operations": [
        {"name": "up", "kind": "linear", "inputs": ["x", "w"]},
        {"name": "act", "kind": "gelu", "inputs": ["up"], "outputs": ["y"]},
        {"name": "scaled", "kind": "multiply", "inputs": ["y"], "attributes": {"value": 0.5}},
    ],
    "outputs": ["y"],
    "repeat": 3,
}


def changed(**changes):
    value = copy.deepcopy(MLP)
    for path, new in changes.items():
        *above, last = path.split("__")
        target = value
        for key in above:
            target = target[int(key) if key.isdigit() else key]
        target[int(last) if last.isdigit() else last] = new
    return value


def test_json():
    graph = from_json(MLP)
    assert [operation.name for operation in graph.operations] == ["up", "act", "scaled"]
    assert graph.shape("y") == (64, 512) and graph.outputs == {"y", "scaled"} and graph.repeat == 3


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "must be an object"),
        ({}, "lacks 'inputs'"),
        ({"inputs": {}, "operations": []}, "no operation that launches"),
        (changed(operation=[]), "unknown key 'operation'; did you mean 'operations'"),
        (changed(repeat=0), "repeat must be a positive number"),
        (changed(repeat=10**400), "repeat must be a positive number up to 2^60, not an int"),
        (changed(operations__1__attributes={"kind": "exp"}), "has no attribute 'kind'"),
        (changed(operations__1__attributes={"self": 1}), "has no attribute 'self'"),
        (changed(repeat=True), "repeat must be a positive number"),
        (changed(inputs=[]), "inputs must be an object"),
        (changed(inputs__x={"shape": [4]}), "input 'x' lacks 'dtype'"),
        (changed(inputs__x__shape=[64, 0]), "tensor 'x': the shape must consist of positive numbers"),
        (changed(operations={}), "operations must be a list"),
        (changed(operations__0={"kind": "linear"}), "operation 1 lacks 'inputs'"),
        (changed(operations__0__inputs="x"), "operation 1: inputs must be a list of names"),
        (changed(operations__0__kind=3), "name and kind must be texts"),
        (changed(operations__1__kind="galu"), "no kind 'galu'; did you mean 'gelu'"),
        (changed(operations__1__attributes={"name": 1}), "attributes must be an object"),
        (changed(operations__1__outputs=["a", "b"]), "has 1 results; 2 are named"),
        (changed(operations__2__inputs=["z"]), "reads 'z', which no earlier operation writes"),
        (changed(outputs=["q"]), "output 'q' is no tensor"),
        (changed(name=" "), "the name of the graph must be a text"),
        (changed(operations__1={"kind": "dropout", "inputs": ["up"], "attributes": {"p": 2}}), "must be a number from 0 to 1"),
        (changed(operations__1={"kind": "quantize", "inputs": ["up"], "attributes": {"scale": 0}}), "must be a number above 0"),
    ],
)
def test_refused_json(value, message):
    with pytest.raises(UsageError) as error:
        from_json(value)
    assert message in str(error.value)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 9)
    | st.floats()
    | st.sampled_from(["x", "w", "gelu", "linear", "bf16", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "kind", "inputs", "shape", "dtype", "value", "attributes"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_json_is_a_graph_or_refused(data):
    value = copy.deepcopy(MLP)
    for _ in range(data.draw(st.integers(1, 3))):
        target = value
        while isinstance(target, (dict, list)) and target and data.draw(st.booleans()):
            keys = list(target) if isinstance(target, dict) else list(range(len(target)))
            key = data.draw(st.sampled_from(keys))
            if isinstance(target[key], (dict, list)) and data.draw(st.booleans()):
                target = target[key]
            else:
                target[key] = data.draw(JSON)
    try:
        assert from_json(value).operations
    except UsageError as error:
        assert "\n" not in str(error)


def written(tmp_path, text, name="net.py"):
    file = tmp_path / name
    file.write_text(text)
    return file


def test_files(tmp_path):
    assert read_graph(written(tmp_path, json.dumps(MLP), "mlp.json")).name == "mlp"
    start = "from ptxkit.fusion import GraphBuilder\ng = GraphBuilder()\n"
    text = start + "g.gelu(g.input('x', (4, 4), 'f32'))\ngraph = g.graph()\n"
    assert read_graph(written(tmp_path, text)).operations[0].kind == "gelu"
    function = text.replace("graph = g.graph()", "def graph(): return g.graph()")
    assert read_graph(written(tmp_path, function)).operations[0].kind == "gelu"


@pytest.mark.parametrize(
    ("name", "text", "error", "message"),
    [
        ("a.json", "{", UsageError, "a.json:1: not JSON"),
        ("a.json", '{"name": 1, "name": 2}', UsageError, "'name' occurs twice"),
        ("a.json", "[" * 100000, UsageError, "nested too deeply"),
        ("a.json", "[]", UsageError, "a.json: the graph must be an object"),
        ("a.json", json.dumps(changed(inputs=[])), UsageError, "a.json: inputs must be an object"),
        ("a.json", json.dumps(changed(operations__1__kind="galu")), UsageError, "a.json: operation 'act': no kind 'galu'"),
        ("a.json", json.dumps(changed(operations__2__inputs=["z"])), UsageError, "a.json: operation 'scaled' reads 'z'"),
        ("a.json", '{"repeat": ' + "9" * 5000 + "}", UsageError, "a.json: there is an integer of thousands of digits"),
        ("a.py", "raise ValueError('one\\ntwo')\n", DescriptionError, "a.py:1: ValueError: one two"),
        (
            "a.py",
            "class E(Exception):\n    def __str__(self): raise RuntimeError\nraise E()\n",
            DescriptionError,
            "a.py:3: E: its text cannot be made",
        ),
        ("a.py", "import torch.absent\n", (UnavailableError, DescriptionError), "a.py:1"),
        ("a.txt", "", UsageError, "give a .json or .py file"),
        ("a.py", "x = 1\n", UsageError, "defines neither graph, nor module and inputs"),
        ("a.py", "graph = 3\n", UsageError, "graph must be a Graph"),
        ("a.py", "\n1 / 0\n", DescriptionError, "a.py:2: ZeroDivisionError"),
        ("a.py", "def graph(:\n", DescriptionError, "a.py:1"),
        ("a.py", "\ndef graph():\n    raise KeyError('q')\n", DescriptionError, "a.py:3"),
        ("a.py", "import sys\nsys.exit(0)\n", DescriptionError, "a.py:2"),
        (
            "a.py",
            "from ptxkit.fusion import GraphBuilder\ng = GraphBuilder()\ng.gelu('x')\n",
            UsageError,
            "a.py:3: operation 'gelu' reads 'x'",
        ),
    ],
)
def test_refused_files(tmp_path, name, text, error, message):
    with pytest.raises(error) as found:
        read_graph(written(tmp_path, text, name))
    assert message in str(found.value)
    assert name in str(found.value).split(": ")[0]


def test_missing_files(tmp_path):
    with pytest.raises(UsageError, match="there is no file"):
        read_graph(tmp_path / "absent.json")
    with pytest.raises(UsageError, match="is a directory"):
        read_graph(tmp_path)


def test_a_torch_module_without_torch_is_not_available(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    with pytest.raises(UnavailableError, match=r"net.py:1: torch is not installed; pip install torch"):
        read_graph(written(tmp_path, "import torch\nmodule, inputs = torch.nn.Linear(4, 4), ()\n"))
