"""How much memory may be taken: from stand-ins for the system's files, and from a real control group."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tamis.loaders.limits import available
from tamis.pipelines.dataset import Dataset

MB = 1 << 20
Files = Callable[..., Path]


@pytest.fixture
def system(tmp_path: Path) -> Files:
    """``system(cgroup, free_mb=, **files)``: a root with ``proc`` and the files below ``sys/fs/cgroup``."""

    def made(cgroup: str, files: dict[str, str], free_mb: int = 1000) -> Path:
        content = {
            "proc/meminfo": f"MemTotal: 2048000 kB\nMemFree: 5 kB\nMemAvailable: {free_mb * 1024} kB\n",
            "proc/self/cgroup": cgroup,
            **{f"sys/fs/cgroup/{name}": text for name, text in files.items()},
        }
        for name, text in content.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return made


def v1(folder: str, limit: int, usage: int, cache: int = 0) -> dict[str, str]:
    return {
        f"memory{folder}/memory.limit_in_bytes": f"{limit}\n",
        f"memory{folder}/memory.usage_in_bytes": f"{usage}\n",
        f"memory{folder}/memory.stat": f"inactive_file 7\ntotal_inactive_file {cache}\n",
    }


def v2(folder: str, limit: int | str, usage: int, cache: int = 0) -> dict[str, str]:
    return {
        f"{folder}/memory.max": f"{limit}\n",
        f"{folder}/memory.current": f"{usage}\n",
        f"{folder}/memory.stat": f"anon 5\ninactive_file {cache}\n",
    }


def test_without_groups_it_is_what_the_machine_has(system: Files) -> None:
    root = system("", {})
    assert available(root) == (1000 * MB, root / "proc/meminfo")


@pytest.mark.parametrize("tight", ["", "/a", "/a/b"])
def test_the_tightest_of_the_groups_of_version_2_counts(system: Files, tight: str) -> None:
    files: dict[str, str] = {}
    for folder in ("", "/a", "/a/b"):
        files |= v2(folder, 300 * MB if folder == tight else 500 * MB, 120 * MB, 20 * MB)
    root = system("0::/a/b\n", files)
    assert available(root) == (200 * MB, root / f"sys/fs/cgroup{tight}/memory.max")


@pytest.mark.parametrize("tight", ["", "/a", "/a/b"])
def test_the_tightest_of_the_groups_of_version_1_counts(system: Files, tight: str) -> None:
    files: dict[str, str] = {}
    for folder in ("", "/a", "/a/b"):
        files |= v1(folder, 300 * MB if folder == tight else 2**63 - 4096, 120 * MB, 20 * MB)
    root = system("5:cpu,memory:/a/b\n4:freezer:/other\n0::/\n", files)
    assert available(root) == (200 * MB, root / f"sys/fs/cgroup/memory{tight}/memory.limit_in_bytes")


def test_a_group_without_a_limit_says_nothing(system: Files) -> None:
    assert available(system("0::/a\n", v2("/a", "max", 5))).bytes == 1000 * MB


def test_in_a_container_the_root_of_the_groups_is_its_own(system: Files) -> None:
    root = system("4:memory:/docker/0123\n", v1("", 100 * MB, 40 * MB))
    assert available(root) == (60 * MB, root / "sys/fs/cgroup/memory/memory.limit_in_bytes")


def test_the_machine_may_have_less_than_the_group_allows(system: Files) -> None:
    root = system("0::/a\n", v2("/a", 500 * MB, 0), free_mb=50)
    assert available(root) == (50 * MB, root / "proc/meminfo")


def test_a_group_that_is_over_its_limit_has_nothing(system: Files) -> None:
    assert available(system("0::/a\n", v2("/a", 10 * MB, 11 * MB))).bytes == 0


def test_this_machine_has_some() -> None:
    assert MB < available().bytes < 2**50


@pytest.fixture
def group() -> Iterator[Callable[[int], Path]]:
    """``group(mb)``: a control group of this machine that allows so much; skips where none can be made."""
    made: list[Path] = []

    def make(mb: int) -> Path:
        lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
        v1 = next((path for _, names, path in lines if "memory" in names.split(",")), None)
        roots = [("sys/fs/cgroup/memory" + path, "memory.limit_in_bytes") for path in (v1, "/") if path]
        roots += [("sys/fs/cgroup" + path, "memory.max") for _, names, path in lines if not names]
        for root, limit in roots:
            folder = Path("/", root, f"tamis-test-{os.getpid()}")
            try:
                folder.mkdir()
                made.append(folder)
                (folder / limit).write_text(str(mb * MB))
            except OSError:
                continue
            return folder
        pytest.skip("no control group with a limit on memory can be made here")

    yield make
    for folder in made:
        folder.rmdir()


def inside(group: Path, script: str, *arguments: object) -> str:
    """What a script prints that runs in the group."""
    enter = f"from pathlib import Path; Path({str(group / 'cgroup.procs')!r}).write_text('0')\n"
    command = [sys.executable, "-c", enter + script, *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_a_real_control_group_is_seen(group: Callable[[int], Path]) -> None:
    folder = group(200)
    size, source = inside(folder, "from tamis.loaders.limits import available; print(*available())").split()
    assert 100 * MB < int(size) <= 200 * MB
    assert Path(source).parent == folder


def test_s04_a_group_too_small_is_refused_with_the_number_that_fits(
    make: Callable[..., Dataset], group: Callable[[int], Path]
) -> None:
    script = """
import re, sys
from tamis.errors import UsageError
from tamis.loaders.loader import Loader

slots = 10_000
while True:
    try:
        with Loader(sys.argv[1], global_batch=4, k=100_000, feeder="node", slots=slots) as loader:
            print(sum(next(loader).step for _ in range(50)), slots)
        break
    except UsageError as error:
        print(error)
        slots = int(re.search("set loader.slots to (.*)", str(error))[1])
"""
    folder = group(1500)
    said = inside(folder, script, make([100_000] * 4).path).splitlines()
    assert 2 <= len(said) <= 4  # the feeder's own memory comes on top of what is known before it starts
    assert f"MB are free by {folder}" in said[0]
    steps, slots = map(int, said[-1].split())
    assert steps == sum(range(50))
    assert 20 < slots < 100
