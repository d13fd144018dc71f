"""Sources for DALI's readers: what is a sample, and what is wrong with one that is none."""

from __future__ import annotations

import io
import logging
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tamis.config import Model, check
from tamis.errors import DataError, UsageError
from tamis.pipelines.dali_files import NumpySource, WebdatasetSource, members, npy
from tamis.pipelines.dali_opened import Opened
from tamis.pipelines.dali_sources import Source, opened
from tamis.pipelines.ops import Columns

COLUMNS = {"xyz": "xyz.npy", "label": "label.npy"}


class Given(Model):
    source: Source


Write = Callable[[Path, Mapping[str, Any]], Path]
Read = Callable[[Opened], list[tuple[int, Columns]]]


def saved(values: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def cloud(n: int, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "xyz.npy": rng.normal(size=(n, 3)).astype(np.float32),
        "label.npy": rng.integers(-1, 5, n).astype(np.int32),
    }


def components(sizes: list[int], folder: str = "scans/") -> dict[str, Any]:
    return {f"{folder}{i:03d}.{e}": v for i, n in enumerate(sizes) for e, v in cloud(n, i).items()}


def tars(*paths: Path, **columns: str) -> WebdatasetSource:
    return WebdatasetSource(paths=paths, columns=columns or COLUMNS)


SIZES = [0, 1, 1000, 4096]


def test_a_tar_gives_its_samples(tmp_path: Path, write_tar: Write, read_all: Read) -> None:
    files = components(SIZES)
    first = write_tar(tmp_path / "a.tar", dict([*files.items()][:4]))
    second = write_tar(tmp_path / "b.tar", dict([*files.items()][4:]))
    source = opened(tars(first, second))
    assert source.names == [f"{'ab'[i // 2]}.tar/scans/{i:03d}#0" for i in range(4)]
    for i, (number, columns) in enumerate(read_all(source)):
        assert number == i
        wanted = cloud(SIZES[i], i)
        for name, extension in COLUMNS.items():
            assert columns[name].dtype == wanted[extension].dtype
            assert np.array_equal(columns[name], wanted[extension])
    assert [(f.dtype.str, f.width, f.kind) for f in source.fields.values()] == [
        ("<f4", 3, "point"),
        ("<i4", 1, "class"),
    ]


def test_a_folder_gives_its_samples(tmp_path: Path, read_all: Read) -> None:
    root = tmp_path / "raw"
    for name, values in components(SIZES, "in/").items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        np.save(root / name, values)
    source = opened(NumpySource(root=root, columns=COLUMNS))
    assert source.names == [f"in/{i:03d}#0" for i in range(4)]
    for i, (number, columns) in enumerate(read_all(source)):
        wanted = cloud(SIZES[i], i)
        assert number == i
        assert all(np.array_equal(columns[name], wanted[e]) for name, e in COLUMNS.items())


def test_a_source_is_known_by_its_content_and_not_by_its_place(tmp_path: Path, write_tar: Write) -> None:
    found = []
    for place in ("here", "there/deeper"):
        folder = tmp_path / place
        folder.mkdir(parents=True)
        found.append(opened(tars(write_tar(folder / "a.tar", components([3, 4])))))
    assert found[0].ids.tolist() == found[1].ids.tolist()
    assert found[0].fingerprint == found[1].fingerprint
    other = opened(tars(write_tar(tmp_path / "a.tar", components([3, 5]))))
    assert other.fingerprint != found[0].fingerprint
    assert opened(tars(tmp_path / "a.tar", xyz="xyz.npy")).fingerprint != other.fingerprint


def test_d08_an_extension_is_all_after_the_first_dot_of_the_name(
    tmp_path: Path, write_tar: Write, read_all: Read
) -> None:
    files = {
        "v1.2/a.xyz.npy": cloud(3)["xyz.npy"],
        "v1.2/a.seg.xyz.npy": np.arange(3),
        "v1.2/deep/a.xyz.npy": cloud(4)["xyz.npy"],
        "v1.2/deep/a.seg.xyz.npy": np.arange(4),
    }
    path = tmp_path / "a.tar"
    write_tar(path, files)
    with tarfile.open(path, "a") as tar:
        folder = tarfile.TarInfo("v1.2/deep/empty.xyz.npy")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
    source = opened(tars(path, xyz="xyz.npy", seg="seg.xyz.npy"))
    assert source.names == ["a.tar/v1.2/a#0", "a.tar/v1.2/deep/a#0"]
    sizes = [[len(values) for values in columns.values()] for _, columns in read_all(source)]
    assert sizes == [[3, 3], [4, 4]]
    assert opened(tars(path, xyz="xyz.npy")).names == source.names


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"xyz": "xyz.npy", "rgb": "rgb.npy"}, ["'rgb.npy'", "'label.npy', 'xyz.npy'", "scans/000"]),
        ({"xyz": "npy"}, ["lacks 'npy'", "present 'label.npy', 'xyz.npy'", "scans/000"]),
    ],
)
def test_d08_a_missing_component_is_told_with_the_tar_the_sample_and_what_there_is(
    tmp_path: Path, columns: dict[str, str], says: list[str], write_tar: Write
) -> None:
    path = write_tar(tmp_path / "some.tar", components([3, 4]))
    with pytest.raises(DataError) as error:
        opened(tars(path, **columns))
    assert str(error.value).startswith(f"{path}: sample 'scans/000' lacks")
    for words in [*says, "wanted", "first dot"]:
        assert words in str(error.value)


