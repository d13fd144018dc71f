from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tamis.errors import DataError, UsageError
from tamis.pipelines import page as module
from tamis.pipelines.page import few, page
from tamis.pipelines.shown import Shown

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def write(path: Path, xyz: Any, rgb: Any = None, label: Any = None) -> Path:
    given = {"rgb": rgb, "label": label}
    fields = {name: np.asarray(values) for name, values in given.items() if values is not None}
    kinds = [(name, values.dtype, values.shape[1:]) for name, values in fields.items()]
    scan = np.zeros(len(xyz), [("xyz", "f8", 3), *kinds])
    scan["xyz"] = xyz
    for name, values in fields.items():
        scan[name] = values
    np.save(path, scan)
    return path


def data_of(text: str) -> dict[str, Any]:
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.DOTALL)
    assert found
    values: dict[str, Any] = json.loads(found[1])
    return values


def array(text: str, dtype: str) -> Any:
    return np.frombuffer(base64.b64decode(text), dtype).reshape(-1, 3)


@pytest.mark.parametrize("seed", range(3))
def test_points_and_colours_are_in_the_page(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    xyz = rng.uniform(0, 30, (400, 3)) + rng.uniform(-1e6, 1e6, 3).round()
    rgb, label = rng.integers(0, 256, (400, 3)).astype(np.uint8), np.arange(400) % 4
    out = tmp_path / "a.html"
    said = page(write(tmp_path / "a.npy", xyz, rgb, label), out)
    assert said == f"{out}: 400 points, coloured by class"
    data = data_of(out.read_text("utf-8"))
    assert data["points"] == 400
    middle = (xyz.min(axis=0) + xyz.max(axis=0)) / 2
    assert np.abs(array(data["positions"], "<f4") + middle - xyz).max() < 1e-5
    assert data["radius"] == pytest.approx(np.linalg.norm(np.ptp(xyz, axis=0)) / 2, rel=1e-6)
    ways = {way["name"]: way for way in data["colours"]}
    assert [way["name"] for way in data["colours"]] == ["class", "rgb", "height"]
    assert np.array_equal(array(ways["rgb"]["values"], "u1"), rgb)
    by_class = array(ways["class"]["values"], "u1")
    assert len(np.unique(by_class, axis=0)) == 4
    assert all(len(np.unique(by_class[label == code], axis=0)) == 1 for code in range(4))
    assert {name for name, _ in ways["class"]["classes"]} == {f"class {code}  25.0%" for code in range(4)}
    heights = array(ways["height"]["values"], "u1").astype(int)
    assert (np.diff(heights[np.argsort(xyz[:, 2]), 1]) >= 0).all()  # viridis: the higher, the more green
    low, high = np.quantile(xyz[:, 2], (0.01, 0.99))
    assert ways["height"]["ends"] == [f"z {high:,.2f} units", f"z {low:,.2f} units"]


def test_another_colour_comes_first_where_it_is_asked_for(shipped_laz: Path, tmp_path: Path) -> None:
    page(shipped_laz, tmp_path / "a.html", color="height")
    data = data_of((tmp_path / "a.html").read_text("utf-8"))
    assert [way["name"] for way in data["colours"]] == ["height", "class", "rgb"]
    assert data["unit"] == "m"
    with pytest.raises(UsageError, match=r"--color: is 'pink', .* has class, rgb, height"):
        page(shipped_laz, tmp_path / "b.html", color="pink")


@pytest.mark.parametrize("name", ["</script><script>alert(1)<", "{{data}} & 'a' \"b\"", "<!-- 点 \\1"])
def test_names_are_text_and_nothing_else(tmp_path: Path, name: str) -> None:
    """A file's name and class names cannot end the page's elements, nor fill its places."""
    plain, cloud = write(tmp_path / "a.npy", np.eye(3), label=[1, 2, 3]), tmp_path / "a.html"
    page(plain, cloud)
    tags = re.findall(r"<[/!a-z]\w*", cloud.read_text("utf-8"))
    odd = plain.rename(tmp_path / (name.replace("/", "∕") + ".npy"))
    page(odd, cloud)
    text = cloud.read_text("utf-8")
    assert re.findall(r"<[/!a-z]\w*", text) == tags
    assert data_of(text)["points"] == 3
    shown = Shown("a", np.zeros((3, 3), np.float32), np.zeros(3), unit="</script>")
    assert "</script>" in json.dumps(module._data(shown, "height"))


def test_the_page_names_no_other_place(shipped_laz: Path, tmp_path: Path) -> None:
    page(shipped_laz, tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text("utf-8")
    text = re.sub(r'"[A-Za-z0-9+/=]{200,}"', '""', text)  # the arrays
    assert not re.search(r"https?:|wss?:|//\w|@import|url\(|fetch\(|XMLHttp|import\(", text)
    assert re.findall(r"(?:src|href)=\S+", text) == ['href="data:,">']
    assert "default-src 'none'" in text
    program = text.rpartition("<script>")[2]
    assert program.count("\n") <= 200


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", ["surface", "volume", "line", "point"])
def test_thinned_to_a_number_by_voxels(seed: int, shape: str) -> None:
    rng = np.random.default_rng(seed)
    flat = {"surface": (1, 1, 0), "volume": (1, 1, 1), "line": (1, 0, 0), "point": (0, 0, 0)}[shape]
    xyz = (rng.uniform(0, 50, (20_000, 3)) * flat).astype(np.float32)
    cloud = Shown("a", xyz, np.zeros(3), label=np.arange(20_000, dtype=np.int32))
    thinned, how = few(cloud, 1000)
    assert how.startswith("voxels of ")
    assert thinned.label is not None
    assert np.array_equal(thinned.xyz, xyz[thinned.label])
    assert len(thinned.xyz) == 1 if shape == "point" else 700 < len(thinned.xyz) <= 1000


def test_a_large_cloud_says_how_it_was_thinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 1000)
    path = write(tmp_path / "a.npy", np.random.default_rng(0).uniform(0, 50, (5000, 3)))
    said = page(path, tmp_path / "a.html")
    n = data_of((tmp_path / "a.html").read_text("utf-8"))["points"]
    assert re.search(rf"a\.html: {n:,} of 5,000 points \(voxels of [\d.]+\), coloured by height", said)
    assert f"<p>{n:,} of 5,000 points (voxels of" in (tmp_path / "a.html").read_text("utf-8")
    assert page(path, tmp_path / "a.html", voxel=100.0).startswith(f"{tmp_path}/a.html: 1 of 5,000 points")


def test_nothing_to_show(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no row with a finite position to show"):
        page(write(tmp_path / "a.npy", np.full((4, 3), np.nan)), tmp_path / "a.html")
    with pytest.raises(UsageError, match="is not named"):
        page(tmp_path / "a.npy", tmp_path / "a.png")
    assert [path.name for path in tmp_path.iterdir()] == ["a.npy"]


def browse(page: Path, *options: str) -> str:
    """What Chromium prints of a page, without a network."""
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium)")
    done = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-unsafe-swiftshader",
            "--window-size=800,600", "--virtual-time-budget=5000", "--host-resolver-rules=MAP * ~NOTFOUND",
            "--enable-logging=stderr", f"--user-data-dir={page.parent / 'profile'}", *options, page.as_uri(),
        ],
        capture_output=True, text=True, check=True, timeout=90,
    )  # fmt: skip
    errors = [line for line in done.stderr.splitlines() if "CONSOLE" in line and "GL Driver" not in line]
    assert not errors, errors
    return done.stdout


