"""Inline loader against a bare loop of preadv over the same bytes, and against torch's DataLoader over .npy.

    python bench/bench_loader.py [FOLDER]

Batches of 32, ragged ones of whole samples and dense ones of 1,024 rows a sample; warm page cache, the best
of three epochs; half a minute.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from tamis import Dataset, Loader, build
from tamis.loaders.settings import Form
from tamis.pipelines.build import DataSettings

BATCH, COLUMNS = 32, ["xyz", "intensity"]


def write(folder: Path, clouds: int, rows: int) -> Dataset:
    """A dataset of random clouds, and each cloud's xyz as .npy beside it."""
    (folder / "raw").mkdir()
    (folder / "npy").mkdir()
    rng = np.random.default_rng(0)
    for i in range(clouds):
        scan = np.zeros(rows, [("x", "f4"), ("y", "f4"), ("z", "f4"), ("intensity", "u2")])
        for axis in "xyz":
            scan[axis] = rng.uniform(0, 50, rows)
        np.save(folder / "raw" / f"{i:05d}.npy", scan)
        np.save(folder / "npy" / f"{i:05d}.xyz.npy", np.zeros((rows, 3), np.float32))
        np.save(folder / "npy" / f"{i:05d}.intensity.npy", np.zeros(rows, np.uint16))
    return build(DataSettings(root=folder / "raw", row_order="random"), folder / "run")


def best(epoch: Callable[[], int]) -> float:
    """GB/s of the best of three epochs."""
    rates = []
    for _ in range(3):
        start = time.perf_counter()
        moved = epoch()
        rates.append(moved / (time.perf_counter() - start) / 1e9)
    return max(rates)


def preadv(dataset: Dataset) -> Callable[[], int]:
    """Each column of each sample by one os.preadv into the packed batch: no check, no thread, no order."""
    files = [os.open(dataset.shard_path(s), os.O_RDONLY) for s in range(int(dataset.shard.max()) + 1)]

    def epoch() -> int:
        moved = 0
        for first in range(0, len(dataset), BATCH):
            batch = range(first, min(first + BATCH, len(dataset)))
            offsets = np.concatenate([[0], np.cumsum(dataset.rows[batch.start : batch.stop])])
            for name in COLUMNS:
                packed = dataset.schema[name].empty(int(offsets[-1]))
                for i, row in enumerate(batch):
                    part = packed[offsets[i] : offsets[i + 1]]
                    position = int(dataset.positions[name][row])
                    moved += os.preadv(files[dataset.shard[row]], [part.data], position)
        return moved

    return epoch


def tamis(dataset: Dataset, verify: str, k: int | None = None) -> Callable[[], int]:
    """The inline loader: ragged batches of whole samples, or dense ones of k rows a sample."""
    form: Form = "dense" if k else "ragged"
    loader = Loader(dataset, global_batch=BATCH, k=k, form=form, columns=COLUMNS, verify=verify)  # type: ignore[arg-type]

    def epoch() -> int:
        moved = 0
        for _ in range(loader.batches_per_epoch):
            moved += sum(values.nbytes for values in next(loader).columns.values())
        return moved

    return epoch


class Files(torch.utils.data.Dataset[dict[str, np.ndarray]]):
    """A sample a set of .npy files."""

    def __init__(self, folder: Path) -> None:
        self.stems = sorted({str(path).split(".")[0] for path in folder.glob("*.npy")})

    def __len__(self) -> int:
        return len(self.stems)

    def __getitem__(self, i: int) -> dict[str, np.ndarray]:
        return {name: np.load(f"{self.stems[i]}.{name}.npy") for name in COLUMNS}


def packed(samples: list[dict[str, np.ndarray]]) -> dict[str, torch.Tensor]:
    """Ragged batch."""
    return {name: torch.from_numpy(np.concatenate([s[name] for s in samples])) for name in COLUMNS}


def dataloader(folder: Path, workers: int) -> Callable[[], int]:
    """torch's DataLoader with workers that stay."""
    loader = torch.utils.data.DataLoader(
        Files(folder),
        BATCH,
        shuffle=True,
        num_workers=workers,
        collate_fn=packed,
        persistent_workers=workers > 0,
    )
    return lambda: sum(t.nbytes for batch in loader for t in batch.values())


def main(folder: Path) -> None:
    for clouds, rows in ((1000, 1024), (250, 10_000)):
        home = folder / f"{rows}"
        home.mkdir()
        dataset = write(home, clouds, rows)
        rates = {
            "bare preadv": best(preadv(dataset)),
            "tamis, verify never": best(tamis(dataset, "never")),
            "tamis, verify first": best(tamis(dataset, "first")),
            "tamis, verify always": best(tamis(dataset, "always")),
            "tamis, dense, verify never": best(tamis(dataset, "never", 1024)),
            "tamis, dense, verify first": best(tamis(dataset, "first", 1024)),
            "torch DataLoader, .npy, 0 workers": best(dataloader(home / "npy", 0)),
            "torch DataLoader, .npy, 2 workers": best(dataloader(home / "npy", 2)),
        }
        print(f"\n{clouds} clouds of {rows} rows, batches of {BATCH}")
        for name, rate in rates.items():
            print(f"  {name:34} {rate:6.2f} GB/s   {rate / rates['bare preadv']:5.2f} of bare preadv")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as name:
            main(Path(name))
