"""Choosing the number of threads: what the first batches took decides, once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tamis.loaders.tuning import Tuner, choices


def chosen(tuner: Tuner, took_s: Callable[[int, int], float], batches: int = 40) -> list[int]:
    """The number of threads of each batch, where batch b on n threads takes ``took_s(b, n)`` seconds."""
    used = []
    for batch in range(batches):
        used.append(tuner.choice)
        tuner.took(took_s(batch, tuner.choice), 1000)
    return used


def test_numbers_of_threads_to_try() -> None:
    assert choices(3, 8) == [3]
    assert [choices(None, most) for most in (1, 2, 3, 4, 7)] == [[1], [1, 2], [1, 2], [1, 2, 4], [1, 2, 4]]


@pytest.mark.parametrize(
    ("seconds", "best"),
    [({1: 3.0, 2: 2.0, 4: 1.0}, 4), ({1: 1.0, 2: 2.0, 4: 3.0}, 1), ({1: 1.0, 2: 0.99, 4: 0.98}, 1)],
)
def test_the_fastest_is_kept_if_more_threads_are_worth_it(seconds: dict[int, float], best: int) -> None:
    used = chosen(Tuner([1, 2, 4]), lambda _, threads: seconds[threads])
    assert set(used[:13]) == {1, 2, 4}
    assert set(used[13:]) == {best}


def test_the_first_batches_do_not_count() -> None:
    used = chosen(Tuner([1, 2]), lambda batch, threads: 1.0 * threads + 100.0 * (batch < 4))
    assert used[:4] == [1] * 4  # their memory is new
    assert used[-1] == 1


def test_one_slow_batch_does_not_decide() -> None:
    used = chosen(Tuner([1, 2]), lambda batch, threads: 4.0 / threads + 100.0 * (batch in (5, 6)))
    assert used[-1] == 2


def test_a_given_number_is_kept() -> None:
    assert set(chosen(Tuner([3]), lambda batch, _: float(batch))) == {3}
