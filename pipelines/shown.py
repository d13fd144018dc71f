"""What is shown of a raw file or a dataset: points, their colours by height, class and rgb, and units."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, UsageError
from ..samplers.adaptive import adaptive
from ..samplers.fields import kind_of
from ..samplers.voxel import voxel
from . import las_unit, shards
from .cut import LARGEST
from .dataset import Dataset
from .readers import Source, opened

Colour = Literal["height", "class", "rgb"]

THINNED = 5_000
"""Points that are left where no voxel size says how many."""

_MOST = 2_000_000
"""Points of a dataset that are read; of a larger one some samples, evenly chosen."""

_FAR = 10.0
"""A cloud that is so many times as long as all but 0.2 % of its points is cut to these."""

# LAS 1.4 R15, table 17; the codes that are left out are reserved or the user's.
LAS_CLASSES = {
    0: "never classified", 1: "unclassified", 2: "ground", 3: "low vegetation", 4: "medium vegetation",
    5: "high vegetation", 6: "building", 7: "low noise", 9: "water", 10: "rail", 11: "road", 13: "wire guard",
    14: "wire", 15: "tower", 16: "wire connector", 17: "bridge deck", 18: "high noise",
    19: "overhead structure", 20: "ignored ground", 21: "snow",
}  # fmt: skip

GREY = (150, 150, 150)
_LAS_COLOURS = {
    0: (190, 190, 190), 1: GREY, 2: (166, 118, 60), 3: (170, 215, 100), 4: (90, 175, 70), 5: (20, 115, 45),
    6: (214, 50, 40), 7: (255, 0, 200), 9: (40, 110, 220), 10: (90, 70, 60), 11: (70, 70, 80),
    17: (240, 150, 20), 18: (255, 0, 200),
}  # fmt: skip
# Of classes that a configuration names so.
_NAMED_COLOURS = {
    "ground": _LAS_COLOURS[2], "terrain": _LAS_COLOURS[2], "vegetation": _LAS_COLOURS[4],
    "tree": _LAS_COLOURS[5], "building": _LAS_COLOURS[6], "water": _LAS_COLOURS[9], "road": _LAS_COLOURS[11],
}  # fmt: skip
# Tableau's ten; then the same, lighter.
_TEN = (0x1F77B4, 0xFF7F0E, 0x2CA02C, 0xD62728, 0x9467BD, 0x8C564B, 0xE377C2, 0x17BECF, 0xBCBD22, 0x3F3F9F)

# Ten steps of matplotlib's viridis, by Smith and van der Walt (CC0): even in brightness, told apart by all.
_VIRIDIS = np.array(
    [
        [68, 1, 84], [72, 40, 120], [62, 74, 137], [49, 104, 142], [38, 130, 142], [31, 158, 137],
        [53, 183, 121], [109, 205, 89], [180, 222, 44], [253, 231, 37],
    ],
    np.float64,
)  # fmt: skip


@dataclass(frozen=True)
class Shown:
    """A cloud to look at.

    ``xyz`` float32 (n, 3), counted from ``origin`` float64 (3,); ``unit`` of x and y, ``height_unit`` of z:
    short names, "" where none is known. ``rgb`` uint8 (n, 3) and ``label`` int32 (n,), where there are
    such; ``names`` and ``colours``: label -> class name and colour. ``note``: what is not shown, or "".
    """

    title: str
    xyz: NDArray[np.float32]
    origin: NDArray[np.float64]
    unit: str = ""
    height_unit: str = ""
    rgb: NDArray[np.uint8] | None = None
    label: NDArray[np.int32] | None = None
    names: dict[int, str] | None = None
    colours: dict[int, tuple[int, int, int]] | None = None
    note: str = ""

    def take(self, rows: NDArray[Any]) -> Shown:
        """The same of some rows."""
        rgb, label = self.rgb, self.label
        return replace(
            self,
            xyz=self.xyz[rows],
            rgb=None if rgb is None else rgb[rows],
            label=None if label is None else label[rows],
        )

    @property
    def choices(self) -> list[Colour]:
        """What it can be coloured by, the best first."""
        found: list[Colour] = ["class"] if self.label is not None else []
        return [*found, *(["rgb"] if self.rgb is not None else []), "height"]  # type: ignore[list-item]

    def colour(self, asked: str | None) -> Colour:
        """What it is coloured by: as asked, else the best it has. Raises UsageError for what it has not."""
        for choice in self.choices:
            if asked in (None, choice):
                return choice
        raise UsageError(
            "--color", f"is {asked!r}, {self.title} has {', '.join(self.choices)}", "give one of them"
        )

    def heights(self) -> tuple[float, float]:
        """Global heights, lowest and highest, between which colours change: all but 1 % at either end."""
        if not len(self.xyz):
            return 0.0, 1.0
        low, high = np.quantile(self.xyz[:, 2], (0.01, 0.99)).astype(np.float64) + self.origin[2]
        return (float(low), float(high)) if high > low else (float(low) - 0.5, float(low) + 0.5)

    def painted(self, by: Colour, heights: tuple[float, float]) -> NDArray[np.uint8]:
        """The colour of each point, uint8 (n, 3)."""
        if by == "rgb" and self.rgb is not None:
            return self.rgb
        if by == "class" and self.label is not None and self.colours is not None:
            known = np.array(sorted(self.colours))
            table = np.array([self.colours[code] for code in known.tolist()], np.uint8)
            return table[np.searchsorted(known, self.label)]
        low, high = heights
        return viridis((self.xyz[:, 2] + (self.origin[2] - low)) / (high - low))


def viridis(share: NDArray[Any]) -> NDArray[np.uint8]:
    """The colour of numbers from 0 to 1 (n,), as uint8 (n, 3); those outside have that of the nearer end."""
    at = np.clip(share, 0, 1) * (len(_VIRIDIS) - 1)
    steps = np.arange(len(_VIRIDIS))
    return np.stack([np.interp(at, steps, one) for one in _VIRIDIS.T], axis=1).round().astype(np.uint8)


def shown(path: Path) -> Shown:
    """Read what is to be seen of a raw file, or of a dataset. Raises DataError where it is neither."""
    if path.is_dir():
        return _of_dataset(Dataset(path))
    return _of_source(path, opened(path))


def thin(cloud: Shown, size: float | None) -> tuple[Shown, str]:
    """A cloud with a point for each voxel of edge ``size``, or with 5,000, and by what it was thinned.

    Raises UsageError for a size that is none.
    """
    if size is not None:
        if not 0 < size < math.inf:
            raise UsageError("--voxel", f"is {size:g}", "give a length above 0, in the unit of the scan")
        rows = voxel(cloud.xyz, size, pick="nearest", origin=cloud.origin).index
        return cloud.take(rows), f"voxels of {size:g}{f' {cloud.unit}' if cloud.unit else ''}"
    chosen = adaptive(cloud.xyz, min(THINNED, len(cloud.xyz)))
    return cloud.take(chosen.index), {"all": "all points", "farthest": "farthest point"}.get(
        chosen.method, "voxels, then farthest point"
    )


def _of_source(path: Path, source: Source) -> Shown:
    scan, note = source.scans[0], ""
    if source.objects:
        note = f"the first of {len(source.scans):,} clouds"
    across, height = las_unit.unit_of(path)
    label = classes_of(scan.fields)
    names = LAS_CLASSES if is_las(path) else {}
    return _framed(
        Shown(
            path.name,
            np.empty((0, 3), np.float32),
            np.zeros(3),
            across.short if across else "",
            height.short if height else "",
            note=note,
        ),
        scan.xyz,
        scan.fields.get("rgb"),
        label,
        names,
        _LAS_COLOURS if names else {},
    )


def _of_dataset(dataset: Dataset) -> Shown:
    if "xyz" not in dataset.schema:
        raise DataError(dataset.path, "has no points to show", "name a dataset of clouds")
    rows, note = _chosen(dataset)
    wanted = [name for name in ("xyz", "rgb", "label") if name in dataset.schema]
    samples = [dataset.sample(row, wanted) for row in rows.tolist()]
    columns = {
        name: np.concatenate([one.columns[name] for one in samples]) if samples else None
        for name in wanted
        if name != "xyz"
    }
    xyz = np.concatenate([np.empty((0, 3)), *(one.positions() for one in samples)])
    read = dataset.manifest.configuration.get("read") or {}
    unit = "m" if read.get("unit") == "metre" else ""  # else the sources', which the dataset does not say
    title = dataset.path.parent.resolve().name if dataset.path.name == "dataset" else dataset.path.name
    names, colours = classes_shown(dataset.classes)
    return _framed(
        Shown(title, np.empty((0, 3), np.float32), np.zeros(3), unit, unit, note=note),
        xyz,
        columns.get("rgb"),
        columns.get("label"),
        names,
        colours,
    )


def classes_shown(classes: Sequence[str]) -> tuple[dict[int, str], dict[int, tuple[int, int, int]]]:
    """Label -> name and colour of a dataset's ``classes``, and of rows that belong to none."""
    colours = {i: _NAMED_COLOURS.get(name) or _palette(i, i) for i, name in enumerate(classes)}
    return {-1: "ignored", **dict(enumerate(classes))}, {-1: GREY, **colours}


