from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import laspy
import numpy as np
import pytest

from tamis import cli
from tamis.errors import DataError, UsageError
from tamis.pipelines import oddities
from tamis.pipelines.build import DataSettings, build
from tamis.pipelines.inspect import inspect, look
from tamis.pipelines.las_unit import Unit, unit_of
from tamis.pipelines.readers import Scan
from tamis.pipelines.splits import FilesSplit

FEET = 'PROJCS["a",GEOGCS["b",UNIT["degree",0.017]],UNIT["Foot_US",0.30480060960121924]]'
DEGREES = 'GEOGCS["b",DATUM["d"],UNIT["degree",0.0174532925199433]]'
MIXED = 'COMPD_CS["c",PROJCS["a",UNIT["metre",1]],VERT_CS["v",UNIT["foot",0.3048]]]'
YARDS = 'PROJCS["a",UNIT["yard",0.9144]]'


def odd(xyz: Any, path: Path = Path("a.npy"), **fields: Any) -> str:
    return "\n".join(oddities.of_scan(path, Scan(np.asarray(xyz, np.float64), fields)))


def ground(rows: int = 2000, *, at: Any = (0, 0, 0), seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0, (50, 50, 5), (rows, 3)) + np.asarray(at, np.float64)


def las(path: Path, wkt: str | None = None, keys: dict[int, int] | None = None) -> Path:
    header = laspy.LasHeader(point_format=6, version="1.4")
    header.scales = np.full(3, 0.001)
    if wkt is not None:
        header.vlrs.append(laspy.vlrs.known.WktCoordinateSystemVlr(wkt))
        header.global_encoding.wkt = True
    if keys is not None:
        numbers = [1, 1, 0, len(keys), *(number for key in keys for number in (key, 0, 1, keys[key]))]
        data = np.array(numbers, "<u2").tobytes()
        header.vlrs.append(laspy.VLR("LASF_Projection", 34735, "", data))
    scan = laspy.LasData(header)
    scan.x, scan.y, scan.z = ground(100).T
    scan.write(str(path))
    return path


def test_a_dataset_is_described(settings: DataSettings, tmp_path: Path) -> None:
    dataset = build(settings, tmp_path / "run")
    text = inspect(tmp_path / "run")
    assert dataset.fingerprint in text
    lines = {line.split()[0]: line.split() for line in text.splitlines() if line}
    test = dataset.manifest.counts.splits["test"]
    assert lines["split"][3:] == ["ground", "vegetation", "ignored"]
    assert lines["test"][1:] == [
        str(n) for n in (test.samples, 700, test.classes["ground"], test.classes["vegetation"], test.ignored)
    ]
    assert lines["normal"][1:5] == ["float32", "x", "3", "vector"]
    assert lines["row"][:1] == ["row"]
    assert "row order    source" in text
    assert "points per square unit" in text
    assert "bounds       x 0.0" in text


def test_a_dataset_without_points_or_classes(tmp_path: Path) -> None:
    np.save(tmp_path / "none.npy", np.empty((0, 4)))
    build(DataSettings(root=tmp_path, row_order="source"), tmp_path / "run")
    text = inspect(tmp_path / "run")
    assert "density" not in text
    assert "column_3" in text


def test_a_raw_file_is_described(shipped_laz: Path, tmp_path: Path) -> None:
    text = inspect(shipped_laz)
    assert "points       37805 (0 not finite)" in text
    rows = {line.split("  ")[0]: line for line in text.splitlines()}
    assert rows["2 ground"].split()[2:4] == ["22859", "60.5%"]
    assert rows["65"].split()[1] == "539"
    assert "unit         metre (its WKT) of x and y, metre (its WKT) of z" in text
    assert "rgb" in text
    np.save(tmp_path / "a.npy", np.array([[0, 0, 0, np.nan], [np.nan, 1, 1, 5]]))
    assert "points       2 (1 not finite)" in inspect(tmp_path / "a.npy")
    np.save(tmp_path / "none.npy", np.empty((0, 5)))
    assert "points       0" in inspect(tmp_path / "none.npy")


