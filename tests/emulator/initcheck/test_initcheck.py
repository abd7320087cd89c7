"""Uses of uninitialised values are reported with their place and origin; copies, and uses of defined values, are not
reported."""

from __future__ import annotations

import numpy as np
import pytest
from programs import THREAD, Run, kernel

import ptxkit
from ptxkit.emulator.settings import EmulatorSettings
from ptxkit.errors import UninitialisedError
from ptxkit.runtime.emulated import EmulatedDevice

OUT = np.zeros(32, np.uint32)
IN = np.arange(1, 33, dtype=np.uint32)


def run(body: str, *arrays: np.ndarray, initcheck: bool = False, before: str = "", **options) -> list[np.ndarray]:
    text = kernel(THREAD + body, before=before)
    return Run(text)(*(arrays or (OUT, IN)), initcheck=initcheck, **options)


def refused(body: str, message: str, initcheck: bool = False, before: str = "", **options) -> None:
    with pytest.raises(UninitialisedError, match=message):
        run(body, initcheck=initcheck, before=before, **options)


SOME = "setp.lt.u32 %p0, %r0, 5; @%p0 mov.b32 %r10, 7;"
"""%r10 is defined in the first five threads."""

USES = {
    "a store": ("st.global.u32 [%rd21], %r10;", "writes to global memory"),
    "an element of a vector": (
        "and.b64 %rd21, %rd21, -16; st.global.v4.u32 [%rd21], {%r0, %r0, %r0, %r10};",
        "writes to global memory",
    ),
    "a load's address": (
        "mul.wide.u32 %rd5, %r10, 4; add.u64 %rd5, %rd5, %rd0; ld.global.u32 %r11, [%rd5];",
        "reads memory at",
    ),
    "a store's address": (
        "mul.wide.u32 %rd5, %r10, 4; add.u64 %rd5, %rd5, %rd0; st.global.u32 [%rd5], %r0;",
        "writes memory at",
    ),
    "an atomic's operand": ("red.global.add.u32 [%rd0], %r10;", "updates memory with"),
    "an atomic's address": (
        "cvt.u64.u32 %rd5, %r10; add.u64 %rd5, %rd5, %rd0; red.global.add.u32 [%rd5], 1;",
        "updates memory at",
    ),
    "a branch": ("setp.eq.u32 %p1, %r10, 7; @%p1 bra DONE; st.global.u32 [%rd21], %r0; DONE:", "branches on"),
    "a guard": ("setp.eq.u32 %p1, %r10, 7; @%p1 st.global.u32 [%rd21], %r0;", "is executed or not depending on"),
    "a switch": (
        "TABLE: .branchtargets L0, L1; and.b32 %r10, %r10, 1; brx.idx %r10, TABLE; L0: L1:",
        "jumps to a target",
    ),
    "through arithmetic": ("add.u32 %r11, %r10, 1; st.global.u32 [%rd21], %r11;", "writes to global memory"),
    "through a shuffle": ("shfl.sync.down.b32 %r11, %r10, 1, 31, -1; st.global.u32 [%rd21], %r11;", "thread .4, 0, 0."),
    "through a vote": (
        "setp.eq.u32 %p1, %r10, 7; vote.sync.ballot.b32 %r11, %p1, -1; st.global.u32 [%rd21], %r11;",
        "writes to global memory",
    ),
    "through a pack": (
        "mov.b64 %rd5, {%r0, %r10}; mov.b64 {%r11, %r12}, %rd5; st.global.u32 [%rd21], %r12;",
        "writes to",
    ),
    "through a select": (
        "selp.b32 %r11, %r10, %r0, %p0; selp.b32 %r12, %r0, %r10, %p0; st.global.u32 [%rd21], %r12;",
        "writes to",
    ),
    "through a float": ("mov.b32 %f0, %r10; fma.rn.f32 %f0, %f0, %f0, %f0; st.global.f32 [%rd21], %f0;", "writes to"),
}


