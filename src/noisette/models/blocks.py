"""Building blocks and norms that several networks share; a part is a module with its name in the network."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from torch import nn

Activation = Callable[[], nn.Module]
Norm = Callable[[int, int], nn.Module]  # (channels, axes of positions after the channels: 2 for images, else 0)
Part = tuple[str, nn.Module]
Plan = TypeVar("Plan")
Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


def sequence(parts: Iterable[Part]) -> nn.Sequential:
    """The parts one after the other, by name."""
    return nn.Sequential(OrderedDict(parts))


def normalised(name: str, layer: nn.Conv2d | nn.Linear, norm: Norm | None) -> list[Part]:
    """A layer, followed by a norm of its outputs if ``norm`` is given."""
    if norm is None:
        return [(name, layer)]
    outputs = (layer.out_channels, 2) if isinstance(layer, nn.Conv2d) else (layer.out_features, 0)
    return [(name, layer), (f"{name}_norm", norm(*outputs))]


def linears(
    layers: Sequence[nn.Linear], norm: Norm | None, activation: Activation = nn.ReLU, *, normalised_logits: bool
) -> nn.Sequential:
    """Linear layers with activations between them; each is followed by a norm, the last if ``normalised_logits``."""
    parts: list[Part] = []
    for k, layer in enumerate(layers[:-1], 1):
        parts += [*normalised(f"fc{k}", layer, norm), (f"act{k}", activation())]
    return sequence([*parts, *normalised("scores", layers[-1], norm if normalised_logits else None)])


def plan_of(depth: int, plans: Mapping[int, Plan]) -> Plan:
    """The plan of a network of this depth; raises ValueError if there is none."""
    if depth not in plans:
        raise ValueError(f"expected depth to be one of {', '.join(map(str, plans))}, got {depth}")
    return plans[depth]


def truncated_normal(layer: Layer, std: float, bias: float = 0.0) -> Layer:
    """The layer, with its weights drawn from a normal distribution truncated at 2 std, and constant biases."""
    nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
    if layer.bias is not None:
        nn.init.constant_(layer.bias, bias)
    return layer


def batch_norm(channels: int, axes: int) -> nn.Module:
    """Batch norm, which mixes examples; :func:`noisette.nn.convert_batch_norm` replaces it."""
    return nn.BatchNorm2d(channels) if axes else nn.BatchNorm1d(channels)


def layer_norm(channels: int, axes: int) -> nn.Module:
    """Norm over all values of one example, with a scale and a shift for each channel."""
    return nn.GroupNorm(1, channels) if axes else nn.LayerNorm(channels)
