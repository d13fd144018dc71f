"""Every byte of a dataset against its digests, and the index against the shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..samplers.threads import threads_for
from . import manifest, shards
from .checks import blocks, chunk_sums, damaged_chunks, first_damage
from .dataset import contents, folder_of, table
from .manifest import Manifest
from .records import CHECK_ROWS, Field, sample_id
from .stored import Stored, stored


@dataclass(frozen=True)
class Problem:
    """A fault: the file's name in the dataset, the byte where it starts, and what is wrong."""

    file: str
    offset: int
    cause: str

    def __str__(self) -> str:
        return f"{self.file}: offset {self.offset}: {self.cause}"


def verify(path: str | Path, threads: int | None = None) -> list[Problem]:
    """All faults of a dataset, none if it is whole. Reads everything, a file a thread.

    ``threads``: at most so many, by default the CPUs this process may use; they change no answer.

    One flipped bit, in any file, is named with its exact byte; other damage with the first block of 256 rows
    or, outside the columns, the MiB it is in. Raises DataError where there is no dataset or it is of another
    version.
    """
    folder = folder_of(path)
    text = contents(folder / manifest.NAME)
    damage = manifest.find_damage(text)
    if damage is not None:
        manifest.check_version(folder / manifest.NAME, text, damage)
        cause = "one bit is flipped" if damage.one_bit else "the text is not what was written"
        return [Problem(manifest.NAME, damage.offset, cause)]
    described = manifest.unseal(folder / manifest.NAME, text)
    tables = sorted(name for name in described.files if shards.shard_of(name) is None)
    held = sorted(described.files.keys() - set(tables))
    problems = [*_strangers(folder, described)]
    # SHA-256, CRC32C of a MiB and reads all let the other threads go on.
    with ThreadPoolExecutor(threads_for(threads, len(described.files))) as pool:
        # The tables first: they name what is damaged in a shard.
        found = [*pool.map(partial(_check_file, folder, described, tables_whole=False), tables)]
        # A shard is looked through right after its bytes are checked, while the system still holds them.
        checked = [*pool.map(partial(_check_shard, folder, described, not any(found)), held)]
    found += [faults for faults, _ in checked]
    problems += [problem for one in found for problem in one]
    places = {name: at for name, (_, at) in zip(held, checked, strict=True) if at}
    return problems or [*_check_index(folder, described, places)]


def _strangers(folder: Path, described: Manifest) -> Iterator[Problem]:
    for path in sorted(folder.iterdir()):
        if path.name not in described.files and path.name != manifest.NAME:
            yield Problem(path.name, 0, "is not part of the dataset")


def _check_file(folder: Path, described: Manifest, name: str, *, tables_whole: bool) -> list[Problem]:
    """Faults of one file; in a shard they are named by sample, column and rows if the tables are whole."""
    return [*_faults(folder, described, name, tables_whole)]


def _check_shard(
    folder: Path, described: Manifest, tables_whole: bool, name: str
) -> tuple[list[Problem], Stored | None]:
    """The same for a shard, and what lies where in it, if it has none."""
    faults = _check_file(folder, described, name, tables_whole=tables_whole)
    shard = shards.shard_of(name)
    if faults or shard is None:
        return faults, None
    return [], stored(folder / name, _fields(described, shard[1]))


def _faults(folder: Path, described: Manifest, name: str, tables_whole: bool) -> Iterator[Problem]:
    digest, path = described.files[name], folder / name
    try:
        size, sha256, sums = chunk_sums(path)
        if size != digest.bytes:
            yield Problem(name, min(size, digest.bytes), f"has {size} bytes, {digest.bytes} were written")
            return
        damage = [*damaged_chunks(path, digest.crc32c)] if sums != digest.crc32c else []
    except FileNotFoundError:
        yield Problem(name, 0, "is missing")
        return
    except OSError as error:
        yield Problem(name, 0, f"cannot be read ({error.strerror})")
        return
    for start, stop, bit in damage:
        offset = start if bit is None else start + bit // 8
        cause = "the bytes from here on are not what was written" if bit is None else "one bit is flipped"
        if tables_whole and (shard := shards.shard_of(name)):
            where = _Where(folder, *shard, described)
            offset = where.first_damage(start, stop) if bit is None else offset
            cause += f" ({where.name(offset)})"
        yield Problem(name, offset, cause)
    if not damage and sha256 != digest.sha256:
        yield Problem(name, 0, "its SHA-256 is not that of what was written")