def _chosen(dataset: Dataset) -> tuple[NDArray[np.int64], str]:
    """The samples that are shown: of clouds that lie upon each other one, of too many some."""
    rows = np.flatnonzero(dataset.rows > 0)
    if len(rows) > 1:
        bounds = shards.from_batch(dataset.samples.select(["bounds"]))["bounds"][rows]
        area = np.prod(bounds[:, 3:5] - bounds[:, :2], axis=1)
        whole = float(np.prod(bounds[:, 3:5].max(axis=0) - bounds[:, :2].min(axis=0)))
        if np.median(area) > whole / 2 or area.sum() > 8 * whole:
            return rows[:1], f"the first of {len(rows):,} samples, which lie upon each other"
    points = dataset.rows[rows]
    if points.sum() <= _MOST:
        return rows, ""
    every = math.ceil(points.sum() / _MOST)
    return rows[::every], f"{len(rows[::every]):,} of {len(rows):,} samples"


def _framed(
    about: Shown,
    xyz: NDArray[np.float64],
    rgb: NDArray[Any] | None,
    label: NDArray[Any] | None,
    names: dict[int, str],
    colours: dict[int, tuple[int, int, int]],
) -> Shown:
    """The finite points of a cloud, without those far from all others, counted from the middle."""
    rows, far = _near(xyz)
    notes = [about.note] if about.note else []
    if far:
        notes.append(f"{far:,} of {len(xyz):,} points, far from all others, are not shown")
    if lost := len(xyz) - len(rows) - far:
        notes.append(f"{lost:,} rows are not finite")
    kept = xyz[rows]
    origin = np.floor((kept.min(axis=0) + kept.max(axis=0)) / 2) if len(rows) else np.zeros(3)
    codes = None
    if label is not None and label.ndim == 1 and len(rows) and label.dtype.kind in "iu":
        found = np.unique(label[rows])
        if 1 < len(found) <= 256 and np.abs(found).max() < 2**31:
            codes = label[rows].astype(np.int32)
            names = {code: names.get(code, f"class {code}") for code in found.tolist()}
            colours = {code: colours.get(code) or _palette(i, code) for i, code in enumerate(found.tolist())}
    return replace(
        about,
        xyz=(kept - origin).astype(np.float32),
        origin=origin,
        rgb=None if rgb is None else _bytes(rgb[rows]),
        label=codes,
        names=names if codes is not None else None,
        colours=colours if codes is not None else None,
        note="; ".join(notes),
    )


