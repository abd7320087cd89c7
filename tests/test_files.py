"""Files are written completely or not at all."""

from __future__ import annotations

import errno
import os
import threading

import pytest

from ptxkit import files
from ptxkit.errors import FileAccessError, UsageError
from ptxkit.files import check_writable, write_text


def test_a_pipe_is_written_to_and_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    check_writable(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_text(pipe, "text")
    reader.join(10)
    assert read == ["text"]
    assert pipe.is_fifo()


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_text(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "text"


def test_asking_whether_a_file_can_be_written_changes_nothing(tmp_path):
    file = tmp_path / "file"
    check_writable(file)
    assert list(tmp_path.iterdir()) == []
    file.write_text("kept")
    check_writable(file)
    assert file.read_text() == "kept"
    for place in (tmp_path, tmp_path / "no" / "file"):
        with pytest.raises(UsageError, match="cannot write"):
            check_writable(place)


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, FileAccessError), (errno.ENAMETOOLONG, UsageError)])
def test_new_files_are_written_all_or_none_and_the_one_that_fails_is_named(tmp_path, monkeypatch, number, kind):
    """The second of three files cannot be written."""
    fdopen = os.fdopen

    class Full:
        def __init__(self, *given, **options):
            self.file = fdopen(*given, **options)

        def __enter__(self):
            return self

        def __exit__(self, *exception):
            self.file.close()

        def write(self, text):
            if text == "b":
                raise OSError(number, os.strerror(number))
            self.file.write(text)

    monkeypatch.setattr(os, "fdopen", Full)
    with pytest.raises(kind, match=f"cannot write {tmp_path}/made/b: "):
        files.write_new({tmp_path / "made" / name: name for name in "abc"})
    assert not list((tmp_path / "made").iterdir())


def test_new_files_replace_none(tmp_path):
    (tmp_path / "b").write_text("precious")
    with pytest.raises(UsageError, match="File exists"):
        files.write_new({tmp_path / "a": "new", tmp_path / "b": "new"})
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("b", "precious")]
