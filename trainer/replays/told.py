"""What `tamis replay` prints and draws: a step's samples, or the steps that stand out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UsageError
from ...pipelines.panels import Panel, panels
from ...pipelines.text import END, TOKENS, VOCABULARY
from ..model_settings import TokenSettings
from ..settings import Settings
from .replay import Origin, Replay, Replayed
from .steps import Spike

_BYTES = 200
"""Of a text that are printed."""

_CLASSES = 4  # that are named of a sample
_IDS = 8  # that are named of a step


def told(found: Replayed, settings: Settings) -> str:
    """A step as a table: what training says of it, and a line for each sample; of tokens their text."""
    line, origins = found.line, found.origins
    head = ["id", "sample", "split", "rows", "taken", "weight"]
    rows = [[f"{o.id:016x}", o.name, o.split, f"{o.rows}", f"{o.taken}", f"{o.weight:g}"] for o in origins]
    if TOKENS in found.batch.columns:
        head.append("text" if _is_text(settings) else "tokens")
        rows = [[*row, text] for row, text in zip(rows, _texts(found, settings), strict=True)]
    else:
        head += ["centre", "classes"]
        rows = [[*row, _centre(o), _classes(o)] for row, o in zip(rows, origins, strict=True)]
    about = (
        f"step {line['step']}: epoch {line['epoch']}, k {line['k']}, {len(origins)} samples, {_went(line)}"
    )
    if lost := sum(o.weight == 0 for o in origins):
        about += f", {lost} left out as damaged"
    proof = f"the sum over ids and bytes, {line['crc']}, is the one that training wrote"
    return "\n".join([about, proof, "", *table(head, rows)])


def draw(found: Replayed, opened: Replay, out: Path) -> str:
    """Draw the clouds of a batch as the model got them; what is on the picture.

    Raises UsageError where there are none.
    """
    batch, name = found.batch, opened.run.resolve().name
    if "xyz" not in batch.columns:
        raise UsageError("--picture", f"{name} learns from no clouds", "leave it out: texts are printed")
    assert batch.mask is not None
    clouds = []
    for i, origin in enumerate(found.origins):
        rows = batch.mask[i]
        label = batch.columns["label"][i][rows] if "label" in batch.columns else None
        title = f"{origin.id:016x}" + ("" if origin.weight else " (left out)")
        clouds.append(Panel(title, origin.name, batch.columns["xyz"][i][rows], label))
    return panels(f"{name}, step {batch.step}", clouds, opened.dataset.classes, out)


def standing_out(opened: Replay, most: int) -> str:
    """The ``most`` steps that stand out the most, and as many that were skipped, with the ids of each."""
    steps = opened.steps
    spikes, skipped = {spike.step: spike for spike in steps.spikes(most)}, steps.skipped()
    rows, seen = [], Counter[int]()
    for step in dict.fromkeys([*spikes, *skipped[:most]]):
        ids = opened.step(step).batch.ids.tolist()
        seen.update(ids)
        named = " ".join(f"{id:016x}" for id in ids[:_IDS])
        more = f" and {len(ids) - _IDS} more" if len(ids) > _IDS else ""
        line = steps.lines[step]
        why = _stands(spikes[step]) if step in spikes else ["", ""]
        rows.append([f"{step}", f"{line['k']}", *why, line.get("skipped") or "", named + more])
    text = [f"{steps.count} steps, {len(skipped)} skipped"]
    if rows:
        text += ["", *table(["step", "k", "stands out", "by", "skipped", "samples"], rows)]
    often = [f"{id:016x} ({times})" for id, times in seen.most_common(_IDS) if times > 1]
    if often:
        text += ["", f"in more than one of these: {', '.join(often)}"]
    return "\n".join(text)


def _stands(spike: Spike) -> list[str]:
    """How far a step stands out, and by what."""
    if math.isinf(spike.times):
        return ["not finite", spike.figure]
    about = f"{spike.figure} {_figure(spike.value)}, around it {_figure(spike.median)}"
    return [f"{spike.times:.1f} times", about]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of columns, each as wide as its longest cell."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _went(line: dict[str, Any]) -> str:
    """What came of a step."""
    told = f"loss {_figure(line['loss'])}, gradient norm {_figure(line['grad_norm'])}"
    told += ", recomputed in fp32" if line.get("recomputed") else ""
    return told + (f", skipped: {line['skipped']}" if line.get("skipped") else "")


def _figure(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.5g}"


def _centre(origin: Origin) -> str:
    return " ".join(f"{value:.2f}" for value in origin.centre)


def _classes(origin: Origin) -> str:
    named = [f"{name} {share:.0%}" for name, share in origin.classes.items()]
    if len(named) > _CLASSES:
        named[_CLASSES:] = [f"{len(named) - _CLASSES} more"]
    return ", ".join(named) or "-"


def _is_text(settings: Settings) -> bool:
    """Whether tokens are bytes, as a dataset of texts has them."""
    model = settings.model
    return isinstance(model, TokenSettings) and (model.vocabulary, model.end) == (VOCABULARY, END)


def _texts(found: Replayed, settings: Settings) -> Iterator[str]:
    """The beginning of each sample's tokens: text in which what cannot be printed is escaped, or numbers."""
    assert found.batch.mask is not None
    for tokens, mask in zip(found.batch.columns[TOKENS], found.batch.mask, strict=True):
        some = tokens[mask][:_BYTES]
        if not _is_text(settings):
            yield " ".join(map(str, some[: _BYTES // 4].tolist()))
            continue
        documents = np.split(some, np.flatnonzero(some == END) + 1)
        text = "<end>".join(
            d[d != END].astype(np.uint8).tobytes().decode(errors="replace") for d in documents
        )
        yield "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
