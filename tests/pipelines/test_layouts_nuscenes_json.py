"""The tables of nuScenes as lists of records in JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tamis.errors import DataError
from tamis.pipelines.layouts.nuscenes_json import records


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"is cut or damaged at character 0"),
        ("  \n", r"is cut or damaged"),
        ("{}", r"is no list: it starts with '\{'"),
        (",[]", r"is no list: it starts with ','"),
        ("[{}", r"is cut or damaged at character 3"),
        ('[{"token": "a"}, {"tok', r"is cut or damaged at character 17 \(Unterminated string"),
        ("[1]", r"has at character 1 no record"),
        ("[null]", r"has at character 1 no record"),
        ("[{]", r"is cut or damaged at character 1"),
        ("[" + "[" * 100_000, r"is cut or damaged at character 1"),
    ],
)
def test_what_is_no_table(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DataError, match=rf"a\.json: {message}"):
        [*records(tmp_path / "a.json")]


def test_a_table_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"token": "ä" * n, "numbers": [n, -n / 7, {"deep": [None, True]}]} for n in range(40)]
    for indent in (None, 0, 2):
        (tmp_path / "a.json").write_text(json.dumps(rows, indent=indent, ensure_ascii=False), "utf-8")
        for size in (1, 2, 3, 7, 64):
            monkeypatch.setattr("tamis.pipelines.layouts.nuscenes_json._CHUNK", size)
            assert [*records(tmp_path / "a.json")] == rows
    (tmp_path / "a.json").write_bytes(b'[{"token": "\xff"}]')
    with pytest.raises(DataError, match=r"a\.json: is no text"):
        [*records(tmp_path / "a.json")]
