"""A weight converted to the shape or type of data remains a weight, and data converted to those of a weight, data."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from noisette.core.registry import rewrites
from noisette.core.trace import Tape

OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "expand_as": torch.Tensor.expand_as,
    "view_as": torch.Tensor.view_as,
    "reshape_as": torch.Tensor.reshape_as,
    "type_as": torch.Tensor.type_as,
    "to": torch.Tensor.to,
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_result_is_the_same_and_no_use(operation: Callable[[Tensor, Tensor], Tensor]) -> None:
    model = torch.nn.Module()
    model.p = torch.nn.Parameter(torch.randn(3, 4))
    model.forward = lambda x: [operation(model.p, x), operation(x, model.p)]
    tape = Tape(model, rewrites())
    x = torch.randn(3, 4).double()
    weight, data = model(x)
    record = tape.pop()
    tape.close()
    expected = operation(model.p, x)
    assert weight.dtype == expected.dtype
    assert torch.equal(weight, expected)
    assert data.dtype == operation(x, model.p).dtype
    assert not record.uses
    assert {parent for derived in record.derived.values() for parent in derived.parents} <= {model.p}


def test_another_shape() -> None:
    p, x = torch.randn(1, 4), torch.randn(3, 4)
    assert torch.equal(rewrites()[torch.Tensor.expand_as](p, x), p.expand_as(x))
    assert torch.equal(rewrites()[torch.Tensor.view_as](p, x[0]), p[0])