def test_d08_one_sample_without_a_component_is_named(tmp_path: Path, write_tar: Write) -> None:
    files = components([3, 4, 5])
    del files["scans/001.label.npy"]
    path = write_tar(tmp_path / "a.tar", files)
    with pytest.raises(DataError, match=r"a.tar: sample 'scans/001' lacks 'label.npy': .* present 'xyz.npy'"):
        opened(tars(path))


def test_what_is_no_sample_is_told_and_hidden_files_are_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, write_tar: Write
) -> None:
    files = {"README.md": b"hello", "scans/._000.xyz.npy": b"fork", **components([3]), "notes": b""}
    with caplog.at_level(logging.WARNING):
        source = opened(tars(write_tar(tmp_path / "a.tar", files)))
    assert len(source.names) == 1
    (told,) = caplog.messages
    assert "'README' and 1 others have no column" in told


@pytest.mark.parametrize("cut", [-1, -512, -1024, 5000, 2048, 1000, 512, 100, 1])
def test_s06_a_cut_tar_is_damaged(tmp_path: Path, cut: int, write_tar: Write) -> None:
    path = write_tar(tmp_path / "a.tar", components([30, 40]))
    data = path.read_bytes()
    end = len(data.rstrip(b"\0")) // 512 * 512 + 512 + 1024  # the shortest that is whole
    path.write_bytes(data[:end])
    assert len(opened(tars(path)).names) == 2
    path.write_bytes(data[: end + cut if cut < 0 else cut])
    with pytest.raises(DataError, match=r"a.tar: is (cut or damaged|not a whole, plain tar)"):
        opened(tars(path))


def listed(path: Path) -> list[str] | str:
    """The names in a tar, or the error."""
    try:
        return [name for name, _ in members(path)]
    except DataError as error:
        return str(error)


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_tar_gives_an_error_or_the_same_members(
    tmp_path: Path, seed: int, write_tar: Write
) -> None:
    path = write_tar(tmp_path / "a.tar", components([30, 40]))
    whole = listed(path)
    data = bytearray(path.read_bytes())
    rng = np.random.default_rng(seed)
    header = int(rng.choice([0, 1024, 2048, 3072])) + int(rng.integers(0, 257))
    data[header] ^= 1 << int(rng.integers(0, 8))
    path.write_bytes(data)
    found = listed(path)
    assert found == whole or (isinstance(found, str) and str(path) in found)


