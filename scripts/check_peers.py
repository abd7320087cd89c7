"""Compare the outputs of all peers for all kernels with the reference on one GPU, and measure approximate times.

    python scripts/check_peers.py [--sizes odd|small|large] [--peers torch,triton] [KERNEL or description.py]...

The measurement is that of `ptxkit bench` with a short budget: outputs are compared before timing, and those of the graphs that
were timed afterwards. Exits with 1 where an output is wrong or a peer fails.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from tabulate import tabulate

from ptxkit.bench.measure.candidates import BufferSets, PeerCandidate
from ptxkit.bench.measure.method import Method
from ptxkit.bench.measure.session import Session
from ptxkit.bench.peers import Peer, peers
from ptxkit.bench.results.results import Row
from ptxkit.errors import PtxkitError, UsageError
from ptxkit.runtime.device import device as open_device
from ptxkit.workload import registry

# kernel -> options to try beside the defaults
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "add_gelu": [{"dtype": "bf16"}, {"dtype": "f16"}],
    "add_activation": [{"activation": "silu", "dtype": "bf16"}, {"activation": "relu"}],
    "swiglu": [{"dtype": "f16"}, {"dtype": "bf16"}],
    "layernorm": [{"activation": "none", "training": True}, {"dtype": "bf16"}],
    "rmsnorm": [{"training": True}, {"dtype": "f16"}],
    "softmax": [{"p": 0.1}, {"dtype": "bf16"}],
    "bias_dropout_residual": [{"p": 0.0}, {"dtype": "f16"}],
    "scale_mask_softmax": [{"dtype": "bf16"}],
    "layernorm_quantize": [{"dtype": "bf16"}],
}
SIZES: dict[str, dict[int, list[tuple[int, ...]]]] = {
    "odd": {1: [(1_000_003,)], 2: [(127, 1000), (33, 77), (3, 50000)], 3: [(1000, 520, 264)]},
    "small": {1: [(1 << 20,)], 2: [(128, 4096)], 3: [(1024, 1024, 1024)]},
    "large": {1: [(100_000_000,)], 2: [(16384, 4096)], 3: [(4096, 4096, 4096)]},
}
METHOD = Method(budget_s=0.25, minimum=10, fresh_inputs=False, percentiles=False)
SEED = 7


def check(peer: Peer, sets: BufferSets) -> tuple[list[str], bool]:
    """Cells of the table for one peer, and whether its outputs are right."""
    started = time.perf_counter()
    try:
        candidate = PeerCandidate(sets, peer)
    except PtxkitError as error:
        return [f"FAILED: {error}", "", "", "", "", ""], False
    prepared_s = time.perf_counter() - started
    (row,) = Session(sets.device, sets, METHOD).measure([candidate], lambda what: None)
    missing = sorted(set(sets.data.expected) - set(candidate.calls[0].outputs))
    notes = " ".join([row.note, *(f"no {name}" for name in missing)])
    return [verdict(row), _us(row.hot), _us(row.cold), str(row.launches), f"{prepared_s:.1f}", notes], sound(row)


def sound(row: Row) -> bool:
    """Whether a peer ran, and no output was wrong."""
    return row.error is None and row.verified is not False


def verdict(row: Row) -> str:
    """The verdict on the outputs of a peer, in words."""
    if row.error:
        return f"FAILED: {row.error}"
    if row.verified is None:
        return "not compared"
    return f"right ({row.accuracy.max_rel:.1e})" if row.verified and row.accuracy else f"WRONG: {row.worst}"


def _us(timed: Any) -> str:
    return f"{timed.median_us:.2f}" if timed else "-"


def main() -> int:
    """Check all selected peers and kernels."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kernels", nargs="*")
    parser.add_argument("--sizes", choices=tuple(SIZES), default="small")
    parser.add_argument("--peers")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="instead of the usual ones")
    arguments = parser.parse_args()
    found, absent = peers(arguments.peers.split(",") if arguments.peers else None)
    print(f"peers: {', '.join(p.version() for p in found)}; absent: {absent}")
    gpu: Any = open_device("gpu")
    table, wrong = [], 0
    for name in arguments.kernels or registry.names():
        kernel = registry.load_file(name) if name.endswith(".py") else registry.get(name)
        given = dict(option.split("=", 1) for option in arguments.option)
        variations = [given] if given else [{}, *OPTIONS.get(kernel.name, [])]
        for sizes in SIZES[arguments.sizes].get(len(kernel.size_names()), []):
            for options in variations[:1] if arguments.sizes == "odd" else variations:
                try:
                    workload = kernel.make(list(map(str, sizes)), options)
                except UsageError as error:  # these sizes are not for this kernel
                    print(error)
                    continue
                offering = [peer for peer in found if peer.offers(workload)]
                count = METHOD.sets(workload.work().bytes, workload.bytes_needed(), gpu.l2_bytes, gpu.memory_bytes)
                sets = BufferSets(workload, gpu, count, SEED) if offering else None
                for peer in offering:
                    assert sets is not None
                    cells, right = check(peer, sets)
                    wrong += not right
                    shown = " ".join(f"{k}={v}" for k, v in options.items())
                    table.append([kernel.name, "x".join(map(str, sizes)), shown, peer.name, *cells])
                    print(*table[-1], flush=True)
    head = (
        "kernel",
        "sizes",
        "options",
        "peer",
        "outputs",
        "hot us",
        "cold us",
        "launches",
        "prepare s",
        "note",
    )
    print(tabulate(table, head))
    print(f"{wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
