"""Functions of users' own that read files: ``module:name``, called with a path in the process that reads.

A function takes a `pathlib.Path` and returns a mapping of numpy arrays: ``xyz`` (n, 3), or ``x``, ``y`` and
``z`` (n,), and fields (n,) or (n, w), numbers of up to 64 bits; under ``annotations``, where there are any, a
mapping of theirs. Or it returns several such mappings, as a list or one after another as a generator does:
clouds that stand for themselves, with the same fields. What it prints goes to stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial
from importlib import invalidate_caches
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError, UsageError
from ..checks import file_sha256
from ..user_worker import found, imported, said
from . import Scan, Source, join_colours
from .settings import ReadSettings

_FIX = "mend the function"
_AXES = ("x", "y", "z")
_END = object()

T = TypeVar("T")


class _Loaded(NamedTuple):
    """A function, its module, and the SHA-256 that the module's file had when it was imported."""

    module: ModuleType
    function: Callable[[Path], Any]
    sha256: str


_loaded: dict[str, _Loaded] = {}


def pinned(settings: ReadSettings) -> ReadSettings:
    """The settings with the SHA-256 of the file that their function stands in.

    Raises UsageError where there is no such file, and where the settings name another SHA-256.
    """
    assert settings.function is not None
    sha256 = _sha256(settings.function)
    if settings.function_digest not in (None, sha256):
        cause = f"the file of {settings.function} has another: {sha256}"
        raise UsageError("data.read.function_digest", cause, "take the key out, or the change back")
    return settings.model_copy(update={"function_digest": sha256})


def opened(path: Path, settings: ReadSettings) -> Source:
    """What the function makes of a file.

    Raises UsageError where there is no such function or its file is not the one of ``function_digest``, and
    DataError, with the file, the function and its line, where it raises or returns what does not fit.
    """
    call = _Call(path, settings)
    result = call.made(partial(call.loaded.function, path))
    if isinstance(result, Iterator | list | tuple):
        return Source(Clouds(call, result), True, (path,))
    return Source([call.scan(result, "returned")], False, (path,))


class Clouds(Sequence[Scan]):
    """The clouds that a function yields, each made when it is asked for.

    The first pass takes what the function gave; each further pass, and a length, calls it anew.
    """

    def __init__(self, call: _Call, result: Iterable[Any]) -> None:
        self._call = call
        self._fresh: Iterable[Any] | None = result

    def __iter__(self) -> Iterator[Scan]:
        call, result, self._fresh = self._call, self._fresh, None
        if result is None:
            result = call.made(partial(call.loaded.function, call.path))
            if not isinstance(result, Iterator | list | tuple):
                raise call.refused(f"returned {type(result).__name__}, and several clouds before")
        waiting, first, number, rows = iter(result), None, 0, 0
        while (one := call.made(partial(next, waiting, _END))) is not _END:
            scan = call.scan(one, f"yielded, as cloud {number},", rows)
            first = first or scan
            call.compare(scan, first, number)
            yield scan
            number, rows = number + 1, rows + len(scan.xyz)
        if first is None:
            raise call.refused("yielded no cloud")

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @overload
    def __getitem__(self, number: int) -> Scan: ...
    @overload
    def __getitem__(self, number: slice) -> list[Scan]: ...
    def __getitem__(self, number: int | slice) -> Scan | list[Scan]:
        if isinstance(number, int) and number >= 0:
            for at, scan in enumerate(self):
                if at == number:
                    return scan
            raise IndexError(number)
        return [*self][number]


class _Call:
    """A function and the file that it reads, both of which errors name."""

    def __init__(self, path: Path, settings: ReadSettings) -> None:
        assert settings.function is not None
        self.path, self.name = path, settings.function
        self.loaded = _load(self.name)
        if settings.function_digest not in (None, self.loaded.sha256):
            cause = f"{self.loaded.module.__file__} has changed since it was imported or the build began"
            raise UsageError(self.name, cause, "run it again, in a new process")

    def refused(self, cause: str) -> DataError:
        return DataError(self.path, f"{self.name} {cause}", _FIX)

    def made(self, work: Callable[[], T]) -> T:
        """What the user's code makes. Memory that is short is the build's to tell of, as of any file."""
        try:
            with redirect_stdout(sys.stderr):
                return work()
        except (KeyboardInterrupt, MemoryError):
            raise
        except BaseException as error:  # SystemExit too: a file that ends the run is none that was read
            own = error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
            raise self.refused(f"raised {said(own, self.loaded.module)}") from error

    def scan(self, result: Any, did: str, first: int | None = None) -> Scan:
        """A mapping as a cloud, checked. ``did``: what the function did with it, for errors.

        ``first``: where the cloud begins among others, whose function may use its arrays again for the next.
        """
        fault = _fault(result)
        if fault:
            raise self.refused(f"{did} {fault}")
        taken = partial(np.array, copy=None if first is None else True)
        arrays = {name: taken(values) for name, values in result.items() if name != "annotations"}
        if "xyz" in arrays:
            xyz = arrays.pop("xyz")
        else:
            xyz = np.stack([arrays.pop(axis) for axis in _AXES], axis=1)
        annotations = {name: taken(values) for name, values in result.get("annotations", {}).items()}
        return Scan(np.ascontiguousarray(xyz, np.float64), join_colours(arrays), first or 0, annotations)

    def compare(self, scan: Scan, first: Scan, number: int) -> None:
        """Refuse a cloud that has not the fields of the first: samples of a dataset have equal columns."""
        for name in sorted(scan.fields.keys() | first.fields.keys()):
            has, had = _told(scan, name), _told(first, name)
            if has != had:
                raise self.refused(f"yielded cloud {number} with {has}, cloud 0 with {had}")


