"""tamis sieves point clouds and feeds them to training.

Raw scans -> checked shards (`build`, `Dataset`, `verify`) -> batches (`Loader`) -> a small parallel trainer.
The samplers stand on their own: `farthest`, `farthest_batch`, `voxel`, `VoxelAccumulator`, `voxelise`,
`random`, `stratified`, `adaptive`, `RatioSchedule`.
Names are imported when first used, so that `import tamis` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tamis.errors import DataError, TamisError, UsageError
    from tamis.loaders.dali import DaliLoader
    from tamis.loaders.device import to_device
    from tamis.loaders.loader import Batch, Loader
    from tamis.pipelines.build import build
    from tamis.pipelines.dataset import Dataset
    from tamis.pipelines.verify import verify
    from tamis.samplers import (
        Adaptive,
        RatioSchedule,
        VoxelAccumulator,
        Voxelised,
        Voxels,
        adaptive,
        farthest,
        farthest_batch,
        random,
        stratified,
        voxel,
        voxelise,
    )

__version__ = "0.1.0"

_HOMES = {
    "Adaptive": "tamis.samplers.adaptive",
    "Batch": "tamis.loaders.loader",
    "DaliLoader": "tamis.loaders.dali",
    "DataError": "tamis.errors",
    "Dataset": "tamis.pipelines.dataset",
    "Loader": "tamis.loaders.loader",
    "RatioSchedule": "tamis.samplers.ratio",
    "TamisError": "tamis.errors",
    "UsageError": "tamis.errors",
    "VoxelAccumulator": "tamis.samplers.accumulate",
    "Voxelised": "tamis.samplers.voxelise",
    "Voxels": "tamis.samplers.voxel",
    "adaptive": "tamis.samplers.adaptive",
    "build": "tamis.pipelines.build",
    "farthest": "tamis.samplers.farthest",
    "farthest_batch": "tamis.samplers.farthest",
    "random": "tamis.samplers.random",
    "stratified": "tamis.samplers.stratified",
    "to_device": "tamis.loaders.device",
    "verify": "tamis.pipelines.verify",
    "voxel": "tamis.samplers.voxel",
    "voxelise": "tamis.samplers.voxelise",
}

__all__ = [
    "Adaptive",
    "Batch",
    "DaliLoader",
    "DataError",
    "Dataset",
    "Loader",
    "RatioSchedule",
    "TamisError",
    "UsageError",
    "VoxelAccumulator",
    "Voxelised",
    "Voxels",
    "adaptive",
    "build",
    "farthest",
    "farthest_batch",
    "random",
    "stratified",
    "to_device",
    "verify",
    "voxel",
    "voxelise",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tamis' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
