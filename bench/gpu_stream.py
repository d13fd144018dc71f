"""The DALI graph on a GPU: checked against the threads on the CPU bit by bit, and timed beside them.

    python bench/gpu_stream.py [DEVICE]

A minute. Without a GPU it says so, and checks the same pipeline over tensors of the CPU.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
import torch

from tamis.pipelines.ops import (
    Columns,
    FarthestSettings,
    FlipSettings,
    JitterSettings,
    NormaliseSettings,
    Operator,
    OperatorSettings,
    RandomSettings,
    RotateSettings,
    ScaleSettings,
)
from tamis.pipelines.records import Field
from tamis.pipelines.run_dali_gpu import DeviceGraph
from tamis.pipelines.run_threads import Threads, ThreadsEngine
from tamis.samplers import draw
from tamis.samplers.fields import Kind

FIELDS = {
    "xyz": Field(np.dtype("f4"), 3, "point"),
    "normal": Field(np.dtype("f4"), 3, "vector"),
    "intensity": Field(np.dtype("u2"), 1, "colour"),
    "label": Field(np.dtype("i4"), 1, "class"),
}
KINDS: dict[str, Kind] = {name: field.kind for name, field in FIELDS.items()}
OPERATORS: list[OperatorSettings] = [
    RotateSettings(),
    FlipSettings(),
    ScaleSettings(low=0.5, high=2.0),
    JitterSettings(sigma=0.01, clip=0.05),
    NormaliseSettings(),
    RandomSettings(),
    FarthestSettings(),
]
CLOSE = {"normalise": 2.0**-22}
"""How far results may be from the threads' where the bits may differ."""


def cloud(n: int, seed: int) -> Columns:
    rng = np.random.default_rng(seed)
    return {
        "xyz": rng.normal(scale=10, size=(n, 3)).astype(np.float32),
        "normal": rng.normal(size=(n, 3)).astype(np.float32),
        "intensity": rng.integers(0, 60_000, n).astype(np.uint16),
        "label": rng.integers(-1, 5, n).astype(np.int32),
    }


def key(i: int, operator: Operator) -> int:
    return draw.key(0, 0, i, operator.place)


def differing(found: list[dict[str, torch.Tensor]], wanted: list[Columns], tolerance: float) -> int:
    """Columns that are not as they should be."""
    count = 0
    for tensors, columns in zip(found, wanted, strict=True):
        for name, values in columns.items():
            got = tensors[name].cpu().numpy()
            same = (got.dtype, got.shape) == (values.dtype, values.shape) and (
                np.abs(got - values).max(initial=0) <= tolerance
                if tolerance and values.dtype.kind == "f"
                else got.tobytes() == values.tobytes()
            )
            count += not same
    return count


def check(device: int | None, threads: Threads) -> int:
    """Every operator, and all of them, over clouds of very different sizes; how many checks failed."""
    failed = 0
    for graph in [*([one] for one in OPERATORS), [o for o in OPERATORS if o.kind not in CLOSE]]:
        operators = [Operator(place, one) for place, one in enumerate(graph)]
        engine, on_device = (
            ThreadsEngine(threads, operators, KINDS),
            DeviceGraph(operators, KINDS, FIELDS, device),
        )
        wrong = 0
        for sizes in ([0, 1, 1000, 4096], [0], [500] * 9):
            clouds = [cloud(n, n + i) for i, n in enumerate(sizes)]
            found = on_device.run(clouds, key, 256)
            engine.run(clouds, key, 256)
            wrong += differing(found, clouds, CLOSE.get(graph[0].kind, 0.0))
        on_device.close()
        name = graph[0].kind if len(graph) == 1 else "all in a row"
        what = f"within {CLOSE[name]:.1e}" if name in CLOSE else "equal bits"
        print(f"  {name:14} {what if not wrong else f'{wrong} COLUMNS DIFFER'}")
        failed += bool(wrong)
    return failed


def best_s(work: Callable[[], object], device: int | None) -> float:
    """Seconds of the best of seven rounds, of which the first two warm up."""
    times = []
    for _ in range(7):
        start = time.perf_counter()
        work()
        if device is not None:
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
    return min(times[2:])


def measure(device: int | None, threads: Threads) -> None:
    """Milliseconds a batch of 32 clouds, from arrays of the host to results on the device."""
    moves: list[OperatorSettings] = [RotateSettings(), JitterSettings(sigma=0.01, clip=0.05)]
    samplers: list[OperatorSettings] = [RandomSettings(), FarthestSettings()]
    print(f"  {'points':>8} {'graph':28} {'threads ms':>11} {'device ms':>11}")
    for n in (4096, 16_384):
        clouds = [cloud(n, i) for i in range(32)]
        for sampler in samplers:
            operators = [Operator(place, one) for place, one in enumerate([*moves, sampler])]
            engine = ThreadsEngine(threads, operators, KINDS)
            on_device = DeviceGraph(operators, KINDS, FIELDS, device)
            host = best_s(lambda e=engine, c=clouds: e.run(list(c), key, 1024), None)  # type: ignore[misc]
            there = best_s(lambda d=on_device, c=clouds: d.run(c, key, 1024), device)  # type: ignore[misc]
            on_device.close()
            graph = " ".join(operator.settings.kind for operator in operators)
            print(f"  {n:8} {graph:28} {host * 1e3:11.2f} {there * 1e3:11.2f}")


def main(device: int | None) -> int:
    threads = Threads(2)
    try:
        if device is None:
            print("There is no GPU here (torch sees none): nothing is timed. Over tensors of the CPU:")
            return check(None, threads)
        print(f"GPU {device}: {torch.cuda.get_device_name(device)}, against 2 threads of the CPU")
        failed = check(device, threads)
        measure(device, threads)
        return failed
    finally:
        threads.close()


if __name__ == "__main__":
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    sys.exit(bool(main(wanted if torch.cuda.device_count() > wanted else None)))
