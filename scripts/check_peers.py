"""Every peer for every kernel on one GPU: outputs against the reference, called and from a graph, and a rough time.

    python scripts/check_peers.py [--sizes odd|small|large] [--peers torch,triton] [KERNEL or description.py]...

Exits with 1 where an output is wrong. Random outputs are not compared; how many elements differ from torch's own is not told.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from statistics import median
from typing import Any

from tabulate import tabulate

from ptxkit.bench.peers import Peer, peers
from ptxkit.errors import UsageError
from ptxkit.runtime.device import device as open_device
from ptxkit.workload import execute, registry
from ptxkit.workload.verify import compare_all

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
CALLS = 20  # in a graph
SEED = 7


def check(peer: Peer, case: execute.Case) -> list[str]:
    """A row of the table: what was found for one peer."""
    gpu: Any = case.device
    workload = case.workload
    started = time.perf_counter()
    call = peer.prepare(workload, {name: case.argument(name) for name in case.inputs})
    prepared_s = time.perf_counter() - started

    def verdict(run: Any) -> str:
        if call.random:
            return "random"
        case.reset()
        run()
        gpu.synchronize()
        outputs = {name: value.numpy() for name, value in call.outputs.items()}
        expected = {name: case.expected[name] for name in outputs}
        found = compare_all(outputs, expected, call.tolerance or workload.tolerance)
        return f"right ({found.max_rel_error:.1e})" if found.verified else f"WRONG: {found.mismatches} {found.worst}"

    direct = verdict(call.launch)
    graph = peer.graph([call] * CALLS)
    replayed = verdict(graph)
    hot_us = median(gpu.time_back_to_back(graph, 10)) / CALLS
    cold_us = median(gpu.measure(peer.graph([call]), 10).times_us)
    missing = sorted(set(case.expected) - set(call.outputs))
    notes = " ".join([call.note, *(f"no {name}" for name in missing)])
    return [direct, replayed, f"{hot_us:.2f}", f"{cold_us:.2f}", str(call.launches), f"{prepared_s:.1f}", notes]


def main() -> int:
    """All of them."""
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
                case = execute.Case(workload, gpu, SEED) if offering else None
                for peer in offering:
                    assert case is not None
                    try:
                        row = check(peer, case)
                    except Exception as error:  # noqa: BLE001  # the others are to be checked, too
                        traceback.print_exc()
                        row = [f"WRONG: {type(error).__name__}"]
                    wrong += any("WRONG" in cell for cell in row)
                    said = " ".join(f"{k}={v}" for k, v in options.items())
                    table.append([kernel.name, "x".join(map(str, sizes)), said, peer.name, *row])
                    print(*table[-1], flush=True)
    head = (
        "kernel",
        "sizes",
        "options",
        "peer",
        "called",
        "replayed",
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
