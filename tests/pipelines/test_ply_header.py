"""Headers of PLY files that are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tamis.errors import DataError
from tamis.pipelines.readers import read


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (b"ply\nelement vertex 0\nend_header\n", "line 3 of its header: the header ends without a 'format'"),
        (b"ply\nformat ascii 2.0\n", "line 2 of its header: 'format ascii 2.0' is no known format"),
        (b"ply\nformat binary 1.0\n", "is no known format"),
        (b"ply\nformat ascii 1.0\nformat ascii 1.0\n", "line 3 of its header: a second 'format'"),
        (b"ply\nformat ascii 1.0\nelement vertex -1\n", "'element vertex -1' is not 'element NAME ROWS'"),
        (b"ply\nformat ascii 1.0\nelement vertex 1e5\n", "is not 'element NAME ROWS'"),
        (b"ply\nformat ascii 1.0\nelement vertex " + b"9" * 5000, "has no line 'end_header'"),
        (b"ply\nformat ascii 1.0\nelement vertex " + b"9" * 5000 + b"\n", "is not 'element NAME ROWS'"),
        (b"ply\nformat ascii 1.0\nproperty float x\n", "a 'property' before any 'element'"),
        (b"ply\nformat ascii 1.0\nelement vertex 1\nproperty half x\n", "'half' is no type of PLY"),
        (b"ply\nformat ascii 1.0\nelement vertex 1\nproperty float\n", "is no property"),
        (
            b"ply\nformat ascii 1.0\nelement vertex 1\nproperty list float int a\n",
            "length of a list cannot be",
        ),
        (
            b"ply\nformat ascii 1.0\nelement vertex 1\nproperty int x\nproperty int x\n",
            "a second property 'x'",
        ),
        (b"ply\nformat ascii 1.0\nelement vertex 1\nelement vertex 1\n", "a second element 'vertex'"),
        (b"ply\nformat ascii 1.0\nelement vertex 1\nproperty int \xff\n", "is not UTF-8"),
        (b"ply\nformat ascii 1.0\nvertices 3\n", "line 3 of its header: 'vertices' is no word of a PLY"),
        (b"ply\nformat ascii 1.0\nelement face 0\nend_header\n", "no element 'vertex' (its elements: face)"),
        (b"ply\nformat ascii 1.0\nelement vertex 0\nproperty int x\nend_header\n", "have no x, y and z"),
        (b"ply\nformat ascii 1.0\ncomment end_header\n", "has no line 'end_header'"),
        (b"ply\n" + b"comment\n" * 200_000, "has no line 'end_header' in its first 1048576 bytes"),
        (b"ply", "is no PLY file"),
        (b"plywood\n", "is no PLY file"),
    ],
    ids=range(22),
)
def test_a_header_that_is_none_is_refused(tmp_path: Path, header: bytes, said: str) -> None:
    (tmp_path / "a.ply").write_bytes(header)
    with pytest.raises(DataError) as caught:
        read(tmp_path / "a.ply")
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path / 'a.ply'}: ")
    assert "\n" not in str(caught.value)