def _near(xyz: NDArray[np.float64]) -> tuple[NDArray[np.int64], int]:
    """Finite rows that are not far from all but a few others, and how many are."""
    rows = np.flatnonzero(np.isfinite(xyz).all(axis=1))
    if not len(rows):
        return rows, 0
    inside = np.ones(len(rows), bool)
    inside &= (np.abs(xyz[rows]) < LARGEST).all(axis=1)
    if not inside.any():
        return rows[inside], int((~inside).sum())
    low, high = np.quantile(xyz[rows[inside]], (0.001, 0.999), axis=0, method="nearest")
    reach = max(float((high - low).max()), 1e-9)
    for axis in range(3):
        values = xyz[rows, axis]
        if np.ptp(values / 2) > _FAR / 2 * reach:
            inside &= (values >= low[axis] - reach) & (values <= high[axis] + reach)
    return rows[inside], int((~inside).sum())


def _bytes(rgb: NDArray[Any]) -> NDArray[np.uint8] | None:
    """Colours as bytes: of 16 bits the upper 8, unless all are small; of floats 0 to 1."""
    if rgb.ndim != 2 or rgb.shape[1] < 3 or not len(rgb) or rgb.dtype.kind not in "iuf":
        return None
    values = np.nan_to_num(rgb[:, :3].astype(np.float64))
    if (values == values[0]).all():
        return None
    top = values.max()
    scale = 255.0 if top <= 1 and rgb.dtype.kind == "f" else 1.0 if top <= 255 else 1 / 257
    return np.clip(values * scale, 0, 255).round().astype(np.uint8)


def _palette(number: int, code: int) -> tuple[int, int, int]:
    """A colour for a class that has none of its own; by the code, so that it is the same in two pictures."""
    of = code if code >= 0 else number
    value = _TEN[of % len(_TEN)]
    rgb = [value >> 16, value >> 8 & 255, value & 255]
    lighter = of // len(_TEN) % 3 * 0.3
    red, green, blue = (round(part + (255 - part) * lighter) for part in rgb)
    return red, green, blue


def classes_of(fields: Mapping[str, NDArray[Any]]) -> NDArray[np.int64] | None:
    """Class codes (n,): of "classification", else of the first field that is named as classes are."""
    for name in ("classification", *fields):
        values = fields.get(name, np.empty(0))
        if not len(values) or values.ndim > 1 or kind_of(name, values.dtype) != "class":
            continue
        with np.errstate(invalid="ignore"):
            codes = values.astype(np.int64)
        if (codes == values).all():  # text formats have floats
            return codes
    return None


def is_las(path: Path) -> bool:
    """Whether a file is LAS or LAZ, whose class codes have names."""
    with path.open("rb") as file:
        return file.read(4) == b"LASF"
