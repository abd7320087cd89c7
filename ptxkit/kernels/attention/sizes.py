"""What the kernels of attention share: sizes, options, and the sequences of a batch."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np

from ptxkit import Workload
from ptxkit.blas import one_thread
from ptxkit.workload.inputs import scaled_uniform
from ptxkit.workload.parallel import cores

HEAD_SIZES = (64, 128, 256)
UNFUSED = 64  # rows and columns of a tile of the unfused kernels
LOG2E = math.log2(math.e)
LARGE = 1 << 31  # pairs of a query and a key times d; float64 products of this size take seconds
PART = 4096  # queries of a head that a thread computes
PAIRS = 1 << 19  # scores of a block of the reference, which stay in the cache of a core
KEYS, QUERIES = 1024, PAIRS >> 10  # of a block where there are many keys

Result = TypeVar("Result")


class AttentionSizes(Workload):
    """Several heads over a batch of sequences, whose tokens follow each other in the arrays."""

    head_sizes: ClassVar[tuple[int, ...]] = HEAD_SIZES
    batch: int = 2
    heads: int = 16
    q: int = 4096  # queries of a sequence
    k: int = 4096  # keys and values of a sequence
    d: int = 128  # elements of a head
    causal: bool = False
    kv_heads: int = field(default=0, kw_only=True)  # heads of k and v; 0: as many as of q
    # random: sequences of 1 to q queries and 1 to k keys; empty: so, but every third one has no queries, and the next no keys
    lengths: Literal["equal", "random", "empty"] = "equal"
    dtype: Literal["bf16", "f16"] = "bf16"
    emulator_sizes = {"batch": 1, "heads": 2, "q": 192, "k": 192, "d": 64}
    benchmarks = (
        {"batch": 8, "q": 2048, "k": 2048},
        {"batch": 4},
        {"batch": 2, "q": 8192, "k": 8192},
        {"batch": 1, "q": 16384, "k": 16384},
        {"batch": 8, "q": 2048, "k": 2048, "causal": True},
        {"batch": 4, "causal": True},
        {"batch": 2, "q": 8192, "k": 8192, "causal": True},
        {"batch": 1, "q": 16384, "k": 16384, "causal": True},
    )

    def constraints(self) -> Iterable[str]:
        if self.d not in self.head_sizes:
            yield f"d must be one of {', '.join(map(str, self.head_sizes))}"
        if self.kv_heads < 0 or self.heads % self.shared_heads:
            yield f"kv_heads must divide the {self.heads} heads, or be 0 for as many, not {self.kv_heads}"
        most = self.device.target.limits.grid[1]
        if self.batch > most or self.heads > most:
            yield f"batch and heads must be at most {most}, the limit of a grid's y and z"
        if max(self.batch * self.q, self.batch * self.k) * self.heads * self.d >= 2**40:
            yield "the arrays are too large"
        if max(self.batch * self.q, self.batch * self.k) >= 2**31:
            yield "there are too many tokens"

    @property
    def shared_heads(self) -> int:
        """Heads of k and v."""
        return self.kv_heads or self.heads

    def starts(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """The first query and the first key of each sequence, and the numbers of all, as int32."""
        counts = [np.full(self.batch, self.q), np.full(self.batch, self.k)]
        if self.lengths != "equal":
            rng = np.random.default_rng(self.batch)
            counts = [rng.integers(1, most + 1, self.batch) for most in (self.q, self.k)]
            if self.q == self.k:
                counts[1] = counts[0].copy()
            if self.lengths == "empty":
                counts[0][1::3] = counts[1][2::3] = 0
        q_starts, k_starts = (np.concatenate([[0], np.cumsum(count)]).astype(np.int32) for count in counts)
        return q_starts, k_starts

    @property
    def tokens(self) -> tuple[int, int]:
        """The numbers of queries and of keys of all sequences."""
        q_starts, k_starts = self.starts()
        return int(q_starts[-1]), int(k_starts[-1])

    def rows(self, sequence: int) -> tuple[slice, slice]:
        """The queries and the keys of a sequence."""
        q_starts, k_starts = (starts[sequence : sequence + 2] for starts in self.starts())
        return slice(*q_starts), slice(*k_starts)

    def sequence_lengths(self) -> list[tuple[int, int]]:
        """The numbers of queries and keys of each sequence."""
        queries, keys = (np.diff(starts).tolist() for starts in self.starts())
        return list(zip(queries, keys, strict=True))

    def pairs(self) -> int:
        """Pairs of a query and a key that it sees, of one head of all sequences."""
        of_lengths = collections.Counter(self.sequence_lengths()).items()  # equal sequences have equal pairs
        return sum(count * (causal_pairs(n, m) if self.causal else n * m) for (n, m), count in of_lengths)

    @property
    def wide(self) -> Any:
        """The type in which references are computed: float64, or float32, whose error is far below the tolerance, for large
        sizes."""
        return np.float32 if self.pairs() * self.d >= LARGE else np.float64

    def with_variance_1(self, rng: np.random.Generator, *shape: int) -> np.ndarray[Any, Any]:
        """Queries or keys whose scores have variance 1, too."""
        return scaled_uniform(rng, shape, self.dtype, math.sqrt(3))

    def query_and_key(self, rng: np.random.Generator) -> dict[str, Any]:
        """The inputs query and key."""
        queries, keys = self.tokens
        return {
            "query": self.with_variance_1(rng, queries, self.heads, self.d),
            "key": self.with_variance_1(rng, keys, self.shared_heads, self.d),
        }


def causal_pairs(n: int, m: int) -> int:
    """Pairs of n queries and the keys, of m, that they see with a causal mask: query i sees i + 1 + m - n, or none."""
    fewest = max(1, 1 + m - n)
    return min(n, m) * (fewest + m) // 2


def for_each_head(batch: int, heads: int, compute: Callable[[int, int], None]) -> None:
    """Calls ``compute(sequence, head)`` for each of them, on all cores, one for each call."""
    with one_thread(), ThreadPoolExecutor(cores()) as pool:
        collections.deque(pool.map(lambda one: compute(*one), np.ndindex(batch, heads)), maxlen=0)


def for_each_part(w: AttentionSizes, heads: int, compute: Callable[[int, int, slice], Result]) -> Iterator[Result]:
    """The results of ``compute(sequence, head, queries)``, on all cores, for each head and for parts of the queries.

    Few heads of long sequences would leave cores idle. With a causal mask the last parts take the longest: they come first.
    """
    lengths = [queries for queries, _ in w.sequence_lengths()]
    parts = [
        (sequence, head, slice(first, min(first + PART, lengths[sequence])))
        for first in range(0, max(lengths), PART)[::-1]
        for sequence, head in np.ndindex(w.batch, heads)
        if first < lengths[sequence]
    ]
    with one_thread(), ThreadPoolExecutor(cores()) as pool:
        yield from pool.map(lambda part: compute(*part), parts)


def query_blocks(
    n: int, m: int, causal: bool, fewest: int = 1, part: slice | None = None
) -> Iterator[tuple[slice, int]]:
    """The n queries of a sequence in blocks, each with the number of its m keys that the last query of the block sees.

    Args:
        fewest: queries of a block, except of the last one. part: only these queries.
    """
    step = max(fewest, PAIRS // max(1, m))
    start, stop = (part.start, part.stop) if part else (0, n)
    for first in range(start, stop, step):
        last = min(first + step, stop)
        yield slice(first, last), min(m, max(0, last + m - n)) if causal else m


def key_blocks(keys: int) -> Iterator[slice]:
    """The keys that a block of queries sees, in blocks."""
    for first in range(0, keys, KEYS):
        yield slice(first, min(first + KEYS, keys))


def hide(scores: np.ndarray[Any, Any], rows: slice, behind: int, hidden: float) -> None:
    """Replace the scores, in place, of the keys that queries ``rows`` do not see with a causal mask.

    Args:
        scores: of these queries and some keys. behind: by how many the keys of the sequence, without those before these,
            exceed its queries.
    """
    keys = scores.shape[1]
    first = min(max(rows.start + behind + 1, 0), keys)  # every query sees the keys before it
    scores[:, first:][np.arange(first, keys) > np.arange(rows.start, rows.stop)[:, None] + behind] = hidden


def fits(w: Workload, needed: int) -> bool | str:
    """Whether a CTA may have this much shared memory."""
    limit = w.device.target.limits.shared_bytes_per_cta
    return needed <= limit or f"needs {needed} bytes of shared memory, more than {limit}"
