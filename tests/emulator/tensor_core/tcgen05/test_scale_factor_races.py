"""Scale factors that are overwritten while a product may still read them: both places are reported, in both modes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from ptxkit.emulator import Machine
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import RaceError
from ptxkit.isa.parser import parse

WAITED = "mbarrier.try_wait.parity.shared.b64 %p4, [done], 0; @!%p4 bra {0}; tcgen05.fence::after_thread_sync;"
TEXT = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 out)
{
    .reg .pred %p<8>; .reg .b32 %r<32>; .reg .b64 %rd<8>; .reg .f32 %f1;
    .shared .align 1024 .b8 tile[16384]; .shared .align 1024 .b8 factors[512];
    .shared .align 8 .b64 done; .shared .b32 where;
    mov.u32 %r9, 0x7f7f7f7f; mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 128; setp.ge.u32 %p2, %r1, 128;
    @%p1 mbarrier.init.shared.b64 [done], 1;
    @!%p2 bra allocated;
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [where], 64;
    bra filled;
allocated:
    mov.u32 %r3, tile; mad.lo.u32 %r3, %r1, 128, %r3; mov.u32 %r4, 0x38383838; mov.u32 %r5, 32;
fill:
    st.shared.b32 [%r3], %r4; add.u32 %r3, %r3, 4; sub.u32 %r5, %r5, 1; setp.ne.u32 %p5, %r5, 0; @%p5 bra fill;
    mov.u32 %r3, factors; mad.lo.u32 %r3, %r1, 4, %r3; st.shared.b32 [%r3], %r9;
filled:
    fence.proxy.async.shared::cta; fence.mbarrier_init.release.cluster; bar.sync 0;
    ld.shared.b32 %r2, [where]; mov.u32 %r3, tile; shr.u32 %r4, %r3, 4; cvt.u64.u32 %rd1, %r4;
    or.b64 %rd1, %rd1, 0x4000404000010000; mov.u32 %r5, 0x8880000; setp.ne.u32 %p3, %r1, %r1;
    mov.u32 %r3, factors; shr.u32 %r4, %r3, 4; cvt.u64.u32 %rd2, %r4; or.b64 %rd2, %rd2, 0x0000400800010000;
    add.u32 %r6, %r2, 32; add.u32 %r7, %r2, 36; and.b32 %r11, %r1, 31; setp.eq.u32 %p5, %r11, 0;
    @%p2 bra stored;
    {store}
stored:
    bar.sync 0; tcgen05.fence::after_thread_sync;
    @!%p2 bra reader;
    @!%p1 bra end;
    {copy}
    tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::1X [%r2], %rd1, %rd1, %r5, [%r6], [%r7], %p3; // MMA
    tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [done];
    bra end;
reader:
early:
    {early}
    {overwrite}
late:
    {late}
    tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r10}, [%r2];
    tcgen05.wait::ld.sync.aligned;
    ld.param.u64 %rd3, [out]; mad.wide.u32 %rd3, %r1, 4, %rd3; st.global.b32 [%rd3], %r10;
end:
    bar.warp.sync -1;
    bar.sync 0;
    @!%p2 bra freed;
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 64;
freed:
    ret;
}
"""
"""Scale factors of 1 are brought to tensor memory, and thread 128 multiplies. Warps 0 to 3 overwrite the factors by 2, as for
a next product, and load the sums of 32 products of ones."""


@dataclass(frozen=True)
class Way:
    """How scale factors come to tensor memory, and how they are overwritten."""

    overwrite: str
    store: str = ""
    copy: str = ""
    reader: str = "MMA"

    def program(self, waits: bool) -> str:
        text = TEXT.replace("{store}", self.store).replace("{copy}", self.copy).replace("{overwrite}", self.overwrite)
        early = WAITED.format("early") if waits else ""
        return text.replace("{early}", early).replace("{late}", WAITED.format("late"))


STORED = Way(
    store="tcgen05.st.sync.aligned.32x32b.x8.b32 [%r6], {%r9, %r9, %r9, %r9, %r9, %r9, %r9, %r9};\n"
    "tcgen05.wait::st.sync.aligned; tcgen05.fence::before_thread_sync;",
    overwrite="mov.u32 %r12, 0x80808080; tcgen05.st.sync.aligned.32x32b.x1.b32 [%r6], {%r12}; // OVERWRITE\n"
    "tcgen05.wait::st.sync.aligned;",
)
COPIED = Way(
    copy="tcgen05.cp.cta_group::1.32x128b.warpx4 [%r6], %rd2;\n"
    "tcgen05.cp.cta_group::1.32x128b.warpx4 [%r7], %rd2; // COPY",
    overwrite="mov.u32 %r12, 0x80808080; mad.lo.u32 %r13, %r1, 4, %r3; st.shared.b32 [%r13], %r12; // OVERWRITE",
    reader="COPY",
)
ways = pytest.mark.parametrize("way", [STORED, COPIED], ids=["tensor memory", "shared memory"])


def sums(text: str, completion: str, racecheck: str | bool) -> set[float]:
    machine = Machine(capacity=1 << 20, workers=1, sms=1)
    out = machine.allocate(512)
    kernel = machine.load(parse(text, "factors.ptx"), "sm_100a")
    settings = EmulatorSettings(racecheck=racecheck, completion=completion, counting=False)
    kernel.launch("k", np.uint64(out).tobytes(), grid=(1, 1, 1), block=(160, 1, 1), settings=settings)
    return set(machine.read(out, 512).view(np.float32).tolist())


def place(text: str, mark: str) -> str:
    return f"factors.ptx:{text[: text.index(f'// {mark}')].count(chr(10)) + 1} "


@ways
@pytest.mark.parametrize("completion", ["eager", "latest-legal"])
def test_factors_may_be_overwritten_after_the_wait(way, completion):
    assert sums(way.program(True), completion, "lanes") == {32.0}


@ways
@pytest.mark.parametrize("completion", ["eager", "latest-legal"])
def test_factors_that_are_overwritten_early_are_reported_with_both_places(way, completion):
    text = way.program(False)
    with pytest.raises(RaceError) as found:
        sums(text, completion, "warps")
    assert place(text, "OVERWRITE") in str(found.value) and place(text, way.reader) in str(found.value), found.value


def test_a_store_to_factors_that_a_product_may_still_read_needs_no_race_check_to_be_found():
    text = STORED.program(False)
    with pytest.raises(RaceError, match="reads; that is not known to be complete") as found:
        sums(text, "latest-legal", False)
    assert place(text, "OVERWRITE") in str(found.value) and place(text, "MMA") in str(found.value)


def test_a_source_of_factors_that_is_overwritten_early_changes_the_sums_where_copies_complete_late():
    text = COPIED.program(False)
    assert sums(text, "eager", False) == {32.0}
    assert sums(text, "latest-legal", False) == {128.0}
