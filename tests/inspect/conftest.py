"""Compiled and disassembled samples, once a run for each target."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

SAMPLES = Path(__file__).with_name("samples.cu")


@cache
def image_of(target):
    from ptxkit.compiler import compile_source

    return compile_source(SAMPLES, target=target)


@cache
def kernels_of(target):
    from ptxkit.inspect.disassembly import sass

    return sass(image_of(target))


@pytest.fixture(scope="session")
def samples():
    """The path of samples.cu."""
    return SAMPLES


@pytest.fixture(scope="session")
def compiled():
    """target -> image of samples.cu."""
    return image_of


@pytest.fixture(scope="session")
def kernels():
    """target -> {kernel: SassFunction} of samples.cu."""
    return kernels_of
