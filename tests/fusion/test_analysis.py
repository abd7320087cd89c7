"""Verdicts, plans and scores."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxkit.errors import UsageError
from ptxkit.fusion.analysis import analyse
from ptxkit.fusion.cost import Group, cost
from ptxkit.fusion.graph import GraphBuilder
from ptxkit.fusion.machine import machine_for
from ptxkit.fusion.models import MODELS, model_graph
from ptxkit.fusion.score import parse_thresholds, parse_weights

H200 = machine_for("H200")


def verdicts(graph, gpu=H200):
    return {pair.group.name: pair.verdict for pair in analyse(graph, gpu).pairs}


def groups(graph, gpu=H200):
    return [candidate.group.name for candidate in analyse(graph, gpu).groups]


def transformer_layer(tokens):
    """Layer norm, one product for q, k and v, a split that copies, attention, residual."""
    g, hidden = GraphBuilder("transformer layer"), 4096
    x = g.input("x", (tokens, hidden), "bf16")
    weights = [g.input(name, (hidden,), "bf16") for name in ("gamma", "beta")]
    qkv = g.linear(g.layernorm(x, *weights), g.input("w", (3 * hidden, hidden), "bf16"))
    heads = []
    for part in g.split(qkv, parts=3):
        shaped = g.reshape(part, shape=[tokens, 32, 128])
        heads.append(g.permute(shaped, axes=[1, 0, 2]))
    joined = g.permute(g.attention(*heads), axes=[1, 0, 2])
    g.add(g.reshape(joined, shape=[tokens, hidden]), x, name="add_residual")
    return g.graph()


def test_the_three_candidates_of_a_transformer_layer():
    found = analyse(transformer_layer(4096), H200)
    candidates = {c.group.name: c for c in found.pairs if c.verdict != "DO NOT FUSE"}
    assert list(candidates) == ["layernorm + linear", "split + attention", "attention + add_residual"]
    conditional = candidates["layernorm + linear"]
    assert conditional.verdict == "IF" and "small" in conditional.judgement.condition and not conditional.judgement.met
    assert [c.group.name for c in found.groups] == ["split + attention + add_residual"]


def test_a_small_batch_meets_the_condition():
    candidate = {c.group.name: c for c in analyse(transformer_layer(4), H200).pairs}["layernorm + linear"]
    assert candidate.verdict == "IF" and candidate.judgement.met


def test_layernorm_and_gelu_score_high():
    g = GraphBuilder()
    x = g.input("x", (4096, 4096), "f32")
    g.gelu(g.layernorm(x, g.input("gamma", (4096,), "f32"), g.input("beta", (4096,), "f32")))
    (candidate,) = analyse(g.graph(), H200).groups
    assert candidate.verdict == "FUSE" and candidate.score.total >= 0.85
    assert candidate.saved_bytes == 2 * 4096 * 4096 * 4 and candidate.speedup == pytest.approx(2, rel=0.02)
    assert candidate.offer.command == "ptxkit run layernorm 4096 4096 --option activation=gelu --option dtype=f32"


def test_matmul_and_layernorm_are_refused_with_the_reasons():
    g = GraphBuilder()
    g.layernorm(g.linear(g.input("x", (4096, 4096), "bf16"), g.input("w", (4096, 4096), "bf16")))
    found = analyse(g.graph(), H200)
    (pair,) = found.pairs
    assert pair.verdict == "DO NOT FUSE" and not found.groups
    assert "bound by the tensor cores (bf16), layernorm by memory" in pair.reason
    assert "no CTA holds what layernorm reduces" in pair.reason and "accumulators" in pair.reason


def test_rows_that_fit_into_a_tile_of_a_product():
    g = GraphBuilder()
    g.layernorm(g.linear(g.input("x", (65536, 512), "bf16"), g.input("w", (128, 512), "bf16")))
    assert verdicts(g.graph()) == {"linear + layernorm": "FUSE"}


def test_a_normalization_by_hand_is_one_launch():
    g = GraphBuilder()
    x = g.input("x", (8192, 4096), "f32")
    g.multiply(x, g.rsqrt(g.add(g.mean(g.square(x)), value=1e-6)))
    assert groups(g.graph()) == ["square + mean + add + rsqrt + multiply"]


def test_rows_of_different_lengths_stay_apart():
    g = GraphBuilder()
    x = g.softmax(g.input("x", (512, 4096), "f32"))
    g.softmax(g.reshape(x, shape=[4096, 512]), name="other")
    assert verdicts(g.graph()) == {"softmax + other": "DO NOT FUSE"}


def test_operations_between_two_others_keep_them_apart():
    g = GraphBuilder()
    x = g.input("x", (4096, 4096), "bf16")
    first = g.gelu(x)
    product = g.linear(first, g.input("w", (4096, 4096), "bf16"))
    g.add(product, first)
    found = analyse(g.graph(), H200)
    pair = {c.group.name: c for c in found.pairs}["gelu + add"]
    assert pair.verdict == "DO NOT FUSE" and "lie between" in pair.reason
    assert [c.group.name for c in found.groups] == ["linear + add"]


def test_attention_by_hand_is_one_launch():
    g = GraphBuilder()
    q, k, v = (g.input(name, (2, 16, 2048, 128), "bf16") for name in "qkv")
    scores = g.multiply(g.matmul(q, k, transpose_b=True), value=128**-0.5, name="scale")
    g.matmul(g.softmax(scores), v, name="values")
    (candidate,) = analyse(g.graph(), H200).groups
    assert candidate.group.name == "matmul + scale + softmax + values"
    assert candidate.offer.command == "ptxkit run attention 2 16 2048 2048 128 --option dtype=bf16"


def test_probabilities_that_are_needed_elsewhere_stay():
    g = GraphBuilder()
    q, k, v = (g.input(name, (2, 16, 2048, 128), "bf16") for name in "qkv")
    probabilities = g.softmax(g.matmul(q, k, transpose_b=True))
    g.matmul(probabilities, v, name="values")
    graph = g.graph([probabilities])
    assert not any("values" in name and "softmax" in name for name in groups(graph))


def test_results_that_the_graph_returns_are_written():
    g = GraphBuilder()
    x = g.input("x", (1024, 1024), "f32")
    h = g.gelu(x)
    y = g.exp(h)
    kept, dropped = g.graph([h, y]), g.graph([y])
    sizes = [cost(Group.of(graph, graph.launches), H200).bytes for graph in (kept, dropped)]
    assert sizes[0] - sizes[1] == 1024 * 1024 * 4


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize(("tokens", "context"), [(1, 4096), (4096, 0)])
def test_plans_of_models_cover_every_operation_once(name, tokens, context):
    found = analyse(model_graph(name, tokens, context), H200)
    planned = [operation.name for group, _, _ in found.plan for operation in group.operations]
    assert sorted(planned) == sorted(operation.name for operation in found.graph.launches)
    assert found.after.launches < found.before.launches
    assert found.after.bytes <= found.before.bytes and found.after.time_us < found.before.time_us


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_plans_of_random_graphs_can_be_executed(data):
    """No two groups need results of each other, directly or through others, and each operation is in one group."""
    g = GraphBuilder()
    names = [g.input("x", (64, 64), "f32")]
    for i in range(data.draw(st.integers(1, 12))):
        kind = data.draw(st.sampled_from(["add", "gelu", "softmax", "mean", "matmul", "transpose", "multiply"]))
        operands = [data.draw(st.sampled_from(names)) for _ in range(2 if kind in ("add", "multiply", "matmul") else 1)]
        if kind in ("softmax", "mean", "matmul", "transpose") and any(g.shape(n) != (64, 64) for n in operands):
            continue
        names.append(g.operation(kind, *operands, name=f"op{i}"))
    if len(names) == 1:
        return
    graph = g.graph()
    plan = analyse(graph, H200).plan
    assert sorted(o.name for group, _, _ in plan for o in group.operations) == sorted(o.name for o in graph.launches)
    home = {name: i for i, (group, _, _) in enumerate(plan) for name in group.results}
    waits = {i: {home[n] for n in group.reads() if n in home} for i, (group, _, _) in enumerate(plan)}
    done = set()
    while len(done) < len(plan):
        ready = {i for i in waits if i not in done and waits[i] <= done}
        assert ready, "groups wait for each other"
        done |= ready


def test_weights_are_scaled_and_thresholds_apply():
    weights = parse_weights(
        {"memory": "0", "launches": "1", "registers": "0", "complexity": "0", "maintainability": "0"}
    )
    assert weights.launches == 1
    graph = transformer_layer(4096)
    strict = analyse(graph, H200, weights, parse_thresholds({"speedup": "10"}))
    assert not strict.groups and all(
        "below 10" in c.reason for c in strict.pairs if c.judgement.verdict != "DO NOT FUSE"
    )
    for given_, message in (
        ({"memmory": "1"}, "did you mean 'memory'"),
        ({"memory": "-1"}, "number from 0"),
        ({"memory": "nan"}, "number"),
    ):
        with pytest.raises(UsageError, match=message):
            parse_weights(given_)


def test_other_gpus_have_other_verdicts():
    """With few rows a product is bound by memory on every GPU; with many rows the ridge decides."""
    g = GraphBuilder()
    x = g.gelu(g.input("x", (256, 4096), "f16"))
    g.linear(x, g.input("w", (4096, 4096), "f16"))
    met = {gpu: analyse(g.graph(), machine_for(gpu)).pairs[0].judgement.met for gpu in ("T4", "B200")}
    assert met == {"T4": False, "B200": True}


@pytest.mark.parametrize(("given", "name"), [("l4", "L4"), ("nvidia l4", "L4"), ("L40", "L40S"), ("4090", "GeForce RTX 4090")])
def test_a_gpu_is_found_by_a_part_of_its_name_and_first_by_whole_words(given, name):
    assert machine_for(given).gpu.name == f"NVIDIA {name}"


def test_unknown_gpus_are_refused():
    with pytest.raises(UsageError, match="no documented GPU 'H900'"):
        machine_for("H900")
    with pytest.raises(UsageError, match="may be"):
        machine_for("NVIDIA B")
