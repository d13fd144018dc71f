"""Images in IDX files as clouds: each pixel above zero a point, each image a sample."""

from __future__ import annotations

import gzip
import logging
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from tamis.errors import DataError, TamisError, UsageError
from tamis.pipelines.build import build
from tamis.pipelines.inspect import inspect
from tamis.pipelines.readers import files_of, opened, read
from tamis.pipelines.readers.idx import Images
from tamis.pipelines.records import sample_name
from tamis.pipelines.settings import DataSettings
from tamis.pipelines.splits import BlocksSplit, FilesSplit, HashSplit
from tamis.pipelines.tiles import TileSettings
from tamis.pipelines.verify import verify
from tamis.samplers import farthest

FASHION = Path("/usr/share/datasets/fashion-mnist")
IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
Digests = Callable[[Path], dict[str, str]]


def encoded(values: NDArray[np.uint8]) -> bytes:
    shape = struct.pack(f">{values.ndim}I", *values.shape)
    return bytes([0, 0, 8, values.ndim]) + shape + values.tobytes()


def write(
    folder: Path, pixels: NDArray[np.uint8], label: NDArray[np.uint8], kind: str = "train", end: str = ""
) -> Path:
    """The two files of a set; the path of the images."""
    folder.mkdir(exist_ok=True)
    pack = gzip.compress if end else bytes
    for name, values in ((IMAGES, pixels), (LABELS, label)):
        (folder / f"{name.replace('train', kind)}{end}").write_bytes(pack(encoded(values)))
    return folder / f"{IMAGES.replace('train', kind)}{end}"


def random_set(n: int, seed: int = 0) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images of which every fifth is dark, and labels from 0 to 3."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(1, 256, (n, 8, 6)) * (rng.random((n, 8, 6)) < 0.4)
    pixels[::5] = 0
    return pixels.astype(np.uint8), rng.integers(0, 4, n).astype(np.uint8)


def of_images(root: Path, **keys: Any) -> DataSettings:
    return DataSettings(root=root, **{"files": ["*images*"], "classes": {"low": [0, 1], "high": [3]}, **keys})


@settings(max_examples=40, deadline=None)
@given(hnp.arrays(np.uint8, hnp.array_shapes(min_dims=3, max_dims=3, max_side=7)))
def test_clouds_are_the_images_again(pixels: NDArray[np.uint8]) -> None:
    images = Images(pixels, np.arange(len(pixels), dtype=np.uint8))
    points = 0
    for number, image in enumerate(pixels):
        scan = images[number]
        again = np.zeros_like(image)
        column, up = scan.xyz[:, 0].astype(int), scan.xyz[:, 1].astype(int)
        again[len(image) - 1 - up, column] = scan.fields["intensity"]
        assert np.array_equal(again, image)
        assert not scan.xyz[:, 2].any()
        assert (scan.fields["classification"] == number).all()
        assert scan.first == points
        points += len(scan.xyz)
        assert images.counts[number] == len(scan.xyz)
    assert [len(scan.xyz) for scan in images[1:]] == images.counts[1:].tolist()


@pytest.mark.parametrize("end", ["", ".gz"])
def test_every_image_is_a_sample(tmp_path: Path, end: str) -> None:
    pixels, label = random_set(23)
    write(tmp_path / "raw", pixels, label, end=end)
    write(tmp_path / "raw", pixels[:4], label[:4], "t10k", end)
    split = FilesSplit(kind="files", test=["t10k*"])
    dataset = build(of_images(tmp_path / "raw", split=split), tmp_path / "run")
    assert verify(dataset.path) == []
    assert [part.rows for part in dataset.splits["train"]] == [(0, 23)]
    assert len(dataset) == 27
    number = {0: 0, 1: 0, 3: 1}
    for i in range(23):
        sample = dataset.sample(i)
        assert (sample.name, sample.tile) == (f"{IMAGES}{end}#{i}", i)
        row, column = np.nonzero(pixels[i])
        order = np.argsort(sample.columns["row"])
        assert np.array_equal(sample.positions()[order], np.stack([column, 7 - row, 0 * row], axis=1))
        assert np.array_equal(sample.columns["intensity"][order], pixels[i][row, column])
        assert sample.columns["xyz"].dtype == np.float32
        assert set(sample.columns["label"].tolist()) <= {number.get(int(label[i]), -1)}
        assert np.array_equal(farthest(sample.columns["xyz"], sample.rows), np.arange(sample.rows))
        known = number.get(int(label[i]), -1) if sample.rows else -1
        assert dataset.samples.column("label")[i].as_py() == known
    assert dataset.rows[0] == 0  # a dark image is a sample without a point
    rows = np.concatenate([dataset.sample(i, ["row"]).columns["row"] for i in range(23)])
    assert sorted(rows.tolist()) == list(range(np.count_nonzero(pixels)))