@pytest.mark.parametrize("name", USES)
def test_a_use_of_a_register_is_reported_and_a_copy_is_not(name):
    use, what = USES[name]
    refused(SOME + use, rf"{what}.*register %r10, which nothing has written")
    run("mov.b32 %r10, 0; setp.lt.u32 %p0, %r0, 5;" + use)  # the same for the destination of a store


@pytest.mark.parametrize(
    "harmless",
    [
        "mov.b32 %r11, %r10; add.u32 %r12, %r11, %r0; mul.lo.u32 %r12, %r12, %r12;",
        "selp.b32 %r11, %r10, %r0, %p0; st.global.u32 [%rd21], %r11;",
        "and.b32 %r11, %r10, 0; st.global.u32 [%rd21], %r11;",
        "or.b32 %r11, %r10, -1; st.global.u32 [%rd21], %r11;",
        "shl.b32 %r11, %r10, 8; bfi.b32 %r11, %r0, %r11, 8, 24; st.global.u32 [%rd21], %r11;",
        "prmt.b32 %r11, %r10, %r0, 0x7654; st.global.u32 [%rd21], %r11;",
        "mov.b64 %rd5, {%r0, %r10}; mov.b64 {%r11, %r12}, %rd5; st.global.u32 [%rd21], %r11;",
        "mov.b32 {%h0, %h1}, %r10; mov.b32 %r11, {%h0, %h1}; @%p0 st.global.u32 [%rd21], %r11;",
        "@%p0 st.global.u32 [%rd21], %r10;",
        "setp.ne.u32 %p1, %r10, 3; and.pred %p1, %p1, %p0; @%p1 st.global.u32 [%rd21], %r10;",
        "shfl.sync.idx.b32 %r11, %r10, 0, 31, -1; st.global.u32 [%rd21], %r11;",
        "mov.b32 %r10, %r0; st.global.u32 [%rd21], %r10;",
        "cvt.u64.u32 %rd5, %r10; mov.b64 %rd5, 3; st.global.u64 [%rd0], %rd5;",
        "@%p0 bra ON; mov.b32 %r10, 1; ON: st.global.u32 [%rd21], %r10;",
        "setp.eq.u32 %p1, %r10, 1; @%p0 bra ON; mov.pred %p1, %p0; ON: @%p1 st.global.u32 [%rd21], %r0;",
    ],
)
def test_what_does_not_reach_memory_or_a_branch_is_no_error(harmless):
    run(SOME + harmless)


def test_the_message_names_line_thread_and_register():
    refused(
        SOME + "st.global.u32 [%rd21], %r10;", r"^test.ptx:\d+ st.global.u32: thread \(5, 0, 0\) of CTA \(0, 0, 0\)"
    )


def test_unwritten_registers_hold_poison():
    out, _ = run("mov.b32 %r11, %r10; st.shared.u32 [s], %r11;", before=".shared .b32 s;")
    assert (out == 0).all()


LOCAL = ".local .align 16 .b8 frame[64];"


def test_local_memory():
    store = (
        LOCAL
        + "mov.u64 %rd5, frame; setp.ne.u32 %p0, %r0, 3; @%p0 st.local.u32 [%rd5+8], %r0; ld.local.u32 %r11, [%rd5+8];"
    )
    refused(
        store + "st.global.u32 [%rd21], %r11;",
        r"thread \(3, 0, 0\).*byte 8 of 'frame' in local memory.*loaded at test.ptx:\d+ ld.local",
    )
    run(store + "@%p0 st.global.u32 [%rd21], %r11;")
    generic = store.replace("ld.local.u32 %r11, [%rd5+8]", "cvta.local.u64 %rd6, %rd5; ld.u32 %r11, [%rd6+8]")
    refused(generic + "st.global.u32 [%rd21], %r11;", r"thread \(3, 0, 0\).*in local memory")
    vector = LOCAL + "mov.u64 %rd5, frame; st.local.u16 [%rd5+2], %h0; ld.local.u32 %r11, [%rd5];"
    refused("mov.b16 %h0, 1;" + vector + "add.u32 %r11, %r11, 1; st.global.u32 [%rd21], %r11;", "byte 0 of 'frame'")
    run("mov.b16 %h0, 1;" + vector + "shr.u32 %r11, %r11, 16; st.global.u32 [%rd21], %r11;")


