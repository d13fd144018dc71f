"""Batches made again: to the bit those that training saw, whatever ran in between."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tamis import cli
from tamis.config import check, dumps
from tamis.errors import DataError, UsageError
from tamis.loaders.loader import Batch
from tamis.pipelines.build import build
from tamis.pipelines.dataset import Dataset
from tamis.pipelines.settings import DataSettings
from tamis.trainer import loop
from tamis.trainer.mesh import Mesh, alone
from tamis.trainer.replays.replay import Replay, replay
from tamis.trainer.settings import Settings
from tamis.trainer.step import Trainer

Make = Callable[..., Any]
RATIO = {"kind": "linear", "start": 1.0, "end": 0.25, "steps": 25, "levels": 4}


def changed(settings: Settings, **sections: dict[str, Any]) -> Settings:
    values = settings.model_dump(mode="json", exclude_none=True)
    for name, keys in sections.items():
        values[name] |= keys
    return check(values, Settings, where="here")


@pytest.fixture
def go(killed_in: Make) -> Make:
    """``go(settings, run)``: run to the end, or to the step it is killed in.

    Gives copies of what this rank learned from, by step.
    """

    def run_it(
        settings: Settings, run: Path, mesh: Mesh | None = None, cut: int | None = None
    ) -> dict[int, Batch]:
        seen: dict[int, Batch] = {}
        take = Trainer.step

        def step(trainer: Trainer, batch: Batch, *args: Any) -> Any:
            assert batch.mask is not None
            seen[batch.step] = replace(
                batch,
                ids=batch.ids.copy(),
                weight=batch.weight.copy(),
                mask=batch.mask.copy(),
                columns={name: values.copy() for name, values in batch.columns.items()},
            )
            return take(trainer, batch, *args)

        run.mkdir(exist_ok=True)
        (run / "config.toml").write_text(dumps(settings))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Trainer, "step", step)
            with killed_in(cut):  # first of all: what is killed has seen nothing of its step
                loop.run(settings, Dataset(settings.dataset_path(run)), run, mesh or alone(), 0.0)
        return seen

    return run_it


def assert_same(found: Batch, wanted: Batch) -> None:
    """Every array has the same bits."""
    assert (found.step, found.epoch, found.k) == (wanted.step, wanted.epoch, wanted.k)
    assert found.columns.keys() == wanted.columns.keys()
    assert found.mask is not None
    assert wanted.mask is not None
    pairs: list[tuple[np.ndarray, np.ndarray]] = [
        (found.ids, wanted.ids),
        (found.weight, wanted.weight),
        (found.mask, wanted.mask),
        *((found.columns[name], wanted.columns[name]) for name in wanted.columns),
    ]
    for a, b in pairs:
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert a.tobytes() == b.tobytes()


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of ``tamis replay`` run in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["tamis", "replay", *arguments])
        patch.setattr("signal.signal", lambda *_: None)
        with pytest.raises(SystemExit) as exit:
            cli.main()
    captured = capsys.readouterr()
    return int(exit.value.code or 0), captured.out, captured.err


def damage(dataset: Dataset, row: int) -> None:
    """Flip the first byte of a sample."""
    path = dataset.shard_path(int(dataset.shard[row]))
    raw = bytearray(path.read_bytes())
    raw[int(dataset.positions["xyz"][row])] ^= 0xFF
    path.write_bytes(raw)


def test_twenty_random_steps_of_a_cut_run_whose_ratio_changes(
    run_settings: Make, dataset: Dataset, tmp_path: Path, go: Make
) -> None:
    """Operators that draw, epochs with a short last batch, two checkpoints between the cut and the resume."""
    settings = changed(run_settings(steps=30, checkpoint_steps=8), loader={"ratio": RATIO})
    before = go(settings, tmp_path, cut=21)
    seen = before | go(settings, tmp_path)
    for step in range(16, 21):  # taken twice
        assert_same(seen[step], before[step])
    with Replay(tmp_path) as opened:
        for step in np.random.default_rng(7).choice(30, 20, replace=False).tolist():
            found = opened.step(step)
            assert_same(found.batch, seen[step])
            assert found.line == json.loads((tmp_path / "steps.jsonl").read_text().splitlines()[step])
            assert [o.id for o in found.origins] == seen[step].ids.tolist()
    assert_same(replay(str(tmp_path), 29).batch, seen[29])
    assert {batch.k for batch in seen.values()} == {32, 24, 16, 8}
    assert {len(batch.ids) for batch in seen.values()} == {5, 2}


def test_a_run_that_goes_on_or_was_killed_is_replayed_too(
    run_settings: Make, dataset: Dataset, tmp_path: Path, go: Make
) -> None:
    """No checkpoint yet, no report, and a line that is not whole."""
    seen = go(run_settings(steps=30, checkpoint_steps=0), tmp_path, cut=4)
    assert not list(tmp_path.glob("checkpoints/*"))
    with (tmp_path / "steps.jsonl").open("a") as file:
        file.write('{"step": 4, "epo')
    assert_same(replay(tmp_path, 3).batch, seen[3])
    with pytest.raises(UsageError, match="is 4, the run has done 4 steps; give 0 to 3"):
        replay(tmp_path, 4)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("layout", "feeder"),
    [
        pytest.param({"dp": 2}, "node", id="dp2 node"),
        pytest.param({"pp": 2, "microbatches": 3}, "inline", id="pp2"),
        pytest.param({"dp": 2, "pp": 2, "schedule": "zbv"}, "inline", id="zbv", marks=pytest.mark.slow),
        pytest.param({"dp": 2, "tp": 2}, "node", id="dp2 tp2", marks=pytest.mark.slow),
    ],
)
def test_any_layout_is_replayed_by_one_process(
    layout: dict[str, Any],
    feeder: str,
    run_settings: Make,
    dataset: Dataset,
    tmp_path: Path,
    run_ranks: Make,
    go: Make,
) -> None:
    """Shares of replicas one after another are the batch, and the sum of those that lead is its sum."""
    loader = {"ratio": RATIO, "feeder": feeder}
    settings = changed(run_settings(steps=5), layout=layout, loader=loader, model={"depth": 4})
    port = str(20000 + (os.getpid() * 7 + len(layout)) % 20000)  # names the feeder of these ranks

    def work(mesh: Mesh) -> tuple[int, bool, dict[int, Batch]]:
        os.environ.update(LOCAL_RANK=str(mesh.rank), LOCAL_WORLD_SIZE=str(mesh.world), MASTER_PORT=port)
        return mesh.replica, mesh.leads, go(settings, tmp_path, mesh)

    answers = run_ranks(settings.layout, work)
    leading = [seen for _, leads, seen in sorted(answers, key=lambda answer: answer[0]) if leads]
    assert len(leading) == settings.layout.dp
    with Replay(tmp_path) as opened:
        for step in range(5):
            shares = [seen[step] for seen in leading]
            here = [share.weight > 0 for share in shares]

            def joined(arrays: list[Any], here: list[Any] = here) -> Any:
                return np.concatenate([array[rows] for array, rows in zip(arrays, here, strict=True)])

            whole = replace(
                shares[0],
                ids=joined([one.ids for one in shares]),
                weight=joined([one.weight for one in shares]),
                mask=joined([one.mask for one in shares]),
                columns={n: joined([one.columns[n] for one in shares]) for n in shares[0].columns},
            )
            assert_same(opened.step(step).batch, whole)


def test_a_run_that_changed_its_layout_is_replayed(
    run_settings: Make, dataset: Dataset, tmp_path: Path, run_ranks: Make, go: Make
) -> None:
    """Two pipeline ranks, killed, then one process: the batches depend on neither."""
    settings = changed(run_settings(steps=6, checkpoint_steps=2), loader={"ratio": RATIO})
    two = changed(settings, layout={"pp": 2})
    seen = run_ranks(two.layout, lambda mesh: go(two, tmp_path, mesh, cut=5))[0]
    later = go(settings, tmp_path)
    assert (sorted(seen), sorted(later)) == ([0, 1, 2, 3, 4], [4, 5])
    with Replay(tmp_path) as opened:
        for step in range(6):
            assert_same(opened.step(step).batch, (seen | later)[step])


def test_damaged_samples_are_left_out_as_they_were(
    run_settings: Make, dataset: Dataset, tmp_path: Path, caplog: pytest.LogCaptureFixture, go: Make
) -> None:
    first, second = dataset.splits["train"][0].rows[0], dataset.splits["train"][0].rows[0] + 1
    damage(dataset, first)
    seen = go(changed(run_settings(steps=6), loader={"max_damaged": 1}), tmp_path)
    with Replay(tmp_path) as opened:
        for step in range(6):
            found = opened.step(step)
            assert_same(found.batch, seen[step])
            lost = [o for o in found.origins if o.weight == 0]
            assert [o.id for o in lost] == [int(dataset.ids[first])] * (dataset.ids[first] in seen[step].ids)
            assert all(o.taken == 0 and o.classes == {} for o in lost)
    damage(dataset, second)
    (step,) = [s for s in range(3) if dataset.ids[second] in seen[s].ids]
    with pytest.raises(
        DataError, match=r"step \d of .*left out as damaged, or the dataset is another: samples \d, not"
    ):
        replay(tmp_path, step)


def test_damage_since_the_run_is_named(
    run_settings: Make, dataset: Dataset, tmp_path: Path, go: Make
) -> None:
    seen = go(run_settings(steps=3), tmp_path)
    row = dataset.splits["train"][0].rows[0]
    damage(dataset, row)
    (step,) = [s for s in range(3) if dataset.ids[row] in seen[s].ids]
    with pytest.raises(DataError, match=r"shard-\d+\.arrow: is damaged in the block at offset"):
        replay(tmp_path, step)
    assert_same(replay(tmp_path, (step + 1) % 3).batch, seen[(step + 1) % 3])


def test_texts_are_replayed_and_printed(
    settings_of: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str], go: Make
) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.txt").write_text("A sieve\x1b[31m is a tool.\n" * 20)
    (texts / "b.txt").write_bytes(b"\xff\xfe" + "Grüße".encode() * 40)
    data = {"root": str(texts), "text": {"length": 40}}
    build(DataSettings.model_validate(data | {"root": texts}), tmp_path)
    settings = settings_of(
        data=data,
        loader={"batch": 3, "ratio": {"kind": "linear", "start": 0.5, "end": 1.0, "steps": 6, "levels": 3}},
        model={"kind": "tokens", "width": 24, "heads": 2, "depth": 1},
        trainer={"points": 40, "steps": 8, "checkpoint_steps": 0},
    )
    seen = go(settings, tmp_path)
    for step in range(8):
        assert_same(replay(tmp_path, step).batch, seen[step])
    code, out, _ = command(capsys, str(tmp_path), "--step", "7")
    assert code == 0
    assert out.count("\n") == 4 + len(seen[7].ids)
    assert "text" in out.splitlines()[3]
    everything = "".join(command(capsys, str(tmp_path), "--step", str(step))[1] for step in range(8))
    assert "\x1b" not in everything
    assert r"A sieve\x1b[31m is a tool.\nA sieve" in everything
    assert "<end>\ufffd\ufffdGrüßeGrüße" in everything
    code, _, err = command(capsys, str(tmp_path), "--step", "7", "--picture", str(tmp_path / "a.png"))
    assert (code, err.count("\n")) == (2, 1)
    assert "learns from no clouds" in err


def test_the_command_tells_of_each_sample_writes_it_and_draws_it(
    run_settings: Make, dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str], go: Make
) -> None:
    import matplotlib.image

    seen = go(run_settings(steps=4), tmp_path)
    npz, png = tmp_path / "batch.npz", tmp_path / "batch.png"
    code, out, _ = command(capsys, str(tmp_path), "--step", "1", "--out", str(npz), "--picture", str(png))
    assert code == 0
    about, proof, _, head, *lines = out.splitlines()
    line = json.loads((tmp_path / "steps.jsonl").read_text().splitlines()[1])
    assert about == (
        f"step 1: epoch 0, k 32, 5 samples, loss {line['loss']:.5g}, gradient norm {line['grad_norm']:.5g}"
    )
    assert str(line["crc"]) in proof
    assert head.split() == ["id", "sample", "split", "rows", "taken", "weight", "centre", "classes"]
    for told, id in zip(lines[:5], seen[1].ids.tolist(), strict=True):
        row = int(np.flatnonzero(dataset.ids == id)[0])
        sample = dataset.sample(row)
        x, y, z = (sample.positions().min(axis=0) + sample.positions().max(axis=0)) / 2
        assert told.startswith(f"{id:016x}  {sample.source}#{sample.tile} ")
        assert told.split()[2:6] == ["train", f"{sample.rows}", "32", "1"]
        assert f"{x:.2f} {y:.2f} {z:.2f}" in told
        label = seen[1].columns["label"][seen[1].ids == id][0]
        assert f"ground {np.mean(label == 0):.0%}" in told
    with np.load(npz) as saved:
        whole = {**seen[1].columns, "mask": seen[1].mask, "ids": seen[1].ids, "weight": seen[1].weight}
        assert sorted(saved.files) == sorted(whole)
        assert all(saved[name].tobytes() == np.asarray(whole[name]).tobytes() for name in whole)
    pixels = (matplotlib.image.imread(png)[..., :3] * 255).round().astype(int)
    assert {(166, 118, 60), (255, 127, 14)} <= set(map(tuple, pixels.reshape(-1, 3)[::3].tolist()))
    assert not list(tmp_path.glob(".*.tmp"))

    code, out, _ = command(capsys, str(tmp_path), "--spikes", "2")
    assert code == 0
    assert out.startswith("4 steps, 0 skipped\n\nstep  k   stands out  by")
    for told in out.splitlines()[3:5]:
        step = int(told.split()[0])
        assert " ".join(f"{id:016x}" for id in seen[step].ids.tolist()) in told


def test_misuse_is_one_plain_line(
    run_settings: Make, dataset: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str], go: Make
) -> None:
    go(run_settings(steps=3), tmp_path)
    run, before = str(tmp_path), set(tmp_path.rglob("*"))
    for arguments, code, words in [
        ([str(tmp_path / "none"), "--step", "0"], 1, "none: holds no run (config.toml is missing); name"),
        ([run, "--step", "3"], 2, "--step: is 3, the run has done 3 steps; give 0 to 2"),
        ([run, "--step", "-1"], 2, "--step: is -1, the run has done 3 steps; give 0 to 2"),
        ([run], 2, "tamis replay: neither --step nor --spikes given; give one of them"),
        ([run, "--step", "0", "--spikes", "1"], 2, "--step and --spikes given; give one of them"),
        ([run, "--spikes", "0"], 2, "--spikes"),
        ([run, "--spikes", "1", "--out", "a.npz"], 2, "--out: is for --step"),
        ([run, "--step", "0", "--out", "batch.txt"], 2, "batch.txt: is not named .npz"),
        ([run, "--step", "0", "--out", f"{run}/no/batch.npz"], 2, "its folder does not exist"),
        ([run, "--step", "0", "--picture", f"{run}/no/batch.png"], 2, "its folder does not exist"),
        ([run, "--step", "0", "--picture", "batch.jpg"], 2, "batch.jpg: is not named .png"),
    ]:
        found, out, err = command(capsys, *arguments)
        assert (found, out, err.count("\n")) == (code, "", 1), err
        assert words in err
    assert set(tmp_path.rglob("*")) == before


def test_lines_that_are_lost_are_named(
    run_settings: Make, dataset: Dataset, tmp_path: Path, caplog: pytest.LogCaptureFixture, go: Make
) -> None:
    seen = go(run_settings(steps=4), tmp_path)
    path = tmp_path / "steps.jsonl"
    whole = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*whole[:1], *whole[2:]]))
    with pytest.raises(DataError, match=r"steps\.jsonl: has no line of step 1; copy"):
        replay(tmp_path, 1)
    assert_same(replay(tmp_path, 2).batch, seen[2])
    path.write_text("".join([*whole[:1], '{"step": 1, "epoch"\n', "7\n", *whole[2:]]))
    with pytest.raises(DataError, match=r"has no line of step 1, and line 2 is damaged"):
        replay(tmp_path, 1)
    assert "2 damaged line(s) left out" in caplog.text
    assert_same(replay(tmp_path, 3).batch, seen[3])
    line = json.loads(whole[0])
    path.write_text(json.dumps(line | {"crc": line["crc"] ^ 1}) + "\n")
    with pytest.raises(DataError, match=rf"the batch is not what training saw: crc {line['crc']}, not"):
        replay(tmp_path, 0)
    path.unlink()
    with pytest.raises(DataError, match=r"steps\.jsonl: cannot be read \(No such file"):
        replay(tmp_path, 0)


@pytest.mark.parametrize("checkpoints", [True, False], ids=["compared", "no checkpoint"])
def test_what_is_not_the_runs_own_is_named(
    checkpoints: bool, run_settings: Make, dataset: Dataset, tmp_path: Path, go: Make
) -> None:
    """Another configuration, then another dataset, in the place of the run's."""
    settings = run_settings(steps=3)
    go(settings, tmp_path)
    if not checkpoints:
        (tmp_path / "checkpoints").rename(tmp_path / "gone")
    for key, cause in (("seed", "the batch is not what training saw"), ("points", "k 40, not 32")):
        other = changed(settings, trainer={key: 40})
        (tmp_path / "config.toml").write_text(dumps(other))
        with pytest.raises(
            DataError, match=r"config\.toml is not the run's: split" if checkpoints else cause
        ):
            replay(tmp_path, 1)
    (tmp_path / "config.toml").write_text(dumps(settings))
    replay(tmp_path, 1)
    dataset.path.rename(tmp_path / "old")
    rows = {"row_order": "source"}
    new = build(DataSettings.model_validate(settings.data.model_dump() | rows), tmp_path)
    assert new.fingerprint != dataset.fingerprint
    fingerprints = f"the dataset is another: its fingerprint is {new.fingerprint}, the run's was"
    with pytest.raises(DataError, match=fingerprints if checkpoints else "is not what training saw: crc"):
        replay(tmp_path, 1)
