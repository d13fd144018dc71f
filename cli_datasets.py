"""The commands `tamis subset` and `merge`: datasets of datasets. Each imports what it needs when it runs."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from .cli_end import end

datasets = typer.Typer()

Out = Annotated[Path, typer.Argument(metavar="OUT", help="Where to: the dataset will be OUT/dataset.")]


@datasets.command(epilog="Example: tamis subset runs/first small --split train --share 0.1")
def subset(
    path: Annotated[Path, typer.Argument(metavar="DATASET", help="A dataset or a run.")],
    out: Out,
    split: Annotated[str | None, typer.Option(metavar="SPLIT", help="Of this split only.")] = None,
    where: Annotated[
        str | None,
        typer.Option(
            metavar="CONDITION", help="As in data.where: 'points > 1000 and label_share(6) > 0.01'."
        ),
    ] = None,
    sources: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Of raw files with such names, as 'north/*' ('*' matches '/' too); '!' before it: of all "
            "others. Repeatable.",
        ),
    ] = None,
    fields: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Columns and annotations to keep beside xyz, label and row."),
    ] = None,
    share: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="Draw so much of what is left of each split: above 0, at most 1."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the draw.")] = 0,
) -> None:
    """Some samples, or fields, of a dataset to a dataset of its own. Needs no raw files."""
    from .pipelines.rewrite import told
    from .pipelines.subset import subset as write

    signal.signal(signal.SIGTERM, end)
    names = None if fields is None else [name.strip() for name in fields.split(",") if name.strip()]
    dataset = write(
        path, out, split=split, where=where, sources=sources or [], fields=names, share=share, seed=seed
    )
    typer.echo(f"{dataset.path}: {told(dataset)}")


@datasets.command(epilog="Example: tamis merge runs/north runs/south both")
def merge(
    paths: Annotated[list[Path], typer.Argument(metavar="DATASET...", help="Datasets or runs, two or more.")],
    out: Out,
) -> None:
    """Datasets of equal columns and classes as one, each sample once. Needs no raw files."""
    from .pipelines.merge import merge as write
    from .pipelines.rewrite import told

    signal.signal(signal.SIGTERM, end)
    dataset = write(paths, out)
    typer.echo(f"{dataset.path}: {told(dataset)}")
