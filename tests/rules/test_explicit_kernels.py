"""Gradients of a kernel that are written out, against autograd on one example after another."""

from __future__ import annotations

import pytest
import torch

from noisette.rules.conv import EXPLICIT_PLANS, by_backend, few_operations_plans
from rule_oracle import TOLERANCE, of_single_examples, uneven


@pytest.mark.parametrize("name", EXPLICIT_PLANS)
def test_plans(name: str) -> None:
    form = uneven(7)
    torch.testing.assert_close(EXPLICIT_PLANS[name](form), of_single_examples(form), **TOLERANCE)


@pytest.mark.parametrize("name", few_operations_plans(uneven(1)))
def test_plans_of_few_operations(name: str) -> None:
    form = uneven(7)
    plan, size = few_operations_plans(form)[name]
    torch.testing.assert_close(plan(form), of_single_examples(form), **TOLERANCE)
    assert size >= form.weight.numel()


def test_the_backend_is_asked_for_no_example() -> None:
    assert by_backend(uneven(0)).shape == (0, 6, 2, 3, 2)
