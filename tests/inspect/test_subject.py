"""Subjects of inspect in their text form, their source files, and the JSON document."""

from __future__ import annotations

import json
import os

import pytest

from ptxkit.errors import CompileError, UnavailableError, UsageError
from ptxkit.inspect.report import document, ptx_range
from ptxkit.inspect.subject import Settings, subjects
from ptxkit.targets import Target

SOURCE = """template <int N> __global__ void scaled(float* y, float a) { y[threadIdx.x] *= a * N; }
#ifdef EXTRA
extern "C" __global__ void extra(float* y) { y[threadIdx.x] = EXTRA; }
#endif
extern "C" __global__ void plain(float* y) { y[threadIdx.x] = 1; }
"""


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "mine.cu"
    path.write_text(SOURCE)
    return path


def test_a_variant_brings_its_launch():
    (subject,) = subjects("saxpy:vectorized@sm_80,THREADS=512")
    assert (subject.title, subject.kernel) == ("saxpy:vectorized", "saxpy_vectorized<512>")
    assert subject.function.target.name == "sm_80" and (subject.block, subject.block_known) == (512, True)
    assert subject.tile == "THREADS=512" and subject.occupancy.block == 512
    assert next(iter(subject.sources.values())).path.endswith("saxpy.cu")


def test_a_kernel_without_variant_is_all_of_them():
    found = subjects("saxpy", Settings(target=Target.parse("sm_90a")))
    assert [s.title for s in found] == ["saxpy:scalar", "saxpy:vectorized", "saxpy:ptx"]
    assert len({s.function.name for s in found}) == 3


def test_a_description_file(tmp_path):
    from ptxkit.cli.new import command

    command.main(["mine", "--directory", str(tmp_path)], standalone_mode=False)
    found = subjects(str(tmp_path / "mine.py"))
    assert found and found[0].title.startswith("mine:")


def test_a_file_its_entries_macros_and_options(source):
    (plain,) = subjects(str(source), Settings(block=96, shared_bytes=1024, cluster=2))
    assert plain.title == "mine.cu:plain" and plain.function.target.name == "sm_90a"
    assert (plain.block, plain.dynamic_shared_bytes, plain.cluster) == (96, 1024, 2)
    assert [s.kernel for s in subjects(f"{source}:scaled<3>@sm_89")] == ["scaled<3>"]
    extra, plain = subjects(f"{source}@sm_89,-maxrregcount=24,EXTRA=1")
    assert extra.kernel == "extra" and extra.function.target.name == "sm_89"
    assert not plain.block_known and plain.block == 256


def test_ptx_is_assembled():
    from ptxkit.compiler.paths import ptx_dir

    (subject,) = subjects(f"{ptx_dir() / 'saxpy.ptx'}@sm_120a")
    assert subject.function.target.name == "sm_120a" and subject.function.name == "saxpy"
    first, last = ptx_range(subject.function)
    text = subject.function.ptx.split("\n")
    assert ".entry saxpy" in text[first - 1] and text[last - 1].strip() == "}"


def test_a_cubin_finds_its_source_and_says_when_it_changed(compiled, samples, tmp_path):
    path = tmp_path / "k.cubin"
    path.write_bytes(compiled("sm_90a").cubin)
    os.utime(path, (samples.stat().st_mtime + 10,) * 2)
    (subject,) = subjects(f"{path}:wide")
    (file,) = subject.sources.values()
    assert file.note == "" and "float4 v = x[i];" in file.line(15)
    os.utime(path, (samples.stat().st_mtime - 10,) * 2)
    (subject,) = subjects(f"{path}:wide")
    assert "changed after it was compiled" in next(iter(subject.sources.values())).note


def test_a_source_that_moved_or_shrank(tmp_path):
    from ptxkit.compiler import compile_source

    home = tmp_path / "home"
    home.mkdir()
    source = home / "moving.cu"
    source.write_text("\n" * 20 + 'extern "C" __global__ void k(float* y) { *y = 1; }\n')
    cubin = tmp_path / "away" / "k.cubin"
    cubin.parent.mkdir()
    cubin.write_bytes(compile_source(source, target="sm_90a").cubin)
    source.rename(tmp_path / "away" / "moving.cu")
    (subject,) = subjects(str(cubin))
    (file,) = subject.sources.values()
    assert "does not exist; showing" in file.note and "extern" in file.line(21)
    (tmp_path / "away" / "moving.cu").write_text("gone\n")
    (subject,) = subjects(str(cubin))
    assert "the line table refers to line 21: it has changed" in next(iter(subject.sources.values())).note
    (tmp_path / "away" / "moving.cu").unlink()
    (subject,) = subjects(str(cubin))
    (file,) = subject.sources.values()
    assert "does not exist: it was moved after compilation" in file.note and file.lines == ()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("saxpi", "did you mean 'saxpy'"),
        ("saxpy:vectorised", "did you mean 'vectorized'"),
        ("saxpy:scalar@THREADS=77", "offers"),
        ("nowhere.cubin", "cannot read nowhere.cubin: No such file"),
        ("nowhere.cu", "cannot read nowhere.cu"),
        ("./nowhere:k", "cannot read nowhere"),
        ("saxpy:scalar@-use_fast_math", "are for files"),
        ("saxpy@dtype=f16", "saxpy has no size, option or tile parameter 'dtype'"),
    ],
)
def test_words_that_name_nothing(words, reason):
    with pytest.raises(UsageError, match=reason):
        subjects(words)


