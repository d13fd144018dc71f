"""A picture of a cloud before and after it is thinned: from the top and from the side, as one PNG file."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, UsageError
from ..files import atomic, prepare
from .shown import Colour, Shown, shown, thin, viridis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 150

# Lengths in inches: the most that a view takes, the least, and what is around it.
_WIDTH, _TOP, _SIDE, _LEAST_WIDTH, _LEAST_HEIGHT = 5.6, 6.0, 4.5, 2.6, 0.8
_LEFT, _BETWEEN, _GAP, _FOOT = 0.85, 0.95, 1.0, 0.75
HEAD, KEY = 0.95, 2.3  # above the views, and at their right where `key` is
_EDGE = 0.3

_SMALLEST_DOT, _LARGEST_DOT, _SHARE = (
    2,
    6,
    0.5,
)  # pixels a point is wide, and the share of a view that points may cover
_MOST_CLASSES, _LONGEST = 30, 70


@dataclass(frozen=True)
class View:
    """What of the cloud lies along a picture's axes, and what towards who looks at it."""

    title: str
    across: int
    up: int
    towards: int
    sign: int


VIEWS = (View("from the top", 0, 1, 2, 1), View("from the side, along y", 0, 2, 1, -1))


def check_picture(out: Path) -> None:
    """Raise UsageError for a file that is no PNG's or cannot be written, before a cloud is read for it."""
    if out.suffix.lower() != ".png":
        raise UsageError(out, "is not named .png", "a picture is written as PNG")
    prepare(out)


def picture(path: Path, out: Path, *, voxel: float | None = None, color: str | None = None) -> str:
    """Draw the file or dataset at ``path`` to ``out``, a PNG; tell what is on it.

    Left as it is stored, right thinned by voxels of edge ``voxel`` or, without, to 5,000 points by farthest
    point. ``color``: by default the class, else rgb, else the height. x to the right, y and z upwards, the
    same scale everywhere; a point is a dot, those in front hide those behind. The side is seen from low y.

    Raises DataError for what cannot be read or has no point, and UsageError for a colour or file that will
    not do.
    """
    check_picture(out)
    before = shown(path)
    if not len(before.xyz):
        raise DataError(path, "has no row with a finite position to draw", "name another")
    by = before.colour(color)
    after, how = thin(before, voxel)
    with warnings.catch_warnings(), atomic(out) as temporary:
        warnings.filterwarnings("ignore", "Glyph")  # of a name in a script that the font has not
        _figure(before, after, how, by).savefig(temporary, format="png", dpi=DPI)
    return f"{out}: {len(before.xyz):,} points and {len(after.xyz):,} ({how}), coloured by {by}"


def _figure(before: Shown, after: Shown, how: str, by: Colour) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    low, high = before.xyz.min(axis=0).astype(np.float64), before.xyz.max(axis=0).astype(np.float64)
    extent = np.maximum(high - low, max(float((high - low).max()), 1e-9) * 1e-6)
    scale = min(_WIDTH / extent[0], _TOP / extent[1], _SIDE / extent[2])  # inches a unit
    width = max(scale * extent[0] * 1.04, _LEAST_WIDTH)
    heights = [max(scale * extent[view.up] * 1.04, _LEAST_HEIGHT) for view in VIEWS]
    right = KEY if by != "rgb" else _EDGE
    size = (_LEFT + 2 * width + _BETWEEN + right, HEAD + sum(heights) + _GAP + _FOOT)
    figure = Figure(figsize=size, facecolor="white")
    FigureCanvasAgg(figure)
    limits = before.heights()
    middle = (low + high) / 2
    bases = [_base(float(low[i] + before.origin[i]), float(high[i] - low[i])) for i in range(3)]
    for column, (cloud, title) in enumerate(
        ((before, f"before: {len(before.xyz):,} points"), (after, f"after: {len(after.xyz):,} points, {how}"))
    ):
        paint = cloud.painted(by, limits)
        area = max(heights) * width * DPI**2
        dot = min(max(math.isqrt(int(_SHARE * area / len(cloud.xyz))), _SMALLEST_DOT), _LARGEST_DOT)
        bottom = _FOOT + heights[1] + _GAP
        for view, height in zip(VIEWS, heights, strict=True):
            place = (_LEFT + column * (width + _BETWEEN), bottom, width, height)
            axes = figure.add_axes([place[i] / size[i % 2] for i in range(4)])  # type: ignore[call-overload]
            half = np.array([width, height]) / scale / 2
            centre = middle[[view.across, view.up]]
            _draw(axes, cloud, paint, dot, view, bases, centre - half, centre + half, (width, height))
            axes.set_title(f"{title}\n{view.title}" if view is VIEWS[0] else view.title, fontsize=10)
            bottom = _FOOT
    title = before.title if len(before.title) <= _LONGEST else f"{before.title[: _LONGEST - 1]}…"
    figure.text(
        _LEFT / size[0], 1 - 0.12 / size[1], title, va="top", fontsize=13, weight="bold", parse_math=False
    )
    if before.note:
        figure.text(_LEFT / size[0], 0.1 / size[1], before.note, va="bottom", fontsize=8, color="0.35")
    key(figure, before, by, limits, size, heights)
    return figure


