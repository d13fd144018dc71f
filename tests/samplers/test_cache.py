"""Where compiled kernels go, and that they are found again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tamis

PROGRAM = (
    "import os; from tamis.samplers import random; print(random(10, 3).size, os.environ['NUMBA_CACHE_DIR'])"
)

COMPILES = """
import hashlib, sys
import numpy as np
from numba.core.dispatcher import Dispatcher
from tamis.samplers import farthest, random, voxel
xyz = np.random.default_rng(0).random((2000, 3), np.float32)
found = voxel(xyz, 0.1, fields={"height": xyz[:, 2].copy()})
answers = (found.xyz, found.fields["height"], random(100, 9))
if "farthest" in sys.argv:
    answers = (*answers, farthest(xyz, 50))
digest = hashlib.sha256(b"".join(answer.tobytes() for answer in answers))
modules = [module for name, module in sys.modules.items() if name.startswith("tamis.samplers.")]
kernels = {value for module in modules for value in vars(module).values() if isinstance(value, Dispatcher)}
print(sum(sum(kernel.stats.cache_misses.values()) for kernel in kernels), digest.hexdigest())
"""


def start(folder: Path | None, *others: str) -> subprocess.Popen[str]:
    """A process that samples with its kernels in ``folder`` and prints how many it compiled, and a digest."""
    env = os.environ | ({"NUMBA_CACHE_DIR": str(folder)} if folder else {})
    command = [sys.executable, "-c", COMPILES, *others]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "processes", [pytest.param(2, marks=pytest.mark.slow), pytest.param(10, marks=pytest.mark.soak)]
)
def test_processes_that_start_cold_together_end_well_and_leave_a_warm_cache(
    processes: int, tmp_path: Path
) -> None:
    answers = []
    for process in [start(tmp_path) for _ in range(processes)]:
        out, error = process.communicate(timeout=580)
        assert process.returncode == 0, error
        answers.append(out.split())
    assert len({digest for _, digest in answers}) == 1
    assert any(int(compiled) > 0 for compiled, _ in answers)

    warm = start(tmp_path).communicate(timeout=60)[0].split()
    assert warm == ["0", answers[0][1]], "a warm cache compiles nothing"


@pytest.mark.slow
def test_kernels_are_found_where_they_are_kept_by_default() -> None:
    """Farthest-point sampling among them: it takes longest to compile, and is as a rule compiled by now."""
    first, again = (start(None, "farthest").communicate(timeout=110)[0].split() for _ in range(2))
    assert again == ["0", first[1]]


def test_a_read_only_install_without_a_home_still_imports(tmp_path: Path) -> None:
    package = tmp_path / "site" / "tamis"
    source = Path(tamis.__file__).parent
    shutil.copytree(source / "samplers", package / "samplers", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("errors.py", "config.py", "lazy.py"):
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
