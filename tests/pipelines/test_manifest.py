from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tamis.errors import DataError
from tamis.pipelines import manifest
from tamis.pipelines.manifest import Column, Counts, Manifest, SourceDigest


def text(sources: int = 20) -> bytes:
    return manifest.seal(
        Manifest(
            version=1,
            schema=[Column(name="xyz", dtype="float32", width=3, kind="point")],
            classes=["ground"],
            counts=Counts(samples=0, points=0, dropped=0, outside=0, splits={}),
            statistics={},
            splits={},
            row_order="farthest",
            configuration={"label": "classification", "note": '"checks": {'},
            sources={f"ä{i}.laz": SourceDigest(bytes=i, sha256="0" * 64) for i in range(sources)},
            files={},
            fingerprint="f",
        )
    )


def test_the_text_is_json_and_comes_back(tmp_path: Path) -> None:
    sealed = text()
    assert set(json.loads(sealed)["checks"]) == {"sha256", "crc32c"}
    opened = manifest.unseal(tmp_path, sealed)
    assert opened.columns[0].field().row_bytes == 12
    assert manifest.seal(opened) == sealed


@pytest.mark.parametrize("sources", [0, 1, 7, 40])
def test_every_flipped_bit_is_found_with_its_byte(sources: int) -> None:
    sealed = text(sources)
    rng = np.random.default_rng(sources)
    for bit in [*rng.integers(8 * len(sealed), size=300).tolist(), 8 * len(sealed) - 1, 0]:
        changed = bytearray(sealed)
        changed[bit // 8] ^= 1 << bit % 8
        damage = manifest.find_damage(bytes(changed))
        assert damage is not None
        assert damage.offset == bit // 8
    assert manifest.find_damage(sealed) is None


@pytest.mark.parametrize("size", [0, 1, 100, 700, -400, -1])
def test_a_cut_text_is_refused(tmp_path: Path, size: int) -> None:
    sealed = text()
    cut = sealed[:size]
    assert manifest.find_damage(cut) is not None
    with pytest.raises(DataError, match="is damaged at offset"):
        manifest.unseal(tmp_path, cut)
    with pytest.raises(DataError, match=f"is damaged at offset {len(sealed)}"):
        manifest.unseal(tmp_path, sealed + b"x")


def test_more_damage_than_a_bit_is_placed_by_its_block() -> None:
    changed = bytearray(text())
    changed[1000:1010] = bytes(10)
    damage = manifest.find_damage(bytes(changed))
    assert damage == (768, False)


@pytest.mark.parametrize("version", [0, 2, 99, "1", None])
def test_another_version_is_named(tmp_path: Path, version: object) -> None:
    values = json.loads(text()) | {"version": version}
    with pytest.raises(DataError, match=f"version {version!r}, this tamis reads version 1"):
        manifest.unseal(tmp_path, json.dumps(values).encode())


@pytest.mark.parametrize("data", [b"[" * 100_000, b"[1]", b"", b"null", b'{"a": ' * 5000])
def test_what_is_no_description(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(DataError, match="is damaged at offset"):
        manifest.unseal(tmp_path, data)


def test_a_flipped_version_is_damage_not_a_version(tmp_path: Path) -> None:
    sealed = text()
    at = sealed.index(b'"version": 1') + len('"version": ')
    changed = bytearray(sealed)
    changed[at] ^= 2
    with pytest.raises(DataError, match=f"damaged at offset {at}"):
        manifest.unseal(tmp_path, bytes(changed))
