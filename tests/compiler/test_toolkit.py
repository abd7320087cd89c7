import pytest

from ptxkit.compiler import toolkit
from ptxkit.compiler.paths import kernels_dir, ptx_dir
from ptxkit.errors import UnavailableError


@pytest.fixture
def nothing_installed(monkeypatch, tmp_path):
    toolkit._find.cache_clear()
    monkeypatch.setattr(toolkit, "_site_directories", lambda: (tmp_path,))
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    yield tmp_path
    toolkit._find.cache_clear()


def test_everything_is_found_with_its_version():
    for name, (tool, package) in toolkit.survey().items():
        assert tool is not None, f"{name} of {package}"
        assert tool.path.exists()
        assert tool.version.startswith("13.")


def test_header_directories_hold_headers():
    runtime, cccl = (tool.path for tool in toolkit.headers()[:2])
    assert (runtime / "cuda_fp16.h").is_file()
    assert (runtime / "crt").is_dir()
    assert (cccl / "cuda" / "std" / "cstdint").is_file()


@pytest.mark.parametrize(
    "find, package",
    [
        (toolkit.nvrtc, "nvidia-cuda-nvrtc"),
        (toolkit.nvjitlink, "nvidia-nvjitlink"),
        (toolkit.nvdisasm, "nvidia-cuda-nvdisasm"),
        (toolkit.cuobjdump, "nvidia-cuda-cuobjdump"),
    ],
)
def test_what_is_missing_names_the_command_that_installs_it(nothing_installed, find, package):
    with pytest.raises(UnavailableError, match=f"is not installed; run: pip install '{package}>=13,<14'"):
        find()
    assert toolkit.headers() == ()


def test_headers_in_several_environments_are_all_found(nothing_installed, monkeypatch):
    sites = [nothing_installed / name for name in ("first", "second")]
    for site, name in zip(sites, ("cuda_runtime.h", "curand_kernel.h"), strict=True):
        (site / "nvidia/cu13/include").mkdir(parents=True)
        (site / "nvidia/cu13/include" / name).write_text("")
    monkeypatch.setattr(toolkit, "_site_directories", lambda: tuple(sites))
    assert [tool.path for tool in toolkit.headers()] == [site / "nvidia/cu13/include" for site in sites]


def test_a_conda_environment_is_searched(nothing_installed):
    for name in ("conda-meta", "lib", "targets/x86_64-linux/include"):
        (nothing_installed / name).mkdir(parents=True)
    (nothing_installed / "lib/libnvrtc.so.13.1.80").write_text("")
    (nothing_installed / "lib/libnvrtc.so.13").symlink_to("libnvrtc.so.13.1.80")
    (nothing_installed / "targets/x86_64-linux/include/cuda_runtime.h").write_text("")
    assert toolkit.nvrtc().version == "13.1.80"
    assert [tool.path.name for tool in toolkit.headers()] == ["include"]


def test_a_library_that_cannot_be_loaded(tmp_path):
    broken = tmp_path / "libnvrtc.so.13"
    broken.write_text("not a library")
    with pytest.raises(UnavailableError, match=r"NVRTC at .*libnvrtc.so.13 cannot be loaded"):
        toolkit.preload(toolkit.Tool("NVRTC", broken, "13.0"))


def test_identities_name_the_version():
    assert toolkit.nvrtc_identity().startswith(toolkit.nvrtc().version)
    assert toolkit.nvjitlink_identity().startswith(toolkit.nvjitlink().version)


def test_the_bundled_kernels_are_found():
    assert list(kernels_dir().glob("*.cu"))
    assert list(ptx_dir().glob("*.ptx"))


@pytest.mark.parametrize(
    ("target", "fix"),
    [("sm_52", "--arch sm_90a"), ("sm_70", "--arch sm_90a"), ("sm_999", "pip install -U nvidia-nvjitlink")],
)
def test_a_removed_target_and_a_new_one_have_different_fixes(target, fix):
    error = toolkit.unknown_target(toolkit.nvjitlink(), target, "nvidia-nvjitlink")
    assert fix in str(error) and target in str(error)
