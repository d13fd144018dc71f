"""What a run will take, rank by rank, before a rank is started: parameters, memory, work, bytes sent.

Parameters are counted from the model's own shapes, operations and bytes on the wire by formula (see `flops`
and `wire`). Memory is that of fp32 numbers; what torch itself takes, and what only lives inside an operator,
is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import torch
from torch.distributed.tensor import Shard

from .flops import BACKWARD, block_flops, embedding_flops, head_flops
from .learner import stage_parts
from .mesh import AXES, Mesh
from .models.trunk import Part, new_trunk
from .optimisers.optimiser import is_hidden_matrix, states
from .parallel.pipeline import own_stages
from .parallel.rows import Rows
from .parallel.schedules import Action, Actions, Kind, actions
from .parallel.simulate import simulate
from .parallel.tensor import placement_of
from .parallel.wire import sent
from .settings import LayoutSettings, Recompute, Settings
from .tasks import Task
from .tasks.features import CloudTask

_BYTES = 4  # of a number, fp32
_WHOLE: tuple[Kind, ...] = ("F", "B")


@dataclass(frozen=True)
class RankEstimate:
    """What one rank holds and does in a step at ratio 1.

    ``place``: its index on each axis; ``parameters``: numbers it keeps; ``memory``: bytes by what they are
    for; ``flops``: floating-point operations, recomputation not counted; ``wire_bytes``: sent, by axis.
    """

    rank: int
    place: Mapping[str, int]
    blocks: tuple[int, ...]
    parameters: int
    memory: Mapping[str, int]
    flops: float
    wire_bytes: Mapping[str, float]


@dataclass(frozen=True)
class Parameter:
    """A parameter on a rank, before FSDP shares it out.

    ``name``: in the model; ``shape``: once tensor-parallel ranks have split it; ``split``: whether they have.
    """

    name: str
    shape: tuple[int, ...]
    split: bool

    @property
    def unit(self) -> str:
        """What FSDP gathers it with, a block or the rest of a stage."""
        return self.name.split(".")[1] if self.name.startswith("blocks.") else "rest"

    def held(self, shards: int, index: int) -> int:
        """How many of its numbers one of ``shards`` ranks keeps: its share of the rows."""
        return _share(self.shape[0], shards, index) * prod(self.shape[1:])

    def sent(self, shards: int) -> int:
        """How many numbers of it each rank has in a collective, where all have as many rows."""
        return -(-self.shape[0] // shards) * prod(self.shape[1:])


def parameters_of(task: Task, part: Part, tp: int, index: int) -> list[Parameter]:
    """The parameters of a stage on tensor-parallel rank ``index`` of ``tp``, from a model without storage."""
    with torch.device("meta"):
        model = new_trunk(task.model, task.makers, Rows(None, tp, index), [part], lambda _: None)
    found = []
    for name, parameter in model.named_parameters():
        placement = placement_of(name)
        shape, split = list(parameter.shape), isinstance(placement, Shard)
        if isinstance(placement, Shard):
            shape[placement.dim] = _share(shape[placement.dim], tp, index)
        found.append(Parameter(name, tuple(shape), split))
    return found


class Estimator:
    """Estimates for a run of a task, of which only the model and the number of classes count."""

    def __init__(self, settings: Settings, task: Task) -> None:
        self.task, self.layout = task, settings.layout
        self.k, self.recompute = settings.trainer.points, settings.trainer.recompute
        self.optimiser = settings.trainer.optimiser
        layout = self.layout
        self.sizes = layout.sizes
        self.parts = stage_parts(task, layout, self.k)
        self.samples = -(-layout.share(settings.loader.batch) // layout.parts)  # of a microbatch
        self.actions = _orders(layout)

    def ranks(self) -> list[RankEstimate]:
        """One for each rank."""
        places = product(*map(range, self.sizes))
        return [self._rank(rank, (a, b, c, d)) for rank, (a, b, c, d) in enumerate(places)]

    def bubble(self) -> float:
        """The share of time in which pipeline ranks wait, were time in proportion to operations."""

        def times(kind: Kind, stage: int) -> float:
            forward = self._forward_flops(stage)
            if kind == "F":
                return forward
            whole = BACKWARD * forward
            if kind == "B":
                return whole
            if stage == 0:  # which leaves all to W
                return whole if kind == "W" else 0.0
            return whole / 2

        return simulate(self.actions, times).bubble

    def _rank(self, rank: int, place: tuple[int, int, int, int]) -> RankEstimate:
        layout = self.layout
        stages = own_stages(layout, Mesh(rank, torch.device("meta"), self.sizes, place))
        parameters = {s: parameters_of(self.task, self.parts[s], layout.tp, place[3]) for s in stages}
        numbers = {p: p.held(layout.shard, place[2]) for own in parameters.values() for p in own}
        held = sum(numbers.values())
        kept = sum(states(self.optimiser, p.name, len(p.shape)) * n for p, n in numbers.items())
        saved = {s: self._stage_saved(s) for s in stages}
        again = 0 if self.recompute == "none" else self._block_saved("none")  # of the block at work
        rows = self.samples * self.k * layout.parts
        return RankEstimate(
            rank,
            dict(zip(AXES, place, strict=True)),
            tuple(i for s in stages for i in self.parts[s].blocks),
            held,
            {
                "parameters": _BYTES * held,
                "gradients": _BYTES * held,
                "optimiser": _BYTES * kept,
                "gathered": self._gathered(parameters),
                "activations": _most_alive(self.actions[place[0]], saved) + again,
            },
            (1 + BACKWARD) * sum(map(self._forward_flops, stages)) * rows / layout.tp,
            self._wire(place[0], parameters),
        )

    def _forward_flops(self, stage: int) -> float:
        """Operations of a stage's forward pass, for each row, on all tensor-parallel ranks together."""
        part = self.parts[stage]
        flops = len(part.blocks) * block_flops(self.task.model, self.k)
        flops += embedding_flops(self.task) if part.first else 0.0
        return flops + (head_flops(self.task) if part.last else 0.0)

    def _gathered(self, parameters: Mapping[int, Sequence[Parameter]]) -> int:
        """Bytes of what FSDP holds whole, beside its shares: parameters and gradients of the largest unit.

        Of all units: parameters where they are not given back, gradients where microbatches add up.
        """
        shards = self.layout.shard
        if shards == 1:
            return 0
        units: dict[tuple[int, str], int] = {}
        for stage, own in parameters.items():
            for p in own:
                key = (stage, p.unit)
                units[key] = units.get(key, 0) + _BYTES * shards * p.sent(shards)
        largest, every = max(units.values()), sum(units.values())
        return (largest if self.layout.reshards else every) + (every if self.layout.parts > 1 else largest)

    def _block_saved(self, recompute: Recompute) -> int:
        """Bytes that a block keeps of a microbatch for its backward pass.

        Numbers a row, where w is the width, r ``mlp_ratio`` and t the tensor-parallel ranks. With "none": the
        inputs of the matrices, w + w + w/t + r w/t, those of the norms, 2 w/t, queries, keys and values,
        3 w/t, what attention gives, w/t, and what the activation reads, r w/t. With "full": the input of the
        block, w/t. With "selective": also what matrices and attention give, 4 w/t + r w/t + 2 w.
        """
        w, t, r = self.task.model.width, self.layout.tp, self.task.model.mlp_ratio
        split = {"none": 7 + 2 * r, "selective": 5 + r, "full": 1}[recompute]
        whole = 0 if recompute == "full" else 2
        return _BYTES * self.samples * self.k * (whole * w + split * w // t)

    def _stage_saved(self, stage: int) -> int:
        """Bytes that a stage keeps of a microbatch from its forward to its backward pass.

        Beside those of the blocks, a row: features and 2 w/t in the embedding, or a token; in the head the
        norm's and its own input, w/t + w, and the probabilities of the classes.
        """
        w, t, part = self.task.model.width, self.layout.tp, self.parts[stage]
        row = _BYTES * self.samples * self.k
        saved = len(part.blocks) * self._block_saved(self.recompute)
        if part.first:
            saved += row * (self.task.width + 2 * w // t) if isinstance(self.task, CloudTask) else 2 * row
        if part.last:
            saved += row * (w // t + w) + _BYTES * self._scored() * self.task.classes // t
        return saved

    def _scored(self) -> int:
        """Rows of a microbatch that the head reads."""
        return self.samples if self.task.makers.pool else self.samples * self.k

    def _wire(self, pp_index: int, parameters: Mapping[int, Sequence[Parameter]]) -> dict[str, float]:
        """Bytes that a rank sends in a step, by axis; the few that carry counts and the loss are left out."""
        pp, copies, shards, tp = self.sizes
        layout, order = self.layout, self.actions[pp_index]
        row, w = self.samples * self.k * _BYTES, self.task.model.width
        found = dict.fromkeys(AXES, 0.0)
        for stage, own in parameters.items():
            part = self.parts[stage]
            held = _BYTES * sum(p.sent(shards) for p in own)
            found["dp_replicate"] += sent("all_reduce", held, copies)
            gathers = _gathers(order, stage, layout.reshards, pp > 1)
            found["dp_shard"] += sent("all_gather", shards * held * gathers, shards)
            found["dp_shard"] += sent("reduce_scatter", shards * held, shards)

            ends = (stage > 0 and stage - 1 not in parameters) + (
                stage + 1 < len(self.parts) and stage + 1 not in parameters
            )
            found["pp"] += ends * layout.parts * row * w // tp

            # Rows are gathered and scattered around attention and perceptron, forward and backward; what is
            # recomputed stops short of the last time.
            moves = (8 if self.recompute == "none" else 11) * len(part.blocks) + 2 * (part.first + part.last)
            found["tp"] += sent("all_gather", layout.parts * moves * row * w, tp)
            if part.last:  # a maximum and two sums over the classes of each row
                found["tp"] += sent("all_reduce", layout.parts * 3 * _BYTES * self._scored(), tp)
            if self.optimiser == "muon":  # gathers updates, from the shares of FSDP first
                turned = [p for p in own if is_hidden_matrix(p.name, len(p.shape))]
                for axis, ranks, each in (("dp_shard", shards, shards), ("tp", tp, 1)):
                    whole = _BYTES * ranks * sum(p.sent(each) for p in turned)
                    found[axis] += sent("all_gather", whole, ranks)
            alike = _BYTES * sum(p.sent(1) for p in own if not p.split)  # FSDP shares them out afterwards
            found["tp"] += sent("all_reduce", alike, tp)
        return {axis: value for axis, value in found.items() if value}


def _share(size: int, ranks: int, index: int) -> int:
    """How many of ``size`` rows one of so many ranks has, as torch.chunk shares them out."""
    each = -(-size // ranks)
    return max(0, min(each, size - index * each))


def _orders(layout: LayoutSettings) -> Actions:
    if layout.pp > 1:
        return actions(layout.schedule, layout.pp, layout.parts)
    return {0: [Action(kind, 0, i) for i in range(layout.parts) for kind in _WHOLE]}


def _most_alive(order: Sequence[Action], saved: Mapping[int, int]) -> int:
    """The most bytes of microbatches that are between their forward and their last backward pass."""
    alive = most = 0
    for action in order:
        if action.kind == "F":
            alive += saved[action.stage]
            most = max(most, alive)
        elif action.kind != "I":
            alive -= saved[action.stage]
    return most


def _gathers(order: Sequence[Action], stage: int, reshard: bool, pipelined: bool) -> int:
    """How often FSDP gathers the parameters of a stage in a step.

    It gives them back after a forward pass if told to, and after a backward pass but for a pipeline's.
    """
    count, whole = 0, False
    for action in order:
        if action.stage == stage:
            count += not whole
            whole = not reshard if action.kind == "F" else pipelined
    return count
