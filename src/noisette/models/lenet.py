"""The LeNets, with a choice of norm and activation."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from noisette.models.blocks import Activation, Norm, linears, normalised, sequence
from noisette.models.shapes import Shape, need_images, numbers_of


def lenet_300_100(
    shape: Shape,
    classes: int,
    *,
    norm: Norm | None = None,
    activation: Activation = nn.ReLU,
    normalised_logits: bool = True,
) -> nn.Module:
    """Two hidden layers of 300 and 100 units: 266,610 parameters for 28 x 28 pixels and 10 classes.

    With a norm, each linear layer is followed by one, the last only if ``normalised_logits``.

    Source: LeCun et al. 1998; Davody et al. 2020, table 1.
    """
    layers = [nn.Linear(*widths) for widths in pairwise([numbers_of(shape), 300, 100, classes])]
    head = linears(layers, norm, activation, normalised_logits=normalised_logits)
    return sequence([("features", nn.Flatten()), ("head", head)])


def lenet_5(
    shape: Shape,
    classes: int,
    *,
    norm: Norm | None = None,
    activation: Activation = nn.ReLU,
    normalised_logits: bool = True,
) -> nn.Module:
    """Two convolutions, each with max pooling, and three linear layers: 61,706 parameters on MNIST.

    With a norm, each convolution and linear layer is followed by one, the last only if ``normalised_logits``.

    Source: LeCun et al. 1998; Davody et al. 2020, table 1.

    Raises:
        ValueError: examples are not images of 12 x 12 pixels or more.

    >>> from noisette import models
    >>> network = models.lenet_5((1, 28, 28), 10, norm=models.layer_norm, activation=nn.Tanh)
    >>> [name for name, _ in network.features.named_children()]
    ['conv1', 'conv1_norm', 'act1', 'pool1', 'conv2', 'conv2_norm', 'act2', 'pool2', 'flat']
    """
    need_images("lenet-5", shape, pixels=12)
    features = [
        *normalised("conv1", nn.Conv2d(shape[0], 6, 5, padding=2), norm),
        ("act1", activation()),
        ("pool1", nn.MaxPool2d(2)),
        *normalised("conv2", nn.Conv2d(6, 16, 5), norm),
        ("act2", activation()),
        ("pool2", nn.MaxPool2d(2)),
        ("flat", nn.Flatten()),
    ]
    height, width = ((pixels // 2 - 4) // 2 for pixels in shape[1:])
    layers = [nn.Linear(*widths) for widths in pairwise([16 * height * width, 120, 84, classes])]
    head = linears(layers, norm, activation, normalised_logits=normalised_logits)
    return sequence([("features", sequence(features)), ("head", head)])
