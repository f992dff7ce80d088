"""Norms of a kernel's gradients from Gram matrices, by hand and against autograd."""

from __future__ import annotations

import pytest
import torch

from noisette.rules.conv import GRAM_PLANS, Geometry, KernelGradients
from rule_oracle import TOLERANCE, of_single_examples, uneven


@pytest.mark.parametrize("name", GRAM_PLANS)
def test_plans(name: str) -> None:
    form = uneven(5)
    norms, _ = GRAM_PLANS[name]
    torch.testing.assert_close(norms(form), of_single_examples(form).flatten(1).square().sum(1), **TOLERANCE)


@pytest.mark.parametrize("name", GRAM_PLANS)
def test_kernel_of_two_by_hand(name: str) -> None:
    """Pixels 1, 2, 3 and output gradients 1, 10: the gradients are 1 + 20 and 2 + 30."""
    x, dy = torch.tensor([[[1.0, 2, 3]]]).double(), torch.tensor([[[1.0, 10]]]).double()
    form = KernelGradients(x, dy, Geometry((2,), (1,), (0,), (1,), 1), torch.Size((1, 1, 2)))
    norms, size = GRAM_PLANS[name]
    torch.testing.assert_close(norms(form), torch.tensor([21.0**2 + 32.0**2]).double(), **TOLERANCE)
    assert size(form) == {"gram of pixels": 3 * 3, "gram of patches": 2 * 2 + 2 * 2}[name]
