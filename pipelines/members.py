"""Samples of a dataset that is being made, in the order of its index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .finish import About
from .journal import PartSample


@dataclass(frozen=True)
class Member:
    """A sample on its way to its shard: ``number`` says which it is where it comes from."""

    source: str
    number: int
    about: PartSample


def about(members: Sequence[Member]) -> About:
    """What ``samples.arrow`` says of the samples."""
    return About(
        source=[member.source for member in members],
        tile=[member.about.tile for member in members],
        split=[member.about.split for member in members],
        origin=np.array([member.about.origin for member in members], np.float64),
        bounds=np.array([member.about.bounds for member in members], np.float64),
        label=[member.about.label for member in members],
    )
