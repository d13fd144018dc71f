"""The commands `tamis ...` on the folder of a run. Each imports what it needs when it runs."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Annotated, Literal

import typer

from .cli_end import end, tell_progress
from .errors import UsageError

runs = typer.Typer()

Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run; it may be going on.")]


@runs.command(epilog="Example: tamis replay runs/first --step 120 --picture batch.png")
def replay(
    run: Run,
    step: Annotated[
        int | None, typer.Option(metavar="N", help="Make the batch of this step again, to the bit.")
    ] = None,
    spikes: Annotated[
        int | None,
        typer.Option(
            metavar="COUNT",
            min=1,
            help="List the steps whose loss or gradient stands out, and those skipped.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="NPZ", help="Write the batch: its columns, mask, ids and weight."),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(metavar="PNG", help="Draw the clouds of the batch, a panel each.")
    ] = None,
) -> None:
    """The samples of a step, from plan and shards alone; or the steps behind which to look for samples."""
    from .pipelines.picture import check_picture
    from .trainer.replays.replay import Replay, check_out, save
    from .trainer.replays.told import draw, standing_out, told

    if (step is None) == (spikes is None):
        given = "neither --step nor --spikes" if step is None else "--step and --spikes"
        raise UsageError("tamis replay", f"{given} given", "give one of them")
    if spikes is not None and (out or picture):
        raise UsageError("--out" if out else "--picture", "is for --step", "give the step, or leave it out")
    if out:
        check_out(out)
    if picture:
        check_picture(picture)
    signal.signal(signal.SIGTERM, end)
    with Replay(run) as opened:
        if spikes is not None:
            typer.echo(standing_out(opened, spikes))
            return
        assert step is not None
        found = opened.step(step)
        typer.echo(told(found, opened.settings))
        if out:
            save(found.batch, out)
            typer.echo(f"\n{out}: the batch of step {step}")
        if picture:
            typer.echo(f"\n{draw(found, opened, picture)}")


@runs.command("eval", epilog="Example: tamis eval runs/first --split val")
def evaluate(
    run: Run,
    step: Annotated[
        int | None, typer.Option(metavar="N", help="The checkpoint after N steps. Default: the last.")
    ] = None,
    split: Annotated[Literal["test", "val"], typer.Option(help="What it is judged on.")] = "test",
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where eval.json and predictions.arrow go. Default: RUN/eval."),
    ] = None,
) -> None:
    """Judge a checkpoint as the report does, in one process, whatever layout wrote it."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as a rank has: then sums are added up in the same order
    from .trainer.eval_run import evaluate as judged
    from .trainer.summary import learned

    tell_progress()
    signal.signal(signal.SIGTERM, end)
    found = judged(run, step=step, split=split, out=out)
    typer.echo(f"after {found['step']} steps")
    for line in learned(found["scores"], split):
        typer.echo(line)


@runs.command(epilog="Example: tamis export runs/first weights.safetensors")
def export(
    run: Run,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What to write: .safetensors.")],
    step: Annotated[
        int | None, typer.Option(metavar="N", help="The checkpoint after N steps. Default: the last.")
    ] = None,
) -> None:
    """The weights of a checkpoint, whole and in float32, whatever layout wrote it."""
    from .trainer.checkpoints.export_weights import export as write

    signal.signal(signal.SIGTERM, end)
    typer.echo(write(run, file, step))
