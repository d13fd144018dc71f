from __future__ import annotations

import pickle
import threading

from tamis.lazy import lazy


class Number:
    """A number whose square waits for an event."""

    def __init__(self, number: int, event: threading.Event | None = None) -> None:
        self.number, self.event, self.times = number, event, 0

    @lazy
    def square(self) -> int:
        """The number times itself."""
        self.times += 1
        assert self.event is None or self.event.wait(30)
        return self.number**2


def test_it_is_computed_once_and_kept() -> None:
    three = Number(3)
    assert (three.square, three.square, three.times) == (9, 9, 1)
    assert pickle.loads(pickle.dumps(three)).__dict__["square"] == 9
    assert Number.square.__doc__ == "The number times itself."


def test_one_instance_does_not_wait_for_another() -> None:
    event = threading.Event()
    slow, found = Number(2, event), []
    waiting = threading.Thread(target=lambda: slow.square)
    waiting.start()
    other = threading.Thread(target=lambda: found.append(Number(3).square), daemon=True)
    other.start()
    other.join(20)
    assert (found, "square" in vars(slow)) == ([9], False)
    event.set()
    waiting.join()
    assert slow.square == 4
