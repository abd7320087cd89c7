"""Where the elements of views lie in memory, and how many elements several views have together.

An axis is a list of digits, the outermost first: a digit ``(extent, stride)`` counts to ``extent`` in steps of ``stride``
elements of the memory. ``permute`` exchanges axes, ``reshape`` divides and joins digits, ``chunk`` shortens one and moves the
offset, and ``expand`` repeats elements, which is a digit of stride 0. This is the mixed radix form of strided arrays, in which
an axis may be several strides, as after (heads, tokens, d) -> (tokens, heads, d) -> (tokens, heads * d).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

Digit = tuple[int, int]  # extent, stride
Box = tuple[tuple[int, int], ...]  # for each dimension the first element, and the one after the last


@dataclass(frozen=True)
class View:
    """The elements of a tensor in the memory of another one.

    Attributes:
        memory: the tensor whose memory it is.
        offset: of the first element, in elements.
        axes: for each axis its digits, without those of extent 1; neighbours that can be one digit are one.
    """

    memory: str
    offset: int
    axes: tuple[tuple[Digit, ...], ...]

    @classmethod
    def whole(cls, memory: str, shape: Sequence[int]) -> View:
        """A tensor in its own memory."""
        return cls(memory, 0, row_major(shape))

    @property
    def order(self) -> tuple[Digit, ...]:
        """The digits of all axes: the order of the elements in memory without their division into axes."""
        return joined([digit for axis in self.axes for digit in axis])

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return math.prod(extent for extent, _ in self.order)

    @property
    def repeats(self) -> bool:
        """Whether elements of the memory are repeated along an axis."""
        return any(stride == 0 for axis in self.axes for _, stride in axis)

    @property
    def own_shape(self) -> tuple[int, ...]:
        """The extents of the axes without repetitions: 1 where an axis only repeats."""
        return tuple(math.prod(extent for extent, stride in axis if stride) for axis in self.axes)

    @property
    def contiguous(self) -> bool:
        """Whether the elements follow each other in memory, without gaps."""
        return self.order in ((), ((self.elements, 1),))

    def permuted(self, axes: Sequence[int]) -> View:
        """With other axes."""
        return View(self.memory, self.offset, tuple(self.axes[axis] for axis in axes))

    def expanded(self, shape: Sequence[int]) -> View:
        """Broadcast to a shape by numpy's rules."""
        axes = ((),) * (len(shape) - len(self.axes)) + self.axes
        return View(
            self.memory,
            self.offset,
            tuple(axis or (((extent, 0),) if extent > 1 else ()) for axis, extent in zip(axes, shape, strict=True)),
        )

    def strided(self, shape: Sequence[int], strides: Sequence[int], offset: int) -> View | None:
        """Elements at any strides and offset, which count in the row-major order of this view; None if that is no memory."""
        if not self.contiguous:
            return None
        axes = tuple(((extent, stride),) if extent > 1 else () for extent, stride in zip(shape, strides, strict=True))
        return View(self.memory, self.offset + offset, axes)

    def reshaped(self, shape: Sequence[int]) -> View | None:
        """With another shape of as many elements; None if an axis would begin or end within a stride."""
        digits, axes = list(self.order), list[tuple[Digit, ...]]()
        for extent in reversed(shape):
            axis, needed = list[Digit](), extent
            while needed > 1:
                count, stride = digits.pop()
                taken = math.gcd(count, needed)
                if taken != min(count, needed):
                    return None
                axis.insert(0, (taken, stride))
                if count > taken:
                    digits.append((count // taken, stride * taken))
                needed //= taken
            axes.insert(0, joined(axis))
        return View(self.memory, self.offset, tuple(axes))

    def part(self, axis: int, start: int, size: int) -> View | None:
        """Of an axis ``size`` elements from ``start``; None if they are no regular part of the memory."""
        found = _shortened(self.axes[axis], start, size)
        if found is None:
            return None
        offset, digits = found
        return View(self.memory, self.offset + offset, (*self.axes[:axis], digits, *self.axes[axis + 1 :]))


def row_major(shape: Sequence[int]) -> tuple[tuple[Digit, ...], ...]:
    """The digits of the axes of a row-major array."""
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    return tuple(((n, stride),) if n > 1 else () for n, stride in zip(shape, strides, strict=True))


def joined(digits: Sequence[Digit]) -> tuple[Digit, ...]:
    """The same digits with neighbours joined where the outer one continues the inner one."""
    found: list[Digit] = []
    for extent, stride in digits:
        if extent == 1:
            continue
        if found and found[-1][1] == extent * stride:
            found[-1] = (found[-1][0] * extent, stride)
        else:
            found.append((extent, stride))
    return tuple(found)


def _shortened(digits: tuple[Digit, ...], start: int, size: int) -> tuple[int, tuple[Digit, ...]] | None:
    """Offset and digits of ``size`` elements of an axis from ``start``."""
    if not digits:
        return 0, ()
    (_, stride), inner = digits[0], digits[1:]
    below = math.prod(n for n, _ in inner)
    if start % below == 0 and size % below == 0:
        return start // below * stride, joined([(size // below, stride), *inner])
    if start // below != (start + size - 1) // below:
        return None
    found = _shortened(inner, start % below, size)
    return None if found is None else (found[0] + start // below * stride, found[1])


def union(views: Collection[View], total: int) -> int:
    """The number of different elements of several views of a memory of ``total`` elements.

    Exact where the strides divide each other, as those of parts of one tensor do; else the sum, and at most ``total``.
    """
    regions = {(view.offset, tuple(sorted((d for d in view.order if d[1]), key=lambda d: -d[1]))) for view in views}
    sizes = [_different(digits) for _, digits in regions]
    if len(regions) < 2 or max(sizes) >= total:
        return min(total, max(sizes, default=0))
    strides = sorted({stride for _, digits in regions for _, stride in digits} | {1})
    boxes = [_box(offset, digits, strides) for offset, digits in regions]
    if any(b % a for a, b in itertools.pairwise(strides)) or None in boxes:
        return min(total, sum(sizes))
    return _volume(frozenset(box for box in boxes if box is not None))


def _different(digits: Sequence[Digit]) -> int:
    """The number of different elements that digits select, the largest stride first; where overlapping axes are not simple,
    an upper limit."""
    count, last, step = 1, 0, 0  # elements so far, the place of the last one, their distance where all have the same; else 0
    for extent, stride in reversed(digits):
        if stride > last:
            step = stride if count == 1 or step * count == stride else 0
            count *= extent
        elif step and stride % step == 0:
            count += (extent - 1) * stride // step
        else:
            count, step = min(count * extent, last + (extent - 1) * stride + 1), 0
        last += (extent - 1) * stride
    return count


def _box(offset: int, digits: Sequence[Digit], strides: Sequence[int]) -> Box | None:
    """A region as an interval of each coordinate, where coordinate i counts in steps of ``strides[i]``, the last one without
    end; None if it is no such box."""
    extents = {stride: extent for extent, stride in digits}
    if len(extents) < len(digits):
        return None  # axes that overlap
    box, carried = list[tuple[int, int]](), 1
    for i, stride in enumerate(strides):
        extent = extents.get(stride, 1)
        if carried > 1:
            if extent > 1:
                return None
            extent = carried
        last = i + 1 == len(strides)
        most = 0 if last else strides[i + 1] // stride
        start = offset // stride if last else offset // stride % most
        carried = 1
        if not last and start + extent > most:
            if start or extent % most:
                return None
            carried, extent = extent // most, most
        box.append((start, start + extent))
    return tuple(box)


def _volume(boxes: frozenset[Box]) -> int:
    """The number of points in at least one box."""
    if not boxes or not next(iter(boxes)):
        return len(boxes)
    cuts = sorted({cut for box in boxes for cut in box[0]})
    return sum(
        (high - low) * _volume(frozenset(box[1:] for box in boxes if box[0][0] <= low and high <= box[0][1]))
        for low, high in itertools.pairwise(cuts)
    )
