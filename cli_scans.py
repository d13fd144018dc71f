"""The commands `tamis ...` on scans and datasets. Each imports what it needs when it runs."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from .cli_end import end, tell_progress
from .errors import DataError, UsageError

if TYPE_CHECKING:
    from .pipelines.sample import Method

scans = typer.Typer()


@scans.command(epilog="Example: tamis inspect scan.laz --picture scan.png --html scan.html")
def inspect(
    path: Annotated[Path, typer.Argument(help="A dataset, a run, or a raw scan.")],
    picture: Annotated[
        Path | None,
        typer.Option(metavar="PNG", help="Draw it before and after thinning, from the top and the side."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="HTML", help="Write a 3-D view, a page that needs no network.")
    ] = None,
    color: Annotated[
        str | None,
        typer.Option(metavar="BY", help="height, class or rgb. Default: class, else rgb, else height."),
    ] = None,
    voxel: Annotated[
        float | None,
        typer.Option(metavar="SIZE", help="Thin by voxels of this edge. Default: to 5,000 points."),
    ] = None,
) -> None:
    """What a dataset or a raw scan holds, and what is odd about it; as text, as a picture, as a page."""
    from .pipelines.inspect import look

    for text in look(path, picture, html, color=color, voxel=voxel):
        typer.echo(text)


@scans.command(epilog="Example: tamis verify runs/first")
def verify(
    path: Annotated[str, typer.Argument(help="A dataset, a run, or the URL of a dataset.")],
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Make damaged files of a built dataset again from the raw files."),
    ] = False,
    root: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="With --repair: where the raw files are. Default: $TAMIS_DATA."),
    ] = None,
) -> None:
    """Check every byte of a dataset; each problem is a line with file and offset."""
    from .pipelines.manifest import NAME
    from .pipelines.remote import check, is_url
    from .pipelines.verify import verify as problems_of

    if root is not None and not repair:
        raise UsageError("--root", "is for --repair", "add --repair, or leave it out")
    if repair and is_url(path):
        raise UsageError("--repair", "is for a dataset on a disk", "pull it, repair it, and push it again")
    if repair:
        from .pipelines.repair import repair as mended

        tell_progress()
        signal.signal(signal.SIGTERM, end)
        for name in mended(Path(path), root):
            typer.echo(f"{name}: made again")
    if is_url(path):
        check(path)
    elif problems := problems_of(Path(path)):
        for problem in problems:
            typer.echo(str(problem), err=True)
        fix = "remove what is not part of it" if repair else "mend it with --repair, or build it again"
        if any(problem.file == NAME for problem in problems):  # it alone says what the others should be
            fix = f"copy {NAME} from where it is whole, or build it again: --repair needs it"
        raise DataError(path, f"{len(problems)} problem(s) found", fix)
    typer.echo(f"{path}: every file is as it was written")


@scans.command(epilog="Example: tamis sample scan.laz thin.laz --voxel 0.1")
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
    signal.signal(signal.SIGTERM, end)
    typer.echo(thin(file, out, *chosen[0], pick=pick, reduce=reductions, seed=seed))


@scans.command(epilog="Example: tamis convert runs/first tars --shard-mb 256")
def convert(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="IN", help="A dataset or a run, a tar or TFRecord file, or a folder of one kind of them."
        ),
    ],
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="The folder to write; it must be empty, or not be there.")
    ],
    to: Annotated[
        Literal["dataset", "webdataset", "tfrecord"] | None,
        typer.Option(
            "--to", help="What OUT is to be. Default: webdataset of a dataset, a dataset of others."
        ),
    ] = None,
    shard_mb: Annotated[
        int | None,
        typer.Option(metavar="MIB", help="Most arrays in a shard. Default: as the dataset has, else 64."),
    ] = None,
) -> None:
    """A dataset to WebDataset tars or TFRecord files, or those to a dataset."""
    from .pipelines.convert import convert as write

    signal.signal(signal.SIGTERM, end)
    typer.echo(write(path, out, to, shard_mb))


@scans.command(epilog="Example: tamis push runs/first/dataset s3://bucket/first")
def push(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A dataset or a run.")],
    url: Annotated[str, typer.Argument(metavar="URL", help="Where to: s3://, gs:// or az://BUCKET/FOLDER.")],
) -> None:
    """Copy a dataset to an object store; a copy that was cut goes on."""
    from .pipelines.dataset import Dataset
    from .pipelines.remote import push as send

    signal.signal(signal.SIGTERM, end)
    send(Dataset(folder).path, url)
    typer.echo(f"{url}: the dataset is there")


@scans.command(epilog="Example: tamis pull s3://bucket/first data/first")
def pull(
    url: Annotated[str, typer.Argument(metavar="URL", help="A dataset in a store or on a web server.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to.")],
) -> None:
    """Copy a dataset from an object store or a web server, every byte checked; one that was cut goes on."""
    from .pipelines.remote import pull as fetch

    signal.signal(signal.SIGTERM, end)
    fetch(url, folder)
    typer.echo(f"{folder}: the dataset is there")
