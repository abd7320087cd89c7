"""The choice of a variant: the last step that runs, objections, the model, tiles."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxkit import Launch, Work, Workload, variant
from ptxkit.errors import UnavailableError
from ptxkit.runtime.emulated import EmulatedDevice
from ptxkit.targets import Target
from ptxkit.targets.gpus import GPUS, facts_of, find_gpu, target_of
from ptxkit.workload import choice, registry
from ptxkit.workload.choice import MARGIN, choose, forget, predicted, ranked, remembered
from ptxkit.workload.resolve import resolve

H200 = find_gpu("NVIDIA H200")


class Steps(Workload):
    """Variants that differ in one thing each."""

    source = "saxpy.cu"
    n: int = 1 << 26
    warns: bool = False

    def inputs(self, rng):
        return {}

    def reference(self):
        return {}

    def work(self):
        return Work(flops=2 * self.n, bytes=12 * self.n)

    def temporaries(self):
        return {"t": (self.n, "f32")}

    def launch(self, elements, *names):
        return Launch("saxpy", self.n // (256 * elements), 256, names)

    @variant
    def first(self):
        return [self.launch(4, "x", "y")]

    @variant(slower=lambda w: "it is known to be slower" if w.warns else None)
    def second(self):
        return [self.launch(4, "x", "y")]

    @variant(requires=("sm_100a",))
    def newer(self):
        return [self.launch(4, "x", "y")]


def test_the_last_variant_that_runs_is_chosen():
    choice = choose(Steps(), target=Target.parse("sm_90a"))
    assert choice.variant == "second" and choice.reason == "the last of 2 variants that run here"
    assert choose(Steps(), target=Target.parse("sm_100a")).variant == "newer"


def test_variants_are_compared_for_one_target():
    choice = choose(registry.get("matmul_block_scaled")(m=256, n=256, k=256), EmulatedDevice())
    assert {str(option.resolved.target) for option in choice.candidates} == {"sm_100a"}


def test_an_objection_of_the_description_leaves_the_earlier_one():
    choice = choose(Steps(warns=True), target=Target.parse("sm_90a"))
    assert choice.variant == "first" and choice.reason.endswith("second: it is known to be slower")


def test_a_kernel_in_ptx_is_not_chosen():
    choice = choose(registry.get("saxpy")(n=1 << 20), target=Target.parse("sm_90a"))
    assert choice.variant == "vectorized" and "ptx: written in PTX by hand" in choice.reason


class Worse(Steps):
    """The last variant has many launches, which move an array through device memory."""

    n: int = 1 << 14

    @variant
    def last(self):
        return [self.launch(4, "x", "t", "y") for _ in range(12)]


def test_the_model_overrides_the_order_beyond_its_margin():
    choice = choose(Worse(), target=Target.parse("sm_90a"))
    terms = {option.name: option.terms for option in choice.candidates}
    assert terms["last"].least > MARGIN * terms["second"].total
    assert choice.variant == "second" and choice.reason.startswith("last is predicted to take at least")


class Partial(Steps):
    """The last variant uses a temporary that is declared for a tile that it does not have."""

    def temporaries(self):
        return {"t": ((16, self.n), "f32")}

    @variant
    def last(self):
        return [self.launch(4, "x", "t", "y")]


def test_temporaries_alone_do_not_override_the_order():
    choice = choose(Partial(), target=Target.parse("sm_90a"))
    assert choice.chosen.terms.temporaries > MARGIN * choice.chosen.terms.memory
    assert choice.variant == "last"


class Scalar(Steps):
    """One element for each thread."""

    @variant
    def scalar(self):
        return [self.launch(1, "x", "y")]


def test_terms_grow_with_launches_temporaries_and_waves():
    target = Target.parse("sm_90a")
    large = Worse(n=1 << 26)
    one, many = (predicted(resolve(large, Worse.variant(name), target)) for name in ("first", "last"))
    assert many.launches == 12 * one.launches and many.memory == one.memory
    assert one.temporaries == 0 and many.temporaries == pytest.approx(many.memory * 12 * 4 / 12)
    assert many.total == many.launches + many.memory + many.temporaries
    scalar = predicted(resolve(Scalar(), Scalar.variant("scalar"), target))
    assert scalar.waves == pytest.approx(4 * one.waves, rel=0.05)
    assert scalar.total == scalar.launches + max(scalar.memory, scalar.waves, scalar.arithmetic)


def test_few_tiles_keep_few_sms_busy():
    kernel, target = registry.get("matmul_wgmma"), Target.parse("sm_90a")
    few, many = (kernel(m=m, n=4096, k=4096) for m in (64, 4096))
    times = [predicted(resolve(w, w.variant("step5_persistent"), target)).arithmetic for w in (few, many)]
    assert times[0] > times[1] / 64  # 16 CTAs of 132 SMs


def test_no_variant_is_one_line():
    with pytest.raises(UnavailableError, match="no variant of matmul_wgmma can run: .*sm_90a"):
        choose(registry.get("matmul_wgmma")(), target=Target.parse("sm_80"))


def test_fixed_tile_parameters_are_kept():
    workload = registry.get("saxpy")(n=1 << 20)
    choice = choose(workload, EmulatedDevice(), tile={"THREADS": "512"})
    assert choice.tile == {"THREADS": 512}
    assert str(choice).startswith("vectorized THREADS=512: ") and "on NVIDIA H200" in str(choice)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(GPUS), st.sampled_from(["softmax", "rmsnorm", "layernorm_backward"]), st.data())
def test_every_documented_gpu_has_a_choice_with_a_finite_prediction(gpu, name, data):
    rows, cols = data.draw(st.integers(1, 10**6)), data.draw(st.integers(1, 10**5))
    workload = registry.get(name)(rows=rows, cols=cols).on(facts_of(gpu))
    choice = choose(workload, target=target_of(gpu))
    assert choice.gpu == gpu.name
    assert choice.chosen in choice.candidates
    assert 0 < choice.chosen.terms.total < float("inf")
    assert choice.to_json()["predicted_us"]["total"] == choice.chosen.terms.total


def test_a_choice_is_remembered_for_equal_workloads(monkeypatch):
    device = EmulatedDevice()
    workload = registry.get("saxpy")(n=1 << 20)
    forget()
    first = remembered(workload, device)
    monkeypatch.setattr("ptxkit.workload.choice.choose", lambda *given: pytest.fail("searched again"))
    assert remembered(workload, device) is first
    assert remembered(registry.get("saxpy")(n=1 << 20), device) is first
    with pytest.raises(pytest.fail.Exception):
        remembered(registry.get("saxpy")(n=1 << 21), device)
    forget()
    with pytest.raises(pytest.fail.Exception):
        remembered(workload, device)


def test_choices_that_are_remembered_are_bounded(monkeypatch):
    monkeypatch.setattr("ptxkit.workload.choice.KEPT", 3)
    monkeypatch.setattr("ptxkit.workload.choice.choose", lambda workload, device: workload.n)
    forget()
    device, kernel = EmulatedDevice(), registry.get("saxpy")
    workloads = [kernel(n=n) for n in range(1, 9)]
    assert [remembered(w, device) for w in workloads] == list(range(1, 9))
    assert len(choice._by_object) == len(choice._by_value) == 3
    forget()


@pytest.mark.parametrize("name", ["matmul_mma", "rmsnorm", "add_gelu"])
def test_the_candidates_begin_with_the_choice_and_launch_different_things(name):
    kernel = registry.get(name)
    workload = kernel.make((), None, small=True)
    options = ranked(workload, 5, EmulatedDevice(), Target.parse("sm_90a"))
    first = choose(workload, EmulatedDevice(), Target.parse("sm_90a"))
    assert (options[0].name, dict(options[0].resolved.tile)) == (first.variant, first.tile)
    assert len(options) == len({repr((o.resolved.programs, o.resolved.launches)) for o in options}) <= 5
    assert {o.name for o in options} > {first.variant}
    named = ranked(workload, 3, EmulatedDevice(), Target.parse("sm_90a"), variants=[first.candidates[0].name])
    assert {o.name for o in named} == {first.candidates[0].name}
