"""A dataset to tars in the manner of WebDataset, or to TFRecord files, a folder a split."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from ..files import sync
from . import convert_card, manifest, shards, tfrecord, webdataset_tar
from .convert_card import FEATURE, Card, card_of, quoted
from .dataset import Dataset, contents
from .records import Sample

log = logging.getLogger(__name__)

Format = Literal["webdataset", "tfrecord"]


def write(dataset: Dataset, folder: Path, to: Format, shard_mb: int) -> int:
    """Write every sample to ``folder`` and give the number of shards; the bytes depend on the dataset alone.

    A shard holds at most ``shard_mb`` MiB of arrays, or one sample. Raises DataError for damage.
    """
    if to == "webdataset" and len({name.lower() for name in dataset.fields}) < len(dataset.fields):
        log.warning("%s: columns differ in case alone, which webdataset ignores", dataset.path)
    splits = dataset.samples.column("split").to_pylist()
    sizes = sum(dataset.rows_of(name) * field.row_bytes for name, field in dataset.fields.items())
    layout = shards.divide(np.asarray(sizes).tolist(), splits, [""] * len(splits), shard_mb << 20)
    numbers = Counter[str]()
    for rows in layout:
        split = splits[rows.start]
        own = folder / split
        own.mkdir(exist_ok=True)
        name = f"shard-{numbers[split]:05d}"
        numbers[split] += 1
        if to == "webdataset":
            _write_tar(dataset, rows, own / f"{name}.tar")
        else:
            _write_records(dataset, rows, own / f"{name}.tfrecord")
    for split in numbers:
        sync(folder / split)
    path = folder / convert_card.NAME
    path.write_bytes(contents(dataset.path / manifest.NAME))
    sync(path)
    return len(layout)


def _write_tar(dataset: Dataset, rows: Sequence[int], path: Path) -> None:
    with webdataset_tar.writing(path) as tar:
        for row in rows:
            sample, card = _sample(dataset, row)
            key = f"{row:08d}"  # the name may hold dots, which end a key
            webdataset_tar.put(tar, f"{key}.json", card.sealed())
            for name, values in _arrays(sample).items():
                webdataset_tar.put(tar, f"{key}.{quoted(name)}.npy", webdataset_tar.npy_bytes(values))


def _write_records(dataset: Dataset, rows: Sequence[int], path: Path) -> None:
    index = []
    with path.open("wb") as file:
        for row in rows:
            sample, card = _sample(dataset, row)
            features: dict[str, bytes | NDArray[np.int64]] = {FEATURE: card.sealed()}
            for name, values in _arrays(sample).items():
                feature = quoted(name)
                little = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
                features[feature] = little.tobytes()
                features[f"{feature}/dtype"] = values.dtype.name.encode()
                features[f"{feature}/shape"] = np.array(values.shape, np.int64)
            example = tfrecord.example(features)
            if len(example) > tfrecord.LARGEST:
                cause = f"sample {sample.name} takes {len(example)} bytes, protobuf has at most 2 GiB"
                raise DataError(dataset.path, cause, "convert it to webdataset, or build smaller tiles")
            data = tfrecord.framed(example)
            index.append(f"{file.tell()} {len(data)}\n")
            file.write(data)
    sync(path)
    path.with_suffix(".idx").write_text("".join(index))
    sync(path.with_suffix(".idx"))


def _sample(dataset: Dataset, row: int) -> tuple[Sample, Card]:
    sample = dataset.sample(row)
    return sample, card_of(dataset, row, sample)


def _arrays(sample: Sample) -> dict[str, NDArray[Any]]:
    return {**sample.columns, **sample.annotations}
