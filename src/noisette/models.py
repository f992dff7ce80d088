"""Small models to start from, built from a data set's shape. All of them look at one example at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module

import torch
from torch import Tensor, nn

from noisette.nn import Scattering
from noisette.nn.scattering import CHANNELS

Shape = Sequence[int]  # of one example: (features,) or (channels, height, width)


def linear(shape: Shape, classes: int) -> nn.Module:
    """Multinomial logistic regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(_numbers(shape), classes))


def mlp(shape: Shape, classes: int) -> nn.Module:
    """Two hidden layers of 128 tanh units."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(_numbers(shape), 128),
        nn.Tanh(),
        nn.Linear(128, 128),
        nn.Tanh(),
        nn.Linear(128, classes),
    )


def cnn(shape: Shape, classes: int) -> nn.Module:
    """Two convolutions with group norm and tanh, then two linear layers; 8 x 8 pixels and larger.

    Tanh keeps activations, and so gradients, of one size, which clipping rewards (Papernot et al. 2021).
    """
    _need_images("cnn", shape)
    small = max(shape[1:]) < 16
    features = nn.Sequential(Centred(), *(_small_features(shape[0]) if small else _features(shape[0])))
    with torch.no_grad():
        flat = features(torch.zeros(1, *shape)).numel()
    return nn.Sequential(*features, nn.Flatten(), nn.Linear(flat, 32), nn.Tanh(), nn.Linear(32, classes))


def scattering(shape: Shape, classes: int) -> nn.Module:
    """Fixed wavelet features, normalised for each example, and one linear layer: strong at small budgets, and quick.

    Source: Tramèr & Boneh 2021.
    """
    _need_images("scattering", shape)
    normalised = nn.Sequential(Scattering(), nn.GroupNorm(27, CHANNELS * shape[0], affine=False), nn.Flatten())
    with torch.no_grad():
        numbers = normalised(torch.zeros(1, *shape)).numel()
    return FixedFeatures(normalised, nn.Linear(numbers, classes))


class FixedFeatures(nn.Module):
    """A model whose first part is fixed, so that its outputs can be computed once for a whole data set.

    Guarantee: ``features`` has nothing to train and treats each example alone, so computing it beforehand changes
    nothing about what training reveals.
    """

    def __init__(self, features: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.features = features
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


def projected(name: str, shape: Shape, classes: int, components: int) -> FixedFeatures:
    """A model behind a fixed projection of the flattened example, whose weight is yet to be set: (components, numbers).

    Raises:
        ValueError: there are more components than numbers in an example, or the model does not fit them.
    """
    if components > _numbers(shape):
        raise ValueError(f"expected components <= {_numbers(shape)}, the numbers of an example, got {components}")
    projection = nn.Linear(_numbers(shape), components, bias=False).requires_grad_(False)
    return FixedFeatures(nn.Sequential(nn.Flatten(), projection), build(name, (components,), classes))


class Centred(nn.Module):
    """Pixels in [0, 1] moved to [-1, 1]."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x - 1


def _need_images(name: str, shape: Shape) -> None:
    if len(shape) != 3:
        raise ValueError(
            f"the model {name!r} needs images (channels, height, width), got examples of shape {tuple(shape)}"
        )


def _small_features(channels: int) -> list[nn.Module]:
    return [
        nn.Conv2d(channels, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.Tanh(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.GroupNorm(8, 32),
        nn.Tanh(),
    ]


def _features(channels: int) -> list[nn.Module]:
    return [
        nn.Conv2d(channels, 16, 8, stride=2, padding=2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
    ]


_MODELS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "cnn": cnn,
    "linear": linear,
    "mlp": mlp,
    "scattering": scattering,
}


def names() -> tuple[str, ...]:
    """Names of the models that come with noisette."""
    return tuple(_MODELS)


def build(name: str, shape: Shape, classes: int) -> nn.Module:
    """A fresh model: one of :func:`names`, or ``package.module:callable`` called with (shape, classes).

    Raises:
        ValueError: there is no such model, or it does not give one score per class for an example of this shape.
    """
    factory = _MODELS.get(name) or _imported(name)
    try:
        model = factory(shape, classes)
    except TypeError as error:
        raise ValueError(f"the model {name!r} is called with (shape of an example, classes), but: {error}") from error
    if not isinstance(model, nn.Module):
        raise ValueError(f"{name} returned a {type(model).__name__}, not a torch.nn.Module")
    with torch.no_grad():
        try:
            scores = model(torch.zeros(2, *shape))
        except RuntimeError as error:
            raise ValueError(f"the model {name!r} cannot take examples of shape {tuple(shape)}: {error}") from error
    if not isinstance(scores, Tensor) or scores.shape != (2, classes):
        got = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise ValueError(
            f"the output of model {name!r} does not fit the labels: {classes} classes, output for 2: {got}"
        )
    return model


def _imported(name: str) -> Callable[[Shape, int], nn.Module]:
    module, _, attribute = name.partition(":")
    if not attribute:
        raise ValueError(
            f"no model {name!r}; there are {', '.join(_MODELS)}, or give your own as package.module:callable"
        )
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"no model {name!r}: {error}") from error


def _numbers(shape: Shape) -> int:
    return torch.Size(shape).numel()
