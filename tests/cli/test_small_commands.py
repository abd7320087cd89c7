"""list, doctor and cache."""

from __future__ import annotations

import json

import pytest

from ptxkit import cli
from ptxkit.cli import doctor
from ptxkit.errors import UnavailableError


def exit_of(*args):
    with pytest.raises(SystemExit) as stopped:
        cli.main([str(a) for a in args])
    return stopped.value.code


def test_list_shows_sizes_variants_and_tiles(capsys):
    assert exit_of("list") == 0
    out = capsys.readouterr().out
    assert "fused_l2norm  ROWS=8192 COLS=4096 (emulator: ROWS=128 COLS=4096)" in out
    assert "vectorized" in out and "THREADS=" in out and "saxpy" in out


def test_list_json(capsys):
    assert exit_of("list", "saxpy", "--json") == 0
    value = json.loads(capsys.readouterr().out)
    (kernel,) = value["kernels"]
    assert value["schema"] == "ptxkit.list/1" and kernel["name"] == "saxpy"
    assert list(kernel["sizes"]) == ["n"] and kernel["variants"][0]["tile"]["THREADS"]


def test_list_takes_a_file_and_refuses_a_stranger(tmp_path, capsys):
    assert exit_of("new", "mine", "--directory", tmp_path) == 0
    capsys.readouterr()
    assert exit_of("list", tmp_path / "mine.py") == 0
    assert "y = a*x + y, one read" in capsys.readouterr().out
    assert exit_of("list", "saxpi") == 2
    assert "did you mean 'saxpy'?" in capsys.readouterr().err


def test_doctor_is_content_here(capsys):
    assert exit_of("doctor", "--json") == 0
    value = json.loads(capsys.readouterr().out)
    states = {check["name"]: check["state"] for check in value["checks"]}
    assert value["schema"] == "ptxkit.doctor/2" and value["ok"] is True
    assert states["compiler"] == states["emulator"] == states["NVRTC"] == "ok"
    assert all(check["fix"] for check in value["checks"] if check["state"] != "ok")


def test_doctor_exits_with_3_and_names_the_command_that_fixes_it(monkeypatch, capsys):
    def lost(images):
        raise UnavailableError("NVRTC is not installed")

    monkeypatch.setattr(doctor, "compiler", lost)
    assert exit_of("doctor") == 3
    out = capsys.readouterr().out
    assert "MISSING  compiler" in out and "-m pip install 'nvidia-cuda-nvrtc" in out
    assert "2 to fix: compiler, emulator" in out


def test_doctor_says_which_tool_is_not_installed(monkeypatch):
    from ptxkit.compiler import toolkit

    gone = {"NVRTC": (None, "nvidia-cuda-nvrtc"), "CCCL headers": (None, "nvidia-cuda-cccl"), "nvdisasm": (None, "x")}
    monkeypatch.setattr(toolkit, "survey", lambda: gone)
    nvrtc, cccl, nvdisasm = doctor.tools()
    assert nvrtc.state == cccl.state == "missing" and nvdisasm.state == "absent"
    assert cccl.fix.endswith("'nvidia-cuda-cccl>=13,<13.2'")


def test_doctor_without_a_gpu_or_peers_is_still_content():
    absent = doctor.attempt("gpu", "install a driver", lambda: (_ for _ in ()).throw(UnavailableError("no GPU")), optional=True)
    assert (absent.state, absent.detail) == ("absent", "no GPU")
    assert doctor.optional("no-such-package-here", "nothing", "pip install it").state == "absent"


@pytest.fixture
def cache_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("PTXKIT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_cache_info_and_clear(cache_dir, capsys):
    from ptxkit.compiler.cache import default_cache

    default_cache().put("key", b"image")
    assert exit_of("cache", "info") == 0
    assert f"{cache_dir}: 1 image" in capsys.readouterr().out
    assert exit_of("cache", "info", "--json") == 0
    held = json.loads(capsys.readouterr().out)
    assert (held["schema"], held["entries"], held["directory"]) == ("ptxkit.cache/1", 1, str(cache_dir))
    assert exit_of("cache", "clear") == 0
    assert "removed 1 image" in capsys.readouterr().out
    assert list(cache_dir.iterdir()) == []


def test_an_absent_cache_is_empty(cache_dir, capsys):
    assert exit_of("cache", "info") == 0
    assert "0 images" in capsys.readouterr().out
    assert exit_of("cache", "clear") == 0


def test_a_bad_cache_limit_is_usage(cache_dir, monkeypatch, capsys):
    monkeypatch.setenv("PTXKIT_CACHE_LIMIT", "lots")
    assert exit_of("cache", "info") == 2
    assert "PTXKIT_CACHE_LIMIT" in capsys.readouterr().err
