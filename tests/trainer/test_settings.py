from __future__ import annotations

import tomllib
from typing import Any

import pytest

from tamis.config import check, differences, dumps, load
from tamis.errors import UsageError
from tamis.trainer.settings import LayoutSettings, ModelSettings, Settings, TrainerSettings


@pytest.mark.parametrize("axis", ["tp", "pp", "shard"])
def test_only_data_parallel_is_available(axis: str) -> None:
    with pytest.raises(
        UsageError, match=rf"'{axis}': only data parallel \(layout.dp\) is available"
    ) as error:
        check({"dp": 2, axis: 2}, LayoutSettings, where="x.toml")
    assert "\n" not in str(error.value)
    assert check({"dp": 2, axis: 1}, LayoutSettings, where="x.toml").dp == 2


def test_other_precisions_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match="'precision': 'bf16' is not available, only 'fp32'"):
        check({"precision": "bf16"}, TrainerSettings, where="x.toml")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"width": 50, "heads": 4}, "even number of channels"),
        ({"width": 8, "heads": 2}, "6 or more"),
        ({"wavelengths": [4.0, 2.0]}, "shortest <= longest"),
        ({"features": ["xy", "xy"]}, "twice"),
        ({"features": ["xy", "colour"]}, "features"),
        ({"features": []}, "at least 1"),
        ({"windw": 32}, "did you mean 'window'"),
        ({"window": "32"}, "window"),
    ],
)
def test_a_wrong_model_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check(values, ModelSettings, where="x.toml")


def test_points_must_fill_windows(settings_of: Any) -> None:
    assert isinstance(settings_of(), Settings)
    with pytest.raises(UsageError, match=r"trainer\.points 40 is not a multiple of model\.window 32"):
        settings_of(trainer={"points": 40, "steps": 1}, model={"window": 32})


def test_every_rank_gets_a_sample(settings_of: Any) -> None:
    with pytest.raises(UsageError, match=r"layout\.dp 5 is above loader\.batch 4"):
        settings_of(layout={"dp": 5})


@pytest.mark.parametrize("name", ["quickstart", "ign"])
def test_the_shipped_configurations_are_whole(name: str) -> None:
    settings = load(name, [], Settings)
    assert settings.name == name
    again = check(tomllib.loads(dumps(settings)), Settings, where="dumped")
    assert differences(settings, again) == []


@pytest.mark.parametrize("name", ["", "a/b"])
def test_a_name_is_a_folder_name(settings_of: Any, name: str) -> None:
    with pytest.raises(UsageError, match="'name'"):
        settings_of(name=name)
