"""From source to image: NVRTC, targets and their features, diagnostics, and the cache on disk.

Importing this package loads no CUDA library; :func:`compile_source` does when something really has to be compiled.
"""

from ptxkit.compiler.assemble import assemble
from ptxkit.compiler.image import FunctionResources, Image
from ptxkit.compiler.nvrtc import compile_source
from ptxkit.targets import FEATURES, TARGETS, Target, lowest_target, missing

__all__ = [
    "FEATURES",
    "TARGETS",
    "FunctionResources",
    "Image",
    "Target",
    "assemble",
    "compile_source",
    "lowest_target",
    "missing",
]