def test_an_unknown_target_has_the_exit_code_of_a_missing_one():
    with pytest.raises(UnavailableError, match="there is no target 'sm_12'"):
        subjects("saxpy:scalar@sm_12")


def test_settings_that_do_not_apply(source, compiled, tmp_path):
    with pytest.raises(UsageError, match=r"has no kernel 'plane'; did you mean plain\?"):
        subjects(f"{source}:plane")
    with pytest.raises(UsageError, match="has no tile parameters"):
        subjects(str(source), Settings(tile={"N": "1"}))
    with pytest.raises(CompileError, match="mine.cu"):
        subjects(f"{source}@EXTRA=oops")
    path = tmp_path / "k.cubin"
    path.write_bytes(compiled("sm_90a").cubin)
    with pytest.raises(UsageError, match=r"has no kernel 'nestd'; did you mean nested\?"):
        subjects(f"{path}:nestd")
    with pytest.raises(UsageError, match="is compiled already"):
        subjects(f"{path}@A=1")
    with pytest.raises(UsageError, match="was not compiled for sm_80; it is for sm_90a"):
        subjects(f"{path}@sm_80")
    template = tmp_path / "template.cu"
    template.write_text("template <int N> __global__ void scaled(float* y) { *y = N; }")
    with pytest.raises(UsageError, match="a template is named with its arguments"):
        subjects(str(template))


def test_a_variant_that_the_target_lacks(tmp_path):
    with pytest.raises((UnavailableError, UsageError)):
        subjects("fused_l2norm:vectorized@sm_80,CLUSTER=4")


def test_the_document_is_json_and_complete(samples):
    chosen = [s for s in subjects(str(samples)) if s.kernel in ("nested", "spilling")]
    value = json.loads(json.dumps(document(chosen)))
    assert value["schema"] == "ptxkit.inspect/1" and len(value["kernels"]) == 2 and len(value["ptx"]) == 1
    nested = next(k for k in value["kernels"] if k["kernel"] == "nested")
    assert nested["target"] == "sm_90a" and nested["resources"]["shared_bytes"] == 1024
    assert nested["occupancy"]["ctas_per_sm"] == 8 and nested["occupancy"]["fraction"] == 1
    assert [loop["depth"] for loop in nested["loops"]] == [1, 2]
    assert len(nested["instructions"]) == nested["mix"]["sass"]["total"]
    barrier = next(i for i in nested["instructions"] if i["opcode"] == "BAR")
    assert barrier["source"]["line"] in (49, 52) and barrier["group"] == "sync"
    assert barrier["encoding"].startswith("0x") and len(barrier["encoding"]) == 34
    assert set(barrier["control"]) == {"stall", "yield", "write_barrier", "read_barrier", "wait", "reuse"}
    first, last = nested["ptx_lines"]
    text = value["ptx"][nested["ptx"]].split("\n")
    assert ".entry nested" in text[first - 1] and text[last - 1] == "}"
    (path,) = value["sources"]
    assert "__syncthreads" in value["sources"][path]["lines"][48]
    spilling = next(k for k in value["kernels"] if k["kernel"] == "spilling")
    assert spilling["resources"]["spill_store_bytes"] > 0
    assert {f["rule"] for f in spilling["findings"]} == {"local-memory-in-loop"}
    assert sum(b["instructions"] for b in nested["blocks"]) == len(nested["instructions"])


@pytest.fixture(scope="module")
def listings():
    """Target -> the listing of the cubin that was disassembled first."""
    return {}


@pytest.fixture
def disassembled_once(monkeypatch, listings):
    """nvdisasm runs once for each target, where programs differ by nothing but their paths, which no listing has."""
    from ptxkit.inspect import disassembly

    disassemble = disassembly._disassemble

    def listing(tool, cubin):
        if cubin.target.name not in listings:
            listings[cubin.target.name] = disassemble(tool, cubin)
        return listings[cubin.target.name]

    monkeypatch.setattr(disassembly, "_disassemble", listing)


@pytest.mark.parametrize("directory", ["ünï code", "日本", "a@b", "a:b", "x.cu:y@z", "it's"])
@pytest.mark.parametrize("name", ["k.cu", "é.cu", "@.cu"])
def test_any_directory_and_name(directory, name, tmp_path, disassembled_once):
    file = tmp_path / directory / name
    file.parent.mkdir()
    file.write_text('extern "C" __global__ void k(float* y) { y[threadIdx.x] = A; }\n')
    for words in (f"{file}@A=1", f"{file}:k@sm_80,A=1"):
        (found,) = subjects(words)
        assert list(found.sources) == [str(file)]
        assert found.sources[str(file)].note == "" and found.sources[str(file)].lines


def test_a_file_that_is_not_there_is_named_whole(tmp_path):
    (tmp_path / "a@b").mkdir()
    with pytest.raises(UsageError, match=r"cannot read .*/a@b/no\.cu: No such file"):
        subjects(f"{tmp_path}/a@b/no.cu@sm_80")


def test_a_path_that_ptxas_cannot_take_is_one_line(tmp_path):
    (tmp_path / 'a"b.cu').write_text("__global__ void k() {}\n")
    with pytest.raises(UsageError, match="no double quote in the path"):
        subjects(f'{tmp_path}/a"b.cu')