def _load(where: str) -> _Loaded:
    if where not in _loaded:
        sha256 = _sha256(where)  # before the import: a change between them is then noticed
        module_name, _, name = where.partition(":")
        module = imported(where, module_name)
        _loaded[where] = _Loaded(module, found(where, module, name), sha256)
    return _loaded[where]


def _sha256(where: str) -> str:
    """SHA-256, in hex, of the file of a function's module, which is not imported for it."""
    name, fix = where.partition(":")[0], "see that it can be imported where the run starts"
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # last, so that it hides nothing
    invalidate_caches()
    try:
        spec = find_spec(name)
    except BaseException as error:  # the packages that a module lies in are imported
        if isinstance(error, KeyboardInterrupt | MemoryError):
            raise
        raise UsageError(where, f"cannot import '{name}': {said(error, None)}", fix) from error
    if spec is None:
        raise UsageError(where, f"cannot import '{name}': there is no module of that name", fix)
    if not spec.has_location or spec.origin is None or not Path(spec.origin).is_file():
        raise UsageError(where, f"module '{name}' has no file of its own", "write it into a .py file")
    return file_sha256(Path(spec.origin))


def _told(scan: Scan, name: str) -> str:
    if name not in scan.fields:
        return f"no field '{name}'"
    values = scan.fields[name]
    return f"field '{name}' of {values.dtype} (n{''.join(f', {n}' for n in values.shape[1:])})"


def _fault(result: Any) -> str:
    """What is wrong with what a function gave as one cloud; nothing where it is one."""
    if not isinstance(result, Mapping):
        return f"{type(result).__name__}, not a mapping of arrays"
    arrays = {name: values for name, values in result.items() if name != "annotations"}
    for name, values in arrays.items():
        if fault := _fault_of(name, values, "field"):
            return fault
    if "xyz" in arrays:
        xyz: NDArray[Any] = arrays["xyz"]
        if xyz.ndim != 2 or xyz.shape[1] != 3 or xyz.dtype.kind == "b":
            return f"'xyz' as {xyz.dtype} of shape {xyz.shape}, not numbers (n, 3)"
        rows = ("xyz", len(xyz))
    else:
        missing = [axis for axis in _AXES if axis not in arrays]
        if missing:
            there = ", ".join(f"'{name}'" for name in arrays) or "nothing"
            return f"neither 'xyz' nor '{missing[0]}' (it has {there})"
        for axis in _AXES:
            if arrays[axis].ndim != 1 or arrays[axis].dtype.kind == "b":
                return f"'{axis}' as {arrays[axis].dtype} of shape {arrays[axis].shape}, not numbers (n,)"
        rows = ("x", len(arrays["x"]))
    for name, values in arrays.items():
        if values.ndim > 2 or 0 in values.shape[1:]:
            return f"field '{name}' of shape {values.shape}, not (n,) or (n, w)"
        if len(values) != rows[1]:
            return f"field '{name}' of {len(values)} rows and '{rows[0]}' of {rows[1]}"
    annotations = result.get("annotations", {})
    if not isinstance(annotations, Mapping):
        return f"'annotations' as {type(annotations).__name__}, not as a mapping of arrays"
    return next(filter(None, (_fault_of(name, v, "annotation") for name, v in annotations.items())), "")


def _fault_of(name: Any, values: Any, what: str) -> str:
    """What is wrong with one array, whatever its shape is to be."""
    if not isinstance(name, str) or not name.isprintable() or not name:
        return f"a name that is no printable text ({name!r})"
    if type(values) not in (np.ndarray, np.memmap):  # a masked array would lose its mask
        return f"{what} '{name}' as {type(values).__name__}, not as numpy.ndarray"
    if values.dtype.kind not in "biuf" or values.dtype.itemsize > 8:
        return f"{what} '{name}' of {values.dtype}, not of numbers of up to 64 bits"
    if not values.ndim:
        return f"{what} '{name}' as a single number, not one a row"
    return ""
