"""The errors tamis raises: each says what was wrong, where, and what to do."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from os import PathLike


class TamisError(Exception):
    """A failure with a place, a cause and a remedy, on one line: ``WHERE: cause; what to do``."""

    exit_code = 1

    def __init__(self, where: str | PathLike[str], cause: str, fix: str = "") -> None:
        self.where, self.cause, self.fix = str(where), cause, fix
        text = f"{self.where}: {cause}" + (f"; {fix}" if fix else "")
        super().__init__(" ".join(text.split()))

    def __reduce__(self) -> tuple[type[TamisError], tuple[str, str, str]]:
        return type(self), (self.where, self.cause, self.fix)  # so that it crosses processes whole

    def plain(self) -> dict[str, str]:
        """The error as plain values, for JSON."""
        return {"kind": type(self).__name__, "where": self.where, "cause": self.cause, "fix": self.fix}


class DataError(TamisError):
    """Data that is missing, damaged or not what it claims to be. The command line exits with 1."""


class LostError(DataError):
    """Another process of the same run has ended, or hangs: nothing is wrong with the data. Exit code 1."""


_ADVICE = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room on its disk, or write to another"),
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM, errno.EROFS), "see to its permissions, or choose another folder"
    ),
    **dict.fromkeys(
        (errno.EEXIST, errno.ENOTDIR, errno.EISDIR), "something else has this name: choose another"
    ),
    errno.ENAMETOOLONG: "give it a shorter name: up to 240 bytes will do",
}


def system_error(error: OSError, where: str | PathLike[str]) -> DataError:
    """What the system refused, as one line; ``where`` serves where the error does not name a file."""
    cause = error.strerror or str(error)
    otherwise = "see to the disk's space and permissions, and run it again"
    return DataError(error.filename or where, cause, _ADVICE.get(error.errno or 0, otherwise))


class UsageError(TamisError, ValueError):
    """A call or a configuration that cannot be carried out. The command line exits with 2."""

    exit_code = 2


def from_plain(values: Mapping[str, str]) -> TamisError:
    """The error that `TamisError.plain` made plain."""
    kinds = {kind.__name__: kind for kind in (UsageError, LostError)}
    return kinds.get(values["kind"], DataError)(values["where"], values["cause"], values["fix"])
