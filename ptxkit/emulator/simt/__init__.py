"""Single instruction, multiple threads: what an instruction sees of the threads that execute it, and what it is bound to.

Everything above builds on this package: it holds no scheduler and no instruction.
"""
