"""Whether the build and the script made the same dataset: equal tiles, equal values in them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..pipelines import shards
from ..pipelines.dataset import Dataset

Columns = dict[str, NDArray[Any]]

POSITION = 1e-3
"""Most that coordinates of the two may differ by: both are stored as float32."""

_FIGURE = 1e-6  # relative; sums are made in another order


def differs(built: Path, written: Path) -> str:
    """What differs between a dataset and what the script wrote; nothing if they are alike.

    Tiles are matched by the rows of the source that they hold, since their numbers may differ; inside they
    may stand in any order. Statistics are compared but for coordinates, whose origins are each one's own.
    """
    dataset, by_hand = Dataset(built), json.loads((written / "dataset.json").read_text())
    ours: dict[str, list[Columns]] = {}
    for sample in map(dataset.sample, range(len(dataset))):
        columns = {**sample.columns, "xyz": sample.positions()}
        ours.setdefault(sample.source, []).append(_flat(columns))
    if ours.keys() != {file["source"] for file in by_hand["files"]}:
        return f"sources {sorted(ours)} are not those of the script"
    for file in by_hand["files"]:
        name = file["source"]
        theirs = [*_tiles(written / f"{Path(name).stem}.arrow", file["tiles"])]
        if found := _tiles_differ(ours[name], theirs):
            return f"{name}: {found}"
    return _statistics_differ(dataset, by_hand["statistics"])


def _tiles(path: Path, about: list[dict[str, Any]]) -> Iterator[Columns]:
    reader = pa.ipc.open_file(pa.memory_map(str(path)))
    for number, tile in enumerate(about):
        columns = shards.from_batch(reader.get_batch(number))
        xyz = columns["xyz"].astype(np.float64) + tile["origin"]
        low, high = xyz.min(axis=0), xyz.max(axis=0)
        assert np.abs(np.concatenate([low, high]) - tile["bounds"]).max() <= POSITION
        yield _flat({**columns, "xyz": xyz})


def _flat(columns: Mapping[str, NDArray[Any]]) -> Columns:
    """Colours as columns of their own, rows in the order of the source."""
    order = np.argsort(columns["row"])
    found = {name: values[order] for name, values in columns.items()}
    if "rgb" in found:
        found |= dict(zip(("red", "green", "blue"), found.pop("rgb").T, strict=True))
    return found


def _tiles_differ(ours: list[Columns], theirs: list[Columns]) -> str:
    if len(ours) != len(theirs):
        return f"{len(ours)} tiles, not {len(theirs)}"
    pairs = (sorted(tiles, key=lambda tile: int(tile["row"][0])) for tiles in (ours, theirs))
    for mine, other in zip(*pairs, strict=True):
        if mine.keys() != other.keys():
            return f"columns {sorted(mine)}, not {sorted(other)}"
        if len(mine["row"]) != len(other["row"]):
            return f"a tile of {len(mine['row'])} points, not {len(other['row'])}"
        for name, values in mine.items():
            same = values.dtype == other[name].dtype and np.array_equal(values, other[name])
            if not (np.abs(values - other[name]).max() <= POSITION if name == "xyz" else same):
                return f"other values of '{name}' in the tile with row {mine['row'][0]}"
    return ""


def _statistics_differ(dataset: Dataset, theirs: dict[str, dict[str, Any]]) -> str:
    for name, figures in dataset.statistics.items():
        if name == "xyz":
            continue
        parts = ("red", "green", "blue") if name == "rgb" else (name,)
        for figure in ("mean", "std", "min", "max"):
            mine = np.array(getattr(figures, figure), float)
            other = np.array([theirs[part][figure] for part in parts], float)
            if not np.allclose(mine, other, rtol=_FIGURE, atol=0):
                return f"{figure} of '{name}' is {mine}, not {other}"
    return ""
