"""The files of winners: complete at any time, shared by processes, refused in one line."""

from __future__ import annotations

import dataclasses
import errno
import json
import multiprocessing
import os
import signal
import time

import pytest

from ptxkit import files
from ptxkit.errors import FileAccessError, UsageError
from ptxkit.workload.tuned import store
from ptxkit.workload.tuned.record import Record

GPU = "NVIDIA H200"


def record(n, **more):
    given = {"time_us": 2.0, "samples": 40, "at": "2026-11-26T10:00:00+00:00", "code": "c", **more}
    return Record("saxpy", {"n": n}, {}, "scalar", {"THREADS": 256}, **given)


def stored():
    store._read.cache_clear()
    return {r.sizes["n"] for r in store.read(store.path_for(GPU))}


def add(first, count):
    for n in range(first, first + count):
        store.record(GPU, record(n))


def forever():
    for n in range(1, 1 << 30):
        store.record(GPU, record(n % 50 + 1, samples=n))


def test_a_record_survives_the_round_trip(config):
    one = record(4, spread_us=0.5, driver="580", nvrtc="13.0", uuid="GPU-1", scope="variant")
    assert store.record(GPU, one) == config / "tuned" / "nvidia-h200.json"
    assert store.read(store.path_for(GPU)) == (one,)
    assert store.gpus() == [GPU]


def test_writers_of_several_processes_and_threads_lose_nothing():
    spawn = multiprocessing.get_context("fork")
    writers = [spawn.Process(target=add, args=(1 + 20 * i, 20)) for i in range(4)]
    for writer in writers:
        writer.start()
    add(1001, 20)
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert stored() == {*range(1, 81), *range(1001, 1021)}


def test_a_killed_writer_leaves_a_whole_file_and_no_lock():
    add(1, 1)
    for attempt in range(8):
        writer = multiprocessing.get_context("fork").Process(target=forever)
        writer.start()
        time.sleep(0.03 + 0.007 * attempt)
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        assert 1 in stored()
        store.record(GPU, record(500 + attempt))
        assert 500 + attempt in stored()


def test_what_a_killed_writer_left_is_removed_later():
    add(1, 1)
    path = store.path_for(GPU)
    left = path.parent / f".{path.name}.abc"
    left.write_text("{")
    add(2, 1)
    assert left.exists()  # its writer may still be at work
    os.utime(left, (1, 1))
    add(3, 1)
    assert not left.exists()


def test_a_full_disk_leaves_the_old_file():
    add(1, 1)

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.MonkeyPatch.context() as patch, pytest.raises(FileAccessError, match="No space left on device"):
        patch.setattr(files.os, "fdopen", full)
        add(2, 1)
    path = store.path_for(GPU)
    assert stored() == {1} and not list(path.parent.glob(f".{path.name}*"))


def test_a_directory_that_cannot_be_made_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PTXKIT_CONFIG_DIR", str(tmp_path / "file" / "config"))
    for action in (lambda: store.check_recordable(GPU), lambda: add(1, 1)):
        with pytest.raises(UsageError, match="cannot write .*/file/config/tuned: Not a directory"):
            action()


def test_a_read_only_directory_is_one_line():
    add(1, 1)

    def denied(*args, **kwargs):
        raise PermissionError(errno.EROFS, os.strerror(errno.EROFS))

    message = r"cannot lock .*\.lock: Read-only file system"
    with pytest.MonkeyPatch.context() as patch, pytest.raises(FileAccessError, match=message):
        patch.setattr(files.os, "open", denied)
        store.update(GPU, lambda records: [])
    assert stored() == {1}


def hold(path, ready):
    with files.locked_by_file(path):
        ready.set()
        time.sleep(30)


def test_a_lock_that_is_held_too_long_is_one_line(tmp_path):
    ready = multiprocessing.get_context("fork").Event()
    holder = multiprocessing.get_context("fork").Process(target=hold, args=(tmp_path, ready))
    holder.start()
    assert ready.wait(10)
    late = pytest.raises(FileAccessError, match="is locked by another process for more than 0.1 s")
    with late, files.locked_by_file(tmp_path, wait_s=0.1):
        pass
    holder.kill()
    holder.join()
    with files.locked_by_file(tmp_path, wait_s=10):
        pass


