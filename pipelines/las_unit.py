"""The unit of length that a LAS file says its coordinates have, by its WKT or else its GeoTIFF keys."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import laspy

from ..errors import DataError
from .readers.formats import format_of
from .readers.units import Lengths, geo_keys, of_keys, of_wkt

# Records of a coordinate system (LAS 1.4 R15, annex B).
_WKT, _KEYS, _DOUBLES = 2112, 34735, 34736

_NAMES = {1.0: ("metre", "m"), 0.3048: ("foot", "ft"), 1200 / 3937: ("US survey foot", "ft")}


@dataclass(frozen=True)
class Unit:
    """A unit; ``metres``: its length, None for an angle. ``said``: what of the file says so."""

    metres: float | None
    said: str

    @property
    def name(self) -> str:
        """As a sentence has it."""
        return self._names[0]

    @property
    def short(self) -> str:
        """As an axis has it."""
        return self._names[1]

    @property
    def is_feet(self) -> bool:
        """Whether it is a foot, of whichever kind: they differ by a few millionths."""
        return self.short == "ft"

    @property
    def _names(self) -> tuple[str, str]:
        if self.metres is None:
            return "degree", "degrees"
        near = (names for length, names in _NAMES.items() if abs(self.metres / length - 1) < 1e-7)
        return next(near, (f"unit of {self.metres:.9g} m", f"{self.metres:.4g} m"))


def unit_of(path: Path) -> tuple[Unit | None, Unit | None]:
    """Unit of x and y, and of z, of a LAS file; None where it says none, as where it is another's.

    Without one of its own z is as x and y. What is damaged says nothing here: the reader names it.
    """
    try:
        if format_of(path).module != "las":
            return None, None
        with laspy.open(path) as reader:
            records: list[Any] = [*reader.header.vlrs, *(reader.header.evlrs or [])]
        found = {
            record.record_id: record.record_data_bytes()
            for record in reversed(records)
            if record.user_id == "LASF_Projection"
        }
    except Exception:  # noqa: BLE001 - laspy raises what it likes on damaged bytes
        return None, None
    text = found.get(_WKT, b"").decode("utf-8", "replace").rstrip("\0")
    across, up = _lengths(path, "its WKT", text)
    if across is None:
        across, up = _lengths(
            path, "its GeoTIFF keys", geo_keys(found.get(_KEYS, b""), found.get(_DOUBLES, b""))
        )
    return across, up


def _lengths(path: Path, said: str, system: str | dict[int, float]) -> tuple[Unit | None, Unit | None]:
    try:
        lengths = of_wkt(path, system) if isinstance(system, str) else of_keys(path, system)
    except DataError as error:
        if "in degrees" in error.cause:
            return Unit(None, said), None
        lengths = Lengths(None, None)
    across, up = (Unit(length, said) if length else None for length in lengths)
    return across, up or across
