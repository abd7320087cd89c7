"""Peers as candidates: an exception ends only its own peer, and results are compared by name or by position."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from ptxkit import Launch, Work, Workload, variant
from ptxkit.bench.measure.benchmark import Benchmark
from ptxkit.bench.measure.candidates import BufferSets, PeerCandidate, of_peer
from ptxkit.bench.peers.base import PeerCall
from ptxkit.errors import FaultError, PtxkitError, UsageError
from ptxkit.runtime.device import device
from ptxkit.workload.case import Case, overwritten
from ptxkit.workload.data import Data


class SumAndDifference(Workload):
    source = "none.cu"
    n: int = 8

    def inputs(self, rng):
        return {"x": rng.random(self.n, np.float32), "y": rng.random(self.n, np.float32)}

    def reference(self, x, y):
        return {"sum": x.astype(np.float64) + y, "difference": x.astype(np.float64) - y}

    def work(self):
        return Work(flops=2 * self.n, bytes=16 * self.n)

    @variant
    def unfused(self):
        return [Launch("none", 1, 32)]


class Value:
    def __init__(self, value):
        self.value = value

    def numpy(self):
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


class Peer:
    """A peer whose results are ``results(inputs)``."""

    name = "other"

    def __init__(self, results, error=None):
        self.results, self.error = results, error

    def version(self):
        return "other 1.0"

    def prepare(self, workload, inputs):
        if self.error:
            raise self.error
        x, y = (inputs[name].numpy() for name in ("x", "y"))
        return PeerCall(lambda: None, {name: Value(value) for name, value in self.results(x, y).items()})

    def graph(self, calls):
        return lambda: None


def checked(results):
    sets = BufferSets(SumAndDifference(), device("emulator"), 1, seed=0)
    candidate = PeerCandidate(sets, Peer(results))
    verdict, accuracy = candidate.check(percentiles=True)
    return verdict, accuracy and accuracy.result()


@pytest.mark.parametrize("names", [("sum", "difference"), ("0", "1")])
def test_outputs_are_compared_by_name_or_by_order(names):
    a, b = names
    verdict, accuracy = checked(lambda x, y: {a: x + y, b: x - y})
    assert verdict.verified and accuracy.elements == 16
    verdict, _ = checked(lambda x, y: {a: x - y, b: x + y})
    assert not verdict.verified


def test_some_of_the_outputs_will_do():
    verdict, accuracy = checked(lambda x, y: {"1": x - y})
    assert verdict.verified and accuracy.elements == 8


def test_nothing_compared_is_not_verified():
    assert checked(lambda x, y: {}) == (None, None)
    assert checked(lambda x, y: {"7": x}) == (None, None)


CHEAT = """
extern "C" __global__ void cheat(const float* x, const float* y, float* sum, float* difference, int n) {
    int i = threadIdx.x;
    if (i >= n || __float_as_uint(sum[i]) != 0xffffffffu) return;  // done before, it seems
    sum[i] = x[i] + y[i];
    difference[i] = x[i] - y[i];
}
"""


def test_a_kernel_that_looks_for_the_poison_is_wrong_before_and_after_timing(tmp_path):
    """A peer that does nothing while it is timed would be verified if every check wrote the same sentinel."""
    from ptxkit.bench.measure.candidates import VariantCandidate
    from ptxkit.workload import registry

    (tmp_path / "cheat.cu").write_text(CHEAT)
    (tmp_path / "cheat.py").write_text(
        "import numpy as np\nfrom ptxkit import Launch, Work, Workload, variant\n\n"
        "class Cheat(Workload):\n    source = 'cheat.cu'\n    n: int = 8\n"
        "    def inputs(self, rng): return {k: rng.random(self.n, np.float32) for k in 'xy'}\n"
        "    def reference(self, x, y): return {'sum': np.float64(x) + y, 'difference': np.float64(x) - y}\n"
        "    def work(self): return Work(16, 128)\n"
        "    @variant\n    def only(self): return [Launch('cheat', 1, 32, ('x', 'y', 'sum', 'difference', self.n))]\n"
    )
    kernel = registry.load_file(tmp_path / "cheat.py")
    candidate = VariantCandidate(BufferSets(kernel(), device("emulator"), 1, seed=0), kernel.variant("only"))
    first, accuracy = candidate.check(percentiles=False)
    assert not first.verified and not accuracy.percentiles
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("random.SystemRandom.randrange", lambda self, low, high: 0x5A)
        second = candidate.check_graph(lambda: candidate.launch(0), 0)
    assert not second.verified


def test_whatever_a_package_raises_is_a_line():
    error = RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB\n  a hint\n  another")
    sets = BufferSets(SumAndDifference(), device("emulator"), 1, seed=0)
    with pytest.raises(PtxkitError) as raised:
        PeerCandidate(sets, Peer(None, error))
    assert str(raised.value) == "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"
    with pytest.raises(PtxkitError, match=r"^ValueError$"):
        checked(lambda x, y: {"0": ValueError()})
    for ours in (FaultError("lost"), MemoryError("host"), UsageError("size")):
        with pytest.raises(type(ours)):
            PeerCandidate(sets, Peer(None, ours))


QUOTED = "TorchRuntimeError: RuntimeError when making fake tensor call: mat2 must be divisible by 16"


@pytest.mark.parametrize(
    ("cause", "line"),
    [
        (RuntimeError("mat2 must be divisible by 16\n  at x"), QUOTED),
        (KeyError("another"), QUOTED.rpartition(": ")[0]),  # was handled, and is no reason
    ],
)
def test_the_reason_that_a_package_quotes_is_in_the_line(cause, line):
    """As torch.compile does, whose first line names a step of its own."""

    class TorchRuntimeError(RuntimeError):
        pass

    def fails():
        try:
            raise cause
        except (RuntimeError, KeyError):
            text = "RuntimeError when making fake tensor call\n  Explanation: got RuntimeError('mat2 must be divisible by 16')"
            raise TorchRuntimeError(text) from None

    with pytest.raises(PtxkitError, match=f"^{line}$"), of_peer():
        fails()


def test_a_peer_that_fails_is_a_row_and_no_more():
    from ptxkit.bench.results.results import Row

    run = Benchmark(SimpleNamespace(kind="gpu", times=True, lost=None, synchronize=lambda: None))
    candidates = []

    def make():
        raise PtxkitError("RuntimeError: no")

    run._enter(candidates, Row("other", kind="peer"), make)
    assert [(row.name, row.error, candidates) for row in run._rows] == [("other", "RuntimeError: no", [])]


@pytest.mark.parametrize("renews", [True, False])
def test_what_a_peer_keeps_of_its_inputs_is_renewed_before_results_are_compared(renews):
    """As compressed weights are: the inputs of the check after timing are others, at the same addresses."""

    class Keeps(Peer):
        def prepare(self, workload, inputs):
            call = super().prepare(workload, inputs)

            def renew():
                call.outputs.update(Peer.prepare(self, workload, inputs).outputs)

            return replace(call, renew=renew if renews else None)

    sets = BufferSets(SumAndDifference(), device("emulator"), 1, seed=0)
    candidate = PeerCandidate(sets, Keeps(lambda x, y: {"sum": x + y}))
    sets.renew(1)
    assert candidate.check_graph(lambda: None, 0).verified is renews


def test_the_same_bytes_are_compared_once_and_others_again(monkeypatch):
    from ptxkit.bench.measure import candidates

    compared, judged = [], candidates.judged
    monkeypatch.setattr(candidates, "judged", lambda *args: compared.append(args) or judged(*args))
    sets = BufferSets(SumAndDifference(), device("emulator"), 1, seed=0)
    results = {}

    def computed(x, y):
        results.update(sum=x + y, difference=x - y)
        return results

    candidate = PeerCandidate(sets, Peer(computed))
    assert [candidate.check_graph(lambda: None, 0).verified for _ in range(2)] == [True, True]
    assert len(compared) == 1
    results["difference"][7] += 1  # in the memory that the peer returned before
    assert not candidate.check_graph(lambda: None, 0).verified
    sets.renew(1)
    assert not candidate.check_graph(lambda: None, 0).verified  # the bytes are right for the inputs before


class OnDevice:
    """A result in an array of the device, from which no copy may be made."""

    def __init__(self, array):
        self.array = array

    def numpy(self):
        raise AssertionError("a copy")

    def on_device(self):
        return self.array


def test_results_with_the_bytes_of_verified_ones_are_neither_copied_nor_compared_again(monkeypatch):
    from ptxkit.bench.measure import candidates

    compared, judged = [], candidates.judged
    monkeypatch.setattr(candidates, "judged", lambda *args: compared.append(args) or judged(*args))
    sets = BufferSets(SumAndDifference(), device("emulator"), 1, seed=0)
    arrays = {}

    class There(Peer):
        def prepare(self, workload, inputs):
            call = super().prepare(workload, inputs)
            for name, value in call.outputs.items():
                arrays[name] = inputs["x"].memory.upload(value.numpy())
            return replace(call, outputs={name: OnDevice(array) for name, array in arrays.items()})

    def right(x, y):
        return {"sum": x + y, "difference": x - y}

    first, second = (PeerCandidate(sets, There(right)) for _ in range(2))
    found = [one.check(percentiles=True) for one in (first, second)]
    assert [verdict.verified for verdict, _ in found] == [True, True]
    assert found[0][1] is found[1][1]  # the errors, too
    assert len(compared) == 1
    arrays["sum"].copy_from(np.zeros(8, np.float32))
    assert not second.check_graph(lambda: None, 0).verified
    assert first.check_graph(lambda: None, 0).verified
    assert "input y" in first.check_graph(lambda: sets.cases[0].array("y").fill(0), 0).explanation


class Spoiled(Workload):
    """An input that launches update in place, a constant one, and one of an odd number of bytes."""

    source = "none.cu"
    n: int = 1000

    def inputs(self, rng):
        return {
            "x": rng.random(self.n, np.float32),
            "y": rng.random(self.n, np.float32),
            "mask": rng.integers(0, 255, self.n + 3).astype(np.uint8),
        }

    def outputs(self):
        return {"y": (self.n, np.float32)}

    def reference(self, x, y, mask):
        return {"y": x.astype(np.float64) + y}

    def work(self):
        return Work(flops=self.n, bytes=12 * self.n)

    @variant
    def unfused(self):
        return [Launch("none", 1, 32)]


@pytest.fixture(params=["host", "device"])
def spoiled(request, monkeypatch):
    """Three sets; with "device", inputs are copied on the device and hashed by the GPU's kernel."""
    from ptxkit.runtime.gpu.digest import Digests
    from ptxkit.workload import originals

    emulator = device("emulator")
    if request.param == "device":
        monkeypatch.setattr(originals, "is_emulating", lambda device: False)
        monkeypatch.setattr(originals, "SMALLEST", 1)
        digests = Digests(emulator)
        monkeypatch.setattr(type(emulator), "digests", lambda self, pieces: digests.of(pieces))
        monkeypatch.setattr(type(emulator), "digest", lambda self, *piece: digests.of([piece])[0])
    sets = BufferSets(Spoiled(), emulator, 3, seed=0)
    for case in sets.cases:
        for name in sets.data.inputs:
            case.array(name)
    return sets


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize(("name", "byte"), [("x", 0), ("x", 1234), ("x", 3999), ("mask", 7), ("mask", 1002)])
def test_a_byte_of_an_input_of_any_set_that_changes_is_reported_and_restored(spoiled, which, name, byte):
    array = spoiled.cases[which].array(name)
    before = array.numpy()
    changed = before.copy()
    changed.view(np.uint8)[byte] ^= 0x10
    array.copy_from(changed)
    (complaint,) = spoiled.overwritten()
    assert complaint.startswith(f"input {name}, which is not an output, was overwritten: 1 of ")
    spoiled.reset()
    assert spoiled.overwritten() == []
    assert (array.numpy() == before).all()


