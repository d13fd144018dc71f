"""The ring, explored: every order of the single steps of its processes, and a kill at every one of them.

A feeder writes batches into a ring and its readers take them, hold some, let go of them in any order, ask to
begin anew, or leave. Whoever is killed takes no more steps; the others may take some until they are told, and
end. All states that can be reached are looked at, each once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

from tamis.loaders.ring import Ring


class Reader(NamedTuple):
    """``held``: slots, and the batch in each. ``column``: its words. ``run``: which filling it follows.

    ``looked``: it has seen that batch ``at`` is there. ``asked``: to begin anew, and waits for the answer.
    """

    now: str  # "takes", "left", "dead" (killed) or "ended" (was told of a death)
    at: int
    held: tuple[tuple[int, int], ...]
    column: tuple[int, ...]
    run: int = 0
    looked: bool = False
    asked: bool = False


Content = tuple[int, int] | None


class State(NamedTuple):
    """``content``: run and number of the batch in each slot, None while it is written. ``slot``: that one.

    ``starts``: the first batch of each filling. ``told``: a process was killed.
    """

    readers: tuple[Reader, ...]  # sorted: they are alike
    words: tuple[int, ...]
    content: tuple[Content, ...]
    writer: str  # "looks", "writes", "wrote", "dead" or "ended"
    slot: int
    seq: int
    starts: tuple[int, ...]
    told: bool


@dataclass(frozen=True)
class Model:
    """A ring and its processes. ``most``: batches that a reader may hold, ``batches`` in all.

    ``restarts``: how often all readers ask to begin anew. ``drops``: whether readers let go of batches.
    """

    slots: int
    readers: int
    batches: int
    most: int = 1
    restarts: int = 0
    kills: bool = False
    leaves: bool = False
    drops: bool = True
    ring: type[Ring] = Ring

    def first(self) -> State:
        nothing = (0,) * self.slots
        readers = (Reader("takes", 0, (), nothing),) * self.readers
        return State(readers, nothing, (None,) * self.slots, "looks", 0, 0, (0,), False)

    def ring_of(self, state: State) -> Ring:
        columns = [state.words, *(reader.column for reader in state.readers)]
        return self.ring(np.array(columns, np.uint64).T.copy())

    def steps(self, state: State) -> Iterator[State]:
        """Every state one step of work away. Fails where a slot is written that somebody still needs.

        Once a reader has asked to begin anew, it is the others' work to ask so too.
        """
        if state.writer not in ("dead", "ended"):
            yield from self.writer_steps(state)
            if state.told:
                yield state._replace(writer="ended")
        for index, reader in enumerate(state.readers):
            if reader.now not in ("dead", "ended"):
                yield from self.reader_steps(state, index)
                if self.may_ask(state, reader) and any(other.asked for other in state.readers):
                    yield changed(state, index, asked=True)
                if state.told:
                    yield changed(state, index, now="ended")

    def choices(self, state: State) -> Iterator[State]:
        """Every state that a kill, a reader that leaves or one that asks to begin anew leads to."""
        if self.kills and not state.told and state.writer != "ended":
            yield state._replace(writer="dead", told=True)
        for index, reader in enumerate(state.readers):
            if reader.now != "takes":
                continue
            if self.kills and not state.told:
                yield changed(state, index, now="dead")._replace(told=True)
            if self.leaves and not reader.looked and not reader.asked:
                ring = self.ring_of(state)
                ring.leave(index, dict(reader.held))
                yield changed(state, index, now="left", column=column(ring, index))
            if self.may_ask(state, reader):
                yield changed(state, index, asked=True)

    def may_ask(self, state: State, reader: Reader) -> bool:
        follows = reader.run == len(state.starts) - 1 and len(state.starts) <= self.restarts
        return reader.now == "takes" and follows and not reader.looked and not reader.asked

    def writer_steps(self, state: State) -> Iterator[State]:
        ring, slot = self.ring_of(state), state.slot
        asking = [reader.asked for reader in state.readers if reader.now == "takes"]
        made = state.seq - state.starts[-1]
        if state.writer == "looks" and asking and all(asking):
            readers = tuple(sorted(reader._replace(asked=False) for reader in state.readers))
            yield state._replace(starts=(*state.starts, state.seq), readers=readers)
        elif state.writer == "looks":
            free = ring.free()
            if made < self.batches and not any(asking) and free is not None:
                self.check_unused(state, free)
                yield state._replace(writer="writes", slot=free, content=put(state.content, free, None))
        elif state.writer == "writes":
            batch = (len(state.starts) - 1, made)
            yield state._replace(writer="wrote", content=put(state.content, slot, batch))
        else:
            ring.publish(slot, state.seq)
            yield state._replace(writer="looks", slot=0, words=column(ring, -1), seq=state.seq + 1)

    def check_unused(self, state: State, slot: int) -> None:
        before = state.words[slot] - 1  # the batch that lies there, where it is not negative
        for reader in state.readers:
            if reader.now == "takes" and before >= 0:
                assert reader.at > before, "overwritten before it was taken"
            if reader.now in ("takes", "left"):
                assert slot not in dict(reader.held), "overwritten while it was held"

    def reader_steps(self, state: State, index: int) -> Iterator[State]:
        reader = state.readers[index]
        for slot, seq in reader.held if self.drops else ():
            held, ring = tuple(other for other in reader.held if other[0] != slot), self.ring_of(state)
            if reader.now == "left":
                ring.leave(index, dict(held))
            else:
                ring.release(slot, seq, index)
            yield changed(state, index, held=held, column=column(ring, index))
        if reader.now == "left" or reader.asked:
            return
        ring = self.ring_of(state)
        there = ring.slot(reader.at)
        if reader.run < len(state.starts) - 1:  # its question has an answer: skip what is of the run before
            if reader.at == state.starts[reader.run + 1]:
                yield changed(state, index, run=reader.run + 1, looked=False)
                return
            assert there is not None
            ring.release(there, reader.at, index)
            yield changed(state, index, at=reader.at + 1, column=column(ring, index))
        elif reader.looked:
            batch = (reader.run, reader.at - state.starts[reader.run])
            assert there is not None
            assert state.content[there] == batch, "another batch than it asked for"
            held = tuple(sorted((*reader.held, (there, reader.at))))
            yield changed(state, index, at=reader.at + 1, held=held, looked=False)
        elif len(reader.held) < self.most and there is not None:
            yield changed(state, index, looked=True)

    def is_done(self, state: State) -> bool:
        """Whether every batch was made and taken."""
        end = state.starts[-1] + self.batches
        taken = all(r.now != "takes" or (r.at == end and not r.asked) for r in state.readers)
        return state.seq == end and taken


def column(ring: Ring, reader: int) -> tuple[int, ...]:
    """The words of a reader, or of the feeder (-1)."""
    return tuple(ring._words[:, 1 + reader].tolist())


def put(content: tuple[Content, ...], slot: int, what: Content) -> tuple[Content, ...]:
    return (*content[:slot], what, *content[slot + 1 :])


def changed(state: State, index: int, **values: Any) -> State:
    readers = list(state.readers)
    readers[index] = readers[index]._replace(**values)
    return state._replace(readers=tuple(sorted(readers)))


def free_slots(state: State) -> set[int]:
    columns = [reader.column for reader in state.readers]
    return {s for s, word in enumerate(state.words) if all(column[s] >= word for column in columns)}


def explore(model: Model) -> tuple[set[State], list[State]]:
    """All states, and those in which nobody can go on with its work."""
    first = model.first()
    seen, queue, still = {first}, deque([first]), []
    while queue:
        state = queue.popleft()
        steps = list(model.steps(state))
        if not steps:
            still.append(state)
        for after in (*steps, *model.choices(state)):
            if after.seq == state.seq:  # a look at the words one by one is as good: no step undoes `free`
                assert free_slots(state) <= free_slots(after)
            if after not in seen:
                seen.add(after)
                queue.append(after)
    return seen, still


MODELS = {
    "2 slots, 1 reader": Model(2, 1, 5, most=2, restarts=1, kills=True, leaves=True),
    "3 slots, 1 reader": Model(3, 1, 3, most=3, restarts=1, kills=True, leaves=True),
    "2 slots, 2 readers": Model(2, 2, 4, most=2, kills=True, leaves=True),
    "2 slots, 2 readers, a restart": Model(2, 2, 3, restarts=1, kills=True),
    "3 slots, 2 readers": Model(3, 2, 4, most=2, kills=True),
    "3 slots, 2 readers, a restart": Model(3, 2, 2, restarts=1, kills=True),
    "2 slots, 3 readers": Model(2, 3, 3, kills=True, leaves=True),
    "3 slots, 3 readers": Model(3, 3, 4, kills=True),
    "2 slots, 3 readers, a restart": Model(2, 3, 2, restarts=1, kills=True),
}


@pytest.mark.parametrize("name", MODELS)
def test_no_order_of_steps_and_no_kill_breaks_it_or_stands_still(name: str) -> None:
    model = MODELS[name]
    states, still = explore(model)
    assert len(states) > 20_000
    assert any(model.is_done(state) for state in still)
    assert all(state.told or model.is_done(state) for state in still)
    reached = {state.writer for state in states} | {r.now for state in states for r in state.readers}
    assert {"looks", "writes", "wrote", "takes"} <= reached
    assert {"dead", "ended"} <= reached or not model.kills
    assert "left" in reached or not model.leaves
    assert max(len(state.starts) for state in states) == 1 + model.restarts
    assert max(len(r.held) for state in states for r in state.readers) == model.most


@pytest.mark.parametrize(("slots", "readers"), [(2, 1), (2, 2), (3, 2)])
def test_it_stands_still_only_where_readers_keep_all_slots(slots: int, readers: int) -> None:
    model = Model(slots, readers, slots + 1, most=slots, leaves=True, drops=False)
    still = [state for state in explore(model)[1] if not model.is_done(state)]
    assert still
    for state in still:
        ring = model.ring_of(state)
        kept = [ring.held(index) for index in range(readers)]
        assert set().union(*kept) == set(range(slots))
        for reader, slots_of in zip(state.readers, kept, strict=True):
            assert reader.now == "left" or set(dict(reader.held)) <= set(slots_of)
            assert set(slots_of) <= set(dict(reader.held)) or len(reader.held) == model.most


class LooksAtOne(Ring):
    """Overwrites what any but its first reader still needs."""

    def free(self) -> int | None:
        return Ring(self._words[:, :2]).free()


class LooksTooEarly(Ring):
    """Takes the release of an earlier batch in the slot for that of the last."""

    def free(self) -> int | None:
        done = (self._words[:, 1:] + 2 >= self._words[:, :1]).all(axis=1)
        return int(done.argmax()) if done.any() else None


class GivesAnything(Ring):
    """Gives a reader a later batch than it asks for."""

    def slot(self, seq: int) -> int | None:
        found = self._words[:, 0] > seq
        return int(found.argmax()) if found.any() else None


class ReleasesNothing(Ring):
    """Never frees a slot."""

    def release(self, slot: int, seq: int, reader: int) -> None:
        return


@pytest.mark.parametrize("broken", [LooksAtOne, LooksTooEarly, GivesAnything, ReleasesNothing])
def test_the_exploration_finds_a_broken_ring(broken: type[Ring]) -> None:
    model = Model(2, 2, 4, ring=broken)
    with pytest.raises(AssertionError):
        assert all(model.is_done(state) for state in explore(model)[1])


def test_who_leaves_keeps_what_it_holds_until_it_lets_go() -> None:
    ring = Ring(np.zeros((3, 3), np.uint64))
    for seq in range(3):
        assert ring.free() == seq
        ring.publish(seq, seq)
        ring.release(seq, seq, 1)
    assert ring.free() is None
    ring.leave(0, [1])
    assert ring.held(0) == [1]
    assert [ring.slot(seq) for seq in range(4)] == [0, 1, 2, None]
    ring.publish(2, 3)
    ring.publish(0, 4)
    assert ring.free() is None
    assert ring.held(1) == [0, 2]
    ring.release(2, 3, 1)
    assert ring.free() == 2
    ring.leave(0)
    assert (ring.held(0), ring.held(1), ring.free()) == ([], [0], 1)
