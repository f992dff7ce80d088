"""Views of an example: mirrored and shifted copies, and means over them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from noisette import errors as checks

__all__ = ["MirrorAndShift", "MirrorAverage", "mean_over_views"]

Loss = Callable[..., Tensor]


def mean_over_views(loss: Loss, augment: Callable[[Tensor], Tensor], views: int) -> Loss:
    """The loss of one example as the mean over several views of it, for ``run.accumulate``.

    The views lie in one batch, so a step costs as much as one with ``views`` times as many examples. ``loss`` is called
    as ``loss(model, x, *others)`` with the views of one example, (views, ...), and every other tensor repeated; it
    returns one value for each view, or their mean. ``augment``, such as :class:`~noisette.nn.MirrorAndShift`, is called
    with the example repeated, (views, ...), and returns as many views.

    Guarantee: the views of a record are in the loss of that record alone. Its gradient is their mean, is clipped once,
    and costs what one view costs.
    Source: De et al. 2022, "Unlocking high-accuracy [...] image classification through scale", section 3.2.

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


class MirrorAverage(nn.Module):
    """A model of images (b, c, h, w) whose scores are the mean of those for the image and for its mirror image.

    >>> MirrorAverage(nn.Flatten())(torch.tensor([[[[1.0, 3.0]]]]))
    tensor([[2., 2.]])
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return (self.model(x) + self.model(x.flip(-1))) / 2


def _mean(loss: Loss, model: nn.Module, made: Tensor, others: Any, keywords: Any) -> Tensor:
    """The mean over the views of examples (b, views, ...): one value for each example, or one if the loss has one."""
    count = made.shape[1]
    others, keywords = tree_map_only(Tensor, lambda value: _repeated(value, count), (others, keywords))
    values = loss(model, made.flatten(0, 1), *others, **keywords)
    return values.unflatten(0, made.shape[:2]).mean(1) if values.dim() else values


def _repeated(rows: Tensor, times: int) -> Tensor:
    """Each row this many times, one after the other."""
    return rows.unsqueeze(1).expand(len(rows), times, *rows.shape[1:]).flatten(0, 1)


class MirrorAndShift:
    """Random views of images (b, c, h, w): mirrored with probability one half, shifted by up to ``shift`` pixels.

    Each row has random numbers of its own, from the generator of PyTorch. A private run seeds it secretly for each
    batch: if others knew the views, one record more would move those of all records behind it. All shifts along an axis
    are equally likely; pixels without a value take that of the nearest pixel of the border.

    >>> MirrorAndShift(flip=True, shift=2)(torch.zeros(5, 3, 8, 8)).shape
    torch.Size([5, 3, 8, 8])
    """

    def __init__(self, *, flip: bool = True, shift: int = 0) -> None:
        if shift:
            checks.count(shift=shift)
        if not (flip or shift):
            raise ValueError("views are mirrored or shifted; ask for flip, for a shift, or for both")
        self.flip, self.shift = flip, shift

    def __call__(self, images: Tensor) -> Tensor:
        count, device = len(images), images.device
        if self.flip:
            mirrored = torch.rand(count, device=device) < 0.5
            images = torch.where(mirrored.view(-1, 1, 1, 1), images.flip(-1), images)
        if self.shift:
            down, right = (torch.randint(-self.shift, self.shift + 1, (count,), device=device) for _ in range(2))
            images = _shifted(images, down, right)
        return images


def _shifted(images: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """Each image shifted by its own number of pixels, (b,); the border is repeated."""
    height, width = images.shape[-2:]
    rows = (torch.arange(height, device=images.device) - down.unsqueeze(1)).clamp(0, height - 1)
    columns = (torch.arange(width, device=images.device) - right.unsqueeze(1)).clamp(0, width - 1)
    moved = images.gather(2, rows[:, None, :, None].expand(images.shape))
    return moved.gather(3, columns[:, None, None, :].expand(images.shape))
