from __future__ import annotations

import json
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from tamis.config import check
from tamis.errors import DataError, UsageError
from tamis.metrics import TRAIN, Meter
from tamis.pipelines.dataset import Dataset
from tamis.trainer import loop
from tamis.trainer.export import Exporter, ReportSettings, metric_name
from tamis.trainer.mesh import Mesh, alone
from tamis.trainer.window import Window

Make = Callable[..., Any]


def row(step: int, **values: Any) -> dict[str, Any]:
    stages = {"train.forward": {"busy_fraction": 0.25, "p99_s": 0.5}, "train.wait": {"starved_fraction": 0.1}}
    return {
        "step": step,
        "epoch": step // 100,
        "loss": 1 / (step + 1),
        "lr": 1e-3,
        "grad_norm": None,
        "k": 32,
        "samples_per_s": 10.5,
        "data_wait_fraction": 0.1,
        "wire_bytes": {"dp_replicate": 2**40, "tp": 7},
        "stages": stages,
        **values,
    }


def samples(text: str) -> dict[tuple[str, str], float]:
    """(metric, label's value) -> number, by the parser that belongs to Prometheus' client."""
    return {
        (sample.name, "".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


WANTED = {
    ("tamis_train_step", ""): 49,
    ("tamis_train_epoch", ""): 0,
    ("tamis_train_loss", ""): 1 / 50,
    ("tamis_train_learning_rate", ""): 1e-3,
    ("tamis_train_rows_per_sample", ""): 32,
    ("tamis_train_samples_per_second", ""): 10.5,
    ("tamis_train_data_wait_ratio", ""): 0.1,
    ("tamis_train_wire_bytes", "dp_replicate"): 2**40,
    ("tamis_train_wire_bytes", "tp"): 7,
    ("tamis_train_stage_busy_ratio", "train.forward"): 0.25,
    ("tamis_train_stage_p99_seconds", "train.forward"): 0.5,
    ("tamis_train_stage_starved_ratio", "train.wait"): 0.1,
}


def test_a_row_goes_to_json_lines_and_prometheus(tmp_path: Path) -> None:
    with Exporter(tmp_path, ReportSettings(), 0) as exporter:
        exporter.write(row(49))
        assert samples((tmp_path / "metrics.prom").read_text()) == WANTED
        exporter.write(row(99))
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [row(49), row(99)]
    assert samples((tmp_path / "metrics.prom").read_text())["tamis_train_step", ""] == 99
    assert {path.name for path in tmp_path.iterdir()} == {"metrics.jsonl", "metrics.prom"}


def test_one_row_each_so_many_steps() -> None:
    assert [step for step in range(10) if ReportSettings(every=4).due(step, 10)] == [3, 7, 9]
    for wrong in ({"every": 0}, {"prometheus_port": 0}, {"prometheus_port": 65536}, {"tensorbord": True}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            check(wrong, ReportSettings, where="c.toml")


@given(steps=st.lists(st.integers(0, 30), unique=True).map(sorted), done=st.integers(0, 31), data=st.data())
def test_a_resumed_run_goes_on_where_its_steps_do(
    steps: list[int], done: int, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What was written after the last checkpoint, and a line that a kill tore, are taken back."""
    out = tmp_path_factory.mktemp("run")
    with Exporter(out, ReportSettings(), 0) as exporter:
        for step in steps:
            exporter.write(row(step))
    path = out / "metrics.jsonl"
    whole = path.read_bytes()
    torn = whole[: data.draw(st.integers(0, len(whole)))]
    path.write_bytes(torn)
    with Exporter(out, ReportSettings(), done) as exporter:
        exporter.write(row(done))
    kept = [step for step in steps[: torn.count(b"\n")] if step < done]
    assert [json.loads(line) for line in path.read_text().splitlines()] == [row(s) for s in (*kept, done)]


@pytest.mark.parametrize("line", [b"{", b"[]", b"{}", b'{"step": null}', b"\xff"])
def test_damaged_lines_are_told_not_dropped(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(line + b'\n{"step": 1}\n')
    with pytest.raises(DataError, match=r"metrics\.jsonl: is damaged"):
        Exporter(tmp_path, ReportSettings(), 2)
    assert path.read_bytes() == line + b'\n{"step": 1}\n'


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_prometheus_asks_by_http(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    threads = threading.active_count()
    url = f"http://127.0.0.1:{port}/metrics"
    with Exporter(tmp_path, ReportSettings(prometheus_port=port), 0) as exporter:
        with urllib.request.urlopen(url) as answer:
            assert samples(answer.read().decode()) == {}, "no step yet"
        exporter.write(row(49))
        with urllib.request.urlopen(url) as answer:
            assert samples(answer.read().decode()) == WANTED
    assert threading.active_count() == threads
    with Exporter(tmp_path, ReportSettings(prometheus_port=port), 0):
        pass  # the port is free again


def test_a_port_that_is_taken_is_one_line(tmp_path: Path, taken_port: int) -> None:
    with pytest.raises(
        UsageError, match=rf"^report\.prometheus_port = {taken_port}: .*; choose another port$"
    ):
        Exporter(tmp_path, ReportSettings(prometheus_port=taken_port), 0)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("points_per_s", "tamis_train_points_per_second"),
        ("bubble_fraction", "tamis_train_bubble_ratio"),
        ("stage_p50_s", "tamis_train_stage_p50_seconds"),
        ("memory_bytes", "tamis_train_memory_bytes"),
    ],
)
def test_metric_names_have_their_unit_in_full(name: str, metric: str) -> None:
    assert metric_name(name) == metric


def test_tensorboard_holds_the_same_numbers_and_forgets_what_is_taken_back(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    settings = ReportSettings(tensorboard=True)
    with Exporter(tmp_path, settings, 0) as exporter:
        for step in (9, 19, 29):
            exporter.write(row(step))
    with Exporter(tmp_path, settings, 20) as exporter:
        exporter.write(row(29, loss=7.0))
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {
        "epoch",
        "loss",
        "lr",
        "k",
        "samples_per_s",
        "data_wait_fraction",
        "wire_bytes/dp_replicate",
        "wire_bytes/tp",
        "stages/train.forward/busy_fraction",
        "stages/train.forward/p99_s",
        "stages/train.wait/starved_fraction",
    }
    losses = [(event.step, event.value) for event in events.Scalars("loss")]
    assert losses == [(9, pytest.approx(1 / 10)), (19, pytest.approx(1 / 20)), (29, 7.0)]


def test_a_window_holds_what_was_done_since_the_last() -> None:
    meter = Meter(TRAIN)
    meter.busy("train.forward", 1000.0, items=99)  # before: warming up
    window = Window(meter)
    for _ in range(4):
        meter.busy("train.forward", 0.25)
        meter.add("train.wait", wait_in_s=0.05)
        window.count(samples=8, points=256)
        time.sleep(0.001)
    first = window.take()
    wall_s = 4 / first["steps_per_s"]
    assert 0.004 <= wall_s < 60
    assert first["samples_per_s"] == pytest.approx(32 / wall_s)
    assert first["points_per_s"] == pytest.approx(1024 / wall_s)
    forward = first["stages"]["train.forward"]
    assert forward["busy_fraction"] == pytest.approx(1 / wall_s)
    assert forward["p50_s"] == pytest.approx(0.25, rel=0.1)
    assert first["data_wait_fraction"] == pytest.approx(0.2 / wall_s)
    assert first["ranks"]["0"]["forward_fraction"] == pytest.approx(1 / wall_s)
    assert first["ranks"]["0"]["wait_fraction"] == pytest.approx(0.2 / wall_s)
    assert first["ranks"]["0"]["memory_bytes"] > 1e6
    window.count(samples=8)
    second = window.take()
    assert second["stages"] == {}
    assert second["data_wait_fraction"] == second["bubble_fraction"] == 0
    assert "points_per_s" not in second


def test_a_window_of_several_ranks_tells_each(tmp_path: Path) -> None:
    meters = [Meter(TRAIN), Meter(TRAIN)]
    windows = [Window(meter) for meter in meters]
    meters[0].busy("train.forward", 1.0)
    meters[1].busy("train.forward", 3.0)
    meters[1].add("train.sync", wait_in_s=2.0)
    parts: list[Any] = []

    def kept(part: Any) -> list[Any]:
        parts.append(part)
        return [part]

    windows[1].take(kept)
    windows[0].count(samples=1)
    found = windows[0].take(lambda part: [part, *parts])
    forward = [found["ranks"][rank]["forward_fraction"] for rank in ("0", "1")]
    assert forward[1] == pytest.approx(3 * forward[0])
    assert found["stages"]["train.forward"]["busy_fraction"] == pytest.approx(2 * forward[0])
    assert found["ranks"]["1"]["sync_fraction"] == pytest.approx(2 * forward[0])
    with Exporter(tmp_path, ReportSettings(), 0) as exporter:
        exporter.write({"step": 0, **found})
    told = samples((tmp_path / "metrics.prom").read_text())
    assert told["tamis_train_rank_forward_ratio", "1"] == pytest.approx(forward[1])


def rows_of(out: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / name).read_text().splitlines()]


def test_a_run_exports_what_it_logs(run_settings: Make, dataset: Dataset, tmp_path: Path) -> None:
    settings = run_settings(checkpoint_steps=0).model_copy(update={"report": ReportSettings(every=3)})
    out = tmp_path / "run"
    out.mkdir()
    loop.run(settings, dataset, out, alone(), 0.0)
    rows, steps = rows_of(out), rows_of(out, "steps.jsonl")
    assert [found["step"] for found in rows] == [2, 5, 7]
    for found in rows:
        logged = steps[found["step"]]
        assert {key: found[key] for key in ("epoch", "loss", "lr", "grad_norm", "k")} == {
            key: logged[key] for key in ("epoch", "loss", "lr", "grad_norm", "k")
        }
        assert found["points_per_s"] == pytest.approx(32 * found["samples_per_s"])
        assert found["stages"]["train.step"]["busy_fraction"] > 0
        assert found["ranks"].keys() == {"0"}
        assert sum(share for name, share in found["ranks"]["0"].items() if name.endswith("fraction")) < 1.01
    told = samples((out / "metrics.prom").read_text())
    assert told["tamis_train_step", ""] == 7
    assert told["tamis_train_loss", ""] == steps[7]["loss"]


def test_only_the_first_of_several_ranks_exports_and_tells_of_all(
    run_settings: Make, dataset: Dataset, tmp_path: Path, run_ranks: Make
) -> None:
    settings = run_settings(checkpoint_steps=0)

    def work(mesh: Mesh) -> None:
        loop.run(settings, dataset, tmp_path, mesh, 0.0)

    run_ranks(2, work)
    (found,) = rows_of(tmp_path)
    assert found["step"] == 7
    assert found["ranks"].keys() == {"0", "1"}
    assert all(rank["forward_fraction"] > 0 for rank in found["ranks"].values())
    # Rates are of the global batch.
    whole = sum(line["samples"] for line in rows_of(tmp_path, "steps.jsonl"))
    assert found["samples_per_s"] / found["steps_per_s"] == pytest.approx(whole / 8)


def test_a_port_that_is_taken_is_told_before_the_first_step(
    run_settings: Make, dataset: Dataset, tmp_path: Path, taken_port: int
) -> None:
    settings = run_settings().model_copy(update={"report": ReportSettings(prometheus_port=taken_port)})
    with pytest.raises(UsageError, match=f"report.prometheus_port = {taken_port}"):
        loop.run(settings, dataset, tmp_path, alone(), 0.0)
    assert not (tmp_path / "checkpoints").exists()
