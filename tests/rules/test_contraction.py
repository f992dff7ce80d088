"""The gradient of one factor of a sum of products against autograd, and the form it takes."""

from __future__ import annotations

import pytest
import torch

from noisette.core.forms import Dense, Examples, Outer
from noisette.rules.linear import GroupedOuter, factor_gradients
from rule_oracle import by_autograd, check_form, double

B = 4


@pytest.mark.parametrize(
    ("equation", "shapes", "place", "form"),
    [
        ("bi,io->bo", [(B, 3), (3, 5)], 1, Outer),
        ("bti,oi->bto", [(B, 2, 3), (5, 3)], 1, Outer),
        ("oi,bti->bto", [(5, 3), (B, 2, 3)], 0, Outer),
        ("...i,oi->...o", [(B, 2, 7, 3), (5, 3)], 1, Outer),
        ("bsi,io->bo", [(B, 6, 3), (3, 5)], 1, Outer),
        ("bti,hio->bhto", [(B, 2, 3), (6, 3, 5)], 1, GroupedOuter),
        ("bhti,hio->bhto", [(B, 6, 2, 3), (6, 3, 5)], 1, GroupedOuter),
        ("bhti,oih->bhto", [(B, 6, 2, 3), (5, 3, 6)], 1, GroupedOuter),
        ("b...i,...io->b...o", [(B, 2, 7, 3), (7, 3, 5)], 1, GroupedOuter),
        ("bi,oij,bj->bo", [(B, 3), (4, 3, 5), (B, 5)], 1, GroupedOuter),
        ("bti,oij,btj->bto", [(B, 2, 3), (4, 3, 5), (B, 2, 5)], 1, GroupedOuter),
        ("bti,oij,btj->bto", [(B, 9, 3), (4, 3, 5), (B, 9, 5)], 1, Dense),
        ("cio,bi->bco", [(2, 3, 5), (B, 3)], 0, GroupedOuter),
        ("bi,i->bi", [(B, 3), (3,)], 1, Dense),
        ("bti,i->bt", [(B, 2, 3), (3,)], 1, Dense),
        ("bi,ij->b", [(B, 3), (3, 4)], 1, Dense),  # only the weight has j
        ("bi,ijk->bj", [(B, 3), (3, 4, 6)], 1, Dense),
        ("b...i,...io->b...o", [(B, 2, 7, 3), (1, 3, 5)], 1, Dense),
        ("b...i,...io->b...o", [(B, 2, 7, 3), (2, 1, 3, 5)], 1, Dense),
        ("bi,io->bo", [(B, 1), (3, 5)], 1, Dense),  # the data is broadcast
        ("bi,io->bo", [(B, 3), (1, 5)], 1, Dense),  # the weight is broadcast
        ("bii,i->b", [(B, 3, 3), (3,)], 1, Dense),
        ("bto,ti,io->bo", [(B, 2, 5), (2, 3), (3, 5)], 1, Dense),
        ("bto,ti,io->bo", [(B, 2, 5), (2, 3), (3, 5)], 2, Dense),
    ],
)
def test_factor(equation: str, shapes: list[tuple[int, ...]], place: int, form: type) -> None:
    check(Examples(B), equation, shapes, place, form)


def check(examples: Examples, equation: str, shapes, place: int, form: type | None = None) -> None:
    tensors = [double(*shape) for shape in shapes]
    dy = torch.randn_like(torch.einsum(equation, *tensors))

    def output(weight: torch.Tensor) -> torch.Tensor:
        return torch.einsum(equation, *tensors[:place], weight, *tensors[place + 1 :])

    found = factor_gradients(examples, dy, equation, tensors, place)
    check_form(found, by_autograd(output, tensors[place], dy, examples.count))
    assert form is None or type(found) is form


def test_diagonal_of_a_weight_is_refused() -> None:
    with pytest.raises(ValueError, match="takes a diagonal of a weight"):
        factor_gradients(Examples(B), double(B), "bi,ii->b", [double(B, 3), double(3, 3)], 1)


@pytest.mark.parametrize("shape", [(B, 3), (1, 3)])
def test_a_weight_that_holds_the_examples_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=f"a weight holds the {B} examples"):
        factor_gradients(Examples(B), double(B, 3), "bi,bi->bi", [double(B, 3), double(*shape)], 1)
