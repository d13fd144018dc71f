"""Samples that are there already, to a new dataset: packed into shards and described as a build does."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from numpy.typing import NDArray

from ..errors import DataError, UsageError, system_error
from ..files import locked
from . import manifest, shards
from .dataset import Dataset
from .finish import Described, finish
from .made import Made, made_of
from .manifest import Column, Skipped, SourceDigest
from .members import Member, about
from .out_of_sight import shown
from .records import SPLITS
from .settings import DataSettings
from .shard_writer import ShardWriter
from .stored import Own, Stored, owns
from .tally import Tally

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Samples:
    """Samples in the order of the index: what they are, their bytes, and how to read the one at a place."""

    members: Sequence[Member]
    sizes: Sequence[int]
    columns: list[Column]
    annotations: list[Column]
    arrays: Callable[[int], Arrays]


@dataclass(frozen=True)
class FromRaw:
    """What is told of the raw files that samples come from.

    ``sources`` and ``skipped`` as the manifest has them. ``dropped`` (split -> rows), ``total`` and
    ``outside``: rows of them that are left out.
    """

    sources: Mapping[str, SourceDigest]
    skipped: Mapping[str, Skipped] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    total: int = 0
    outside: int = 0


def place(member: Member) -> tuple[int, str, int]:
    """What the index is sorted by: split, source and tile."""
    return SPLITS.index(member.about.split), member.source, member.about.tile


def write(folder: Path, samples: Samples, settings: DataSettings, raw: FromRaw) -> None:
    """Write the dataset of ``samples`` to ``folder``, each read once, ``dataset.json`` last."""
    fields = {column.name: column.field() for column in samples.columns}
    splits = [member.about.split for member in samples.members]
    names = [member.source for member in samples.members]
    layout = shards.divide(samples.sizes, splits, names, settings.shard_mb << 20)
    tally = Tally(fields, samples.members, len(settings.classes))
    rows, known = Counter[tuple[str, Own]](), dict[str, Stored]()
    for number, places in enumerate(layout):
        with ExitStack() as stack:
            files = {
                own: stack.enter_context(ShardWriter(folder / shards.shard_name(number, own), those))
                for own, those in owns(samples.columns, samples.annotations)
            }
            for place in places:
                arrays = samples.arrays(place)
                if fields:
                    tally.add(arrays)
                for file in files.values():
                    file.write(arrays)
            for own, file in files.items():
                known[file.path.name] = file.finish()
                rows[splits[places.start], own] += int(known[file.path.name].rows.sum())
    counts = tally.counts(list(settings.classes), raw.dropped)
    for split, count in counts.splits.items():
        mine = {one.name: rows[split, one.name] for one in samples.annotations}
        counts.splits[split] = count.model_copy(update={"annotations": mine})
    described = Described(
        columns=samples.columns,
        annotations=samples.annotations,
        counts=counts.model_copy(update={"dropped": raw.total, "outside": raw.outside}),
        moments=tally.moments(),
        row_order=settings.row_order,
        sources=dict(raw.sources),
        skipped=raw.skipped,
    )
    finish(folder, about(samples.members), layout, described, settings, known)


def make(out: Path, wanted: Made, inputs: Sequence[Dataset], fill: Callable[[Path], None]) -> Dataset:
    """The dataset in ``out/dataset`` that ``fill`` writes to the folder it is given; it is shown whole.

    One that is there and was made of the same in the same way is returned as it is. What a killed run left is
    removed. Raises DataError for another dataset, an unfinished build, a folder another process writes to,
    and a disk that fails; UsageError for an ``out`` at or in an input.
    """
    final = out / "dataset"
    _check_out(out, inputs)
    with _one_line(out), locked(out):
        if final.exists():
            there = made_of(Dataset(final).manifest)
            if there is None or not there.same(wanted):
                cause = "was built" if there is None else "was made of other datasets, or in another way"
                raise DataError(final, cause, "choose another OUT, or remove it")
            return Dataset(final)
        with _emptied(out / "dataset.building") as building, shown(building, final) as folder:
            fill(folder)
    return Dataset(final)


@contextmanager
def _emptied(building: Path) -> Iterator[Path]:
    """A folder to make a dataset in, of which nothing stays. Parts of a build are not touched."""
    if building.exists() and [*building.iterdir()] not in ([], [building / "dataset"]):
        raise DataError(building, "holds an unfinished build", "finish or remove it, or choose another OUT")
    building.mkdir(exist_ok=True)
    try:
        yield building
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _check_out(out: Path, inputs: Sequence[Dataset]) -> None:
    if (out / manifest.NAME).exists():
        raise UsageError(out, "is a dataset itself", "choose another OUT")
    for dataset in inputs:
        if (out / "dataset").resolve().is_relative_to(dataset.path.resolve()):
            raise UsageError(out, "is where an input is", "choose another OUT")


@contextmanager
def _one_line(out: Path) -> Iterator[None]:
    """Turn a failing disk into one line."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        plain = error if isinstance(error, OSError) else OSError(str(error))
        raise system_error(plain, out) from None


def told(dataset: Dataset) -> str:
    """What a dataset holds, in a line."""
    counts = dataset.manifest.counts
    splits = ", ".join(f"{counts.splits[name].samples:,} {name}" for name in SPLITS if name in counts.splits)
    text = f"{counts.samples:,} samples ({splits})"
    for what, fields in (("columns", dataset.schema), ("annotations", dataset.annotations)):
        text += f"; {what} {', '.join(fields)}" if fields else ""
    return text
