"""Clipped sums by definition: each example alone, in double precision, through a plain copy of the module.

Uses nothing of noisette.
"""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Inputs = Sequence[Tensor] | Mapping[str, Tensor]
Loss = Callable[..., Tensor]  # (model, *inputs) or (model, **inputs) -> one loss for each example


@dataclass(frozen=True)
class Clipped:
    """Gradient norms (b,), and the clipped sum for each trainable parameter by name."""

    norms: Tensor
    sums: dict[str, Tensor]

    @property
    def vector(self) -> Tensor:
        return torch.cat([g.flatten() for g in self.sums.values()])


@dataclass(frozen=True)
class ExampleGradients:
    """The gradient of each example for each trainable parameter by name, where the loss depends on it."""

    shapes: dict[str, Tensor]
    gradients: list[dict[str, Tensor]]

    @property
    def norms(self) -> list[float]:
        return [math.sqrt(sum(float((g * g).sum()) for g in one.values())) for one in self.gradients]

    def clipped(self, bound: float) -> Clipped:
        """Sum over examples of min(1, bound / norm) times gradient; an example without a finite norm adds nothing."""
        sums = {name: torch.zeros_like(p) for name, p in self.shapes.items()}
        norms = self.norms
        for norm, one in zip(norms, self.gradients, strict=True):
            if math.isfinite(norm):
                for name, g in one.items():
                    sums[name] += g * min(1.0, bound / norm if norm else 1.0)
        return Clipped(torch.tensor(norms, dtype=torch.float64), sums)


def example_gradients(model: nn.Module, loss: Loss, inputs: Inputs) -> ExampleGradients:
    plain = copy.deepcopy(model).double()
    for module in plain.modules():
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            hooks.clear()
    named = {name: p for name, p in plain.named_parameters() if p.requires_grad}
    of_examples = []
    names, columns = (list(inputs), list(inputs.values())) if isinstance(inputs, Mapping) else ([], inputs)
    for i in range(len(columns[0])):
        alone = [x[i : i + 1].double() if x.is_floating_point() else x[i : i + 1] for x in columns]
        value = (loss(plain, **dict(zip(names, alone, strict=True))) if names else loss(plain, *alone)).sum()
        gradients = torch.autograd.grad(value, list(named.values()), allow_unused=True)
        of_examples.append({name: g for name, g in zip(named, gradients, strict=True) if g is not None})
    return ExampleGradients(named, of_examples)


def clipped_sum(model: nn.Module, loss: Loss, inputs: Inputs, bound: float) -> Clipped:
    return example_gradients(model, loss, inputs).clipped(bound)
