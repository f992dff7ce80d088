"""Small models to start from. None of them mixes examples."""

from __future__ import annotations

import math

from torch import Tensor, nn

from noisette.lipschitz.torch_modules import output_shape
from noisette.models.blocks import truncated_normal
from noisette.models.fixed_features import FixedFeatures
from noisette.models.shapes import Shape, need_images, numbers_of
from noisette.nn import Scattering2d


def linear(shape: Shape, classes: int) -> nn.Module:
    """Multinomial logistic regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(numbers_of(shape), classes))


def mlp(shape: Shape, classes: int) -> nn.Module:
    """Two hidden layers of 128 tanh units."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(numbers_of(shape), 128),
        nn.Tanh(),
        nn.Linear(128, 128),
        nn.Tanh(),
        nn.Linear(128, classes),
    )


def mlp1000(shape: Shape, classes: int, *, units: int = 1000) -> nn.Module:
    """One hidden layer of ReLU units, without biases: on 60 principal components, the MNIST network of the paper.

    Initial weights are normal with variance 1 / inputs, truncated at two standard deviations.
    Source: Abadi et al. 2016, section 5.2, and their published code.
    """
    numbers = numbers_of(shape)
    return nn.Sequential(
        nn.Flatten(),
        truncated_normal(nn.Linear(numbers, units, bias=False), 1 / math.sqrt(numbers)),
        nn.ReLU(),
        truncated_normal(nn.Linear(units, classes, bias=False), 1 / math.sqrt(units)),
    )


def cnn(shape: Shape, classes: int) -> nn.Module:
    """Two convolutions with group norm and tanh, then two linear layers; for images of 8 x 8 pixels or more.

    Tanh bounds activations and thereby gradients, which helps under clipping (Papernot et al. 2021).
    """
    need_images("cnn", shape)
    small = max(shape[1:]) < 16
    features = nn.Sequential(Centred(), *(_small_features(shape[0]) if small else _features(shape[0])))
    flat = numbers_of(output_shape(features, shape))
    return nn.Sequential(*features, nn.Flatten(), nn.Linear(flat, 32), nn.Tanh(), nn.Linear(32, classes))


def scattering(shape: Shape, classes: int) -> nn.Module:
    """Fixed wavelet features, normalised for each example, and one linear layer: accurate at small budgets, and fast.

    Source: Tramèr & Boneh 2021.
    """
    need_images("scattering", shape)
    normalised = nn.Sequential(*_normalised_coefficients(shape[0]), nn.Flatten())
    return FixedFeatures(normalised, nn.Linear(numbers_of(output_shape(normalised, shape)), classes))


def scattering_cnn(shape: Shape, classes: int) -> nn.Module:
    """Fixed wavelet features, normalised for each example, and two convolutions with tanh.

    For images below 32 pixels these have 16 and 32 filters, followed by 32 hidden units; for larger ones 64 and 64,
    with a pooling in between.
    Source: Tramèr & Boneh 2021, appendix C, and their published code.
    """
    need_images("scattering-cnn", shape)
    normalised = nn.Sequential(*_normalised_coefficients(shape[0]))
    channels, *_ = coefficients = output_shape(normalised, shape)
    small = max(shape[1:]) < 32
    convolutions = nn.Sequential(*(_strided(channels) if small else _pooled(channels)), nn.Flatten())
    flat = numbers_of(output_shape(convolutions, coefficients))
    scores = [nn.Linear(flat, 32), nn.Tanh(), nn.Linear(32, classes)] if small else [nn.Linear(flat, classes)]
    return FixedFeatures(normalised, nn.Sequential(*convolutions, *scores))


def _normalised_coefficients(channels: int) -> list[nn.Module]:
    coefficients = Scattering2d()
    return [coefficients, nn.GroupNorm(27, coefficients.channels * channels, affine=False)]


def _strided(channels: int) -> list[nn.Module]:
    return [
        nn.Conv2d(channels, 16, 3, stride=2, padding=1),
        nn.Tanh(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.Tanh(),
    ]


def _pooled(channels: int) -> list[nn.Module]:
    return [
        nn.Conv2d(channels, 64, 3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.Tanh(),
    ]


class Centred(nn.Module):
    """Maps pixels from [0, 1] to [-1, 1]."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x - 1


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
