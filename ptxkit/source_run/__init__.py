"""Runs a kernel of a ``.cu`` or ``.ptx`` file that has no description: its arguments and its launch are given as text.

:mod:`grammar` parses ``x=float32[1024]:uniform``, :mod:`entries` compiles the file and lists its kernels, :mod:`call` checks
the arguments against the kernel's parameters, :mod:`arrays` makes them, :mod:`workload` makes of them an ordinary
:class:`~ptxkit.workload.workload.Workload`, and :mod:`run` runs that and summarises the arrays afterwards (:mod:`outputs`).
"""
