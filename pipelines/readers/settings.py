"""What files do not say of themselves: the ``[data.read]`` section of a configuration."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ...config import Model


class ReadSettings(Model):
    """How files are read, where they leave it open.

    ``columns``: names of the columns of text and .bin files without a header, x, y and z among them.
    ``surface``: points that are drawn, evenly by area, from each mesh; a PLY file's vertices are taken
    where it is missing, and 10,000 points of other meshes. ``seed``: of these draws.
    ``unit``: that of the coordinates that are built: the file's own ("source"), or metres, to which they are
    brought where a file names its unit.
    """

    columns: list[str] | None = None
    surface: Annotated[int, Field(ge=1)] | None = None
    seed: int = 0
    unit: Literal["source", "metre"] = "source"