class _Where:
    """What lies where in one shard, of the columns or of one annotation."""

    def __init__(self, folder: Path, number: int, annotation: str | None, described: Manifest) -> None:
        self.path = folder / shards.shard_name(number, annotation)
        self.fields = _fields(described, annotation)
        self.index, self.sums = (
            table(folder / shards.INDEX),
            table(folder / shards.checksums_name(annotation)),
        )
        own = f"_{annotation}" if annotation else ""
        self.sizes, self.block = self.index[f"rows{own}"], self.index[f"block{own}"]
        self.names = shards.opened(folder / shards.SAMPLES)[0].get_batch(0).column("name")
        self.rows = np.flatnonzero(self.index["shard"] == number)

    def columns(self) -> Iterator[tuple[int, str, int, int]]:
        """Index row, column name, first byte and end of each column of each sample."""
        for row in self.rows.tolist():
            for name, field in self.fields.items():
                start = int(self.index[f"pos_{name}"][row])
                yield row, name, start, start + int(self.sizes[row]) * field.row_bytes

    def first_damage(self, start: int, stop: int) -> int:
        """The first byte in [start, stop) of a block of rows that is not as written; ``start`` if none is."""
        data = np.memmap(self.path, np.uint8, "r")
        found = []
        for row, name, first, end in self.columns():
            if first < stop and end > start:
                block = int(self.block[row])
                sums = self.sums[name][block : block + blocks(int(self.sizes[row]))]
                damage = first_damage(data[first:end].data, sums, self.fields[name].row_bytes)
                if damage is not None:
                    found.append(max(first + damage, start))
        return min(found, default=start)

    def name(self, offset: int) -> str:
        """Sample, column and rows at a byte."""
        for row, name, first, end in self.columns():
            if first <= offset < end:
                at = (offset - first) // self.fields[name].row_bytes // CHECK_ROWS * CHECK_ROWS
                last = min(at + CHECK_ROWS, int(self.sizes[row])) - 1
                return f"sample {self.names[row].as_py()}, column {name}, rows {at} to {last}"
        return "between the columns"


def _check_index(folder: Path, described: Manifest, places: Mapping[str, Stored]) -> Iterator[Problem]:
    """Whether the tables say what the shards hold; only for files that are as they were written."""
    index = table(folder / shards.INDEX)
    about = shards.opened(folder / shards.SAMPLES)[0].get_batch(0).to_pydict()
    for own in [*([None] if described.columns else []), *(one.name for one in described.annotations)]:
        yield from _check_positions(folder, described, own, index, about["name"], places)
    for row, (source, tile) in enumerate(zip(about["source"], about["tile"], strict=True)):
        if index["id"][row] != sample_id(source, tile):
            yield _disagreement(about["name"][row], "id")
    for split, ranges in described.splits.items():
        for part in ranges:
            if set(about["split"][slice(*part.rows)]) != {split}:
                yield Problem(manifest.NAME, 0, f"split {split} has a range with samples of another")


def _check_positions(
    folder: Path,
    described: Manifest,
    annotation: str | None,
    index: dict[str, NDArray[Any]],
    names: list[str],
    places: Mapping[str, Stored],
) -> Iterator[Problem]:
    """The same for the columns, or for one annotation."""
    fields, sums = _fields(described, annotation), table(folder / shards.checksums_name(annotation))
    own = f"_{annotation}" if annotation else ""
    known = sorted((of[0], name) for name in places if (of := shards.shard_of(name)) and of[1] == annotation)
    rows = np.concatenate([places[name].rows for _, name in known])
    shard = np.concatenate([np.full(len(places[name].rows), number) for number, name in known])
    counts = {len(rows), len(index["id"]), len(names), described.counts.samples}
    if len(counts) > 1:
        yield Problem(shards.INDEX, 0, f"shards, index, samples and {manifest.NAME} count {counts} samples")
        return
    wrong = {"shard or rows": (index["shard"] != shard) | (index[f"rows{own}"] != rows)}
    count = -(-rows // CHECK_ROWS)
    begins = np.cumsum(count) - count
    for name in fields:
        positions = np.concatenate([places[file].positions[name] for _, file in known])
        wrong[f"position of {name}"] = index[f"pos_{name}"] != positions
        found = np.concatenate([places[file].sums[name] for _, file in known])
        wrong[f"checksums of {name}"] = index[f"block{own}"] != begins
        if len(found) != len(sums[name]):
            wrong[f"checksums of {name}"][:] = True
        else:
            odd = np.searchsorted(begins, np.flatnonzero(found != sums[name]), "right") - 1
            wrong[f"checksums of {name}"][odd] = True
    for row in np.flatnonzero(np.any([*wrong.values()], axis=0)).tolist():
        yield _disagreement(names[row], next(what for what, rows in wrong.items() if rows[row]))


def _disagreement(name: str, what: str) -> Problem:
    return Problem(shards.INDEX, 0, f"sample {name}: {what} does not agree with the shard")


def _fields(described: Manifest, annotation: str | None) -> dict[str, Field]:
    """The columns, or one annotation alone."""
    if annotation is None:
        return {column.name: column.field() for column in described.columns}
    return {one.name: one.field() for one in described.annotations if one.name == annotation}
