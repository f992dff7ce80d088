"""From views of a parameter back to the parameter."""

from __future__ import annotations

import pytest
import torch

from noisette.bounding.derivation import Region, Slices, _disjoint, _overlaps_itself
from noisette.rules import Dense, Outer
from rule_oracle import check_form, double


def test_slices_of_a_packed_projection() -> None:
    packed = double(9, 4)
    lefts, right = [double(5, 6, 3) for _ in range(3)], double(5, 6, 4)
    parts = tuple((Region.of(w), Outer(left, right)) for w, left in zip(packed.chunk(3), lefts, strict=True))
    truth = torch.cat([torch.einsum("bto,bti->boi", left, right) for left in lefts], 1)
    check_form(Slices(packed, parts), truth)


def test_slices_of_a_parameter_that_is_a_slice_itself() -> None:
    packed = double(4, 9, 4)[2]
    gradients = double(5, 3, 4)
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
def test_views_that_share_memory_with_themselves(view, overlaps: bool) -> None:
    seen = view(double(4, 6))
    assert _overlaps_itself(seen) is overlaps
    assert _disjoint((Region.of(seen),)) is not overlaps


def test_regions_that_meet() -> None:
    w = double(6, 4)
    assert _disjoint((Region.of(w[:3]), Region.of(w[3:])))
    assert not _disjoint((Region.of(w[:3]), Region.of(w[2:])))
    assert _disjoint((Region.of(w[:, ::2]), Region.of(w[:, 1::2])))
