"""The race check of shared memory: who has accessed which bytes, and whether a barrier stood in between.

:mod:`clocks` follows what each warp has synchronised with, :mod:`shadow` who accessed each cell last, :mod:`check` ties both
to the instructions, and :mod:`hazards` says what was found.
"""
