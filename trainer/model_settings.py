"""The ``[model]`` section of a configuration: what is learned, and how large the model is. Free of torch."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from ..config import Model
from ..pipelines.ops import OperatorSettings, SerialiseSettings
from ..pipelines.text import END, TOKENS, VOCABULARY

Feature = Literal["xy", "z", "intensity", "returns", "rgb"]
FIELDS: dict[Feature, tuple[str, ...]] = {
    "xy": (),
    "z": (),
    "intensity": ("intensity",),
    "returns": ("return_number", "number_of_returns"),
    "rgb": ("rgb",),
}
"""The fields of a scan that each feature is made of, beside its coordinates."""

Positive = Annotated[int, Field(ge=1)]


class TrunkSettings(Model):
    """Size of the transformer: blocks (``depth``), channels, heads, and hidden channels a channel."""

    width: Positive = 48
    heads: Positive = 2
    depth: Positive = 4
    mlp_ratio: Positive = 2

    @property
    def rows_multiple(self) -> int:
        """What the number of rows of a sample must be a multiple of."""
        return 1

    @property
    def targets(self) -> tuple[str, ...]:
        """The columns that only the loss reads."""
        return ()

    @property
    def graph(self) -> tuple[OperatorSettings, ...]:
        """Operators that the model needs after those of ``loader.graph``."""
        return ()


class CurveSettings(TrunkSettings):
    """Attention in windows along a curve through a cloud, and the features its points are told from.

    ``cell`` and ``wavelengths`` (shortest, longest) are in the unit of the scan's coordinates, as are
    ``xy_scale`` and ``z_scale``, which bring the coordinates among the features near 1.
    """

    window: Positive = 32
    cell: Annotated[float, Field(gt=0)] = 0.1
    wavelengths: tuple[float, float] = (1.0, 16.0)
    features: Annotated[tuple[Feature, ...], Field(min_length=1)] = ("xy", "z")
    xy_scale: Annotated[float, Field(gt=0)] = 5.0
    z_scale: Annotated[float, Field(gt=0)] = 10.0

    @property
    def unit(self) -> str:
        """What a row is."""
        return "points"

    @property
    def rows_multiple(self) -> int:
        """See `TrunkSettings`."""
        return self.window

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a sample that the model reads."""
        return ("xyz", *(field for feature in self.features for field in FIELDS[feature]))

    @property
    def targets(self) -> tuple[str, ...]:
        """See `TrunkSettings`."""
        return ("label",)

    @property
    def graph(self) -> tuple[OperatorSettings, ...]:
        """See `TrunkSettings`."""
        return (SerialiseSettings(cell=self.cell),)

    @field_validator("wavelengths")
    @classmethod
    def _rising(cls, wavelengths: tuple[float, float]) -> tuple[float, float]:
        if not 0 < wavelengths[0] <= wavelengths[1]:
            raise ValueError("needs 0 < shortest <= longest")
        return wavelengths

    @field_validator("features")
    @classmethod
    def _each_once(cls, features: tuple[Feature, ...]) -> tuple[Feature, ...]:
        if len(set(features)) < len(features):
            raise ValueError("names a feature twice")
        return features

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.width % (2 * self.heads) or self.width // self.heads < 6:
            raise ValueError(
                f"width {self.width} must be heads ({self.heads}) times an even number of channels, "
                "6 or more: each coordinate turns at least one pair of them"
            )
        return self


class PointSettings(CurveSettings):
    """A class for each point."""

    kind: Literal["points"] = "points"


class CloudSettings(CurveSettings):
    """A class for each cloud: that of its points, which are all labelled alike."""

    kind: Literal["clouds"] = "clouds"


class TokenSettings(TrunkSettings):
    """The next token, from those before it in the same document.

    ``vocabulary``: how many tokens there are; ``end``: the one that ends a document. The defaults are those
    of text as bytes.
    """

    kind: Literal["tokens"] = "tokens"
    vocabulary: Annotated[int, Field(ge=2)] = VOCABULARY
    end: Annotated[int, Field(ge=0)] = END
    rope_base: Annotated[float, Field(gt=1)] = 10_000.0

    @property
    def unit(self) -> str:
        """What a row is."""
        return "tokens"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a sample that the model reads."""
        return (TOKENS,)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.width % (2 * self.heads):
            raise ValueError(
                f"width {self.width} must be heads ({self.heads}) times an even number of channels"
            )
        if self.end >= self.vocabulary:
            raise ValueError(f"end {self.end} is not among the {self.vocabulary} tokens of the vocabulary")
        return self


def _kind(given: Any) -> str | None:
    """What kind a section is, "points" unless it says so."""
    return given.get("kind", "points") if isinstance(given, dict) else getattr(given, "kind", None)


ModelSettings = Annotated[
    Annotated[PointSettings, Tag("points")]
    | Annotated[CloudSettings, Tag("clouds")]
    | Annotated[TokenSettings, Tag("tokens")],
    Discriminator(
        _kind,
        custom_error_type="kind",
        custom_error_message="kind is none of 'points', 'clouds' and 'tokens'",
    ),
]
