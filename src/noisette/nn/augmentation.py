"""Views of images: mirrored and shifted by some pixels, at random or in a fixed order."""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

from noisette import errors as checks


class MirrorAndShift:
    """Random views of images (b, c, h, w): each is mirrored with probability one half and shifted by some pixels.

    Each row has random numbers of its own, from the generator of PyTorch. A private run seeds it secretly for each
    batch: if others knew the views, one record more would move those of all records behind it.
    Where a shift leaves pixels without a value, they take that of the nearest pixel of the border.

    Args:
        flip: whether images are mirrored, left to right.
        shift: the most pixels by which an image is shifted along each axis; all shifts are equally likely.

    Raises:
        ValueError: ``shift`` is below zero, or neither is asked for.

    >>> MirrorAndShift(flip=True, shift=2)(torch.zeros(5, 3, 8, 8)).shape
    torch.Size([5, 3, 8, 8])
    """

    def __init__(self, *, flip: bool = True, shift: int = 0) -> None:
        _check(flip, shift)
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


def fixed_views(images: Tensor, views: int, *, flip: bool, shift: int) -> Tensor:
    """The first ``views`` fixed views of each image: (n, c, h, w) to (n, views, c, h, w).

    They are the image, its mirror image, and the same shifted by ``shift`` pixels along one axis and along both. A
    model whose first part is fixed computes the features of each once.

    Args:
        images: (n, c, h, w).
        views: how many of them are taken, in this order.
        flip: whether there are mirror images.
        shift: by how many pixels the others are shifted; 0 for none.

    Raises:
        ValueError: ``views`` is not a positive integer, or there are fewer.

    >>> fixed_views(torch.tensor([[[[1.0, 2.0]]]]), 2, flip=True, shift=0).squeeze().tolist()
    [[1.0, 2.0], [2.0, 1.0]]
    """
    checks.count(views=views)
    _check(flip, shift)
    places = sorted(product(sorted({0, -shift, shift}), repeat=2), key=lambda place: (sum(map(abs, place)), place))
    offered = [(*place, mirrored) for place in places for mirrored in ([False, True] if flip else [False])]
    if views > len(offered):
        raise ValueError(
            f"there are {len(offered)} fixed views with flip={flip} and shift={shift}, got views={views}; "
            "ask for fewer, or for a flip or a shift too"
        )
    made = []
    for down, right, mirrored in offered[:views]:
        whole = torch.full((len(images),), 1, device=images.device)
        view = images.flip(-1) if mirrored else images
        made.append(_shifted(view, down * whole, right * whole) if down or right else view)
    return torch.stack(made, 1)


def _shifted(images: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """Each image shifted by its own number of pixels, (b,); the border is repeated."""
    height, width = images.shape[-2:]
    rows = (torch.arange(height, device=images.device) - down.unsqueeze(1)).clamp(0, height - 1)
    columns = (torch.arange(width, device=images.device) - right.unsqueeze(1)).clamp(0, width - 1)
    moved = images.gather(2, rows[:, None, :, None].expand(images.shape))
    return moved.gather(3, columns[:, None, None, :].expand(images.shape))


def _check(flip: bool, shift: int) -> None:
    if shift:
        checks.count(shift=shift)
    if not (flip or shift):
        raise ValueError("views are mirrored or shifted; ask for flip, for a shift, or for both")
