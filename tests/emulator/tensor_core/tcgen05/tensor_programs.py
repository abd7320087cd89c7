"""A PTX program that fills shared and tensor memory, executes some instructions of one thread, and returns tensor memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from ptxkit.emulator import Machine
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.isa.parser import parse

LANES, COLUMNS = 128, 512
BASE = 2048
"""Shared-memory address of the image: dynamic shared memory begins after the static variables, aligned to 1024 bytes."""

_TEXT = """
.version 8.8
.target {target}
.address_size 64
.extern .shared .align 1024 .b8 image[];
.visible .entry k(.param .u64 p0, .param .u64 p1, .param .u32 p2)
{{
    .reg .pred %p<16>; .reg .b16 %h<8>; .reg .b32 %r<64>; .reg .b32 %word<64>; .reg .b64 %rd<64>;
    .shared .align 8 .b64 barrier; .shared .b32 where;
    ld.param.u64 %rd0, [p0]; ld.param.u64 %rd1, [p1]; ld.param.u32 %r0, [p2];
    mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, {rank};
    mul.lo.u32 %r4, %r2, %r0; cvt.u64.u32 %rd2, %r4; add.u64 %rd0, %rd0, %rd2;
    mov.u32 %r5, image; shl.b32 %r6, %r1, 4;
fill:
    setp.ge.u32 %p0, %r6, %r0; @%p0 bra filled;
    cvt.u64.u32 %rd3, %r6; add.u64 %rd3, %rd3, %rd0; ld.global.v4.b32 {{%r10, %r11, %r12, %r13}}, [%rd3];
    add.u32 %r7, %r5, %r6; st.shared.v4.b32 [%r7], {{%r10, %r11, %r12, %r13}}; add.u32 %r6, %r6, 2048; bra fill;
filled:
    setp.eq.u32 %p1, %r1, 0; @%p1 mbarrier.init.shared.b64 [barrier], 1;
    setp.lt.u32 %p2, %r1, 32; @!%p2 bra allocated;
    tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [where], 512;
allocated:
    fence.proxy.async.shared::cta; bar.sync 0;
    mul.wide.u32 %rd4, %r2, {bytes}; mul.wide.u32 %rd5, %r1, 2048; add.u64 %rd1, %rd1, %rd4; add.u64 %rd1, %rd1, %rd5;
    mov.u64 %rd6, %rd1; mov.u32 %r20, 0;
put:
    {loads}
    tcgen05.st.sync.aligned.32x32b.x64.b32 [%r20], {{{words}}};
    add.u64 %rd6, %rd6, 256; add.u32 %r20, %r20, 64; setp.lt.u32 %p3, %r20, 512; @%p3 bra put;
    tcgen05.wait::st.sync.aligned; tcgen05.fence::before_thread_sync;
    {meet}
    tcgen05.fence::after_thread_sync;
    setp.ne.u32 %p4, %r3, 0; or.pred %p5, %p4, !%p1; @%p5 bra issued;
    setp.eq.u32 %p6, %r1, %r1; setp.ne.u32 %p7, %r1, %r1;
{body}
    {commit}
issued:
    mbarrier.try_wait.parity.shared.b64 %p8, [barrier], 0; @!%p8 bra issued;
    tcgen05.fence::after_thread_sync; mov.u32 %r20, 0;
get:
    tcgen05.ld.sync.aligned.32x32b.x64.b32 {{{words}}}, [%r20]; tcgen05.wait::ld.sync.aligned;
    {stores}
    add.u64 %rd1, %rd1, 256; add.u32 %r20, %r20, 64; setp.lt.u32 %p3, %r20, 512; @%p3 bra get;
    {meet}
    @!%p2 bra end;
    mov.u32 %r20, 0; tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 %r20, 512;
end:
    ret;
}}
"""
"""In the body %p6 is true and %p7 false. The program can do what follows from that all of tensor memory is allocated."""

_WORDS = [f"%word{n}" for n in range(64)]
"""Tensor memory is read and written 64 columns at a time, because the emulator takes about as long for an instruction of 4."""
_QUADS = [(16 * n, ", ".join(_WORDS[4 * n : 4 * n + 4])) for n in range(16)]


def run(
    body: str,
    shared: np.ndarray,
    memory: np.ndarray,
    target: str = "sm_100a",
    completion: str = "latest-legal",
    machine: Any = None,
    **settings: Any,
) -> np.ndarray:
    """Tensor memory afterwards, of the shape of ``memory``.

    Args:
        body: executed by the first thread of the first CTA of each cluster.
        shared: (CTAs, bytes) uint8, at :data:`BASE`; a multiple of 16 bytes.
        memory: (CTAs, 128, 512) uint32. Two CTAs are a pair.
    """
    ctas, nbytes = shared.shape
    group = ctas
    meet = "bar.sync 0;" if ctas == 1 else "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
    commit = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%rd40];"
    if ctas == 2:
        commit = (
            "mov.u16 %h0, 3; tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 "
            "[%rd40], %h0;"
        )
    text = _TEXT.format(
        target=target,
        group=group,
        bytes=LANES * COLUMNS * 4,
        rank="0" if ctas == 1 else "%cluster_ctarank",
        meet=meet,
        words=", ".join(_WORDS),
        loads=" ".join(f"ld.global.v4.b32 {{{words}}}, [%rd6+{offset}];" for offset, words in _QUADS),
        stores=" ".join(f"st.global.v4.b32 [%rd1+{offset}], {{{words}}};" for offset, words in _QUADS),
        body=body,
        commit=f"mov.u32 %r40, barrier; cvt.u64.u32 %rd40, %r40; {commit}".replace("[%rd40]", "[%r40]"),
    )
    machine = machine or Machine(capacity=1 << 26, workers=1)
    addresses = []
    for data in (shared, memory.astype(np.uint32)):
        addresses.append(machine.allocate(data.nbytes))
        machine.write(addresses[-1], np.ascontiguousarray(data))
    program = machine.load(parse(text, "tcgen05.ptx"), target)
    program.launch(
        "k",
        np.array(addresses, np.uint64).tobytes() + np.uint32(nbytes).tobytes(),
        grid=(ctas, 1, 1),
        block=(LANES, 1, 1),
        cluster=(ctas, 1, 1),
        shared_bytes=nbytes,
        settings=EmulatorSettings(completion=completion, **settings),
    )
    return machine.read(addresses[1], memory.size * 4).view(np.uint32).reshape(memory.shape)
