"""Raw files to a dataset, in parts that are finished one by one, so that a killed build goes on."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from ..config import differences
from ..errors import DataError, UsageError
from ..files import locked
from ..metrics import BUILD, Meter
from . import engine, sources, text
from .alike import odd, usual
from .assemble import assemble
from .bad import BadFiles
from .dataset import Dataset
from .engine_ray import made_by_ray
from .journal import Finished, Journal, Part
from .made import check_built, settings_of
from .manifest import VERSION, Manifest, Skipped
from .out_of_sight import shown
from .parts import Work, stopped
from .progress import Progress
from .raw import Raw, completed
from .settings import DataSettings
from .where import condition

__all__ = ["DataSettings", "build", "build_held"]

log = logging.getLogger(__name__)


def build(
    settings: DataSettings,
    out: Path,
    meter: Meter | None = None,
    progress: Progress | None = None,
    *,
    update: bool = False,
) -> Dataset:
    """Build ``out/dataset`` from the raw files that ``settings`` name, and open it.

    Nothing half-written is ever seen there. What a killed build finished lies in ``out/dataset.building``;
    the same call goes on from it and gives the same bytes. A dataset that is there already is returned if it
    was built from the same files with the same settings. With ``update`` one that was built from other files
    is replaced: parts of files that did not change are taken from ``out/dataset.building``, where ``update``
    leaves them.

    Raises DataError, one line with the file and the cause, for bad input, for a dataset of other settings or
    sources, for a folder another process writes to, and for a disk that fails; UsageError for settings that
    cannot be carried out.
    """
    with _one_line(out), locked(out):
        return build_held(settings, out, meter, progress, update=update)


def build_held(
    settings: DataSettings,
    out: Path,
    meter: Meter | None = None,
    progress: Progress | None = None,
    *,
    update: bool = False,
) -> Dataset:
    """As `build`, for a caller that holds the folder ``out``."""
    if settings.path is not None:
        raise UsageError(
            "data.path", "names a ready dataset, there is nothing to build", "remove it to build one"
        )
    root = sources.folder(settings.root)
    settings = completed(settings, root)
    if settings.where is not None:
        condition(settings.where, settings.classes)
    raw = Raw(root, settings)
    names, listed = raw.sources()
    meter = meter or Meter(BUILD)
    progress = progress or Progress(meter)
    building, final = out / "dataset.building", out / "dataset"
    with _one_line(out):
        if not final.exists() or not _is_same(final, raw, names, update=update):
            with _kept_if_used(building):
                if settings.text is not None:
                    with shown(building, final) as fresh:
                        text.assemble(fresh, root, names, listed, settings, meter)
                else:
                    journal = Journal(building, _digest(settings))
                    journal.clear()
                    work = Work(root, settings, listed, journal)
                    parts, skipped = _make_parts(work, names, meter, progress)
                    with shown(building, final) as fresh:
                        assemble(fresh, parts, skipped, work, meter)
                    journal.keep(names)
        if not update or settings.text is not None:
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


def _make_parts(
    work: Work, names: Sequence[str], meter: Meter, progress: Progress
) -> tuple[list[Finished], dict[str, Skipped]]:
    """The parts of all sources, in the order of their names, and the sources that are left out."""
    root, settings, bad, found = work.root, work.settings, BadFiles(work), dict[str, Finished]()
    untried = [*bad.untried(names)]
    sizes = {name: engine.size(work, name) for name in untried}
    workers = engine.workers_for(settings, sizes)
    progress.begin(len(names), sizes, workers)
    made = made_by_ray if settings.engine == "ray" else engine.made
    for source, result in made(work, sizes, workers, meter):
        if isinstance(result, DataError):
            bad.add(source, result)
            progress.add(source, None)
            continue
        found[source] = result
        samples = len(result.part.samples)
        progress.add(source, samples)
        log.info("%s: %d samples (file %d of %d)", source, samples, progress.done, len(names))
        if settings.bad_files == "stop":
            _check_columns(root, [result.part, next(iter(found.values())).part])
    parts = [found[name].part for name in names if name in found]
    if settings.bad_files == "skip" and parts:
        most = usual(parts)
        for part in parts:
            if error := odd(root / part.source, part, most):
                bad.add(part.source, error, alone=False)
    bad.tell()
    parts = [part for part in parts if part.source not in bad.skipped]
    if not parts:
        name = min(bad.skipped)
        raise DataError(root / name, f"{bad.skipped[name].reason}; so are all files", "correct data.files")
    _check_columns(root, parts)
    return [found[part.source] for part in parts], bad.skipped


def _check_columns(root: Path, parts: Sequence[Part]) -> None:
    """Refuse sources whose fields differ from those of the first by name."""
    first, *others = sorted(parts, key=lambda part: part.source)
    for part in others:
        if error := odd(root / part.source, part, first):
            raise error


def _is_same(final: Path, raw: Raw, names: Sequence[str], *, update: bool) -> bool:
    """Refuse a finished dataset that these settings would not give; other sources are for an ``update``."""
    there = Dataset(final).manifest
    check_built(final, there)
    keys = differences(settings_of(there), raw.settings.content())
    if keys:
        fix = "choose another --out, or remove the dataset to build it anew"
        raise DataError(final, f"was built with another data.{', data.'.join(keys)}", fix)
    try:
        _check_sources(final, there, raw, names)
    except DataError as difference:
        if not update:
            raise
        log.info("%s", difference.cause)
        return False
    return True


def _check_sources(final: Path, there: Manifest, raw: Raw, names: Sequence[str]) -> None:
    """Refuse a finished dataset of other sources, naming the first."""
    fix = "choose another --out, or bring it up to date with `tamis build --update`"
    for name, skipped in there.skipped.items() if raw.settings.bad_files == "stop" else ():
        cause = f"was built without {name}, which is bad: {skipped.reason}"
        raise DataError(final, cause, f"set data.bad_files to 'skip', or {fix}")
    for name in sorted((there.sources | there.skipped).keys() ^ set(names)):
        cause = "was built from" if name in there.sources else "was built without"
        raise DataError(final, f"{cause} {name}", fix)
    for name, digest in there.sources.items():
        if raw.digest(name) != digest:
            raise DataError(raw.root / name, f"has changed since {final} was built", fix)
    for name, skipped in there.skipped.items():
        now = raw.digest_of_bad(name)
        if skipped.digest is None and now is not None:
            raise DataError(raw.root / name, f"is not in {final}: {skipped.reason}", fix)
        if now != skipped.digest:
            raise DataError(raw.root / name, f"has changed since {final} was built without it", fix)


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
        raise stopped(error, out) from None
