"""The random distortion of training images: photographs are shifted and mirrored, digits and texts stay as they are."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

Distortion = Callable[[Tensor], Tensor]

_MARGIN = 4  # pixels


def distortion_for(data: str) -> Distortion:
    """The distortion of the training batches of this data set."""
    return shifted_and_mirrored if data == "cifar10" else unchanged


def unchanged(inputs: Tensor) -> Tensor:
    """The same inputs."""
    return inputs


def shifted_and_mirrored(images: Tensor) -> Tensor:
    """Each image shifted by up to four pixels in each direction, padded with black, and mirrored in half the cases."""
    count, _, height, width = images.shape
    device = images.device
    framed = pad(images, (_MARGIN,) * 4)
    tops, lefts = torch.randint(2 * _MARGIN + 1, (2, count, 1), device=device)
    rows = tops + torch.arange(height, device=device)
    columns = lefts + torch.arange(width, device=device)
    mirrored = torch.rand(count, 1, device=device) < 0.5
    columns = torch.where(mirrored, columns.flip(1), columns)
    return framed[torch.arange(count, device=device)[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(
        0, 3, 1, 2
    )
