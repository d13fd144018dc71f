"""What the tests share: where real scans are, and one BLAS thread, as a rank has."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def data_folder() -> Path:
    """The folder of real scans: $TAMIS_DATA, else a checkout's sibling; skips where there is none."""
    folder = Path(os.environ.get("TAMIS_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no folder of real scans at {folder}: set TAMIS_DATA")
    return folder


@pytest.fixture
def shipped_laz() -> Path:
    """The scan that ships with the package."""
    return ROOT / "configs" / "data" / "laspy_append-bug.laz"
