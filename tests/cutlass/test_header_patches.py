"""The package nvidia-cutlass: its version, what it needs, and the passages of its headers that are replaced."""

import importlib.metadata
from pathlib import Path

import pytest

from ptxkit.compiler import toolkit
from ptxkit.cutlass import emit, headers, package
from ptxkit.cutlass.description import GemmDescription
from ptxkit.errors import UnavailableError


@pytest.fixture(autouse=True)
def fresh():
    package.include_dirs.cache_clear()
    headers.patched_headers.cache_clear()


def one_line(caught):
    assert "\n" not in str(caught.value)


def test_a_missing_package_is_reported_with_the_fix(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(
        UnavailableError, match=r"CUTLASS is not installed; run: pip install 'nvidia-cutlass=="
    ) as caught:
        package.include_dirs()
    one_line(caught)


def test_another_version_is_refused(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "4.3.0.0")
    with pytest.raises(
        UnavailableError, match=r"nvidia-cutlass 4\.3\.0\.0 is installed, but .* 4\.2\.0\.0; run: pip"
    ) as caught:
        headers.patched_headers(90)
    one_line(caught)


@pytest.mark.parametrize("version, fits", [("13.0.85", True), ("13.1.115", True), ("13.2.27", False), ("14.0", False)])
def test_cccl_must_be_older_than_13_2(version, fits):
    if fits:
        package.check_cccl(version)
        return
    with pytest.raises(
        UnavailableError, match=rf"does not compile with nvidia-cuda-cccl {version}; run: pip"
    ) as caught:
        package.check_cccl(version)
    one_line(caught)


def test_no_cccl_at_all(monkeypatch):
    monkeypatch.setattr(toolkit, "headers", lambda: ())
    with pytest.raises(UnavailableError, match="needs the CUDA C\\+\\+ core libraries' headers; run: pip"):
        package.check()


def test_a_package_that_cannot_be_imported_is_said(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError("No module named 'networkx'")

    emit._load.cache_clear()
    monkeypatch.setattr(emit.importlib, "import_module", missing)
    with pytest.raises(
        UnavailableError, match="CUTLASS cannot be imported: No module named 'networkx'; run: pip"
    ) as caught:
        emit.emit(GemmDescription())
    one_line(caught)


def test_every_passage_is_replaced():
    root = Path(package.include_dirs()[0])
    for name, edits in headers.EDITS.items():
        original = (root / name).read_text()
        text = headers.patched(name, original)
        assert text != original
        for passage, replacement in edits:
            assert replacement in text
            assert passage in replacement or passage not in text


@pytest.mark.parametrize("name", headers.EDITS)
def test_a_header_of_another_text_is_refused(name):
    with pytest.raises(
        UnavailableError, match=rf"{name} is not that of nvidia-cutlass 4\.2\.0\.0: .* 0 times"
    ) as caught:
        headers.patched(name, "#pragma  once\n")
    one_line(caught)
    passage = headers.EDITS[name][-1][0]
    text = (Path(package.include_dirs()[0]) / name).read_text()
    with pytest.raises(UnavailableError, match="2 times"):
        headers.patched(name, text + passage)


def test_only_what_an_architecture_needs_is_replaced():
    assert headers.patched_headers(80) == ()
    assert "cute/atom/copy_traits_sm100_tma.hpp" not in dict(headers.patched_headers(90))
    assert dict(headers.patched_headers(100)).keys() == headers.EDITS.keys()


def test_cccl_is_found_the_way_cutlass_includes_it():
    assert any((Path(directory) / "cccl/cuda/std/cstdint").is_file() for directory in package.include_dirs())
