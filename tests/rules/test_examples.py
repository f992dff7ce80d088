"""Examples are moved to the first axis from wherever the model has them."""

from __future__ import annotations

import pytest
import torch

from noisette.core.forms import Examples

B, T = 3, 4
NUMBERED = torch.arange(B * T * 2).view(B, T, 2)  # (example, position, feature)


@pytest.mark.parametrize(
    ("tensor", "examples"),
    [
        (NUMBERED, Examples(B)),
        (NUMBERED.transpose(0, 1), Examples(B, 1)),
        (NUMBERED.flatten(0, 1), Examples(B)),
        (NUMBERED.transpose(0, 1).flatten(0, 1), Examples(B, inner=True)),
        (NUMBERED.unsqueeze(0), Examples(B, 1)),
        (NUMBERED.flatten(0, 1).unsqueeze(0), Examples(B, 1)),
        (NUMBERED.transpose(0, 1).flatten(0, 1).unsqueeze(0), Examples(B, 1, inner=True)),
    ],
    ids=["first", "second", "folded", "folded, examples inside", "on axis 1", "folded on axis 1", "inside on axis 1"],
)
def test_sequences(tensor: torch.Tensor, examples: Examples) -> None:
    assert torch.equal(examples.sequences(tensor), NUMBERED)
    assert examples.first(tensor).shape[0] == B


def test_axes_that_cannot_hold_the_examples() -> None:
    for examples, shape in (
        (Examples(4), (6, 5)),
        (Examples(0), (6,)),
        (Examples(2), ()),
        (Examples(2, 1), (2,)),
        (Examples(2, 1), (2, 3)),
        (Examples(2), (0, 5)),
    ):
        with pytest.raises(ValueError, match="does not hold"):
            examples.first(torch.zeros(shape))
