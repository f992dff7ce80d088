"""Convolution layers of every kind inside models: norms and sums of every engine are the oracle's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from engine_check import check_thoroughly
from model_cases import Case, Forward, floats, parameter


def chain(*layers: nn.Module) -> nn.Module:
    """The input of every layer but the first depends on parameters."""
    return nn.Sequential(layers[0], *(part for layer in layers[1:] for part in (nn.Tanh(), layer)))


def frozen_weight(layer: nn.Module) -> nn.Module:
    layer.weight.requires_grad_(False)
    return layer


def three_axes() -> nn.Module:
    return chain(
        nn.Conv3d(2, 3, (1, 3, 2), (2, 1, 3), (0, 2, 1), (1, 2, 1)),
        nn.ConvTranspose3d(3, 2, (2, 1, 3), (1, 2, 3), (1, 0, 2), (0, 1, 2)),
    )


def depthwise() -> nn.Module:
    return chain(nn.Conv2d(3, 6, 3, groups=3, bias=False), nn.ConvTranspose2d(6, 6, (2, 1), groups=6, bias=False))


def odd_ends() -> nn.Module:
    """Output padding of whole strides, a kernel of the whole image, a bias whose weight is frozen."""
    return chain(
        nn.ConvTranspose2d(2, 3, 2, padding=(0, 2), output_padding=(2, 1), dilation=(3, 2)),
        nn.Conv2d(3, 5, (9, 4)),
        frozen_weight(nn.ConvTranspose2d(5, 2, 2)),
    )


def padded() -> nn.Module:
    """All padding modes, by number and by name."""
    modes = ("zeros", "reflect", "replicate", "circular")
    ways = [(mode, way) for mode in modes for way in ((2, 1), "same")]
    return chain(*(nn.Conv2d(2, 2, (3, 2), padding=way, padding_mode=mode, bias=False) for mode, way in ways))


def frame_by_frame() -> nn.Module:
    """An image network on the frames of videos, which are folded into the batch axis."""

    def forward(m: Forward, x: torch.Tensor) -> torch.Tensor:
        frames = torch.tanh(m.first(x.flatten(0, 1)))
        return m.second(frames).unflatten(0, x.shape[:2])

    return Forward(forward, first=nn.Conv2d(2, 3, (3, 2), stride=(2, 1)), second=nn.ConvTranspose2d(3, 2, (1, 3)))


MODELS = [
    Case("three axes", three_axes, floats(2, 3, 2, 4)),
    Case("depthwise", depthwise, floats(3, 5, 4)),
    Case("odd ends", odd_ends, floats(2, 4, 5)),
    Case("padding", padded, floats(2, 4, 5)),
    Case("frame by frame", frame_by_frame, floats(4, 2, 5, 4)),
    Case(
        "convolution over time",
        lambda: Forward(
            lambda m, x: F.conv_tbc(x.transpose(0, 1), m.w, m.b, 2).transpose(0, 1),
            w=parameter(3, 2, 4),
            b=parameter(4),
        ),
        floats(5, 2),
    ),
]


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("case", MODELS, ids=lambda case: case.name.replace(" ", "-"))
def test_models(case: Case) -> None:
    check_thoroughly(case)
