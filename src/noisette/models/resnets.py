"""Residual networks for images of 32 x 32 pixels, and residual blocks for images of any size."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from noisette.models.blocks import Norm, Part, batch_norm, linears, normalised, plan_of, sequence
from noisette.models.shapes import Shape, need_images


def resnet(
    shape: Shape,
    classes: int,
    *,
    depth: int = 18,
    width: int = 64,
    norm: Norm = batch_norm,
    last_norm: bool = True,
    normalised_logits: bool = False,
) -> nn.Module:
    """A ResNet with a first convolution of 3 x 3 and no pooling before the stages.

    11,173,962 parameters for 10 classes of colour images at depth 18. Convolutions have no biases; shortcuts that
    change the shape are a 1 x 1 convolution with a norm.

    Args:
        shape: (channels, height, width) of one image, 32 x 32 in the paper.
        classes: number of scores for each image.
        depth: 18, 34, 50 or 101.
        width: channels of the first stage; each of the other three has twice as many as the one before.
        norm: after each convolution.
        last_norm: False leaves out the norm after the very last convolution ("mod" in Davody et al. 2020).
        normalised_logits: True adds a norm after the linear layer.

    Source: He et al. 2016, section 4.2; Davody et al. 2020, table 1.

    Raises:
        ValueError: examples are not images, or ``depth`` is not listed above.
    """
    need_images("resnet", shape)
    blocks = residual_blocks(depth, width, norm)
    if not last_norm:
        blocks[-1].body[-1] = nn.Identity()
    features = [
        *normalised("conv", nn.Conv2d(shape[0], width, 3, padding=1, bias=False), norm),
        ("act", nn.ReLU()),
        ("blocks", nn.Sequential(*blocks)),
        ("pool", nn.AdaptiveAvgPool2d(1)),
        ("flat", nn.Flatten()),
    ]
    head = linears([nn.Linear(blocks[-1].channels, classes)], norm, normalised_logits=normalised_logits)
    return sequence([("features", sequence(features)), ("head", head)])


class Residual(nn.Module):
    """The ReLU of the sum of a body and a shortcut around it; the output has ``channels`` channels."""

    def __init__(self, body: nn.Sequential, shortcut: nn.Module, channels: int) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut
        self.channels = channels

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu(self.body(x) + self.shortcut(x))


def residual_blocks(depth: int, width: int, norm: Norm) -> list[Residual]:
    """The blocks of all four stages, for an input of ``width`` channels."""
    block, counts = plan_of(depth, _RESNETS)
    blocks: list[Residual] = []
    channels = width
    for stage, count in enumerate(counts):
        for k in range(count):
            blocks.append(block(channels, width * 2**stage, 2 if k == 0 and stage > 0 else 1, norm))
            channels = blocks[-1].channels
    return blocks


def _basic(channels: int, width: int, stride: int, norm: Norm) -> Residual:
    body = [
        *_convolution("conv1", channels, width, 3, stride, norm),
        ("act1", nn.ReLU()),
        *_convolution("conv2", width, width, 3, 1, norm),
    ]
    return Residual(sequence(body), _shortcut(channels, width, stride, norm), width)


def _bottleneck(channels: int, width: int, stride: int, norm: Norm) -> Residual:
    body = [
        *_convolution("conv1", channels, width, 1, 1, norm),
        ("act1", nn.ReLU()),
        *_convolution("conv2", width, width, 3, stride, norm),
        ("act2", nn.ReLU()),
        *_convolution("conv3", width, 4 * width, 1, 1, norm),
    ]
    return Residual(sequence(body), _shortcut(channels, 4 * width, stride, norm), 4 * width)


def _shortcut(channels: int, out: int, stride: int, norm: Norm) -> nn.Module:
    if stride == 1 and channels == out:
        return nn.Identity()
    return sequence(_convolution("conv", channels, out, 1, stride, norm))


def _convolution(name: str, channels: int, out: int, size: int, stride: int, norm: Norm) -> list[Part]:
    return normalised(name, nn.Conv2d(channels, out, size, stride, size // 2, bias=False), norm)


_RESNETS: dict[int, tuple[Callable[[int, int, int, Norm], Residual], tuple[int, ...]]] = {  # blocks of each stage
    18: (_basic, (2, 2, 2, 2)),
    34: (_basic, (3, 4, 6, 3)),
    50: (_bottleneck, (3, 4, 6, 3)),
    101: (_bottleneck, (3, 4, 23, 3)),
}
