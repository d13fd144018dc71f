from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tamis.errors import UsageError
from tamis.samplers import (
    VoxelAccumulator,
    adaptive,
    farthest,
    farthest_batch,
    random,
    stratified,
    voxel,
    voxelise,
)
from tamis.samplers.gate import checked

LATTICE = np.stack(np.meshgrid(*[np.arange(0.0, 12, 1.5)] * 3), -1).reshape(-1, 3)[::3] // 0.5 * 0.5

FORMS: dict[str, Any] = {
    "float64": LATTICE,
    "float32": LATTICE.astype(np.float32),
    "float16": LATTICE.astype(np.float16),
    "big-endian": LATTICE.astype(">f8"),
    "big-endian float32": LATTICE.astype(">f4"),
    "Fortran": np.asfortranarray(LATTICE),
    "every second row": np.repeat(LATTICE, 2, axis=0)[::2],
    "columns of a wider array": np.concatenate([LATTICE, LATTICE], axis=1)[:, :3],
    "reversed memory": LATTICE[::-1].copy()[::-1],
    "list": LATTICE.tolist(),
    "tensor": torch.from_numpy(LATTICE.copy()),
    "tensor, transposed": torch.from_numpy(LATTICE.T.copy()).T,
    "tensor with gradient": torch.from_numpy(LATTICE.copy()).requires_grad_(),
}


@pytest.mark.parametrize("form", FORMS)
def test_v16_every_form_gives_the_same_rows_and_voxels(form: str) -> None:
    xyz = FORMS[form]
    index, voxels = farthest(xyz, 40), voxel(xyz, 3.0)
    assert np.asarray(index).tolist() == farthest(LATTICE, 40).tolist()
    assert np.asarray(voxels.cell).tolist() == voxel(LATTICE, 3.0).cell.tolist()
    assert np.asarray(voxels.xyz).tolist() == voxel(LATTICE, 3.0).xyz.tolist()


@pytest.mark.parametrize("dtype", ["i1", "i4", ">i4", "u2", "i8", "u8"])
def test_v16_whole_numbers_give_the_same_rows(dtype: str) -> None:
    whole = LATTICE.astype(np.int64)
    assert farthest(whole.astype(dtype), 40).tolist() == farthest(whole.astype(float), 40).tolist()


REFUSED: dict[str, tuple[Any, str]] = {
    "two columns": (np.zeros((4, 2)), r"\(4, 2\)"),
    "one row as a vector": (np.zeros(3), r"\(3,\)"),
    "transposed": (np.zeros((3, 4)), r"\(3, 4\)"),
    "complex": (np.zeros((4, 3), complex), "complex128"),
    "bool": (np.zeros((4, 3), bool), "bool"),
    "text": (np.zeros((4, 3), "U2"), "<U2"),
    "objects": (np.full((4, 3), None), "object"),
    "wider than float64": (np.zeros((4, 3), np.longdouble), str(np.dtype(np.longdouble))),
    "conjugate": (torch.zeros((4, 3), dtype=torch.complex64).conj(), "complex64"),
    "bfloat16": (torch.zeros((4, 3), dtype=torch.bfloat16), "bfloat16"),
    "a number": (5.0, r"\(\)"),
    "int64 beyond float64": (np.full((4, 3), 2**60), "int64"),
}


@pytest.mark.parametrize("form", REFUSED)
def test_v16_other_forms_are_refused_by_name(form: str) -> None:
    xyz, named = REFUSED[form]
    with pytest.raises(UsageError, match=named):
        farthest(xyz, 1)
    with pytest.raises(UsageError, match=named):
        voxel(xyz, 1.0)


def test_a_tensor_elsewhere_than_on_the_cpu_is_refused() -> None:
    with pytest.raises(UsageError, match=r"on meta.*\.cpu\(\)"):
        voxel(torch.zeros((4, 3), device="meta"), 1.0)


