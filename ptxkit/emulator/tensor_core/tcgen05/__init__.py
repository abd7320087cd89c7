"""tcgen05: the tensor cores of sm_100, sm_103 and sm_110, and the tensor memory that they compute in."""

from ptxkit.emulator.tensor_core.tcgen05 import allocation, copy, load_store, mma, pipeline

__all__ = ["allocation", "copy", "load_store", "mma", "pipeline"]
