"""A damaged dataset made whole from its raw files: files that are damaged are replaced by what was written.

What is missing is made again out of sight, compared with the digests in ``dataset.json``, and put in place
when all of it is there. Where it cannot be made, everything stays as it was.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from ..files import locked, sync
from ..metrics import BUILD, Meter
from ..samplers.threads import threads_for
from . import engine, manifest, shards, sources, text
from .assemble import assemble
from .dataset import contents, folder_of, table
from .finish import About, Described, looked_through, write_tables
from .journal import Finished, Journal
from .made import made_of, settings_of
from .manifest import Manifest
from .parts import Work
from .raw import Raw, completed
from .shard_writer import write_shard
from .stored import Own, Stored, digest_of, owns

log = logging.getLogger(__name__)

_AGAIN = "build the dataset again"
_TOLD = 3  # files that are named in an error


def repair(path: str | Path, root: Path | None = None, meter: Meter | None = None) -> list[str]:
    """Make the damaged and missing files of a dataset again; their names, none where all are whole.

    ``root``: the folder of its raw files, by default the environment's TAMIS_DATA. Read are those that
    damaged shards have samples of; all of them where ``samples.arrow`` is damaged, or ``index.arrow`` and a
    shard, or where the samples are texts. None are read where only the index or checksums are damaged.

    Raises DataError, and leaves all as it was, where ``dataset.json`` is damaged, where the dataset was not
    built from raw files, where files are gone or changed, and where what is made is not what was written, as
    by another version of this package.
    """
    folder = folder_of(path)
    there = _described(folder)
    damaged = _damaged(folder, there)
    if not damaged:
        if _aside(folder).exists():  # a call was killed when all was in place
            with locked(folder.parent):
                shutil.rmtree(_aside(folder), ignore_errors=True)
        return []
    _check_built(folder, there)
    with locked(folder.parent), _out_of_sight(folder) as (parts, fresh):
        _Repair(folder, there, damaged, root, parts, fresh, meter or Meter(BUILD)).make()
        for name in damaged:
            if not (fresh / name).exists() or digest_of(fresh / name) != there.files[name]:
                cause = "made again, it is not what was written: another version or library wrote it"
                raise DataError(folder / name, cause, _AGAIN)
            sync(fresh / name)
        for name in damaged:
            (fresh / name).replace(folder / name)
        sync(folder)
    return damaged


def _described(folder: Path) -> Manifest:
    path = folder / manifest.NAME
    data = contents(path)
    damage = manifest.find_damage(data)
    manifest.check_version(path, data, damage)
    if damage is not None:
        cause = f"is damaged at offset {damage.offset}, and it alone says what the other files should be"
        raise DataError(path, cause, _AGAIN)
    return manifest.unseal(path, data)


def _damaged(folder: Path, there: Manifest) -> list[str]:
    """The files that are not as they were written, sorted."""

    def whole(name: str) -> bool:
        try:
            return digest_of(folder / name) == there.files[name]
        except OSError:
            return False

    names = sorted(there.files)
    with ThreadPoolExecutor(threads_for(None, len(names))) as pool:
        return [name for name, good in zip(names, pool.map(whole, names), strict=True) if not good]


def _check_built(folder: Path, there: Manifest) -> None:
    made = made_of(there)
    if made is not None:
        of = ", ".join(origin.name for origin in made.of)
        cause = f"was made with `tamis {made.by}`, not from raw files"
        raise DataError(folder, cause, f"make it of {of} again")
    if all(name.endswith((".tar", ".tfrecord")) for name in there.sources):
        raise DataError(folder, "was converted, not built from raw files", "convert it again")


def _aside(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.repairing")


@contextmanager
def _out_of_sight(folder: Path) -> Iterator[tuple[Path, Path]]:
    """Folders for parts and for files, beside the dataset. Parts that a killed call left are gone on with."""
    aside = _aside(folder)
    parts, fresh = aside / "parts", aside / "dataset"
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        for one in (parts, fresh):
            one.mkdir(parents=True, exist_ok=True)
        yield parts, fresh
    finally:
        shutil.rmtree(aside, ignore_errors=True)


class _Repair:
    """The damaged files of one dataset, on their way by way of ``parts`` to the folder ``fresh``."""

    def __init__(
        self,
        folder: Path,
        there: Manifest,
        damaged: Collection[str],
        root: Path | None,
        parts: Path,
        fresh: Path,
        meter: Meter,
    ) -> None:
        self._folder, self._there, self._damaged = folder, there, damaged
        self._root, self._at, self._fresh, self._meter = root, parts, fresh, meter
        self._owns = owns(there.columns, there.annotations)
        self._fields = dict(self._owns)
        self._shards = [(name, *of) for name in damaged if (of := shards.shard_of(name))]

    def make(self) -> None:
        """Write the damaged files; others may lie beside them."""
        if self._there.configuration["text"] is not None:
            work, names = self._work(self._there.sources), sorted(self._there.sources)
            text.assemble(self._fresh, work.root, names, work.listed, work.settings, self._meter)
        elif shards.SAMPLES in self._damaged or (shards.INDEX in self._damaged and self._shards):
            work = self._work(self._there.sources)
            made = self._parts(work, self._there.sources)
            parts = [made[name] for name in sorted(made)]
            assemble(self._fresh, parts, self._there.skipped, work, self._meter)
        else:
            self._make_some()

    def _make_some(self) -> None:
        """Make damaged shards of the sources they are of, then the index and checksums of the shards."""
        about, shard = self._about(), self._shard_of_samples()
        known: dict[str, Stored] = {}
        if self._shards:
            rows = np.flatnonzero(np.isin(shard, [number for _, number, _ in self._shards])).tolist()
            needed = {about.source[row] for row in rows}
            work = self._work(needed)
            found = self._placed(work, self._parts(work, needed))
            for name, number, own in self._shards:
                keys = [
                    (about.source[row], about.split[row], about.tile[row])
                    for row in np.flatnonzero(shard == number).tolist()
                ]
                path, fields = self._fresh / name, self._fields[own]
                known[name] = write_shard(path, fields, self._samples(keys, found, own))
        if len(self._shards) < len(self._damaged):
            there = self._there
            described = Described(
                columns=there.columns,
                annotations=there.annotations,
                counts=there.counts,
                moments={},
                row_order=there.row_order,
                sources=there.sources,
            )
            ends = np.flatnonzero(np.diff(shard, append=-1)) + 1
            layout = [range(start, stop) for start, stop in pairwise([0, *ends.tolist()])]
            whole = looked_through(self._folder, len(layout), described, known)
            write_tables(self._fresh, about, layout, described, whole)

    def _about(self) -> About:
        said = shards.opened(self._folder / shards.SAMPLES)[0].get_batch(0).to_pydict()
        return About(
            source=said["source"],
            tile=said["tile"],
            split=said["split"],
            origin=np.array(said["origin"], np.float64),
            bounds=np.array(said["bounds"], np.float64),
            label=said["label"],
        )

    def _shard_of_samples(self) -> NDArray[np.int64]:
        """The shard of each sample, int64 (samples,): of the index, or of shards that are whole."""
        if shards.INDEX not in self._damaged:
            return np.asarray(table(self._folder / shards.INDEX)["shard"], np.int64)
        own = self._owns[0][0]
        known = map(shards.shard_of, self._there.files)
        numbers = sorted(number for number, of in filter(None, known) if of == own)
        paths = [self._folder / shards.shard_name(number, own) for number in numbers]
        return np.repeat(numbers, [shards.opened(path)[0].num_record_batches for path in paths])

    def _work(self, names: Collection[str]) -> Work:
        """What it takes to make the sources ``names`` again, which are as they were."""
        root = sources.folder(self._root)
        settings = completed(settings_of(self._there), root)
        raw = Raw(root, settings)
        self._check_sources(raw, sorted(names))
        if settings.layout is None:
            all_names = sorted(self._there.sources | self._there.skipped)
            listed = sources.splits_by_file(root, settings.split, all_names)
        else:
            _, listed = raw.sources()
        journal = Journal(self._at, self._there.fingerprint)
        journal.clear()
        return Work(root, settings, listed, journal)

    def _check_sources(self, raw: Raw, names: Sequence[str]) -> None:
        """Name the raw files that are not what the dataset was built from."""
        gone, other = list[str](), list[str]()
        for name in names:
            try:
                if raw.digest(name) != self._there.sources[name]:
                    other.append(name)
            except (OSError, DataError):
                gone.append(name)
        for those, what in ((gone, "missing or unreadable"), (other, "not what they were at the build")):
            if those:
                more = f" and {len(those) - _TOLD} more" if len(those) > _TOLD else ""
                cause = f"raw files are {what}: {', '.join(those[:_TOLD])}{more}"
                raise DataError(raw.root, cause, "bring them back, name another --root, or build again")

    def _parts(self, work: Work, names: Collection[str]) -> dict[str, Finished]:
        sizes = {name: engine.size(work, name) for name in names}
        workers = engine.workers_for(work.settings, sizes)
        parts = dict[str, Finished]()
        for source, result in engine.made(work, sizes, workers, self._meter):
            if isinstance(result, DataError):
                raise result
            parts[source] = result
            log.info("%s: made again (file %d of %d)", source, len(parts), len(sizes))
        return parts

    def _placed(self, work: Work, parts: Mapping[str, Finished]) -> dict[Any, tuple[list[Path], int]]:
        """Where the samples of parts are, by source, split and tile: files as `owns` says, and a number."""
        return {
            (source, sample.split, sample.tile): (paths, number)
            for source, one in parts.items()
            for file, paths in work.journal.paths(one.part)
            for number, sample in enumerate(file.samples)
        }

    def _samples(
        self, keys: Sequence[Any], found: Mapping[Any, tuple[list[Path], int]], own: Own
    ) -> Iterator[dict[str, NDArray[Any]]]:
        place = [name for name, _ in self._owns].index(own)
        opened: tuple[Path | None, Any] = None, None
        for key in keys:
            if key not in found:
                cause = f"made again, {key[0]} has other samples: another version cut it"
                raise DataError(self._folder, cause, _AGAIN)
            paths, number = found[key]
            if opened[0] != paths[place]:
                opened = paths[place], shards.opened(paths[place])[0]
            yield shards.from_batch(opened[1].get_batch(number))
