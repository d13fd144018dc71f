"""What is odd about a raw file or a dataset, a line each: what was seen, why it matters and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..samplers.fields import kind_of
from . import las_unit, shards
from .dataset import Dataset
from .las_unit import Unit
from .readers import Scan

_COARSE = 1e-3
"""A step of float32 from which on positions suffer."""

_MANY = 0.01  # a share of rows that is worth a line
_LOOKED_AT = 1_000_000  # points of a dataset that are read for it
_RARE = 0.001  # a class with less of the rows is rare
_NAMED = 6  # names that a line lists


def of_scan(path: Path, scan: Scan) -> list[str]:
    """What is odd about the one cloud of a raw file."""
    return [*_scan(path, scan)]


def of_dataset(dataset: Dataset) -> list[str]:
    """What is odd about a dataset: of the whole, and of up to a million points of it."""
    return [*_counts(dataset), *_classes(dataset), *_columns(dataset)]


def _scan(path: Path, scan: Scan) -> Iterator[str]:
    n = len(scan.xyz)
    if not n:
        yield "holds no points: a build makes no sample of it; leave it out, or look at what wrote it"
        return
    finite = np.isfinite(scan.xyz).all(axis=1)
    if lost := int((~finite).sum()):
        yield (
            f"{_share(lost, n)} of rows are not finite ({lost:,} of {n:,}): a build drops them and says so; "
            "pixels without depth look so, in another scan ask what wrote it"
        )
    xyz = scan.xyz if not lost else scan.xyz[finite]
    if not len(xyz):
        return
    low, high = xyz.min(axis=0), xyz.max(axis=0)
    if lost > _MANY * n and low[2] > 0 and (low[:2] < 0).all() and (high[:2] > 0).all():
        yield (
            "may have a camera's axes, y down and z forward, as pixels are missing and all z are above 0: "
            "z is taken for the height here and in operators; turn it"
        )
    across, up = las_unit.unit_of(path)
    yield from _units(across, up, xyz)
    yield from _extent(xyz, across)
    yield from _copies(xyz, "")
    yield from _fields({name: values[finite] if lost else values for name, values in scan.fields.items()})


def _units(across: Unit | None, up: Unit | None, xyz: NDArray[np.float64]) -> Iterator[str]:
    if across and across.metres is None:
        yield (
            f"x and y are angles ({across.said} says {across.name}): distances mean nothing to samplers; "
            "project the scan first"
        )
    elif across and across.metres and across.metres != 1:
        kind = "units are feet" if across.is_feet else "units are not metres"
        yield (
            f"{kind}: {across.said} says {across.name} of {across.metres:.7g} m; give tiles.size, voxel "
            f"sizes and the like in it (1 m is {1 / across.metres:.4g})"
        )
    elif not across:
        low, high = xyz.min(axis=0), xyz.max(axis=0)
        if low[0] > 1e6 and low[1] > 0 and max(high[0], high[1]) < 1e7 and high[0] - low[0] < 1e5:
            # State plane systems in feet have eastings of millions; so have some in metres.
            yield (
                f"units may be feet: x is {low[0]:,.0f} and more, UTM has 100,000 to 900,000 m, US state "
                "planes in feet reach millions; the file does not say, so compare a known length before "
                "choosing sizes"
            )
    if across and up and across.metres and up.metres and abs(across.metres / up.metres - 1) > 1e-3:
        yield (
            f"heights are in {up.name}, x and y in {across.name} ({up.said}): distances mix both; "
            f"scale z by {up.metres / across.metres:.6g}"
        )


def _extent(xyz: NDArray[np.float64], across: Unit | None) -> Iterator[str]:
    low, high = xyz.min(axis=0), xyz.max(axis=0)
    furthest = np.abs([low, high]).max(axis=0)
    with np.errstate(over="ignore"):
        size = high - low
        step = float(np.spacing(np.float32(min(furthest.max(), 3e38))))
    angles = across is not None and across.metres is None
    if not across and (furthest[:2] <= (180, 90)).all() and size[2] > 100 * max(size[0], size[1]) > 0:
        yield (
            "x and y look like degrees, as z spans far more: distances mean nothing to samplers; "
            "project the scan first"
        )
    elif step >= _COARSE and not angles:
        looks = "look like UTM or other projected coordinates: " if _projected(low, high) else "are large: "
        yield (
            f"coordinates of {furthest.max():,.0f} {looks}float32 has steps of {step:g} there; a build takes "
            "an origin off first, other programs that read float32 must too"
        )
        if len(xyz) > 10 and (np.float32(xyz[:, furthest.argmax()]) == xyz[:, furthest.argmax()]).all():
            yield (
                f"{'xyz'[int(furthest.argmax())]} lies on steps of {step:g}: it was stored as float32 once "
                "and has lost what was finer; write it again from its source, as float64 or LAS"
            )
    elif (distance := float(np.abs(low / 2 + high / 2).max())) > 20 * max(size.max(), 1e-9):
        yield (
            f"the origin is far from the cloud ({distance:,.0f} away, the cloud is {size.max():.4g} long): "
            "raw x, y, z would be nearly the same for all points; a build counts from an origin in each "
            "sample"
        )
    for axis in np.flatnonzero(size == 0).tolist() if len(xyz) > 1 else []:
        yield (
            f"{'xyz'[axis]} is {low[axis]:g} in every row: the cloud is flat; right for images, else the "
            "column was lost on the way"
        )
    if len(xyz) >= 1000:
        inner = np.quantile(xyz, (0.001, 0.999), axis=0, method="nearest")
        for axis in np.flatnonzero(size > 5 * np.maximum(inner[1] - inner[0], 1e-9)).tolist():
            if inner[1][axis] > inner[0][axis]:
                yield (
                    f"{'xyz'[axis]} spans {size[axis]:,.4g}, all but 0.2 % of rows "
                    f"{inner[1][axis] - inner[0][axis]:,.4g}: a few points far away widen tiles and "
                    "features; look at them, crop with data.bounds"
                )


def _projected(low: NDArray[np.float64], high: NDArray[np.float64]) -> bool:
    """Whether x and y may be an easting and a northing: far from zero, and in the range of such grids."""
    return bool(low[0] > 1e5 and high[0] < 1e7 and abs(low[1]) > 1e5 and high[1] < 1.1e7)


def _copies(xyz: NDArray[np.float64], of: str) -> Iterator[str]:
    copies = copied(xyz)
    if copies > _MANY * len(xyz):
        yield (
            f"{_share(copies, len(xyz))} of rows{of} are exact copies of another position ({copies:,}): "
            "they weigh twice in training and make density look higher; a small voxel merges them"
        )


def copied(xyz: NDArray[np.floating[Any]]) -> int:
    """How many rows (n, 3) have the position of an earlier one; counted by a hash of 64 bits, -0.0 as 0.0."""
    hashed = np.zeros(len(xyz), np.uint64)
    with np.errstate(over="ignore"):
        for axis in range(3):
            bits = (xyz[:, axis].astype(np.float64) + 0.0).view(np.uint64)
            hashed = (hashed ^ bits) * np.uint64(0x9E3779B97F4A7C15)
            hashed ^= hashed >> np.uint64(29)
            hashed *= np.uint64(0xBF58476D1CE4E5B9)
            hashed ^= hashed >> np.uint64(32)
    hashed.sort()
    return int((hashed[1:] == hashed[:-1]).sum())


def _fields(fields: Mapping[str, NDArray[Any]]) -> Iterator[str]:
    zero, same = [], []
    for name, values in fields.items():
        if len(values) < 2 or values.dtype.kind not in "biuf":
            continue
        if values.dtype.kind == "f" and (
            lost := int(np.isnan(values).reshape(len(values), -1).any(axis=1).sum())
        ):
            yield (
                f"{name} is not a number in {_share(lost, len(values))} of rows: a loss that sees one "
                "becomes not a number too; leave it out with data.fields, or mend it"
            )
        elif (values == values[0]).all():
            if kind_of(name, values.dtype) == "class":
                yield (
                    f"{name} is {values[0]} in every row: the scan is not labelled, or not yet; "
                    "there is nothing to learn from it"
                )
            elif not values[0].any():
                zero.append(name)
            else:
                same.append(name)
    yield from _constant(zero, same)
    if "withheld" in fields and (held := int(np.count_nonzero(fields["withheld"]))):
        yield (
            f"{_share(held, len(fields['withheld']))} of rows are withheld: LAS says to leave them out, "
            "a build keeps them"
        )
    rgb = fields.get("rgb")
    if rgb is not None and rgb.dtype == np.uint16 and len(rgb) and 0 < rgb.max() <= 255:
        yield (
            f"rgb has 16 bits and no value above {rgb.max()}: these are colours of 8 bits; divide by 255, "
            "not 65,535"
        )


def _constant(zero: list[str], same: list[str], of: str = "") -> Iterator[str]:
    for names, what in ((zero, f"all zero{of}"), (same, f"the same in all rows{of}")):
        if names:
            yield (
                f"{what}: {_listed(names)}; they cost bytes and say nothing: leave them out with data.fields"
            )


def _counts(dataset: Dataset) -> Iterator[str]:
    counts, rows = dataset.manifest.counts, dataset.rows
    if counts.dropped:
        yield (
            f"{counts.dropped:,} source rows were not finite and were left out ({counts.points:,} points are "
            "stored): pixels without depth look so, in other scans ask what wrote them"
        )
    if not counts.samples:
        yield "holds no sample: there is nothing to train on; look at data.bounds and tiles.min_points"
        return
    if "train" not in counts.splits:
        yield "has no train split: nothing can be learned from it; look at data.split"
    elif len(counts.splits) == 1:
        yield "has no val or test split: what is learned cannot be judged; name one in data.split"
    if not dataset.schema:
        return
    if empty := int((rows == 0).sum()):
        yield (
            f"{empty:,} of {len(rows):,} samples have no point: they take a place in batches and teach "
            "nothing"
        )
    if len(rows) > 1 and (most := int(rows.max())) > 50 * max(float(np.median(rows)), 1):
        yield (
            f"the largest sample has {most:,} points, the median {np.median(rows):,.0f}: a batch waits for "
            "it; choose a smaller tiles.size"
        )


def _classes(dataset: Dataset) -> Iterator[str]:
    counts = dataset.manifest.counts.splits
    if not dataset.classes or not counts:
        return
    row = "row" if dataset.schema else "sample"
    total = {name: sum(one.classes.get(name, 0) for one in counts.values()) for name in dataset.classes}
    if none := [name for name, count in total.items() if not count]:
        yield (
            f"no {row} is of class {_listed(none)}: its codes are not in these files; correct data.classes, "
            "or leave it out, as it takes a place in the model"
        )
    train = counts["train"].classes if "train" in counts else total
    if unseen := [name for name, count in total.items() if count and not train.get(name)]:
        yield (
            f"no {row} of class {_listed(unseen)} is in train: it cannot be learned; choose data.split "
            "otherwise"
        )
    labelled, ignored = sum(total.values()), sum(one.ignored for one in counts.values())
    rare = [name for name in dataset.classes if 0 < train.get(name, 0) < _RARE * sum(train.values())]
    if rare:
        yield (
            f"less than {_RARE:.1%} of the {row}s of train are of class {_listed(rare)}: a plain loss passes "
            "over it; weigh the classes, or merge it with another"
        )
    if ignored > labelled:
        yield (
            f"{_share(ignored, ignored + labelled)} of {row}s are of no class and ignored: their codes are "
            "not in data.classes; list them there if they mean something"
        )


def _columns(dataset: Dataset) -> Iterator[str]:
    if not dataset.schema or not len(dataset) or not dataset.rows.any():
        return
    figures = dataset.statistics
    zero: list[str] = []
    same: list[str] = []
    for name in dataset.schema:
        low, high = (figures[name].min, figures[name].max) if name in figures else ([None], [None])
        if name not in ("xyz", "label", "row") and low == high and None not in low:
            (same if any(low) else zero).append(name)
    yield from _constant(zero, same, " of train" if "train" in dataset.splits else "")
    about = shards.from_batch(dataset.samples.select(["bounds", "origin"]))
    bounds, filled = about["bounds"], dataset.rows > 0
    size = bounds[filled, 3:] - bounds[filled, :3]
    for axis in np.flatnonzero((size == 0).all(axis=0)).tolist():
        if (dataset.rows > 1).any():
            yield (
                f"{'xyz'[axis]} does not change in any sample: they are flat; right for images, else it was "
                "lost"
            )
    middle = (bounds[filled, :3] + bounds[filled, 3:]) / 2
    off = np.abs(middle - about["origin"][filled]).max(axis=1)
    if far := int((off > 20 * np.maximum(size.max(axis=1), 1e-9)).sum()):
        yield (
            f"{far:,} of {len(size):,} samples have their origin far from their points: float32 is coarser "
            "there; build them again"
        )
    if "xyz" in dataset.schema:
        rows = np.flatnonzero(filled)
        chosen = rows[:: max(int(dataset.rows.sum() // _LOOKED_AT), 1)]
        clouds = [dataset.sample(row, ["xyz"]).columns["xyz"] for row in chosen.tolist()]
        copies, n = sum(copied(xyz) for xyz in clouds), sum(map(len, clouds))
        if copies > _MANY * n:
            of = "" if len(chosen) == len(rows) else f" in {len(chosen):,} samples looked at"
            yield (
                f"{_share(copies, n)} of rows{of} are exact copies of another position in their sample: they "
                "weigh twice in training; a small voxel before the build merges them"
            )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _share(part: int, whole: int) -> str:
    """A share in percent, with as many digits as tell it from none and from all."""
    percent = 100 * part / whole
    return (
        f"{percent:.0f} %"
        if 1.5 <= percent <= 98.5
        else f"{percent:.2g} %"
        if percent < 50
        else f"{percent:.4g} %"
    )
