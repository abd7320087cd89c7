"""What ``ptxkit cluster status`` shows."""

from __future__ import annotations

from typing import Any

from ptxkit.cluster.connection import Connection, listed_workers
from ptxkit.cluster.identity import identity
from ptxkit.cluster.roster import objection


def survey(cluster: Connection) -> list[dict[str, Any]]:
    """A row for each worker, sorted by name.

    Returns:
        ``name``, ``address``, ``host``, ``pid``; ``gpu``: see :class:`ptxkit.cluster.gpus.ClusterGpu`, or None; ``slots``:
        compiling processes; ``tasks``: being executed or waiting there; ``sweeps``: whose processes it has; ``identity``: see
        :func:`ptxkit.cluster.identity.identity`; ``cache``: directory, entries and bytes; ``last``: the last reading of the
        GPU's sensors; ``refused``: why sweeps from here would not use it, or "".

    Raises:
        UnavailableError: the scheduler does not answer.
    """
    mine = identity()
    found = cluster.workers()
    known = listed_workers(cluster.client)
    rows = []
    for address, info in known.items():
        told = found.get(address)
        described = told if isinstance(told, dict) else {}
        started = described.get("started") or {}
        rows.append(
            {
                "name": str(info.get("name", address)),
                "address": address,
                "host": described.get("host", "unknown"),
                "pid": described.get("pid"),
                "gpu": started.get("gpu"),
                "slots": started.get("slots", 0),
                "tasks": described.get("jobs", 0),
                "sweeps": described.get("sweeps", 0),
                "identity": described.get("identity", {}),
                "cache": described.get("cache"),
                "last": described.get("last", {}),
                "refused": objection(mine, told),
            }
        )
    return sorted(rows, key=lambda row: row["name"])