def _draw(
    axes: Axes,
    cloud: Shown,
    paint: NDArray[np.uint8],
    dot: int,
    view: View,
    bases: list[float],
    low: NDArray[np.float64],
    high: NDArray[np.float64],
    inches: tuple[float, float],
) -> None:
    """One view: an image with a dot a point, and its axes with a scale that tells global positions."""
    pixels = [max(round(length * DPI), 1) for length in inches]
    image = dots(cloud.xyz, paint, dot, view, low, high, pixels)
    names = [view.across, view.up]
    first, last = (
        [float(end[i] + cloud.origin[axis] - bases[axis]) for i, axis in enumerate(names)]
        for end in (low, high)
    )
    axes.imshow(
        image,
        extent=(first[0], last[0], first[1], last[1]),
        origin="lower",
        interpolation="nearest",
        aspect="equal",
    )
    labels = []
    for axis in names:
        base = bases[axis]
        unit = (cloud.height_unit if axis == 2 else cloud.unit) or "units"
        labels.append(
            f"{'xyz'[axis]}{f' − {base:,.0f}' if base > 0 else f' + {-base:,.0f}' if base else ''} ({unit})"
        )
    axes.set_xlabel(labels[0], fontsize=9)
    axes.set_ylabel(labels[1], fontsize=9)
    axes.tick_params(labelsize=8)
    if inches[1] < 1.2:
        axes.yaxis.get_major_locator().set_params(nbins=3)  # type: ignore[call-arg]


def dots(
    xyz: NDArray[np.float32],
    paint: NDArray[np.uint8],
    dot: int,
    view: View,
    low: NDArray[np.float64],
    high: NDArray[np.float64],
    pixels: list[int],
) -> NDArray[np.uint8]:
    """Points as squares of ``dot`` pixels: an image, uint8 (rows, columns, 3), the lowest row first.

    ``pixels``: its columns and rows. ``low`` and ``high``: what its edges stand for, across and up. Of dots
    that meet, the one in front is seen.
    """
    columns, rows = pixels
    order = np.argsort(view.sign * xyz[:, view.towards], kind="stable")
    step = (high - low) / (columns, rows)
    column = ((xyz[order, view.across] - low[0]) / step[0]).astype(np.int64)
    row = ((xyz[order, view.up] - low[1]) / step[1]).astype(np.int64)
    front = np.full(columns * rows, -1, np.int64)
    number = np.arange(len(order))
    for down in range(dot):
        for right in range(dot):
            at_row = np.clip(row + down - dot // 2, 0, rows - 1)
            at_column = np.clip(column + right - dot // 2, 0, columns - 1)
            layer = np.full(columns * rows, -1, np.int64)
            layer[at_row * columns + at_column] = number  # of equal places the last, which is in front
            np.maximum(front, layer, out=front)
    image = np.full((columns * rows, 3), 255, np.uint8)
    hit = front >= 0
    image[hit] = paint[order[front[hit]]]
    return image.reshape(rows, columns, 3)


def _base(low: float, extent: float) -> float:
    """A round number to take off coordinates that are large for their extent, else 0."""
    if abs(low) < 10 * extent or abs(low) < 1000:
        return 0.0
    power = 10.0 ** math.floor(math.log10(max(extent, 1e-3)))
    return math.floor(low / power) * power


def key(
    figure: Figure,
    cloud: Shown,
    by: Colour,
    limits: tuple[float, float],
    size: tuple[float, float],
    heights: list[float],
) -> None:
    """What the colours mean, at the right: a list of classes or a bar of heights.

    ``size`` of the figure in inches; a bar is as long as the first of ``heights``.
    """
    left = (size[0] - KEY + 0.25) / size[0]
    top = 1 - HEAD / size[1]
    if by == "class" and cloud.label is not None and cloud.names and cloud.colours:
        from matplotlib.patches import Patch

        codes, counts = np.unique(cloud.label, return_counts=True)
        most = np.argsort(-counts, kind="stable")[:_MOST_CLASSES]
        entries: list[Any] = [
            Patch(
                facecolor="#{:02x}{:02x}{:02x}".format(*cloud.colours[code]),
                label=f"{cloud.names[code][:20]}  {count / len(cloud.label):.1%}",
            )
            for code, count in zip(codes[most].tolist(), counts[most].tolist(), strict=True)
        ]
        legend = figure.legend(
            handles=entries,
            loc="upper left",
            bbox_to_anchor=(left, top),
            borderaxespad=0,
            frameon=False,
            fontsize=8,
            title="classes" if len(codes) <= _MOST_CLASSES else f"{_MOST_CLASSES} of {len(codes)} classes",
            alignment="left",
        )
        for text in legend.get_texts():
            text.set_parse_math(False)
    elif by == "height":
        height = max(min(heights[0], 3.0), 1.5)
        place = (left, top - height / size[1], 0.18 / size[0], height / size[1])
        bar = figure.add_axes(place)
        ramp = viridis(np.linspace(0, 1, 256)).reshape(256, 1, 3)
        bar.imshow(ramp, extent=(0, 1, *limits), origin="lower", aspect="auto")
        bar.set_xticks([])
        bar.yaxis.tick_right()
        bar.tick_params(labelsize=8)
        bar.ticklabel_format(axis="y", useOffset=False, style="plain")
        bar.set_title(f"z ({cloud.height_unit or 'units'})", fontsize=9, loc="left")
