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

from .errors import DataError, TamisError, system_error

if TYPE_CHECKING:
    from rich.console import Console

    from .pipelines.sample import Method
    from .trainer.settings import Settings

INTERRUPTED = 130  # what typer makes of Ctrl-C
CONTINUED = ("build", "train")  # these go on where they were

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


bench = typer.Typer(help="Benchmarks against other libraries.")
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
def build(config: Config, out: Out = None, overrides: Overrides = None) -> None:
    """Raw files to a sampled, checked, sharded dataset in DIR/dataset."""
    from .metrics import BUILD, Meter, limiting_stage, render, stage_rows
    from .pipelines.build import build as build_dataset
    from .pipelines.inspect import inspect as describe

    _tell_how_far_it_is()
    settings, folder = _settings(config, out, overrides)
    meter = Meter(BUILD)
    dataset = build_dataset(settings.data, folder, meter)
    typer.echo(describe(dataset.path))
    rows = stage_rows(BUILD, meter.table[None], time.perf_counter() - meter.started_s)
    if rows:
        typer.echo(render(rows, limiting_stage(rows)))


@app.command(epilog="Example: tamis inspect runs/first")
def inspect(path: Annotated[Path, typer.Argument(help="A dataset, a run, or a raw scan.")]) -> None:
    """What a dataset or a raw scan holds."""
    from .pipelines.inspect import inspect as describe

    typer.echo(describe(path))


@app.command(epilog="Example: tamis verify runs/first")
def verify(path: Annotated[Path, typer.Argument(help="A dataset or a run.")]) -> None:
    """Check every byte of a dataset; each problem is a line with file and offset."""
    from .pipelines.verify import verify as problems_of

    problems = problems_of(path)
    for problem in problems:
        typer.echo(str(problem), err=True)
    if problems:
        raise DataError(path, f"{len(problems)} problem(s) found", "build the dataset again")
    typer.echo(f"{path}: every file is as it was written")


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
    _tell_how_far_it_is()
    settings, folder = _settings(config, out, overrides)
    run(settings, folder)


@app.command(epilog="Example: tamis sample scan.laz thin.laz --voxel 0.1")
def sample(
    file: Annotated[Path, typer.Argument(metavar="IN", help="A scan: LAS, LAZ or NPY.")],
    out: Annotated[
        Path,
        typer.Argument(
            metavar="OUT",
            help="What to write: .laz or .las (from LAS or LAZ), .npy, .npz, .arrow, .parquet. "
            "A file that is there is replaced.",
        ),
    ],
    voxel: Annotated[
        float | None,
        typer.Option(metavar="SIZE", help="A point for each voxel of this edge, in the unit of the scan."),
    ] = None,
    farthest: Annotated[
        int | None, typer.Option(metavar="N", help="N points, each the farthest from all before.")
    ] = None,
    random: Annotated[
        float | None,
        typer.Option(metavar="RATIO", help="A random share, above 0, at most 1; above 1: so many points."),
    ] = None,
    adaptive: Annotated[
        int | None, typer.Option(metavar="N", help="N points by the method that suits the scan, and why.")
    ] = None,
    pick: Annotated[
        str | None,
        typer.Option(
            metavar="PICK",
            help="What stands for a voxel: centroid (the default; fields merge by kind), first, nearest, "
            "random, center. Centroid and center are off by up to 0.0005 in a scan of 10,000, more in wider.",
        ),
    ] = None,
    reduce: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=HOW",
            help="How a voxel merges a field: majority (labels), mean, rounded, unit, first. Repeatable.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of all that is drawn.")] = 0,
) -> None:
    """Thin a scan by exactly one of --voxel, --farthest, --random and --adaptive; every field is kept."""
    from .errors import UsageError
    from .pipelines.sample import sample as thin

    given: dict[Method, float | None] = {
        "voxel": voxel,
        "farthest": farthest,
        "random": random,
        "adaptive": adaptive,
    }
    chosen = [(method, amount) for method, amount in given.items() if amount is not None]
    if len(chosen) != 1:
        named = " and ".join(f"--{method}" for method, _ in chosen) or "no method"
        raise UsageError("tamis sample", f"{named} given", f"give one of --{', --'.join(given)}")
    reductions = dict(text.partition("=")[::2] for text in reduce or [])
    signal.signal(signal.SIGTERM, _end)
    typer.echo(thin(file, out, *chosen[0], pick=pick, reduce=reductions, seed=seed))


