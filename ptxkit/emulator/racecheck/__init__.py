"""The race check of shared memory: finds accesses to the same bytes that no synchronisation orders.

:mod:`clocks` tracks with what each warp has synchronised, :mod:`shadow` the last accesses to each cell, :mod:`check` connects
both to the instructions, and :mod:`hazards` reports what was found.
"""
