"""Random stacks of layers, with random sizes, biases and frozen parameters, against the oracle."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from engine_check import check
from model_cases import Case, Forward, squares
from noisette.clipping.engines import BookKeeping, ReweightGP
from oracle import clipped_sum

Shape = tuple[int, ...]  # of one example: (feature,), (time, feature) or (channel, height, width)
Draw = Callable[[st.SearchStrategy], Any]
Layer = Callable[[Draw, Shape], tuple[nn.Module, Shape]]  # the layer, and what it makes of that shape


def time_first(layer: nn.Module) -> nn.Module:
    return Forward(lambda m, x: m.layer(x.transpose(0, 1)).transpose(0, 1), layer=layer)


sizes = st.integers(3, 5)
flags = st.booleans()


def linear(draw: Draw, shape: Shape) -> tuple[nn.Module, Shape]:
    width = draw(sizes)
    return nn.Linear(shape[-1], width, bias=draw(flags)), (*shape[:-1], width)


def residual(draw: Draw, shape: Shape) -> tuple[nn.Module, Shape]:
    return Forward(lambda m, x: x + m.layer(x).tanh(), layer=nn.Linear(shape[-1], shape[-1], bias=draw(flags))), shape


def positions(draw: Draw, shape: Shape) -> tuple[nn.Module, Shape]:
    """A raw parameter that is added to each example, or multiplied with it."""
    own = nn.Parameter(torch.rand([n if draw(flags) else 1 for n in shape]) + 0.5)
    return Forward((lambda m, x: x * m.p) if draw(flags) else (lambda m, x: x + m.p), p=own), shape


def recurrent(draw: Draw, shape: Shape) -> tuple[nn.Module, Shape]:
    kind, width, both = draw(st.sampled_from([nn.RNN, nn.GRU, nn.LSTM])), draw(sizes), draw(flags)
    layers, batch_first, bias = 1 + draw(flags), draw(flags), draw(flags)
    made = kind(shape[1], width, num_layers=layers, bias=bias, batch_first=batch_first, bidirectional=both)
    layer = Forward(lambda m, x: m.layer(x)[0], layer=made)
    return layer if batch_first else time_first(layer), (shape[0], width * (1 + both))


def attention(draw: Draw, shape: Shape) -> tuple[nn.Module, Shape]:
    heads = draw(st.sampled_from([n for n in range(1, shape[1] + 1) if shape[1] % n == 0]))
    batch_first = draw(flags)
    made = nn.MultiheadAttention(shape[1], heads, bias=draw(flags), batch_first=batch_first)
    layer = Forward(lambda m, x: m.layer(x, x, x, need_weights=False)[0], layer=made)
    return layer if batch_first else time_first(layer), shape


def encoder(draw: Draw, shape: Shape) -> tuple[nn.Module, Shape]:
    options = {"dim_feedforward": draw(sizes), "norm_first": draw(flags), "bias": draw(flags)}
    return nn.TransformerEncoderLayer(shape[1], 1, dropout=0.0, batch_first=True, **options), shape


def conv1d(draw: Draw, shape: Shape) -> tuple[nn.Module, Shape]:
    width = draw(sizes)
    layer = nn.Conv1d(shape[1], width, draw(st.sampled_from([1, 3])), padding="same", bias=draw(flags))
    return Forward(lambda m, x: m.layer(x.mT).mT, layer=layer), (shape[0], width)


def conv2d(draw: Draw, shape: Shape) -> tuple[nn.Module, Shape]:
    channels, height, width = shape
    groups = draw(st.sampled_from([1, channels]))
    outputs = channels * draw(st.integers(1, 2)) if groups > 1 else draw(sizes)
    kernel = draw(st.integers(1, min(3, height))), draw(st.integers(1, min(3, width)))
    stride, padding = ((draw(st.integers(low, low + 1)), draw(st.integers(low, low + 1))) for low in (1, 0))
    options = {"groups": groups, "bias": draw(flags), "padding_mode": draw(st.sampled_from(["zeros", "replicate"]))}
    layer = nn.Conv2d(channels, outputs, kernel, stride, padding, **options)
    return layer, tuple(layer(torch.zeros(1, *shape)).shape[1:])


def transposed_conv2d(draw: Draw, shape: Shape) -> tuple[nn.Module, Shape]:
    layer = nn.ConvTranspose2d(shape[0], draw(sizes), 2, stride=draw(st.integers(1, 2)), bias=draw(flags))
    return layer, tuple(layer(torch.zeros(1, *shape)).shape[1:])


def group_norm(draw: Draw, shape: Shape) -> tuple[nn.Module, Shape]:
    assume(shape[1] * shape[2] > 2)
    return nn.GroupNorm(draw(st.sampled_from([1, shape[0]])), shape[0]), shape


def pooling(draw: Draw, shape: Shape) -> tuple[nn.Module, Shape]:
    assume(min(shape[1:]) >= 2)
    return nn.AvgPool2d(2) if draw(flags) else nn.MaxPool2d(2), (shape[0], shape[1] // 2, shape[2] // 2)


SAME_SHAPE: dict[str, Layer] = {
    "positions": positions,
    "activation": lambda draw, shape: (draw(st.sampled_from([nn.Tanh, nn.GELU, nn.SiLU, nn.ReLU]))(), shape),
    "leaky": lambda draw, shape: (nn.PReLU(shape[0] if draw(flags) else 1), shape),
}
OF_FEATURES = SAME_SHAPE | {
    **{"linear": linear, "residual": residual, "rms_norm": lambda draw, shape: (nn.RMSNorm(shape[-1]), shape)},
    "layer_norm": lambda draw, s: (nn.LayerNorm(s[-draw(st.integers(1, len(s))) :], bias=draw(flags)), s),
}
FLATTENED: dict[str, Layer] = {"flattened": lambda draw, shape: (nn.Flatten(), (torch.Size(shape).numel(),))}
# No InstanceNorm2d: PyTorch's own backward pass of it is wrong on the processor where a gradient arrives with its
# channels last in memory. GroupNorm with a group for each channel computes the same.
LAYERS: dict[int, dict[str, Layer]] = {
    1: OF_FEATURES,
    2: OF_FEATURES
    | FLATTENED
    | {
        **{"recurrent": recurrent, "attention": attention, "encoder": encoder, "conv1d": conv1d},
        "pooled": lambda draw, shape: (Forward(lambda m, x: x.mean(1)), shape[1:]),
    },
    3: SAME_SHAPE
    | FLATTENED
    | {
        **{"conv2d": conv2d, "transposed_conv2d": transposed_conv2d, "group_norm": group_norm, "pooling": pooling},
        "as_sequence": lambda draw, shape: (Forward(lambda m, x: x.flatten(2).mT), (shape[1] * shape[2], shape[0])),
    },
}


@dataclass(frozen=True)
class Drawn:
    model: nn.Module
    inputs: Tensor  # of one example
    b: int

    def __repr__(self) -> str:
        frozen = [name for name, p in self.model.named_parameters() if not p.requires_grad]
        return f"{self.model}\n{self.b} examples of {tuple(self.inputs.shape)}, {self.inputs.dtype}, frozen: {frozen}"


@st.composite
def stacks(draw: Draw, some: str) -> Drawn:
    """A model with this layer in it, an example of its inputs, and a number of examples."""
    torch.manual_seed(draw(st.integers(0, 1000)))
    axes = draw(st.sampled_from([n for n, layers in LAYERS.items() if some in layers]))
    shape: Shape = tuple(draw(sizes) for _ in range(axes))
    layers: list[nn.Module] = []
    if axes == 2 and draw(flags):
        layers.append(nn.Embedding(7, shape[1], padding_idx=draw(st.sampled_from([None, 2]))))
        example = torch.randint(0, 7, shape[:1])
    else:
        example = torch.randn(shape)
    before, after = draw(st.integers(0, 1)), draw(st.integers(0, 3))
    chosen = [draw(st.sampled_from(list(SAME_SHAPE))) for _ in range(before)] + [some]
    for name in chosen + [None] * after:
        drawn, shape = LAYERS[len(shape)][name or draw(st.sampled_from(list(LAYERS[len(shape)])))](draw, shape)
        layers.append(drawn)
    model = nn.Sequential(*layers)
    for p in model.parameters():
        p.requires_grad_(draw(st.integers(0, 3)) > 0)
    assume(any(p.requires_grad for p in model.parameters()))
    return Drawn(model, example, draw(st.sampled_from([2, 1, 3, 5])))


EVERY_LAYER = list(dict.fromkeys(name for layers in LAYERS.values() for name in layers))


@pytest.mark.parametrize("layer", EVERY_LAYER)
@settings(max_examples=3, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_drawn_stacks_are_exact(layer: str, data: st.DataObject) -> None:
    drawn = data.draw(stacks(layer))
    note(repr(drawn))
    shape = (drawn.b, *drawn.inputs.shape)
    x = torch.randn(shape) if drawn.inputs.is_floating_point() else torch.randint(0, 7, shape)
    # A normalization may cancel the gradient of what precedes it; a gradient of rounding errors alone has no reference.
    assume(float(clipped_sum(drawn.model, squares, (x,), 1.0).norms.min()) > 1e-6)
    case = Case("drawn", lambda: drawn.model, lambda b: (x,), squares)
    check(case, BookKeeping(), ReweightGP(), b=drawn.b, dtype=torch.float64)
