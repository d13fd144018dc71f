"""A dataset is made out of sight, and shown when it is whole."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..files import sync


@contextmanager
def shown(building: Path, final: Path) -> Iterator[Path]:
    """A folder for a dataset that is made out of sight and shown whole, as ``final``."""
    fresh = building / "dataset"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    try:
        yield fresh
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    sync(fresh)
    replaced = building / "replaced"
    shutil.rmtree(replaced, ignore_errors=True)
    if final.exists():
        final.rename(replaced)  # a kill here leaves the parts, of which the next build makes it again
    fresh.rename(final)
    sync(final.parent)
    shutil.rmtree(replaced, ignore_errors=True)
