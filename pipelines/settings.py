"""The ``[data]`` section of a configuration."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from ..config import ConfigPath, Model
from .layouts import Name as LayoutName
from .prepare.settings import StepSettings
from .readers import ReadSettings
from .splits import BlocksSplit, Split
from .tiles import TileSettings


class TextSettings(Model):
    """Files as texts: their bytes are tokens, packed into samples of ``length`` tokens."""

    length: Annotated[int, Field(ge=2, le=1 << 20)] = 256


_HOW = {"path", "root", "verify", "engine", "workers", "bad_files", "max_bad"}
"""Keys of `DataSettings` that do not change what is built from files that can be read."""


class DataSettings(Model):
    """What a dataset is made of.

    ``path`` names a dataset that is ready; the other keys say how to build one from the files below ``root``
    (default: the environment's TAMIS_DATA). ``files``: patterns relative to it. ``label``: the field that
    holds the class codes. ``classes``: name -> codes, in the order of the class numbers; other codes are
    ignored. ``bounds``: [xmin, ymin, xmax, ymax], half-open. ``fields``: which to keep (default: all).
    ``layout``: a published dataset, with its splits and classes. ``sweeps``: scans that are merged to one,
    the named one and those before it; ``images``: those of its cameras become annotations. ``prepare``: steps
    on whole scans. ``where``: which training samples are kept. ``read``: what the files do not say of
    themselves. ``text``: the files are no points but texts; of the keys above, ``files`` and ``split`` then
    hold. ``shard_mb``: MiB a shard. ``verify``: when a loader checks what it reads. ``engine``: "ray" has
    files read by Ray, on many machines. ``workers``: processes that read files (default: the CPUs this
    process may use, but no more than pay). ``bad_files``: "skip" leaves out up to ``max_bad`` files that
    cannot be made samples of.
    """

    path: ConfigPath | None = None
    root: ConfigPath | None = None
    files: list[str] = Field(default_factory=list)
    label: str = "classification"
    classes: dict[str, list[int]] = Field(default_factory=dict)
    bounds: Annotated[list[float], Field(min_length=4, max_length=4)] | None = None
    tiles: TileSettings | None = None
    split: Split | None = None
    row_order: Literal["farthest", "random", "source"] = "farthest"
    shard_mb: Annotated[int, Field(ge=1)] = 64
    fields: list[str] | None = None
    text: TextSettings | None = None
    layout: LayoutName | None = None
    sweeps: Annotated[int, Field(ge=1, le=100)] = 1
    images: bool = False
    prepare: list[StepSettings] = Field(default_factory=list)
    where: Annotated[str, Field(max_length=1000)] | None = None
    read: ReadSettings = Field(default_factory=ReadSettings)
    verify: Literal["first", "always", "never"] = "first"
    engine: Literal["local", "ray"] = "local"
    workers: Annotated[int, Field(ge=1, le=4096)] | None = None
    bad_files: Literal["stop", "skip"] = "stop"
    max_bad: Annotated[int, Field(ge=0)] = 100

    @field_validator("classes")
    @classmethod
    def _one_class_a_code(cls, classes: dict[str, list[int]]) -> dict[str, list[int]]:
        owner: dict[int, str] = {}
        for name, codes in classes.items():
            if not codes:
                raise ValueError(f"class {name} has no code")
            for code in codes:
                if code in owner:
                    raise ValueError(f"code {code} is listed twice, in {owner[code]} and in {name}")
                owner[code] = name
        return classes

    @field_validator("fields")
    @classmethod
    def _each_once(cls, fields: list[str] | None) -> list[str] | None:
        twice = [name for i, name in enumerate(fields or []) if name in (fields or [])[:i]]
        if twice:
            raise ValueError(f"field {twice[0]} is listed twice")
        return fields

    @field_validator("bounds")
    @classmethod
    def _has_ground(cls, bounds: list[float] | None) -> list[float] | None:
        if bounds is not None and not (bounds[0] < bounds[2] and bounds[1] < bounds[3]):
            raise ValueError("bounds are [xmin, ymin, xmax, ymax] with xmin < xmax and ymin < ymax")
        return bounds

    @model_validator(mode="after")
    def _text_has_no_ground(self) -> DataSettings:
        if self.text is not None:
            for key in ("classes", "bounds", "tiles", "fields", "layout", "prepare", "where"):
                if getattr(self, key):
                    raise ValueError(f"'{key}' is for points: a text has none")
            if isinstance(self.split, BlocksSplit):
                raise ValueError("a text has no ground: split.kind is 'files' or 'hash'")
            if self.bad_files == "skip":
                raise ValueError("'bad_files' is for points: any file is a text")
        return self

    @model_validator(mode="after")
    def _function_has_files(self) -> DataSettings:
        if self.read.function is not None:
            for key in ("layout", "text"):
                if getattr(self, key) is not None:
                    raise ValueError(f"'{key}' says how files are read: leave out it or 'read.function'")
            if not self.files:
                raise ValueError("'read.function' reads the files of 'files', which names none")
        return self

    def content(self) -> DataSettings:
        """These settings without the keys that do not change what is built."""
        return self.model_copy(update={name: DataSettings.model_fields[name].get_default() for name in _HOW})

    def configuration(self) -> dict[str, Any]:
        """`content` as plain values, as the dataset records them."""
        return self.content().model_dump(mode="json", exclude=_HOW)
