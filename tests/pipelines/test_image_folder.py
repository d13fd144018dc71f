"""Folders of images: found with their classes, kept byte by byte, and refused where they are cut."""

from __future__ import annotations

import io
import logging
import os
import struct
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.config import check
from tamis.errors import DataError
from tamis.pipelines.build import build
from tamis.pipelines.convert import convert
from tamis.pipelines.dataset import Dataset
from tamis.pipelines.inspect import inspect
from tamis.pipelines.layouts import LAYOUTS, image_folder
from tamis.pipelines.layouts.images import check_image
from tamis.pipelines.settings import DataSettings
from tamis.pipelines.subset import subset
from tamis.pipelines.verify import verify

PIL_Image = pytest.importorskip("PIL.Image", reason="matplotlib brings Pillow, which writes the images")
LAYOUT = LAYOUTS["image_folder"]

KINDS: dict[str, dict[str, Any]] = {
    "JPEG": {"quality": 60},
    "JPEG progressive": {"progressive": True},
    "JPEG with restarts": {"restart_marker_rows": 1, "comment": b"\xff\xd9 is no end here"},
    "PNG": {},
    "WEBP": {},
    "WEBP lossless": {"lossless": True},
    "WEBP animated": {"save_all": True},
    "BMP": {},
}


def encoded(kind: str, seed: int = 0, mode: str = "RGB") -> bytes:
    rng = np.random.default_rng(seed)
    size = (int(rng.integers(8, 24)), int(rng.integers(8, 24)))
    image = PIL_Image.fromarray(rng.integers(0, 256, (*size, 3), np.uint8)).convert(mode)
    keys = KINDS[kind]
    if "save_all" in keys:
        keys = keys | {"append_images": [image.rotate(90)]}
    file = io.BytesIO()
    image.save(file, kind.split()[0], **keys)
    return file.getvalue()


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@settings(deadline=None)
@given(kind=st.sampled_from(list(KINDS)), seed=st.integers(0, 2**32), tail=st.binary(max_size=20))
def test_whole_images_pass_with_whatever_follows_them(kind: str, seed: int, tail: bytes) -> None:
    check_image(Path("a"), encoded(kind, seed) + tail)


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB"])
def test_bitmaps_of_all_depths_pass(mode: str) -> None:
    data = encoded("BMP", 1, mode)
    check_image(Path("a"), data)
    with pytest.raises(DataError, match=f"ends at offset {len(data) - 1}, inside the pixels of a BMP"):
        check_image(Path("a"), data[:-1])


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_cut_anywhere_is_refused_with_the_offset(kind: str) -> None:
    data = encoded(kind, 3)
    for size in range(len(data)):
        with pytest.raises(DataError, match=r"^a: ") as caught:
            check_image(Path("a"), data[:size])
        if size > 11:
            assert f"a: is cut: it ends at offset {size}, " in str(caught.value)


