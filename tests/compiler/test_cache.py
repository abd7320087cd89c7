import logging
import multiprocessing
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxkit.compiler.cache import Cache, default_cache
from ptxkit.errors import FileAccessError, UsageError


@given(st.binary(max_size=2000))
def test_what_is_put_comes_back(tmp_path_factory, data):
    cache = Cache(tmp_path_factory.mktemp("c"))
    cache.put("key", data)
    assert cache.get("key") == data
    assert Cache(cache.directory).get("key") == data


def test_absent_and_replaced_entries(tmp_path):
    cache = Cache(tmp_path / "not" / "yet")
    assert cache.get("key") is None
    cache.put("key", b"one")
    cache.put("key", b"two")
    assert cache.get("key") == b"two"
    assert cache.info().entries == 1


@given(data=st.binary(min_size=1, max_size=200), position=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_any_damaged_byte_is_noticed_and_the_entry_dropped(tmp_path_factory, data, position, flip):
    cache = Cache(tmp_path_factory.mktemp("c"))
    cache.put("key", data)
    (path,) = cache.directory.iterdir()
    content = bytearray(path.read_bytes())
    content[position % len(content)] ^= flip
    path.write_bytes(content)
    assert cache.get("key") is None
    assert not path.exists()


@pytest.mark.parametrize("keep", [0, 5, 20, 30])
def test_a_cut_off_entry_is_dropped(tmp_path, keep):
    cache = Cache(tmp_path)
    cache.put("key", b"x" * 100)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:keep])
    assert cache.get("key") is None
    assert not path.exists()


def test_the_least_recently_used_go_first(tmp_path):
    cache = Cache(tmp_path, limit_bytes=3500)
    for number in range(3):
        cache.put(f"k{number}", bytes(1000))
        os.utime(cache.directory / f"k{number}.bin", (number, number))
    assert cache.get("k0") is not None  # now the latest
    cache.put("k3", bytes(1000))
    assert [cache.get(f"k{n}") is not None for n in range(4)] == [True, False, True, True]
    assert cache.info().size_bytes <= 3500


def test_an_entry_above_the_limit_is_not_kept(tmp_path):
    cache = Cache(tmp_path, limit_bytes=100)
    cache.put("key", bytes(1000))
    assert cache.get("key") is None
    assert cache.info().size_bytes == 0


def test_clear_and_info(tmp_path):
    cache = Cache(tmp_path)
    for number in range(5):
        cache.put(str(number), b"data")
    (tmp_path / "1-abc.tmp").write_bytes(b"left behind by a killed writer")
    (tmp_path / "README").write_text("not ours")
    info = cache.info()
    assert (info.entries, info.directory, info.writable) == (5, tmp_path, True)
    assert cache.clear() == 5
    assert [path.name for path in tmp_path.iterdir()] == ["README"]


def _unwritable(tmp_path):
    # A plain file where the directory should be: refuses writers even when the tests run as root.
    blocker = tmp_path / "blocker"
    blocker.write_text("")
    return Cache(blocker / "cache")


def test_a_cache_that_cannot_be_written_says_so_once(tmp_path, caplog):
    cache = _unwritable(tmp_path)
    with caplog.at_level(logging.WARNING, "ptxkit"):
        cache.put("a", b"1")
        cache.put("b", b"2")
    assert [record.getMessage() for record in caplog.records] == [
        f"the compile cache {cache.directory} cannot be written (Not a directory); every run will compile anew"
    ]
    assert cache.get("a") is None
    assert not cache.info().writable


def test_a_full_disk_leaves_no_file(tmp_path, caplog, monkeypatch):
    cache = Cache(tmp_path)

    def full(path, data):
        path.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    with caplog.at_level(logging.WARNING, "ptxkit"):
        cache.put("a", b"1")
    assert "No space left on device" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_is_a_file_or_may_not_be_read_cannot_be_cleared(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot clear the compile cache .*: Not a directory"):
        Cache(tmp_path / "file").clear()

    def denied(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.scandir", denied)
    with pytest.raises(FileAccessError, match="cannot clear the compile cache .*: Permission denied"):
        Cache(tmp_path).clear()


def test_without_a_home_directory_a_variable_has_to_name_the_cache(monkeypatch):
    monkeypatch.setenv("PTXKIT_CACHE_DIR", "~nosuchuser/cache")
    with pytest.raises(UsageError, match="no home directory for ~nosuchuser/cache; set PTXKIT_CACHE_DIR"):
        default_cache()


def _hammer(directory, seed):
    cache = Cache(directory, limit_bytes=20_000)
    wrong = 0
    for step in range(60):
        key = f"k{(seed + step) % 7}"
        data = cache.get(key)
        wrong += data is not None and data != key.encode() * 1000
        cache.put(key, key.encode() * 1000)
        if step % 20 == 19:
            cache.trim()
    return wrong


def test_many_processes_share_one_directory(tmp_path):
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        assert pool.starmap(_hammer, [(tmp_path, seed) for seed in range(4)]) == [0] * 4
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize(
    "text, limit", [("", 1 << 30), ("1000", 1000), ("500M", 500 << 20), ("2GiB", 2 << 30), ("8kb", 8192)]
)
def test_the_limit_from_the_environment(monkeypatch, text, limit):
    monkeypatch.setenv("PTXKIT_CACHE_LIMIT", text)
    assert default_cache().limit_bytes == limit


@pytest.mark.parametrize("text", ["much", "-1", "1.5G", "G"])
def test_a_limit_that_is_no_size(monkeypatch, text):
    monkeypatch.setenv("PTXKIT_CACHE_LIMIT", text)
    with pytest.raises(UsageError, match="PTXKIT_CACHE_LIMIT"):
        default_cache()


def test_the_platforms_directory_is_the_default(monkeypatch, tmp_path):
    monkeypatch.delenv("PTXKIT_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache().directory == tmp_path / "ptxkit" / "images"