def towers(path: Path) -> Path:
    """A red plate on the ground, a blue one above its west, a green one at its north."""
    rng = np.random.default_rng(0)
    places = [[0, 0, 0], [-8, -8, 12], [0, 20, 0]]
    half = [[10, 8, 0.1], [2, 2, 0.1], [10, 2, 0.1]]
    colours = np.array([[255, 0, 0], [0, 0, 255], [0, 255, 0]], np.uint8)
    which = np.repeat(np.arange(3), 4000)
    xyz = np.array(places)[which] + rng.uniform(-1, 1, (12_000, 3)) * np.array(half)[which]
    return write(path, xyz + np.array([698_000, 6_259_000, 100]), colours[which])


@pytest.mark.slow
def test_the_page_in_a_browser_is_right_way_up(tmp_path: Path) -> None:
    from matplotlib.image import imread

    page(towers(tmp_path / "a.npy"), tmp_path / "a.html")
    browse(tmp_path / "a.html", f"--screenshot={tmp_path / 'a.png'}")
    image = imread(tmp_path / "a.png")[:, :, :3]

    def middle(channel: int) -> Any:
        others = [other for other in range(3) if other != channel]
        rows, columns = np.nonzero((image[:, :, channel] > 0.9) & (image[:, :, others] < 0.1).all(axis=2))
        assert len(rows) > 300
        return np.array([rows.mean(), columns.mean()])

    red, green, blue = map(middle, range(3))
    assert blue[0] < red[0] - 50  # z up
    assert blue[1] < red[1] - 50  # x to the right
    assert green[0] < red[0] - 30  # north is farther, and so higher as seen from above in the south


