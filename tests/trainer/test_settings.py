from __future__ import annotations

import tomllib
from typing import Any

import pytest

from tamis.config import check, differences, dumps, load
from tamis.errors import UsageError
from tamis.trainer.model_settings import CloudSettings, PointSettings, TokenSettings
from tamis.trainer.settings import LayoutSettings, Settings


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dp": 2, "shard": 4}, "shard 4 does not divide dp 2"),
        ({"dp": 0}, "'dp'"),
        ({"tp": 0}, "'tp'"),
        ({"schedule": "1f2b"}, "'schedule'"),
        ({"microbatches": 0}, "'microbatches'"),
        ({"cp": 2}, "'cp'"),
    ],
)
def test_a_wrong_layout_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        check(values, LayoutSettings, where="x.toml")
    assert "\n" not in str(error.value)


def test_a_layout_says_how_many_ranks_it_needs() -> None:
    layout = check({"dp": 4, "shard": 2, "tp": 2, "pp": 3}, LayoutSettings, where="x.toml")
    assert (layout.ranks, layout.parts, layout.reshards) == (24, 3, False)
    assert LayoutSettings().reshards
    assert LayoutSettings(pp=2, microbatches=5, reshard=True).parts == 5


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ({"dp": 5}, r"layout\.dp 5 is above loader\.batch 4"),
        ({"dp": 2, "microbatches": 3}, r"layout\.microbatches 3 is above .* loader\.batch, 2"),
        ({"pp": 2, "dp": 4}, r"layout\.microbatches 2 is above .* loader\.batch, 1"),
        ({"tp": 4}, r"layout\.tp 4 does not divide model\.heads 2"),
        ({"pp": 3}, "pp|depth"),
    ],
)
def test_a_layout_that_would_idle_or_hang_is_refused(
    settings_of: Any, layout: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message) as error:
        settings_of(layout=layout)
    assert "\n" not in str(error.value)


def test_rows_are_shared_out_evenly_among_tensor_parallel_ranks(settings_of: Any) -> None:
    model = {"width": 36, "heads": 3, "depth": 2, "mlp_ratio": 2, "window": 8}
    assert settings_of(layout={"tp": 3}, model=model, trainer={"points": 48, "steps": 1})
    with pytest.raises(UsageError, match=r"points 32 is not a multiple of 24, by which .* and layout\.tp"):
        settings_of(layout={"tp": 3}, model=model)


@pytest.mark.parametrize(
    ("trainer", "message"),
    [
        ({"precision": "fp4"}, r"'trainer\.precision'.*'fp8'"),
        ({"layers": {"blocks.1": "fp4"}}, r"'trainer\.layers\.blocks\.1'"),
        ({"layers": {"blocks.2": "fp32"}}, r"trainer\.layers\.blocks\.2 names none of embed, blocks\.0 to"),
        ({"scaling": {"floor": 16.0, "initial": 8.0}}, r"'trainer\.scaling': floor 16, initial 8 and"),
        ({"scaling": {"backoff": 1.0}}, r"'trainer\.scaling\.backoff'"),
        ({"scaling": {"growth": 1.0}}, r"'trainer\.scaling\.growth'"),
        ({"scaling": {"floor": 0.0}}, r"'trainer\.scaling\.floor'"),
        ({"scaling": {"floor": 1e-40}}, r"'trainer\.scaling\.floor'"),
        ({"scaling": {"ceiling": 1e38}}, r"'trainer\.scaling\.ceiling'"),
    ],
)
def test_a_wrong_precision_is_refused_by_its_key(
    settings_of: Any, trainer: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message) as error:
        settings_of(trainer={"points": 32, "steps": 4} | trainer)
    assert "\n" not in str(error.value)


def test_a_layer_may_have_a_precision_of_its_own(settings_of: Any) -> None:
    layers = {"blocks.1": "fp32", "head": "bf16"}
    settings = settings_of(trainer={"points": 32, "precision": "fp16", "layers": layers})
    assert settings.trainer.layers == layers
    again = check(tomllib.loads(dumps(settings)), Settings, where="dumped")
    assert differences(settings, again) == []


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
        check(values, PointSettings, where="x.toml")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"width": 50, "heads": 4}, "even number of channels"),
        ({"end": 300}, "end 300 is not among the 257 tokens"),
        ({"vocabulary": 1}, "vocabulary"),
        ({"window": 32}, "window"),
    ],
)
def test_a_wrong_model_of_tokens_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check(values, TokenSettings, where="x.toml")


def test_the_kind_of_a_model_chooses_its_settings(settings_of: Any) -> None:
    assert isinstance(settings_of(model={"window": 8}).model, PointSettings)
    assert isinstance(settings_of(model={"kind": "clouds", "window": 8}).model, CloudSettings)
    assert isinstance(settings_of(model={"kind": "tokens"}).model, TokenSettings)
    with pytest.raises(UsageError, match="kind is none of 'points', 'clouds' and 'tokens'") as error:
        settings_of(model={"kind": "token"})
    assert "\n" not in str(error.value)


def test_points_must_fill_windows(settings_of: Any) -> None:
    assert isinstance(settings_of(), Settings)
    with pytest.raises(
        UsageError, match=r"trainer\.points 40 is not a multiple of 32, by which model\.window"
    ):
        settings_of(trainer={"points": 40, "steps": 1}, model={"window": 32})


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


def test_a_key_of_another_kind_of_model_is_not_its_own_hint() -> None:
    values = {"name": "x", "data": {}, "model": {"kind": "tokens", "window": 32}}
    with pytest.raises(UsageError, match=r"unknown key 'model.window'; (?!did you mean 'model.window')"):
        check(values, Settings, where="x.toml")
