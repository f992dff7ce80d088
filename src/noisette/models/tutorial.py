"""The CIFAR-10 network of the TensorFlow tutorial, and its variant in Abadi et al. 2016."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from noisette.models.blocks import Norm, Part, linears, normalised, sequence, truncated_normal
from noisette.models.shapes import Shape, need_images

_CROP = 24  # pixels a side of the part of the image that the networks use
_FEATURES = 64 * (_CROP // 4) ** 2  # after the second pooling


def cifar_tutorial(
    shape: Shape, classes: int, *, norm: Norm | None = None, normalised_logits: bool = True
) -> nn.Module:
    """Two convolutions and three linear layers on the central 24 x 24 pixels: the CIFAR-10 network of the paper.

    Its parts are called ``features`` (``conv1``, ``conv2``) and ``head`` (``fc1``, ``fc2``, ``scores``). The paper
    learned the features from public images, see :func:`pretrained`, and only the head privately. It distorted its
    training images at random, which this network does not. With a norm, each convolution and linear layer is followed
    by one, the last only if ``normalised_logits``.

    Source: Abadi et al. 2016, section 5.3; initial weights are those of the TensorFlow tutorial that it builds on.

    Raises:
        ValueError: examples are not images of 24 x 24 pixels or more.
    """
    need_images("cifar-tutorial", shape, pixels=_CROP)
    features = [
        *_first(shape[0], norm),
        ("pool1", nn.MaxPool2d(2)),
        *_second(norm),
        ("pool2", nn.MaxPool2d(2)),
        ("flat", nn.Flatten()),
    ]
    return sequence([("features", sequence(features)), ("head", _head(384, classes, norm, normalised_logits))])


def tf_tutorial(shape: Shape, classes: int, *, norm: Norm | None = None, normalised_logits: bool = True) -> nn.Module:
    """The network of the TensorFlow tutorial itself: 1,068,298 parameters for 10 classes of colour images.

    Unlike in :func:`cifar_tutorial`, pooling windows overlap, local response normalisation follows each convolution,
    and the second linear layer has 192 units.

    Source: the code that Abadi et al. 2016 and Davody et al. 2020 build on; Krizhevsky et al. 2012, section 3.3, for
    response normalisation.

    Raises:
        ValueError: examples are not images of 24 x 24 pixels or more.
    """
    need_images("tf-tutorial", shape, pixels=_CROP)
    features = [
        *_first(shape[0], norm),
        ("pool1", nn.MaxPool2d(3, 2, ceil_mode=True)),
        ("responses1", _responses()),
        *_second(norm),
        ("responses2", _responses()),
        ("pool2", nn.MaxPool2d(3, 2, ceil_mode=True)),
        ("flat", nn.Flatten()),
    ]
    return sequence([("features", sequence(features)), ("head", _head(192, classes, norm, normalised_logits))])


def _first(channels: int, norm: Norm | None) -> list[Part]:
    """Central crop, standardisation of each image, and the first convolution."""
    return [
        ("crop", CentreCrop(_CROP)),
        ("standardised", nn.GroupNorm(1, channels, affine=False)),
        *normalised("conv1", truncated_normal(nn.Conv2d(channels, 64, 5, padding=2), 0.05), norm),
        ("act1", nn.ReLU()),
    ]


def _second(norm: Norm | None) -> list[Part]:
    layer = truncated_normal(nn.Conv2d(64, 64, 5, padding=2), 0.05, bias=0.1)
    return [*normalised("conv2", layer, norm), ("act2", nn.ReLU())]


def _responses() -> nn.Module:
    """Over nine channels; torch divides ``alpha`` by their number."""
    return nn.LocalResponseNorm(9, alpha=0.001, beta=0.75, k=1.0)


def _head(units: int, classes: int, norm: Norm | None, normalised_logits: bool) -> nn.Module:
    hidden = [truncated_normal(nn.Linear(*widths), 0.04, bias=0.1) for widths in pairwise([_FEATURES, 384, units])]
    scores = truncated_normal(nn.Linear(units, classes), 1 / units)
    return linears([*hidden, scores], norm, normalised_logits=normalised_logits)


class CentreCrop(nn.Module):
    """The central square of images, of ``side`` pixels a side."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, x: Tensor) -> Tensor:
        top, left = ((pixels - self.side) // 2 for pixels in x.shape[-2:])
        return x[..., top : top + self.side, left : left + self.side]
