"""``einsum`` with any equation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from noisette.core.forms import ExampleGradients, Examples, rewrite, rule_per_operand
from noisette.rules.contraction import factor_gradients


@rewrite(torch.einsum)
def einsum_of_list(equation: str, *operands: Any) -> Any:
    """The same with the operands as separate arguments."""
    return torch.einsum(equation, *operands[0]) if type(operands[0]) in (list, tuple) else NotImplemented


_FACTORS = ("first", "second", "third", "fourth")


@rule_per_operand(torch.einsum, operands=_FACTORS, names=("equation", *_FACTORS))
def einsum(operand: str, examples: Examples, dy: Tensor, arguments: Mapping[str, Any]) -> ExampleGradients:
    """G = dy times the other operands, summed over every letter that the operand does not have."""
    factors = {name: arguments[name] for name in _FACTORS if name in arguments}
    tensors = [factor if name == operand else factor.conj() for name, factor in factors.items()]
    return factor_gradients(examples, dy, arguments["equation"], tensors, list(factors).index(operand))
