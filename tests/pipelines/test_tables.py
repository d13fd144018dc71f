from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tamis.errors import DataError
from tamis.pipelines.readers import read

ROOT = Path(__file__).resolve().parents[2]

Write = Callable[[pa.Table, Path], Any]

XYZ = np.random.default_rng(5).normal(size=(40, 3))


def parquet(table: pa.Table, path: Path) -> None:
    """In groups of seven rows, with checksums."""
    pa.parquet.write_table(table, path, row_group_size=7, write_page_checksum=True)


def feather(table: pa.Table, path: Path) -> None:
    pa.feather.write_feather(table, path, chunksize=7)


def ipc(table: pa.Table, path: Path) -> None:
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)


every = pytest.mark.parametrize("write", [parquet, feather, ipc], ids=lambda write: write.__name__)


def vectors(values: Any, dtype: Any = None) -> pa.Array:
    flat = np.ascontiguousarray(values).reshape(-1)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat, dtype), np.shape(values)[1])


def refused(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    return str(caught.value)


@every
def test_every_number_type_is_kept(tmp_path: Path, write: Write) -> None:
    n, x, y, z = 40, *XYZ.T
    numbers = {
        kind: np.random.default_rng(7).integers(0, 100, n).astype(kind)
        for kind in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8")
    }
    table = pa.table({"z": z, "y": y.astype("f4"), **numbers, "x": x, "yes": x > 0})
    write(table, tmp_path / "a.table")
    scan = read(tmp_path / "a.table")
    assert scan.xyz.dtype == np.float64
    assert np.array_equal(scan.xyz, np.stack([x, y.astype("f4"), z], axis=1))
    assert scan.fields["yes"].dtype == np.uint8
    assert np.array_equal(scan.fields["yes"], x > 0)
    for kind, values in numbers.items():
        assert scan.fields[kind].dtype == values.dtype
        assert np.array_equal(scan.fields[kind], values)
    assert set(scan.fields) == {"yes", *numbers}


@every
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_v16_coordinates_in_one_column(tmp_path: Path, write: Write, dtype: str) -> None:
    """V16: half floats too. Vectors are fixed-size lists, colours and normals in columns are joined."""
    xyz = XYZ.astype(dtype)
    colour = {name: np.full(40, i, "u1") for i, name in enumerate(("red", "green", "blue"))}
    normal = {name: XYZ[:, i].astype("f4") for i, name in enumerate(("nx", "ny", "nz"))}
    table = pa.table(
        {"xyz": vectors(xyz), "box": vectors(np.arange(160.0).reshape(40, 4)), **colour, **normal}
    )
    write(table, tmp_path / "a.table")
    scan = read(tmp_path / "a.table")
    assert np.array_equal(scan.xyz, xyz.astype("f8"))
    assert np.array_equal(scan.fields["box"], np.arange(160.0).reshape(40, 4))
    assert scan.fields["rgb"].tolist() == [[0, 1, 2]] * 40
    assert np.array_equal(scan.fields["normal"], XYZ.astype("f4"))
    assert set(scan.fields) == {"box", "rgb", "normal"}


@every
def test_lists_of_one_length_are_vectors(tmp_path: Path, write: Write) -> None:
    """As pandas writes them."""
    table = pa.table({"xyz": XYZ.tolist(), "pair": pa.array([[1, 2]] * 40, pa.large_list(pa.int16()))})
    write(table, tmp_path / "a.table")
    scan = read(tmp_path / "a.table")
    assert np.array_equal(scan.xyz, XYZ)
    assert scan.fields["pair"].tolist() == [[1, 2]] * 40
    assert scan.fields["pair"].dtype == np.int16


@every
def test_what_holds_no_numbers_is_left_out_with_a_notice(
    tmp_path: Path, write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    x, y, z = XYZ.T
    table = pa.table(
        {
            "X": x,
            "Y": y,
            "Z": z,
            "name": ["tree"] * 40,
            "deep": [{"a": 1}] * 40,
            "ragged": [[1], [1, 2]] * 20,
            "money": [Decimal("1.50")] * 40,
            "nothing": pa.nulls(40),
            "code": pa.array([7, 9] * 20, pa.uint8()).dictionary_encode(),
            "when": pa.array(range(40), pa.timestamp("ms")),
        }
    )
    write(table, tmp_path / "a.table")
    with caplog.at_level(logging.WARNING):
        scan = read(tmp_path / "a.table")
    assert "left out name (string), deep (struct<a: int64>), ragged (list<" in caplog.text
    assert np.array_equal(scan.xyz, XYZ)
    assert set(scan.fields) == {"code", "when"}
    assert scan.fields["code"].tolist() == [7, 9] * 20
    assert scan.fields["code"].dtype == np.uint8
    assert scan.fields["when"].tolist() == list(range(40))


@every
def test_a_missing_value_is_named_by_column_and_row(tmp_path: Path, write: Write) -> None:
    good = dict(zip("xyz", XYZ.T, strict=True))
    holed: dict[str, Any] = {
        "z": pa.array([*XYZ[:33, 2], None, *XYZ[34:, 2]]),
        "label": pa.array([1] * 33 + [None] * 7, pa.int8()),
        "vector": pa.array([[1.0, 2.0]] * 33 + [None] * 7, pa.list_(pa.float64(), 2)),
        "inner": pa.array([[1.0, 2.0]] * 33 + [[1.0, None]] * 7, pa.list_(pa.float64(), 2)),
    }
    for number, (name, column) in enumerate(holed.items()):
        path = tmp_path / f"{number}.table"
        write(pa.table({**good, name: column}), path)
        assert f"column '{name}' has no value in row 33" in refused(path)


@every
@pytest.mark.parametrize(
    ("columns", "cause"),
    [
        ({"x": [1.0], "y": [2.0], "label": [3]}, "has no columns x, y and z (it has x, y, label)"),
        ({"x": ["1"], "y": [2.0], "z": [3.0]}, "column x (string) holds no numbers"),
        ({"xyz": ["1 2 3"]}, "column xyz (string) holds no numbers"),
        ({"xyz": [[1.0, 2.0]]}, "has no columns x, y and z (it has xyz)"),
        ({"x": [[1.0]], "y": [2.0], "z": [3.0]}, "column 'x' has rows of shape (1,)"),
    ],
)
def test_what_is_no_cloud_is_named(tmp_path: Path, write: Write, columns: Any, cause: str) -> None:
    write(pa.table(columns), tmp_path / "a.table")
    assert cause in refused(tmp_path / "a.table")


@pytest.mark.parametrize("write", [parquet, ipc], ids=lambda write: write.__name__)
def test_two_columns_of_one_name(tmp_path: Path, write: Write) -> None:
    table = pa.Table.from_arrays([pa.array([1.0])] * 4, names=["x", "y", "z", "x"])
    write(table, tmp_path / "a.table")
    assert "has two columns 'x'" in refused(tmp_path / "a.table")


@every
def test_no_rows_are_legal(tmp_path: Path, write: Write) -> None:
    schema = pa.schema({"xyz": pa.list_(pa.float32(), 3), "label": pa.uint8()})
    write(schema.empty_table(), tmp_path / "a.table")
    scan = read(tmp_path / "a.table")
    assert scan.xyz.shape == (0, 3)
    assert scan.fields["label"].dtype == np.uint8


@pytest.mark.parametrize("compression", ["NONE", "SNAPPY", "GZIP", "ZSTD", "LZ4", "BROTLI"])
def test_parquet_of_every_compression(tmp_path: Path, compression: str) -> None:
    x, y, z = XYZ.T
    path = tmp_path / "a.parquet"
    pa.parquet.write_table(pa.table({"x": x, "y": y, "z": z}), path, compression=compression)
    assert np.array_equal(read(path).xyz, XYZ)


def test_parquet_that_unpacks_to_more_than_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.parquet"
    pa.parquet.write_table(pa.table({axis: np.zeros(9000) for axis in "xyz"}), path, use_dictionary=False)
    assert len(read(path).xyz) == 9000
    monkeypatch.setattr("tamis.pipelines.readers.tables._MEMORY", 200_000)
    assert "unpacks to" in refused(path)


@every
@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9, 0.99, 0.999])
def test_a_cut_table_is_refused(tmp_path: Path, write: Write, share: float) -> None:
    path = tmp_path / "a.table"
    write(pa.table(dict(zip("xyz", XYZ.T, strict=True))), path)
    data = path.read_bytes()
    path.write_bytes(data[: max(6, int(len(data) * share))])
    assert "damaged or cut table" in refused(path)


