"""Train a small transformer of ptxkit.torch's operations, and the same with torch and torch.compile: time, memory and losses.

::

    python scripts/torch_block.py [--device cuda|cpu] [--tiny] [--steps N] [--json FILE]

The model has two layers: layer norm, causal attention, layer norm, gated feed-forward layer, each with a residual. It learns
the next token of sequences in which three of four tokens follow from the token before by a permutation, and the others are
random, so that the loss falls within tens of steps. Parameters are float32, and autocast makes products
bfloat16. All candidates start from the same parameters and see the same batches. ``--tiny`` trains a few steps of a model with
one head, which takes about a minute in the emulator.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import ptxkit.torch as pt

HEAD = 64  # elements of a head
FOLLOWS = 0.75  # probability of a token that follows from the one before


@dataclass(frozen=True)
class Sizes:
    """Sizes of the model and of a batch."""

    features: int = 1024
    hidden: int = 2816
    layers: int = 2
    vocabulary: int = 512
    batch: int = 16
    tokens: int = 1024


TINY = Sizes(features=64, hidden=64, layers=2, vocabulary=16, batch=1, tokens=16)


class Layer(nn.Module):
    """One layer, with the operations of ptxkit.torch or of torch."""

    def __init__(self, sizes: Sizes, ours: bool) -> None:
        super().__init__()
        norm, linear = (pt.LayerNorm, pt.Linear) if ours else (nn.LayerNorm, nn.Linear)
        self.ours = ours
        self.heads = sizes.features // HEAD
        self.norm1, self.norm2 = norm(sizes.features), norm(sizes.features)
        self.qkv = linear(sizes.features, 3 * sizes.features, bias=False)
        self.out = linear(sizes.features, sizes.features)
        self.gate = linear(sizes.features, sizes.hidden, bias=False)
        self.up = linear(sizes.features, sizes.hidden, bias=False)
        self.down = linear(sizes.hidden, sizes.features)

    def forward(self, x: Tensor) -> Tensor:
        """From (batch, tokens, features) to the same shape."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, HEAD)).unbind(2)
        x = x + self.out(self.attend(q, k, v).flatten(2))
        y = self.norm2(x)
        gate, up = self.gate(y), self.up(y)
        hidden = pt.swiglu(gate, up) if self.ours else functional.silu(gate) * up
        return x + self.down(hidden)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Causal attention of (batch, tokens, heads, HEAD)."""
        if self.ours:
            return pt.attention(q, k, v, causal=True)
        found = functional.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True)
        return found.transpose(1, 2)


class Model(nn.Module):
    """Embeddings, layers, and scores of the next token."""

    def __init__(self, sizes: Sizes, ours: bool) -> None:
        super().__init__()
        norm, linear = (pt.LayerNorm, pt.Linear) if ours else (nn.LayerNorm, nn.Linear)
        self.tokens = nn.Embedding(sizes.vocabulary, sizes.features)
        self.positions = nn.Parameter(0.02 * torch.randn(sizes.tokens, sizes.features))
        self.layers = nn.Sequential(*(Layer(sizes, ours) for _ in range(sizes.layers)))
        self.norm = norm(sizes.features)
        self.scores = linear(sizes.features, sizes.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores (batch, tokens, vocabulary) of tokens (batch, tokens)."""
        scores: Tensor = self.scores(self.norm(self.layers(self.tokens(tokens) + self.positions)))
        return scores


@dataclass
class Run:
    """What training took: milliseconds of each step, bytes of memory at most, and the losses."""

    name: str
    step_ms: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    losses: list[float] = field(default_factory=list)


def batches(sizes: Sizes, steps: int, where: torch.device) -> list[Tensor]:
    """Sequences (batch, tokens + 1) in which a token follows from the one before with the probability FOLLOWS."""
    generator = torch.Generator().manual_seed(1)
    following = torch.randperm(sizes.vocabulary, generator=generator)
    tokens = torch.randint(sizes.vocabulary, (steps, sizes.batch, sizes.tokens + 1), generator=generator)
    follows = torch.rand(tokens.shape, generator=generator) < FOLLOWS
    for i in range(1, tokens.shape[-1]):
        tokens[..., i] = torch.where(follows[..., i], following[tokens[..., i - 1]], tokens[..., i])
    return list(tokens.to(where))


def train(name: str, model: nn.Module, data: list[Tensor], where: torch.device) -> Run:
    """Train on all batches."""
    run = Run(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    cuda = where.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    for tokens in data:
        if cuda:
            torch.cuda.synchronize()
        start = time.perf_counter()
        with torch.autocast(where.type, torch.bfloat16):
            scores = model(tokens[:, :-1])
            loss = functional.cross_entropy(scores.flatten(0, 1).float(), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.losses.append(loss.item())  # waits
        run.step_ms.append((time.perf_counter() - start) * 1e3)
    run.peak_bytes = torch.cuda.max_memory_allocated() if cuda else 0
    return run


def main() -> int:
    """Train all candidates and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="train a tiny model for three steps")
    parser.add_argument("--steps", type=int, default=None, help="steps of training; default: 200, or 3 with --tiny")
    parser.add_argument("--json", type=Path, help="write all steps to a file")
    given = parser.parse_args()
    sizes, steps, where = (
        TINY if given.tiny else Sizes(),
        given.steps or (3 if given.tiny else 200),
        torch.device(given.device),
    )
    torch.manual_seed(0)
    first = Model(sizes, ours=False).to(where)
    models: dict[str, nn.Module] = {"torch": first}
    for name, ours in (("ptxkit.torch", True), ("torch.compile", False), ("ptxkit.torch, compiled", True)):
        model = Model(sizes, ours).to(where)
        model.load_state_dict(copy.deepcopy(first.state_dict()))
        backend = "inductor" if where.type == "cuda" else "aot_eager"
        models[name] = torch.compile(model, backend=backend) if "compile" in name else model
    data = batches(sizes, steps, where)
    runs = [train(name, model, data, where) for name, model in models.items()]
    place = torch.cuda.get_device_name() if where.type == "cuda" else "the CPU; ptxkit.torch runs in the emulator"
    print(f"{sizes}, {steps} steps on {place}, torch {torch.__version__}\n")
    print(f"{'':24} {'ms/step':>9} {'peak MB':>9}   losses")
    shown = sorted({0, steps // 4, steps // 2, 3 * steps // 4, steps - 1})
    for run in runs:
        settled = run.step_ms[len(run.step_ms) // 4 :]  # without compilation
        losses = " ".join(f"{run.losses[i]:.3f}" for i in shown)
        print(f"{run.name:24} {statistics.median(settled):9.2f} {run.peak_bytes / 1e6:9.0f}   {losses}")
    print(f"\nlosses of the steps {', '.join(map(str, shown))}")
    for run in runs[1:]:
        apart = [abs(a - b) for a, b in zip(run.losses, runs[0].losses, strict=True)]
        print(f"{run.name}: the losses differ from those of {runs[0].name} by {max(apart):.4f} at most")
    if given.json:
        found = {
            "device": place,
            "torch": torch.__version__,
            "sizes": asdict(sizes),
            "runs": [asdict(run) for run in runs],
        }
        given.json.write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
