"""Copies cu/ and ptx/ into the wheel as ptxkit/_data/. All other settings of the package are in pyproject.toml."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

KERNEL_DIRS = ("cu", "ptx")


class BuildWithKernels(build_py):
    """``build_py`` that also copies the kernel sources; an editable install reads them in the checkout instead."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            for source, target in self._kernel_files().items():
                self.mkpath(str(Path(target).parent))
                self.copy_file(source, target)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        return super().get_outputs(include_bytecode) + list(self._kernel_files().values())

    def get_source_files(self) -> list[str]:
        return super().get_source_files() + list(self._kernel_files())

    def get_output_mapping(self) -> dict[str, str]:
        return super().get_output_mapping() | {target: source for source, target in self._kernel_files().items()}

    def _kernel_files(self) -> dict[str, str]:
        data = Path(self.build_lib, "ptxkit", "_data")
        files = (path for top in KERNEL_DIRS for path in sorted(Path(top).rglob("*")) if path.is_file())
        return {str(path): str(data / path) for path in files}


setup(cmdclass={"build_py": BuildWithKernels})
