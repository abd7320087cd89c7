"""Large PTX texts are parsed once, and a launch reads only the functions that it reaches."""

import numpy as np
import pytest

import ptxkit
from ptxkit.compiler.cache import default_cache
from ptxkit.isa import stored
from ptxkit.runtime import parsed_modules
from ptxkit.runtime.emulated import EmulatedDevice

SOURCE = """__device__ int table[4];
template <int N> __global__ void add(int* x) { x[threadIdx.x] += N + table[threadIdx.x & 3]; }
"""
INSTANCES = [f"add<{n}>" for n in range(1, 5)]


@pytest.fixture
def parses(monkeypatch, tmp_path):
    """Keeps every text on disk, and counts how often one is parsed."""
    texts = []
    original = parsed_modules.parse
    monkeypatch.setenv("PTXKIT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(parsed_modules, "STORED_BYTES", 0)
    monkeypatch.setattr(parsed_modules, "parse", lambda text, path: texts.append(text) or original(text, path))
    parsed_modules.parsed.cache_clear()
    yield texts
    parsed_modules.parsed.cache_clear()


def launched(name="add<3>"):
    """As a new process would launch a kernel: with nothing that was parsed before."""
    parsed_modules.parsed.cache_clear()
    x = np.arange(32, dtype=np.int32)
    module = ptxkit.compile(SOURCE, device=EmulatedDevice(), instantiate=INSTANCES)
    module[name](x, grid=1, block=32)
    return x


def test_a_later_process_reads_only_the_kernel_that_it_launches(parses, monkeypatch):
    assert (launched() == np.arange(32) + 3).all()
    assert len(parses) == 1
    opened = []
    original = stored._read
    monkeypatch.setattr(stored, "_read", lambda data: opened.append(data) or original(data))
    assert (launched("add<4>") == np.arange(32) + 4).all()
    assert len(parses) == 1
    assert len(opened) == 2  # the heads of all functions, and the body of one


@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: data[:-1], lambda data: b"\xff" * len(data)])
def test_a_damaged_entry_is_ignored_and_replaced(parses, damage):
    launched()
    cache = default_cache()
    (key,) = [path.stem for path in cache.directory.glob("*.bin") if is_module(cache.get(path.stem))]
    whole = cache.get(key)
    cache.put(key, damage(whole))
    assert (launched() == np.arange(32) + 3).all()
    assert len(parses) == 2
    assert cache.get(key) == whole


def is_module(data):
    try:
        return bool(stored.from_bytes(data, "", ""))
    except ValueError:
        return False


def test_another_version_of_the_parser_parses_anew(parses, monkeypatch):
    launched()
    monkeypatch.setattr(parsed_modules, "_identity", lambda: "another version")
    launched()
    assert len(parses) == 2


def test_small_texts_are_not_kept(parses, monkeypatch):
    monkeypatch.setattr(parsed_modules, "STORED_BYTES", 1 << 30)
    launched()
    launched()
    assert len(parses) == 2