@settings(deadline=None)
@given(kind=st.sampled_from(list(KINDS)), seed=st.integers(0, 2**32), draw=st.data())
def test_damage_raises_nothing_but_a_data_error(kind: str, seed: int, draw: st.DataObject) -> None:
    data = bytearray(encoded(kind, seed))
    for _ in range(draw.draw(st.integers(1, 4))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    with suppress(DataError):
        check_image(Path("a"), bytes(data))


@settings(deadline=None)
@given(seed=st.integers(0, 2**32), draw=st.data())
def test_any_flipped_bit_of_a_png_is_noticed(seed: int, draw: st.DataObject) -> None:
    data = bytearray(encoded("PNG", seed))
    bit = draw.draw(st.integers(0, 8 * len(data) - 1))
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(DataError):
        check_image(Path("a"), bytes(data))


def chunk(kind: bytes, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


PNG = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", bytes(13))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is empty"),
        (b"GIF89a..", r"is no JPEG, PNG, WebP or BMP image: it starts with b'GIF89a\.\.'"),
        (PNG[:-1] + b"?", "offset 8 has a PNG chunk b'IHDR' that its checksum does not fit"),
        (PNG + chunk(b"IEND"), "offset 33 ends a PNG that holds no pixels"),
        (PNG + chunk(b"IHDR"), "offset 33 has a PNG chunk b'IHDR' in a place that is not its own"),
        (PNG[:8] + chunk(b"IDAT"), "offset 8 has a PNG chunk b'IDAT' in a place"),
        (PNG, "ends at offset 33, where a PNG should go on"),
        (b"\xff\xd8\xff\xd9", "offset 2 ends a JPEG that holds no pixels"),
        (b"\xff\xd8\xff\xfe\0\4ab\0", r"offset 8 has b'\\x00', no marker of JPEG"),
        (b"\xff\xd8\xff\xfe\0\1ab", "offset 4 gives a JPEG segment 1 bytes"),
        (b"RIFF\4\0\0\0WAVE", "offset 8 has b'WAVE': a RIFF file, but no WebP"),
        (b"RIFF\4\0\0\0WEBP", "offset 12 begins a WebP that holds no pixels"),
        (b"RIFF\x0c\0\0\0WEBPVP8 \1\0\0\0", "offset 12 has a WebP chunk b'VP8 ' that ends behind its file"),
        (b"BM" + bytes(60), "offset 18 has a BMP of 0 x 0 pixels of 0 bits"),
    ],
)
def test_what_is_no_image_is_told(data: bytes, says: str) -> None:
    with pytest.raises(DataError, match=says) as caught:
        check_image(Path("a"), data)
    assert "\n" not in str(caught.value)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two classes, and what is no image beside them."""
    for number, name in enumerate(
        ("dog/1 #[a].JPG", "dog/{2}.png", "cat/%20猫.webp", "cat/3.jpeg", "cat/b.bmp")
    ):
        write(tmp_path / name, encoded(list(KINDS)[number], number))
    for name in ("dog/notes.txt", "dog/._1.jpg", ".cache/x.jpg", "dog/more/z.jpg", "top.jpg"):
        write(tmp_path / name, b"no image")
    return tmp_path


def test_images_are_found_with_the_class_of_their_folder(tree: Path) -> None:
    found = LAYOUT.find(tree)
    names = ["cat/%20猫.webp", "cat/3.jpeg", "cat/b.bmp", "dog/1 #[a].JPG", "dog/{2}.png"]
    assert found == dict.fromkeys(names, "train")
    assert LAYOUT.classes(tree) == {"cat": [0], "dog": [1]}
    for name in found:
        scan = LAYOUT.read(tree, name)
        assert (scan.xyz.shape, scan.fields) == ((0, 3), {})
        assert scan.annotations["image"].tobytes() == (tree / name).read_bytes()
        label = scan.annotations["label"]
        assert (label.dtype, label.tolist()) == (np.int32, [name.startswith("dog")])
        assert LAYOUT.files(tree, name) == (tree / name,)
    assert (LAYOUT.points, LAYOUT.objects, LAYOUT.label) == (False, True, "label")


def test_splits_are_folders(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = encoded("PNG")
    for name in ("train/dog/1.png", "train/ant/2.png", "test/cat/3.png", "val/dog/4.png", "other/cat/5.png"):
        write(tmp_path / name, data)
    (tmp_path / "val" / "cow").mkdir()
    with caplog.at_level(logging.WARNING):
        found = LAYOUT.find(tmp_path)
    assert found == {
        "train/dog/1.png": "train",
        "train/ant/2.png": "train",
        "test/cat/3.png": "test",
        "val/dog/4.png": "val",
    }
    assert list(LAYOUT.classes(tmp_path)) == ["ant", "cat", "cow", "dog"]
    assert LAYOUT.read(tmp_path, "val/dog/4.png").annotations["label"].tolist() == [3]
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}: no image in the folder of cow",
        f"{tmp_path}: left out other, beside train, val, test",
    ]


def test_a_class_may_be_called_as_a_split(tmp_path: Path) -> None:
    for name in ("train/1.png", "bus/2.png"):
        write(tmp_path / name, encoded("PNG"))
    assert LAYOUT.find(tmp_path) == {"bus/2.png": "train", "train/1.png": "train"}
    assert LAYOUT.classes(tmp_path) == {"bus": [0], "train": [1]}


def test_a_class_that_comes_later_moves_the_numbers(tree: Path) -> None:
    name = "dog/{2}.png"
    assert LAYOUT.read(tree, name).annotations["label"].tolist() == [1]
    (tree / "ant").mkdir()
    os.utime(tree, (0, 0))  # however coarse the clock of the disk is
    assert LAYOUT.read(tree, name).annotations["label"].tolist() == [2]


def test_a_build_lists_the_folders_once(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[Path] = []
    folders = image_folder._folders

    def noted(level: Path) -> list[str]:
        listed.append(level)
        return folders(level)

    monkeypatch.setattr(image_folder, "_folders", noted)
    image_folder._numbers.cache_clear()
    for _ in range(5):
        LAYOUT.read(tree, "dog/{2}.png")
    assert listed == [tree]


def test_what_cannot_be_read_is_one_line(tree: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.png: cannot be read \(No such file"):
        LAYOUT.read(tree, "dog/gone.png")
    with pytest.raises(DataError, match="has no folder CLASS"):
        LAYOUT.classes(tree / "cat")
    (tree / "dog" / "{2}.png").write_bytes(encoded("PNG")[:60])
    with pytest.raises(
        DataError, match=r"\{2\}\.png: is cut: it ends at offset 60, inside the PNG chunk at offset 33"
    ):
        LAYOUT.read(tree, "dog/{2}.png")
    write(Path(os.fsdecode(os.fsencode(tree) + b"/dog/\xff.png")), b"")
    with pytest.raises(DataError, match=r"the name b'\\xff\.png' is not UTF-8"):
        LAYOUT.find(tree)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_folder_of_images_is_built(tmp_path: Path, workers: int) -> None:
    root = tmp_path / "raw"
    for number, name in enumerate(("train/dog/1.png", "train/cat/2.jpg", "val/dog/3.png", "train/cat/4.png")):
        data = encoded("JPEG" if name.endswith("jpg") else "PNG", number)
        write(root / name, data[:-9] if "4" in name else data)
    keys = {"root": str(root), "layout": "image_folder", "workers": workers, "bad_files": "skip"}
    dataset = build(check(keys, DataSettings, where="data"), tmp_path)
    assert verify(dataset.path) == []
    assert dataset.manifest.classes == ["cat", "dog"]
    found = {}
    for split, parts in dataset.splits.items():
        for row in (row for part in parts for row in range(*part.rows)):
            sample = dataset.sample(row)
            assert (sample.rows, dict(sample.columns)) == (0, {})
            assert sample.annotations["image"].tobytes() == (root / sample.source).read_bytes()
            found[sample.source] = split, sample.annotations["label"].tolist()
    assert found == {
        "train/cat/2.jpg": ("train", [0]),
        "train/dog/1.png": ("train", [1]),
        "val/dog/3.png": ("val", [1]),
    }
    (skipped,) = dataset.manifest.skipped.items()
    assert skipped[0] == "train/cat/4.png"
    assert "is cut: it ends at offset" in skipped[1].reason


def test_images_are_counted_by_their_class(tmp_path: Path) -> None:
    root = tmp_path / "raw"
    for number, name in enumerate(("train/dog/1", "train/cat/2", "train/dog/3", "val/dog/4", "val/cow/5")):
        write(root / f"{name}.png", encoded("PNG", number))
    keys = {"root": str(root), "layout": "image_folder", "classes": {"cat": [0], "dog": [2], "ox": [9]}}
    dataset = build(check(keys, DataSettings, where="data"), tmp_path / "built")
    counts = dataset.manifest.counts
    assert counts.splits["train"].classes == {"cat": 1, "dog": 2, "ox": 0}
    assert (counts.splits["train"].ignored, counts.splits["val"].ignored) == (0, 1)
    assert counts.splits["val"].classes == {"cat": 0, "dog": 1, "ox": 0}
    told = inspect(dataset.path)
    assert "class    samples  share" in told
    assert "no sample is of class ox: its codes" in told
    assert "cat" not in told.partition("worth knowing")[2]
    assert subset(dataset.path, tmp_path / "all", sources=["**/*.png"]).manifest.counts == counts
    assert subset(dataset.path, tmp_path / "val", split="val").manifest.counts.splits == {
        "val": counts.splits["val"]
    }
    convert(dataset.path, tmp_path / "tars")
    convert(tmp_path / "tars", tmp_path / "back")
    assert Dataset(tmp_path / "back").manifest.counts == counts
