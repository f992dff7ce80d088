"""Gradients of a parameter from those of its views and of sums with it."""

import pytest
import torch

from noisette.core.forms import Dense, DerivedWeight, Outer
from noisette.rules.derived_weights import Region, Slices, _disjoint, _overlaps_itself, to_parameters
from rule_oracle import check_form, double


def test_slices_of_a_packed_projection() -> None:
    packed = double(9, 4)
    lefts, right = [double(5, 6, 3) for _ in range(3)], double(5, 6, 4)
    parts = tuple((Region.of(w), Outer(left, right)) for w, left in zip(packed.chunk(3), lefts, strict=True))
    truth = torch.cat([torch.einsum("bto,bti->boi", left, right) for left in lefts], 1)
    check_form(Slices(packed, parts), truth)


def test_slices_of_a_parameter_that_is_a_slice_itself() -> None:
    packed, gradients = double(4, 9, 4)[2], double(5, 3, 4)
    truth = torch.zeros(5, 9, 4, dtype=torch.float64)
    truth[:, 3:6] = gradients
    check_form(Slices(packed, ((Region.of(packed[3:6]), Dense(gradients)),)), truth)


VIEWS = {
    "whole": (lambda w: w, False),
    "transposed": (lambda w: w.t(), False),
    "columns": (lambda w: w[:, 1::2], False),
    "one row": (lambda w: w[2], False),
    "diagonal": (lambda w: w.diagonal(), False),
    "expanded": (lambda w: w.expand(3, *w.shape), True),
    "windows": (lambda w: w.unfold(1, 2, 1), True),
    "windows apart": (lambda w: w.unfold(1, 2, 2), False),
    "axis of one": (lambda w: w.unsqueeze(0).expand(1, -1, -1), False),
}


@pytest.mark.parametrize(("view", "overlaps"), VIEWS.values(), ids=VIEWS)
def test_views_whose_elements_share_memory(view, overlaps: bool) -> None:
    seen = view(double(4, 6))
    assert _overlaps_itself(Region.of(seen)) is overlaps
    assert _disjoint((Region.of(seen),)) is not overlaps


def test_regions_that_overlap() -> None:
    w = double(6, 4)
    assert _disjoint((Region.of(w[:3]), Region.of(w[3:])))
    assert not _disjoint((Region.of(w[:3]), Region.of(w[2:])))
    assert _disjoint((Region.of(w[:, ::2]), Region.of(w[:, 1::2])))


SHIFTS = {  # each with whether the term gets the gradient in its original form
    "W + c": (torch.add, lambda w, c: (w, c), {}, True),
    "c + W": (torch.Tensor.__radd__, lambda w, c: (w, c), {}, True),
    "W + W": (torch.Tensor.add, lambda w, c: (w, w), {}, True),
    "W + 1": (torch.Tensor.__add__, lambda w, c: (w, 1.0), {}, True),
    "W - c": (torch.Tensor.__sub__, lambda w, c: (w, c), {}, True),
    "c - W": (torch.sub, lambda w, c: (c, w), {}, False),
    "W - W": (torch.Tensor.sub, lambda w, c: (w, w), {}, False),
    "c + 3 W": (torch.add, lambda w, c: (c, w), {"alpha": 3}, False),
    "W + row": (torch.add, lambda w, c: (w, c[0]), {}, True),
    "row of W + c": (torch.add, lambda w, c: (w[:1], c), {}, False),
    "W + single precision": (torch.add, lambda w, c: (w, c.float()), {}, True),
    "2 W + c": (torch.add, lambda w, c: (2 * w, c), {}, False),
}


@pytest.mark.parametrize(("operation", "operands", "kwargs", "keeps"), SHIFTS.values(), ids=SHIFTS)
def test_terms_of_a_sum_get_its_gradients_in_their_form(operation, operands, kwargs, keeps) -> None:
    w, c = double(6, 4).requires_grad_(), double(6, 4)
    arguments = operands(w, c)
    shifted, arriving = operation(*arguments, **kwargs), Outer(double(5, 3, 6), double(5, 3, 4))
    [(parameter, form)] = to_parameters(
        [(shifted, arriving)], {id(shifted): DerivedWeight(shifted, (w,), operation, arguments, kwargs)}
    )
    assert parameter is w
    assert isinstance(form, Outer) == keeps
    rows = torch.einsum("bto,bti->boi", arriving.left, arriving.right)
    check_form(form, torch.stack([torch.autograd.grad(shifted, w, row, retain_graph=True)[0] for row in rows]))


@pytest.mark.parametrize("w", [torch.ones(6, 4), torch.ones(1, 4).double()], ids=["precision", "shape"])
def test_a_term_of_other_shape_or_precision_gets_gradients_in_its_own(w: torch.Tensor) -> None:
    w.requires_grad_()
    shifted, arriving = w + (c := double(6, 4)), double(5, 6, 4)
    [(_, form)] = to_parameters(
        [(shifted, Dense(arriving))], {id(shifted): DerivedWeight(shifted, (w,), torch.add, (w, c), {})}
    )
    torch.testing.assert_close(form.explicit(), arriving.sum_to_size(5, *w.shape).to(w.dtype))
