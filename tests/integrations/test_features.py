"""The fixed part of the models: triangles and norms, of each row by itself."""

from __future__ import annotations

import numpy as np
import torch

from noisette.integrations.scikit_learn import Knots, UnitNorm, fixed_part, trained_part


def test_triangles_interpolate_on_the_grid_of_tops() -> None:
    x = torch.rand(50, 3, dtype=torch.float64)
    heights = 2 * Knots(5)(x)[:, 3:].view(50, 3, 5)
    tops = np.linspace(0, 1, 6)
    for knot in range(5):
        one_there = np.eye(6)[knot + 1]
        expected = np.interp(x.numpy(), tops, one_there)
        np.testing.assert_allclose(heights[..., knot].numpy(), expected, atol=1e-12)


def test_an_indicator_takes_part_only_where_it_is_one() -> None:
    assert Knots(8)(torch.zeros(1, 4)).eq(0).all()
    at_one = Knots(8)(torch.tensor([[1.0, 0.0]]))
    assert at_one.nonzero()[:, 1].tolist() == [0, 2 + 7]


def test_a_row_does_not_depend_on_the_others() -> None:
    rows = torch.rand(7, 4, dtype=torch.float64)
    rows[3] *= 1e6
    together = fixed_part(3)(rows)
    alone = torch.cat([fixed_part(3)(row[None]) for row in rows])
    assert torch.equal(together, alone)
    torch.testing.assert_close(together.norm(dim=1), torch.ones(7, dtype=torch.float64))


def test_a_row_of_zeros_stays_finite() -> None:
    assert UnitNorm()(torch.zeros(2, 3)).eq(0).all()


def test_the_last_layer_begins_at_zero_behind_hidden_ones() -> None:
    model = trained_part(4, 3, knots=2, hidden_layer_sizes=(5, 6))
    assert model(torch.rand(2, 12)).eq(0).all()
    assert [p.shape for p in model.parameters() if p.dim() == 2] == [(5, 12), (6, 5), (3, 6)]
