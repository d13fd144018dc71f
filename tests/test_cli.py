"""The command line: help at once, errors as one plain line, exit 1 for data and 2 for usage."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tamis import cli


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a command run in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["tamis", *arguments])
        with pytest.raises(SystemExit) as exit:
            cli.main()
    captured = capsys.readouterr()
    return int(exit.value.code or 0), captured.out, captured.err


def test_help_names_every_command_and_loads_nothing_heavy() -> None:
    heavy = {"numpy", "numba", "torch", "pyarrow", "pydantic"}
    code = f"import sys, tamis.cli; print(*({heavy} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == []
    text = subprocess.check_output([sys.executable, "-m", "tamis", "--help"], text=True)
    assert all(
        name in text
        for name in (
            *("build", "inspect", "verify", "stream", "train", "predict", "sample", "config"),
            *("replay", "eval", "export"),
        )
    )


def test_config_prints_what_it_reads_back(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, text, _ = run(capsys, "config", "quickstart", "--set", "trainer.lr=0.5")
    assert code == 0
    assert "lr = 0.5" in text
    (tmp_path / "again.toml").write_text(text)
    assert run(capsys, "config", str(tmp_path / "again.toml"))[1] == text


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["build", "none.toml"], 1, ["none.toml", "no such configuration", "quickstart"]),
        (["build"], 2, ["Missing argument 'CONFIG'"]),
        (["bild"], 2, ["bild", "build"]),
        (
            ["config", "quickstart", "--set", "trainer.stpes=1"],
            2,
            ["--set trainer.stpes=1", "trainer.steps"],
        ),
        (["config", "quickstart", "--set", "trainer.steps=many"], 2, ["trainer.steps", "many"]),
        (["config", "quickstart", "--set", "layout.tp=4"], 2, ["layout.tp 4", "model.heads 2"]),
        (["config", "quickstart", "--set", "layout.pp=3"], 2, ["layout.microbatches 3", "loader.batch"]),
        (["verify", "nowhere"], 1, ["nowhere"]),
        (["inspect", "nowhere"], 1, ["nowhere"]),
        (["predict", "nowhere", "a.laz", "-o", "b.laz"], 1, ["nowhere"]),
        (["replay", "nowhere", "--step", "0"], 1, ["nowhere", "holds no run"]),
        (["replay", "nowhere"], 2, ["neither --step nor --spikes given"]),
        (["export", "nowhere", "a.safetensors"], 1, ["nowhere", "holds no run"]),
        (["export", "nowhere", "a.pt"], 2, ["a.pt", "suffix .safetensors"]),
        (["eval", "nowhere"], 1, ["nowhere", "holds no run"]),
        (["eval", "nowhere", "--split", "train"], 2, ["--split", "test", "val"]),
        (["sample", "nowhere.las", "out.las", "--voxel", "1"], 1, ["nowhere.las", "cannot be read"]),
        (["sample", "a.las"], 2, ["Missing argument 'OUT'"]),
        (["sample", "a.las", "b.las"], 2, ["no method given", "--voxel, --farthest, --random, --adaptive"]),
        (["sample", "a.las", "b.las", "--voxel", "1", "--random", "1"], 2, ["--voxel and --random given"]),
        (["sample", "a.las", "b.las", "--voxel", "0"], 2, ["--voxel: is 0", "above 0"]),
        (["sample", "a.las", "b.las", "--voxel", "nan"], 2, ["--voxel: is nan"]),
        (["sample", "a.las", "b.las", "--random", "0"], 2, ["--random: is 0", "ratio"]),
        (["sample", "a.las", "b.las", "--random", "1.5"], 2, ["--random: is 1.5"]),
        (["sample", "a.las", "b.las", "--farthest", "0"], 2, ["--farthest: is 0"]),
        (["sample"], 2, ["Missing argument 'IN'; see tamis sample --help"]),
        (["sample", "a.las", "b.las", "--voxel"], 2, ["requires an argument; see tamis sample --help"]),
        (["sample", "a.las", "b.las", "--adaptive", "many"], 2, ["--adaptive", "integer, not 'many'; see"]),
        (["sample", "a.las", "b.las", "--farthest", "1e3"], 2, ["not '1e3'; see tamis sample --help"]),
        (["sample", "a.las", "b.las", "--voxel", "abc"], 2, ["not 'abc'; see tamis sample --help"]),
        (["sample", "a.las", "b.las", "--random", "1", "--seed", "x"], 2, ["--seed", "not 'x'; see"]),
        (["sample", "a.las", "b.las", "--random", "1", "--reduce", "a=first"], 2, ["--reduce", "leave it"]),
        (["sample", "a.las", "b.las", "--voxel", "1", "--reduce", "a=most"], 2, ["a", "'most'", "majority"]),
        (["sample", "a.las", "b.las", "--voxel", "1", "--reduce", "a"], 2, ["--reduce a: is ''", "mean"]),
        (["sample", "a.las", f"{'b' * 250}.las", "--voxel", "1"], 1, ["bb.las: File name", "shorter name"]),
        (["sample", "a.las", "b.las", "--voxel", "1", "--pick", "last"], 2, ["'last'", "nearest"]),
        (["sample", "a.las", "b.las", "--random", "1", "--pick", "first"], 2, ["--pick", "leave it out"]),
        (["sample", "a.las", "b.txt", "--random", "1"], 2, ["b.txt", ".parquet"]),
        (["sample", "a.las", "none/b.las", "--random", "1"], 2, ["none/b.las", "folder does not exist"]),
        (["build", "quickstart", "--set", "data.root=nowhere", "--out", "run"], 1, ["nowhere"]),
        (["build", "quickstart", "--set", 'data.files=["no*.laz"]', "--out", "run"], 1, ["no*.laz"]),
        (["stream", "quickstart", "--out", "run"], 1, ["run", "tamis build"]),
    ],
)
def test_misuse_is_one_plain_line(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: int,
    words: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    exit, out, err = run(capsys, *arguments)
    assert (exit, out) == (code, "")
    assert err.startswith("tamis: ")
    assert err.count("\n") == 1
    assert all(word in err for word in words), err
    assert not list(tmp_path.rglob("*.arrow")), "something was left half-written"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["empty.las", "out.las", "--random", "1"], 1, ["empty.las", "is empty"]),
        (["cut.las", "out.las", "--random", "1"], 1, ["cut.las"]),
        (["text.las", "out.las", "--random", "1"], 1, ["text.las", "neither LAS/LAZ nor NPY"]),
        ([".", "out.las", "--random", "1"], 1, ["is no file"]),
        (["cloud.npy", "out.npy", "--farthest", "6"], 2, ["cloud.npy", "has 5", "--farthest asks for 6"]),
        (["cloud.npy", "out.npy", "--random", "6"], 2, ["cloud.npy", "has 5", "--random asks for 6"]),
        (["cloud.npy", "out.npy", "--adaptive", "6"], 2, ["cloud.npy", "has 5", "--adaptive asks for 6"]),
        (["cloud.npy", "out.las", "--random", "1"], 2, ["out.las", ".arrow"]),
        (["cloud.npy", "./cloud.npy", "--random", "1"], 2, ["is the input itself"]),
        (["cloud.npy", "folder.npy", "--random", "1"], 2, ["is a folder"]),
        (["cloud.npy", "out.npy", "--voxel", "1e-300"], 2, ["voxel"]),
        (
            ["cloud.npy", "out.npy", "--voxel", "1", "--reduce", "b=first"],
            2,
            ["'b'", "cloud.npy has no field"],
        ),
        (["objects.npy", "out.npy", "--random", "1"], 1, ["objects.npy: holds Python objects", "float"]),
        (["nan.npy", "out.npy", "--farthest", "1"], 1, ["nan.npy: has no row with a finite position"]),
        (["nan.npy", "out.npy", "--random", "2"], 1, ["nan.npy: has no row with a finite position"]),
        (["scan.ply", "out.npy", "--random", "1"], 1, ["scan.ply: is neither", "open3d", "laspy"]),
    ],
)
def test_sampling_that_cannot_be_is_one_plain_line(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shipped_laz: Path,
    arguments: list[str],
    code: int,
    words: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("cloud.npy", np.arange(15.0).reshape(5, 3))
    np.save("nan.npy", np.full((5, 3), np.nan))
    np.save("objects.npy", np.array([[1, 2, None]]))
    for name, content in (
        ("empty.las", b""),
        ("cut.las", shipped_laz.read_bytes()[:-999]),
        ("text.las", b"hello"),
        ("scan.ply", b"ply\nformat ascii 1.0\n"),
    ):
        Path(name).write_bytes(content)
    Path("folder.npy").mkdir()
    before = set(tmp_path.rglob("*"))
    exit, out, err = run(capsys, "sample", *arguments)
    assert (exit, out) == (code, "")
    assert err.startswith("tamis: ")
    assert err.count("\n") == 1
    assert all(word in err for word in words), err
    assert set(tmp_path.rglob("*")) == before


def test_sample_says_what_it_did(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, shipped_laz: Path
) -> None:
    out = tmp_path / "out.laz"
    for arguments, words in [
        (["--voxel", "100", "--pick", "nearest"], ["37,805 -> "]),
        (["--farthest", "20"], ["37,805 -> 20 points"]),
        (["--random", "0.01", "--seed", "7"], ["37,805 -> 378 points"]),
        (["--adaptive", "30"], ["37,805 -> 30 points; farthest point leaves the smallest gaps"]),
    ]:
        code, text, _ = run(capsys, "sample", str(shipped_laz), str(out), *arguments)
        assert code == 0
        assert text.startswith(f"{out}: ")
        assert text.count("\n") == 1
        assert all(word in text for word in words), text


@pytest.mark.parametrize(
    ("arguments", "function", "how"),
    [
        (["build", "quickstart"], "build.build", "continues"),
        (["inspect", "anything"], "inspect.inspect", "starts over"),
        (["sample", "a.npy", "b.npy", "--random", "1"], "sample.sample", "starts over"),
    ],
)
def test_ctrl_c_says_whether_the_command_continues(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    function: str,
    how: str,
) -> None:
    def interrupted(*_: Any, **__: Any) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"tamis.pipelines.{function}", interrupted)
    code, _, err = run(capsys, *arguments)
    assert (code, err) == (130, f"tamis: interrupted; the same command {how}\n")


def test_a_report_that_cannot_be_written_is_refused_before_the_benchmark(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in ("samplers", "loader", "trainer", "quality"):
        for file, words in (("none/b.json", "its folder does not exist"), (".", "is a folder")):
            code, out, err = run(capsys, "bench", command, "--json", file)
            assert (code, out) == (2, "")
            assert err.startswith(f"tamis: {file}: {words}; "), err
            assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())
