"""GEMMs whose source NVIDIA's CUTLASS writes, compiled by NVRTC and launched like any other kernel: no nvcc, no host compiler.

::

    description.Gemm --emit--> source --program--> image --launch--> grid, Params, tensor maps --> outputs

:mod:`~ptxkit.cutlass.description` says what is wanted, :mod:`~ptxkit.cutlass.emit` has the package ``nvidia-cutlass`` write it,
:mod:`~ptxkit.cutlass.headers` mends what in its headers is not for NVRTC, :mod:`~ptxkit.cutlass.program` makes a program of it
and, on a device, the launch. :mod:`ptxkit.cutlass.kernels` holds the kernels of ``ptxkit list``.
"""
