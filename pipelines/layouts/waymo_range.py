"""Range images of the Waymo Open Dataset to points (``convert_range_image_to_cartesian`` of its own code).

A row of the image is a beam, the upmost first. A column is a direction, from behind over the left (+y), ahead
and the right to behind again: directions of the car, from which the laser's own yaw is taken off.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .poses import Floats, applied, inverse, product


def inclinations(least: float, most: float, height: int) -> Floats:
    """Angles of evenly spread beams above the horizon, upwards: the middles of equal parts."""
    return (np.arange(height) + 0.5) / height * (most - least) + least


def to_points(
    distance: Floats,
    beams: Floats,
    mounted: Floats,
    pixels: NDArray[np.floating] | None = None,
    car: Floats | None = None,
) -> tuple[Floats, NDArray[np.bool_]]:
    """The points (n, 3) of a range image in the car's coordinates, and which pixels (h, w) have one.

    ``distance``: (h, w), not above 0 where there is no point. ``beams``: (h,) inclinations, upwards, radians.
    ``mounted``: (4, 4), from the laser to the car. ``pixels``: (h, w, 6) roll, pitch, yaw, x, y, z of the car
    in the world when it saw each pixel, and ``car``: (4, 4), the same for the frame; where they are given,
    the points are where they were seen, in the coordinates of the car at the frame's time.
    """
    there = distance > 0
    row, column = np.nonzero(there)
    width = distance.shape[1]
    yaw = np.arctan2(mounted[1, 0], mounted[0, 0])
    azimuth = (2 * (width - column - 0.5) / width - 1) * np.pi - yaw
    inclination = beams[::-1][row]
    far = distance[there].astype(np.float64)
    flat = far * np.cos(inclination)
    xyz = np.stack([flat * np.cos(azimuth), flat * np.sin(azimuth), far * np.sin(inclination)], axis=1)
    with np.errstate(
        invalid="ignore", over="ignore"
    ):  # of what is not finite, which the build counts and drops
        xyz = applied(mounted, xyz)
        if pixels is not None and car is not None:
            seen = pixels[there].astype(np.float64)
            xyz = product(_rotations(seen[:, :3]), xyz[:, :, None])[:, :, 0] + seen[:, 3:]
            xyz = applied(inverse(car), xyz)
    return xyz, there


def _rotations(angles: Floats) -> Floats:
    """Matrices (n, 3, 3) that turn by roll about x, then by pitch about y, then by yaw about z."""
    (cx, cy, cz), (sx, sy, sz) = np.cos(angles).T, np.sin(angles).T
    rows = [
        [cz * cy, cz * sy * sx - sz * cx, cz * sy * cx + sz * sx],
        [sz * cy, sz * sy * sx + cz * cx, sz * sy * cx - cz * sx],
        [-sy, cy * sx, cy * cx],
    ]
    return np.array(rows).transpose(2, 0, 1)
