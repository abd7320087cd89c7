"""Functions of Triton, and the kernels that torch.compile generates with it, as PTX that ptxkit inspects and runs.

Triton compiles without a GPU. ``triton:FILE.py:FUNCTION`` names a function on the command line; docs/triton.md has examples.
"""

PREFIX = "triton:"
"""What a function of Triton begins with on the command line."""
