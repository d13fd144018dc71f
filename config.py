"""Configuration: TOML in, overrides on top, checked by the models of the modules it configures.

This module knows no key. Every module declares a small `Model` next to the code it sets; a command hands
the composed model to `load`. A union of models is told apart by its field ``kind``.
"""

from __future__ import annotations

import difflib
import json
import tomllib
import typing
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tomli_w
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, ValidationInfo

from .errors import DataError, UsageError

SHIPPED = Path(__file__).parent / "configs"


class Model(BaseModel):
    """Base of all settings: strict types, finite numbers, unknown keys refused, immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def _resolve(path: Path, info: ValidationInfo) -> Path:
    folder = (info.context or {}).get("folder")
    return Path(folder, path).absolute() if folder else path


ConfigPath = Annotated[Path, AfterValidator(_resolve)]
"""A path in a configuration file; a relative one is relative to that file's folder."""

M = TypeVar("M", bound=Model)


def load(config: str | Path, overrides: Sequence[str], model: type[M]) -> M:
    """Read a TOML path, a run's folder or a name shipped in ``configs/``, apply overrides and check it.

    ``overrides``: ``key=value`` each, with dotted keys and TOML values; a bare word is a string. A model's
    ``name`` is that of the file where none is given.

    Raises DataError where the file cannot be read, UsageError where a key or a value is wrong.
    """
    path = find(config)
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(path, f"cannot be read ({error.strerror})", "check the path") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(path, f"is not TOML ({error})", "mend the file") from None
    if "name" in model.model_fields:
        values.setdefault("name", path.stem)
    return check(values, model, overrides, where=str(path), folder=path.parent)


def find(config: str | Path) -> Path:
    """Path of a configuration: a file, the folder of a run, else a shipped name such as ``quickstart``."""
    for path in (Path(config), Path(config, "config.toml")):
        if path.is_file():
            return path
    names = [p.stem for p in sorted(SHIPPED.glob("*.toml"))]
    if str(config) in names:
        return SHIPPED / f"{config}.toml"
    raise DataError(config, "no such configuration file", f"name a TOML file or one of {', '.join(names)}")


def check(
    values: dict[str, Any],
    model: type[M],
    overrides: Sequence[str] = (),
    *,
    where: str,
    folder: Path | None = None,
) -> M:
    """Build ``model`` from plain values, with ``overrides`` as in `load`.

    ``where`` the values come from is for errors; relative paths are relative to ``folder``. UsageError names
    the wrong key and, if it is unknown, the nearest one.
    """
    paths = {key for key, annotation in _annotations(model) if ConfigPath in typing.get_args(annotation)}
    for override in overrides:
        _override(values, override, paths)
    try:
        # JSON mode is strict about scalars and still takes lists as tuples, as TOML has no other kind.
        return model.model_validate_json(json.dumps(values, default=str), context={"folder": folder})
    except ValidationError as error:
        key, cause, fix = _explain(error, model)
        given = [o for o in overrides if o.partition("=")[0].strip() == key]
        where = f"{where} with --set" if overrides and not key else where  # either may be to blame
        raise UsageError(f"--set {given[-1]}" if given else where, cause, fix) from None


def dumps(settings: Model) -> str:
    """The effective configuration as TOML."""
    return tomli_w.dumps(settings.model_dump(mode="json", exclude_none=True))


def differences(old: Model, new: Model) -> list[str]:
    """Dotted keys whose values differ; so do tables with the same keys in another order."""
    a, b = dict(_leaves(old)), dict(_leaves(new))
    return sorted(key for key in a.keys() | b.keys() if a.get(key) != b.get(key))


def keys(model: type[Model]) -> Iterator[str]:
    """The dotted keys of a model, those of all kinds of a union among them."""
    return (key for key, _ in _annotations(model))


def _annotations(model: type[Model], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, field in model.model_fields.items():
        yield prefix + name, field.annotation
        for inner in _models(field.annotation):
            yield from _annotations(inner, f"{prefix}{name}.")


def _override(values: dict[str, Any], override: str, paths: Collection[str]) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"--set {override}", "has no key=value", "write it as --set trainer.lr=1e-3")
    try:
        value = tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word is a string
    key = key.strip()
    if key in paths:
        value = str(Path(str(value)).absolute())  # relative to where the command is given, not to the file
    *parents, last = key.split(".")
    for parent in parents:
        values = values.setdefault(parent, {})
        if not isinstance(values, dict):
            raise UsageError(f"--set {override}", f"'{parent}' is a value, not a section", "check the key")
    values[last] = value


def _explain(error: ValidationError, model: type[Model]) -> tuple[str, str, str]:
    """The key, what is wrong with it, and what to do."""
    first = error.errors(include_url=False)[0]
    key = _key(model, [str(part) for part in first["loc"]])
    if first["type"] == "extra_forbidden":
        known = set(keys(model)) - {key}  # another kind of the same section may have it
        near = difflib.get_close_matches(key, known, 1, 0.5)
        near = near or [k for k in known if k.rpartition(".")[2] == key.rpartition(".")[2]][:1]
        return key, f"unknown key '{key}'", f"did you mean '{near[0]}'?" if near else "see `tamis config`"
    if first["type"] == "missing":
        return key, f"key '{key}' is missing", "add it"
    told = first["msg"].removeprefix("Value error, ")
    if not key:  # between sections: the message names the keys
        return key, told, "correct one of them"
    given = "" if isinstance(first["input"], dict) else f" (given {first['input']!r})"
    return key, f"key '{key}': {told}{given}", "correct the value"


def _key(model: type[Model], loc: Sequence[str]) -> str:
    """The dotted key of an error's location, which also names the kind that was chosen of a union."""
    key: list[str] = []
    here = [model]
    for part in loc:
        owner = next((m for m in here if part in m.model_fields), None)
        if owner is not None:
            here = list(_models(owner.model_fields[part].annotation))
        elif any(part in _kinds(m) for m in here):
            continue
        key.append(part)
    return ".".join(key)


def _kinds(model: type[Model]) -> tuple[Any, ...]:
    kind = model.model_fields.get("kind")
    return typing.get_args(kind.annotation) if kind else ()


def _models(annotation: Any) -> Iterator[type[Model]]:
    if isinstance(annotation, type) and issubclass(annotation, Model):
        yield annotation
    for part in typing.get_args(annotation):
        yield from _models(part)


def _leaves(settings: Model, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted keys and their values as text, in which the order of a table's keys counts."""
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, Model):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, settings.model_dump_json(include={name})
