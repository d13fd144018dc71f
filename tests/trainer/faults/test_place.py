"""Who a process is, by an environment that may be wrong or left over."""

from __future__ import annotations

import pytest

from tamis.errors import UsageError
from tamis.trainer.faults.place import Place, place, place_in
from tamis.trainer.settings import LayoutSettings

WHOLE = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "here", "MASTER_PORT": "1"}


def place_with(values: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Place:
    for name in WHOLE:
        monkeypatch.delenv(name, raising=False)
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    return place()


def test_a_rank_of_a_launcher_and_one_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert place_with(WHOLE, monkeypatch) == (1, 2, 1)
    assert place_with({"RANK": "0"}, monkeypatch) == (0, 1, 0)
    rest = {name: value for name, value in WHOLE.items() if name != "RANK"}
    assert place_with(rest, monkeypatch) == (0, 1, 0)  # left over


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("RANK", "x", "RANK is 'x', not a whole number"),
        ("RANK", "2", "RANK is 2 of WORLD_SIZE 2"),
        ("WORLD_SIZE", "", "WORLD_SIZE is '', not a whole number"),
        ("MASTER_ADDR", None, "MASTER_ADDR is not set"),
        ("MASTER_PORT", None, "MASTER_PORT is not set"),
        ("MASTER_PORT", "http", "MASTER_PORT is 'http', not a whole number"),
    ],
)
def test_what_is_wrong_is_named(
    name: str, value: str | None, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {key: text for key, text in (WHOLE | {name: value}).items() if text is not None}
    with pytest.raises(
        UsageError, match=f"the environment: {wanted}; start the ranks with torchrun, or unset"
    ):
        place_with(values, monkeypatch)


def test_all_ranks_of_a_layout_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert place_with(WHOLE, monkeypatch) == place_in(LayoutSettings(dp=2))
    with pytest.raises(UsageError, match=r"= 2 x 2 x 1: but the environment tells of 2 ranks .*min_dp"):
        place_in(LayoutSettings(dp=2, tp=2))