@pytest.mark.parametrize("to", ["", ".to"])
@pytest.mark.parametrize("space", ["local", "shared"])
def test_a_converted_address_is_undefined_in_the_threads_in_which_the_given_one_is(to, space):
    """Converting adds or subtracts the beginning of a window, where there is one: of no undefined bits, nothing."""
    body = f"@%p0 mov.b64 %rd5, 64; cvta{to}.{space}.u64 %rd6, %rd5; "
    run("setp.lt.u32 %p0, %r0, 5;" + body + "@%p0 st.global.u32 [%rd21], %rd6;")
    refused("setp.lt.u32 %p0, %r0, 5;" + body + "st.global.u32 [%rd21], %rd6;", r"thread \(5, 0, 0\)")


@pytest.mark.parametrize("block", [1, 31, 33])
def test_the_address_of_a_local_array_may_be_passed_to_a_function(block):
    """The lanes that the last warp lacks read nothing."""
    source = """__device__ __noinline__ int get(volatile int* p) { return p[0]; }
    extern "C" __global__ void k(int* y, int n) { volatile int a[2]; a[0] = n; y[threadIdx.x] = get(a); }"""
    ptxkit.compile(source, device="emulator")["k"](y := np.zeros(64, np.int32), np.int32(7), grid=1, block=block)
    assert y.tolist() == [7] * block + [0] * (64 - block)


def test_the_shared_memory_that_the_system_reserves_is_initialised():
    source = """#include <cooperative_groups.h>
    namespace cg = cooperative_groups;
    extern "C" __global__ void k(int* y) {
        __shared__ cg::block_tile_memory<64> memory;
        auto tile = cg::tiled_partition<64>(cg::this_thread_block(memory));
        tile.sync();
        y[threadIdx.x] = tile.thread_rank();
    }"""
    ptxkit.compile(source, device=device())["k"](y := np.zeros(64, np.int32), grid=1, block=64)
    assert (y == np.arange(64)).all()


def test_a_called_functions_stack_is_new_each_time():
    before = """.func (.param .b32 out) f(.param .b32 in)
    { .reg .b32 %a; .reg .pred %q; .local .b32 kept; ld.param.b32 %a, [in]; setp.eq.u32 %q, %a, 0;
      @%q st.local.b32 [kept], %a; ld.local.b32 %a, [kept]; st.param.b32 [out], %a; ret; }"""
    call = "{{ .param .b32 p; .param .b32 q; mov.b32 %r10, {n};"
    call += " st.param.b32 [p], %r10; call (q), f, (p); ld.param.b32 %r11, [q]; }}"
    run(call.format(n=0) + "st.global.u32 [%rd21], %r11;", before=before)
    refused(
        call.format(n=0) + call.format(n=1) + "st.global.u32 [%rd21], %r11;", "writes to global memory", before=before
    )


SHARED = ".shared .align 16 .b8 tile[256];"
FILL = """mov.u32 %r5, tile; mad.lo.u32 %r6, %r0, 4, %r5; setp.ne.u32 %p0, %r0, 9; @%p0 st.shared.u32 [%r6], %r0; bar.sync 0;
    xor.b32 %r7, %r0, 1; mad.lo.u32 %r7, %r7, 4, %r5; ld.shared.u32 %r11, [%r7];"""


