"""A call as an ordinary workload with one variant, so that it runs in the same way as kernels with a description."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ptxkit.source_run.arrays import Array, array_from, read_npy
from ptxkit.source_run.call import Call, describe_array, is_poison
from ptxkit.targets import Target
from ptxkit.workload.build import Build, with_images
from ptxkit.workload.inputs import dtype_of
from ptxkit.workload.launch import ArraySpec, Launch, Tile, Work
from ptxkit.workload.resolve import Program, ResolvedVariant
from ptxkit.workload.variant import Variant, variant
from ptxkit.workload.workload import Workload


class Prepared:
    """The arrays of a call that come from files, read once.

    Args:
        call: from :func:`ptxkit.source_run.call.make_call`.

    Raises:
        UsageError: a file that cannot be read, or has another type or shape than the text says.
    """

    def __init__(self, call: Call) -> None:
        self.call = call
        self.files: dict[str, Array] = dict(call.contents)
        for name, spec in call.arrays.items():
            if spec.initialiser.file and name not in self.files:
                self.files[name] = read_npy(spec.initialiser.file, f"--arg {name}={spec}", spec.dtype, spec.shape)

    @cached_property
    def specs(self) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Array name -> (shape, dtype)."""
        return {
            name: (self.files[name].shape, self.files[name].dtype)
            if name in self.files
            else (spec.shape, dtype_of(spec.dtype))
            for name, spec in self.call.arrays.items()
        }

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(prod(shape) * dtype.itemsize for shape, dtype in self.specs.values())

    def inputs(self, rng: np.random.Generator) -> dict[str, Any]:
        """The initialised arrays; the random numbers of each are independent of the other arrays."""
        made: dict[str, Any] = {}
        for (name, spec), own in zip(self.call.arrays.items(), rng.spawn(len(self.call.arrays)), strict=True):
            if name in self.files:
                made[name] = self.files[name]
            elif not is_poison(spec):
                made[name] = array_from(spec, own, f"--arg {name}={spec}")
        return made

    @cached_property
    def expected(self) -> dict[str, Array]:
        """Array name -> its expected content, from ``--expect``."""
        found: dict[str, Array] = {}
        for name, file in self.call.expected.items():
            shape, dtype = self.specs[name]
            untyped = dtype.isbuiltin != 1  # of ml_dtypes, which np.save writes as bytes without a type
            found[name] = read_expected(file, f"--expect {name}={file}", dtype.name if untyped else "", shape)
        return found


def read_expected(file: str, what: str, dtype: str, shape: tuple[int, ...]) -> Array:
    """The reference of an array: it has the array's shape and any number type; float64 is the most precise.

    Args:
        dtype: of the array, for a file of elements without a type (bfloat16, float8).
    """
    from ptxkit.errors import UsageError

    try:
        return read_npy(file, what, "", shape)
    except UsageError:
        if not dtype:
            raise
        return read_npy(file, what, dtype, shape)


def workload_of(prepared: Prepared) -> tuple[Workload, Variant]:
    """The workload of a call, and its only variant. Every array is an output, so that its final content is summarised."""
    call = prepared.call
    geometry = call.geometry
    assert geometry.grid is not None  # make_call has checked this
    assert geometry.block is not None
    launch = Launch(
        call.entry.mangled,
        geometry.grid,
        geometry.block,
        call.values,
        shared=geometry.shared,
        cluster=geometry.cluster,
        cooperative=geometry.cooperative,
        source=str(call.file.path),
    )

    class SourceFileKernel(Workload):
        """A kernel of a source file, as the command line describes it."""

        name = call.title

        def _check_complete(self) -> None:
            """Accepts a kernel without a reference, unlike a description."""

        def inputs(self, rng: np.random.Generator) -> Mapping[str, Any]:
            return prepared.inputs(rng)

        def outputs(self) -> Mapping[str, ArraySpec]:
            return dict(prepared.specs)

        def work(self) -> Work:
            return Work(flops=0, bytes=prepared.nbytes)

        def size_text(self) -> str:
            return ", ".join(f"{name}={describe_array(spec)}" for name, spec in call.arrays.items())

        @variant
        def run(self) -> list[Launch]:
            return [launch]

    class ComparedKernel(SourceFileKernel):
        """The same with ``--expect``."""

        name = call.title

        def reference(self, **inputs: Any) -> Mapping[str, Any]:
            return prepared.expected

    workload = ComparedKernel() if call.expected else SourceFileKernel()
    return workload, workload.variant("run")


def built_of(prepared: Prepared) -> Build:
    """A call as a build: its workload's only variant with the image of its file."""
    workload, variant = workload_of(prepared)
    file, tile = prepared.call.file, Tile({})
    directories = tuple(Path(directory) for directory in file.compile_options.include_dirs)
    options = file.compile_options
    program = Program(file.path, options.defines, options.options, options.instantiate, directories)
    target = Target.parse(file.image.target)
    resolved = ResolvedVariant(workload, variant, target, tile, variant.launches(workload, tile), (program,), (0,))
    return with_images(resolved, [file.image])
