"""TFRecord files for DALI's reader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tamis.errors import DataError
from tamis.pipelines.dali_opened import Opened
from tamis.pipelines.dali_sources import opened
from tamis.pipelines.dali_tfrecord import FeatureColumn, TfrecordSource
from tamis.pipelines.ops import Columns

Read = Callable[[Opened], list[tuple[int, Columns]]]
SIZES = [0, 1, 1000, 4096]

FEATURES = {
    "xyz": FeatureColumn(feature="points", dtype="float32", width=3),
    "label": FeatureColumn(feature="seg", dtype="int32", stored="ints"),
    "intensity": FeatureColumn(feature="i", dtype="float32", stored="floats"),
}


def record(n: int, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    xyz = rng.normal(size=(n, 3)).astype(np.float32)
    label = rng.integers(-1, 5, n).astype(np.int32)
    intensity = np.arange(n, dtype=np.float32) / 7
    return {"points": xyz.tobytes(), "seg": label, "i": intensity, "extra": b"?"}


def test_records_give_their_samples(tmp_path: Path, tfrecord: SimpleNamespace, read_all: Read) -> None:
    files = [
        tfrecord.write(tmp_path / f"{part}.tfrecord", [record(n, n) for n in sizes])
        for part, sizes in enumerate((SIZES[:3], SIZES[3:], []))
    ]
    source = opened(TfrecordSource(paths=tuple(files), columns=FEATURES))
    assert source.names == ["0.tfrecord#0", "0.tfrecord#1", "0.tfrecord#2", "1.tfrecord#0"]
    for i, (number, columns) in enumerate(read_all(source)):
        wanted = record(SIZES[i], SIZES[i])
        assert number == i
        assert columns["xyz"].tobytes() == wanted["points"]
        assert columns["xyz"].shape == (SIZES[i], 3)
        assert np.array_equal(columns["label"], wanted["seg"])
        assert columns["label"].dtype == np.int32
        assert np.array_equal(columns["intensity"], np.arange(SIZES[i], dtype=np.float32) / 7)


@pytest.mark.parametrize(
    ("column", "says"),
    [
        (
            FeatureColumn(feature="point", dtype="float32", width=3),
            r"lacks feature 'point' stored as bytes; present 'extra' \(bytes\), 'i' \(floats\)",
        ),
        (FeatureColumn(feature="seg", dtype="float32", width=3), "lacks feature 'seg' stored as bytes"),
        (FeatureColumn(feature="points", dtype="float32", width=3, stored="floats"), "stored as floats"),
    ],
)
def test_a_feature_that_is_not_there_is_told(
    tmp_path: Path, column: FeatureColumn, says: str, tfrecord: SimpleNamespace
) -> None:
    path = tfrecord.write(tmp_path / "a.tfrecord", [record(3), record(4)])
    with pytest.raises(DataError, match=f"a.tfrecord: record 0, byte 0: .*{says}"):
        opened(TfrecordSource(paths=(path,), columns={"xyz": column}))


def test_a_later_record_without_a_feature_is_named(tmp_path: Path, tfrecord: SimpleNamespace) -> None:
    bad = record(4)
    del bad["i"]
    path = tfrecord.write(tmp_path / "a.tfrecord", [record(3), bad])
    with pytest.raises(DataError, match=r"record 1, byte \d+: lacks feature 'i' stored as floats"):
        opened(TfrecordSource(paths=(path,), columns=FEATURES))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"points": b"\0" * 25}, "column xyz: has 25 bytes, no whole rows of 3 float32"),
        ({"seg": np.arange(9)}, r"column label: has shape \(9,\)"),
        ({"seg": np.array([2**40, 0, 0])}, "column label: has numbers that int32 does not hold"),
    ],
)
def test_a_record_whose_values_do_not_fit_is_named(
    tmp_path: Path, changes: Any, says: str, tfrecord: SimpleNamespace, read_all: Read
) -> None:
    path = tfrecord.write(tmp_path / "a.tfrecord", [record(3), {**record(3), **changes}])
    source = opened(TfrecordSource(paths=(path,), columns=FEATURES))
    with pytest.raises(DataError, match=f"sample a.tfrecord#1: {says}"):
        read_all(source)


def test_cut_and_damaged_records_are_told(tmp_path: Path, tfrecord: SimpleNamespace) -> None:
    path = tfrecord.write(tmp_path / "a.tfrecord", [record(3), record(4)])
    data = path.read_bytes()
    source = TfrecordSource(paths=(path,), columns=FEATURES)
    first = len(tfrecord.framed(tfrecord.example(record(3))))
    for size in range(1, len(data)):
        path.write_bytes(data[:size])
        if size != first:
            with pytest.raises(DataError, match=r"a.tfrecord: record \d, byte \d+: "):
                opened(source)
    for at in range(12):
        path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        with pytest.raises(DataError, match="record 0, byte 0: its length is damaged or cut"):
            opened(source)
    path.write_bytes(tfrecord.framed(b"\xff" * 40))
    with pytest.raises(DataError, match=r"holds no tf.train.Example"):
        opened(source)
    path.write_bytes(
        tfrecord.framed(
            tfrecord.message(
                1,
                tfrecord.message(
                    1, tfrecord.message(1, b"points") + tfrecord.message(2, tfrecord.message(1, b""))
                ),
            )
        )
    )
    with pytest.raises(DataError, match="'points' \\(0 byte strings\\)"):
        opened(source)
