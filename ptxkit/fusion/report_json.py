"""The fusion report as JSON values."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ptxkit.fusion.analysis import Candidate, Report, Total
from ptxkit.fusion.cost import Cost, Group

SCHEMA = "ptxkit.fuse/1"


def values(report: Report) -> dict[str, Any]:
    """The report as one JSON object."""
    machine = report.machine
    return {
        "schema": SCHEMA,
        "graph": report.graph.name,
        "repeat": report.graph.repeat,
        "remarks": list(report.graph.remarks),
        "gpu": {
            "name": machine.gpu.name,
            "target": machine.target.name,
            "bandwidth_gbs": machine.bandwidth_gbs,
            "bandwidth_source": machine.source,
            "launch_us": machine.launch_us,
        },
        "weights": asdict(report.weights),
        "thresholds": asdict(report.thresholds),
        "operations": [
            {
                "name": group.operations[0].name,
                "kind": group.operations[0].kind,
                "inputs": _tensors(report, group.operations[0].inputs),
                "outputs": _tensors(report, group.operations[0].outputs),
                **_cost(cost),
            }
            for group, cost in report.operations
        ],
        "pairs": [_candidate(candidate) for candidate in report.pairs],
        "plan": [
            {"operations": _names(group), **_cost(cost), "fusion": None if candidate is None else _candidate(candidate)}
            for group, cost, candidate in report.plan
        ],
        "bundled": [
            {"operations": _names(group), "command": offered.command, "note": offered.note or None}
            for group, offered in report.bundled
        ],
        "unfused": _total(report.before),
        "fused": _total(report.after),
    }


def _tensors(report: Report, names: tuple[str, ...]) -> list[dict[str, Any]]:
    found = (report.graph.tensors[name] for name in names)
    return [{"name": t.name, "shape": list(t.shape), "dtype": t.dtype} for t in found]


def _names(group: Group) -> list[str]:
    return [operation.name for operation in group.operations]


def _cost(cost: Cost) -> dict[str, Any]:
    return {
        "flops": cost.flops,
        "bytes": cost.bytes,
        "intensity": cost.intensity,
        "unit": cost.unit,
        "bound": cost.bound,
        "time_us": cost.time_us,
    }


def _total(total: Total) -> dict[str, Any]:
    return {"launches": total.launches, "bytes": total.bytes, "time_us": total.time_us}


def _candidate(candidate: Candidate) -> dict[str, Any]:
    score, offer, compiled = candidate.score, candidate.offer, candidate.compiled
    return {
        "operations": _names(candidate.group),
        "verdict": candidate.verdict,
        "reason": candidate.reason,
        "condition": candidate.judgement.condition or None,
        "condition_holds": candidate.judgement.met if candidate.judgement.condition else None,
        "complexity": candidate.judgement.complexity,
        "score": score.total,
        "criteria": {
            name: getattr(score, name) for name in ("memory", "launches", "registers", "complexity", "maintainability")
        },
        "saved_bytes": candidate.saved_bytes,
        "saved_launches": candidate.saved_launches,
        "saved_us": candidate.saved_us,
        "speedup": candidate.speedup,
        "registers": candidate.registers,
        "registers_source": "compiled" if compiled else "estimated",
        "compiled": None if compiled is None else asdict(compiled),
        "command": None if offer is None else offer.command,
        "note": None if offer is None else offer.note or None,
    }
