"""Runs a kernel of a ``.cu`` or ``.ptx`` file that has no description, with arguments and launch geometry given as text.

:mod:`grammar` parses ``x=float32[1024]:uniform``, :mod:`entries` compiles the file and lists its kernels, :mod:`call` checks
the arguments against the kernel's parameters, :mod:`arrays` makes the arrays, :mod:`workload` turns the call into an
ordinary :class:`~ptxkit.workload.workload.Workload`, and :mod:`run` runs it and summarises the arrays afterwards
(:mod:`outputs`).
"""
