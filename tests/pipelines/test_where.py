"""Conditions on samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tamis.errors import UsageError
from tamis.pipelines.where import condition

CLASSES = {"ground": [2], "building": [6, 17]}
XYZ = np.array([[0.0, 0, 1], [2, 0, 1], [2, 5, 3], [1, 1, 1]])
COLUMNS: dict[str, NDArray[Any]] = {
    "label": np.array([0, 1, -1, 1], np.int32),
    "intensity": np.array([10, 20, 30, 40], np.uint16),
    "rgb": np.zeros((4, 3), np.uint8),
}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("points > 3", True),
        ("points > 4", False),
        ("3 < points <= 4", True),
        ("3 < points < 4", False),
        ("label_share(6) > 0.49 and label_share('building') == 0.5", True),
        ("label_share(17) == label_share(6)", True),
        ("label_share('ground') > 0.25 or points == 1", False),
        ("not label_share('ground') > 0.25", True),
        ("width == 2 and depth == 5 and height == 2", True),
        ("points / (width * depth) >= 0.4", True),
        ("points / (width - 2) > 0", False),
        ("mean('intensity') == 25 and least('intensity') == 10 and most('intensity') == 40", True),
        ("-points + 3 == -1", True),
        (" (points != 4) != 1 ", True),
    ],
)
def test_conditions_say_what_they_say(text: str, holds: bool) -> None:
    assert condition(text, CLASSES).holds(XYZ, COLUMNS) is holds


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("points >", "cannot be read"),
        ("", "cannot be read"),
        ("points > 1000; points", "cannot be read"),
        ("pionts > 3", "'pionts' is not understood"),
        ("__import__('os').system('true')", "is not understood"),
        ("points.__class__ == 3", "is not understood"),
        ("[points][0] > 1", "is not understood"),
        ("(lambda: points)() > 1", "is not understood"),
        ("points ** 9 ** 9 > 1", "is not understood"),
        ("points is 3", "is not understood"),
        ("True", "'True' is not understood"),
        ("mean(intensity) > 3", "is not understood"),
        ("mean('intensity', axis=0) > 3", "is not understood"),
        ("label_share('tree') > 0", "there is no class 'tree'"),
        ("label_share(3) > 0", "there is no class 3"),
        ("'a' < points", "'a'"),
        ("(" * 500 + "points" + ")" * 500, "cannot be read"),
    ],
)
def test_what_is_not_understood_is_refused_before_anything_is_read(text: str, cause: str) -> None:
    with pytest.raises(UsageError, match=r"data\.where: .*") as caught:
        condition(text, CLASSES)
    assert cause in str(caught.value)


@given(st.text(alphabet="points()<>=!+-*/.0123456789andorlabel_share'[]{}:; ", max_size=40))
def test_any_text_is_a_condition_or_refused(text: str) -> None:
    try:
        found = condition(text, CLASSES)
    except UsageError:
        return
    assert found.holds(XYZ, COLUMNS) in (True, False)


def test_fields_that_cannot_be_asked_are_told() -> None:
    for text, cause in (("mean('height') > 1", "is not there"), ("mean('rgb') > 1", "has 3 numbers a row")):
        with pytest.raises(UsageError, match=cause):
            condition(text, CLASSES).holds(XYZ, COLUMNS)


def test_a_sample_without_points_has_no_shares_and_no_extremes() -> None:
    none = {name: values[:0] for name, values in COLUMNS.items()}
    for text in ("label_share(6) > 0", "width > 0", "mean('intensity') > -1e9", "mean('intensity') < 1e9"):
        assert not condition(text, CLASSES).holds(XYZ[:0], none)
