from __future__ import annotations

import logging
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import laspy
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.errors import DataError
from tamis.pipelines.readers import ReadSettings, read
from tamis.pipelines.readers.units import Lengths, geo_keys, metres, of_keys, of_wkt

HERE = Path("here.las")
METRE = ReadSettings(unit="metre")
US = 1200 / 3937

GLOBE = 'GEOGCS["NAD83",DATUM["N",SPHEROID["GRS 1980",6378137,298.257]],UNIT["degree",0.0174532925199433]]'
FEET = f'PROJCS["Oregon (ft)",{GLOBE},PROJECTION["L"],PARAMETER["false_easting",400000],UNIT["foot",0.3048]]'
METRES = (
    f'PROJCS["Oregon (m)",{GLOBE},UNIT["metre",1,AUTHORITY["EPSG","9001"]],AXIS["E",EAST],AXIS["N",NORTH]]'
)
HEIGHT = 'VERT_CS["NAVD88 (ftUS)",VERT_DATUM["N",2005],UNIT["US survey foot",0.304800609601219],AXIS["H",UP]]'
BASE = 'BASEGEOGCRS["RGF93",DATUM["R",ELLIPSOID["GRS 1980",6378137,298.257,LENGTHUNIT["metre",1]]]]'
CONVERSION = 'CONVERSION["L",METHOD["LCC"],PARAMETER["False easting",700000,LENGTHUNIT["kilometre",1000]]]'


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("", (None, None)),
        (FEET, (0.3048, None)),
        (f'COMPD_CS["both",{METRES},{HEIGHT}]', (1, 0.304800609601219)),
        (f"{FEET},{HEIGHT.replace('VERT_CS', 'VERTCS')}", (0.3048, 0.304800609601219)),
        (HEIGHT, (None, 0.304800609601219)),
        (f'PROJCRS["a",{BASE},{CONVERSION},CS[Cartesian,2],AXIS["E",east],AXIS["N",north],LENGTHUNIT["ft",0.3048]]',
         (0.3048, None)),
        (f'PROJCRS["a",{BASE},CS[Cartesian,2],AXIS["E",east,LENGTHUNIT["ft",0.3048]],'
         'AXIS["N",north,LENGTHUNIT["ft",0.3048]]]', (0.3048, None)),
        (f'PROJCRS["a",{BASE},CS[Cartesian,3],AXIS["E",east,LENGTHUNIT["m",1]],AXIS["N",north,LENGTHUNIT["m",1]],'
         'AXIS["h",up,LENGTHUNIT["ft",0.3048]]]', (1, 0.3048)),
        (f'COMPOUNDCRS["a",PROJCRS["b",{BASE},LENGTHUNIT["m",1]],'
         'BOUNDCRS[SOURCECRS[VERTCRS["c",VDATUM["d"],CS[vertical,1],AXIS["H",up],LENGTHUNIT["ft",0.3048]]],'
         f'TARGETCRS[PROJCRS["e",{BASE},LENGTHUNIT["km",1000]]]]]', (1, 0.3048)),
        (f'BOUNDCRS[SOURCECRS[{FEET}],TARGETCRS[{METRES}]]', (0.3048, None)),
        ('GEOCCS["a",DATUM["b"],UNIT["metre",1],AXIS["X",OTHER],AXIS["Y",OTHER],AXIS["Z",NORTH]]', (1, 1)),
        ('GEODCRS["a",DATUM["b"],CS[Cartesian,3],AXIS["X",geocentricX],LENGTHUNIT["metre",1]]', (1, 1)),
        ('LOCAL_CS["the ""old"" site, [1]",UNIT["foot",0.3048]]', (0.3048, None)),
        ('projcs ( "round" , unit ( "foot" , 3.048e-1 ) )\n', (0.3048, None)),
        (f'PROJCS["no unit",{GLOBE}]', (None, None)),
        ('SOMETHING["else",UNIT["foot",0.3048]]', (None, None)),
    ],
)  # fmt: skip
def test_units_of_wkt(text: str, lengths: tuple[float | None, float | None]) -> None:
    """A unit belongs to the system that it stands in, not to its globe or its constants."""
    assert of_wkt(HERE, text) == Lengths(*lengths)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (GLOBE, "in degrees"),
        (f'COMPD_CS["both",{GLOBE},{HEIGHT}]', "in degrees"),
        ('GEOGCRS["a",DATUM["b"],CS[ellipsoidal,2],ANGLEUNIT["degree",0.0174]]', "in degrees"),
        (FEET[:-1], "damaged WKT: character"),
        (f"{FEET}]", "damaged WKT: character"),
        ('PROJCS["a', "damaged WKT: character 7 of 9"),
        ('["a"]', "damaged WKT: character 0 of 5"),
        ('PROJCS["a",UNIT["foot"]]', "has no length"),
        ('PROJCS["a",UNIT["foot",0]]', "has no length"),
        ('PROJCS["a",UNIT["foot",nan]]', "has no length"),
        ('PROJCS["a",UNIT["foot",-1]]', "has no length"),
        ('PROJCS["a",UNIT["foot","much"]]', "has no length"),
        (
            'PROJCRS["a",AXIS["E",e,LENGTHUNIT["m",1]],AXIS["N",n,LENGTHUNIT["ft",0.3]]]',
            "1 m in x and 0.3 m in y",
        ),
    ],
)
def test_what_gives_no_length_is_refused(text: str, cause: str) -> None:
    with pytest.raises(DataError, match=r"here\.las: ") as caught:
        of_wkt(HERE, text)
    assert cause in str(caught.value)


