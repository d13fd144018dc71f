"""The commands `tamis bench ...`. Each imports what it needs when it runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from .cli_end import tell_progress

bench = typer.Typer(help="Benchmarks against other libraries.")


def _writable(file: Path | None) -> Path | None:
    """Refuse a file that cannot be written before the work for it is done."""
    if file is not None:
        from .files import prepare

        prepare(file)
    return file


Json = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Write every row to this file.", callback=_writable),
]


@bench.command(epilog="Example: tamis bench loader --json loader.json")
def loader(
    json: Json = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only", metavar="NAME", help="Measure one loader; may be repeated. FILE keeps others."
        ),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", metavar="DIR", help="Keep the clouds in DIR for another run.")
    ] = None,
    envs: Annotated[
        Path | None, typer.Option("--envs", metavar="DIR", help="Where loaders not installed here are put.")
    ] = None,
) -> None:
    """Loaders on the same clouds: GB/s, first batch, CPU and memory. Takes a quarter of an hour and 12 GB."""
    from tempfile import TemporaryDirectory

    from .bench.compare import render
    from .bench.envs import DEFAULT
    from .bench.loader import run

    tell_progress()
    with TemporaryDirectory(prefix="tamis-bench-") as temporary:
        report = run(folder or Path(temporary), envs or DEFAULT.expanduser(), only=only or (), out=json)
    typer.echo(render(report))


@bench.command("trainer", epilog="Example: tamis bench trainer --json trainer.json")
def bench_trainer(
    json: Json = None,
) -> None:
    """The training loop beside a plain one, Lightning, accelerate, HF Trainer; two ranks beside one."""
    from .bench.trainer import render, run

    tell_progress()
    typer.echo(render(run(json)))


@bench.command("samplers", epilog="Example: tamis bench samplers --json samplers.json")
def bench_samplers(
    json: Json = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A first look: 10,000 points, few rounds, no verdict.")
    ] = False,
) -> None:
    """Samplers beside fpsample, Open3D, numpy, pandas and polars, on the same clouds in one run."""
    from .bench.sampler_table import render
    from .bench.samplers import FULL, QUICK, run

    tell_progress()
    typer.echo(render(run(json, QUICK if quick else FULL)))


@bench.command("quality", epilog="Example: tamis bench quality --data scans --json quality.json")
def bench_quality(
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="DIR", help="Where the scans are. Default: $TAMIS_DATA."),
    ] = None,
    json: Json = None,
) -> None:
    """What each sampler keeps of real scans: coverage, classes, registration. Needs Open3D."""
    from .bench.quality import VARIABLE, run
    from .bench.quality_table import render

    tell_progress()
    given = data or os.environ.get(VARIABLE)
    typer.echo(render(run(Path(given) if given else None, json)))


@bench.command("build", epilog="Example: tamis bench build --data scans --json build.json")
def bench_build(
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="DIR", help="Where the scans are. Default: $TAMIS_DATA."),
    ] = None,
    copies: Annotated[
        int | None,
        typer.Option(metavar="N", help="Copies of each file. Default: ten million points in all.", min=1),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", metavar="DIR", help="Where to write. Default: a temporary one.")
    ] = None,
    json: Json = None,
) -> None:
    """The build beside decoding alone and a script of laspy and numpy. Takes some minutes and 2 GB."""
    from tempfile import TemporaryDirectory

    from .bench.bench_build import run
    from .bench.build_table import render

    tell_progress()
    with TemporaryDirectory(prefix="tamis-bench-", dir=folder) as temporary:
        typer.echo(render(run(Path(temporary), data, copies=copies, out=json)))


@bench.command("files", epilog="Example: tamis bench files scans --json files.json")
def bench_files(
    folder: Annotated[
        Path | None, typer.Argument(metavar="FOLDER", help="Where the files are. Default: $TAMIS_DATA.")
    ] = None,
    json: Json = None,
) -> None:
    """Every file of a folder, and files as users reported them: built and compared, or refused, and why."""
    from .bench.every_file import render, run, unexpected
    from .errors import DataError

    tell_progress()
    report = run(folder, json)
    typer.echo(render(report))
    if found := unexpected(report):
        raise DataError(
            folder or "tamis bench files", f"{len(found)} not as expected, first {found[0]}", "see the table"
        )
