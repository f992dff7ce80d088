"""Each form agrees with explicit gradients in its norms, gradients and weighted sum."""

import pytest
import torch
from torch import Tensor

from noisette.core.forms import Dense, Outer, Rows, Total, add, compact, gram_product
from rule_oracle import check_form, double

B = 5


def outer_truth(left: Tensor, right: Tensor) -> Tensor:
    return torch.einsum("bto,bti->boi", left, right)


def rows_truth(ids: Tensor, rows: Tensor, table: torch.Size) -> Tensor:
    full = torch.zeros(len(ids), *table, dtype=rows.dtype)
    for i in range(len(ids)):
        for t in range(ids.shape[1]):
            if ids[i, t] >= 0:
                full[i, ids[i, t]] += rows[i, t]
    return full


def some_rows(t: int, width: int, table: int) -> Rows:
    ids, rows = torch.randint(0, table, (B, t)), double(B, t, width)
    ids[:, 1:3] = ids[:, :1]
    ids[0, -1], rows[0, -1] = -1, 0
    ids[1], rows[1] = -1, 0
    return Rows(ids, rows, torch.Size((table, width)))


@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4)])
def test_dense(shape: tuple[int, ...]) -> None:
    gradients = double(B, *shape)
    check_form(Dense(gradients), gradients)


# (positions, outputs, inputs) for each branch of Outer: one, parts kept, gram kept, gram, parts, gram of many positions
BRANCHES = [(1, 4, 3), (20, 4, 3), (16, 20, 30), (3, 6, 5), (12, 3, 4), (17, 90, 80)]


@pytest.mark.parametrize("shape", BRANCHES, ids=str)
def test_outer(shape: tuple[int, int, int]) -> None:
    t, o, i = shape
    left, right = double(B, t, o), double(B, t, i)
    check_form(Outer(left, right), outer_truth(left, right))
    check_form(compact(Outer(left, right)), outer_truth(left, right))
    check_form(Outer(left, right).transposed(), outer_truth(right, left))


def test_positions_of_one_example_never_just_add_up() -> None:
    """Goodfellow's product of norms holds for one position only."""
    left, right = torch.ones(1, 2, 1, dtype=torch.float64), torch.ones(1, 2, 1, dtype=torch.float64)
    assert Outer(left, right).squared_norms().item() == pytest.approx(4)


def test_rows() -> None:
    form = some_rows(6, 3, 9)
    check_form(form, rows_truth(form.ids, form.rows, form.table))


@pytest.mark.parametrize("t", [1, 4, 20])
def test_total_of_outer_and_rows(t: int) -> None:
    """A table tied to the output layer: both gradients may point in the same direction."""
    rows = some_rows(6, 3, 9)
    left, right = double(B, t, 9), double(B, t, 3)
    truth = outer_truth(left, right) + rows_truth(rows.ids, rows.rows, rows.table)
    for parts in ((Outer(left, right), rows), (rows, Outer(left, right))):
        check_form(Total(parts), truth)
        check_form(add(parts), truth)


def test_total_of_opposite_gradients_is_zero() -> None:
    rows = some_rows(4, 3, 9)
    left = torch.nn.functional.one_hot(rows.ids.clamp(min=0), 9).double()
    total = Total((rows, Outer(left, -rows.rows)))
    assert float(total.squared_norms().max()) <= 1e-12
    assert bool((total.squared_norms() >= 0).all())


def test_add_merges_gradients_of_one_form() -> None:
    left, right = double(B, 3, 4), double(B, 3, 2)
    twice = add([Outer(left, right), Outer(2 * left, right)])
    assert isinstance(twice, Outer)
    check_form(twice, 3 * outer_truth(left, right))
    dense = double(B, 4, 2)
    check_form(add([Dense(dense), Dense(dense)]), 2 * dense)
    rows = some_rows(4, 3, 9)
    both = add([rows, rows])
    assert isinstance(both, Rows)
    check_form(both, 2 * rows_truth(rows.ids, rows.rows, rows.table))
    assert add([rows]) is rows
    check_form(add([Outer(left, right), Dense(dense), Outer(left, -right), Dense(dense)]), 2 * dense)


def test_gram_products_round_upwards() -> None:
    """Cancellation in a Gram product could reduce the norm; the result is never below the true norm."""
    for _ in range(50):
        left, right = torch.randn(4, 30, 8), torch.randn(4, 30, 6)
        left[:, 15:], right[:, 15:] = left[:, :15], -right[:, :15] * (1 + 1e-4 * torch.randn(4, 15, 6))
        truth = outer_truth(left.double(), right.double()).flatten(1).square().sum(1)
        gram = gram_product(left @ left.transpose(1, 2), right @ right.transpose(1, 2))
        assert bool((gram.double() >= truth * (1 - 1e-6)).all())
