"""GEMMs whose source NVIDIA's CUTLASS generates, compiled by NVRTC and launched as other kernels, without nvcc.

::

    description.Gemm --emit--> source --program--> image --launch--> grid, Params, tensor maps --> outputs

:mod:`~ptxkit.cutlass.description` describes a GEMM, :mod:`~ptxkit.cutlass.emit` generates its source with the package
``nvidia-cutlass``, :mod:`~ptxkit.cutlass.headers` patches the headers that NVRTC cannot compile, and
:mod:`~ptxkit.cutlass.program` makes the program and, on a device, the launch. :mod:`ptxkit.cutlass.kernels` has the kernels of
``ptxkit list``.
"""
