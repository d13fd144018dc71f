"""The raw files of a dataset: which there are, what is evaluated, and how they are read."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import DataError, UsageError
from . import sources, text
from .layouts import LAYOUTS
from .layouts.layout import Layout
from .manifest import SourceDigest
from .readers import File, Scan, Source, files_of, opened
from .settings import DataSettings

_PLAIN: dict[str, Any] = {"sweeps": 1, "images": False}
"""Keys that not every layout knows, and what asks for nothing."""


def _more(settings: DataSettings) -> dict[str, Any]:
    return {key: getattr(settings, key) for key in _PLAIN}


def _check_known(settings: DataSettings) -> None:
    takes = LAYOUTS[settings.layout].takes if settings.layout else frozenset()
    for key, value in _more(settings).items():
        if value != _PLAIN[key] and key not in takes:
            able = ", ".join(f"'{name}'" for name, layout in LAYOUTS.items() if key in layout.takes)
            what = {"sweeps": "say where each was taken", "images": "have images beside them"}[key]
            of = f"the scans of '{settings.layout}'" if settings.layout else "files without a layout"
            fix = f"leave it out, or set data.layout to one of {able}"
            raise UsageError(f"data.{key}", f"{of} do not {what}", fix)


class Raw(NamedTuple):
    """Files below ``root``, read as ``settings`` say; a source is named by its path relative to it."""

    root: Path
    settings: DataSettings

    @property
    def _layout(self) -> Layout | None:
        return LAYOUTS[self.settings.layout] if self.settings.layout else None

    @property
    def points(self) -> bool:
        """Whether the sources hold points."""
        return self._layout is None or self._layout.points

    @property
    def _asked(self) -> dict[str, Any]:
        """What the settings ask of a layout beside the scan, those that say nothing left out."""
        return {key: value for key, value in _more(self.settings).items() if value != _PLAIN[key]}

    def sources(self) -> tuple[list[str], dict[str, str]]:
        """The sources, sorted, and which of them are "val" or "test", as settings or layout say.

        Raises DataError where there are none, UsageError for a wrong pattern.
        """
        patterns, split = self.settings.files, self.settings.split
        if self._layout is None:
            names = sources.find(self.root, patterns or (text.FILES if self.settings.text else ()))
            if self.settings.text and not patterns:
                names = text.without_hidden(self.root, names)
            return names, sources.splits_by_file(self.root, split, names)
        found = self._layout.find(self.root)
        if patterns:
            named = {*sources.find(self.root, patterns)}
            found = {name: split for name, split in found.items() if name in named}
        if not found:
            cause = f"holds nothing of the layout '{self.settings.layout}'"
            raise DataError(self.root, cause, "correct data.root, data.layout or data.files")
        names = sorted(found)
        if split is not None:
            return names, sources.splits_by_file(self.root, split, names)
        return names, {name: found[name] for name in names if found[name] != "train"}

    def opened(self, name: str, wanted: Collection[str] | None = None) -> Source:
        """Read a source, with the ``wanted`` fields at least. Raises DataError as `readers.opened` does."""
        if self._layout is None:
            return opened(self.root / name, self.settings.read, wanted)
        read = self._layout.read(self.root, name, **self._asked)
        return Source([read] if isinstance(read, Scan) else read, self._layout.objects, self.files(name))

    def files(self, name: str) -> tuple[File, ...]:
        """What a source is read from, the named file first."""
        if self.settings.text is not None:
            return (self.root / name,)
        if self._layout is None:
            return files_of(self.root / name, self.settings.read)
        return self._layout.files(self.root, name, **self._asked)

    def digest(self, name: str) -> SourceDigest:
        """Size and SHA-256 of a source."""
        return sources.digest(*self.files(name))

    def digest_of_bad(self, name: str) -> SourceDigest | None:
        """Size and SHA-256 of a file that may be no source at all; None where it cannot be read."""
        try:
            try:
                return self.digest(name)
            except DataError:
                return sources.digest(self.root / name)
        except OSError:
            return None


def completed(settings: DataSettings, root: Path) -> DataSettings:
    """The settings with the classes and the label of their layout, where they name none themselves.

    And with the SHA-256 of the function that reads the files, if one does. Raises UsageError for what the
    layout does not know.
    """
    _check_known(settings)
    if settings.read.function is not None:
        from .readers.user import pinned

        return settings.model_copy(update={"read": pinned(settings.read)})
    if settings.layout is None:
        return settings
    layout = LAYOUTS[settings.layout]
    if settings.split is not None and settings.split.kind == "blocks" and layout.objects:
        raise UsageError("data.split", f"cuts ground, '{settings.layout}' holds objects", "leave it out")
    given = settings.model_fields_set
    ours = {"label": layout.label, "classes": dict(layout.classes(root))}
    return settings.model_copy(update={name: value for name, value in ours.items() if name not in given})
