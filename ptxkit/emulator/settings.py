"""How a launch is emulated: one immutable value that is part of the launch, so that no launch changes another.

To add a setting, add a field with a default that leaves launches as they are, describe it, and check its values in
``__post_init__``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from difflib import get_close_matches

from ptxkit.emulator.observer import Observer, Recorder
from ptxkit.errors import UsageError

COMPLETIONS = ("eager", "latest-legal", "random")
TRAPS = ("div0", "nan", "inf")


@dataclass(frozen=True)
class EmulatorSettings:
    """The settings of one launch in the emulator.

    Attributes:
        counting: count sectors and bank conflicts, and return counters.
        completion: ``"eager"``: asynchronous operations complete at once; ``"latest-legal"``: only when a wait forces them;
            ``"random"``: at points in between that ``completion_seed`` draws.
        completion_seed: of ``completion="random"``, an integer of at least 0; the same seed gives the same execution.
        racecheck: raise a RaceError when warps (``"lanes"``: threads) access the same shared memory with nothing that puts the
            accesses in order. True is ``"warps"``.
        max_instructions: end a launch that has executed more thread instructions than this with an InstructionLimitError that
            says where its threads are; None is no limit.
        write_output: receives what kernels print; None is standard output.
        observer: follows and steers the execution, instruction by instruction; None for none.
        timeline: records what warps and asynchronous operations do; None for nothing.
        initcheck: raise an UninitialisedError also when a kernel uses shared or global memory that was never initialised. For
            registers and local memory it is always raised.
        trap: raise an ArithmeticTrap at the first integer division by zero (``"div0"``), NaN (``"nan"``) or infinity
            (``"inf"``) that the kernel produces; a tuple of those that are wanted.
        heap_bytes: size of the heap from which malloc and new in device code allocate, over all launches; malloc returns null
            when it is full. The default is that of a GPU, cudaLimitMallocHeapSize.

    Raises:
        UsageError: a value that its setting does not have.
    """

    counting: bool = True
    completion: str = "eager"
    completion_seed: int = 0
    racecheck: bool | str = False
    max_instructions: int | None = None
    write_output: Callable[[str], None] | None = None
    observer: Observer | None = None
    timeline: Recorder | None = None
    initcheck: bool = False
    trap: tuple[str, ...] = ()
    heap_bytes: int = 8 << 20

    def __new__(cls, *_: object, **given: object) -> EmulatorSettings:
        for name in given:
            check_name(name)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        if not isinstance(self.counting, bool):
            raise UsageError(f"counting is True or False, not {self.counting!r}")
        if not isinstance(self.completion, str) or self.completion not in COMPLETIONS:
            raise UsageError(f"completion is 'eager', 'latest-legal' or 'random', not {self.completion!r}")
        seed = self.completion_seed
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise UsageError(f"completion_seed is an integer of at least 0, not {seed!r}")
        if not isinstance(self.racecheck, bool) and str(self.racecheck) not in ("warps", "lanes"):
            raise UsageError(f"racecheck is False, True, 'warps' or 'lanes', not {self.racecheck!r}")
        limit = self.max_instructions
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise UsageError(f"max_instructions is None or an integer of at least 1, not {limit!r}")
        if self.write_output is not None and not callable(self.write_output):
            raise UsageError(f"write_output is a function of one string, not {self.write_output!r}")
        heap = self.heap_bytes
        if isinstance(heap, bool) or not isinstance(heap, int) or heap < 0:
            raise UsageError(f"heap_bytes is an integer of at least 0, not {heap!r}")
        if not isinstance(self.initcheck, bool):
            raise UsageError(f"initcheck is True or False, not {self.initcheck!r}")
        if not isinstance(self.trap, (tuple, list)) or not all(kind in TRAPS for kind in self.trap):
            raise UsageError(f"trap is a tuple of {', '.join(map(repr, TRAPS))}, not {self.trap!r}")


DEFAULTS = EmulatorSettings()
NAMES = tuple(f.name for f in fields(EmulatorSettings))


def check_name(name: str) -> None:
    """Raise UsageError, with the nearest name, where ``name`` is not a setting."""
    if name not in NAMES:
        near = get_close_matches(name, NAMES, n=1)
        raise UsageError(
            f"the emulator has no setting {name!r}; {f'did you mean {near[0]}?' if near else 'it has ' + ', '.join(NAMES)}"
        )
