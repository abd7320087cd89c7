"""Exact counts of what a launch executes, for the whole launch and for each source line.

All counts are at PTX level: one PTX instruction counts as one, however many SASS instructions ptxas makes of it. Where a
counter has the name of a profiler metric its definition is that metric's:

- ``instructions``: thread instructions with a true predicate (``smsp__thread_inst_executed_pred_on`` counts the same of SASS).
- sectors: 32-byte sectors that the accesses of one warp instruction touch (``l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum``).
- shared wavefronts: passes over the 32 banks. A warp's 4-byte accesses take one pass when no two lanes want different words of
  one bank; 8-byte accesses go in half warps, 16-byte accesses in quarter warps; a conflict is a pass beyond those.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields


@dataclass(frozen=True)
class Counters:
    """Counts of one or more launches; ``a + b`` adds them.

    Attributes:
        instructions: thread instructions executed (predicated-off lanes do not count).
        warp_instructions: warp instructions issued.
        flops: floating-point operations; an fma counts two, a packed instruction once per element, mma its 2*m*n*k.
        by_class: thread instructions by class (``"float"``, ``"integer"``, ``"load.global"``, ``"control"``, ...).
        flops_by_type: flops by type (``"f32"``, ``"f16"``, ``"tensor.bf16"``, ...).
        global_load_bytes, global_store_bytes: bytes the active lanes request, without atomics.
        global_load_sectors, global_store_sectors: see the module's text.
        global_atomics: lanes that executed an atomic or a reduction (``atom``, ``red``) on global memory.
        global_atomic_bytes: bytes of the words that they update.
        global_atomic_sectors: the sectors these lie in.
        shared_load_bytes, shared_store_bytes: bytes the active lanes request, without atomics.
        shared_atomics, shared_atomic_bytes: as in global memory.
        shared_load_wavefronts, shared_store_wavefronts, shared_atomic_wavefronts, shared_bank_conflicts: see the module's text.
        local_load_bytes, local_store_bytes: stack and local arrays, which ptxas may keep in registers.
        local_load_sectors, local_store_sectors: of these; the words of 8 neighbouring lanes at one offset are a sector.
        remote_shared_bytes: bytes in the shared memory of other CTAs of the cluster, by ``"load"``, ``"store"`` and
            ``"atomic"``. They are in no other count.
        loop_atomics: lanes whose atomic the GPU performs as a loop of compare-and-swap, by state space. Their sectors,
            wavefronts and bank conflicts depend on how often the loop is repeated, and are not counted.
        branches, divergent_branches: warp-level branches executed, and those where lanes went different ways.
        async_bytes: bytes moved by asynchronous copies (cp.async, bulk and tensor copies, st.async), by direction:
            ``"global_to_shared"`` (a multicast counts once), ``"shared_to_global"``, ``"shared_to_shared"``.
        async_sectors: 32-byte sectors of global memory that they touch, by the same names; of cp.async per warp instruction.
        async_misaligned_bytes: bytes of bulk copies from global memory to shared memory at an address that is no multiple of
            128. The ISA requires a multiple of 16 only, but on an H200 copies of rows to odd multiples of 16 reached 81 to
            89% of the bandwidth of aligned ones, and to other multiples of 32 they reached 96 to 100%.
        texture_bytes: bytes of the texels that fetches read (``"fetch"``: 2, 4 or 8 texels of each level for a linear filter,
            none outside of the texture), and that surface instructions load, store and update (``"load"``, ``"store"``,
            ``"atomic"``). They are in no other count, nor are the copies of arrays to textures and surfaces. How texels lie in
            sectors is not published.
        unwritten_loads: elements of outputs and temporaries that were read, or updated atomically, while they still held the
            sentinel value of uninitialised memory, so that the kernel has probably not written them. Bulk and tensor copies
            that read outputs or temporaries, and bulk and tensor reductions into them, are counted without examining the
            bytes. Verification then repeats the run with other sentinel values.
    """

    instructions: int = 0
    warp_instructions: int = 0
    flops: int = 0
    by_class: Mapping[str, int] = field(default_factory=dict)
    flops_by_type: Mapping[str, int] = field(default_factory=dict)
    global_load_bytes: int = 0
    global_store_bytes: int = 0
    global_load_sectors: int = 0
    global_store_sectors: int = 0
    global_atomics: int = 0
    global_atomic_bytes: int = 0
    global_atomic_sectors: int = 0
    shared_load_bytes: int = 0
    shared_store_bytes: int = 0
    shared_atomics: int = 0
    shared_atomic_bytes: int = 0
    shared_load_wavefronts: int = 0
    shared_store_wavefronts: int = 0
    shared_atomic_wavefronts: int = 0
    shared_bank_conflicts: int = 0
    local_load_bytes: int = 0
    local_store_bytes: int = 0
    local_load_sectors: int = 0
    local_store_sectors: int = 0
    remote_shared_bytes: Mapping[str, int] = field(default_factory=dict)
    loop_atomics: Mapping[str, int] = field(default_factory=dict)
    branches: int = 0
    divergent_branches: int = 0
    async_bytes: Mapping[str, int] = field(default_factory=dict)
    async_sectors: Mapping[str, int] = field(default_factory=dict)
    async_misaligned_bytes: int = 0
    texture_bytes: Mapping[str, int] = field(default_factory=dict)
    unwritten_loads: int = 0

    def __add__(self, other: Counters) -> Counters:
        merged: dict[str, object] = {}
        for f in fields(self):
            a, b = getattr(self, f.name), getattr(other, f.name)
            if isinstance(a, int):
                merged[f.name] = a + b
            else:
                merged[f.name] = {k: a.get(k, 0) + b.get(k, 0) for k in dict.fromkeys((*a, *b))}
        return Counters(**merged)  # type: ignore[arg-type]

    @property
    def read_bytes(self) -> int:
        """Bytes read from global memory by loads and by asynchronous copies."""
        return self.global_load_bytes + self.async_bytes.get("global_to_shared", 0)

    @property
    def written_bytes(self) -> int:
        """Bytes written to global memory by stores, by atomics and by asynchronous copies."""
        return self.global_store_bytes + self.global_atomic_bytes + self.async_bytes.get("shared_to_global", 0)

    @property
    def global_sectors(self) -> int:
        """32-byte sectors of global memory that loads, stores, atomics and asynchronous copies touch."""
        lanes = self.global_load_sectors + self.global_store_sectors + self.global_atomic_sectors
        return lanes + sum(self.async_sectors.values())

    @property
    def global_bytes(self) -> int:
        """Bytes loaded from, stored to and atomically updated in global memory, asynchronous copies included."""
        return self.read_bytes + self.written_bytes

    @property
    def shared_wavefronts(self) -> int:
        """Passes over the banks of shared memory of loads, stores and atomics."""
        return self.shared_load_wavefronts + self.shared_store_wavefronts + self.shared_atomic_wavefronts


@dataclass(frozen=True)
class LineCounters:
    """The counters of one source line.

    Attributes:
        file, line: the position in the source (the ``.cu``, or the ``.ptx`` itself where there is no ``.loc``).
    """

    file: str
    line: int
    counters: Counters