def test_shared_memory():
    with_store = FILL + "st.global.u32 [%rd21], %r11;"
    refused(with_store, r"thread \(8, 0, 0\).*byte 36 of 'tile' in shared memory.*loaded at test", True, SHARED)
    assert (run(with_store.replace("@%p0", ""), initcheck=True, before=SHARED)[0] == np.arange(32) ^ 1).all()
    run(with_store, before=SHARED)  # not followed by default
    run(FILL + "st.shared.u32 [%r7+128], %r11;", initcheck=True, before=SHARED)  # a copy


@pytest.mark.parametrize(
    ("update", "message"),
    [
        ("red.shared.add.u32 [tile], 1;", "updates memory that holds"),
        ("atom.shared.cas.b32 %r11, [tile], 0, 1;", "updates memory that holds"),
        ("atom.shared.exch.b32 %r11, [tile], 1;", ""),
        ("atom.shared.exch.b32 %r11, [tile], 1; st.global.u32 [%rd21], %r11;", "writes to global"),
        (
            """st.shared.u32 [tile], 0; bar.sync 0; red.shared.add.u32 [tile], 1;
            ld.shared.u32 %r11, [tile]; st.global.u32 [%rd21], %r11;""",
            "",
        ),
    ],
)
def test_atomics(update, message):
    if message:
        refused(update, message, True, SHARED, block=1)
    else:
        run(update, initcheck=True, before=SHARED, block=1)


def device(**settings) -> EmulatedDevice:
    return EmulatedDevice(settings=EmulatorSettings(initcheck=True, **settings))


COPY = 'extern "C" __global__ void copy(float* to, const float* from) { to[threadIdx.x] = from[threadIdx.x] * 2; }'


def test_global_memory_by_how_it_came_about():
    d = device()
    copy = ptxkit.compile(COPY, device=d)["copy"]
    scratch, out = d.empty(64, np.float32, "scratch"), d.empty(64, np.float32, "out")
    with pytest.raises(UninitialisedError, match="byte 0 of 'scratch' .256 bytes. in global memory"):
        copy(out, scratch, grid=1, block=32)
    copy(scratch, np.ones(32, np.float32), grid=1, block=32)  # half of the value
    copy(out, scratch, grid=1, block=32)
    with pytest.raises(UninitialisedError, match=r"thread \(32, 0, 0\).*byte 128 of 'scratch'"):
        copy(out, scratch, grid=1, block=64)
    scratch.fill(0)
    copy(out, scratch, grid=1, block=64)
    scratch.poison(0xCB)
    with pytest.raises(UninitialisedError, match="byte 0 of 'scratch'"):
        copy(out, scratch, grid=1, block=64)
    with d.settings(initcheck=False):
        copy(out, scratch, grid=1, block=64)
    copy(scratch, out, grid=1, block=64)  # memory that a launch without the check has written counts as initialised


PADDED = r"""
#include <mma.h>
extern "C" __global__ void product(float* c, const __half* a, const __half* b, int rows) {
  __shared__ __half left[16 * 16];
  for (int i = threadIdx.x; i < rows * 16; i += 32) left[i] = a[i];
  __syncwarp();
  unsigned r[4], s[2];
  unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(left + (threadIdx.x % 16) * 16 + threadIdx.x / 16 * 8));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
  const unsigned* words = reinterpret_cast<const unsigned*>(b);  // b[n][k]
  s[0] = words[threadIdx.x / 4 * 8 + threadIdx.x % 4];
  s[1] = words[threadIdx.x / 4 * 8 + threadIdx.x % 4 + 4];
  float d[4] = {0, 0, 0, 0};
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]), "r"(s[0]), "r"(s[1]));
  for (int i = 0; i < 4; i++) {
    int row = threadIdx.x / 4 + i / 2 * 8, column = threadIdx.x % 4 * 2 + i % 2;
    if (row < STORED) c[row * 8 + column] = d[i];
  }
}"""


