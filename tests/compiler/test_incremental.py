"""The cache key: an outdated image is never used, and an unchanged source is never compiled again."""

import logging
import multiprocessing
import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxkit.compiler import compile_source, incremental, nvrtc
from ptxkit.compiler.request import Request
from ptxkit.compiler.request import request as make_request
from ptxkit.errors import CompileError
from ptxkit.targets import TARGETS

SOURCE = '#include "one.cuh"\n__global__ void k(int* x) { *x = ONE; }\n'


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.cuh").write_text('#include "two.cuh"\n#define ONE TWO\n')
    (tmp_path / "two.cuh").write_text("#define TWO 2\n")
    (tmp_path / "k.cu").write_text(SOURCE)
    return tmp_path


def compiled(**options):
    return compile_source("k.cu", target="sm_90a", **options)


def stored_value(image):
    lines = [line for line in image.ptx.splitlines() if "st.global" in line or "mov" in line]
    return next(number for number in range(10) if any(f", {number};" in line for line in lines))


def test_the_second_time_comes_from_the_cache_and_is_the_same(project):
    first, second = compiled(), compiled()
    assert (first.from_cache, second.from_cache) == (False, True)
    assert replace(second, from_cache=False) == first
    assert second.sources == tuple(str(project / name) for name in ("k.cu", "one.cuh", "two.cuh"))


@pytest.mark.parametrize(
    "name, text", [("two.cuh", "#define TWO 3\n"), ("one.cuh", "#define ONE 3\n"), ("k.cu", SOURCE.replace("ONE", "3"))]
)
def test_any_changed_file_compiles_anew_even_with_its_old_times(project, name, text):
    assert stored_value(compiled()) == 2
    before = (project / name).stat()
    (project / name).write_text(text)
    os.utime(project / name, ns=(before.st_atime_ns, before.st_mtime_ns))
    changed = compiled()
    assert not changed.from_cache
    assert stored_value(changed) == 3


def test_a_header_that_changes_back_hits_again(project):
    first = compiled()
    (project / "two.cuh").write_text("#define TWO 3\n")
    compiled()
    (project / "two.cuh").write_text("#define TWO 2\n")
    again = compiled()
    assert again.from_cache
    assert again.key == first.key


def test_touching_a_header_changes_nothing(project):
    compiled()
    os.utime(project / "two.cuh", (1, 1))
    assert compiled().from_cache


def test_a_header_that_appears_earlier_on_the_path_is_noticed(project, tmp_path_factory):
    early, late = tmp_path_factory.mktemp("early"), tmp_path_factory.mktemp("late")
    (late / "one.cuh").write_text("#define ONE 4\n")
    (project / "one.cuh").unlink()
    assert stored_value(compiled(include_dirs=[early, late])) == 4
    (early / "one.cuh").write_text("#define ONE 5\n")
    assert stored_value(compiled(include_dirs=[early, late])) == 5
    (early / "one.cuh").unlink()
    again = compiled(include_dirs=[early, late])
    assert stored_value(again) == 4
    assert again.from_cache


def test_a_header_named_by_an_option_counts(project):
    (project / "k.cu").write_text("#include CONFIG\n__global__ void k(int* x) { *x = ONE; }\n")
    options = ['-DCONFIG="extra.cuh"', "-I", str(project / "inc")]
    (project / "inc").mkdir()
    for value in (6, 7):
        (project / "inc" / "extra.cuh").write_text(f"#define ONE {value}\n")
        image = compiled(options=options)
        assert not image.from_cache
        assert stored_value(image) == value


def test_a_source_whose_headers_cannot_be_known_is_not_cached(project):
    (project / "k.cu").write_text(
        "#define PASTE(x) #x\n#include PASTE(one.cuh)\n__global__ void k(int* x) { *x = ONE; }\n"
    )
    assert [compiled().from_cache for _ in range(2)] == [False, False]