@every
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), min_size=1, max_size=4))
def test_changed_bytes_never_escape_as_another_error(
    tmp_path: Path, write: Write, changes: list[tuple[int, int]]
) -> None:
    path = tmp_path / "whole.table"
    if not path.exists():
        write(pa.table({"xyz": vectors(XYZ), "label": pa.array([1] * 40, pa.uint8())}), path)
    data = bytearray(path.read_bytes())
    for at, flip in changes:
        data[6 + at % (len(data) - 6)] ^= flip
    changed = tmp_path / "changed.table"
    changed.write_bytes(data)
    try:
        scan = read(changed)
    except DataError as error:
        assert str(error).startswith(str(changed))  # noqa: PT017
    else:
        assert all(len(values) == len(scan.xyz) for values in scan.fields.values())


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.floats(0, 1), flip=st.integers(1, 255))
def test_a_page_that_has_a_checksum_is_compared_with_it(tmp_path: Path, at: float, flip: int) -> None:
    path = tmp_path / "whole.parquet"
    if not path.exists():
        table = pa.table(dict(zip("xyz", XYZ.T, strict=True)))
        pa.parquet.write_table(
            table, path, write_page_checksum=True, compression="NONE", use_dictionary=False
        )
    whole = path.read_bytes()
    start = whole.index(XYZ[:, 1].tobytes())
    data = bytearray(whole)
    data[start + int(at * (XYZ[:, 1].nbytes - 1))] ^= flip
    changed = tmp_path / "changed.parquet"
    changed.write_bytes(data)
    assert "damaged or cut table" in refused(changed)


def test_no_byte_of_a_damaged_footer_ends_the_process(tmp_path: Path) -> None:
    """Some do where pyarrow is asked what the footer says of a column, so this has a process of its own."""
    path = tmp_path / "whole.parquet"
    pa.parquet.write_table(pa.table({"xyz": vectors(np.arange(12.0).reshape(4, 3))}), path)
    code = """
import sys
from pathlib import Path
from tamis.errors import DataError
from tamis.pipelines.readers import read

whole = Path(sys.argv[1]).read_bytes()
found = [0, 0]
footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
for at in range(footer, footer + 60):
    for value in {0, whole[at] ^ 1} - {whole[at]}:
        path = Path(sys.argv[1]).with_name("changed.parquet")
        path.write_bytes(whole[:at] + bytes([value]) + whole[at + 1 :])
        try:
            read(path)
            found[0] += 1
        except DataError:
            found[1] += 1
print(*found)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        env={**os.environ, "PYTHONPATH": str(ROOT / ".links")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-500:]
    read_right, refusals = map(int, done.stdout.split())
    assert read_right > 10
    assert refusals > 10
