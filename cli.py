"""The command `tamis`. Each command imports what it needs when it runs, so that `--help` is immediate."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .cli_bench import bench
from .cli_datasets import datasets
from .cli_end import again, end, fail, tell_progress
from .cli_runs import runs
from .cli_scans import scans
from .errors import TamisError, system_error

if TYPE_CHECKING:
    from rich.console import Console

    from .trainer.settings import Settings

INTERRUPTED = 130  # what typer makes of Ctrl-C

app = typer.Typer(
    help="Sieve point clouds and feed them to training: raw scans to shards, batches and a trainer.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Config = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG",
        help="A TOML file, or a shipped name such as quickstart (all: configs/).",
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a key, such as trainer.lr=1e-3. May be repeated."
    ),
]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Where results go. Default: runs/NAME.")
]


app.add_typer(scans)
app.add_typer(datasets)
app.add_typer(runs)
app.add_typer(bench, name="bench")


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        from . import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.command(epilog="Example: tamis build quickstart --out runs/first")
def build(
    config: Config,
    out: Out = None,
    overrides: Overrides = None,
    update: Annotated[
        bool,
        typer.Option(
            "--update",
            help="Redo only files that were changed, added or removed since DIR/dataset was built. Needs the "
            "parts of the others: this keeps them in DIR/dataset.building, the large ones as second names.",
        ),
    ] = False,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="URL",
            help="Then push it there: s3://, gs:// or az://BUCKET/FOLDER, file:///FOLDER.",
        ),
    ] = None,
) -> None:
    """Raw files to a sampled, checked, sharded dataset in DIR/dataset. Run again to continue."""
    from .pipelines.remote import check_writable, push
    from .pipelines.watched import watched

    if to is not None:
        check_writable(to)
    settings, folder = _settings(config, out, overrides)
    terminal = _terminal()
    if not terminal:
        tell_progress()
    signal.signal(signal.SIGTERM, end)
    typer.echo(watched(settings.data, folder, terminal, update=update))
    if to is not None:
        push(folder / "dataset", to)
        typer.echo(f"{to}: the dataset is there")


@app.command(epilog="Example: tamis stream quickstart --out runs/first --steps 100")
def stream(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A configuration, a run or a dataset.")],
    steps: Annotated[int | None, typer.Option(help="Batches to read. Default: one epoch.", min=1)] = None,
    out: Out = None,
    overrides: Overrides = None,
) -> None:
    """Shards to batches as training gets them, with the stage table; live on a terminal."""
    from .config import check
    from .pipelines.dataset import Dataset
    from .trainer.settings import Settings
    from .trainer.stream import stream as read

    path = Path(config)
    if path.is_dir() and not (path / "config.toml").is_file():  # a dataset alone: read with the defaults
        dataset = Dataset(path)
        kind = "points" if dataset.schema else "tokens"
        values = {
            "name": path.resolve().name,
            "data": {"path": str(dataset.path)},
            "loader": {},
            "model": {"kind": kind},
        }
        settings, folder = check(values, Settings, overrides or [], where=config), path
    else:
        settings, folder = _settings(config, out, overrides)
    typer.echo(read(settings, settings.dataset_path(folder), steps, _terminal()))


@app.command(epilog="Example: tamis train quickstart --out runs/first --set trainer.lr=1e-3")
def train(
    config: Config,
    out: Out = None,
    overrides: Overrides = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Trace a few steps of each rank, to DIR/profile/rank-N.json.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what each rank would hold, do and send; start nothing.")
    ] = False,
) -> None:
    """The whole way: build if needed, stream, train, evaluate, report. Run again to continue."""
    from .trainer.launch import train as run
    from .trainer.profile import VARIABLE

    if dry_run:
        from .trainer.dry_run import planned_task, text

        settings, folder = _settings(config, out, overrides)
        typer.echo(text(settings, planned_task(settings, folder)))
        return
    if profile:
        os.environ[VARIABLE] = "1"  # every rank inherits it
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the tracer tells of each GPU that is not there
    tell_progress()
    settings, folder = _settings(config, out, overrides)
    signal.signal(signal.SIGTERM, end)  # while there is nothing to save
    run(settings, folder)


@app.command(epilog="Example: tamis predict runs/first scan.laz -o labelled.laz")
def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A LAS or LAZ file.")],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="OUT", help="The file to write.")],
) -> None:
    """Write predicted classes onto the points of a scan; every other field stays as it is."""
    from .trainer.predict import predict as label

    tell_progress()
    typer.echo(label(run, file, out))


@app.command(epilog="Example: tamis config quickstart --set trainer.steps=10")
def config(config: Config, overrides: Overrides = None) -> None:
    """Print the effective configuration."""
    from .config import dumps

    settings, _ = _settings(config, None, overrides)
    typer.echo(dumps(settings), nl=False)


def _settings(config: str, out: Path | None, overrides: list[str] | None) -> tuple[Settings, Path]:
    """The configuration and the folder of the run: for a run's folder, its own."""
    from .config import load
    from .trainer.settings import Settings

    settings = load(config, overrides or [], Settings)
    if out is None:
        out = Path(config) if Path(config, "config.toml").is_file() else Path("runs", settings.name)
    return settings, out


def _terminal() -> Console | None:
    """The terminal that output goes to, None where it goes elsewhere."""
    if not sys.stdout.isatty():
        return None
    from rich.console import Console

    return Console()


def main() -> None:
    """Run the command line: errors are one plain line on stderr; exit 1 for data, 2 for usage."""
    os.environ.setdefault("TAMIS_START", repr(time.time()))
    logging.basicConfig(format="tamis: %(message)s", level=logging.WARNING)
    try:
        code = app(args=sys.argv[1:] or ["--help"], prog_name="tamis", standalone_mode=False)
    except TamisError as error:
        fail(str(error), error.exit_code)
    except typer.TyperException as error:
        fail(_misuse(error), 2)
    except OSError as error:  # a full disk, a folder that may not be written
        fail(str(system_error(error, "the system")), 1)
    if code == INTERRUPTED:
        fail(f"interrupted; {again()}", INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


def _misuse(error: typer.TyperException) -> str:
    """What the parser has to say, with the value that it refused and the command whose help tells more."""
    text = " ".join(error.format_message().split()).rstrip(".")
    refused = getattr(error.__cause__, "errors", None)  # pydantic's, which names no value
    if refused:
        text += f", not {refused()[0]['input']!r}"
    context = getattr(error, "ctx", None)
    return f"{text}; see {context.command_path if context else f'tamis {sys.argv[1]}'} --help"