def test_neither(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such dataset"):
        inspect(tmp_path / "missing")
    (tmp_path / "dangling.laz").symlink_to("nowhere")
    with pytest.raises(DataError, match=r"dangling\.laz: cannot be read \(No such file"):
        inspect(tmp_path / "dangling.laz")
    np.save(tmp_path / "text.npy", np.zeros(2, [("x", "f8"), ("y", "f8"), ("z", "f8"), ("name", "U4")]))
    assert "<U4" in inspect(tmp_path / "text.npy") or "str" in inspect(tmp_path / "text.npy")
    np.save(tmp_path / "far.npy", np.array([[-1e308] * 4, [1e308, 1e308, 0, np.nan]]))
    assert "density" not in inspect(tmp_path / "far.npy")
    (tmp_path / "image").write_bytes(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(DataError, match="is of no format that is read"):
        inspect(tmp_path / "image")


def test_images_have_a_histogram_of_their_labels(idx_pair: Path) -> None:
    text = inspect(idx_pair)
    assert "images       3, each a cloud" in text
    assert [line.split()[:3] for line in text.splitlines()[-2:]] == [["4", "2", "66.7%"], ["7", "1", "33.3%"]]


@pytest.fixture
def idx_pair(tmp_path: Path) -> Path:
    pixels = np.zeros((3, 2, 2), np.uint8)
    pixels[:, 0, 0] = 9
    path = tmp_path / "x-images-idx3-ubyte"
    path.write_bytes(b"\0\0\x08\x03" + np.array([3, 2, 2], ">u4").tobytes() + pixels.tobytes())
    labels = b"\0\0\x08\x01" + np.array([3], ">u4").tobytes() + bytes([4, 7, 4])
    (tmp_path / "x-labels-idx1-ubyte").write_bytes(labels)
    return path


def test_nothing_odd() -> None:
    assert odd(ground(), intensity=np.arange(2000)) == ""


@pytest.mark.parametrize("seed", range(3))
def test_rows_that_are_not_finite_are_counted(seed: int) -> None:
    rng = np.random.default_rng(seed)
    xyz, lost = ground(seed=seed), int(rng.integers(100, 1900))
    xyz[rng.permutation(2000)[:lost], rng.integers(3)] = rng.choice([np.nan, np.inf, -np.inf])
    text = odd(xyz)
    assert f"{lost / 20:.0f} % of rows are not finite ({lost:,} of 2,000)" in text
    assert odd(np.full((3, 3), np.nan)).startswith("100 % of rows")
    assert odd(np.empty((0, 3))).startswith("holds no points")


def test_projected_coordinates_and_the_steps_of_float32() -> None:
    text = odd(ground(at=(698000, 6259000, 90)))
    assert "look like UTM" in text
    step = float(np.nextafter(np.float32(6259050), np.float32(np.inf)) - np.float32(6259050))
    assert f"float32 has steps of {step:g}" in text
    assert "stored as float32 once" not in text
    rounded = ground(at=(698000, 6259000, 90)).astype(np.float32)
    assert "y lies on steps of 0.5: it was stored as float32 once" in odd(rounded)
    assert "are large" in odd(ground(at=(-98451, -55975, 0)))


def test_an_origin_far_away_and_degrees() -> None:
    text = odd(ground(at=(3000, 0, 0)))
    assert "the origin is far from the cloud (3,025 away, the cloud is 49.99 long)" in text
    assert odd(ground(at=(200, 0, 0))) == ""
    assert "look like degrees" in odd(ground() * (1e-5, 1e-5, 10) + (4.5, 43, 0))


def test_feet_are_told_by_what_the_file_says(tmp_path: Path) -> None:
    def told(wkt: str | None, keys: dict[int, int] | None = None) -> str:
        return odd(ground(), las(tmp_path / "a.las", wkt, keys))

    assert "units are feet: its WKT says US survey foot of 0.3048006 m" in told(FEET)
    assert "(1 m is 3.281)" in told(FEET)
    assert "units are feet: its GeoTIFF keys says foot of 0.3048 m" in told(None, {1024: 1, 3076: 9002})
    assert "units are not metres: its WKT says unit of 0.9144 m" in told(YARDS)
    assert "x and y are angles (its WKT says degree)" in told(DEGREES)
    mixed = told(MIXED)
    assert "heights are in foot, x and y in metre (its WKT): distances mix both; scale z by 0.3048" in mixed
    assert "feet:" not in mixed
    for silent in (None, "", "no WKT at all ]]", 'PROJCS["a",UNIT["metre",1]]'):
        assert told(silent) == ""


def test_feet_are_a_guess_where_nothing_is_said() -> None:
    assert "units may be feet: x is 2,445,000 and more" in odd(ground(at=(2445000, 604300, 0)))
    for metres in ((698000, 6259000, 0), (131785, 549624, 0)):
        assert "feet" not in odd(ground(at=metres))


def test_the_unit_of_real_files(data_folder: Path) -> None:
    names = {"autzen_trim.laz": ("foot", "foot"), "simple.copc.laz": ("metre", "US survey foot")}
    for name, wanted in names.items():
        found = unit_of(data_folder / "reader" / f"laspy_{name}")
        assert tuple(unit.name for unit in found if unit) == wanted
    assert unit_of(data_folder / "reader" / "ahn3.laz") == (None, None)
    assert Unit(0.3048, "").is_feet
    assert Unit(1200 / 3937, "").short == "ft"
    assert not Unit(None, "").is_feet


@pytest.mark.parametrize("seed", range(3))
def test_copies_are_counted(seed: int) -> None:
    rng = np.random.default_rng(seed)
    xyz = (ground(seed=seed) * rng.uniform(0.1, 0.4)).round()
    xyz[xyz == 0] = rng.choice([0.0, -0.0], int((xyz == 0).sum()))
    wanted = len(xyz) - len({tuple(row) for row in (xyz + 0.0).tolist()})
    assert oddities.copied(xyz) == wanted > 0
    assert oddities.copied(xyz.astype(np.float32)) == wanted
    assert f"exact copies of another position ({wanted:,})" in odd(xyz)
    assert "exact copies" not in odd(ground())


def test_fields_that_say_nothing() -> None:
    n = 2000
    text = odd(
        ground(),
        zeros=np.zeros(n, np.uint8),
        vector=np.zeros((n, 3), np.float32),
        seven=np.full(n, 7),
        flag=np.zeros(n, bool),
        fine=np.arange(n),
        classification=np.ones(n, np.uint8),
        holes=np.where(np.arange(n) < 500, np.nan, 1.0),
    )
    assert "all zero: zeros, vector, flag;" in text
    assert "the same in all rows: seven;" in text
    assert "classification is 1 in every row" in text
    assert "holes is not a number in 25 % of rows" in text
    assert "fine" not in text.replace("finer", "")


def test_flat_far_withheld_and_eight_bits() -> None:
    xyz = ground()
    withheld = np.arange(2000) < 60
    rgb = np.random.default_rng(0).integers(0, 256, (2000, 3)).astype(np.uint16)
    text = odd(xyz * (1, 1, 0) + (0, 0, 4), withheld=withheld, rgb=rgb)
    assert "z is 4 in every row" in text
    assert "3 % of rows are withheld" in text
    assert "these are colours of 8 bits" in text
    assert "8 bits" not in odd(xyz, rgb=rgb * 257)
    xyz[7, 2] = 800
    assert "z spans 800, all but 0.2 % of rows" in odd(xyz)


def test_a_camera_is_suspected() -> None:
    xyz = ground() - (25, 25, -1)
    assert "camera" not in odd(xyz)
    xyz[:100] = np.nan
    assert "may have a camera's axes" in odd(xyz)


def test_what_is_odd_about_a_dataset(
    tmp_path: Path, raw: Path, settings: DataSettings, scan_writer: Callable[..., Any]
) -> None:
    scan = scan_writer(raw / "c.npy", 700, seed=9, corner=(40.0, -10))
    scan["classification"] = 6  # buildings are in the test file alone
    scan["x"][:35] = np.nan
    np.save(raw / "c.npy", scan)
    for name in ("a", "b"):
        scan = np.load(raw / f"{name}.npy")
        scan["classification"] = np.where(np.arange(len(scan)) < 1, 5, 1)
        scan["intensity"], scan["gps_time"] = 0, 4.0
        scan[100:400] = scan[400:700]
        np.save(raw / f"{name}.npy", scan)
    classes = {"ground": [1], "water": [9], "building": [6], "tree": [5]}
    text = inspect(build(settings.model_copy(update={"classes": classes}), tmp_path / "run").path)
    found = text.partition("worth knowing")[2]
    assert "no row is of class water: its codes are not in these files" in found
    assert "no row of class building is in train" in found
    assert "are of class tree: a plain loss" in found
    assert "all zero of train: intensity;" in found
    assert "the same in all rows of train: gps_time;" in found
    assert "are exact copies of another position in their sample" in found
    assert "35 source rows were not finite and were left out" in found
    assert "origin" not in found
    assert "no class and ignored" not in found


def test_what_is_odd_about_splits_and_codes(tmp_path: Path, raw: Path, settings: DataSettings) -> None:
    only = settings.model_copy(update={"split": None, "classes": {"low": [1]}})
    dataset = build(only, tmp_path / "one")
    text = inspect(dataset.path)
    assert "has no val or test split" in text
    assert "83 % of rows are of no class and ignored" in text  # five codes of six
    every = FilesSplit(kind="files", test=["a.npy", "b.npy", "c.npy"])
    dataset = build(settings.model_copy(update={"split": every}), tmp_path / "two")
    assert "has no train split" in inspect(dataset.path)


def test_options_and_outputs_are_checked_first(tmp_path: Path) -> None:
    def refused(picture: Path | None, html: Path | None, **more: Any) -> str:
        with pytest.raises(UsageError) as caught:
            next(look(Path("nowhere"), picture, html, **{"color": None, "voxel": None, **more}))
        return str(caught.value)

    assert "--color: is for a picture or a page" in refused(None, None, color="class")
    assert "--voxel: is for a picture or a page" in refused(None, None, voxel=1.0)
    assert "is not named .png" in refused(tmp_path / "a.jpg", None)
    assert "is not named .html" in refused(None, tmp_path / "a.txt")
    assert "its folder does not exist" in refused(tmp_path / "no" / "a.png", None)


def test_the_command_writes_all_three(
    shipped_laz: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outs = ["--picture", str(tmp_path / "a.png"), "--html", str(tmp_path / "a.html")]
    more = ["--color", "height", "--voxel", "2"]
    monkeypatch.setattr("sys.argv", ["tamis", "inspect", str(shipped_laz), *outs, *more])
    with pytest.raises(SystemExit) as exit:
        cli.main()
    assert not exit.value.code
    text = capsys.readouterr().out
    assert "worth knowing" in text
    assert "a.png: 37,805 points and" in text
    assert "(voxels of 2 m), coloured by height" in text
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert "laspy_append-bug.laz" in (tmp_path / "a.html").read_text("utf-8")
