"""The kernels of emulator_programs.cu with their arguments and the results that they must have, for emulator_corpus.py."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

RNG = np.random.default_rng(3)
SOURCE = Path(__file__).with_suffix(".cu")

Program = tuple[str, Sequence[Any], int, int, Callable[[Sequence[Any]], bool]]
"""The name of a kernel, its arguments, grid and block, and whether its arguments are right afterwards."""


def programs(scale: int) -> Iterator[Program]:
    """All of them. ``scale`` multiplies the sizes."""
    made = (search_tree, hash_count, breadth_first, find_pattern, mandelbrot)
    for program in (*made, queens, heap_select, unpack, interpret, dispatch):
        yield program(scale)


def search_tree(scale: int) -> Program:
    """A tree of 64 threads each, of keys that repeat."""
    keys = RNG.integers(0, 500, (64, 12 * scale)).astype(np.int32)

    def tree(row: list[int]) -> int:
        sides: dict[int, tuple[int | None, int | None]] = {}
        root, depth, total = row[0], {row[0]: 1}, Counter(row)
        sides[root] = (None, None)
        for key in row[1:]:
            at = root
            while key != at:
                left, right = sides[at]
                child = left if key < at else right
                if child is None:
                    sides[at] = (key, right) if key < at else (left, key)
                    sides[key], depth[key] = (None, None), depth[at] + 1
                    break
                at = child
        return sum(k * total[k] * d for k, d in depth.items())

    want = [tree(row) for row in keys.tolist()]
    arguments = [keys, np.int32(keys.shape[1]), np.zeros(64, np.int64)]
    return "search_tree", arguments, 1, 64, lambda a: a[2].tolist() == want


def hash_count(scale: int) -> Program:
    """Threads that compete for slots."""
    keys = RNG.integers(1, 100 * scale, 300 * scale).astype(np.uint32)
    want = Counter(keys.tolist())

    def is_right(a: Sequence[Any]) -> bool:
        return {k: c for k, c in zip(a[2].tolist(), a[3].tolist(), strict=True) if k} == want

    slots = 1 << int(200 * scale).bit_length()
    arguments = [keys, np.int32(len(keys)), np.zeros(slots, np.uint32), np.zeros(slots, np.int32), np.uint32(slots - 1)]
    return "hash_count", arguments, 1, 128, is_right


def breadth_first(scale: int) -> Program:
    """Distances in a grid with walls."""
    width, height = 16 * scale, 8 * scale
    wall = (RNG.random((height, width)) < 0.3).astype(np.uint8)
    wall[0, 0] = 0
    want = np.full(height * width, -1, np.int32)
    want[0] = 0
    queue = deque([0])
    while queue:
        at = queue.popleft()
        x, y = at % width, at // width
        for u, v in ((x + 1, y), (x - 1, y), (x, y + 1), (x, y - 1)):
            if 0 <= u < width and 0 <= v < height and not wall[v, u] and want[v * width + u] < 0:
                want[v * width + u] = want[at] + 1
                queue.append(v * width + u)
    arguments = [wall, np.int32(width), np.int32(height), np.int32(0), np.zeros(width * height, np.int32)]
    return "breadth_first", arguments, 1, 64, lambda a: bool((a[4] == want).all())


def find_pattern(scale: int) -> Program:
    """A pattern that overlaps itself."""
    pattern, part = b"abaababaab", 64 * scale
    text = bytes(RNG.choice(np.frombuffer(b"ab", np.uint8), 64 * part).tolist())
    length = len(pattern)
    want = [sum(text.startswith(pattern, k) for k in range(i * part, (i + 1) * part)) for i in range(64)]
    arrays = [np.frombuffer(v, np.int8).copy() for v in (text, pattern)]
    arguments = [arrays[0], np.int32(len(text)), arrays[1], np.int32(length), np.int32(part), np.zeros(64, np.int32)]
    return "find_pattern", arguments, 1, 64, lambda a: a[5].tolist() == want


def mandelbrot(scale: int) -> Program:
    """A picture of which most points leave the loop early."""
    width, height, limit = 8 * scale, 8 * scale, 50 * scale
    p = np.arange(width * height)
    cx, cy = -2.0 + 2.5 * (p % width) / width, -1.25 + 2.5 * (p // width) / height
    z, want = np.zeros(len(p), np.complex128), np.full(len(p), limit)
    for n in range(limit):
        want[(z.real**2 + z.imag**2 > 4) & (want == limit)] = n
        z = np.where(want == limit, z * z + (cx + 1j * cy), z)
    arguments = [np.zeros(width * height, np.int32), np.int32(width), np.int32(height), np.int32(limit)]
    return "mandelbrot", arguments, 2, 64, lambda a: bool((np.abs(a[0] - want) <= 1).mean() > 0.98)


def queens(scale: int) -> Program:
    """All solutions, by backtracking."""
    n = min(9, 4 + scale)
    solutions = {4: 2, 5: 10, 6: 4, 7: 40, 8: 92, 9: 352}
    return "queens", [np.int32(n), np.zeros(96, np.int32)], 1, 96, lambda a: a[1].sum() == solutions[n]


def heap_select(scale: int) -> Program:
    """The smallest numbers of a row."""
    x = RNG.integers(0, 10**6, (64, 32 * scale)).astype(np.int32)
    k = 16
    want = (np.sort(x, 1)[:, :k].astype(np.int64) * np.arange(1, k + 1)).sum(1)
    arguments = [x, np.int32(x.shape[1]), np.int32(k), np.zeros(64, np.int64)]
    return "heap_select", arguments, 1, 64, lambda a: bool((a[3] == want).all())


def unpack(scale: int) -> Program:
    """Packed texts of different lengths."""
    packed, begin, texts = bytearray(), [0], []
    for _ in range(64):
        text = bytearray(RNG.integers(97, 101, 8).astype(np.uint8).tobytes())
        packed += bytes([len(text) - 1]) + text
        for _ in range(RNG.integers(1, 4 * scale)):
            if RNG.random() < 0.6:
                count, back = int(RNG.integers(3, 40)), int(RNG.integers(1, len(text) + 1))
                packed += bytes([128 | (count - 3), back & 255, back >> 8])
                for _ in range(count):
                    text.append(text[-back])
            else:
                more = RNG.integers(97, 123, RNG.integers(1, 20)).astype(np.uint8).tobytes()
                packed += bytes([len(more) - 1]) + more
                text += more
        begin.append(len(packed))
        texts.append(bytes(text))
    room = max(map(len, texts))

    def is_right(a: Sequence[Any]) -> bool:
        return [row[:n].tobytes() for row, n in zip(a[2].reshape(64, room), a[4], strict=True)] == texts

    arrays = [np.frombuffer(bytes(packed), np.uint8).copy(), np.array(begin, np.int32)]
    return "unpack", [*arrays, np.zeros(64 * room, np.uint8), np.int32(room), np.zeros(64, np.int32)], 1, 64, is_right


def interpret(scale: int) -> Program:
    """Loops of a stack machine, a different program for each four threads."""
    code: list[int] = []
    begin = []
    for _ in range(16):
        begin += [len(code)] * 4
        body = [[1 | int(RNG.integers(-9, 9)) * 16, int(RNG.integers(2, 6))] for _ in range(RNG.integers(2, 6))]
        flat = [9, 2, *(v for pair in body for v in pair), 6, 7, 2, 10 | 3 << 4, 11 | int(RNG.integers(0, 99)) << 4]
        code += [1 | 5 << 4, *flat, 8 | -(len(flat) + 1) * 16, 0]
    rounds = RNG.integers(1, 16 * scale, 64).astype(np.int32)

    def run(at: int, counter: int) -> int:
        stack: list[int] = []
        wrap = lambda v: (v + 2**31) % 2**32 - 2**31  # noqa: E731
        while True:
            c = code[at]
            at += 1
            kind, value = c & 15, c >> 4
            if kind == 0:
                return stack[-1] if stack else -1
            if kind == 1:
                stack.append(value)
            elif kind in (2, 3, 4, 5):
                b, a = stack.pop(), stack.pop()
                if kind == 5:
                    quotient = abs(a) // abs(b) if b else 7
                    stack.append(wrap(quotient if b == 0 or (a < 0) == (b < 0) else -quotient))
                else:
                    stack.append(wrap(a + b if kind == 2 else a - b if kind == 3 else a * b))
            elif kind == 6:
                stack.append(stack[-1])
            elif kind == 7:
                stack[-1], stack[-2] = stack[-2], stack[-1]
            elif kind == 8:
                at += value if counter > 0 else 0
                counter -= 1
            elif kind == 9:
                stack.append(counter)
            elif kind == 10:
                stack[-1] = max(stack[-1], value)
            else:
                stack[-1] = wrap(stack[-1] ^ c)

    want = [run(at, int(n)) for at, n in zip(begin, rounds, strict=True)]
    arguments = [np.array(code, np.int32), np.array(begin, np.int32), rounds, np.zeros(64, np.int32)]
    return "interpret", arguments, 1, 64, lambda a: a[3].tolist() == want


def dispatch(scale: int) -> Program:
    """Functions that lanes choose for themselves."""
    x = RNG.integers(-(2**31), 2**31, (64, 8 * scale)).astype(np.int32)

    def wrap(v: int) -> int:
        return (v + 2**31) % 2**32 - 2**31

    def step(v: int, a: int) -> int:
        kind = v & 3
        if kind == 0:
            return wrap(wrap(v * 31) ^ a)
        if kind == 1:
            return int(np.gcd(abs(v) & 1023, abs(a) & 1023))
        if kind == 2:
            return ((v ^ a) & 0xFFFFFFFF).bit_count()
        n, w = 0, (abs(v) & 255) + 1
        while w != 1:
            n, w = n + 1, 3 * w + 1 if w & 1 else w // 2
        return n

    want = []
    for i, row in enumerate(x.tolist()):
        a = i
        for v in row:
            a = wrap(wrap(a * 5) + step(v, a))
        want.append(a)
    return "dispatch", [x, np.int32(x.shape[1]), np.zeros(64, np.int32)], 1, 64, lambda a: a[2].tolist() == want
