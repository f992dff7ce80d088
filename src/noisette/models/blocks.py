"""Parts that several networks are put together from, each part with its name in the network."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from torch import nn

from noisette.models.norms import Norm

Activation = Callable[[], nn.Module]
Part = tuple[str, nn.Module]


def sequence(parts: Iterable[Part]) -> nn.Sequential:
    """One after the other, by name."""
    return nn.Sequential(OrderedDict(parts))


def convolution(k: int, layer: nn.Conv2d, norm: Norm | None, activation: Activation) -> list[Part]:
    """The k-th convolution of a network, its norm and its activation."""
    return [(f"conv{k}", layer), *_normalised(k, layer.out_channels, 2, norm), (f"act{k}", activation())]


def linears(layers: Sequence[nn.Linear], norm: Norm | None, activation: Activation, *, logits: bool) -> nn.Sequential:
    """Linear layers up to the scores, each followed by its norm, the last only if the logits are normalised too."""
    *hidden, last = layers
    parts = chain.from_iterable(
        [(f"fc{k}", layer), *_normalised(k, layer.out_features, 0, norm), (f"act{k}", activation())]
        for k, layer in enumerate(hidden, 1)
    )
    scores = [("scores", last), *_normalised(len(layers), last.out_features, 0, norm if logits else None)]
    return sequence([*parts, *scores])


def _normalised(k: int, channels: int, axes: int, norm: Norm | None) -> list[Part]:
    return [(f"norm{k}", norm(channels, axes))] if norm else []
