from __future__ import annotations

import logging
import re

import numpy as np
import pytest

from tamis.samplers import fields, kind_of, reduction, voxel


@pytest.mark.parametrize(
    ("name", "dtype", "kind", "how"),
    [
        ("xyz", "f4", "point", "mean"),
        ("normals", "f4", "vector", "unit"),
        ("normal", "i2", "vector", "first"),
        ("rgb", "u1", "colour", "rounded"),
        ("intensity", "u2", "colour", "rounded"),
        ("Reflectance", "f4", "colour", "mean"),
        ("label", "i4", "class", "majority"),
        ("classification", "u1", "class", "majority"),
        ("gps_time", "f8", "time", "first"),
        ("return_number", "u1", "count", "first"),
        ("boxes", "f4", "box", "first"),
        ("height", "f4", "none", "mean"),
        ("ring", "u2", "none", "first"),
        ("label", "M8[s]", "class", "first"),
        ("label", "U8", "none", "first"),
        ("labels", "f4", "class", "majority"),
        ("class_id", "i8", "class", "majority"),
        ("semantic_label", "f8", "class", "majority"),
        ("treeID", "u4", "class", "majority"),
        ("scalar_Classification", "f4", "class", "majority"),
        ("scalar_Intensity", "f4", "colour", "mean"),
        ("scalar_", "f4", "none", "mean"),
    ],
)
def test_kind_and_reduction(name: str, dtype: str, kind: str, how: str) -> None:
    assert kind_of(name, np.dtype(dtype)) == kind
    assert reduction(kind_of(name, np.dtype(dtype)), np.dtype(dtype)) == how


@pytest.mark.parametrize(
    ("dtype", "said"), [("f4", "the mean of its rows"), ("i2", "one of its rows"), ("U4", "one of its rows")]
)
def test_a_field_that_nobody_knows_is_named_once(
    dtype: str, said: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fields, "_noticed", set())
    for _ in range(2):
        voxel(np.eye(3), 1.0, fields={"gt": np.zeros(3, dtype), "label": np.zeros(3, "f4")})
    (notice,) = [record for record in caplog.records if record.name == "tamis.samplers.fields"]
    assert notice.levelno == logging.WARNING
    assert f"field 'gt' is of no known kind: a cell has {said}" in notice.message
    fix = re.findall(r"pass reduce=(.*?) \(tamis sample: (.*?)\)", notice.message)
    assert fix == ([] if dtype == "U4" else [("{'gt': 'majority'}", "--reduce gt=majority")])


def test_what_the_notice_says_is_what_happens() -> None:
    gt = np.array([1, 1, 1, 6], np.float32)
    voxels = voxel(np.zeros((4, 3)), 1.0, fields={"gt": gt}, reduce={"gt": "majority"})
    assert voxels.fields["gt"].tolist() == [1]
    assert voxel(np.zeros((4, 3)), 1.0, fields={"gt": gt}).fields["gt"].tolist() == [2.25]
