"""Pictures of several clouds: each in its own panel, whatever it is like."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest

from tamis.errors import DataError, UsageError
from tamis.pipelines import panels as module
from tamis.pipelines.panels import Panel, panels
from tamis.pipelines.picture import DPI, KEY

GROUND, TREE = (166, 118, 60), (20, 115, 45)


def cloud(n: int, seed: int = 0, label: Any = None, size: float = 1.0) -> Panel:
    rng = np.random.default_rng(seed)
    xyz = (rng.uniform(0, size, (n, 3)) * (10, 10, 2)).astype(np.float32)
    return Panel(f"{seed:016x}", f"scan.las#{seed}", xyz, label)


def pixels(path: Path) -> np.ndarray:
    return (matplotlib.image.imread(path)[..., :3] * 255).round().astype(int)


def count(image: np.ndarray, colour: tuple[int, int, int]) -> int:
    return int((image == colour).all(axis=-1).sum())


def test_classes_have_their_colours_in_every_panel(tmp_path: Path) -> None:
    label = np.repeat([0, 1], 200).astype(np.int32)
    told = panels("run", [cloud(400, i, label) for i in range(4)], ["ground", "tree"], tmp_path / "a.png")
    assert told == f"{tmp_path / 'a.png'}: 4 samples, coloured by class"
    image = pixels(tmp_path / "a.png")
    width = (image.shape[1] - round(KEY * DPI)) // 4  # panels are in one line
    for i in range(4):
        panel = image[:, i * width : (i + 1) * width]
        assert count(panel, GROUND) > 1000
        assert count(panel, TREE) > 1000


def test_clouds_without_labels_are_coloured_by_height(tmp_path: Path) -> None:
    told = panels("run", [cloud(50)], [], tmp_path / "a.png")
    assert told.endswith("1 samples, coloured by height")
    assert count(pixels(tmp_path / "a.png"), GROUND) == 0


@pytest.mark.parametrize("far", [1e3, 1e30, -1e30])
def test_one_point_far_away_does_not_hide_the_others(tmp_path: Path, far: float) -> None:
    """It lies on the edge, and its distance is told."""
    label = np.zeros(400, np.int32)
    panels("run", [cloud(400, 1, label)], ["ground"], tmp_path / "near.png")
    one = cloud(400, 1, label)
    one.xyz[7] = far
    panels("run", [one], ["ground"], tmp_path / "far.png")
    near, with_far = (count(pixels(tmp_path / f"{name}.png"), GROUND) for name in ("near", "far"))
    assert with_far > 0.8 * near
    assert f"{np.ptp(one.xyz[:, 0]):.3g} x" in module._words(one, module._shown(one, ["ground"]))


def test_rows_that_are_not_finite_are_told(tmp_path: Path) -> None:
    one = cloud(20)
    one.xyz[3, 1], one.xyz[4, 2] = np.nan, np.inf
    shown = module._shown(one, [])
    assert len(shown.xyz) == 18
    assert module._words(one, shown).endswith(", 2 rows not finite")
    panels("run", [one], [], tmp_path / "a.png")
    long = Panel("id", "x" * 50 + "/scan.las#12", np.zeros((0, 3), np.float32), None)
    name = f"…{'x' * (module._LETTERS - 13)}/scan.las#12"
    assert module._words(long, module._shown(long, [])) == f"id\n{name}\nno points"


def test_no_more_panels_than_can_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty clouds, and those of a single point, have one too."""
    monkeypatch.setattr(module, "MOST", 9)
    clouds = [cloud(i % 3, i) for i in range(15)]
    told = panels("run $x^2$ <&", clouds, [], tmp_path / "a.png")
    assert told.endswith("a.png: 9 of 15 samples, coloured by height")


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="run: no sample has a point to draw"):
        panels("run", [cloud(0), cloud(0, 1)], [], tmp_path / "a.png")
    with pytest.raises(UsageError, match=r"a\.jpg: is not named \.png"):
        panels("run", [cloud(9)], [], tmp_path / "a.jpg")
    assert not list(tmp_path.iterdir())