@app.command(epilog="Example: tamis predict runs/first scan.laz -o labelled.laz")
def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A LAS or LAZ file.")],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="OUT", help="The file to write.")],
) -> None:
    """Write predicted classes onto the points of a scan; every other field stays as it is."""
    from .trainer.predict import predict as label

    _tell_how_far_it_is()
    typer.echo(label(run, file, out))


@app.command(epilog="Example: tamis config quickstart --set trainer.steps=10")
def config(config: Config, overrides: Overrides = None) -> None:
    """Print the effective configuration."""
    from .config import dumps

    settings, _ = _settings(config, None, overrides)
    typer.echo(dumps(settings), nl=False)


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

    _tell_how_far_it_is()
    with TemporaryDirectory(prefix="tamis-bench-") as temporary:
        report = run(folder or Path(temporary), envs or DEFAULT.expanduser(), only=only or (), out=json)
    typer.echo(render(report))


@bench.command("trainer", epilog="Example: tamis bench trainer --json trainer.json")
def bench_trainer(
    json: Json = None,
) -> None:
    """The training loop beside a plain one, Lightning, accelerate, HF Trainer; two ranks beside one."""
    from .bench.trainer import render, run

    _tell_how_far_it_is()
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

    _tell_how_far_it_is()
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

    _tell_how_far_it_is()
    given = data or os.environ.get(VARIABLE)
    typer.echo(render(run(Path(given) if given else None, json)))


def _settings(config: str, out: Path | None, overrides: list[str] | None) -> tuple[Settings, Path]:
    """The configuration and the folder of the run: for a run's folder, its own."""
    from .config import load
    from .trainer.settings import Settings

    settings = load(config, overrides or [], Settings)
    if out is None:
        out = Path(config) if Path(config, "config.toml").is_file() else Path("runs", settings.name)
    return settings, out


def _end(number: int, _: object) -> None:
    """On SIGTERM end as on Ctrl-C, so that no half of a file stays behind."""
    _fail("ended by SIGTERM; the same command starts over", 128 + number)


def _terminal() -> Console | None:
    """The terminal that output goes to, None where it goes elsewhere."""
    if not sys.stdout.isatty():
        return None
    from rich.console import Console

    return Console()


def _tell_how_far_it_is() -> None:
    for name in ("tamis.bench", "tamis.pipelines.build", "tamis.trainer"):
        logging.getLogger(name).setLevel(logging.INFO)


def main() -> None:
    """Run the command line: errors are one plain line on stderr; exit 1 for data, 2 for usage."""
    os.environ.setdefault("TAMIS_START", repr(time.time()))
    logging.basicConfig(format="tamis: %(message)s", level=logging.WARNING)
    try:
        code = app(args=sys.argv[1:] or ["--help"], prog_name="tamis", standalone_mode=False)
    except TamisError as error:
        _fail(str(error), error.exit_code)
    except typer.TyperException as error:
        _fail(_misuse(error), 2)
    except OSError as error:  # a full disk, a folder that may not be written
        _fail(str(system_error(error, "the system")), 1)
    if code == INTERRUPTED:
        how = "continues" if sys.argv[1] in CONTINUED else "starts over"
        _fail(f"interrupted; the same command {how}", INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


def _misuse(error: typer.TyperException) -> str:
    """What the parser has to say, with the value that it refused and the command whose help tells more."""
    text = " ".join(error.format_message().split()).rstrip(".")
    refused = getattr(error.__cause__, "errors", None)  # pydantic's, which names no value
    if refused:
        text += f", not {refused()[0]['input']!r}"
    context = getattr(error, "ctx", None)
    return f"{text}; see {context.command_path if context else f'tamis {sys.argv[1]}'} --help"


def _fail(message: str, code: int) -> None:
    print(f"tamis: {message}", file=sys.stderr)  # noqa: T201 - the one place where errors reach the user
    sys.exit(code)
