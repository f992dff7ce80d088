"""Scattering2d features, compared with their definition in NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from noisette.lipschitz import NormBound
from noisette.nn import Scattering2d
from noisette.nn.features import ANGLES, lipschitz_constant


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


@pytest.mark.parametrize("order", [1, 2])
def test_no_pair_of_images_exceeds_the_lipschitz_bound(order: int) -> None:
    scattering = Scattering2d(order)
    reach = NormBound(3.0, (1, 12, 12))
    bound, _ = scattering.bound_backward(reach, 1.0)
    assert scattering.bound_forward(reach) == NormBound(3 * bound, (scattering.channels, 3, 3))
    a = torch.randn(64, 1, 12, 12)
    smooth = torch.nn.functional.interpolate(torch.randn(64, 1, 3, 3), (12, 12), mode="bicubic")
    for b in (a + 1e-3 * torch.randn_like(a), a + smooth, torch.zeros_like(a), a + torch.ones(1)):
        grown = (scattering(a) - scattering(b)).flatten(1).norm(dim=1) / (a - b).flatten(1).norm(dim=1)
        assert float(grown.max()) <= bound
    waves = scattering.fine[:8]  # images that look like wavelets
    radius = waves.shape[-1] // 2
    image = waves[:, :, radius - 5 : radius + 6, radius - 5 : radius + 6]
    image = torch.nn.functional.pad(image, (0, 1, 0, 1))
    assert float((scattering(image).flatten(1).norm(dim=1) / image.flatten(1).norm(dim=1)).max()) > 0.25 * bound


def test_the_constant_of_linear_maps_is_their_largest_singular_value() -> None:
    """With zero wavelets scattering is a blur; its matrix is computed here column by column, in another way."""
    scattering = Scattering2d(1)
    nothing = torch.zeros_like(scattering.fine), torch.zeros_like(scattering.coarse)
    found = lipschitz_constant(*nothing, scattering.blur, scattering.blur_half, (12, 12), 1)
    matrix = np.zeros((9, 144))
    for pixel in range(144):
        image = np.zeros(144)
        image[pixel] = 1
        matrix[:, pixel] = blur(image.reshape(12, 12), 1.6)[::4, ::4].flatten()
    assert found == pytest.approx(np.linalg.norm(matrix, 2), rel=1e-5)
