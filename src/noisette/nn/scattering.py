"""Scattering: fixed wavelet features, which are not learned from the data and have no privacy cost.

Source: Bruna & Mallat 2013; as features for private learning, Tramèr & Boneh 2021.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from noisette.lipschitz.protocols import NormBound, Sensitivities
from noisette.nn.scattering_bound import lipschitz_constant

F = nn.functional

ANGLES = 8
STRIDE = 4  # pixels between features
_CHANNELS = {1: 1 + 2 * ANGLES, 2: 1 + 2 * ANGLES + ANGLES**2}  # the image, two scales, a scale within a scale
_FINE, _COARSE = 0.8, 1.6  # standard deviations of the wavelets' envelopes along the wave, in pixels
_SLANT = 0.5  # the envelope is twice as long across the wave
_RADIUS = 2.75  # radius of a kernel, in standard deviations


class Scattering2d(nn.Module):
    """Scattering coefficients of images at two scales and eight angles; it has no parameters.

    Maps images (b, c, h, w) to features (b, c channels, h // 4, w // 4): local averages of the image, of the moduli
    of its wavelet coefficients, and, for the second order, of the moduli of the wavelet coefficients of those moduli at
    the fine scale. For each channel of the image there are 17 features of the first order, or 81 with the second order,
    of which these 17 are the first.

    Args:
        order: 1 or 2.

    Its Lipschitz constant is known, about 0.45 for the first order and 0.48 for both, so a Lipschitz network on these
    features has certified radii (:func:`noisette.certify`) for the image.

    Raises:
        ValueError: the order is not 1 or 2, or height or width is below 12 pixels or not a multiple of four.

    >>> Scattering2d()(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 81, 7, 7])
    >>> Scattering2d(order=1)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 17, 7, 7])
    """

    def __init__(self, order: int = 2) -> None:
        super().__init__()
        if order not in _CHANNELS:
            raise ValueError(f"expected order to be 1 or 2, got order={order}")
        self.order = order
        self._constants: dict[tuple[int, int], float] = {}  # by image size
        self.fine: Tensor
        self.coarse: Tensor
        self.blur: Tensor
        self.blur_half: Tensor
        # Not in the state dict: they are constants of the method.
        self.register_buffer("fine", _wavelets(_FINE), persistent=False)
        self.register_buffer("coarse", _wavelets(_COARSE), persistent=False)
        self.register_buffer("blur", _gaussian(_COARSE), persistent=False)
        self.register_buffer("blur_half", _gaussian(_COARSE / 2), persistent=False)

    @property
    def channels(self) -> int:
        """The number of features at a position for each channel of the image."""
        return _CHANNELS[self.order]

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        if h % STRIDE or w % STRIDE or min(h, w) < 12:
            raise ValueError(
                f"scattering needs sides of 12 pixels or more that are multiples of {STRIDE}, got {h} x {w}"
            )
        x = x.reshape(b * c, 1, h, w)
        fine, halved = _moduli(x, self.fine, stride=1), _moduli(x, self.coarse, stride=2)
        if self.order == 2:
            second = _moduli(fine.flatten(0, 1).unsqueeze(1), self.coarse, stride=2)
            halved = torch.cat([halved, second.view(b * c, ANGLES**2, h // 2, w // 2)], 1)
        features = [
            _averages(torch.cat([x, fine], 1), self.blur, stride=STRIDE),
            _averages(halved, self.blur_half, stride=STRIDE // 2),
        ]
        return torch.cat(features, 1).view(b, c * self.channels, h // STRIDE, w // STRIDE)

    def bound_forward(self, x: NormBound) -> NormBound:
        c, h, w = x.shape
        return NormBound(self._lipschitz_constant(h, w) * x.norm, (c * self.channels, h // STRIDE, w // STRIDE))

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        return self._lipschitz_constant(*x.shape[1:]) * g, {}

    def _lipschitz_constant(self, h: int, w: int) -> float:
        """The Lipschitz constant for images of this size; computing it takes seconds, so it is kept."""
        if (h, w) not in self._constants:
            kernels = self.fine, self.coarse, self.blur, self.blur_half
            self._constants[h, w] = lipschitz_constant(*kernels, (h, w), self.order)
        return self._constants[h, w]

    def extra_repr(self) -> str:
        return f"order={self.order}"


def _moduli(images: Tensor, wavelets: Tensor, *, stride: int) -> Tensor:
    """Moduli of the wavelet coefficients of one-channel images at every angle."""
    radius = wavelets.shape[-1] // 2
    parts = F.conv2d(F.pad(images, (radius,) * 4, mode="reflect"), wavelets, stride=stride)
    real, imaginary = parts.split(ANGLES, dim=1)
    return torch.hypot(real, imaginary)


def _averages(images: Tensor, blur: Tensor, *, stride: int) -> Tensor:
    """Local averages of each channel."""
    radius, flat = blur.shape[-1] // 2, images.flatten(0, 1).unsqueeze(1)
    smooth = F.conv2d(F.pad(flat, (radius,) * 4, mode="reflect"), blur, stride=stride)
    return smooth.view(*images.shape[:2], *smooth.shape[2:])


def _grid(radius: int) -> tuple[Tensor, Tensor]:
    side = torch.arange(-radius, radius + 1, dtype=torch.float32)
    y, x = torch.meshgrid(side, side, indexing="ij")
    return y, x


def _gaussian(deviation: float) -> Tensor:
    """A Gaussian kernel with sum one, shape (1, 1, k, k)."""
    y, x = _grid(math.ceil(_RADIUS * deviation))
    kernel = torch.exp(-(x**2 + y**2) / (2 * deviation**2))
    return (kernel / kernel.sum()).unsqueeze(0).unsqueeze(0)


def _wavelets(deviation: float) -> Tensor:
    """Morlet wavelets at every angle, real parts then imaginary parts, shape (2 angles, 1, k, k).

    Each is a plane wave times a Gaussian envelope, less a multiple of the envelope that makes its mean zero.
    """
    y, x = _grid(math.ceil(_RADIUS * deviation / _SLANT))
    kernels = []
    for k in range(ANGLES):
        angle = math.pi * k / ANGLES
        along, across = x * math.cos(angle) + y * math.sin(angle), y * math.cos(angle) - x * math.sin(angle)
        envelope = torch.exp(-(along**2 + (_SLANT * across) ** 2) / (2 * deviation**2))
        wave = envelope * torch.exp(1j * (0.6 * math.pi / deviation) * along)
        wavelet = wave - envelope * (wave.sum() / envelope.sum())
        kernels.append(wavelet * _SLANT / (2 * math.pi * deviation**2))
    stacked = torch.stack(kernels)
    return torch.cat([stacked.real, stacked.imag]).unsqueeze(1)
