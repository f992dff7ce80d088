"""The networks that the CIFAR-10 studies took from a tutorial of TensorFlow."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from noisette.models.initial import truncated_normal
from noisette.models.shapes import Shape, need_images

_CROP = 24  # pixels a side of what the networks see


def cifar_tutorial(shape: Shape, classes: int) -> nn.Module:
    """Two convolutions and three linear layers over the 24 x 24 pixels in the middle: that of the CIFAR-10 study.

    Its parts are called ``features`` (``conv1``, ``conv2``) and ``head`` (``fc1``, ``fc2``, ``scores``). The study
    learnt the features from public images, see :func:`pretrained`, and privately no more than the head. It distorted
    its training images at random, which this network does not.

    Source: Abadi et al. 2016, section 5.3; initial weights are those of the TensorFlow tutorial that it builds on.
    """
    need_images("cifar-tutorial", shape, pixels=_CROP)
    features: dict[str, nn.Module] = {
        "crop": CentreCrop(_CROP),
        "standardised": nn.GroupNorm(1, shape[0], affine=False),
        "conv1": truncated_normal(nn.Conv2d(shape[0], 64, 5, padding=2), 0.05),
        "relu1": nn.ReLU(),
        "pool1": nn.MaxPool2d(2),
        "conv2": truncated_normal(nn.Conv2d(64, 64, 5, padding=2), 0.05, bias=0.1),
        "relu2": nn.ReLU(),
        "pool2": nn.MaxPool2d(2),
        "flat": nn.Flatten(),
    }
    head: dict[str, nn.Module] = {
        "fc1": truncated_normal(nn.Linear(64 * (_CROP // 4) ** 2, 384), 0.04, bias=0.1),
        "relu1": nn.ReLU(),
        "fc2": truncated_normal(nn.Linear(384, 384), 0.04, bias=0.1),
        "relu2": nn.ReLU(),
        "scores": truncated_normal(nn.Linear(384, classes), 1 / 384),
    }
    parts = {"features": nn.Sequential(OrderedDict(features)), "head": nn.Sequential(OrderedDict(head))}
    return nn.Sequential(OrderedDict(parts))


class CentreCrop(nn.Module):
    """The square in the middle of images, of this many pixels a side."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, x: Tensor) -> Tensor:
        top, left = ((pixels - self.side) // 2 for pixels in x.shape[-2:])
        return x[..., top : top + self.side, left : left + self.side]
