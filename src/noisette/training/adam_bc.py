"""DP-AdamBC: Adam whose second moments are those of the gradients without the noise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from noisette import errors as checks


class AdamBC(Optimizer):
    """Adam that subtracts the known variance of the noise from its second moments.

    The noise of a private gradient is as large in each element, so the plain second moments, which contain it, are
    almost equal and Adam becomes SGD with momentum. Here an element moves by
    ``lr * m / sqrt(max(v - n, floor * n))``, where m and v are Adam's means of g and g^2, without their bias towards
    zero, and n is the same mean of the noise's variance.

    A private run tells this optimizer the deviation of the noise on each parameter before each step, also where it
    differs between parameters or changes, as with clipping by layer, an adaptive clipping norm or Lipschitz bounds. ::

        optimizer = noisette.AdamBC(model.parameters(), lr=0.001)
        run = noisette.privatize(model, optimizer, ...)

    Args:
        params: parameters or groups of them.
        lr: the learning rate.
        betas: the decays of the two means.
        floor: the least second moment that remains, as a share of the noise's variance; below it an element cannot be
            told from noise. A larger one takes smaller steps there. The paper gives it in units of a squared gradient.

    Guarantee: none of its own; it uses released gradients and public numbers alone.
    Source: Tang, Shpilevskiy & Lécuyer 2024, "DP-AdamBC: your DP-Adam is actually DP-SGD (unless you apply bias
    correction)", algorithm 1.

    Raises:
        ValueError: a number is outside its domain.
        RuntimeError: when stepping: no private run has told the deviations of the noise.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        floor: float = 0.01,
    ) -> None:
        first, second = betas
        checks.all_of(
            lambda: checks.positive(lr=lr, floor=floor),
            lambda: checks.below_one(first_beta=first, second_beta=second),
        )
        super().__init__(params, {"lr": lr, "betas": betas, "floor": floor})
        self._deviations: dict[int, float] = {}

    def take_deviations(self, deviations: Mapping[int, float]) -> None:
        """Take the deviation of the noise on each element of ``.grad``, by ``id`` of the parameter."""
        self._deviations = dict(deviations)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] (no closure)
        """Move the parameters that have a gradient."""
        if closure is not None:
            raise ValueError("a closure computes gradients that are not private; call step() without one")
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._move(p, p.grad, group)

    def _move(self, p: Tensor, grad: Tensor, group: Mapping[str, Any]) -> None:
        if id(p) not in self._deviations:
            raise RuntimeError(
                "AdamBC needs the deviation of the noise on each gradient, which a private run tells it: give this "
                "optimizer itself to noisette.privatize, not one that wraps it"
            )
        state, (first, second) = self.state[p], group["betas"]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float64)
            state["noise"] = torch.zeros((), dtype=torch.float64)  # the mean of the noise's variance
            state["mean"] = torch.zeros_like(p)
            state["square"] = torch.zeros_like(p)
        state["step"] += 1
        state["noise"].mul_(second).add_((1 - second) * self._deviations[id(p)] ** 2)
        state["mean"].lerp_(grad, 1 - first)
        state["square"].mul_(second).addcmul_(grad, grad, value=1 - second)
        seen_first, seen_second = (1 - beta ** state["step"].item() for beta in (first, second))
        noise = state["noise"].item()
        left = (state["square"] - noise).clamp_(min=group["floor"] * noise).div_(seen_second)
        p.addcdiv_(state["mean"], left.sqrt_(), value=-group["lr"] / seen_first)
