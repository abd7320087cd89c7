"""Kernels that CUTLASS writes, described like those of :mod:`ptxkit.kernels`."""