def test_tars_that_are_not_what_they_should_be(tmp_path: Path, write_tar: Write) -> None:
    path = write_tar(tmp_path / "a.tar", components([3]))
    twice = tmp_path / "twice.tar"
    with tarfile.open(twice, "w") as tar:
        for _ in range(2):
            member = tarfile.TarInfo("a.xyz.npy")
            tar.addfile(member)
    with pytest.raises(DataError, match=r"sample 'a' has 'xyz.npy' twice"):
        opened(tars(twice, xyz="xyz.npy"))
    joined = tmp_path / "joined.tar"
    joined.write_bytes(path.read_bytes() * 2)
    with pytest.raises(DataError, match="data after its end-of-archive marker"):
        opened(tars(joined))
    packed = tmp_path / "a.tar.gz"
    with tarfile.open(packed, "w:gz") as tar:
        tar.add(path)
    with pytest.raises(DataError, match=r"not a whole, plain tar.*uncompressed"):
        opened(tars(packed))
    linked = tmp_path / "linked.tar"
    with tarfile.open(linked, "w") as tar:
        member = tarfile.TarInfo("a.xyz.npy")
        member.type, member.linkname = tarfile.SYMTYPE, "b.xyz.npy"
        tar.addfile(member)
    with pytest.raises(DataError, match="sample 'a' has a link"):
        opened(tars(linked, xyz="xyz.npy"))
    with pytest.raises(DataError, match="No such file"):
        opened(tars(tmp_path / "missing.tar"))
    with pytest.raises(DataError, match="named twice"):
        opened(tars(path, path))
    with pytest.raises(DataError, match="has no samples"):
        opened(tars(write_tar(tmp_path / "empty.tar", {})))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (np.zeros((5, 3)), r"column xyz has shape \(5, 3\) and dtype float64; store float32"),
        (np.zeros((5, 2), np.float32), "store float32"),
        (np.zeros(5, np.float32), "store float32"),
        (np.float32(1), "store float32"),
        (b"\x93NUMPY nothing", "column xyz is not an NPY file"),
        (b"", "column xyz is not an NPY file"),
    ],
)
def test_a_first_sample_that_cannot_be_read_is_told(
    tmp_path: Path, values: Any, says: str, write_tar: Write
) -> None:
    path = write_tar(tmp_path / "a.tar", {"s/0.xyz.npy": values})
    with pytest.raises(DataError, match=says) as error:
        opened(tars(path, xyz="xyz.npy"))
    assert "s/0" in str(error.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"scans/001.xyz.npy": np.zeros((5, 3))}, r"xyz: has shape \(5, 3\) and dtype float64"),
        ({"scans/001.label.npy": np.zeros(6, np.int32)}, r"label: has shape \(6,\) .* make it \(5,\)"),
        ({"scans/001.label.npy": np.zeros((5, 2), np.int32)}, r"label: has shape \(5, 2\)"),
        ({"scans/001.label.npy": np.int32(3)}, r"label: has shape \(\)"),
        ({"scans/001.label.npy": saved(np.zeros(5, np.int32))[:-1]}, "19 bytes of data instead of 20"),
        ({"scans/001.label.npy": saved(np.array([{}] * 5, object))}, "has dtype object"),
        ({"scans/001.label.npy": b"junk" * 50}, "is not an NPY file"),
    ],
)
def test_a_later_sample_that_is_unlike_the_first_is_named(
    tmp_path: Path, changes: dict[str, Any], says: str, write_tar: Write, read_all: Read
) -> None:
    files = {**components([3, 5]), **changes}
    source = opened(tars(write_tar(tmp_path / "a.tar", files)))
    with pytest.raises(
        DataError,
        match=f"a.tar: sample a.tar/scans/001#0: column .*{says}",
    ):
        read_all(source)