def test_a_header_that_changes_while_compiling_is_not_filed_under_its_old_contents(project):
    request = make_request("k.cu", "sm_90a", None, {}, (), (), (), True)

    def build(request):
        (project / "two.cuh").write_text("#define TWO 3\n")
        return nvrtc.compile_request(request)

    assert stored_value(incremental.cached_compile(request, build)) == 3
    (project / "two.cuh").write_text("#define TWO 2\n")
    assert stored_value(compiled()) == 2


texts = st.text(max_size=8)
requests = st.builds(
    Request,
    text=texts,
    name=texts,
    directory=texts,
    target=st.sampled_from(list(TARGETS.values())),
    include_dirs=st.lists(texts, max_size=2).map(tuple),
    options=st.lists(texts, max_size=2).map(tuple),
    names=st.lists(texts, max_size=2).map(tuple),
)


@given(requests, requests)
def test_keys_are_equal_exactly_when_requests_are(one, other):
    assert (incremental.base_key(one) == incremental.base_key(other)) == (one == other)
    assert incremental.base_key(one) == incremental.base_key(replace(one))


@given(st.dictionaries(texts, texts, max_size=3), st.dictionaries(texts, texts, max_size=3))
def test_image_keys_are_equal_exactly_when_headers_are(one, other):
    assert (incremental.image_key("base", one) == incremental.image_key("base", other)) == (one == other)


@pytest.mark.parametrize(
    "change",
    [
        {"target": "sm_100a"},
        {"defines": {"N": 1}},
        {"options": ["--use_fast_math"]},
        {"lineinfo": False},
        {"instantiate": ["k"]},
        {"name": "other.cu"},
    ],
)
def test_every_option_is_part_of_the_key(project, change):
    compiled()
    image = compile_source("k.cu", **({"target": "sm_90a"} | change))
    assert not image.from_cache


def test_another_nvrtc_compiles_again(project, monkeypatch):
    compiled()
    monkeypatch.setattr(incremental.toolkit, "nvrtc_identity", lambda: "14.0")
    assert not compiled().from_cache


def test_damaged_entries_are_rebuilt(project, own_cache):
    first = compiled()
    for path in own_cache.iterdir():
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
    second = compiled()
    assert not second.from_cache
    assert second.cubin == first.cubin
    assert compiled().from_cache


def test_an_intact_entry_that_cannot_be_decoded_is_rebuilt(project):
    cache = incremental.default_cache()
    image = compiled()
    cache.put(image.key, b'{"target": "sm_90a"}\n')
    assert not compiled().from_cache
    assert compiled().from_cache


def test_a_directory_that_cannot_be_written_costs_one_line(project, tmp_path, monkeypatch, caplog):
    (tmp_path / "blocker").write_text("")
    monkeypatch.setenv("PTXKIT_CACHE_DIR", str(tmp_path / "blocker" / "cache"))
    with caplog.at_level(logging.WARNING, "ptxkit"):
        assert [stored_value(compiled()) for _ in range(2)] == [2, 2]
    assert len(caplog.records) == 1
    assert "cannot be written" in caplog.text


def test_cache_false_neither_reads_nor_writes(project, own_cache):
    assert not compiled(cache=False).from_cache
    assert list(own_cache.iterdir()) == []


def test_errors_are_not_cached(project, own_cache):
    (project / "two.cuh").write_text("#error no\n")
    with pytest.raises(CompileError):
        compiled()
    assert list(own_cache.iterdir()) == []


def test_a_second_compile_is_a_hit(project):
    (project / "k.cu").write_text("#include <cuda_fp16.h>\n__global__ void k(half* x) { *x += *x; }\n")
    assert not compiled().from_cache
    assert compiled().from_cache


def _compile_in_process(directory):
    os.chdir(directory)
    return stored_value(compiled())


def test_many_processes_compile_at_once(project):
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        assert pool.map(_compile_in_process, [str(project)] * 8) == [2] * 8
    assert compiled().from_cache
