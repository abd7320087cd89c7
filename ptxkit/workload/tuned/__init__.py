"""Measured winners: the variants and tiles that sweeps and ``--tune`` found the fastest, by GPU model, in the user's files.

:mod:`~ptxkit.workload.tuned.record` describes one of them, :mod:`~ptxkit.workload.tuned.store` the files,
:mod:`~ptxkit.workload.tuned.merge` which of two wins, :mod:`~ptxkit.workload.tuned.code` whether the machine code that was
measured is still that of today, and :mod:`~ptxkit.workload.tuned.lookup` which one applies to a workload.
"""