STEERED = """<script>
HTMLCanvasElement.prototype.setPointerCapture = () => {};
const saw = (name, value) => { document.documentElement.dataset[name] = JSON.stringify(value); };
const pointer = (kind, pointerId, clientX, clientY, more) =>
  canvas.dispatchEvent(new PointerEvent(kind, { pointerId, clientX, clientY, buttons: 1, ...more }));
const state = () => ({ turn: eye.turn, raise: eye.raise, distance: eye.distance, at: [...eye.at] });
const drag = (more) => {
  pointer("pointerdown", 1, 300, 300);
  pointer("pointermove", 1, 350, 320, more);
  pointer("pointerup", 1, 350, 320);
};
saw("first", state());
drag({});
saw("turned", state());
get("top").click();
drag({ buttons: 2 });
saw("moved", state());
get("top").click();
canvas.dispatchEvent(new WheelEvent("wheel", { deltaY: -100, cancelable: true }));
saw("near", state());
get("top").click();
pointer("pointerdown", 1, 300, 300); pointer("pointerdown", 2, 400, 300);
pointer("pointermove", 2, 500, 300); pointer("pointerup", 1, 300, 300); pointer("pointerup", 2, 500, 300);
saw("pinched", state());
get("top").click();
saw("top", state());
get("by").value = "height"; get("by").onchange();
saw("key", get("key").textContent);
const perpixel = perPixel();
saw("perpixel", perpixel);
frame();
const seen = new Uint8Array(4 * canvas.width * canvas.height);
gl.readPixels(0, 0, canvas.width, canvas.height, gl.RGBA, gl.UNSIGNED_BYTE, seen);
let low = canvas.width, high = 0;
for (let i = 0; i < seen.length; i += 4) {
  const x = (i / 4) % canvas.width;
  if (seen[i] + seen[i + 1] + seen[i + 2] > 120) [low, high] = [Math.min(low, x), Math.max(high, x)];
}
saw("width", high - low);
saw("error", gl.getError());
</script>"""


@pytest.mark.slow
def test_the_page_in_a_browser_answers(tmp_path: Path) -> None:
    """Drag, move, wheel, pinch, buttons and colours; and the scale: 20 units are as wide as it says."""
    page(towers(tmp_path / "a.npy"), tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text("utf-8").replace("</body>", f"{STEERED}</body>")
    (tmp_path / "a.html").write_text(text, "utf-8")
    dom = browse(tmp_path / "a.html", "--dump-dom")
    root = re.search(r"<html[^>]*>", dom)
    assert root
    found = {
        name: json.loads(value.replace("&quot;", '"'))
        for name, value in re.findall(r'data-(\w+)="([^"]*)"', root[0])
    }
    assert found["drawn"] == 12_000
    assert found["error"] == 0
    first, turned = found["first"], found["turned"]
    assert turned["turn"] < first["turn"]  # dragged to the right the cloud turns along, so the eye turns left
    assert turned["raise"] > first["raise"]
    assert turned["distance"] == first["distance"]
    top = found["top"]
    assert top["raise"] == pytest.approx(np.pi / 2)
    by = found["perpixel"]
    assert found["moved"]["at"] == pytest.approx([-50 * by, 20 * by, 0], abs=1e-9)
    assert found["near"]["distance"] < top["distance"]
    assert found["pinched"]["distance"] == pytest.approx(top["distance"] / 2)
    assert found["key"].startswith("z 112")
    # From the top the plate on the ground, 20 wide, is a little farther than the middle that is looked at.
    assert found["width"] * by == pytest.approx(20, rel=0.15)
