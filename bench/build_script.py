"""LAZ tiles to a dataset without tamis: laspy, numpy, pyarrow and a process pool, as one would write it.

    python build_script.py SOURCE OUT --size 10 --workers 2 [--field intensity ...]

Each file is cut into square tiles edge to edge. Coordinates are counted from an origin of their tile, every
field is kept, or those that are named; class codes become labels, rows stand in random order. A file becomes
an Arrow IPC file with one record batch a tile; `dataset.json` has bounds, SHA-256 of every file and the
statistics of each column. It prints seconds, wall and CPU, from after the imports.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import time
import zlib
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import laspy
import numpy as np
import pyarrow as pa

CLASSES = {"ground": [2], "vegetation": [3, 4, 5], "building": [6], "water": [9]}

pa.array(np.zeros(1))  # pyarrow looks for pandas at its first array: that is an import


def convert(path: Path, out: Path, size: float, kept: list[str]) -> dict[str, Any]:
    """Write the tiles of one file, and describe them."""
    las = laspy.read(path)
    xyz = las.xyz
    codes = np.full(256, -1, np.int32)
    for number, own in enumerate(CLASSES.values()):
        codes[own] = number
    names = kept or [name for name in las.point_format.dimension_names if name not in ("X", "Y", "Z")]
    fields = {
        "label": codes[np.asarray(las.classification)],
        "row": np.arange(len(xyz)),
        **{name: np.asarray(las[name]) for name in names},
    }

    low, high = xyz[:, :2].min(axis=0), xyz[:, :2].max(axis=0)
    anchor = np.floor(low / size) * size
    across, along = np.maximum(np.ceil((high - anchor) / size), 1).astype(int)
    cell = ((xyz[:, :2] - anchor) / size).astype(int)
    tile = np.minimum(cell[:, 0], across - 1) * along + np.minimum(cell[:, 1], along - 1)
    tile = tile.astype(np.min_scalar_type(across * along))  # numpy sorts numbers of 16 bits much faster

    order = np.random.default_rng(zlib.crc32(path.name.encode())).permutation(len(xyz))
    order = order[np.argsort(tile[order], kind="stable")]
    tile, xyz = tile[order], xyz[order]
    starts = np.concatenate([[0], np.flatnonzero(tile[1:] != tile[:-1]) + 1])
    counts = np.diff(starts, append=len(tile))
    lows, highs = np.minimum.reduceat(xyz, starts), np.maximum.reduceat(xyz, starts)
    places = np.stack(np.divmod(tile[starts].astype(int), along), axis=1)
    origins = np.column_stack([anchor + (places + 0.5) * size, lows[:, 2]])
    columns = {"xyz": (xyz - np.repeat(origins, counts, axis=0)).astype(np.float32)}
    columns |= {name: values[order] for name, values in fields.items()}

    arrays = [
        pa.array(values)
        if values.ndim == 1
        else pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
        for values in columns.values()
    ]
    batch = pa.record_batch(arrays, names=[*columns])
    written = out / f"{path.stem}.arrow"
    with pa.OSFile(str(written), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
            writer.write_batch(batch.slice(start, count))
    return {
        "source": path.name,
        "sha256": {file.name: digest(file) for file in (path, written)},
        "tiles": [
            {"rows": rows, "origin": origin, "bounds": bounds}
            for rows, origin, bounds in zip(
                counts.tolist(), origins.tolist(), np.hstack([lows, highs]).tolist(), strict=True
            )
        ],
        "statistics": {name: figures(values) for name, values in columns.items()},
    }


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def figures(values: np.ndarray) -> dict[str, Any]:
    wide = values.astype(np.float64)
    return {
        "count": len(wide),
        "mean": wide.mean(axis=0),
        "variance": wide.var(axis=0),
        "min": values.min(axis=0),
        "max": values.max(axis=0),
    }


def merged(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of a column over all files."""
    count = np.array([part["count"] for part in parts])
    mean, variance = (np.array([part[name] for part in parts]) for name in ("mean", "variance"))
    whole = np.average(mean, axis=0, weights=count)
    spread = np.average(variance + (mean - whole) ** 2, axis=0, weights=count)
    return {
        "mean": whole.tolist(),
        "std": np.sqrt(spread).tolist(),
        "min": np.min([part["min"] for part in parts], axis=0).tolist(),
        "max": np.max([part["max"] for part in parts], axis=0).tolist(),
    }


def main() -> None:
    start = time.perf_counter(), cpu_s()
    options = argparse.ArgumentParser()
    options.add_argument("source", type=Path)
    options.add_argument("out", type=Path)
    options.add_argument("--size", type=float, required=True)
    options.add_argument("--workers", type=int, default=1)
    options.add_argument("--field", action="append", default=[], dest="kept")
    given = options.parse_args()
    given.out.mkdir(parents=True)
    files = sorted(given.source.glob("*.laz"), key=lambda path: -path.stat().st_size)
    work = partial(convert, out=given.out, size=given.size, kept=given.kept)
    if given.workers == 1:
        found = [*map(work, files)]
    else:
        with ProcessPoolExecutor(given.workers) as pool:
            found = [*pool.map(work, files)]
    columns = [part.pop("statistics") for part in found]
    statistics = {name: merged([one[name] for one in columns]) for name in columns[0]}
    whole = {"classes": CLASSES, "statistics": statistics, "files": found}
    (given.out / "dataset.json").write_text(json.dumps(whole, indent=1))
    print(json.dumps({"wall_s": time.perf_counter() - start[0], "cpu_s": cpu_s() - start[1]}))


def cpu_s() -> float:
    """Seconds, user and system, of this process and of those it has waited for."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


if __name__ == "__main__":
    main()