def test_the_labels_are_part_of_the_source(tmp_path: Path, digests: Digests) -> None:
    pixels, label = random_set(6)
    path = write(tmp_path / "raw", pixels, label)
    assert files_of(path) == (path, tmp_path / "raw" / LABELS)
    build(of_images(tmp_path / "raw"), tmp_path / "run")
    write(tmp_path / "other", pixels, label)
    build(of_images(tmp_path / "other"), tmp_path / "again")
    assert digests(tmp_path / "run") == digests(tmp_path / "again")
    write(tmp_path / "raw", pixels, label[::-1].copy())
    with pytest.raises(DataError, match=f"{IMAGES}: has changed since"):
        build(of_images(tmp_path / "raw"), tmp_path / "run")


def test_a_part_is_made_again_where_labels_changed(tmp_path: Path, digests: Digests) -> None:
    pixels, label = random_set(6)
    write(tmp_path / "raw", pixels, label)
    (tmp_path / "raw" / "z-images").write_bytes(b"no images")
    with pytest.raises(DataError, match="of no format that is read"):
        build(of_images(tmp_path / "raw"), tmp_path / "run")
    (tmp_path / "raw" / "z-images").unlink()
    write(tmp_path / "raw", pixels, label[::-1].copy())
    build(of_images(tmp_path / "raw"), tmp_path / "run")
    build(of_images(tmp_path / "raw"), tmp_path / "uncut")
    assert digests(tmp_path / "run") == digests(tmp_path / "uncut")


def test_a_hash_divides_the_images(tmp_path: Path) -> None:
    write(tmp_path / "raw", *random_set(60))
    split = HashSplit(kind="hash", test=0.3, val=0.1)
    dataset = build(of_images(tmp_path / "raw", split=split), tmp_path / "run")
    assert set(dataset.splits) == {"train", "val", "test"}
    for row, name in enumerate(dataset.samples.column("split").to_pylist()):
        assert name == split.of(sample_name(IMAGES, dataset.samples.column("tile")[row].as_py()))


def test_common_ground_of_images_is_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "raw", *random_set(5))
    write(tmp_path / "raw", *random_set(5, seed=1), "t10k")
    with caplog.at_level(logging.WARNING):
        build(of_images(tmp_path / "raw", split=FilesSplit(kind="files", test=["t10k*"])), tmp_path / "run")
    assert not caplog.text


def damaged(folder: Path, name: str, change: Callable[[bytes], bytes], end: str) -> None:
    path = folder / f"{name}{end}"
    path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize(
    ("end", "name", "change", "message"),
    [
        ("", IMAGES, lambda b: b[:-1], rf"{IMAGES}: ends at offset 303, its header promises 288 bytes"),
        ("", IMAGES, lambda b: b + b"x", rf"{IMAGES}: goes on at offset 304, its header promises 288"),
        ("", IMAGES, lambda b: b[:9], rf"{IMAGES}: is cut: it ends at offset 9, inside its header"),
        (
            "",
            IMAGES,
            lambda b: b[:4] + b"\xff" * 12 + b[16:],
            "ends at offset 304, its header promises 79228162458",
        ),
        ("", IMAGES, lambda b: b[:4] + bytes(12), r"holds no image .its shape is \(0, 0, 0\)"),
        (
            "",
            IMAGES,
            lambda b: b"\0\0\x08\x04" + b[4:],
            r"holds no images: offset 0 has b'\\x00\\x00\\x08\\x04'",
        ),
        ("", IMAGES, lambda b: b"\0\0\x0d\x03" + b[4:], "of no format that is read"),
        ("", LABELS, lambda b: b"\0\0\x08\x03" + b[4:], rf"{LABELS}: holds no labels: offset 0 has"),
        (
            "",
            LABELS,
            lambda b: b[:-1],
            rf"{LABELS}: ends at offset 13, its header promises 6 bytes of labels",
        ),
        ("", LABELS, lambda b: b[:7] + b"\5" + b[8:-1], rf"{LABELS}: offset 4: has 5 labels, {IMAGES} has 6"),
        (".gz", IMAGES, lambda b: b[:-20], rf"{IMAGES}.gz: is cut: its gzip stream ends at offset \d\d\d;"),
        (
            ".gz",
            IMAGES,
            lambda b: b[:-6] + b"abcdef",
            rf"{IMAGES}.gz: is damaged before offset \d\d\d of its",
        ),
        (".gz", IMAGES, lambda b: b[:40] + b[60:], rf"{IMAGES}.gz: is "),
        (".gz", LABELS, lambda b: b[:5], rf"{LABELS}.gz: is cut: its gzip stream ends at offset 5"),
        (".gz", IMAGES, lambda _: gzip.compress(b"text"), "holds no images: offset 0 has b'text'"),
        (".gz", IMAGES, lambda _: gzip.compress(b""), "holds no images: offset 0 has b''"),
    ],
)
def test_damage_is_one_line_with_file_and_offset(
    tmp_path: Path, end: str, name: str, change: Callable[[bytes], bytes], message: str
) -> None:
    write(tmp_path / "raw", *random_set(6), end=end)
    damaged(tmp_path / "raw", name, change, end)
    with pytest.raises(DataError, match=message) as caught:
        build(of_images(tmp_path / "raw"), tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run" / "dataset").exists()


@pytest.mark.parametrize("seed", range(3))
def test_any_byte_changed_never_crashes(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    path = write(tmp_path / "raw", *random_set(6), end=".gz" * (seed > 0))
    whole = path.read_bytes()
    for at in rng.choice(len(whole), 60, replace=False):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ int(rng.integers(1, 256))]) + whole[at + 1 :])
        try:
            assert len(opened(path).scans) == 6
        except DataError as error:
            assert "\n" not in str(error)  # noqa: PT017
        path.write_bytes(whole[:at])
        with pytest.raises(DataError):
            opened(path)


