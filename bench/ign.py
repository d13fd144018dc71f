"""The labelled aerial scans on layouts, with a ratio that rises, in precisions: `python -m tamis.bench.ign`.

Needs TAMIS_DATA, as `tamis train ign` does. Runs are whole commands, one after the other where they use two
processes, two at a time where they use one; seeds are paired.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean
from typing import Any

STEPS = 1600
_THIRDS = [STEPS // 3, 2 * STEPS // 3]
RISING = f'{{kind="steps", start=0.25, end=1.0, steps={STEPS}, milestones={_THIRDS}}}'
# A third of the steps each at a quarter, at half and at all of the points: 7/12 of the points of full steps.
EQUAL = round(STEPS * 7 / 12)

LAYOUTS: dict[str, list[str]] = {
    "one process": [],
    "dp 2": ["layout.dp=2"],
    "tp 2": ["layout.tp=2"],
    "pp 2": ["layout.pp=2"],
}
RATIOS: dict[str, list[str]] = {
    "full": [],
    "rising": [f"loader.ratio={RISING}"],
    "fewer full steps": [f"trainer.steps={EQUAL}"],
}
PRECISIONS: dict[str, list[str]] = {
    precision: [f"trainer.precision={precision}"] for precision in ("fp32", "bf16", "fp16")
}
STUDIES = {"layouts": LAYOUTS, "ratios": RATIOS, "precisions": PRECISIONS}


def run(folder: Path, name: str, seed: int, overrides: Sequence[str], steps: int) -> dict[str, Any]:
    """The report of one training."""
    out = folder / f"{name.replace(' ', '-')}-{seed}"
    sets = [f"trainer.steps={steps}", *overrides, f"trainer.seed={seed}", f"data.path={folder / 'data'}"]
    if name in PRECISIONS:  # without 16-bit units torch's own products take six times as long
        command = [sys.executable, "-m", "tamis.bench.rounded", "ign", str(out), *sets]
    else:
        command = [sys.executable, "-m", "tamis", "train", "ign", "--out", str(out)]
        command += [part for one in sets for part in ("--set", one)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise SystemExit(f"{name}, seed {seed}: {done.stderr.strip()}")
    report: dict[str, Any] = json.loads((out / "report.json").read_text())
    sys.stderr.write(f"{name}, seed {seed}: accuracy {report['eval']['accuracy']:.4f}\n")
    return report


def study(
    folder: Path, kinds: Mapping[str, Sequence[str]], seeds: int, steps: int
) -> dict[str, list[dict[str, Any]]]:
    """Reports of each kind, by seed."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name, overrides in kinds.items():
        alone = not any(one.startswith("layout.") for one in overrides)
        with ThreadPoolExecutor(2 if alone else 1) as pool:
            found[name] = list(
                pool.map(lambda seed, n=name, o=overrides: run(folder, n, seed, o, steps), range(seeds))
            )
    return found


def table(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Means over seeds; differences are from the first kind, seed by seed."""
    first = next(iter(found))
    lines = [
        "| | accuracy | difference, points | mean IoU | million points | MB | training CPU s | wall s |",
        "|:--|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, reports in found.items():
        accuracy = [r["eval"]["accuracy"] for r in reports]
        apart = [100 * (a - b["eval"]["accuracy"]) for a, b in zip(accuracy, found[first], strict=True)]
        levels = [level for r in reports for level in r["levels"]]
        points = sum(level["rows"] for level in levels)
        each = len(reports)
        cells = [
            f"{mean(accuracy):.4f}",
            f"{mean(apart):+.2f} ({', '.join(f'{a:+.2f}' for a in apart)})",
            f"{mean(r['eval']['mean_iou'] for r in reports):.4f}",
            f"{points / each / 1e6:.2f}",
            f"{sum(level['bytes'] for level in levels) / each / 1e6:.0f}",
            f"{mean(r['train_cpu_s'] for r in reports):.0f}",
            f"{mean(r['train_wall_s'] for r in reports):.0f}",
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=list(STUDIES))
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=STEPS)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        built = folder / "build"
        subprocess.run(
            [sys.executable, "-m", "tamis", "build", "ign", "--out", str(built)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        (built / "dataset").rename(folder / "data")
        print(table(study(folder, STUDIES[asked.what], asked.seeds, asked.steps)))


if __name__ == "__main__":
    main()
