"""What an operator is told beside the columns it works on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from numpy.typing import NDArray

from ...config import Model
from ...samplers.fields import Kind

if TYPE_CHECKING:
    from ..user_code import UserCode

Columns = dict[str, NDArray[Any]]

S = TypeVar("S", bound=Model)


@dataclass(frozen=True)
class Call(Generic[S]):
    """One operator on one sample.

    ``kinds``: the kind of each column, which says how it moves and merges. ``key``: of all random draws; a
    function of the seed, the epoch, the sample and the operator's place. ``k``: the rows of this batch.
    ``user``: calls functions of the user's own. ``sample()``: the sample's name, looked up for errors.
    """

    settings: S
    kinds: dict[str, Kind]
    key: int
    k: int | None
    user: UserCode | None = None
    sample: Callable[[], str] = lambda: "?"
