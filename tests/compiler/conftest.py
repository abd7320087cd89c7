from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test of the compiler starts with an empty cache of its own."""
    directory = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("PTXKIT_CACHE_DIR", str(directory))
    monkeypatch.delenv("PTXKIT_CACHE_LIMIT", raising=False)
    return directory
