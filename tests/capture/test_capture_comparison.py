"""Outputs of a graph are held against those of the function."""

from __future__ import annotations

import math

import torch

from noisette.capture.comparison import relative_difference, tolerance_of


def test_the_difference_is_a_share_of_the_norm() -> None:
    one, other = [torch.tensor([3.0, 0.0]), torch.tensor([4.0])], [torch.tensor([3.0, 0.5]), torch.tensor([4.0])]
    assert math.isclose(relative_difference(other, one), 0.1)
    assert relative_difference(one, one) == 0


def test_what_is_not_a_number_or_not_there_differs() -> None:
    nan, zero, one = torch.tensor([math.nan]), torch.zeros(1), torch.ones(1)
    assert not relative_difference([nan], [one]) <= 1
    assert not relative_difference([one], [nan]) <= 1
    assert relative_difference([one], [zero]) == math.inf
    assert relative_difference([zero], [zero]) == 0


def test_lower_precision_allows_more() -> None:
    assert tolerance_of({torch.float64}) < tolerance_of({torch.float32, torch.int64}) < tolerance_of({torch.bfloat16})
