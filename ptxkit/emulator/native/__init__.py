"""Machine code for straight runs, the branches between them and calls of functions, by llvmlite where it is installed.

The numpy back end (:mod:`ptxkit.emulator.lowering.numpy_backend`) defines what every instruction does; this package executes
the same instructions with the same results, bit for bit, and the same counts, one warp after the other. It serves waves of few
threads and threads that diverge, for which a call of numpy costs far more than the work that it does. What it has no machine
code for is executed by the numpy back end in between.

LLVM compiles a function for each form of an instruction (:mod:`ptxkit.emulator.native.forms`), and one that executes records of
a kernel's blocks (:mod:`ptxkit.emulator.native.interpreter`): a kernel itself is only written as records
(:mod:`ptxkit.emulator.native.translation`), which takes far less time than LLVM would need to compile it.
"""
