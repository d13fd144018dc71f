"""What the tests share: where real scans are, and one BLAS thread, as a rank has."""

from __future__ import annotations

import io
import os
import signal
import struct
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
from crc32c import crc32c

from tamis.pipelines import shards
from tamis.pipelines.dataset import Dataset
from tamis.pipelines.finish import About, Described, finish
from tamis.pipelines.manifest import Column, Counts, SplitCounts
from tamis.pipelines.settings import DataSettings
from tamis.pipelines.shard_writer import write_shard
from tamis.pipelines.statistics import moments_of

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A run in the background ignores Ctrl-C, and so would the processes that tests send it to.
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def data_folder() -> Path:
    """The folder of real scans: $TAMIS_DATA, else a checkout's sibling; skips where there is none."""
    folder = Path(os.environ.get("TAMIS_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no folder of real scans at {folder}: set TAMIS_DATA")
    return folder


@pytest.fixture
def shipped_laz() -> Path:
    """The scan that ships with the package."""
    return ROOT / "configs" / "data" / "laspy_append-bug.laz"


@pytest.fixture
def write_dataset() -> Callable[..., Dataset]:
    """``write_dataset(folder, samples, layout, columns, annotations)``: a dataset as a build writes it.

    ``samples``: dicts of arrays, all for training; ``layout``: those of each shard.
    """

    def write(
        folder: Path,
        samples: Sequence[Mapping[str, Any]],
        layout: Sequence[range],
        columns: list[Column],
        annotations: list[Column],
    ) -> Dataset:
        folder.mkdir()
        for own in [*([columns] if columns else []), *([one] for one in annotations)]:
            fields = {column.name: column.field() for column in own}
            annotation = None if own is columns else own[0].name
            for number, rows in enumerate(layout):
                path = folder / shards.shard_name(number, annotation)
                write_shard(path, fields, (samples[row] for row in rows))
        n, points = len(samples), sum(len(sample[columns[0].name]) for sample in samples) if columns else 0
        counts = SplitCounts(
            samples=n,
            points=points,
            classes={},
            ignored=0,
            dropped=0,
            annotations={one.name: sum(len(sample[one.name]) for sample in samples) for one in annotations},
        )
        moments = moments_of({one.name: one.field() for one in columns})
        for sample in samples:
            for name, one in moments.items():
                one.add(sample[name])
        described = Described(
            columns=columns,
            annotations=annotations,
            counts=Counts(samples=n, points=points, dropped=0, outside=0, splits={"train": counts}),
            moments=moments,
            row_order="source",
            sources={},
        )
        origin, bounds = np.zeros((n, 3)), np.zeros((n, 6))
        about = About(["a.bin"] * n, range(n), ["train"] * n, origin, bounds, [-1] * n)
        finish(folder, about, layout, described, DataSettings())
        return Dataset(folder)

    return write


@pytest.fixture
def write_tar() -> Callable[[Path, Mapping[str, Any]], Path]:
    """``write_tar(path, {name: array or bytes})``: a tar of NPY files."""

    def write(path: Path, files: Mapping[str, Any]) -> Path:
        with tarfile.open(path, "w") as tar:
            for name, values in files.items():
                data = values if isinstance(values, bytes) else saved(values)
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        return path

    return write


@pytest.fixture
def tfrecord() -> SimpleNamespace:
    """``write(path, [{feature: bytes or array}])`` makes a TFRecord file of `example`s in a frame each."""

    def write(path: Path, records: Sequence[Mapping[str, Any]]) -> Path:
        path.write_bytes(b"".join(framed(example(record)) for record in records))
        return path

    return SimpleNamespace(write=write, example=example, framed=framed, message=message)


def saved(values: Any) -> bytes:
    """An NPY file."""
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)


def message(number: int, data: bytes) -> bytes:
    """A field of a protobuf message: https://protobuf.dev/programming-guides/encoding."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def feature(values: Any) -> bytes:
    if isinstance(values, bytes):
        return message(1, message(1, values))
    if values.dtype.kind == "f":
        return message(2, message(1, values.astype("<f4").tobytes()))
    return message(3, message(1, b"".join(varint(int(v) & 2**64 - 1) for v in values)))


def example(features: Mapping[str, Any]) -> bytes:
    """A tf.train.Example."""
    pairs = (message(1, name.encode()) + message(2, feature(v)) for name, v in features.items())
    return message(1, b"".join(message(1, pair) for pair in pairs))


def framed(data: bytes) -> bytes:
    """A record of a TFRecord file."""

    def masked(part: bytes) -> bytes:
        crc = crc32c(part)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    length = struct.pack("<Q", len(data))
    return length + masked(length) + data + masked(data)
