"""What must be equal on a client and its workers."""

from __future__ import annotations

import pytest

from ptxkit.cluster.identity import difference, identity


def test_equal_processes_do_not_differ():
    assert difference(identity("saxpy"), identity("saxpy")) == ""


def test_a_difference_is_named():
    here = identity()
    assert difference(here, {**here, "nvrtc": "1.0"}) == f"nvrtc 1.0 there, {here['nvrtc']} here"
    assert "ptxkit unknown there" in difference(here, {})


@pytest.mark.parametrize("edited", ["k.py", "k.cu", "header.cuh", "helper.py", "package/inner.py"])
def test_an_edit_of_what_a_description_consists_of_changes_it(edited, description):
    path = description()
    folder = path.parent
    path.write_text("import helper\nimport package.inner\n" + path.read_text())
    (folder / "k.cu").write_text('#include "header.cuh"\n' + (folder / "k.cu").read_text())
    (folder / "package").mkdir()
    for name in ("header.cuh", "helper.py", "package/__init__.py", "package/inner.py"):
        (folder / name).touch()
    before = identity(str(path))
    with (folder / edited).open("a") as file:
        file.write("\n")
    after = identity(str(path))
    assert before["description"] != after["description"]
    assert before["ptxkit"] == after["ptxkit"]


def test_another_file_beside_a_description_does_not_change_it(description):
    path = description()
    before = identity(str(path))
    (path.parent / "other.py").touch()
    assert identity(str(path)) == before


def test_a_file_that_is_not_there_differs():
    assert "No such file" in identity("/none/k.py")["description"]
