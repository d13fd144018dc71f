"""`tamis convert` of what other programs wrote."""

from __future__ import annotations

import io
import json
import logging
import os
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.errors import DataError
from tamis.pipelines.convert import convert
from tamis.pipelines.convert_foreign import of_members
from tamis.pipelines.dali_files import WebdatasetSource
from tamis.pipelines.dali_sources import opened
from tamis.pipelines.dataset import Dataset
from tamis.pipelines.verify import verify

Write = Callable[[Path, Mapping[str, Any]], Path]


def zipped(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def split_of(dataset: Dataset) -> list[str]:
    splits: list[str] = dataset.samples.column("split").to_pylist()
    return splits


def test_others_tars_come_with_all_they_hold(tmp_path: Path, write_tar: Write) -> None:
    rng = np.random.default_rng()
    folder, clouds = tmp_path / "tars", {}
    for name, split in (("train/a.tar", "train"), ("scans-val-000.tar", "val"), ("x/b.tar", "train")):
        files: dict[str, Any] = {}
        for number, rows in enumerate((5, 0, 9)):
            key = f"in/{number}"
            cloud: dict[str, Any] = {
                "xyz": rng.normal(size=(rows, 3)).astype(np.float32),
                "ring": rng.integers(0, 9, rows).astype(np.uint16),
                "label": rng.integers(-1, 5, rows),
            }
            files[f"{key}.xyz.npy"] = cloud["xyz"]
            files[f"{key}.npz"] = zipped(ring=cloud["ring"], label=cloud["label"])
            files[f"{key}.boxes.npy"] = np.full((number, 7), number, ">f8")
            files[f"{key}.cls"] = str(number).encode()
            files[f"{key}.txt"] = "Käse".encode()
            files[f"{key}.meta.json"] = json.dumps({"number": number}).encode()
            files[f"{key}.seg.jpg"] = os.urandom(number)
            clouds[f"{name}/{key}"] = (split, number, cloud, files[f"{key}.seg.jpg"])
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_tar(folder / name, files)
    (folder / "README.md").write_text("hello")
    told = convert(folder, tmp_path / "out")
    assert "9 samples (6 train, 3 val); columns xyz, ring, label; annotations boxes, txt, meta.json" in told
    back = Dataset(tmp_path / "out")
    assert verify(back.path) == []
    assert {name: (f.dtype.name, f.width, f.kind) for name, f in back.fields.items()} == {
        "xyz": ("float32", 3, "point"),
        "ring": ("uint16", 1, "none"),
        "label": ("int32", 1, "class"),
        "boxes": ("float64", 7, "box"),
        "txt": ("uint8", 1, "none"),
        "meta.json": ("uint8", 1, "none"),
        "seg.jpg": ("uint8", 1, "none"),
    }
    assert sorted(back.manifest.sources) == ["scans-val-000.tar", "train/a.tar", "x/b.tar"]
    splits = split_of(back)
    for row in range(9):
        sample = back.sample(row)
        split, number, cloud, image = clouds.pop(sample.source)
        assert splits[row] == split
        assert back.samples.column("label")[row].as_py() == number
        assert sample.tile == 0
        assert not sample.origin.any()
        for name, values in cloud.items():
            assert np.array_equal(sample.columns[name], values)
        assert sample.annotations["boxes"].tolist() == [[number] * 7] * number
        assert sample.annotations["seg.jpg"].tobytes() == image
        assert sample.annotations["txt"].tobytes().decode() == "Käse"
        assert json.loads(sample.annotations["meta.json"].tobytes()) == {"number": number}
    for to in ("webdataset", "tfrecord"):
        convert(back.path, tmp_path / to, to)
        convert(tmp_path / to, tmp_path / f"back-{to}")
        assert Dataset(tmp_path / f"back-{to}").fingerprint == back.fingerprint


def test_names_are_those_that_dali_s_reader_gives(tmp_path: Path, write_tar: Write) -> None:
    files = {f"s/{i}.xyz.npy": np.zeros((3, 3), np.float32) for i in range(4)}
    paths = (write_tar(tmp_path / "a.tar", files), write_tar(tmp_path / "b.tar", files))
    convert(tmp_path, tmp_path.parent / f"{tmp_path.name}-out")
    back = Dataset(tmp_path.parent / f"{tmp_path.name}-out")
    source = opened(WebdatasetSource(paths=paths, columns={"xyz": "xyz.npy"}))
    assert back.ids.tolist() == source.ids.tolist()
    assert back.samples.column("name").to_pylist() == source.names


def test_global_positions_stay_and_rows_without_one_go(
    tmp_path: Path, write_tar: Write, caplog: pytest.LogCaptureFixture
) -> None:
    rng = np.random.default_rng()
    places = rng.uniform(0, 50, (300, 3)) + np.array([500_000, 5_400_000, 80])
    bad = places.copy()
    bad[[3, 7], [0, 2]] = np.nan, np.inf
    wide = (rng.uniform(0, 50, (20, 3)) + 1e6).astype(np.float32)
    files = {"a.xyz.npy": bad, "a.i.npy": np.arange(300), "b.xyz.npy": places, "b.i.npy": np.arange(300)}
    write_tar(tmp_path / "a.tar", files)
    with caplog.at_level(logging.WARNING):
        convert(tmp_path / "a.tar", tmp_path / "out")
    (told,) = caplog.messages
    assert "a.tar: sample 'a' at byte 512: left out 2 rows whose position is not finite" in told
    back = Dataset(tmp_path / "out")
    kept = np.delete(np.arange(300), [3, 7])
    first, second = back.sample(0), back.sample(1)
    assert first.columns["i"].tolist() == kept.tolist()
    assert np.abs(first.positions() - places[kept]).max() < 5e-4
    assert np.abs(second.positions() - places).max() < 5e-4
    low, high = np.split(np.array(back.samples.column("bounds")[1].as_py()), 2)
    assert np.allclose(low, places.min(axis=0), rtol=0, atol=5e-4)
    assert np.allclose(high, places.max(axis=0), rtol=0, atol=5e-4)
    assert back.manifest.counts.dropped == back.manifest.counts.splits["train"].dropped == 2
    write_tar(tmp_path / "a.tar", {"a.points.npy": wide})
    convert(tmp_path / "a.tar", tmp_path / "wide")
    sample = Dataset(tmp_path / "wide").sample(0)
    assert sample.origin.min() > 9e5
    assert np.array_equal(sample.positions(), wide.astype(np.float64))


def test_positions_go_by_several_names(tmp_path: Path, write_tar: Write) -> None:
    cloud = np.arange(20, dtype=np.float32).reshape(4, 5)
    record = np.zeros(4, [("x", "f8"), ("y", "f8"), ("z", "f8"), ("nx", "f4")])
    tars: list[dict[str, Any]] = [
        {"a.npy": cloud},
        {"a.points.npy": cloud},
        {"a.npz": zipped(pc=cloud)},
        {"a.scan.npy": record},
    ]
    for number, files in enumerate(tars):
        write_tar(tmp_path / f"{number}.tar", files)
        convert(tmp_path / f"{number}.tar", tmp_path / f"{number}")
        back = Dataset(tmp_path / f"{number}")
        sample = back.sample(0)
        if "a.scan.npy" in files:
            assert [*sample.columns] == ["xyz", "nx"]
            continue
        assert [*sample.columns] == ["xyz", "column_3", "column_4"]
        assert np.array_equal(sample.columns["xyz"], cloud[:, :3])
        assert np.array_equal(sample.columns["column_4"], cloud[:, 4])


def test_others_records_come_with_all_they_hold(tmp_path: Path, tfrecord: SimpleNamespace) -> None:
    rng = np.random.default_rng()
    array = io.BytesIO()
    np.save(array, np.arange(6).reshape(2, 3))
    wanted = []
    for number, rows in enumerate((4, 7, 1)):
        cloud: dict[str, Any] = {
            "xyz": rng.normal(size=3 * rows).astype(np.float32),
            "normal": rng.normal(size=3 * rows).astype(np.float32),
            "seg": rng.integers(-(2**63), 2**63 - 1, rows),
            "label": np.array([number - 1]),
            "image/encoded": os.urandom(number),
            "boxes": array.getvalue(),
        }
        wanted.append(cloud)
    tfrecord.write(tmp_path / "test.tfrecord-00000-of-00001", wanted)
    told = convert(tmp_path, tmp_path.with_name(f"{tmp_path.name}-out"))
    assert "3 samples (3 test); columns xyz, normal, seg; annotations image_encoded, boxes" in told
    back = Dataset(tmp_path.with_name(f"{tmp_path.name}-out"))
    assert back.samples.column("name").to_pylist() == [f"test.tfrecord-00000-of-00001#{i}" for i in range(3)]
    assert back.samples.column("label").to_pylist() == [-1, 0, 1]
    for row, cloud in enumerate(wanted):
        sample = back.sample(row)
        for name in ("xyz", "normal"):
            assert np.array_equal(sample.columns[name].reshape(-1), cloud[name])
        assert sample.columns["seg"].tolist() == cloud["seg"].tolist()
        assert sample.annotations["image_encoded"].tobytes() == cloud["image/encoded"]
        assert sample.annotations["boxes"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_texts_without_points_are_a_dataset_too(tmp_path: Path, write_tar: Write) -> None:
    write_tar(tmp_path / "a.tar", {f"{i}.txt": f"text {i}".encode() for i in range(3)})
    convert(tmp_path / "a.tar", tmp_path / "out")
    back = Dataset(tmp_path / "out")
    texts = [back.sample(i).annotations["txt"].tobytes() for i in range(3)]
    assert texts == [b"text 0", b"text 1", b"text 2"]
    assert verify(back.path) == []


CLOUD = np.zeros((4, 3), np.float32)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"b.xyz.npy": CLOUD, "b.i.npy": np.arange(4)}, r"sample 'a' at .*: has no field 'i', .*'b' at byte"),
        ({"b.txt": b""}, r"sample 'a' at .*: has no field 'txt', .*'b' at byte 1536 has it"),
        (
            {"b.xyz.npy": CLOUD.astype(float)},
            r"'b' at byte \d+: field 'xyz' is float64 x 3, in .* float32 x 3",
        ),
        ({"b.xyz.npy": CLOUD[:, :2]}, r"'b' .*: field 'xyz' has shape \(4, 2\) and dtype float32"),
        ({"b.xyz.npy": b"\x93NUMPY junk"}, r"'b' .*: member 'xyz.npy': cannot be read \(is not an NPY file"),
        ({"b.xyz.npy": b""}, r"member 'xyz.npy': cannot be read"),
        ({"b.npz": zipped(xyz=CLOUD)[:-30]}, r"member 'npz': cannot be read \(File is not a zip file"),
        (
            {"b.npz": zipped(xyz=CLOUD), "b.xyz.npy": CLOUD},
            "member 'xyz.npy': gives field 'xyz' a second time",
        ),
        ({"b.xyz.npy": CLOUD, "b.json": b"{"}, "'b' .*member 'json' at byte .*: is no JSON"),
        ({"b.xyz.npy": CLOUD, "b.m.json": b"{"}, "'b' .*member 'm.json': cannot be read"),
        ({"b.xyz.npy": CLOUD, "b.cls": b"cat"}, "member 'cls': cannot be read .*'cat'"),
        ({"b.xyz.npy": CLOUD, "b.s.npy": np.array(["s"] * 4)}, "field 's' has type <U1"),
        ({"b.xyz.npy": CLOUD, "b.s.npy": np.zeros((2, 2, 2))}, r"field 's' has rows of shape \(2, 2\)"),
        ({"b.xyz.npy": np.full((4, 3), 1e30, np.float32)}, "'b' .*: a coordinate reaches 2"),
        ({"a.xyz.npy": CLOUD}, r"member 'a.xyz.npy' at byte \d+: is there twice"),
    ],
)
def test_what_cannot_be_is_told_with_its_place(
    tmp_path: Path, files: dict[str, Any], says: str, write_tar: Write
) -> None:
    path = write_tar(tmp_path / "first.tar", {"a.xyz.npy": CLOUD})
    more = write_tar(tmp_path / "more.tar", files)
    # One after the other in one tar: the first without its end.
    path.write_bytes(path.read_bytes()[: 512 * 2] + more.read_bytes())
    more.unlink()
    with pytest.raises(DataError, match=says) as error:
        convert(path, tmp_path / "out")
    assert str(error.value).startswith(f"{path}: ")
    assert not (tmp_path / "out").exists()


KINDS = ["npy", "npz", "json", "cls", "txt"]


@settings(max_examples=60, deadline=None)
@given(
    data=st.binary(max_size=200),
    kind=st.sampled_from(["npy", "npz", "json", "cls", "txt"]),
    seed=st.integers(0),
)
def test_any_bytes_of_a_member_are_fields_or_a_data_error(data: bytes, kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    whole = {"npy": zipped(a=CLOUD), "npz": zipped(xyz=CLOUD, i=np.arange(4))}.get(kind, b"17")
    if kind == "npy":
        with zipfile.ZipFile(io.BytesIO(whole)) as archive:
            whole = archive.read("a.npy")
    flipped = bytearray(whole)
    for _ in range(int(rng.integers(1, 4))):
        flipped[rng.integers(len(flipped))] ^= 1 << int(rng.integers(8))
    for content in (data, bytes(flipped), whole[: rng.integers(len(whole))]):
        try:
            fields = of_members("a.tar: sample 'a' at byte 0", [(f"x.{kind}", content)])
        except DataError as error:
            assert str(error).startswith("a.tar: sample 'a' at byte 0: member 'x.")  # noqa: PT017
        else:
            assert all(isinstance(values, np.ndarray) for values in fields.values())