@pytest.mark.parametrize(("stored", "wrong"), [("rows", False), ("rows + 1", True)])
def test_rows_of_a_matrix_that_are_padding(stored, wrong):
    """Undefined rows of A make the same rows of the product undefined, and no others."""
    d = device()
    source = "#include <cuda_fp16.h>\n" + PADDED.replace("#include <mma.h>", "").replace("STORED", stored)
    product = ptxkit.compile(source, device=d, target="sm_90a")["product"]
    rng = np.random.default_rng(1)
    a, b = rng.integers(-3, 4, (11, 16)).astype(np.float16), rng.integers(-3, 4, (8, 16)).astype(np.float16)
    c = np.zeros((16, 8), np.float32)
    if wrong:
        with pytest.raises(UninitialisedError, match="writes to global memory.*ldmatrix"):
            product(c, a, b, 11, grid=1, block=32)
    else:
        product(c, a, b, 11, grid=1, block=32)
        assert (c[:11] == a.astype(np.float32) @ b.astype(np.float32).T).all()


BULK = r"""
__device__ unsigned shared(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }
extern "C" __global__ void store(float* to, int written) {
  __shared__ alignas(128) float tile[64];
  if (threadIdx.x < written) tile[threadIdx.x] = threadIdx.x;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 256;" :: "l"(to), "r"(shared(tile)) : "memory");
    asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
  }
}"""


@pytest.mark.parametrize("completion", ["eager", "latest-legal"])
def test_a_bulk_store(completion):
    d = device(completion=completion)
    store = ptxkit.compile(BULK, device=d, target="sm_90a")["store"]
    to = d.empty(128, np.float32, "to")
    store(to, 64, grid=1, block=64)
    with pytest.raises(
        UninitialisedError, match="copies 16 bytes of uninitialised shared memory to global memory, 'to'"
    ):
        to.poison(0)
        store(to, 60, grid=1, block=64)


ASYNC = r"""
extern "C" __global__ void through(float* to, const float* from, int n) {
  __shared__ alignas(16) float tile[128];
  unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(tile + threadIdx.x * 4));
  int bytes = threadIdx.x * 4 < n ? 16 : SKIPPED;
  if (bytes >= 0)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(at), "l"(from + threadIdx.x * 4), "r"(bytes) : "memory");
  asm volatile("cp.async.commit_group; cp.async.wait_group 0;" ::: "memory");
  __syncthreads();
  for (int i = threadIdx.x; i < 128; i += 32) to[i] = tile[i];
}"""


@pytest.mark.parametrize("completion", ["eager", "latest-legal"])
@pytest.mark.parametrize(("skipped", "wrong"), [("0", False), ("-1", True)])
def test_asynchronous_copies_initialise_what_they_fill(skipped, wrong, completion):
    d = device(completion=completion)
    through = ptxkit.compile(ASYNC.replace("SKIPPED", skipped), device=d, target="sm_90a")["through"]
    to, x = np.zeros(128, np.float32), np.arange(128, dtype=np.float32)
    if wrong:
        with pytest.raises(UninitialisedError, match="byte 400 of 'tile' in shared memory"):
            through(to, x, 100, grid=1, block=32)
    else:
        through(to, x, 100, grid=1, block=32)
        assert (to == np.where(x < 100, x, 0)).all()


COPIES = r"""
__device__ unsigned shared(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }
__device__ void wait_for(unsigned bar, unsigned phase) {
  asm volatile("{ .reg .pred p; L: mbarrier.try_wait.parity.shared.b64 p, [%0], %1; @!p bra L; }" :: "r"(bar), "r"(phase)
               : "memory");
}
extern "C" __global__ void grouped(float* to, const float* from) {
  __shared__ alignas(16) float tile[128];
  unsigned at = shared(tile + threadIdx.x * 4);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(at), "l"(from + threadIdx.x * 4) : "memory");
  asm volatile("cp.async.commit_group;" ::: "memory");
  EARLY
  asm volatile("cp.async.wait_group 0;" ::: "memory");
  __syncthreads();
  for (int i = threadIdx.x; i < 128; i += 32) to[i] = tile[i];
}
extern "C" __global__ void bulk(float* to, const float* from) {
  __shared__ alignas(128) float tile[128];
  __shared__ alignas(8) unsigned long long bar;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(shared(&bar)) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 512;" :: "r"(shared(&bar)) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 512, [%2];"
                 :: "r"(shared(tile)), "l"(from), "r"(shared(&bar)) : "memory");
  }
  __syncthreads();
  EARLY
  wait_for(shared(&bar), 0);
  for (int i = threadIdx.x; i < 128; i += 32) to[i] = tile[i];
}"""