def test_labels_that_are_not_found(tmp_path: Path) -> None:
    path = write(tmp_path / "raw", *random_set(6))
    (tmp_path / "raw" / LABELS).rename(tmp_path / "raw" / f"{LABELS}.other")
    with pytest.raises(DataError, match=f"its labels {LABELS} are not beside it"):
        opened(path)
    with pytest.raises(DataError, match="has a name without 'images'"):
        opened(path.rename(tmp_path / "raw" / "pictures"))


def test_compressed_and_plain_may_stand_together(tmp_path: Path) -> None:
    pixels, label = random_set(6)
    path = write(tmp_path / "raw", pixels, label)
    labels = tmp_path / "raw" / LABELS
    labels.with_name(f"{LABELS}.gz").write_bytes(gzip.compress(labels.read_bytes()))
    labels.unlink()
    assert files_of(path)[1].name == f"{LABELS}.gz"
    assert len(opened(path).scans) == 6


@pytest.mark.parametrize(
    ("keys", "kind", "message"),
    [
        (
            {"tiles": TileSettings(size=4.0)},
            UsageError,
            f"data.tiles: cuts ground, the clouds of {IMAGES} stand for",
        ),
        ({"split": BlocksSplit(kind="blocks", size=[4, 4])}, UsageError, "data.split: cuts ground"),
        ({"files": ["*"]}, DataError, f"{LABELS}: holds no images: offset 0 has"),
        ({"label": "digit"}, DataError, "has no field 'digit' .it has intensity, classification"),
    ],
)
def test_settings_that_do_not_fit(
    tmp_path: Path, keys: dict[str, Any], kind: type[TamisError], message: str
) -> None:
    write(tmp_path / "raw", *random_set(6))
    with pytest.raises(kind, match=message):
        build(of_images(tmp_path / "raw", **keys), tmp_path / "run")


def test_a_file_of_images_is_described_and_is_no_cloud(tmp_path: Path) -> None:
    pixels, label = random_set(6)
    path = write(tmp_path / "raw", pixels, label, end=".gz")
    text = inspect(path)
    assert "images       6, each a cloud" in text
    assert f"points       {np.count_nonzero(pixels)} (an image: 0 to" in text
    with pytest.raises(DataError, match="holds 6 images, not one cloud"):
        read(path)


def test_fashion_mnist(tmp_path: Path) -> None:
    if not FASHION.is_dir():
        pytest.skip(f"no {FASHION}: install Debian's dataset-fashion-mnist")
    source = opened(FASHION / "t10k-images-idx3-ubyte.gz")
    assert len(source.scans) == 10_000
    pixels, label = source.scans.pixels, source.scans.label  # type: ignore[attr-defined]
    assert np.bincount(label).tolist() == [1000] * 10
    write(tmp_path / "raw", pixels[:300], label[:300])
    dataset = build(of_images(tmp_path / "raw", classes={"shirt": [6], "boot": [9]}), tmp_path / "run")
    found = dataset.samples.column("label").to_pylist()
    assert found == [{6: 0, 9: 1}.get(int(code), -1) for code in label[:300]]
    assert dataset.rows.min() > 50