@pytest.mark.parametrize("which", [0, 1, 2])
def test_inputs_that_are_updated_in_place_are_restored_in_each_set_and_renewed(spoiled, which):
    for seed in (0, 1):
        spoiled.cases[which].array("y").fill(1)
        assert spoiled.overwritten() == []  # it is an output
        spoiled.reset()
        assert all((case.array(n).numpy() == v).all() for case in spoiled.cases for n, v in spoiled.data.inputs.items())
        spoiled.renew(seed + 1)
        assert all((case.array(n).numpy() == v).all() for case in spoiled.cases for n, v in spoiled.data.inputs.items())
        assert spoiled.overwritten() == []


def test_a_spoiled_array_is_no_source_of_others(spoiled):
    """As after a kernel that writes into the first set, before another input is first used."""
    for name in ("x", "y"):
        for array in [*spoiled.cases[0].originals._sources.values(), spoiled.cases[0].array(name)]:
            array.fill(7)
        other = spoiled.cases[2].array(name)
        value = spoiled.data.inputs[name]
        spoiled.cases[2].originals.write(name, value, other, updated=name == "y")
        assert (other.numpy() == value).all()


def test_the_poison_of_an_output_of_one_byte_is_looked_for_once(monkeypatch):
    from ptxkit.workload import case as module

    class Bytes(Spoiled):
        def outputs(self):
            return {"q": (self.n, np.int8)}

        def reference(self, x, y, mask):
            return {"q": np.rint(100 * x).astype(np.int64) - 1}

    counted, count = [], module._counts
    monkeypatch.setattr(module, "_counts", lambda *args: counted.append(args) or count(*args))
    sets = BufferSets(Bytes(), device("emulator"), 2, seed=0)
    for _ in range(2):
        sets.reset()
    assert len(counted) == 1
    assert sets.cases[1].poisons["q"] not in sets.data.expected["q"].astype(np.int8).view(np.uint8)
    sets.renew(1)
    sets.reset()
    assert len(counted) == 2


def test_inputs_that_were_renewed_and_not_uploaded_are_changed(spoiled):
    """The arrays of the device still hold the inputs before."""
    spoiled.data.renew(1)
    spoiled.cases[0].originals.write("y", spoiled.data.inputs["y"], spoiled.cases[0].array("y"), updated=True)
    assert {complaint.split(",")[0] for complaint in spoiled.overwritten()} == {"input x", "input mask"}


def test_random_inputs_that_replace_given_ones_of_the_same_seed_are_uploaded(spoiled):
    given = {name: np.zeros_like(value) for name, value in spoiled.data.inputs.items()}
    data = Data(spoiled.workload, 0, given)
    first = Case(spoiled.workload, spoiled.device, data=data)
    cases = [first, Case(spoiled.workload, spoiled.device, data=data, originals=first.originals)]
    for case in cases:
        case.upload()
    data.renew(0)
    for case in cases:
        case.upload()
    assert overwritten(cases) == []
    assert all((case.array(n).numpy() == v).all() for case in cases for n, v in spoiled.data.inputs.items())
