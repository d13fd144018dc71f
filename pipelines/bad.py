"""Sources that cannot be made samples of: the first one stops a build, or so many are left out and listed."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from ..errors import DataError
from .manifest import Skipped
from .parts import Work

log = logging.getLogger(__name__)


class Killed(DataError):
    """A source whose worker was killed from outside: it may be none of the source's fault."""


class BadFiles:
    """The sources that a build leaves out: ``skipped``, name -> why."""

    def __init__(self, work: Work) -> None:
        self._work, self._settings = work, work.settings
        self.skipped: dict[str, Skipped] = {}

    def untried(self, names: Sequence[str]) -> Iterator[str]:
        """The sources that this build, and those it goes on from, did not find to be bad."""
        for name in names:
            known = None
            if self._settings.bad_files == "skip":
                known = self._work.journal.bad(name, self._work.raw)
            if known is None:
                yield name
            else:
                self._skip(name, known, DataError(self._work.root / name, known.reason))

    def add(self, source: str, error: DataError, *, alone: bool = True) -> None:
        """Leave a source out; ``alone``: whatever the others are, so that it need not be tried again.

        Raises ``error`` where a bad one stops the build, DataError for too many.
        """
        if self._settings.bad_files == "stop":
            raise error
        # One that was killed from outside was not tried: without a digest a build that comes later tells.
        digest = None if isinstance(error, Killed) else self._work.raw.digest_of_bad(source)
        skipped = Skipped(reason=self._reason(source, error), digest=digest)
        if alone and digest is not None:
            self._work.journal.record_bad(source, skipped)
        self._skip(source, skipped, error)

    def tell(self) -> None:
        """List what was left out in the log."""
        for source, skipped in sorted(self.skipped.items()):
            log.warning("%s: left out: %s", source, skipped.reason)
        if self.skipped:
            log.warning("bad files left out: %d", len(self.skipped))

    def _skip(self, source: str, skipped: Skipped, error: DataError) -> None:
        self.skipped[source] = skipped
        if len(self.skipped) > self._settings.max_bad:
            cause = f"{error.cause}; more than data.max_bad = {self._settings.max_bad} files are bad"
            raise DataError(error.where, cause, "mend them, or raise data.max_bad")

    def _reason(self, source: str, error: DataError) -> str:
        """What is wrong, without a word of where the files lie here."""
        path = str(self._work.root / source)
        text = error.cause if error.where == path else f"{error.where}: {error.cause}"
        return text.replace(f"{self._work.root}/", "")