@given(st.text('[]()",UNITPROJCS 0.3', max_size=60))
def test_any_text_is_an_answer_or_an_error(text: str) -> None:
    with suppress(DataError):
        assert len(of_wkt(HERE, text)) == 2


def test_deep_brackets_are_no_trouble() -> None:
    assert of_wkt(HERE, "COMPD_CS[" * 30_000 + FEET + "]" * 30_000) == (0.3048, None)


@pytest.mark.parametrize(
    ("keys", "lengths"),
    [
        ({}, (None, None)),
        ({1024: 1, 3076: 9001}, (1, None)),
        ({1024: 1, 3076: 9002, 4099: 9003}, (0.3048, US)),
        ({3076: 32767, 3077: 0.9}, (0.9, None)),
        ({3076: 32767}, (None, None)),
        ({3076: 32767, 3077: 0}, (None, None)),
        ({1024: 1, 3072: 2154}, (None, None)),
        ({1024: 3}, (1, 1)),
    ],
)
def test_units_of_geotiff_keys(keys: dict[int, float], lengths: tuple[float | None, float | None]) -> None:
    assert of_keys(HERE, keys) == Lengths(*lengths)


def test_geotiff_keys_in_degrees_are_refused() -> None:
    with pytest.raises(DataError, match="in degrees"):
        of_keys(HERE, {1024: 2, 2054: 9102})


def test_the_bytes_of_geotiff_keys() -> None:
    directory = struct.pack("<4H", 1, 1, 0, 4) + struct.pack(
        "<16H", 1024, 0, 1, 1, 3076, 0, 1, 32767, 3077, 34736, 1, 1, 3078, 34736, 1, 9
    )
    doubles = struct.pack("<2d", 7, 0.25)
    assert geo_keys(directory, doubles) == {1024: 1, 3076: 32767, 3077: 0.25}
    assert geo_keys(directory[:-9], doubles[:-1]) == {1024: 1, 3076: 32767}
    assert geo_keys(b"", b"") == {}


def test_text_goes_before_keys_and_each_fills_what_the_other_lacks(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert metres(HERE, FEET, {4099: 9003}) == (0.3048, US)
        assert not caplog.text
        assert metres(HERE, HEIGHT, {3076: 9001}) == (1, 0.304800609601219)
        assert metres(HERE, "", {3076: 9002}) == (0.3048, 0.3048)
        assert "names no vertical unit" in caplog.text
        assert metres(HERE, FEET, {3076: 9003, 4099: 9001}) == (0.3048, 1)
    assert "its WKT has units of 0.3048 m, its GeoTIFF keys of 0.3048006096 m" in caplog.text


def las(path: Path, vlrs: list[Any], evlrs: list[Any] | None = None) -> None:
    header = laspy.LasHeader(point_format=6, version="1.4")
    header.scales = [0.001] * 3
    header.vlrs.extend(vlrs)
    data = laspy.LasData(header)
    data.x, data.y, data.z = np.array([[0, 100, 1000], [0, 200, 2000], [0, 300, 3000]])
    data.evlrs = laspy.vlrs.vlrlist.VLRList(evlrs or [])
    data.write(str(path))


def wkt(text: str) -> laspy.VLR:
    return laspy.VLR("LASF_Projection", 2112, "", text.encode() + b"\0")


def test_las_in_metres_with_heights_apart(tmp_path: Path) -> None:
    text = f'COMPD_CS["both",{METRES},{HEIGHT}]'
    las(tmp_path / "a.las", [wkt(text)])
    las(tmp_path / "b.las", [], [wkt(text)])
    for name in ("a.las", "b.las"):
        assert read(tmp_path / name).xyz.tolist()[1] == [100, 200, 300]
        found = read(tmp_path / name, METRE).xyz
        np.testing.assert_allclose(found[:, :2], [[0, 0], [100, 200], [1000, 2000]], rtol=1e-15)
        np.testing.assert_allclose(found[:, 2], [0, 91.4401828803657, 914.401828803657], rtol=1e-15)


def test_a_file_that_names_no_unit_is_refused(tmp_path: Path) -> None:
    las(tmp_path / "a.las", [])
    assert len(read(tmp_path / "a.las").xyz) == 3
    with pytest.raises(DataError, match=r"names no unit .*leave data\.read\.unit at 'source'"):
        read(tmp_path / "a.las", METRE)
    las(
        tmp_path / "b.las",
        [laspy.VLR("LASF_Projection", 34735, "", struct.pack("<8H", 1, 1, 0, 1, 3072, 0, 1, 2154))],
    )
    with pytest.raises(DataError, match="gives the code 2154"):
        read(tmp_path / "b.las", METRE)


def test_formats_without_units_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((4, 3)))
    with pytest.raises(DataError, match="is NPY, which does not say in what unit"):
        read(tmp_path / "a.npy", METRE)


@pytest.mark.parametrize(
    ("name", "across", "up"),
    [
        ("laspy_file_with_both_wkt_and_geotiff_vlrs.las", US, US),
        ("laspy_autzen_trim.laz", 0.3048, 0.3048),
        ("laspy_append-bug.laz", 1, 1),
        ("laspy_simple.copc.laz", 1, US),
    ],
)
def test_real_files(data_folder: Path, name: str, across: float, up: float) -> None:
    path = data_folder / "reader" / name
    own, found = read(path), read(path, METRE)
    np.testing.assert_allclose(found.xyz, own.xyz * [across, across, up], rtol=1e-12)
    assert found.fields.keys() == own.fields.keys()


def test_a_real_file_without_a_system_is_refused(data_folder: Path) -> None:
    with pytest.raises(DataError, match="names no unit"):
        read(data_folder / "reader" / "ahn3.laz", METRE)
