"""Compiled images travel from the worker that made them to one that lacks them, once, by the hash of their sources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ptxkit.cluster.work import this_worker
from ptxkit.compiler.cache import default_cache

FETCH_S = 20.0  # to get images from another worker; after that they are compiled here
HANDLER = "ptxkit_images"


async def images(keys: Sequence[str]) -> dict[str, bytes]:
    """The images that the cache of this worker has under the given keys: the handler of a request of another worker."""
    store = default_cache()
    return {key: data for key in keys if (data := store.get(key)) is not None}


def fetch_images(keys: Sequence[str], source: str) -> None:
    """Get images that this worker's cache lacks from the worker that compiled them; failing that, they are compiled here."""
    from distributed.utils import sync

    store = default_cache()
    worker = this_worker()
    missing = [key for key in keys if key and store.get(key) is None]
    if not missing or source == worker.address:
        return

    async def ask() -> Any:
        return await getattr(worker.rpc(source), HANDLER)(keys=missing)

    try:
        found = sync(worker.loop, ask, callback_timeout=FETCH_S)
    except (OSError, TimeoutError):  # that worker has ended, or hangs
        return
    for key, data in found.items():
        if key in missing:
            store.put(key, bytes(data))
