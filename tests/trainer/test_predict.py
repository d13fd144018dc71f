from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import laspy
import numpy as np
import pytest

from tamis.config import dumps
from tamis.errors import DataError, UsageError
from tamis.trainer.checkpoints import checkpoint
from tamis.trainer.launch import train
from tamis.trainer.predict import predict

Make = Callable[..., Any]


@pytest.fixture
def run(run_settings: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("RANK", "TAMIS_START"):
        monkeypatch.delenv(name, raising=False)
    train(run_settings(steps=60, checkpoint_steps=0), tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def other(tmp_path: Path, scan: Path) -> Path:
    """Another file of the same ground, LAZ, with a field and records of its own."""
    las = laspy.read(scan)
    las.add_extra_dim(laspy.ExtraBytesParams("weight", np.float32))
    las.weight = np.random.default_rng(1).random(len(las.points)).astype(np.float32)
    las.gps_time = np.arange(len(las.points)) * 0.25
    las.user_data = np.arange(len(las.points)) % 256
    las.header.vlrs.append(laspy.VLR("somebody", 7, "a note", b"kept"))
    las.header.system_identifier, las.header.generating_software = "a scanner", "a program"
    path = tmp_path / "other.laz"
    las.write(path)
    return path


def assert_same_but_the_class(path: Path, old_path: Path) -> None:
    new, old = laspy.read(path), laspy.read(old_path)
    assert list(new.point_format.dimension_names) == list(old.point_format.dimension_names)
    for name in old.point_format.dimension_names:
        if name != "classification":
            np.testing.assert_array_equal(np.array(new[name]), np.array(old[name]), err_msg=name)
    a, b = new.header, old.header
    assert (a.version, a.point_format, a.point_count) == (b.version, b.point_format, b.point_count)
    for key in ("system_identifier", "generating_software", "uuid", "file_source_id", "creation_date"):
        assert getattr(a, key) == getattr(b, key), key
    assert a.global_encoding.value == b.global_encoding.value
    for key in ("scales", "offsets", "mins", "maxs", "number_of_points_by_return"):
        np.testing.assert_array_equal(getattr(a, key), getattr(b, key), err_msg=key)

    def records(las: Any) -> list[Any]:
        every = [*las.header.vlrs, *(las.evlrs or [])]
        kept = [v for v in every if v.user_id not in ("laszip encoded", "copc")]
        return [(v.user_id, v.record_id, v.description, v.record_data_bytes()) for v in kept]

    assert records(new) == records(old)


@pytest.mark.parametrize("suffix", [".las", ".laz"])
def test_every_point_gets_a_class_and_nothing_else_changes(
    run: Path, other: Path, tmp_path: Path, suffix: str
) -> None:
    out = tmp_path / f"labelled{suffix}"
    told = predict(run, other, out)
    assert told.startswith(f"{out}: 4,000 points, ground ")
    assert_same_but_the_class(out, other)
    las = laspy.read(out)
    codes = np.asarray(las.classification)
    assert set(codes.tolist()) == {2, 3}
    assert ((codes == 3) == (np.asarray(las.z) > 0.5)).mean() > 0.9
    with laspy.open(out) as reader:
        assert reader.header.are_points_compressed == (suffix == ".laz")
    assert not list(tmp_path.glob(".*.tmp"))


def test_it_needs_neither_the_dataset_nor_the_raw_files(
    run: Path, other: Path, scan: Path, tmp_path: Path
) -> None:
    (run / "dataset").rename(tmp_path / "gone")
    scan.parent.rename(tmp_path / "gone too")
    predict(run, other, tmp_path / "out.laz")
    assert (tmp_path / "out.laz").exists()


def test_the_answer_is_the_same_twice(run: Path, other: Path, tmp_path: Path) -> None:
    predict(run, other, tmp_path / "a.las")
    predict(run, other, tmp_path / "b.las")
    assert (tmp_path / "a.las").read_bytes() == (tmp_path / "b.las").read_bytes()


def test_a_run_that_goes_on_predicts_too(
    run: Path, other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may remove a checkpoint after a part of it was read."""
    wanted = predict(run, other, tmp_path / "a.laz").removeprefix(str(tmp_path / "a.laz"))
    last = checkpoint.written(run)
    read = checkpoint.read

    def slowly(path: Path) -> Any:
        found = read(path)
        if path == last:
            path.rename(path.with_name("step-00000061"))
        return found

    monkeypatch.setattr(checkpoint, "read", slowly)
    assert predict(run, other, tmp_path / "b.laz") == f"{tmp_path / 'b.laz'}{wanted}"
    assert not last.exists()


def test_wrong_names_are_refused(run: Path, other: Path, tmp_path: Path) -> None:
    (tmp_path / "link.laz").symlink_to(other)
    for out, message in [
        (other, "is the input itself"),
        (tmp_path / "link.laz", "is the input itself"),
        (tmp_path / "out.txt", "has no suffix of .las or .laz"),
        (tmp_path / "nowhere" / "out.laz", "its folder does not exist"),
    ]:
        with pytest.raises(UsageError, match=message):
            predict(run, other, out)
    before = set(tmp_path.iterdir())
    for where, file, message in [
        (tmp_path / "no run", other, "holds no run"),
        (run, tmp_path / "no file.laz", "cannot be read"),
    ]:
        with pytest.raises(DataError, match=message):
            predict(where, file, tmp_path / "out.laz")
    assert set(tmp_path.iterdir()) == before


def test_files_that_will_not_do_are_refused(run: Path, other: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "cloud.npy", np.zeros((5, 3)))
    with pytest.raises(DataError, match="is no LAS or LAZ file"):
        predict(run, tmp_path / "cloud.npy", tmp_path / "out.laz")
    cut = tmp_path / "cut.laz"
    cut.write_bytes(other.read_bytes()[:-500])
    with pytest.raises(DataError, match=r"cut\.laz"):
        predict(run, cut, tmp_path / "out.laz")
    assert not (tmp_path / "out.laz").exists()


def test_a_run_without_a_checkpoint_is_refused(run: Path, other: Path, tmp_path: Path) -> None:
    for path in (run / "checkpoints").iterdir():
        path.rename(tmp_path / path.name)
    with pytest.raises(DataError, match="holds no checkpoint yet"):
        predict(run, other, tmp_path / "out.laz")


def test_a_run_that_learned_no_points_is_refused(other: Path, settings_of: Make, tmp_path: Path) -> None:
    run = tmp_path / "run of texts"
    run.mkdir()
    (run / "config.toml").write_text(dumps(settings_of(model={"kind": "tokens"})))
    with pytest.raises(UsageError, match=r"was trained with model\.kind = tokens"):
        predict(run, other, tmp_path / "out.laz")


def test_a_code_that_has_no_room_is_refused(run: Path, scan: Path, tmp_path: Path) -> None:
    """Point formats below 6 keep 5 bits for the class."""
    text = (run / "config.toml").read_text()
    changed = text.replace("ground = [\n    2,\n]", "ground = [\n    64,\n]")
    assert changed != text
    (run / "config.toml").write_text(changed)
    laspy.convert(laspy.read(scan), point_format_id=1).write(tmp_path / "old.las")
    with pytest.raises(DataError, match="'classification' holds codes up to 31, not 64"):
        predict(run, tmp_path / "old.las", tmp_path / "out.las")


@pytest.mark.parametrize(
    "name",
    ["laspy_append-bug.laz", "laspy_extrabytes.las", "laspy_vegetation_1_3.las", "laspy_simple.copc.laz"],
)
def test_real_files_keep_their_fields(
    run: Path, data_folder: Path, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = data_folder / "reader" / name
    predict(run, file, tmp_path / "out.laz")
    assert_same_but_the_class(tmp_path / "out.laz", file)
    assert ("is no cloud-optimised file" in caplog.text) == (".copc." in name)
