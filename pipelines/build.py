"""Raw files to a dataset, in parts that are finished one by one, so that a killed build goes on."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..config import differences
from ..errors import DataError, UsageError
from ..files import locked, sync
from ..metrics import BUILD, Meter
from . import shards, sources, text
from .assemble import assemble
from .checks import file_sha256
from .cut import Piece, Points, columns_of, cut, select, whole
from .dataset import Dataset
from .journal import Journal, Part, PartSample
from .manifest import VERSION, Column, Manifest
from .readers import files_of, opened
from .settings import DataSettings

__all__ = ["DataSettings", "build", "build_held"]

log = logging.getLogger(__name__)


def build(settings: DataSettings, out: Path, meter: Meter | None = None) -> Dataset:
    """Build ``out/dataset`` from the raw files that ``settings`` name, and open it.

    Nothing half-written is ever seen there. What a killed build finished lies in ``out/dataset.building``;
    the same call goes on from it and gives the same bytes. A dataset that is there already is returned if it
    was built from the same files with the same settings.

    Raises DataError, one line with the file and the cause, for bad input, for a dataset of other settings or
    sources, for a folder another process writes to, and for a disk that fails; UsageError for settings that
    cannot be carried out.
    """
    with _one_line(out), locked(out):
        return build_held(settings, out, meter)


def build_held(settings: DataSettings, out: Path, meter: Meter | None = None) -> Dataset:
    """As `build`, for a caller that holds the folder ``out``."""
    if settings.path is not None:
        raise UsageError(
            "data.path", "names a ready dataset, there is nothing to build", "remove it to build one"
        )
    root = sources.folder(settings.root)
    names = sources.find(root, settings.files or (text.FILES if settings.text else ()))
    listed = sources.splits_by_file(root, settings.split, names)
    meter = meter or Meter(BUILD)
    building, final = out / "dataset.building", out / "dataset"
    with _one_line(out):
        if final.exists():
            _check_same(final, settings, root, names)
        else:
            with _kept_if_used(building):
                if settings.text is not None:
                    with _shown(building, final) as fresh:
                        text.assemble(fresh, root, names, listed, settings, meter)
                else:
                    journal = Journal(building, _digest(settings))
                    parts = _make_parts(journal, root, names, settings, listed, meter)
                    with _shown(building, final) as fresh:
                        assemble(fresh, parts, journal, settings, listed, meter)
        shutil.rmtree(building, ignore_errors=True)
    return Dataset(final)


@contextmanager
def _kept_if_used(folder: Path) -> Iterator[None]:
    """A folder that stays after a failure only if something was finished in it."""
    folder.mkdir(exist_ok=True)
    try:
        yield
    except BaseException:
        if not any(folder.iterdir()):
            folder.rmdir()
        raise


@contextmanager
def _shown(building: Path, final: Path) -> Iterator[Path]:
    """A folder for a dataset that is made out of sight and shown whole, as ``final``."""
    fresh = building / "dataset"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    try:
        yield fresh
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    sync(fresh)
    fresh.rename(final)
    sync(final.parent)


def _make_parts(
    journal: Journal,
    root: Path,
    names: Sequence[str],
    settings: DataSettings,
    listed: Mapping[str, str],
    meter: Meter,
) -> list[Part]:
    parts: list[Part] = []
    for number, source in enumerate(names, 1):
        part = journal.finished(source, root / source)
        if part is None:
            part = _make_part(journal, root, source, settings, listed, meter)
            log.info("%s: %d samples (file %d of %d)", source, len(part.samples), number, len(names))
        if parts:
            _check_columns(root / source, part, parts[0])
        parts.append(part)
    return parts


def _make_part(
    journal: Journal, root: Path, source: str, settings: DataSettings, listed: Mapping[str, str], meter: Meter
) -> Part:
    """Read one source, cut it into samples, write them, and record that it is done."""
    path = root / source
    with meter.time("build.read"):
        read = opened(path, settings.read)
        digest = sources.digest(*read.files)
    meter.add("build.read", bytes=digest.bytes)
    selected = (select(path, scan, settings) for scan in read.scans)
    first = next(selected)
    schema = shards.arrow_schema(first.schema)
    samples: list[PartSample] = []
    dropped = outside = 0
    with journal.writing(source, schema) as writer:
        for number, points in enumerate(itertools.chain([first], selected)):
            dropped, outside = dropped + points.dropped, outside + points.outside
            meter.add("build.read", points_out=len(points.xyz) + points.dropped + points.outside)
            if read.objects:
                pieces: Iterable[Piece] = [whole(source, number, points, settings, listed)]
            else:
                pieces = cut(path, source, points, settings, listed)
            for piece in pieces:
                with meter.time("build.sample"):
                    columns = columns_of(path, source, points, piece, settings.row_order)
                meter.add("build.sample", points_in=len(piece.rows), points_out=len(piece.rows))
                with meter.time("build.pack"):
                    batch = shards.to_batch(schema, columns)
                    writer.write_batch(batch)
                meter.add("build.pack", points_out=len(piece.rows), bytes=batch.nbytes)
                label = columns["label"] if settings.classes else np.empty(0, np.int32)
                samples.append(_describe(points, piece, label))
    return journal.finish(
        Part(
            settings=journal.settings,
            source=source,
            bytes=digest.bytes,
            sha256=digest.sha256,
            written=file_sha256(journal.path(source)),
            dropped=dropped,
            outside=outside,
            objects=read.objects,
            columns=[
                Column(name=name, dtype=field.dtype.name, width=field.width, kind=field.kind)
                for name, field in first.schema.items()
            ],
            samples=samples,
        )
    )


def _describe(points: Points, piece: Piece, label: NDArray[Any]) -> PartSample:
    xyz = points.xyz[piece.rows]
    bounds = np.concatenate([xyz.min(axis=0), xyz.max(axis=0)]) if len(xyz) else np.zeros(6)
    known = label[label >= 0]
    return PartSample(
        split=piece.split,
        tile=piece.tile,
        rows=len(piece.rows),
        origin=piece.origin.tolist(),
        bounds=bounds.tolist(),
        label=int(np.bincount(known).argmax()) if len(known) else -1,
    )


def _check_columns(path: Path, part: Part, first: Part) -> None:
    """Refuse a source whose fields differ from the first one's: samples of a dataset have equal columns."""
    ours = {column.name: column for column in part.columns}
    theirs = {column.name: column for column in first.columns}
    fix = "list the fields that all files have in data.fields"
    for name in ours.keys() ^ theirs.keys():
        without, has = (path, first.source) if name in theirs else (first.source, path)
        raise DataError(without, f"has no field '{name}', {has} has it", fix)
    for name, column in ours.items():
        if column != theirs[name]:
            ours_text, theirs_text = (f"{c.dtype} x {c.width}" for c in (column, theirs[name]))
            raise DataError(path, f"field '{name}' is {ours_text}, in {first.source} {theirs_text}", fix)
    if list(ours) != list(theirs):
        part.columns.sort(key=lambda column: list(theirs).index(column.name))


