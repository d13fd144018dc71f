"""What files do not say of themselves: the ``[data.read]`` section of a configuration."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ...config import Model

FunctionName = Annotated[str, Field(pattern=r"^[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*$")]
"""A function of the user's own, ``module:name``."""


class ReadSettings(Model):
    """How files are read, where they leave it open.

    ``columns``: names of the columns of text and .bin files without a header, x, y and z among them.
    ``surface``: points that are drawn, evenly by area, from each mesh; a PLY file's vertices are taken
    where it is missing, and 10,000 points of other meshes. ``seed``: of these draws.
    ``unit``: that of the coordinates that are built: the file's own ("source"), or metres, to which they are
    brought where a file names its unit.
    ``function``: reads the files in place of all that, ``module:name`` (see `user`). ``function_digest``: of
    the file that it stands in, so that a dataset of another is noticed; a build fills it in.
    """

    columns: list[str] | None = None
    surface: Annotated[int, Field(ge=1)] | None = None
    seed: int = 0
    unit: Literal["source", "metre"] = "source"
    function: FunctionName | None = None
    function_digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None

    @model_validator(mode="after")
    def _function_reads_alone(self) -> ReadSettings:
        if self.function is None:
            if self.function_digest is not None:
                raise ValueError("'function_digest' is of a 'function', which is missing")
            return self
        for key in ("columns", "surface", "unit"):
            if getattr(self, key) != ReadSettings.model_fields[key].default:
                raise ValueError(f"'{key}' is for known formats: 'function' reads files in place of them")
        return self
