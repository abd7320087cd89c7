"""What became of a source with host code is kept on disk, and used only while every file that it depends on is unchanged."""

import os
from dataclasses import replace

import pytest

from ptxkit.compiler import compile_source, nvrtc
from ptxkit.compiler.cache import default_cache
from ptxkit.compiler.host_code import compile as device_part
from ptxkit.compiler.host_code import kept

SOURCE = """#include <cstdio>
#include "one.cuh"
struct Host { std::FILE* file; virtual ~Host() = default; };
__global__ void k(int* x) { *x = ONE; }
int main() { k<<<1, 1>>>(nullptr); }
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    (tmp_path / "one.cuh").write_text("#define ONE 1\n")  # found in the directory above, where no -I points
    (tmp_path / "inner" / "k.cu").write_text(SOURCE)
    return tmp_path


@pytest.fixture
def compiled(monkeypatch):
    """Compiles k.cu and returns the image with the number of times that the source was parsed."""
    parsed = []
    original = device_part.extracted
    monkeypatch.setattr(device_part, "extracted", lambda request: parsed.append(request) or original(request))

    def run():
        parsed.clear()
        return compile_source("k.cu", target="sm_90a"), len(parsed)

    return run


def test_an_unchanged_source_is_neither_parsed_nor_compiled_again(project, compiled, monkeypatch):
    first, _ = compiled()
    monkeypatch.setattr(nvrtc, "compile_request", lambda request: pytest.fail("compiled again"))
    again, parsed = compiled()
    assert parsed == 0
    assert replace(again, from_cache=False) == first
    assert (again.expanded, again.left_out) == (first.expanded, first.left_out)
    assert again.left_out


@pytest.mark.parametrize("name", ["one.cuh", "inner/k.cu"])
def test_a_changed_file_of_the_same_size_and_times_counts(project, compiled, name):
    compiled()
    file = project / name
    before = file.stat()
    file.write_text(file.read_text().replace("ONE 1", "ONE 7").replace("= ONE", "= 777"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    image, parsed = compiled()
    assert parsed == 1
    assert ", 7" in image.ptx


@pytest.mark.parametrize("name", ["inner/one.cuh", "inner/include/one.cuh"])
def test_a_header_that_appears_where_one_was_looked_for_counts(project, compiled, name):
    compiled()
    (project / name).parent.mkdir(exist_ok=True)
    (project / name).write_text("#define ONE 7\n")
    assert ", 7" in compiled()[0].ptx


def test_the_root_of_a_project_that_appears_below_a_header_counts(project, compiled):
    compiled()
    (project / "inner" / ".git").mkdir()
    with pytest.raises(Exception, match="ONE"):
        compiled()


@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: b"{}\n", lambda data: data[:-9], lambda data: b"\0" + data])
def test_a_damaged_entry_is_ignored_and_replaced(project, compiled, damage):
    first, _ = compiled()
    key = kept._key(nvrtc.request("k.cu", "sm_90a", None, {}, (), (), (), True))
    whole = default_cache().get(key)
    default_cache().put(key, damage(whole))
    again, parsed = compiled()
    assert (parsed, again.ptx) == (1, first.ptx)
    assert default_cache().get(key) == whole


def test_another_version_of_the_code_parses_anew(project, compiled, monkeypatch):
    compiled()
    monkeypatch.setattr(kept, "_identity", lambda: "another version")
    assert compiled()[1] == 1
