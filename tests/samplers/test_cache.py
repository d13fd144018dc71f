"""Where compiled kernels go when the package cannot be written to."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import tamis

PROGRAM = (
    "import os; from tamis.samplers import random; print(random(10, 3).size, os.environ['NUMBA_CACHE_DIR'])"
)


def test_a_read_only_install_without_a_home_still_imports(tmp_path: Path) -> None:
    package = tmp_path / "site" / "tamis"
    source = Path(tamis.__file__).parent
    shutil.copytree(source / "samplers", package / "samplers", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("errors.py", "config.py"):
        shutil.copy(source / name, package)
    (package / "__init__.py").touch()
    (package / "samplers" / "__pycache__").touch()  # a file: even root can make no folder there
    (tmp_path / "tmp").mkdir()

    env = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA_", "XDG_", "PYTEST"))}
    env |= {"HOME": "/dev/null", "TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, cwd="/", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    size, folder = done.stdout.split()
    assert size == "3"
    assert Path(folder).parent == tmp_path / "tmp"
    assert Path(folder).stat().st_mode & 0o777 == 0o700
    assert list(Path(folder).rglob("draw.*.nbi"))
