"""Scattering2d features, compared with their definition in NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from noisette.nn import Scattering2d
from noisette.nn.features import ANGLES


def morlet(deviation: float, angle: float) -> np.ndarray:
    radius = math.ceil(2.75 * deviation / 0.5)
    kernel = np.zeros((2 * radius + 1, 2 * radius + 1), dtype=complex)
    envelope = np.zeros_like(kernel)
    for row in range(-radius, radius + 1):
        for column in range(-radius, radius + 1):
            along = column * math.cos(angle) + row * math.sin(angle)
            across = row * math.cos(angle) - column * math.sin(angle)
            height = math.exp(-(along**2 + across**2 / 4) / (2 * deviation**2))
            envelope[row + radius, column + radius] = height
            kernel[row + radius, column + radius] = height * np.exp(1j * 0.6 * math.pi / deviation * along)
    return (kernel - envelope * kernel.sum() / envelope.sum()) / (4 * math.pi * deviation**2)


def correlate(image: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    radius = kernel.shape[0] // 2
    padded = np.pad(image, radius, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernel.shape)
    return (windows * kernel).sum((2, 3))


def blur(image: np.ndarray, deviation: float) -> np.ndarray:
    radius = math.ceil(2.75 * deviation)
    line = np.exp(-(np.arange(-radius, radius + 1) ** 2) / (2 * deviation**2))
    kernel = np.outer(line, line)
    return correlate(image, kernel / kernel.sum())


def test_features_follow_the_definition() -> None:
    image = np.random.default_rng(0).random((16, 16))
    features = Scattering2d()(torch.tensor(image, dtype=torch.float32).view(1, 1, 16, 16))[0].numpy()
    fine = [np.abs(correlate(image, morlet(0.8, math.pi * k / ANGLES))) for k in range(ANGLES)]
    coarse = [np.abs(correlate(image, morlet(1.6, math.pi * k / ANGLES)))[::2, ::2] for k in range(ANGLES)]
    second = [np.abs(correlate(u, morlet(1.6, math.pi * k / ANGLES)))[::2, ::2] for u in fine for k in range(ANGLES)]
    expected = [blur(u, 1.6)[::4, ::4] for u in [image, *fine]] + [blur(u, 0.8)[::2, ::2] for u in [*coarse, *second]]
    np.testing.assert_allclose(features, np.stack(expected), atol=2e-5)


def test_features_do_not_mix_examples() -> None:
    images = torch.rand(3, 2, 12, 20)
    features = Scattering2d()(images)
    assert features.shape == (3, 162, 3, 5)
    torch.testing.assert_close(features[1:2], Scattering2d()(images[1:2]))


def test_what_does_not_fit_is_refused() -> None:
    for size in ((8, 8), (30, 28)):
        with pytest.raises(ValueError, match="multiples of 4"):
            Scattering2d()(torch.zeros(1, 1, *size))
    with pytest.raises(ValueError, match="1 or 2, got order=3"):
        Scattering2d(order=3)


def test_the_first_order_is_the_first_part_of_the_second() -> None:
    images = torch.rand(2, 3, 16, 12)
    first, second = Scattering2d(order=1)(images), Scattering2d(order=2)(images)
    assert first.shape == (2, 3 * 17, 4, 3)
    torch.testing.assert_close(first.view(2, 3, 17, 4, 3), second.view(2, 3, 81, 4, 3)[:, :, :17])
