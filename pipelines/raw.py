"""The raw files of a dataset: which there are, what is evaluated, and how they are read."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ..errors import DataError, UsageError
from . import sources, text
from .layouts import LAYOUTS
from .layouts.layout import Layout
from .manifest import SourceDigest
from .readers import Source, files_of, opened
from .settings import DataSettings


class Raw(NamedTuple):
    """Files below ``root``, read as ``settings`` say; a source is named by its path relative to it."""

    root: Path
    settings: DataSettings

    @property
    def _layout(self) -> Layout | None:
        return LAYOUTS[self.settings.layout] if self.settings.layout else None

    def sources(self) -> tuple[list[str], dict[str, str]]:
        """The sources, sorted, and which of them are "val" or "test", as settings or layout say.

        Raises DataError where there are none, UsageError for a wrong pattern.
        """
        patterns, split = self.settings.files, self.settings.split
        if self._layout is None:
            names = sources.find(self.root, patterns or (text.FILES if self.settings.text else ()))
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

    def opened(self, name: str) -> Source:
        """Read a source. Raises DataError as `readers.opened` does."""
        if self._layout is None:
            return opened(self.root / name, self.settings.read)
        scan = self._layout.read(self.root, name)
        return Source([scan], self._layout.objects, self.files(name))

    def files(self, name: str) -> tuple[Path, ...]:
        """The files that a source is read from, the named one first."""
        if self.settings.text is not None:
            return (self.root / name,)
        return files_of(self.root / name) if self._layout is None else self._layout.files(self.root, name)

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
    """The settings with the classes and the label of their layout, where they name none themselves."""
    if settings.layout is None:
        return settings
    layout = LAYOUTS[settings.layout]
    if settings.split is not None and settings.split.kind == "blocks" and layout.objects:
        raise UsageError("data.split", f"cuts ground, '{settings.layout}' holds objects", "leave it out")
    given = settings.model_fields_set
    ours = {"label": layout.label, "classes": dict(layout.classes(root))}
    return settings.model_copy(update={name: value for name, value in ours.items() if name not in given})
