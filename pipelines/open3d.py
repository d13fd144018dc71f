"""Open3D, loaded when it is first needed."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray


@cache
def library() -> Any:
    """The module, on one thread, silent, with the libusb it needs from PyPI where the system has none."""
    with suppress(ImportError):  # the system's own may do
        path = import_module("libusb_package").get_library_path()
        ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    found = import_module("open3d")
    found.utility.set_verbosity_level(found.utility.VerbosityLevel.Error)
    found.utility.set_max_threads(1)  # whoever works on many scans has a process for each
    return found


def cloud(xyz: NDArray[Any]) -> Any:
    """A point cloud of Open3D's older kind, which is float64."""
    found = library()
    return found.geometry.PointCloud(found.utility.Vector3dVector(xyz.astype(np.float64)))
