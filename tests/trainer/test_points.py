from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from tamis.samplers.curve import serialise
from tamis.trainer.learner import whole_model
from tamis.trainer.model_settings import CloudSettings, PointSettings
from tamis.trainer.models.points import MeanPool, Rotary
from tamis.trainer.models.trunk import Attention, Trunk
from tamis.trainer.tasks import Classification, Segmentation, TaskState

SETTINGS = PointSettings(width=24, heads=2, depth=4, window=8, features=("xy",))
STATE = TaskState(classes=("a", "b", "c"))


def cloud(seed: int, clouds: int = 2, k: int = 32) -> tuple[Tensor, Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    xyz = rng.uniform(-5, 5, (clouds, k, 3)).astype(np.float32)
    transposed = []
    for i in range(clouds):
        order, second = serialise(xyz[i], 0.1)
        xyz[i] = xyz[i][order]
        transposed.append(second)
    features = torch.from_numpy(rng.normal(size=(clouds, k, 2)).astype(np.float32))
    return torch.from_numpy(xyz), features, torch.from_numpy(np.stack(transposed))


def model(seed: int = 0) -> Trunk:
    torch.manual_seed(seed)
    return whole_model(Segmentation(SETTINGS, STATE, ["xyz"], "here"))


def scores(
    net: Trunk, xyz: Tensor, features: Tensor, transposed: Tensor, mask: Tensor | None = None
) -> Tensor:
    found: Tensor = net(features, xyz=xyz, transposed=transposed, **({} if mask is None else {"mask": mask}))
    return found


@pytest.mark.parametrize("seed", [1, 2])
def test_where_the_cloud_stands_does_not_matter(seed: int) -> None:
    xyz, features, transposed = cloud(seed)
    net = model(seed)
    with torch.no_grad():
        here = scores(net, xyz, features, transposed)
        there = scores(net, xyz + torch.tensor([16.0, -8.0, 4.0]), features, transposed)
        elsewhere = scores(net, xyz * torch.tensor([1.0, 1.0, 1.5]), features, transposed)
    assert (here - there).abs().max() < 1e-4
    assert (here - elsewhere).abs().max() > 1e-3


def test_attention_depends_on_the_difference_of_positions() -> None:
    torch.manual_seed(0)
    rotary = Rotary(16, (1.0, 16.0))  # 8 pairs: 2 for each coordinate, 2 that do not turn
    q, k = torch.randn(16).view(8, 2), torch.randn(16).view(8, 2)

    def product(a: Tensor, b: Tensor) -> Tensor:
        turns = rotary(torch.stack([a, b])[None])[0]
        turns = torch.view_as_complex(turns)
        turned = [torch.view_as_complex(v) * t for v, t in zip((q, k), turns, strict=True)]
        return torch.sum((turned[0] * turned[1].conj()).real)

    a, b, shift = torch.randn(3), torch.randn(3), torch.tensor([3.0, -1.0, 2.0])
    torch.testing.assert_close(product(a, b), product(a + shift, b + shift), rtol=1e-4, atol=1e-4)
    assert (product(a, b) - product(a + shift, b)).abs() > 1e-3


def test_the_shortest_and_the_longest_wavelength_turn_once() -> None:
    rotary = Rotary(24, (1.0, 16.0))
    turns = torch.view_as_complex(rotary(torch.tensor([[[1.0, 0.0, 16.0]]])))[0, 0].view(3, 4)
    torch.testing.assert_close(turns[0, 0], torch.tensor(1 + 0j), atol=1e-5, rtol=0)
    torch.testing.assert_close(turns[2, 3], torch.tensor(1 + 0j), atol=1e-5, rtol=0)
    assert (turns[1] == 1).all()


@pytest.mark.parametrize("curve", [0, 1])
def test_attention_is_softmax_attention_in_each_window_of_a_curve(curve: int) -> None:
    torch.manual_seed(1)
    xyz, _, transposed = cloud(1)
    net, x = model(), torch.randn(2, 32, 24)
    attention: Attention = net.blocks["0"].attention  # type: ignore[assignment]
    rotary = Rotary(12, SETTINGS.wavelengths)
    along = transposed if curve else torch.arange(32).expand(2, -1)
    with torch.no_grad():
        found = attention(x, net.sight(xyz=xyz, transposed=transposed)[curve])
        for b in range(2):
            for rows in along[b].view(4, 8):
                heads = []
                for h in range(2):
                    q, k, v = (
                        layer(x[b, rows])[:, 12 * h : 12 * h + 12]
                        for layer in (attention.query, attention.key, attention.value)
                    )
                    turn = torch.view_as_complex(rotary(xyz[b, rows]))
                    q, k = (torch.view_as_complex(t.reshape(8, 6, 2)) * turn for t in (q, k))
                    weight = ((q @ k.conj().T).real / 12**0.5).softmax(-1)
                    heads.append(weight @ v)
                torch.testing.assert_close(
                    found[b, rows], attention.out(torch.cat(heads, -1)), atol=1e-5, rtol=1e-4
                )


def test_blocks_take_the_curves_in_turn() -> None:
    xyz, features, transposed = cloud(2)
    net = model()
    views = net.sight(xyz=xyz, transposed=transposed)
    assert net.embed is not None
    assert net.norm is not None
    assert net.head is not None
    with torch.no_grad():
        x = net.embed(features)
        for i in range(4):
            x = net.blocks[str(i)](x, views[i % 2])
        assert torch.equal(net.head(net.norm(x)), scores(net, xyz, features, transposed))


def test_padding_rows_change_nothing() -> None:
    xyz, features, transposed = cloud(3)
    mask = torch.rand(2, 32, generator=torch.Generator().manual_seed(0)) < 0.6
    mask[1, 8:16] = False  # a window of nothing but padding
    net = model()
    with torch.no_grad():
        before = scores(net, xyz, features, transposed, mask)
        features[~mask] = 100.0
        after = scores(net, xyz, features, transposed, mask)
    assert torch.isfinite(after).all()
    torch.testing.assert_close(before[mask], after[mask])
    assert not torch.allclose(before[~mask], after[~mask])


def test_a_full_mask_is_no_mask() -> None:
    xyz, features, transposed = cloud(4)
    net = model()
    with torch.no_grad():
        found = scores(net, xyz, features, transposed, torch.ones(2, 32, dtype=torch.bool))
        torch.testing.assert_close(found, scores(net, xyz, features, transposed), atol=1e-5, rtol=1e-4)


def test_the_second_curve_joins_what_windows_of_the_first_separate() -> None:
    xyz, features, transposed = cloud(5, clouds=1)
    net = model()
    with torch.no_grad():
        before = scores(net, xyz, features, transposed)
        features[0, 0] += 1.0
        changed = (scores(net, xyz, features, transposed) - before).abs().amax(-1)[0] > 1e-7
    assert changed[:8].all()
    assert changed[8:].any()


def test_a_cloud_is_judged_by_the_mean_of_its_valid_rows() -> None:
    xyz, features, transposed = cloud(6)
    mask = torch.ones(2, 32, dtype=torch.bool)
    mask[1, 20:] = False
    task = Classification(CloudSettings(**SETTINGS.model_dump(exclude={"kind"})), STATE, ["xyz"], "here")
    torch.manual_seed(0)
    net, rows = whole_model(task), model()
    rows.load_state_dict(net.state_dict())
    with torch.no_grad():
        found = scores(net, xyz, features, transposed, mask)
        assert found.shape == (2, 3)
        each = scores(rows, xyz, features, transposed, mask)  # the head is linear: a mean of scores
        expected = torch.stack([each[0].mean(0), each[1, :20].mean(0)])
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
        features[~mask] = 100.0
        torch.testing.assert_close(scores(net, xyz, features, transposed, mask), found)


def test_a_cloud_of_nothing_but_padding_has_a_mean_of_zero() -> None:
    x = torch.full((2, 4, 3), torch.nan)
    x[0] = 1.0
    mask = torch.tensor([[True] * 4, [False] * 4])
    found = MeanPool()(x, mask=mask)
    assert found.tolist() == [[1.0] * 3, [0.0] * 3]


def test_the_recipe_has_78771_parameters() -> None:
    recipe = PointSettings(features=("xy", "z", "intensity", "returns"))
    task = Segmentation(recipe, STATE, ["xyz", "intensity", "return_number", "number_of_returns"], "here")
    assert sum(p.numel() for p in whole_model(task).parameters()) == 78_771
