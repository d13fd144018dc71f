"""One set of clouds: every loader's files, every setting measured, and those that count measured again."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import DataError
from . import clouds, jobs, peers
from .clouds import Shape
from .compare import BARE, DATALOADER, OURS, Row, best, best_peer
from .envs import python_for

FIGURES = ("batch_bytes", "gb_s", "samples_s", "first_s", "cpu_ms", "others_ms", "rss_mb")

_RIVALS = 2  # peers of a delivery that are measured again


@dataclass(frozen=True)
class Effort:
    """How long each setting is measured; ``rounds``: how often those that count most are, in turn."""

    epochs: int = 3
    least_s: float = 1.0
    rounds: int = 3
    timeout_s: float = 180.0


@dataclass
class Sweep:
    """Loaders, named by their files in `peers`, over one set of clouds in ``folder``.

    ``versions``: distribution -> version of what was measured.
    """

    shape: Shape
    folder: Path
    envs: Path
    effort: Effort
    versions: dict[str, str] = field(default_factory=dict)
    _pythons: dict[str, str] = field(default_factory=dict)

    def measure(self, files: Sequence[str], add: Callable[[Row], None]) -> None:
        """Measure every setting of every loader; ``add`` is given each row as soon as it is there.

        A loader that could not be made ready is one failed row.
        """
        clouds.write(self.shape, self.folder / peers.STORED)
        reasons = self._prepare(files)
        for file in files:
            swept = peers.load(file).settings(self.shape.name)
            if reasons[file]:
                add(self._row(file, swept[0][0], {}) | {"failed": reasons[file]})
                continue
            for delivery, settings in swept:
                add(self._row(file, delivery, settings) | self._answer(file, settings))

    def again(self, rows: list[Row]) -> None:
        """Measure the best of ours and of the peers' in turn; their rows get the medians of all rounds."""
        chosen = self._contenders(rows)
        found = [[row] for row in chosen]
        for _ in range(self.effort.rounds - 1):
            for row, rounds in zip(chosen, found, strict=True):
                answer = self._answer(self._file(row["loader"]), row["settings"])
                if "failed" not in answer:
                    rounds.append(answer)
        for row, rounds in zip(chosen, found, strict=True):
            medians = {name: statistics.median(r[name] for r in rounds) for name in FIGURES}
            row.update(medians, rounds=len(rounds))

    def start(
        self, file: str, settings: dict[str, Any], least_s: float, environment: dict[str, str] | None = None
    ) -> jobs.Running:
        """Start to measure one setting of a loader that is ready."""
        job = self._job(file, "measure") | {
            "settings": settings,
            "epochs": self.effort.epochs,
            "least_s": least_s,
        }
        return jobs.start(self._pythons[file], job, self.envs, environment)

    def _prepare(self, files: Sequence[str]) -> dict[str, str]:
        """Have the interpreters and files of loaders ready, two at a time; for each why not, or nothing."""
        formats: dict[str, list[str]] = {}
        for file in files:
            formats.setdefault(peers.load(file).FORMAT, []).append(file)
        with ThreadPoolExecutor(2) as pool:
            found = pool.map(lambda group: [(file, self._ready(file)) for file in group], formats.values())
            return dict(pair for group in found for pair in group)

    def _ready(self, file: str) -> str:
        peer = peers.load(file)
        folder = self.folder / peer.FORMAT
        try:
            self._pythons[file] = python = python_for(peer, self.envs)
            if peer.FORMAT == peers.STORED or (folder / f".{file}").is_file():
                return ""
            if not list(folder.glob(".*")):  # what another run left half-written
                shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(exist_ok=True)
            jobs.start(python, self._job(file, "write"), self.envs).answer(self.effort.timeout_s)
            (folder / f".{file}").touch()
        except (DataError, jobs.Failed) as error:
            return str(error)
        return ""

    def _answer(self, file: str, settings: dict[str, Any]) -> Row:
        try:
            answer = self.start(file, settings, self.effort.least_s).answer(self.effort.timeout_s)
        except jobs.Failed as error:
            return {"failed": str(error)}
        self.versions |= answer.pop("versions")
        return answer

    def _contenders(self, rows: list[Row]) -> list[Row]:
        here = {peers.load(file).NAME for file in self._pythons}  # the report may have others, from before
        mine = [row for row in rows if row["set"] == self.shape.name and row["loader"] in here]
        found = [best(mine, loader=BARE)]
        for delivery in ("process", "in-process"):
            found.append(best(mine, loader=OURS, delivery=delivery))
            rivals = list(mine)
            for _ in range(_RIVALS):
                rival = best_peer(rivals, delivery=delivery)
                found.append(rival)
                rivals = [row for row in rivals if rival and row["loader"] != rival["loader"]]
        for verify in ("never", "always"):
            found.append(best(mine, loader=OURS, delivery="in-process", verify=verify))
        for loader in (OURS, DATALOADER):
            found.append(best(mine, "cpu_ms", loader=loader, delivery="process"))
        found.append(best(mine, loader=DATALOADER, delivery="process", collate="default"))
        return list({id(row): row for row in found if row}.values())

    def _row(self, file: str, delivery: peers.Delivery, settings: dict[str, Any]) -> Row:
        return {
            "loader": peers.load(file).NAME,
            "set": self.shape.name,
            "delivery": delivery,
            "settings": settings,
        }

    def _job(self, file: str, task: str) -> dict[str, Any]:
        folder = self.folder / peers.load(file).FORMAT
        return {"task": task, "peer": file, "clouds": str(self.folder / peers.STORED), "folder": str(folder)}

    def _file(self, name: str) -> str:
        return {peers.load(file).NAME: file for file in self._pythons}[name]