def test_tensors_come_back_as_tensors() -> None:
    xyz = torch.rand(50, 3)
    assert isinstance(farthest(xyz, 5), torch.Tensor)
    voxels = voxel(
        xyz, 0.5, fields={"label": torch.zeros(50, dtype=torch.int32), "ring": np.zeros(50, ">u2")}
    )
    for value in (
        voxels.xyz,
        voxels.index,
        voxels.inverse,
        voxels.count,
        voxels.cell,
        voxels.fields["label"],
    ):
        assert isinstance(value, torch.Tensor)
    assert voxels.fields["label"].dtype == torch.int32
    assert voxels.fields["ring"].dtype == np.dtype(">u2")


def test_a_tensor_that_is_negated_lazily_is_read_as_it_is() -> None:
    xyz = torch.complex(torch.ones(4, 3), torch.ones(4, 3)).conj().imag
    assert xyz.is_neg()
    assert (checked(xyz).xyz == -1).all()


def test_non_finite_rows_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    xyz = np.ones((6, 3), np.float32)
    xyz[1, 0], xyz[3, 1], xyz[4, 2] = np.nan, np.inf, -np.inf
    with caplog.at_level(logging.WARNING):
        cloud = checked(xyz)
    assert cloud.rows is not None
    assert cloud.rows.tolist() == [0, 2, 5]
    assert "3 of 6 rows" in caplog.text


def test_large_finite_values_are_finite() -> None:
    assert checked(np.full((5, 3), 3e38, np.float32)).rows is None


def _seeded() -> dict[str, Callable[[Any], Any]]:
    xyz = np.random.default_rng(0).random((9, 3))
    box, edges = (0, 0, 0, 1, 1, 1), (1, 1, 1)
    return {
        "farthest": lambda seed: farthest(xyz, 2, seed=seed),
        "farthest_batch": lambda seed: farthest_batch(xyz, [0, 9], 2, seed=seed),
        "random": lambda seed: random(9, 2, seed=seed),
        "stratified": lambda seed: stratified([0, 1], 1, seed=seed),
        "adaptive": lambda seed: adaptive(xyz, 2, seed=seed),
        "voxelise": lambda seed: voxelise(xyz, box, edges, max_points=1, max_voxels=1, seed=seed),
        "accumulator": lambda seed: VoxelAccumulator(0.5, seed=seed),
    }


@pytest.mark.parametrize("seed", [1.5, None, True, "1"])
@pytest.mark.parametrize("sampler", _seeded())
def test_a_seed_is_a_whole_number(sampler: str, seed: Any) -> None:
    _seeded()[sampler](np.int8(-1))
    with pytest.raises(UsageError, match=f"seed: is {seed!r}; give a whole number"):
        _seeded()[sampler](seed)


def test_the_mask_of_an_array_is_not_ignored() -> None:
    xyz = np.ma.array(np.eye(3), mask=np.eye(3) == 1)
    for sampler in (lambda: farthest(xyz, 1), lambda: voxel(np.eye(3), 1.0, fields={"height": xyz[:, 0]})):
        with pytest.raises(UsageError, match=r"masked array.*\.filled\(\)"):
            sampler()
    xyz.mask = False
    assert farthest(xyz, 3).tolist() == farthest(np.eye(3), 3).tolist()


@pytest.mark.parametrize("layout", ["sparse_coo", "_mkldnn"])
def test_a_tensor_that_is_not_dense_is_refused(layout: str) -> None:
    xyz = torch.zeros(4, 3)
    with pytest.raises(UsageError, match=rf"is a {layout} tensor.*\.to_dense\(\)"):
        farthest(xyz.to_sparse() if layout == "sparse_coo" else xyz.to_mkldnn(), 1)


def test_rows_of_unlike_length_are_no_array() -> None:
    with pytest.raises(UsageError, match="xyz: is no array"):
        farthest([[0, 0, 0], [1, 1]], 1)
