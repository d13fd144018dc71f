"""Configuration: overrides, unions by kind, and errors that name the key and the nearest one."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from tamis.config import ConfigPath, Model, differences, dumps, load
from tamis.errors import DataError, UsageError


class Cube(Model):
    kind: Literal["cube"] = "cube"
    side: float


class Ball(Model):
    kind: Literal["ball", "steps"] = "ball"
    radius: float


class Inner(Model):
    steps: int = 10
    rates: tuple[float, ...] = (1.0,)
    shape: Annotated[Cube | Ball, Field(discriminator="kind")] = Ball(radius=1.0)
    shapes: tuple[Annotated[Cube | Ball, Field(discriminator="kind")], ...] = ()


class Outer(Model):
    name: str = "x"
    root: ConfigPath | None = None
    codes: dict[str, list[int]] = Field(default_factory=dict)
    inner: Inner = Inner()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.toml"
    path.write_text('name = "a"\nroot = "raw"\n[inner]\nsteps = 3\nshape = {kind = "cube", side = 2}\n')
    return path


def test_values_overrides_and_relative_paths(file: Path) -> None:
    settings = load(
        file, ["inner.steps=7", "inner.rates=[1, 2.5]", "name=bare word", "inner.shape.side=4.0"], Outer
    )
    assert settings.inner == Inner(steps=7, rates=(1.0, 2.5), shape=Cube(side=4.0))
    assert settings.name == "bare word"
    assert settings.root == file.parent / "raw"


def test_a_relative_path_on_the_command_line_is_relative_to_the_working_folder(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert load(file, ["root=raw"], Outer).root == tmp_path / "here" / "raw"


@pytest.mark.parametrize(
    ("override", "cause"),
    [
        ("inner.stpes=1", "unknown key 'inner.stpes'; did you mean 'inner.steps'?"),
        ("steps=1", "unknown key 'steps'; did you mean 'inner.steps'?"),
        ("inner.shape.sied=1", "unknown key 'inner.shape.sied'; did you mean 'inner.shape.side'?"),
        ("inner.steps=many", "key 'inner.steps': Input should be a valid integer (given 'many')"),
        ("inner.steps=1.5", "key 'inner.steps'"),
        ("inner.steps=true", "key 'inner.steps'"),
        ("inner.shapes=[{kind = 'cube', side = 'x'}]", "key 'inner.shapes.0.side'"),
        ("inner.shape.kind=cone", "key 'inner.shape'"),
        ("inner.rates=[inf]", "key 'inner.rates.0'"),
        ("inner.steps.deep=1", "'steps' is a value, not a section"),
        ("novalue", "has no key=value"),
    ],
)
def test_wrong_overrides_are_refused_by_name(file: Path, override: str, cause: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(file, [override], Outer)
    assert cause in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_folder_of_a_run_is_a_configuration(file: Path, tmp_path: Path) -> None:
    file.rename(tmp_path / "config.toml")
    assert load(tmp_path, [], Outer).name == "a"


def test_missing_key_and_missing_or_broken_files(file: Path, tmp_path: Path) -> None:
    file.write_text('[inner]\nshape = {kind = "cube"}\n')
    with pytest.raises(UsageError, match=r"key 'inner.shape.side' is missing"):
        load(file, [], Outer)
    file.write_text("name = = 1")
    with pytest.raises(UsageError, match="is not TOML"):
        load(file, [], Outer)
    with pytest.raises(
        DataError, match=r"no such configuration file; name a TOML file or one of .*quickstart"
    ):
        load(tmp_path / "none.toml", [], Outer)


@given(
    steps=st.integers(-(2**53), 2**53),
    rates=st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=4),
    name=st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"])),
)
def test_dumps_is_read_back_as_it_was(steps: int, rates: list[float], name: str) -> None:
    settings = Outer(name=name, inner=Inner(steps=steps, rates=tuple(rates)))
    assert Outer.model_validate(tomllib.loads(dumps(settings)), strict=False) == settings


def test_differences_name_dotted_keys() -> None:
    new = Outer(inner=Inner(steps=11, shape=Cube(side=1.0)))
    assert differences(Outer(), new) == [
        "inner.shape.kind",
        "inner.shape.radius",
        "inner.shape.side",
        "inner.steps",
    ]
    assert differences(Outer(), Outer()) == []


def test_the_order_of_a_tables_keys_is_a_difference() -> None:
    """Class numbers follow the order in which the classes are written."""
    old, new = Outer(codes={"a": [1], "b": [2]}), Outer(codes={"b": [2], "a": [1]})
    assert differences(old, new) == ["codes"]
    assert differences(old, old.model_copy()) == []


def test_a_name_that_is_not_given_is_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "harbour.toml"
    path.write_text("[inner]\nsteps = 3\n")
    assert load(path, [], Outer).name == "harbour"
    assert load(path, ["name=quay"], Outer).name == "quay"