@pytest.mark.parametrize("completion", ["eager", "latest-legal"])
@pytest.mark.parametrize("kernel", ["grouped", "bulk"])
@pytest.mark.parametrize("early", ["", "to[threadIdx.x * 4] = tile[threadIdx.x * 4 + 1];"])
def test_what_an_asynchronous_copy_writes_is_uninitialised_until_it_is_waited_for(kernel, early, completion):
    """In eager mode the copy is performed at once, so that only latest-legal detects that the data may not have arrived."""
    d = device(completion=completion)
    launch = ptxkit.compile(COPIES.replace("EARLY", early), device=d, target="sm_90a")[kernel]
    to, x = np.zeros(128, np.float32), np.arange(128, dtype=np.float32)
    if early and completion == "latest-legal":
        with pytest.raises(UninitialisedError, match="asynchronous copy that is not waited for"):
            launch(to, x, grid=1, block=32)
    else:
        launch(to, x, grid=1, block=32)
        assert (to == x).all()


def test_a_second_copy_makes_a_tile_uninitialised_again():
    d = device(completion="latest-legal")
    twice = COPIES.replace("EARLY", """
      asm volatile("cp.async.wait_group 0;" ::: "memory");
      __syncthreads();
      float first = tile[threadIdx.x];
      __syncthreads();
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(at), "l"(from + threadIdx.x * 4 + 128) : "memory");
      asm volatile("cp.async.commit_group;" ::: "memory");
      to[threadIdx.x + 128] = first;""", 1).replace("EARLY", "")
    launch = ptxkit.compile(twice, device=d, target="sm_90a")["grouped"]
    to, x = np.zeros(256, np.float32), np.arange(256, dtype=np.float32)
    launch(to, x, grid=1, block=32)
    assert (to[:128] == x[128:]).all() and (to[128:160] == x[:32]).all()


AT_TWO_PLACES = """
    setp.lt.u32 %p0, %r0, 5; @%p0 mov.b32 %r10, 7;
    and.b32 %r9, %r0, 1; setp.eq.u32 %p2, %r9, 1; @%p2 bra ODD;
    {collective} bra MEET;
ODD: {collective}
MEET: {use}
"""


@pytest.mark.parametrize(
    ("collective", "use", "wrong"),
    [
        ("shfl.sync.idx.b32 %r4, %r10, 4, 31, -1;", "", False),  # lane 4 is defined
        ("shfl.sync.idx.b32 %r4, %r10, 5, 31, -1;", "", True),
        ("shfl.sync.down.b32 %r4, %r10, 1, 31, -1;", "setp.ge.u32 %p3, %r0, 4; @%p3 mov.b32 %r4, 0;", False),
        ("shfl.sync.down.b32 %r4, %r10, 1, 31, -1;", "setp.ge.u32 %p3, %r0, 5; @%p3 mov.b32 %r4, 0;", True),
        ("shfl.sync.idx.b32 %r4, %r0, %r10, 31, -1;", "", True),  # the index of the lane to read is undefined
        ("redux.sync.add.u32 %r4, %r10, -1;", "", True),
    ],
)
def test_a_collective_at_two_places_passes_on_what_is_undefined(collective, use, wrong):
    body = AT_TWO_PLACES.format(collective=collective, use=use) + "st.global.u32 [%rd21], %r4;"
    if wrong:
        refused(body, "writes to global memory an uninitialised value: register %r10, which nothing has written")
    else:
        run(body)
