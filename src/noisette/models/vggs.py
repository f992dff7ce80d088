"""VGG networks: stages of 3 x 3 convolutions, with pooling after each stage."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from noisette.models.blocks import Norm, Part, batch_norm, linears, normalised, plan_of, sequence
from noisette.models.shapes import Shape, need_images


def vgg(
    shape: Shape,
    classes: int,
    *,
    depth: int = 16,
    width: int = 64,
    norm: Norm = batch_norm,
    last_norm: bool = True,
    normalised_logits: bool = False,
) -> nn.Module:
    """A VGG with norms and one linear layer: 14,728,266 parameters for 10 classes of 3 x 32 x 32 at depth 16.

    Args:
        shape: (channels, height, width) of one image, 32 x 32 in the paper, which is the minimum.
        classes: number of scores for each image.
        depth: 11, 13, 16 or 19.
        width: channels of the first convolution.
        norm: after each convolution.
        last_norm: False leaves out the norm after the last convolution ("mod" in Davody et al. 2020).
        normalised_logits: True adds a norm after the linear layer.

    Source: Simonyan & Zisserman 2015; Davody et al. 2020, table 3.

    Raises:
        ValueError: examples are not images of 32 x 32 pixels or more, or ``depth`` is not listed above.
    """
    need_images("vgg", shape, pixels=32)
    features = vgg_features(depth, norm, channels=shape[0], width=width)
    if not last_norm:
        features[-3] = nn.Identity()
    numbers = 8 * width * (shape[1] // 32) * (shape[2] // 32)
    head = linears([nn.Linear(numbers, classes)], norm, normalised_logits=normalised_logits)
    return sequence([("features", features.append(nn.Flatten())), ("head", head)])


def light_vgg(
    shape: Shape, classes: int, *, width: int = 64, norm: Norm | None = None, normalised_logits: bool = False
) -> nn.Module:
    """Eight convolutions in three stages, global average pooling, and two linear layers: 2,462,282 parameters.

    With a norm, each convolution and linear layer is followed by one, the last only if ``normalised_logits``.

    Source: Davody et al. 2020, table 1.

    Raises:
        ValueError: examples are not images of 8 x 8 pixels or more.
    """
    need_images("light-vgg", shape, pixels=8)
    convolutions = _convolutions(shape[0], [(2, width), (2, 2 * width), (4, 4 * width)], norm)
    features = sequence([*convolutions, ("mean", nn.AdaptiveAvgPool2d(1)), ("flat", nn.Flatten())])
    layers = [nn.Linear(4 * width, 8 * width), nn.Linear(8 * width, classes)]
    return sequence([("features", features), ("head", linears(layers, norm, normalised_logits=normalised_logits))])


def vgg_features(depth: int, norm: Norm, *, channels: int = 3, width: int = 64) -> nn.Sequential:
    """The convolutions with pooling: 8 ``width`` channels, each side 1 / 32 of the image's."""
    widths = (width, 2 * width, 4 * width, 8 * width, 8 * width)
    return sequence(_convolutions(channels, list(zip(plan_of(depth, _VGGS), widths, strict=True)), norm))


_VGGS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


def _convolutions(channels: int, stages: Sequence[tuple[int, int]], norm: Norm | None) -> list[Part]:
    """For each stage (count, width), ``count`` convolutions of ``width`` channels, then pooling."""
    parts: list[Part] = []
    for stage, (count, width) in enumerate(stages, 1):
        for k in range(1, count + 1):
            layer = nn.Conv2d(channels, width, 3, padding=1)
            parts += [*normalised(f"conv{stage}_{k}", layer, norm), (f"act{stage}_{k}", nn.ReLU())]
            channels = width
        parts.append((f"pool{stage}", nn.MaxPool2d(2)))
    return parts
