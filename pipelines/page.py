"""A 3-D view of a cloud as one page that opens without a network: points, program and all in one file."""

from __future__ import annotations

import base64
import html
import json
import math
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, UsageError
from ..files import prepare, write_atomic
from ..samplers.voxel import voxel as voxel_grid
from .shown import Colour, Shown, shown, thin, viridis

MOST = 200_000
"""Points on a page; of more, one for each voxel of a grid that is as coarse as it must be."""

_PAGE = "page.html"
_TRIES = 12


def check_page(out: Path) -> None:
    """Raise UsageError for a file that is not named as a page or cannot be written."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise UsageError(out, "is not named .html", "a view is written as a page")
    prepare(out)


def page(path: Path, out: Path, *, voxel: float | None = None, color: str | None = None) -> str:
    """Write a view of the file or dataset at ``path`` to ``out``; tell what is in it.

    All points up to 200,000, of more those nearest the centres of voxels; with ``voxel`` those of that edge.
    ``color``: what it is coloured by at first. The page asks nothing of any network, and forbids itself to.

    Raises DataError for what cannot be read or has no point, and UsageError for a colour, size or file that
    will not do.
    """
    check_page(out)
    whole = shown(path)
    if not len(whole.xyz):
        raise DataError(path, "has no row with a finite position to show", "name another")
    by = whole.colour(color)
    cloud, how = thin(whole, voxel) if voxel is not None else (whole, "")
    if len(cloud.xyz) > MOST:
        cloud, how = few(cloud, MOST)
    about = f"{len(whole.xyz):,} points"
    if how:
        about = f"{len(cloud.xyz):,} of {about} ({how})"
    values = {
        "title": html.escape(whole.title),
        "about": html.escape(f"{about}; {whole.note}" if whole.note else about),
        # No "<" may stand in a script: it could end it.
        "data": json.dumps(_data(cloud, by)).replace("<", "\\u003c"),
    }
    text = files(__package__).joinpath(_PAGE).read_text("utf-8")
    write_atomic(out, re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], text))
    return f"{out}: {about}, coloured by {by}"


def few(cloud: Shown, most: int) -> tuple[Shown, str]:
    """At most ``most`` points, those nearest the centres of voxels, and their size in words."""
    # Points lie on surfaces: half the voxels are those of an edge longer by a root of two.
    size = (float(np.ptp(cloud.xyz, axis=0).max()) or 1.0) / math.sqrt(most) / 2
    best, small, large = np.empty(0, np.int64), 0.0, math.inf
    tries = 0
    while tries < _TRIES or not len(best):
        tries += 1
        size = float(f"{size:.3g}")
        rows = voxel_grid(cloud.xyz, size, pick="nearest", origin=cloud.origin).index
        if len(rows) > most:
            small = size
            size *= max(math.sqrt(len(rows) / most), 1.05)
        else:
            best, large = rows, size
            if len(rows) > 0.8 * most:
                break
        if small and large < math.inf:
            size = math.sqrt(small * large)
        elif large < math.inf:
            size = large / 2
    return cloud.take(best), f"voxels of {large:g}{f' {cloud.unit}' if cloud.unit else ''}"


def _data(cloud: Shown, by: Colour) -> dict[str, Any]:
    """What the page's program reads: positions about their middle, and a list of ways to colour them."""
    low, high = cloud.xyz.min(axis=0).astype(np.float64), cloud.xyz.max(axis=0).astype(np.float64)
    middle, radius = (low + high) / 2, max(float(np.linalg.norm(high - low)) / 2, 1e-6)
    heights = cloud.heights()
    ways: list[dict[str, Any]] = []
    for name in sorted(cloud.choices, key=lambda name: name != by):
        way: dict[str, Any] = {"name": name, "values": _text(cloud.painted(name, heights))}
        if name == "height":
            way["ramp"] = [_css(colour) for colour in viridis(np.linspace(0, 1, 10)).tolist()]
            unit = cloud.height_unit or "units"
            way["ends"] = [f"z {end:,.2f} {unit}" for end in reversed(heights)]
        if name == "class" and cloud.label is not None and cloud.names and cloud.colours:
            codes, counts = np.unique(cloud.label, return_counts=True)
            way["classes"] = [
                (f"{cloud.names[code]}  {count / len(cloud.label):.1%}", _css(cloud.colours[code]))
                for count, code in sorted(zip(counts.tolist(), codes.tolist(), strict=True), reverse=True)
            ]
        ways.append(way)
    dot = min(max(900 / math.sqrt(len(cloud.xyz)), 2), 6)
    return {
        "points": len(cloud.xyz),
        "radius": radius,
        "unit": cloud.unit or "units",
        "size": round(2 * dot) / 2,
        "positions": _text((cloud.xyz - middle).astype("<f4")),
        "colours": ways,
    }


def _text(values: NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()


def _css(colour: Any) -> str:
    return "rgb({},{},{})".format(*colour)