def _check_same(final: Path, settings: DataSettings, root: Path, names: Sequence[str]) -> None:
    """Refuse a finished dataset that is not what these settings and sources would give."""
    there = Dataset(final).manifest
    keys = differences(_settings_of(there), settings.content())
    fix = "choose another --out, or remove the dataset to build it anew"
    if keys:
        raise DataError(final, f"was built with another data.{', data.'.join(keys)}", fix)
    for name in sorted(there.sources.keys() ^ set(names)):
        cause = "was built from" if name in there.sources else "was built without"
        raise DataError(final, f"{cause} {name}", fix)
    for name, digest in there.sources.items():
        path = root / name
        if sources.digest(*((path,) if settings.text else files_of(path))) != digest:
            raise DataError(path, f"has changed since {final} was built", fix)


def _settings_of(there: Manifest) -> DataSettings:
    """The settings a dataset records. Keys of JSON have no order; that of the classes is in its list."""
    classes = there.configuration["classes"]
    recorded = there.configuration | {"classes": {name: classes[name] for name in there.classes}}
    return DataSettings.model_validate_json(json.dumps(recorded))


def _digest(settings: DataSettings) -> str:
    # Not sorted by key: another order of the classes is another dataset.
    text = json.dumps([VERSION, settings.configuration()])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@contextmanager
def _one_line(out: Path) -> Iterator[None]:
    """Turn a failing disk into one line; what was finished stays for the next call."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        where = getattr(error, "filename", None) or out
        cause = getattr(error, "strerror", None) or str(error)
        raise DataError(
            where, f"the build stopped: {cause}", "mend that and run it again, it continues"
        ) from None
