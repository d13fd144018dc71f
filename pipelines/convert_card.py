"""The card of a converted sample: JSON that says what its arrays do not, and how to know them whole.

A tar keeps no checksums, and neither format keeps a place, a split or a kind.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

import numpy as np
import pydantic
from crc32c import crc32c
from numpy.typing import NDArray
from pydantic import AfterValidator

from ..config import Model
from ..errors import DataError
from .dataset import Dataset
from .manifest import Column
from .records import Field, Sample, sample_name

NAME = "tamis.json"
"""In a folder of converted files: the ``dataset.json`` of the dataset that they are of, as it was."""

FEATURE = "sample/json"
"""The feature of a TFRecord that holds the card: no column's name has a slash when it is `quoted`."""

_VERSION = 1
_FIX = "fetch or convert it again"
_APART = re.compile(r"[%/;\s\x00-\x1f\x7f]")


def _dtype(code: str) -> str:
    try:
        dtype = np.dtype(code)
    except TypeError:
        raise ValueError(f"{code!r} is no dtype") from None
    if dtype.hasobject or dtype.itemsize == 0:
        raise ValueError(f"{code!r} is no dtype of numbers")
    return code


class Stored(Column):
    """A column or annotation, its number of rows, and the CRC32C of its bytes (little-endian, row by row)."""

    dtype: Annotated[str, AfterValidator(_dtype)]
    width: Annotated[int, pydantic.Field(ge=1)]
    rows: Annotated[int, pydantic.Field(ge=0)]
    crc32c: int

    def column(self) -> Column:
        """Without what is of one sample alone."""
        return Column(name=self.name, dtype=self.dtype, width=self.width, kind=self.kind)

    def checked(self, where: str, values: NDArray[Any]) -> NDArray[Any]:
        """``values`` if they are what was stored, else DataError."""
        wanted = (self.field().shape(self.rows), np.dtype(self.dtype))
        if (values.shape, values.dtype) != wanted:
            cause = f"column {self.name} has shape {values.shape} and dtype {values.dtype}, not %s of %s"
            raise DataError(where, cause % wanted, _FIX)
        if crc32c(_data(values)) != self.crc32c:
            raise DataError(where, f"column {self.name} is damaged", _FIX)
        return values


class Card(Model):
    """A sample without its arrays; ``tamis`` is the version of the card."""

    tamis: Literal[1] = 1
    name: str
    source: str
    tile: int
    split: Literal["train", "val", "test"]
    origin: Annotated[list[float], pydantic.Field(min_length=3, max_length=3)]
    bounds: Annotated[list[float], pydantic.Field(min_length=6, max_length=6)]
    label: int
    columns: list[Stored]
    annotations: list[Stored]

    @property
    def rows(self) -> int:
        """Number of rows of every column."""
        return self.columns[0].rows if self.columns else 0

    def sealed(self) -> bytes:
        """The text of the card, with a CRC32C of it."""
        values = self.model_dump(mode="json")
        return _text(values | {"crc32c": crc32c(_text(values))})


def card_of(dataset: Dataset, row: int, sample: Sample) -> Card:
    """The card of a sample of a dataset."""
    about = {name: dataset.samples.column(name)[row].as_py() for name in ("split", "bounds", "label")}
    return Card(
        name=sample.name,
        source=sample.source,
        tile=sample.tile,
        origin=sample.origin.tolist(),
        columns=[_stored(name, dataset.schema[name], values) for name, values in sample.columns.items()],
        annotations=[
            _stored(name, dataset.annotations[name], values) for name, values in sample.annotations.items()
        ],
        **about,
    )


def opened(where: str, data: bytes) -> Card | None:
    """The card whose text this is; None for JSON that is none. DataError for a damaged one and no JSON."""
    try:
        values = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DataError(where, f"is no JSON ({error})", _FIX) from None
    # One flipped bit spoils one of these keys only.
    if not isinstance(values, dict) or not ("tamis" in values or {"crc32c", "columns"} <= values.keys()):
        return None
    if values.get("tamis", _VERSION) != _VERSION and values.pop("crc32c", None) == crc32c(_text(values)):
        raise DataError(where, f"is of version {values['tamis']!r}, not {_VERSION}", "convert it again")
    if values.pop("crc32c", None) != crc32c(_text(values)):
        raise DataError(where, "is damaged", _FIX)
    try:
        card = Card.model_validate(values)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        raise DataError(where, f"key '{key}': {first['msg']}", _FIX) from None
    if card.name != sample_name(card.source, card.tile) or len({one.rows for one in card.columns}) > 1:
        raise DataError(where, "contradicts itself", _FIX)
    return card


def quoted(name: str) -> str:
    """A column's name where '/', '%', ';' and white space mean something: these are percent-encoded."""
    return _APART.sub(lambda found: quote(found[0], safe=""), name)


def description_near(path: Path) -> tuple[Path, bool] | None:
    """The `NAME` that tells of the files at ``path``, and whether it tells of them alone."""
    if path.is_dir() and (path / NAME).is_file():
        return path / NAME, True
    near = path.absolute().parents
    return next(((folder / NAME, False) for folder in near[:2] if (folder / NAME).is_file()), None)


def _stored(name: str, field: Field, values: NDArray[Any]) -> Stored:
    return Stored(
        name=name,
        dtype=field.dtype.name,
        width=field.width,
        kind=field.kind,
        rows=len(values),
        crc32c=crc32c(_data(values)),
    )


def _data(values: NDArray[Any]) -> Any:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def _text(values: dict[str, Any]) -> bytes:
    return json.dumps(values, ensure_ascii=False).encode(errors="surrogatepass")
