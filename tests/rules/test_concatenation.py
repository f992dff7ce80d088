"""Entries of concatenated and stacked tensors against autograd."""

from __future__ import annotations

import pytest
import torch
from noisette.rules.concatenation import cat_tensors, stack_tensors

from noisette.core.forms import Examples
from noisette.core.registry import rewrites
from rule_oracle import by_autograd, by_autograd_at, check_form, double

B = 4


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dim", [2, -1, 3])
def test_entries_of_cat(dim: int, axis: int) -> None:
    """Two entries of different sizes, with data before and between them."""
    shape = (3, B) if axis else (B, 3)

    def entry(size: int) -> torch.Tensor:
        return double(*shape, *((size, 5) if dim == 2 else (5, size)))

    p, q, x = entry(2), entry(1), entry(3)
    dy = double(*torch.cat([x, p, x, q], dim).shape)
    forms = cat_tensors(Examples(B, axis), dy, [x, p, x, q], dim)
    assert len(forms) == 4
    check_form(forms[1], by_autograd_at(Examples(B, axis), lambda v: torch.cat([x, v, x, q], dim), p, dy))
    check_form(forms[3], by_autograd_at(Examples(B, axis), lambda v: torch.cat([x, p, x, v], dim), q, dy))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_entries_of_stack(dim: int, axis: int) -> None:
    shape = (3, B, 5) if (axis == 1 and dim != 0) else (B, 3, 5)
    if dim == axis:
        shape = (3, 5, B)
    p, x = double(*shape), double(*shape)
    dy = double(*torch.stack([x, p], dim).shape)
    if dim == axis:
        with pytest.raises(ValueError, match=f"along axis {dim}, which holds the examples"):
            stack_tensors(Examples(B, axis), dy, [x, p], dim)
    else:
        form = stack_tensors(Examples(B, axis), dy, [x, p], dim)[1]
        check_form(form, by_autograd_at(Examples(B, axis), lambda v: torch.stack([x, v], dim), p, dy))


def test_concatenation_along_the_examples_is_refused_for_more_than_one_example() -> None:
    """Twice the examples would be taken for two positions of each."""
    x, p = double(B, 5), double(B, 5)
    with pytest.raises(ValueError, match="along axis 0, which holds the examples"):
        cat_tensors(Examples(B), double(2 * B, 5), [x, p])
    dy = double(3, 5)
    form = cat_tensors(Examples(1), dy, [double(1, 5), p[:2]])[1]
    check_form(form, dy[1:].unsqueeze(0))


def test_an_empty_entry_is_ignored() -> None:
    p, x = double(B, 2, 5), double(B, 1, 5)
    dy = double(B, 3, 5)
    check_form(
        cat_tensors(Examples(B), dy, [torch.zeros(0), p, x], 1)[1],
        by_autograd(lambda v: torch.cat([torch.zeros(0), v, x], 1), p, dy, B),
    )


def test_positions_folded_into_the_example_axis_are_refused() -> None:
    with pytest.raises(ValueError, match=f"one row for each of the {B} examples"):
        cat_tensors(Examples(B), double(3 * B, 4), [double(3 * B, 1), double(3 * B, 3)], 1)


@pytest.mark.parametrize("operation", [torch.hstack, torch.vstack, torch.dstack, torch.column_stack, torch.row_stack])
@pytest.mark.parametrize("shape", [(5,), (2, 5), (2, 5, 3), (2, 5, 3, 1)])
def test_stacks_are_rewritten_as_cat(operation, shape: tuple[int, ...]) -> None:
    entries = [double(*shape) for _ in range(3)]
    joined = rewrites()[operation](entries)
    if joined is NotImplemented:
        assert operation in (torch.hstack, torch.column_stack)
        assert len(shape) == 1
    else:
        assert torch.equal(joined, operation(entries))
