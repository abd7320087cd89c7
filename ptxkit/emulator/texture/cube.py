"""Cube maps: from a direction to a face and the coordinates on it. CUDA C++ programming guide, "Cubemap Textures".

Of components with the same magnitude z comes first, then y (measured on an H200).
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Indices: TypeAlias = NDArray[np.int64]
Coordinates: TypeAlias = NDArray[np.float32]
Positions: TypeAlias = NDArray[np.float64]

_EDGE_AXES = (
    # of each face: the directions of +s, +t and outward, as (axis, sign)
    ((2, -1), (1, -1), (0, 1)),
    ((2, 1), (1, -1), (0, -1)),
    ((0, 1), (2, 1), (1, 1)),
    ((0, 1), (2, -1), (1, -1)),
    ((0, 1), (1, -1), (2, 1)),
    ((0, -1), (1, -1), (2, -1)),
)


def project(x: Coordinates, y: Coordinates, z: Coordinates) -> tuple[Indices, Positions, Positions]:
    """Faces, and normalised coordinates on them, of directions."""
    a, b, c = (np.where(np.isnan(v), np.float32(0), v).astype(np.float64) for v in (x, y, z))
    far_x, far_y, far_z = np.abs(a), np.abs(b), np.abs(c)
    along_z = (far_z >= far_x) & (far_z >= far_y)
    along_y = ~along_z & (far_y >= far_x)
    face = np.where(along_z, np.where(c < 0, 5, 4), np.where(along_y, np.where(b < 0, 3, 2), np.where(a < 0, 1, 0)))
    far = np.where(along_z, far_z, np.where(along_y, far_y, far_x))
    s = np.choose(face, [-c, c, a, a, a, -a])
    t = np.choose(face, [-b, -b, c, -c, -b, -b])
    far = np.where(far == 0, 1.0, far)
    with np.errstate(invalid="ignore"):
        u, w = ((np.nan_to_num(v / far) + 1) / 2 for v in (s, t))
    return face, u, w


def across(face: Indices, x: Indices, y: Indices, size: int) -> tuple[Indices, Indices, Indices, NDArray[np.bool_]]:
    """Texels that lie one step outside of a face, as texels of the face beyond the edge; which of them are beyond a corner."""
    center = np.stack([2 * x + 1 - size, 2 * y + 1 - size], -1)  # from -size to size, texel centers are odd
    outside = (np.abs(center) > size).sum(-1)
    vectors = np.zeros((*face.shape, 3), np.int64)
    for number, (s, t, out) in enumerate(_EDGE_AXES):
        here = face == number
        vectors[here, s[0]] = s[1] * center[here, 0]
        vectors[here, t[0]] = t[1] * center[here, 1]
        vectors[here, out[0]] = out[1] * size
    beyond = outside == 1
    # a center just beyond an edge is the last one of the other face: the step outward becomes a step inward
    far = np.abs(vectors) > size
    length = np.abs(vectors)
    at_face = (length == size) & ~far
    folded = np.where(far, np.sign(vectors) * size, np.where(at_face, np.sign(vectors) * (size - 1), vectors))
    vectors = np.where(beyond[..., None], folded, vectors)
    new_face, new_x, new_y = face.copy(), x.copy(), y.copy()
    for number, (s, t, out) in enumerate(_EDGE_AXES):
        here = beyond & (vectors[..., out[0]] * out[1] == size)
        new_face[here] = number
        new_x[here] = (vectors[here, s[0]] * s[1] + size - 1) // 2
        new_y[here] = (vectors[here, t[0]] * t[1] + size - 1) // 2
    return new_face, np.clip(new_x, 0, size - 1), np.clip(new_y, 0, size - 1), outside == 2


def without_corners(weights: Indices, corner: NDArray[np.bool_]) -> Indices:
    """The weights of four texels, (4, n), where a texel beyond a corner of the cube, which does not exist, has none.

    Its weight goes to the other three: a third, rounded to the nearest, to each of the two beside it, and the rest to the one
    across.
    """
    out = weights.copy()
    for k in range(4):
        here = corner[k]
        third = (2 * weights[k, here] + 3) // 6
        out[k ^ 1, here] += third
        out[k ^ 2, here] += third
        out[k ^ 3, here] += weights[k, here] - 2 * third
        out[k, here] = 0
    return out
