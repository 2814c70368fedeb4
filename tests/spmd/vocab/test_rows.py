"""Rows of the pieces of a table: looked up, and added up."""

import pytest
import torch

from spmd._vocab.rows import add_rows, take_rows
from tests.spmd.same_as_torch import random

ROWS = torch.tensor([[[0, 1], [2, 2]], [[3, 3], [3, 0]]])  # [pieces, 2, 2]


@pytest.mark.parametrize("ids", [torch.int64, torch.int32])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_piece_looks_into_itself(dtype, ids):
    table = random(2, 4, 3).to(dtype)
    found = take_rows(table.to("xla"), ROWS.to(ids).to("xla"))
    wanted = torch.stack([piece[rows] for piece, rows in zip(table, ROWS, strict=True)])
    assert torch.equal(found.cpu(), wanted)


def test_values_of_one_row_are_added():
    values = torch.arange(24.0).reshape(2, 2, 2, 3)
    found = add_rows(ROWS.to("xla"), values.to("xla"), 4).cpu()
    wanted = torch.zeros(2, 4, 3)
    for p, i, j in torch.cartesian_prod(*[torch.arange(2)] * 3).tolist():
        wanted[p, ROWS[p, i, j]] += values[p, i, j]
    assert torch.equal(found, wanted)


def test_shapes_are_known_without_data():
    table, rows = random(2, 4, 3).to("meta"), ROWS.to("meta")
    assert take_rows(table, rows).shape == (2, 2, 2, 3)
    assert add_rows(rows, random(2, 2, 2, 3).to("meta"), 4).shape == (2, 4, 3)
