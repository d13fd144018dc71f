from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from tamis.errors import DataError
from tamis.pipelines.build import DataSettings
from tamis.pipelines.cut import class_numbers, select, warn_of_dropped
from tamis.pipelines.readers import Scan

PATH = Path("scan.npy")


def test_gate_drops_and_counts_rows_that_are_not_finite(caplog: pytest.LogCaptureFixture) -> None:
    xyz = np.arange(18.0).reshape(6, 3)
    xyz[1, 2], xyz[4, 0] = np.nan, -np.inf
    scan = Scan(xyz, {"intensity": np.arange(6, dtype=np.uint16)})
    with caplog.at_level(logging.WARNING):
        kept = select(PATH, scan, DataSettings(bounds=[0.0, 0.0, 15.0, 100.0]))
        warn_of_dropped(PATH, kept.dropped)
    assert (kept.dropped, kept.outside) == (2, 1)
    assert kept.columns["row"].tolist() == [0, 2, 3]
    assert kept.columns["intensity"].tolist() == [0, 2, 3]
    assert "dropped 2 rows" in caplog.text


def test_bounds_are_half_open() -> None:
    xyz = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0.999, 0.999, 0]])
    assert select(PATH, Scan(xyz, {}), DataSettings(bounds=[0.0, 0.0, 1.0, 1.0])).columns["row"].tolist() == [
        0,
        3,
    ]


def test_classes_take_their_numbers_from_the_order() -> None:
    classes = {"ground": [2], "vegetation": [3, 4, 5]}
    assert class_numbers(np.array([1, 2, 3, 5, 64], np.uint8), classes).tolist() == [-1, 0, 1, 1, -1]
    assert class_numbers(np.array([2.0, 2.5, np.nan]), classes).tolist() == [0, -1, -1]
    assert class_numbers(np.array([2], np.uint8), classes).dtype == np.int32


def test_v15_fields_are_kept_chosen_or_refused() -> None:
    """V15, R03: every field is there with its type; a missing one is named with those that are there."""
    fields: dict[str, np.ndarray] = {
        "intensity": np.zeros(4, np.uint16),
        "normal": np.zeros((4, 3), np.float32),
        "t": np.zeros(4),
    }
    scan = Scan(np.zeros((4, 3)), fields)
    schema = select(PATH, scan, DataSettings()).schema
    assert {name: (field.dtype.str, field.width, field.kind) for name, field in schema.items()} == {
        "xyz": ("<f4", 3, "point"),
        "row": ("<i8", 1, "none"),
        "intensity": ("<u2", 1, "colour"),
        "normal": ("<f4", 3, "vector"),
        "t": ("<f8", 1, "time"),
    }
    assert list(select(PATH, scan, DataSettings(fields=["t"])).schema) == ["xyz", "row", "t"]
    for wrong in (DataSettings(fields=["ring"]), DataSettings(classes={"a": [1]})):
        with pytest.raises(DataError, match="it has intensity, normal, t"):
            select(PATH, scan, wrong)


def test_two_fields_of_one_stored_name_are_refused_with_both() -> None:
    scan = Scan(np.zeros((1, 3)), {"source_row": np.array([1]), "row": np.array([2])})
    with pytest.raises(DataError, match="'source_row' and 'row' would both be stored as 'source_row'"):
        select(PATH, scan, DataSettings())
    assert select(PATH, scan, DataSettings(fields=["row"])).columns["source_row"].tolist() == [2]
    with pytest.raises(ValueError, match="row is listed twice"):
        DataSettings(fields=["row", "row"])


def test_a_field_that_cannot_be_stored_is_refused_if_it_is_kept() -> None:
    scan = Scan(np.zeros((2, 3)), {"name": np.array(["a", "b"]), "ring": np.array([1, 2], ">i4")})
    with pytest.raises(DataError, match="field 'name' has type <U1"):
        select(PATH, scan, DataSettings())
    assert select(PATH, scan, DataSettings(fields=["ring"])).columns["ring"].dtype.str == "<i4"


def test_a_label_has_one_number_a_row() -> None:
    scan = Scan(np.zeros((2, 3)), {"rgb": np.zeros((2, 3), np.uint8)})
    with pytest.raises(DataError, match=r"'rgb' has 3 numbers a row; .*data\.label"):
        select(PATH, scan, DataSettings(label="rgb", classes={"a": [1]}))


@pytest.mark.parametrize("value", [2.0**53, -1e300, 1.7e308])
def test_coordinates_that_float64_counts_in_steps_are_refused(value: float) -> None:
    xyz = np.zeros((4, 3))
    xyz[2, 0] = value
    with pytest.raises(DataError, match=r"row 2: x is .*2\^53"):
        select(PATH, Scan(xyz, {}), DataSettings())
    kept = select(PATH, Scan(xyz, {}), DataSettings(bounds=[-1.0, -1.0, 1.0, 1.0]))
    assert (len(kept.xyz), kept.outside) == (3, 1)


def test_a_source_may_use_our_names() -> None:
    scan = Scan(
        np.zeros((2, 3)), {"label": np.array([7, 2]), "row": np.array([5, 6]), "xyz": np.array([1, 2])}
    )
    columns = select(PATH, scan, DataSettings(label="label", classes={"a": [2]})).columns
    assert {name: values.tolist() for name, values in columns.items()} == {
        "label": [-1, 0],
        "row": [0, 1],
        "source_label": [7, 2],
        "source_row": [5, 6],
        "source_xyz": [1, 2],
    }


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int64, np.float32])
def test_class_numbers_are_those_of_a_search_class_by_class(dtype: type) -> None:
    rng = np.random.default_rng(np.dtype(dtype).itemsize)
    codes: np.ndarray = rng.integers(0, 12, 200).astype(dtype)
    if dtype is np.float32:
        codes[::7] += 0.5
        codes[3] = np.nan
    classes = {"b": [9, 2], "a": [5], "far": [2**40, -7], "c": [11, 0]}
    expected = np.full(len(codes), -1, np.int32)
    for number, wanted in enumerate(classes.values()):
        expected[np.isin(codes, wanted)] = number
    found = class_numbers(codes, classes)
    assert found.dtype == np.int32
    assert np.array_equal(found, expected)
    assert class_numbers(codes[:0], classes).shape == (0,)
