"""Several views of one record, whose losses or scores are averaged: one record is still one gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from noisette import errors as checks

Loss = Callable[..., Tensor]


def mean_over_views(loss: Loss, augment: Callable[[Tensor], Tensor], views: int) -> Loss:
    """The loss of one example as the mean over several views of it, for ``run.accumulate``.

    The views lie in one batch, so a step costs as much as one with ``views`` times as many examples.

    Args:
        loss: called as ``loss(model, x, *others)`` with the views of one example, (views, ...), and every other tensor
            repeated; returns one value for each view, or their mean as the losses of PyTorch do.
        augment: called with the example repeated, (views, ...); returns as many views, such as
            :class:`~noisette.nn.MirrorAndShift`.
        views: how many.

    Guarantee: the views of a record are in the loss of that record alone. Its gradient is their mean, is clipped once,
    and costs what one view costs.
    Source: De et al. 2022, "Unlocking high-accuracy differentially private image classification through scale",
    section 3.2.

    Raises:
        ValueError: ``views`` is not a positive integer; when called: another number of views comes back.

    >>> import torch
    >>> loss = mean_over_views(lambda model, x, y: (x.squeeze(1) - y) ** 2, lambda x: x + torch.arange(2.0)[:, None], 2)
    >>> loss(None, torch.tensor([[3.0]]), torch.tensor([3.0]))
    tensor([0.5000])
    """
    checks.count(views=views)

    def mean(model: nn.Module, x: Tensor, *others: Any, **keywords: Any) -> Tensor:
        made = augment(_repeated(x, views))
        if len(made) != len(x) * views:
            raise ValueError(f"expected {views} views of {len(x)} examples, got {len(made)} from augment")
        return _mean(loss, model, made.unflatten(0, (len(x), views)), others, keywords)

    return mean


def mean_over_stored_views(loss: Loss) -> Loss:
    """The same for views that were made before, which lie on the second axis of the example: (1, views, ...).

    >>> import torch
    >>> mean_over_stored_views(lambda model, x, y: (x - y) ** 2)(None, torch.tensor([[3.0, 5.0]]), torch.tensor([3.0]))
    tensor([2.])
    """

    def mean(model: nn.Module, x: Tensor, *others: Any, **keywords: Any) -> Tensor:
        return _mean(loss, model, x, others, keywords)

    return mean


class MirrorAverage(nn.Module):
    """A model of images whose scores are the mean of those for the image and for its mirror image.

    It has no parameters of its own: the guarantee of the model's weights covers it.

    Args:
        model: takes images (b, c, h, w).

    >>> import torch
    >>> MirrorAverage(nn.Flatten())(torch.tensor([[[[1.0, 3.0]]]]))
    tensor([[2., 2.]])
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return (self.model(x) + self.model(x.flip(-1))) / 2


class StoredViewsAverage(nn.Module):
    """A model whose scores are the mean of those for stored views, (b, views, ...)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x.flatten(0, 1)).unflatten(0, x.shape[:2]).mean(1)


def _mean(loss: Loss, model: nn.Module, made: Tensor, others: Any, keywords: Any) -> Tensor:
    """The mean over the views of examples (b, views, ...): one value for each example, or one if the loss has one."""
    count = made.shape[1]
    others, keywords = tree_map_only(Tensor, lambda value: _repeated(value, count), (others, keywords))
    values = loss(model, made.flatten(0, 1), *others, **keywords)
    return values.unflatten(0, made.shape[:2]).mean(1) if values.dim() else values


def _repeated(rows: Tensor, times: int) -> Tensor:
    """Each row this many times, one after the other."""
    return rows.unsqueeze(1).expand(len(rows), times, *rows.shape[1:]).flatten(0, 1)
