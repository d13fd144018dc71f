"""Published datasets as they lie in their folders, with their official splits and classes."""

from __future__ import annotations

from typing import Literal, get_args

from . import (
    argoverse2,
    image_folder,
    modelnet,
    nuscenes,
    s3dis,
    scannet,
    semantickitti,
    shapenet_part,
    waymo,
)
from .layout import Layout

Name = Literal[
    "semantickitti",
    "s3dis",
    "scannet",
    "modelnet",
    "shapenet_part",
    "nuscenes",
    "argoverse2",
    "waymo",
    "image_folder",
]
NAMES: tuple[Name, ...] = get_args(Name)

LAYOUTS: dict[Name, Layout] = {
    "semantickitti": semantickitti.LAYOUT,
    "s3dis": s3dis.LAYOUT,
    "scannet": scannet.LAYOUT,
    "modelnet": modelnet.LAYOUT,
    "shapenet_part": shapenet_part.LAYOUT,
    "nuscenes": nuscenes.LAYOUT,
    "argoverse2": argoverse2.LAYOUT,
    "waymo": waymo.LAYOUT,
    "image_folder": image_folder.LAYOUT,
}