@pytest.mark.parametrize(
    "change, message",
    [
        ({"sizes": {"n": 0}}, "record 0 has no valid 'sizes'"),
        ({"sizes": {"n": True}}, "record 0 has no valid 'sizes'"),
        ({"kernel": ""}, "record 0 has no valid 'kernel'"),
        ({"tile": {"THREADS": [1]}}, "record 0 has no valid 'tile'"),
        ({"options": {"eps": float("nan")}}, "record 0 has no valid 'options'"),
        ({"time_us": -1}, "record 0 has no valid 'time_us'"),
        ({"time_us": "2"}, "record 0 has no valid 'time_us'"),
        ({"time_us": 10**400}, "record 0 has no valid 'time_us'"),
        ({"spread_us": 1e300}, "record 0 has no valid 'spread_us'"),
        ({"samples": 1.5}, "record 0 has no valid 'samples'"),
        ({"samples": 10**30}, "record 0 has no valid 'samples'"),
        ({"kernel": "saxpy\nNVIDIA H200: saxpy: takes"}, "record 0 has no valid 'kernel'"),
        ({"tile": {"\x1b[31m": 1}}, "record 0 has no valid 'tile'"),
        ({"options": {"dtype": "\x9b31m"}}, "record 0 has no valid 'options'"),
        ({"at": "2026-11-26\x1b10:00:00+00:00"}, "record 0 has no valid 'at'"),
        ({"others": [{"variant": "\u202ex", "tile": {}, "time_us": 1}]}, "record 0 has no valid 'others'"),
        ({"at": "yesterday"}, "record 0 has no valid 'at'"),
        ({"at": "2026-11-26T10:00:00"}, "record 0 has no valid 'at'"),
        ({"at": "0001-01-01T00:00:00+14:00"}, "record 0 has no valid 'at'"),
        ({"at": "9999-12-31T23:59:59-10:00"}, "record 0 has no valid 'at'"),
        ({"scope": "all"}, "record 0 has no valid 'scope'"),
        ({"others": [{"variant": "x"}]}, "record 0 has no valid 'others'"),
        ({"others": [{"variant": "x", "tile": {}, "time_us": 10**400}]}, "record 0 has no valid 'others'"),
    ],
)
def test_values_of_other_types_are_refused_and_kept(change, message):
    path = store.path_for(GPU)
    path.parent.mkdir(parents=True)
    text = json.dumps({"schema": store.SCHEMA, "gpu": GPU, "records": [{**record(4).to_json(), **change}]})
    path.write_text(text)
    for action in (lambda: store.read(path), lambda: add(5, 1)):
        with pytest.raises(UsageError, match=message):
            action()
    assert store.read_leniently(GPU) == ()
    assert path.read_text() == text


@pytest.mark.parametrize("gpu", ["NVIDIA\x1b[31m H200", "...", ""])
def test_a_name_of_a_gpu_that_cannot_be_shown_or_be_a_file_is_refused(gpu):
    path = store.path_for(GPU)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"schema": store.SCHEMA, "gpu": gpu, "records": []}))
    with pytest.raises(UsageError, match="it names no GPU"):
        store.gpus()


def test_a_winner_that_could_not_be_read_again_is_not_recorded():
    add(1, 1)
    with pytest.raises(UsageError, match="the winner is not recorded: it has no valid 'options'"):
        store.record(GPU, dataclasses.replace(record(2), options={"text": "a\nb"}))
    assert stored() == {1}


def test_winners_of_another_gpu_are_not_used_under_the_name_of_the_file():
    """A file that was copied or renamed by hand: whoever asks for the model of its name does not get those of its content."""
    add(1, 1)
    path = store.path_for(GPU)
    text = path.read_text().replace(GPU, "NVIDIA A100")
    path.write_text(text)
    for action in (lambda: add(2, 1), lambda: store.check_recordable(GPU), lambda: store.gpus(wanted="h200")):
        with pytest.raises(UsageError, match="has the winners of 'NVIDIA A100', whose file is nvidia-a100.json"):
            action()
    assert store.read_leniently(GPU) == ()
    assert path.read_text() == text


def test_unknown_keys_of_later_versions_are_left_out():
    path = store.path_for(GPU)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"schema": store.SCHEMA, "gpu": GPU, "records": [{**record(4).to_json(), "new": 1}]}))
    assert store.read(path) == (record(4),)


def test_a_file_under_another_name_is_one_line():
    add(1, 1)
    path = store.path_for(GPU)
    path.rename(path.with_name("copy.json"))
    with pytest.raises(UsageError, match="copy.json has the winners of 'NVIDIA H200', whose file is nvidia-h200.json"):
        store.gpus()


def test_a_pipe_under_the_name_of_a_file_is_one_line():
    path = store.path_for(GPU)
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    with pytest.raises(UsageError, match="is a pipe, not a regular file"):
        store.read(path)
    assert store.read_leniently(GPU) == ()


@pytest.mark.parametrize("action", [store.gpus, lambda: add(5, 1), lambda: store.read(store.path_for(GPU))])
def test_a_link_that_leads_nowhere_is_one_line(action):
    path = store.path_for(GPU)
    path.parent.mkdir(parents=True)
    path.symlink_to("gone.json")
    with pytest.raises(UsageError, match=r"nvidia-h200.json is a link that leads nowhere, to gone.json; delete the link"):
        action()
    assert store.read_leniently(GPU) == ()
    assert path.is_symlink() and not path.exists()


@pytest.mark.parametrize(
    "name, wanted, refused",
    [
        ("nvidia-h100.json", "h200", False),
        ("nvidia-h200-nvl.json", "nvidia h200", False),
        ("nvidia-h200-nvl.json", "h200", True),
        ("nvidia-h100.json", None, True),
        ("nvidia-h200.json", "NVIDIA H200", True),
    ],
)
def test_files_of_other_models_need_not_be_readable(name, wanted, refused):
    add(1, 1)
    (store.directory() / name).write_text("{")
    if refused:
        with pytest.raises(UsageError, match="is no file of winners"):
            store.gpus(wanted=wanted)
    else:
        assert store.gpus(wanted=wanted) == [GPU]
