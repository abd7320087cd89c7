"""Files are written completely or not at all."""

from __future__ import annotations

import os
import threading

import pytest

from ptxkit.errors import UsageError
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
