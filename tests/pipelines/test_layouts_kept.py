"""What is kept of tables."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tamis.pipelines.layouts.kept import Kept

OLD = 10**18


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table"
    path.write_text("a")
    os.utime(path, ns=(OLD, OLD))
    return path


def test_a_table_is_read_once(table: Path) -> None:
    kept, reads = Kept[str](2), list[str]()

    def get(key: str = "key") -> str:
        def read() -> str:
            reads.append(key)
            return table.read_text()

        return kept.get(key, [table, table.with_name("none")], read)

    assert [get(), get()] == ["a", "a"]
    assert len(reads) == 1
    table.write_text("b")
    os.utime(table, ns=(OLD, OLD + 1))
    assert [get(), get()] == ["b", "b"]
    assert len(reads) == 2
    table.with_name("none").write_text("now there")
    os.utime(table.with_name("none"), ns=(OLD, OLD))
    get()
    assert len(reads) == 3
    assert [get("second"), get(), get("third"), get()] == ["b"] * 4
    assert len(reads) == 5
    get("second")  # was asked for the longest time ago, and forgotten
    assert len(reads) == 6


@pytest.mark.parametrize(("age_ns", "second"), [(0, "b"), (10**7, "b"), (10**9, "a"), (-(10**12), "a")])
def test_a_table_of_this_moment_is_not_trusted(
    table: Path, monkeypatch: pytest.MonkeyPatch, age_ns: int, second: str
) -> None:
    """It may change again in the same tick of the file system's clock; a clock that is wrong does no harm."""
    monkeypatch.setattr("time.time_ns", lambda: OLD + age_ns)
    kept = Kept[str](2)
    assert kept.get(0, [table], table.read_text) == "a"
    table.write_text("b")
    os.utime(table, ns=(OLD, OLD))
    assert kept.get(0, [table], table.read_text) == second


def test_what_cannot_be_read_is_asked_for_again(table: Path) -> None:
    kept = Kept[str](2)

    def broken() -> str:
        raise ValueError("cut")

    with pytest.raises(ValueError, match="cut"):
        kept.get(0, [table], broken)
    assert kept.get(0, [table], table.read_text) == "a"
