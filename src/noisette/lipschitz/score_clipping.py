"""Gradients with respect to the scores, each scaled down to the bound from which all others follow."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from noisette.clipping.quantile_count import count_within_norm, twice_the_count
from noisette.core.clip import AdaptiveRule, ClippingRule, Count, Group, clipping_factors
from noisette.core.release import BoundedSum

_SCORES = "scores"


class ScoreClipping:
    """Holds each example's gradient at the scores within its bound, which a clipping rule may lower.

    Args:
        rule: a rule with one clipping norm; without it the bound is that of the loss alone.
    """

    def __init__(self, rule: ClippingRule | None) -> None:
        self.rule = rule
        self._group: Group | None = None  # of the current batch: all its microbatches have the same clipping norm
        self._counted: Tensor | None = None
        self._released: Count | None = None  # with the last batch

    @property
    def group(self) -> Group:
        """The clipping of the current batch; an infinite norm without a rule.

        Raises:
            ValueError: the rule has several clipping norms.
        """
        if self._group is None:
            self.adapt()  # also where the optimizer failed after a release
            self._group = Group((_SCORES,), math.inf) if self.rule is None else _single_group(self.rule)
        return self._group

    def clip(self, gradients: Tensor, losses: Tensor, limit: float) -> tuple[Tensor, Tensor | None]:
        """Scale each example's gradient with respect to the scores down to the limit.

        An example whose loss or gradient is not finite contributes nothing. Without a rule nothing else changes, unless
        the loss exceeds its stated Lipschitz constant.

        Args:
            gradients: of each example, (b, ...).
            losses: of each example, (b,).
            limit: bound on the norm of one example's gradient, at most that of the rule.

        Returns:
            The scaled gradients, and twice the count for the quantile of an adaptive clipping norm, where an example
            counts +1/2 within the norm and -1/2 above (``None`` without adaptive clipping).
        """
        norms = gradients.double().flatten(1).norm(dim=1).where(losses.detach().isfinite(), math.nan)
        factors = clipping_factors([Group((_SCORES,), limit, self.group.factor)], norms.unsqueeze(0))[0]
        shape = (-1, *[1] * (gradients.dim() - 1))
        scaled = gradients * factors.to(gradients.dtype).view(shape)
        counted = None if self.group.count is None else twice_the_count(norms, self.group.bound)
        return torch.where(factors.isfinite().view(shape), scaled, 0), counted

    def add_count(self, twice: Tensor | None) -> None:
        """Add the count of a microbatch to that of the batch."""
        if twice is not None:
            self._counted = twice + (self._counted if self._counted is not None else 0)

    def pop_count(self) -> BoundedSum | None:
        """The count of the batch, if the rule counts; nothing is pending afterwards."""
        count, counted = self.group.count, self._counted
        self._group, self._counted, self._released = None, None, count
        return None if count is None else count_within_norm(count, counted)

    def adapt(self) -> None:
        """Give an adaptive rule the count that was released."""
        released = self._released.released.grad if self._released is not None else None
        if isinstance(self.rule, AdaptiveRule) and released is not None:
            self.rule.adapt(released)


def _single_group(rule: ClippingRule) -> Group:
    groups = rule.groups([_SCORES])
    if len(groups) != 1:
        raise ValueError(
            f"logit clipping needs a rule with one clipping norm, such as FlatClipping(0.1), got {type(rule).__name__}"
        )
    return groups[0]
