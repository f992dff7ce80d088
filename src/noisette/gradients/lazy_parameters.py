"""Refusal of models whose lazy modules have no shapes yet."""

from __future__ import annotations

from torch import nn
from torch.nn.parameter import is_lazy


def check_initialized(model: nn.Module) -> None:
    """Check that each parameter and buffer has its shape.

    Raises:
        ValueError: naming those of lazy modules that have had no input yet.
    """
    named = [*model.named_parameters(), *model.named_buffers()]
    if lazy := [name for name, tensor in named if is_lazy(tensor)]:
        raise ValueError(
            f"{', '.join(lazy)}: a lazy module has no parameters before its first input. Call the model once with a "
            "public input, and give its parameters to the optimizer after that"
        )
