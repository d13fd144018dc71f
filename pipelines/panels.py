"""A picture of several clouds, a panel each: from the top and from the side, as one PNG file."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from ..files import atomic
from .picture import DPI, HEAD, KEY, VIEWS, View, check_picture, dots, key
from .shown import Colour, Shown, classes_shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 64
"""Panels of a picture."""

# Inches: a panel's width, what is written above it, what is around all, and the least height of a side view.
_WIDTH, _WORDS, _EDGE, _GAP, _LEAST = 1.75, 0.48, 0.3, 0.12, 0.35
_DOT = 4  # pixels a point is wide
_LETTERS = 30  # of a name, which fit above a panel
_FAR = 2.0  # times as long as without 2 % of the rows at either end: an axis is then shown without these


@dataclass(frozen=True)
class Panel:
    """A cloud with a ``title`` and a ``name``: ``xyz`` float32 (n, 3), ``label`` int32 (n,) if it has one."""

    title: str
    name: str
    xyz: NDArray[np.float32]
    label: NDArray[np.int32] | None


def panels(title: str, clouds: Sequence[Panel], classes: Sequence[str], out: Path) -> str:
    """Draw the first 64 clouds to ``out``, a PNG, each as large as its panel; tell what is on it.

    Coloured by class where clouds have labels (positions in ``classes``, -1 for none), else by height. Each
    view has a scale of its own; how far a cloud reaches is written above it, and how many rows are not
    finite. Points far from all others lie on the edge. Raises DataError where no cloud has a point,
    UsageError for a file that will not do.
    """
    check_picture(out)
    drawn = clouds[:MOST]
    shown = [_shown(panel, classes) for panel in drawn]
    if not any(len(cloud.xyz) for cloud in shown):
        raise DataError(title, "no sample has a point to draw", "see the table")
    whole = _together(title, shown)
    by = whole.colour(None)
    with warnings.catch_warnings(), atomic(out) as temporary:
        warnings.filterwarnings("ignore", "Glyph")  # of a name in a script that the font has not
        _figure(whole, drawn, shown, by).savefig(temporary, format="png", dpi=DPI)
    some = f"{len(drawn)} of {len(clouds)}" if len(drawn) < len(clouds) else f"{len(drawn)}"
    return f"{out}: {some} samples, coloured by {by}"


def _shown(panel: Panel, classes: Sequence[str]) -> Shown:
    """The finite points of a cloud."""
    names, colours = classes_shown(classes)
    rows = np.flatnonzero(np.isfinite(panel.xyz).all(axis=1))
    label = None if panel.label is None else panel.label[rows]
    return Shown(panel.title, panel.xyz[rows], np.zeros(3), label=label, names=names, colours=colours)


def _together(title: str, clouds: Sequence[Shown]) -> Shown:
    """All points of the clouds, for what they have in common: the meaning of the colours."""
    labels = [cloud.label for cloud in clouds if cloud.label is not None]
    label = np.concatenate(labels) if len(labels) == len(clouds) else None
    return replace(clouds[0], title=title, xyz=np.concatenate([c.xyz for c in clouds]), label=label)


def _figure(whole: Shown, drawn: Sequence[Panel], shown: Sequence[Shown], by: Colour) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(len(drawn), max(math.ceil(math.sqrt(2 * len(drawn))), 4), 8)
    frames = [_frame(cloud.xyz) for cloud in shown]
    tallest = max(float(half[2] / half[:2].max()) for _, half in frames)
    heights = [_WIDTH, _WIDTH * min(max(tallest, _LEAST / _WIDTH), 1.0)]
    step = _WORDS + sum(heights) + 2 * _GAP
    across = max(columns * (_WIDTH + _GAP), 4.0)
    size = (2 * _EDGE + across + KEY, HEAD + max(-(-len(drawn) // columns) * step, 2.0) + _EDGE)
    figure = Figure(figsize=size, facecolor="white")
    FigureCanvasAgg(figure)
    limits = whole.heights()
    for i, (panel, cloud, frame) in enumerate(zip(drawn, shown, frames, strict=True)):
        left, top = _EDGE + i % columns * (_WIDTH + _GAP), size[1] - HEAD - i // columns * step
        words = _words(panel, cloud)
        place = left / size[0], top / size[1]
        figure.text(*place, words, va="top", fontsize=6.5, linespacing=1.25, parse_math=False)
        bottom = top - _WORDS
        for view, height in zip(VIEWS, heights, strict=True):
            bottom -= height
            axes = figure.add_axes(
                (left / size[0], bottom / size[1], _WIDTH / size[0], height / size[1]), xticks=[], yticks=[]
            )
            for spine in axes.spines.values():
                spine.set_color("0.8")
            if len(cloud.xyz):
                image = _view(cloud, frame, view, height, cloud.painted(by, limits))
                axes.imshow(image, origin="lower", interpolation="nearest", aspect="auto")
            bottom -= _GAP
    for inches, text, style in (
        (0.12, whole.title, {"fontsize": 13, "weight": "bold"}),
        (0.45, "from the top and, below, from the side along y; each view at its own scale", {"fontsize": 8}),
    ):
        figure.text(_EDGE / size[0], 1 - inches / size[1], text, va="top", parse_math=False, **style)
    key(figure, whole, by, limits, size, [min(size[1] - HEAD - _EDGE, 3.0)])
    return figure


def _frame(xyz: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The middle of what is shown of a cloud, and how far that reaches from there: float64 (3,) each."""
    if not len(xyz):
        return np.zeros(3), np.array([1.0, 1.0, 0.0])
    low, near_low, near_high, high = np.quantile(xyz.astype(np.float64), (0, 0.02, 0.98, 1), axis=0)
    far = high - low > _FAR * (near_high - near_low)
    low, high = np.where(far, near_low, low), np.where(far, near_high, high)
    half = (high - low) / 2
    return (low + high) / 2, np.maximum(half, max(float(half.max()), 1e-6) * 1e-3)


def _view(
    cloud: Shown,
    frame: tuple[NDArray[np.float64], NDArray[np.float64]],
    view: View,
    height: float,
    paint: NDArray[np.uint8],
) -> NDArray[np.uint8]:
    """An image of a cloud; what is outside its frame lies on the edge."""
    axes = [view.across, view.up]
    middle, half = frame[0][axes], frame[1][axes]
    inches = np.array([_WIDTH, height])
    half = inches * (half / inches).max() * 1.06
    low, high = middle - half, middle + half
    inside = cloud.xyz.copy()
    inside[:, axes] = np.clip(inside[:, axes], low, high)
    return dots(inside, paint, _DOT, view, low, high, [round(_WIDTH * DPI), round(height * DPI)])


def _words(panel: Panel, cloud: Shown) -> str:
    """What is written above a panel."""
    name = panel.name if len(panel.name) <= _LETTERS else f"…{panel.name[1 - _LETTERS :]}"
    size = " x ".join(f"{length:.3g}" for length in np.ptp(cloud.xyz, axis=0)) if len(cloud.xyz) else ""
    lost = len(panel.xyz) - len(cloud.xyz)
    told = [size or "no points", *([f"{lost:,} rows not finite"] if lost else [])]
    return "\n".join([panel.title, name, ", ".join(told)])
