"""The examples of a batch on the first axis."""

from __future__ import annotations

import pytest
import torch

from noisette.core.forms import Examples

B, T = 3, 4
NUMBERED = torch.arange(B * T * 2).view(B, T, 2)  # (example, position, feature)


@pytest.mark.parametrize(
    "tensor",
    [NUMBERED, NUMBERED.flatten(0, 1), NUMBERED.view(B, 2, 2, 2), NUMBERED.view(B * 2, 2, 2)],
    ids=["one axis of positions", "positions merged", "two axes of positions", "one of two merged"],
)
def test_sequences(tensor: torch.Tensor) -> None:
    assert torch.equal(Examples(B).sequences(tensor), NUMBERED)
    assert Examples(B).first(tensor).shape[0] == B


def test_axes_that_cannot_hold_the_examples() -> None:
    for examples, shape in ((Examples(4), (6, 5)), (Examples(0), (6,)), (Examples(2), ()), (Examples(2), (0, 5))):
        with pytest.raises(ValueError, match="does not hold"):
            examples.first(torch.zeros(shape))
