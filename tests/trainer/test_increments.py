"""Files of tensors, of which those that did not change are links: against keeping every tensor in memory."""

from __future__ import annotations

import io
import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Size, Tensor
from torch.distributed.checkpoint.metadata import MetadataIndex

from tamis.trainer.checkpoints.increments import Staged, Written, part_of, write

SHAPES = ((3,), (2, 2), (), (5,))


def staged(tensors: Sequence[Tensor], settled: frozenset[int] = frozenset()) -> list[Staged]:
    return [
        Staged(MetadataIndex(f"t{i}", Size([0] * t.ndim)), t, i in settled) for i, t in enumerate(tensors)
    ]


def save(folder: Path, step: int, pieces: list[Staged], before: Written | None) -> Written:
    path = folder / f"step-{step}"
    path.mkdir()
    return write(path, f"rank0-{step}", pieces, before)


def read(now: Written, folder: Path, piece: Staged) -> Tensor:
    place = now.places[piece.index]
    data = (folder / place.relative_path).read_bytes()[place.offset : place.offset + place.length]
    found: Tensor = torch.load(io.BytesIO(data), weights_only=True)
    return found


@settings(max_examples=60, deadline=None)
@given(changes=st.lists(st.frozensets(st.integers(0, len(SHAPES) - 1)), min_size=1, max_size=6))
def test_every_checkpoint_is_whole_and_nothing_is_written_twice_for_long(
    changes: list[frozenset[int]],
) -> None:
    """Whatever changed between two: all tensors are there after the older ones are gone."""
    tensors = [torch.full(shape, float(i)) for i, shape in enumerate(SHAPES)]
    with TemporaryDirectory() as name:
        folder, before = Path(name), save(Path(name), 0, staged(tensors), None)
        for step, changed in enumerate(changes, 1):
            for i in changed:
                tensors[i] += 1
            now = save(folder, step, staged(tensors), before)
            shutil.rmtree(before.folder)  # what was linked stays
            moved = now.folder.rename(folder / f"moved-{step}")
            for piece, wanted in zip(staged(tensors), tensors, strict=True):
                assert torch.equal(read(now, moved, piece), wanted)
            assert {p.name for p in moved.iterdir()} == set(now.parts)
            for part in now.parts.values():
                assert part_of(moved / part.name) == part.model_copy(update={"linked": False})
                inside = {i for i, piece in enumerate(staged(tensors)) if placed(now, piece) == part.name}
                assert part.linked == (part.name in before.parts)
                assert not (part.linked and inside & changed)
            if step > 1 and changed == changes[step - 2]:  # by now they are told apart
                new = {i for i, p in enumerate(staged(tensors)) if not now.parts[placed(now, p)].linked}
                assert new == changed
            before = now
            before.folder = moved


def placed(now: Written, piece: Staged) -> str:
    return str(now.places[piece.index].relative_path)


def test_what_is_said_to_settle_is_linked_at_once(tmp_path: Path) -> None:
    tensors = [torch.zeros(1000), torch.zeros(1000)]
    first = save(tmp_path, 1, staged(tensors, frozenset({0})), None)
    tensors[1] += 1
    second = save(tmp_path, 2, staged(tensors, frozenset({0})), first)
    assert [(p.name, p.linked) for p in second.parts.values()] == [
        ("rank0-1-settled.distcp", True),
        ("rank0-2-changed.distcp", False),
    ]


@pytest.mark.parametrize("how", ["removed", "damaged", "cut"])
def test_a_file_that_is_not_what_it_was_is_written_again(how: str, tmp_path: Path) -> None:
    tensors = [torch.zeros(1000)]
    first = save(tmp_path, 1, staged(tensors), None)
    (path,) = first.folder.iterdir()
    data = bytearray(path.read_bytes())
    if how == "removed":
        shutil.rmtree(first.folder)
    else:
        data[len(data) // 2] ^= 1
        path.write_bytes(data if how == "damaged" else data[:-1])
    second = save(tmp_path, 2, staged(tensors), first)
    (part,) = second.parts.values()
    assert not part.linked
    assert torch.equal(read(second, second.folder, staged(tensors)[0]), tensors[0])


def test_a_file_system_without_links_gets_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", refused)
    tensors = [torch.zeros(1000)]
    first = save(tmp_path, 1, staged(tensors), None)
    second = save(tmp_path, 2, staged(tensors), first)
    assert [part.linked for part in second.parts.values()] == [False]
    assert torch.equal(read(second, second.folder, staged(tensors)[0]), tensors[0])
