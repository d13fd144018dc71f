"""The global batch of a step made again, from configuration, plan and shards alone, and proven by its sum."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError, UsageError
from ...files import atomic, prepare
from ...loaders.loader import Batch, Loader
from ...metrics import STREAM, Meter
from ...pipelines import shards
from ...pipelines.dataset import Dataset
from ...pipelines.records import IGNORED
from ..checkpoints import checkpoint
from ..feed import loader_of, tally
from ..settings import Settings, settings_of
from .steps import Steps


class Origin(NamedTuple):
    """A sample of a batch: what it is and where it comes from.

    ``rows`` that it has in the dataset, of which ``taken`` are in the batch, padding not counted. ``centre``:
    the middle of its bounds, float64 (3,), global. ``classes``: class -> the share of the rows taken, the
    largest first, "ignored" among them; empty without labels. ``weight``: 0 where it was left out as damaged.
    """

    id: int
    name: str
    source: str
    tile: int
    split: str
    rows: int
    taken: int
    centre: NDArray[np.float64]
    classes: dict[str, float]
    weight: float


@dataclass(frozen=True)
class Replayed:
    """A step as it was: the ``line`` that training wrote, the global ``batch``, and its samples in order."""

    line: dict[str, Any]
    batch: Batch
    origins: list[Origin]


class Replay:
    """Makes batches of a run again, of any step and in any order. A context manager: it holds shards open.

    ``run``: the folder of a run, which may be going on. Nothing is written, and no state of the training is
    read. Raises DataError where there is no run, or its dataset is missing or damaged.
    """

    def __init__(self, run: str | Path) -> None:
        self.run = Path(run)
        self.settings, self.steps = settings_of(self.run), Steps(self.run)
        self.dataset = Dataset(self.settings.dataset_path(self.run))
        self._loader = loader_of(_alone(self.settings, len(self.dataset)), self.dataset, Meter(STREAM))
        self._by_id = np.argsort(self.dataset.ids)

    def step(self, step: int) -> Replayed:
        """The batch of ``step``, to the bit.

        Raises UsageError for a step that the run has not done, and DataError, saying what differs, where
        the batch is not the one that training saw.
        """
        line = self.steps.line(step)
        self._loader.load_state_dict(state_before(self._loader, step, self.settings.loader.batch))
        batch = next(self._loader)
        samples, _, _, crc = tally(batch)
        found = {"epoch": batch.epoch, "k": batch.k, "samples": samples, "crc": crc % 2**32}
        differing = {name: value for name, value in found.items() if line[name] != value}
        if differing:
            raise self._other(line, differing)
        return Replayed(line, batch, self._origins(batch))

    def _other(self, line: dict[str, Any], found: dict[str, int]) -> DataError:
        """Why the batch made is another; ``found``: what its line says otherwise."""
        where = f"step {line['step']} of {self.run}"
        mine = self._loader.state_dict()
        if saved := _saved(self.run):
            (then,), (now,) = saved["datasets"], mine["datasets"]
            if then["fingerprint"] != now["fingerprint"]:
                cause = f"the dataset is another: its fingerprint is {now['fingerprint']}, the run's was "
                fix = "put the dataset of the run back, or build it again from the same files"
                return DataError(where, f"{cause}{then['fingerprint']}", fix)
            if saved["plan"] != mine["plan"]:
                cause = "config.toml is not the run's: split, seed, batch, ratio, k or graph differ"
                return DataError(where, cause, "put the run's own back")
        told = ", ".join(f"{name} {value}, not {line[name]}" for name, value in found.items())
        if "epoch" in found or "k" in found:
            cause = f"the plan is another now: {told}"
            return DataError(where, cause, "put the run's dataset and config.toml back")
        if "samples" in found:
            cause = f"other samples are left out as damaged, or the dataset is another: {told}"
            return DataError(where, cause, "see `tamis verify` and put the files back as they were")
        cause = f"the batch is not what training saw: {told}"
        return DataError(where, cause, "put the run's dataset and config.toml back, and see `tamis verify`")

    def _origins(self, batch: Batch) -> list[Origin]:
        dataset = self.dataset
        rows = self._by_id[np.searchsorted(dataset.ids, batch.ids, sorter=self._by_id)]
        bounds = shards.from_batch(dataset.samples.select(["bounds"]))["bounds"][rows].reshape(-1, 2, 3)
        held = dataset.rows_of(next(name for name in batch.columns if name in dataset.fields))
        assert batch.mask is not None
        return [
            Origin(
                id=int(batch.ids[i]),
                **{n: dataset.samples.column(n)[row].as_py() for n in ("name", "source", "tile", "split")},
                rows=int(held[row]),
                taken=int(batch.mask[i].sum()),
                centre=bounds[i].mean(axis=0),
                classes=_shares(batch, i, dataset.classes),
                weight=float(batch.weight[i]),
            )
            for i, row in enumerate(rows.tolist())
        ]

    def close(self) -> None:
        """Close the shards."""
        self._loader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def replay(run: str | Path, step: int) -> Replayed:
    """The global batch that ``step`` of a run learned from, see `Replay`."""
    with Replay(run) as opened:
        return opened.step(step)


def state_before(loader: Loader, step: int, global_batch: int) -> dict[str, Any]:
    """The state of a loader from which the batch of ``step`` comes next: it follows from the plan alone.

    An epoch's last batch may be short; a state at the end of an epoch is of that epoch.
    """
    epoch, last = divmod(step - 1, loader.batches_per_epoch) if step else (0, -1)
    consumed = min((last + 1) * global_batch, loader.samples)
    state = loader.state_dict()
    datasets = [part | {"consumed": consumed} for part in state["datasets"]]
    return state | {"step": step, "epoch": epoch, "datasets": datasets}


def check_out(out: Path) -> None:
    """Raise UsageError for a file that is not named .npz or cannot be written."""
    if out.suffix.lower() != ".npz":
        raise UsageError(out, "is not named .npz", "a batch is written as NPZ")
    prepare(out)


def save(batch: Batch, out: Path) -> None:
    """Write a batch's columns, ``mask``, ``ids`` and ``weight`` to ``out``, an NPZ file."""
    check_out(out)
    assert batch.mask is not None
    with atomic(out) as temporary, temporary.open("wb") as file:
        np.savez(file, **batch.columns, mask=batch.mask, ids=batch.ids, weight=batch.weight)  # type: ignore[arg-type]


def _alone(settings: Settings, samples: int) -> Settings:
    """The settings by which one process makes the whole batch that many may have shared.

    ``max_damaged`` is counted by each replica, and anew when a run is resumed: here they are all.
    """
    most = samples if settings.loader.max_damaged else 0
    loader = settings.loader.model_copy(update={"feeder": "inline", "max_damaged": most})
    return settings.model_copy(update={"loader": loader})


def _saved(run: Path) -> dict[str, Any] | None:
    """The loader's state in the last checkpoint, where there is one to compare with."""
    for path in reversed(checkpoint.complete(run / "checkpoints")):
        with suppress(DataError):  # a damaged one is not what was asked about
            return checkpoint.described(path).loader
    return None


def _shares(batch: Batch, i: int, classes: list[str]) -> dict[str, float]:
    if "label" not in batch.columns or not classes:
        return {}
    assert batch.mask is not None
    labels = batch.columns["label"][i][batch.mask[i]]
    codes, counts = np.unique(labels, return_counts=True)
    named = ["ignored" if code == IGNORED else classes[code] for code in codes.tolist()]
    most = np.argsort(-counts, kind="stable").tolist()
    return {named[at]: float(counts[at] / len(labels)) for at in most}
