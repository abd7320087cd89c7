"""Assertions for tests of kernels: on results and counts, and on the machine code, which needs no device.

::

    from ptxkit.testing import assert_sass, assert_verified

    def test_fused():
        assert_verified(MyKernel(n=1000), variants="fused", racecheck=True, bank_conflicts=0)

    def test_copy_is_wide():
        assert_sass("mine.py:copy@sm_90a", has=["LDG.128", "STG.128"], spills=0, max_registers=32)

See docs/testing.md.
"""

from ptxkit.testing.sass import assert_sass
from ptxkit.testing.verified import assert_verified

__all__ = ["assert_sass", "assert_verified"]
