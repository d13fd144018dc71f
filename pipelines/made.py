"""How a dataset came to be: the settings of its build and, where it was made of others, which and how."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pydantic

from ..config import Model
from ..errors import DataError
from . import manifest
from .dataset import Dataset
from .manifest import Manifest
from .settings import DataSettings


class Origin(Model):
    """A dataset that another was made of.

    ``name``: of its folder, for readers. ``apart``: the keys of its configuration that are not those of what
    was made. ``made``: how it was made itself, None where it was built.
    """

    name: str
    fingerprint: str
    apart: dict[str, Any] = pydantic.Field(default_factory=dict)
    made: Made | None = None


class Made(Model):
    """How a dataset was made ``of`` others; ``chosen``: what of them, by the names of the options."""

    by: Literal["subset", "merge"]
    of: list[Origin]
    chosen: dict[str, Any] = pydantic.Field(default_factory=dict)

    def same(self, other: Made) -> bool:
        """Whether both give the same bytes but for the names of folders."""
        return self._key() == other._key()

    def _key(self) -> tuple[str, list[str], dict[str, Any]]:
        return self.by, [origin.fingerprint for origin in self.of], self.chosen


class MadeSettings(DataSettings):
    """The settings of the build that the samples come from, and how this dataset was ``made`` of others."""

    made: Made


def settings_of(there: Manifest) -> DataSettings:
    """The settings a dataset records. Keys of JSON have no order; that of the classes is in its list.

    Raises DataError for keys that this version does not know.
    """
    classes = there.configuration["classes"]
    recorded = there.configuration | {"classes": {name: classes[name] for name in there.classes}}
    kind = MadeSettings if "made" in recorded else DataSettings
    try:
        return kind.model_validate_json(json.dumps(recorded))
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        cause = f"'{key}' of the configuration is not known to this tamis ({first['msg']})"
        raise DataError(manifest.NAME, cause, "use the version that built it, or build it again") from None


def made_of(there: Manifest) -> Made | None:
    """How a dataset was made of others; None where it was built."""
    recorded = there.configuration.get("made")
    return None if recorded is None else Made.model_validate_json(json.dumps(recorded))


def made_by(made: Made, settings: Sequence[DataSettings], row_order: str) -> MadeSettings:
    """The settings to record for what is made of datasets with ``settings``: those that all of them have.

    The classes, and how large shards are, are the first one's; what others have otherwise is said in ``of``.
    """
    plain = [_plain(one) for one in settings]
    kept = {key: value for key, value in plain[0].items() if all(other[key] == value for other in plain)}
    kept |= {key: plain[0][key] for key in ("classes", "shard_mb")} | {"row_order": row_order}
    whole = _plain(DataSettings()) | kept
    of = [
        origin.model_copy(update={"apart": {k: v for k, v in own.items() if v != whole[k]}})
        for origin, own in zip(made.of, plain, strict=True)
    ]
    recorded = whole | {"made": made.model_copy(update={"of": of}).model_dump(mode="json")}
    return MadeSettings.model_validate_json(json.dumps(recorded))


def origin_of(dataset: Dataset) -> Origin:
    """What is recorded of a dataset in those that are made of it."""
    name = (dataset.path.parent if dataset.path.name == "dataset" else dataset.path).resolve().name
    return Origin(name=name, fingerprint=dataset.fingerprint, made=made_of(dataset.manifest))


def check_built(path: Path, there: Manifest) -> None:
    """Refuse the dataset at ``path`` as the result of a build if it was made of others."""
    made = made_of(there)
    if made is not None:
        fix = "name it in data.path to use it, or choose another --out"
        raise DataError(path, f"was made with `tamis {made.by}`, not built from raw files", fix)


def _plain(settings: DataSettings) -> dict[str, Any]:
    """The keys of a build, as a dataset records them."""
    return {key: value for key, value in settings.configuration().items() if key != "made"}
