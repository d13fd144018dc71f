"""The DALI graph of torch functions, run over tensors of the CPU: only the device is another on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tamis.errors import UsageError
from tamis.pipelines.ops import (
    TABLE,
    Columns,
    FarthestSettings,
    FlipSettings,
    FunctionSettings,
    JitterSettings,
    NormaliseSettings,
    Operator,
    OperatorSettings,
    RandomSettings,
    RotateSettings,
    ScaleSettings,
    VoxelSettings,
)
from tamis.pipelines.records import Field
from tamis.pipelines.run_dali_gpu import DeviceGraph
from tamis.pipelines.run_threads import Threads, ThreadsEngine
from tamis.samplers import draw
from tamis.samplers.fields import Kind

pytest.importorskip("nvidia.dali")

FIELDS = {
    "xyz": Field(np.dtype("f4"), 3, "point"),
    "normal": Field(np.dtype("f4"), 3, "vector"),
    "label": Field(np.dtype("i4"), 1, "class"),
    **{
        code: Field(np.dtype(code), 1, "none")
        for code in ("?", "u1", "i2", "u2", "u4", "u8", "i8", "f8", "f2")
    },
}
KINDS: dict[str, Kind] = {name: field.kind for name, field in FIELDS.items()}
MOVES: list[OperatorSettings] = [
    RotateSettings(),
    FlipSettings(),
    ScaleSettings(low=0.5, high=2.0),
    JitterSettings(sigma=0.1, clip=0.2),
]


def cloud(n: int, seed: int) -> Columns:
    rng = np.random.default_rng(seed)
    return {
        name: (rng.normal(size=n * f.width) * 9).astype(f.dtype).reshape(f.shape(n))
        for name, f in FIELDS.items()
    }


def key(i: int, operator: Operator) -> int:
    return draw.key(3, 0, i, operator.place)


def operators(*graph: OperatorSettings) -> list[Operator]:
    return [Operator(place, one) for place, one in enumerate(graph)]


@pytest.mark.filterwarnings("ignore:.*cannot be represented|.*invalid value encountered in cast")
@pytest.mark.parametrize(
    "graph", [[*MOVES, FarthestSettings()], [RandomSettings(), *MOVES], MOVES[:1]], ids=str
)
def test_the_pipeline_gives_the_bits_of_the_threads(graph: list[OperatorSettings]) -> None:
    threads = Threads(1)
    wanted_of = ThreadsEngine(threads, operators(*graph), KINDS)
    on_device = DeviceGraph(operators(*graph), KINDS, FIELDS, None)
    found = []
    batches = [[cloud(n, n) for n in sizes] for sizes in ([0, 1, 1000, 4096], [7], [0, 0], [50] * 6)]
    for clouds in batches:
        found.append(on_device.run(clouds, key, 128))
    for clouds, tensors in zip(batches, found, strict=True):  # all are held until here
        wanted_of.run(clouds, key, 128)
        for a, b in zip(tensors, clouds, strict=True):
            assert [*a] == [*b]
            for name, values in b.items():
                assert isinstance(a[name], torch.Tensor)
                assert a[name].numpy().dtype == values.dtype
                assert a[name].numpy().shape == values.shape
                assert a[name].numpy().tobytes() == values.tobytes(), name
    on_device.close()


def test_one_column_alone_and_an_empty_batch() -> None:
    fields = {"xyz": FIELDS["xyz"]}
    graph = DeviceGraph(operators(NormaliseSettings()), {"xyz": "point"}, fields, None)
    assert graph.run([], key, None) == []
    (made,) = graph.run([{"xyz": cloud(9, 1)["xyz"]}], key, None)
    assert made["xyz"].norm(dim=1).max().item() == pytest.approx(1)


def test_what_no_device_takes_is_refused() -> None:
    for operator in (VoxelSettings(size=1.0), FunctionSettings(function="a:b")):
        with pytest.raises(
            UsageError, match=f"{operator.kind} does not run on a device; let the loader's graph"
        ):
            DeviceGraph(operators(MOVES[0], operator), KINDS, FIELDS, None)
    for code in ("M8[s]", ">f4"):
        fields = {**FIELDS, "odd": Field(np.dtype(code), 1, "none")}
        with pytest.raises(UsageError, match=r"column 'odd' has dtype (datetime64\[s\]|>f4), which torch"):
            DeviceGraph(operators(MOVES[0]), {**KINDS, "odd": "none"}, fields, None)


def test_an_operator_s_error_comes_out_as_it_was_and_the_next_batch_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = DeviceGraph(operators(FarthestSettings()), KINDS, FIELDS, None)
    bad = cloud(9, 1)
    bad["xyz"][3] = np.nan
    with pytest.raises(UsageError, match="not finite"):
        graph.run([cloud(5, 1), bad], key, 4)
    assert len(graph.run([cloud(5, 1)], key, 4)[0]["xyz"]) == 4

    def refuse(clouds: Any, calls: Any) -> Any:
        raise ZeroDivisionError("here")

    monkeypatch.setitem(TABLE, ("farthest", "device"), refuse)
    with pytest.raises(ZeroDivisionError, match="here"):
        graph.run([cloud(5, 1)], key, 4)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_pipeline_for_one_says_so() -> None:
    graph = DeviceGraph(operators(*MOVES), KINDS, FIELDS, 0)
    with pytest.raises(UsageError, match="DALI cannot build the graph"):
        graph.run([cloud(5, 1)], key, 4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_bits_of_the_threads() -> None:
    graph = [*MOVES, FarthestSettings()]
    threads = Threads(1)
    on_device = DeviceGraph(operators(*graph), KINDS, FIELDS, 0)
    for sizes in ([0, 1, 1000, 4096], [50] * 6):
        clouds = [cloud(n, n) for n in sizes]
        found = on_device.run(clouds, key, 128)
        ThreadsEngine(threads, operators(*graph), KINDS).run(clouds, key, 128)
        for a, b in zip(found, clouds, strict=True):
            for name, values in b.items():
                assert a[name].is_cuda
                assert a[name].cpu().numpy().tobytes() == values.tobytes(), name