def test_rows_that_are_not_finite_are_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, write_tar: Write, read_all: Read
) -> None:
    files = components([6])
    files["scans/000.xyz.npy"][[1, 4], [0, 2]] = np.nan, np.inf
    source = opened(tars(write_tar(tmp_path / "a.tar", files)))
    ((_, columns),) = read_all(source)
    kept = [0, 2, 3, 5]
    assert np.array_equal(columns["xyz"], files["scans/000.xyz.npy"][kept])
    assert np.array_equal(columns["label"], files["scans/000.label.npy"][kept])
    assert "scans/000#0: 2 rows have a non-finite coordinate" in caplog.text


@pytest.mark.parametrize("code", ["?", "i1", "u2", "i8", "u8", "f2", "f8", ">f4", ">i2", "M8[s]", "c8", "S4"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(0,), (5,), (5, 1), (4, 3), (0, 3)])
def test_any_array_comes_out_of_its_bytes(code: str, order: Any, shape: tuple[int, ...]) -> None:
    n = int(np.prod(shape))
    wanted = np.asarray(np.arange(n).astype(code).reshape(shape), order=order)
    found = npy(np.frombuffer(saved(wanted), np.uint8))
    assert np.array_equal(found, wanted)
    assert found.dtype == wanted.dtype.newbyteorder("=")
    assert found.flags.c_contiguous


def test_a_folder_s_files_are_checked_one_by_one(tmp_path: Path) -> None:
    for i, code in enumerate(("f4", "f4", ">f4")):
        np.save(tmp_path / f"{i}.xyz.npy", np.zeros((4, 3), np.dtype(code)))
    source = NumpySource(root=tmp_path, columns={"xyz": "xyz.npy"})
    with pytest.raises(DataError, match=r"2.xyz.npy: has dtype >f4, which DALI does not read"):
        opened(source)
    np.save(tmp_path / "2.xyz.npy", np.zeros((4, 2), np.float32))
    with pytest.raises(DataError, match=r"2.xyz.npy: column xyz has shape \(4, 2\)"):
        opened(source)
    (tmp_path / "2.xyz.npy").write_bytes((tmp_path / "1.xyz.npy").read_bytes()[:-5])
    with pytest.raises(DataError, match=r"2.xyz.npy: is not a whole NPY file: 43 bytes"):
        opened(source)
    (tmp_path / "2.xyz.npy").unlink()
    np.save(tmp_path / "0.label.npy", np.zeros(4, np.int32))
    np.save(tmp_path / "1.label.npy", np.zeros(4, np.int64))
    with pytest.raises(DataError, match=r"1.label.npy: has rows of 1 int64, .*0.label.npy of 1 int32"):
        opened(NumpySource(root=tmp_path, columns=COLUMNS))
    with pytest.raises(DataError, match="is no folder"):
        opened(NumpySource(root=tmp_path / "no", columns=COLUMNS))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"kind": "webdataset", "paths": [], "columns": COLUMNS}, "paths"),
        ({"kind": "webdataset", "paths": ["a.tar"], "columns": {}}, "columns"),
        ({"kind": "webdataset", "paths": ["a.tar"], "columns": {"xyz": "xyz.bin"}}, "extension 'xyz.bin'"),
        ({"kind": "webdataset", "paths": ["a.tar"], "columns": {"a": "npy", "b": "npy"}}, "same extension"),
        ({"kind": "numpy", "root": "a", "columns": {"xyz": "x y.npy"}}, "extension 'x y.npy'"),
        ({"kind": "tfrecord", "paths": ["a"], "columns": {"x": {"feature": "x", "dtype": "float"}}}, None),
        ({"kind": "tfrecord", "paths": ["a"], "columns": {"x": {"feature": "x", "dtype": "O"}}}, "'O' is no"),
        ({"kind": "tfrecord", "paths": ["a"], "columns": {"x": {"feature": "x", "dtype": "?!"}}}, "is no"),
        ({"kind": "tars", "paths": ["a"]}, "webdataset"),
    ],
)
def test_settings_are_checked(values: dict[str, Any], says: str | None) -> None:
    if says is None:
        assert check({"source": values}, Given, where="x").source.kind == "tfrecord"
        return
    with pytest.raises(UsageError, match=says):
        check({"source": values}, Given, where="x")
