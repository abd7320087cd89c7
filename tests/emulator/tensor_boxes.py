"""A simple model of the TMA unit, one element after the other, and kernels that execute its copies.

The kernels exist once for each rank. Each CTA takes coordinates of its own from an array and dumps, or fills, a region of
its shared memory, so that a test sees every byte that a copy wrote and every byte that it did not write.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

POISON = 0xEE
REGION_ALIGNMENT = 1024

HEAD = r"""
struct alignas(64) CUtensorMap { unsigned long long opaque[16]; };
using u32 = unsigned int;
using u8 = unsigned char;
extern __shared__ __align__(1024) u8 region[];

__device__ u32 shared(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

__device__ bool wait(u32 bar) {
  u32 done = 0;
  for (int tries = 0; !done && tries < 4096; ++tries)  // not for ever: a wrong byte count must not hang a GPU
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(bar) : "memory");
  return done;
}
__device__ void init(u32 bar) {
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(bar) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
}
__device__ void expect(u32 bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(bytes) : "memory");
}
__device__ void load_2d(u32 to, const void* map, u32 bar, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
               :: "r"(to), "l"(map), "r"(x), "r"(y), "r"(bar) : "memory");
}
__device__ void commit_and_wait() {
  asm volatile("cp.async.bulk.commit_group;");
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
"""

LOAD = r"""
extern "C" __global__ void load@(const __grid_constant__ CUtensorMap map, const int* coordinates, u8* out, int* done,
                                 u32 bytes, u32 to, u32 size) {
  __shared__ unsigned long long barrier;
  const u32 bar = shared(&barrier);
  const int* c = coordinates + 5 * blockIdx.x;
  init(bar);
  for (u32 i = threadIdx.x; i < size; i += blockDim.x) region[i] = 0xEE;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    expect(bar, bytes);
    asm volatile("cp.async.bulk.prefetch.tensor.@d.L2.global.tile [%0, {$}];" :: "l"(&map)# : "memory");
    asm volatile("cp.async.bulk.tensor.@d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {$$$}], [%2];"
                 :: "r"(shared(region + to)), "l"(&map), "r"(bar)# : "memory");
  }
  const bool ok = wait(bar);
  if (threadIdx.x == 0) done[blockIdx.x] = ok;
  for (u32 i = threadIdx.x; i < size; i += blockDim.x) out[blockIdx.x * size + i] = region[i];
}
"""

STORE = r"""
extern "C" __global__ void store@(const __grid_constant__ CUtensorMap map, const int* coordinates, const u8* in,
                                  u32 from, u32 size) {
  const int* c = coordinates + 5 * blockIdx.x;
  for (u32 i = threadIdx.x; i < size; i += blockDim.x) region[i] = in[blockIdx.x * size + i];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.tensor.@d.global.shared::cta.tile.bulk_group [%0, {$$}], [%1];"
                 :: "l"(&map), "r"(shared(region + from))# : "memory");
    commit_and_wait();
  }
}
"""

REDUCE = r"""
extern "C" __global__ void reduce_~(const __grid_constant__ CUtensorMap map, const int* coordinates, const u8* in,
                                  u32 from, u32 size) {
  const int* c = coordinates + 5 * blockIdx.x;
  for (u32 i = threadIdx.x; i < size; i += blockDim.x) region[i] = in[blockIdx.x * size + i];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("cp.reduce.async.bulk.tensor.@d.global.shared::cta.~.tile.bulk_group [%0, {$$}], [%1];"
                 :: "l"(&map), "r"(shared(region + from))# : "memory");
    commit_and_wait();
  }
}
"""

LOAD_COLUMNS = r"""
extern "C" __global__ void load_columns@(const __grid_constant__ CUtensorMap map, const int* coordinates, u8* out, int* done,
                                         u32 bytes, u32 to, u32 size) {
  __shared__ unsigned long long barrier;
  const u32 bar = shared(&barrier);
  const int* c = coordinates + 8 * blockIdx.x;
  const short* offset = reinterpret_cast<const short*>(c + 5);
  init(bar);
  for (u32 i = threadIdx.x; i < size; i += blockDim.x) region[i] = 0xEE;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    expect(bar, bytes);
    asm volatile("cp.async.bulk.tensor.@d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {$$$}], [%2], {!};"
                 :: "r"(shared(region + to)), "l"(&map), "r"(bar)#? : "memory");
  }
  const bool ok = wait(bar);
  if (threadIdx.x == 0) done[blockIdx.x] = ok;
  for (u32 i = threadIdx.x; i < size; i += blockDim.x) out[blockIdx.x * size + i] = region[i];
}
"""

STORE_COLUMNS = (
    STORE.replace("store@", "store_columns@").replace(".bulk_group", ".im2col_no_offs.bulk_group").replace(".tile", "")
)

MULTICAST = r"""
extern "C" __global__ void __cluster_dims__(4, 1, 1)
multicast(const __grid_constant__ CUtensorMap map, u8* out, int* done, u32 bytes, const unsigned short* masks) {
  __shared__ unsigned long long barrier;
  const u32 bar = shared(&barrier), rank = blockIdx.x % 4;
  init(bar);
  for (u32 i = threadIdx.x; i < 4 * bytes; i += blockDim.x) region[i] = 0xEE;
  u32 expected = 0;
  for (u32 r = 0; r < 4; ++r) expected += (masks[r] >> rank & 1) * bytes;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  if (threadIdx.x == 0) expect(bar, expected);
  asm volatile("barrier.cluster.arrive.aligned;\n barrier.cluster.wait.aligned;" ::: "memory");
  if (threadIdx.x == 0 && masks[rank])
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
                 " [%0], [%1, {%2, %3}], [%4], %5;"
                 :: "r"(shared(region + rank * bytes)), "l"(&map), "r"(0), "r"(blockIdx.x * 4), "r"(bar), "h"(masks[rank])
                 : "memory");
  const bool ok = wait(bar);
  if (threadIdx.x == 0) done[blockIdx.x] = ok;
  for (u32 i = threadIdx.x; i < 4 * bytes; i += blockDim.x) out[blockIdx.x * 4 * bytes + i] = region[i];
  asm volatile("barrier.cluster.arrive.aligned;\n barrier.cluster.wait.aligned;" ::: "memory");
}
"""

CHANGED_MAPS = r"""
__device__ void publish(CUtensorMap* to, u32 from) {  // by a whole warp
  asm volatile("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%0], [%1], 128;"
               :: "l"(to), "r"(from) : "memory");
  asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" :: "l"(to) : "memory");
}
#define REPLACE(field, type, operands, ...) \
  asm volatile("tensormap.replace.tile." field ".shared::cta.b1024." type " [%0], " operands ";" \
               :: "r"(m), ##__VA_ARGS__ : "memory")

// the map of another array, made from one that the host encoded
extern "C" __global__ void readdress(const __grid_constant__ CUtensorMap map, CUtensorMap* scratch, const u8* other, u8* out,
                                     int* done, u32 bytes) {
  __shared__ alignas(128) CUtensorMap mine;
  __shared__ unsigned long long barrier;
  const u32 bar = shared(&barrier), m = shared(&mine);
  init(bar);
  if (threadIdx.x < 16) mine.opaque[threadIdx.x] = map.opaque[threadIdx.x];
  __syncwarp();
  if (threadIdx.x == 0) REPLACE("global_address", "b64", "%1", "l"(other));
  __syncwarp();
  publish(scratch, m);
  if (threadIdx.x == 0) expect(bar, bytes), load_2d(shared(region), scratch, bar, 0, 0);
  const bool ok = wait(bar);
  if (threadIdx.x == 0) *done = ok;
  for (u32 i = threadIdx.x; i < bytes; i += blockDim.x) out[i] = region[i];
}

// a map made of nothing: 2 dimensions of float32, rows of `columns`, a box of 4 x 16 elements, every second row
extern "C" __global__ void build(CUtensorMap* scratch, const u8* array, u32 columns, u32 rows, u8* out, int* done, u32 bytes) {
  __shared__ alignas(128) CUtensorMap mine;
  __shared__ unsigned long long barrier;
  const u32 bar = shared(&barrier), m = shared(&mine);
  init(bar);
  if (threadIdx.x < 16) mine.opaque[threadIdx.x] = 0;
  __syncwarp();
  if (threadIdx.x == 0) {
    REPLACE("global_address", "b64", "%1", "l"(array));
    REPLACE("rank", "b32", "%1", "r"(1));
    REPLACE("box_dim", "b32", "0, %1", "r"(16));
    REPLACE("box_dim", "b32", "1, %1", "r"(4));
    REPLACE("global_dim", "b32", "0, %1", "r"(columns));
    REPLACE("global_dim", "b32", "1, %1", "r"(rows));
    REPLACE("global_stride", "b64", "0, %1", "l"(4ull * columns));
    REPLACE("element_stride", "b32", "0, %1", "r"(1));
    REPLACE("element_stride", "b32", "1, %1", "r"(2));
    REPLACE("elemtype", "b32", "7");
    REPLACE("interleave_layout", "b32", "0");
    REPLACE("swizzle_mode", "b32", "2");
    REPLACE("fill_mode", "b32", "1");
  }
  __syncwarp();
  publish(scratch, m);
  if (threadIdx.x == 0) expect(bar, bytes), load_2d(shared(region), scratch, bar, 0, 0);
  const bool ok = wait(bar);
  if (threadIdx.x == 0) *done = ok;
  for (u32 i = threadIdx.x; i < bytes; i += blockDim.x) out[i] = region[i];
}
"""

OPERATIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
RANKS = range(1, 6)


def for_rank(text: str, rank: int) -> str:
    """A kernel's text with the coordinates of one rank: ``$`` are their operands, after as many others as there are ``$``."""
    for count in (3, 2, 1):
        numbers = ", ".join(f"%{count + d}" for d in range(rank))
        text = text.replace("{" + "$" * count + "}", "{" + numbers + "}")
    text = text.replace("!", ", ".join(f"%{3 + rank + d}" for d in range(rank - 2)))
    text = text.replace("?", "".join(f', "h"(offset[{d}])' for d in range(rank - 2)))
    return text.replace("#", "".join(f', "r"(c[{d}])' for d in range(rank))).replace("@", str(rank))


def source() -> str:
    """Every kernel: load and store of ranks 1 to 5, load_columns and store_columns of ranks 3 to 5, and those of rank 2."""
    parts = [for_rank(text, rank) for text in (LOAD, STORE) for rank in RANKS]
    parts += [for_rank(text, rank) for text in (LOAD_COLUMNS, STORE_COLUMNS) for rank in RANKS[2:]]
    parts += [for_rank(REDUCE.replace("~", op), 2) for op in OPERATIONS]
    return HEAD + "".join(parts) + MULTICAST + CHANGED_MAPS


def swizzled(address: int, mode: str) -> int:
    """The address of a byte of shared memory after swizzling. PTX ISA, "Swizzling modes", as tables of 16-byte cells."""
    line, cell, byte = address // 128, address // 16 % 8, address % 16
    match mode:
        case "32B":
            cell ^= line % 2
        case "64B":
            cell ^= line % 4
        case "128B":
            cell ^= line % 8
        case "128B_atom_32B" | "128B_atom_32B_flip_8B":
            cell = (cell // 2 ^ line % 4) * 2 + cell % 2
            if mode.endswith("flip_8B") and line % 2:
                byte ^= 8
        case "128B_atom_64B":
            cell = (cell // 4 ^ line % 2) * 4 + cell % 4
    return line * 128 + cell * 16 + byte


@dataclass(frozen=True)
class Boxed:
    """An array in a buffer of bytes and the boxes of a tensor map of it; dimensions outermost first, strides in bytes.

    Attributes:
        nan: the bytes that fill elements outside the array; None for zeros.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    box: tuple[int, ...]
    steps: tuple[int, ...]
    swizzle: str = "none"
    nan: bytes | None = None

    @property
    def counts(self) -> tuple[int, ...]:
        """Elements that a box takes of each dimension."""
        return tuple(-(-b // s) for b, s in zip(self.box, self.steps, strict=True))

    @property
    def nbytes(self) -> int:
        """Bytes of a box."""
        return int(np.prod(self.counts)) * self.itemsize

    @property
    def buffer_bytes(self) -> int:
        """Bytes of the array in memory, and 16 bytes after it."""
        return sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)) + self.itemsize + 16

    @property
    def pitch(self) -> int:
        """Bytes from one row to the next in shared memory: a swizzle's span, else those of the row."""
        return {"none": self.counts[-1] * self.itemsize, "32B": 32, "64B": 64}.get(self.swizzle, 128)

    @property
    def shared_bytes(self) -> int:
        """That a box occupies in shared memory."""
        return self.nbytes // (self.counts[-1] * self.itemsize) * self.pitch

    def elements(self, coordinates, unit=1):
        """(byte offset in shared memory before the swizzle, byte offset in the buffer or None outside the array) of each.

        A row of the array ends at a multiple of ``unit`` bytes.

        ``coordinates`` are innermost first, as the instruction takes them.
        """
        origin, ends = coordinates[::-1], self.ends(unit)
        for count, index in enumerate(itertools.product(*map(range, self.counts))):
            position = count // self.counts[-1] * self.pitch + index[-1] * self.itemsize
            at = [o + i * s for o, i, s in zip(origin, index, self.steps, strict=True)]
            inside = all(0 <= a < n for a, n in zip(at, ends, strict=True))
            yield position, sum(a * s for a, s in zip(at, self.strides, strict=True)) if inside else None

    def ends(self, unit):
        """The shape, with rows that end at a multiple of ``unit`` bytes."""
        step = max(1, unit // self.itemsize)
        return (*self.shape[:-1], -(-self.shape[-1] // step) * step)

    def load(self, buffer, coordinates, to, size):
        """The contents of ``size`` bytes of poisoned shared memory after a box was loaded to offset ``to``."""
        region = np.full(size, POISON, np.uint8)
        for position, offset in self.elements(coordinates):
            if offset is None:
                value = np.frombuffer(self.nan or bytes(self.itemsize), np.uint8)
            else:
                value = buffer[offset : offset + self.itemsize]
            for k in range(self.itemsize):
                region[swizzled(to + position + k, self.swizzle)] = value[k]
        return region

    def store(self, buffer, coordinates, region, start, combine=None):
        """Change ``buffer`` as a store from offset ``start`` of shared memory does.

        ``combine(old, new)`` takes and gives the bytes of an element. Rows are written up to a multiple of 16 bytes.
        """
        for position, offset in self.elements(coordinates, unit=16):
            if offset is not None:
                at = [swizzled(start + position + k, self.swizzle) for k in range(self.itemsize)]
                place = slice(offset, offset + self.itemsize)
                buffer[place] = region[at] if combine is None else combine(buffer[place].copy(), region[at])


@dataclass(frozen=True)
class Columns(Boxed):
    """The same in im2col mode; ``box`` is (pixels, channels), ``coordinates`` end with the offsets, W first.

    Attributes:
        lower, upper: corners of the bounding box, ([D,] [H,] W).
    """

    lower: tuple[int, ...] = ()
    upper: tuple[int, ...] = ()

    @property
    def counts(self) -> tuple[int, ...]:
        """Pixels and channels."""
        return self.box

    def elements(self, coordinates, unit=1):
        """See :class:`Boxed`. A filter moves over the image, W first; a pixel is the position of its element at the offset."""
        rank = len(self.shape)
        channel, *corner, image = coordinates[:rank]
        offsets = coordinates[rank:]
        walk = list(zip(self.lower[::-1], self.upper[::-1], self.shape[-2:0:-1], self.steps[-2:0:-1], strict=True))
        for pixel in range(self.box[0]):
            outer = (image, *(c + o for c, o in zip(corner[::-1], offsets[::-1], strict=True)))
            for k in range(self.box[1]):
                at = (*outer, channel + k)
                inside = all(0 <= a < n for a, n in zip(at, self.ends(unit), strict=True))
                position = pixel * self.pitch + k * self.itemsize
                yield position, sum(a * s for a, s in zip(at, self.strides, strict=True)) if inside else None
            for d, (low, high, size, step) in enumerate(walk):
                corner[d] += step
                if corner[d] <= size - 1 + high:
                    break
                corner[d] = low
            else:
                image += 1
