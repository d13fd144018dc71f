"""The Loader: the same batches for any replicas, threads and cuts, and every error in its place."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tamis.errors import DataError, UsageError
from tamis.loaders.loader import Batch, Loader, LoaderSettings
from tamis.metrics import Meter
from tamis.pipelines.dataset import Dataset
from tamis.pipelines.ops import (
    FlipSettings,
    OperatorSettings,
    RotateSettings,
    ScaleSettings,
    SerialiseSettings,
)

Make = Callable[..., Dataset]

SIZES = [300, 40, 500, 64, 1, 257, 90, 0, 700, 128, 256, 33, 310]
GRAPH: tuple[OperatorSettings, ...] = (
    RotateSettings(),
    FlipSettings(),
    ScaleSettings(low=0.9, high=1.1),
    SerialiseSettings(cell=2.0),
)


def clouds(batch: Batch) -> dict[int, bytes]:
    """Each sample of a batch: its id and all its bytes."""
    found = {}
    for i in np.flatnonzero(batch.weight):
        if batch.offsets is None:
            parts = [batch.columns[c][i] for c in sorted(batch.columns)] + [batch.mask[i]]  # type: ignore[index]
        else:
            span = slice(batch.offsets[i], batch.offsets[i + 1])
            parts = [batch.columns[c][span] for c in sorted(batch.columns)]
        found[int(batch.ids[i])] = b"".join(p.tobytes() for p in parts)
    return found


def content(batch: Batch) -> tuple[Any, ...]:
    return batch.step, batch.epoch, batch.k, batch.ids.tolist(), list(clouds(batch).items())


def loader(dataset: Dataset, **changes: Any) -> Loader:
    return Loader(dataset, **{"global_batch": 4, "k": 64, "graph": GRAPH, **changes})


def read(
    dataset: Dataset, steps: int | None = None, state: dict[str, Any] | None = None, **changes: Any
) -> Any:
    """Batches, and the state after each, of one loader."""
    with loader(dataset, **changes) as made:
        if state is not None:
            made.load_state_dict(state)
        batches: list[Any] = []
        states = [made.state_dict()]
        while steps is None or len(batches) < steps:
            batch = next(made, None)
            if batch is None:
                break
            batches.append(content(batch))
            states.append(json.loads(json.dumps(made.state_dict())))
    return batches, states


def test_s01_s19_every_sample_once_with_equal_batches_on_all_replicas(make: Make) -> None:
    data = make(SIZES, per_shard=4)
    rows = dict(zip(data.ids.tolist(), data.rows.tolist(), strict=True))
    mean = np.mean(list(rows.values()))
    for replicas in (1, 2, 3, 4):
        shapes, seen = [], []
        for replica in range(replicas):
            made = Loader(
                data, global_batch=4, epochs=1, form="ragged", replica=replica, replicas=replicas, columns=[]
            )
            with made:
                batches = list(made)
            assert len(batches) == made.batches_per_epoch == 4
            shapes.append([b.ids.shape for b in batches])
            seen += [(int(i), float(w)) for b in batches for i, w in zip(b.ids, b.weight, strict=True)]
        assert all(shape == shapes[0] for shape in shapes)
        assert sorted(i for i, w in seen if w) == sorted(rows)
        assert np.isclose(sum(w * rows.get(i, 0) for i, w in seen) / sum(w for _, w in seen), mean)


@pytest.mark.parametrize("replicas", [2, 3, 4])
def test_s14_replicas_share_the_batches_of_one(make: Make, replicas: int) -> None:
    data = make(SIZES, per_shard=4)
    whole = read(data, epochs=2)[0]
    parts = [read(data, epochs=2, replica=i, replicas=replicas)[0] for i in range(replicas)]
    for step, (_, epoch, k, ids, samples) in enumerate(whole):
        together = [part[step] for part in parts]
        assert {(t[0], t[1], t[2]) for t in together} == {(step, epoch, k)}
        assert [s for t in together for s in t[4]] == samples
        assert {len(t[3]) for t in together} == {-(-len(ids) // replicas)}


def test_s14_a_state_of_some_replicas_is_that_of_any_other_number(make: Make) -> None:
    data = make(SIZES)
    whole, states = read(data, steps=6)
    assert read(data, steps=3, replica=1, replicas=4)[1][3] == states[3]
    parts = [read(data, steps=3, state=states[3], replica=i, replicas=2)[0] for i in range(2)]
    for step in range(3):
        assert [s for part in parts for s in part[step][4]] == whole[3 + step][4]


def test_s10_s11_t16_every_cut_resumes_to_the_same_ids_and_bytes(make: Make) -> None:
    data = make(SIZES, per_shard=4)  # 4 batches an epoch
    whole, states = read(data, epochs=3)
    assert len(whole) == 12
    for cut in range(13):  # the start, each middle, the last batch, the ends of epochs
        resumed, later = read(data, epochs=3, state=states[cut])
        assert resumed == whole[cut:]
        assert later == states[cut:]


def test_s11_twice_in_one_epoch_and_loading_after_iteration_has_begun(make: Make) -> None:
    data = make(SIZES)
    whole, states = read(data, steps=8)
    first, seen = read(data, steps=1)
    second, again = read(data, steps=2, state=seen[-1])
    third, _ = read(data, steps=5, state=again[-1])
    assert first + second + third == whole
    with loader(data) as made:
        assert [content(next(made)) for _ in range(3)] == whole[:3]
        for cut in (1, 7, 0):
            made.load_state_dict(states[cut])
            assert made.state_dict() == states[cut]
            assert content(next(made)) == whole[cut]


def test_s20_a_state_of_another_dataset_or_plan_is_refused(make: Make) -> None:
    data, other = make(SIZES), make(SIZES, seed=1)
    state = read(data, steps=2)[1][-1]
    with pytest.raises(UsageError, match="its dataset is"):
        read(other, state=state)
    for change in ({"seed": 1}, {"k": 32}, {"graph": GRAPH[1:]}, {"global_batch": 5}):
        with pytest.raises(UsageError, match="its plan is"):
            read(data, state=state, **change)
    with loader(data) as made:
        next(made)
        before = made.state_dict()
        with pytest.raises(UsageError):
            made.load_state_dict({**before, "step": 9})
        assert made.state_dict() == before
        assert next(made).step == 1


def test_bytes_depend_on_neither_threads_nor_the_batch_around_a_sample(make: Make) -> None:
    data = make(SIZES, per_shard=4)
    alone: dict[int, bytes] = {}
    for changes in ({"threads": 1}, {"threads": 3}, {"global_batch": 1}, {"global_batch": 13, "threads": 2}):
        with loader(data, epochs=1, **changes) as made:
            found = {i: c for batch in made for i, c in clouds(batch).items()}
        alone = alone or found
        assert found == alone
    with loader(data, epochs=2) as made:
        later = {i: c for batch in made if batch.epoch == 1 for i, c in clouds(batch).items()}
    assert sum(later[i] != alone[i] for i in alone) >= len(alone) - 1  # all but the empty cloud


def test_v13_batches_own_their_memory(make: Make) -> None:
    data = make([300] * 6)
    for form in ("dense", "ragged"):
        with Loader(data, global_batch=1, k=256, form=form, epochs=1) as made:
            batches = []
            for batch in made:
                batches.append((batch, content(batch)))
        assert all(content(batch) == copy for batch, copy in batches)
        assert len({copy[4][0][1] for _, copy in batches}) == 6
        batches[0][0].columns["xyz"][:] = 0.0  # writable, and nobody else's
        assert content(batches[1][0]) == batches[1][1]


def test_a_damaged_shard_is_an_error_at_its_own_batch(make: Make) -> None:
    data = make([300] * 6, per_shard=1)
    with Loader(data, global_batch=1, k=128, columns=[]) as made:
        order = [int(np.flatnonzero(data.ids == next(made).ids[0])[0]) for _ in range(6)]
    row, path = order[3], data.shard_path(int(data.shard[order[3]]))
    with path.open("r+b") as file:
        file.seek(int(data.positions["xyz"][row]) + 100)
        file.write(b"\xff\x00\xff")
    with Loader(data, global_batch=1, k=128, columns=[]) as made:
        assert [next(made).step for _ in range(3)] == [0, 1, 2]
        for _ in range(2):  # nothing is skipped: the same batch fails again
            with pytest.raises(DataError, match=f"offset {data.positions['xyz'][row]}") as caught:
                next(made)
            assert caught.value.where == str(path)
            assert made.state_dict()["step"] == 3


def test_the_end_of_the_last_epoch_is_the_end(make: Make) -> None:
    data = make([300] * 5)
    with Loader(data, global_batch=2, k=128, epochs=2) as made:
        assert [(b.step, b.epoch, len(b.ids)) for b in made] == [
            (0, 0, 2), (1, 0, 2), (2, 0, 1), (3, 1, 2), (4, 1, 2), (5, 1, 1)
        ]  # fmt: skip
        assert next(made, None) is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"feeder": "both"}, "loader.feeder: 'both' is not available; use 'inline' or 'node'"),
        ({"engine": "gpu"}, "loader.engine: 'gpu' is not available; use 'auto' or 'threads' or 'dali'"),
        ({"form": "padded"}, "use 'dense' or 'ragged'"),
        ({"verify": "sometimes"}, "use 'first' or 'always' or 'never'"),
        ({"global_batch": 0}, "loader.global_batch: is 0; give a whole number of at least 1"),
        ({"global_batch": 2.5}, "loader.global_batch: is 2.5"),
        ({"replica": 2, "replicas": 2}, "loader.replica: 2 of 2 replicas"),
        ({"replica": -1}, "loader.replica: is -1"),
        ({"replicas": 0}, "loader.replicas: is 0"),
        ({"k": None}, "loader.k: is missing"),
        ({"k": 0}, "loader.k: is 0"),
        ({"threads": 0}, "loader.threads: is 0"),
        ({"slots": 1}, "loader.slots: is 1"),
        ({"timeout_s": 0}, "loader.timeout_s: is 0"),
        ({"timeout_s": float("inf")}, "loader.timeout_s: is inf"),
        ({"max_damaged": -1}, "loader.max_damaged: is -1"),
        ({"seed": 0.5}, "loader.seed: is 0.5"),
        ({"epochs": -1}, "loader.epochs: is -1"),
        ({"split": "dev"}, "no split 'dev' .* it has train"),
        ({"form": "ragged"}, "serialise needs clouds of equal length"),
        ({"form": ["dense"]}, "loader.form: '.*' is not available"),
        ({"global_batch": True}, "loader.global_batch: is True"),
        ({"k": "5"}, "loader.k: is '5'; give a whole number of at least 1"),
        ({"k": 10**30}, "loader.k: is 1.*; give a whole number of at least 1 and at most"),
        ({"split": []}, "no split .* it has train"),
        ({"ratio": 0.5}, "loader.ratio: is 0.5; give a RatioSchedule"),
        ({"meter": 3}, "loader.meter: is 3; give Meter"),
        ({"meter": Meter(["read"])}, "loader.meter: is .*; give Meter"),
        ({"columns": "xyz"}, "loader.columns: is 'xyz'; give a list of names"),
        ({"columns": [3]}, "loader.columns: is .3.; give a list of names"),
        ({"graph": None}, "loader.graph: is None; give a list of operators"),
        ({"graph": RotateSettings()}, "loader.graph: is .*; give a list of operators"),
        ({"graph": {"kind": "rotate"}}, "loader.graph: is .*; give a list of operators"),
        ({"graph": ["rotate"]}, "loader.graph.0: is 'rotate'; give an operator, such as"),
        ({"graph": [RotateSettings(), {1: 2}]}, "loader.graph.1: is {1: 2}; give an operator"),
        ({"graph": [{"kind": "warp"}]}, "loader: key 'graph.0': .*'warp'"),
        ({"graph": [RotateSettings(), {"kind": "rotate", "degrees": 400}]}, "key 'graph.1.degrees': .*360"),
        ({"graph": [{"kind": "scale", "low": 1, "high": np.inf}]}, "key 'graph.0.high': .*finite"),
        ({"graph": [{"kind": "voxel", "sise": 1}]}, "graph.0.*; "),
    ],
)
def test_arguments_that_do_not_fit_are_refused_in_one_line(
    make: Make, change: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        loader(make([10]), **change)
    assert "\n" not in str(caught.value)


def test_what_is_no_dataset_is_refused() -> None:
    with pytest.raises(UsageError, match=r"loader.dataset: is 3; give a Dataset or its path"):
        loader(3)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="no such dataset"):
        loader("nowhere")  # type: ignore[arg-type]


def test_a_path_and_plain_dicts_say_the_same_as_objects(make: Make) -> None:
    data = make(SIZES)
    plain = [operator.model_dump(mode="json") for operator in GRAPH]
    whole = read(data, steps=2)
    assert read(data, steps=2, graph=[GRAPH[0], *plain[1:]]) == whole
    assert read(data.path, steps=2, graph=plain) == whole  # type: ignore[arg-type]
    assert read(str(data.path.parent), steps=2, graph=tuple(plain)) == whole  # type: ignore[arg-type]


def test_settings_are_strict() -> None:
    assert LoaderSettings().feeder == "inline"
    assert LoaderSettings.model_validate_json('{"graph": [{"kind": "rotate"}]}').graph == (RotateSettings(),)
    for wrong in (
        '{"feeder": "both"}',
        '{"engine": "torch"}',
        '{"slots": 1}',
        '{"timeout_s": 0}',
        '{"max_damaged": -1}',
        '{"batch": 0}',
        '{"graph": [{"kind": "warp"}]}',
        '{"graph": [{"kind": "voxel", "size": Infinity}]}',
        '{"graph": [{"kind": "serialise", "cell": Infinity}]}',
        '{"graph": [{"kind": "rotate", "degrees": NaN}]}',
        '{"ratio": {"start": Infinity}}',
    ):
        with pytest.raises(ValueError):
            LoaderSettings.model_validate_json(wrong)


@pytest.mark.parametrize("graph", [[], [{"kind": "rotate"}, {"kind": "serialise", "cell": 1.0}]])
def test_padding_is_labelled_as_what_counts_for_nothing(make: Make, graph: list[Any]) -> None:
    """A loss that ignores -1 and knows neither mask nor weight learns from no row that is not there."""
    data = make([50, 0, 200, 10, 100])
    with Loader(data, global_batch=4, k=64, epochs=1, graph=graph, replicas=3, replica=1) as loader:
        batches = list(loader)
    for batch in batches:
        assert batch.mask is not None
        assert (batch.columns["label"][~batch.mask] == -1).all()
        assert not batch.mask[batch.weight == 0].any()
    assert any(not batch.mask.all() for batch in batches if batch.mask is not None)
    assert any((batch.columns["label"] >= 0).any() for batch in batches)


def test_an_ended_loader_says_so_when_it_is_asked_again(make: Make) -> None:
    with Loader(make([30, 30]), global_batch=1, k=16, epochs=1) as loader:
        assert len(list(loader)) == 2
        with pytest.raises(UsageError, match="has given all its epochs"):
            list(loader)
        state = loader.state_dict()
        loader.load_state_dict(state)
        assert list(loader) == []  # resumed at the end: nothing is left, as it should be
