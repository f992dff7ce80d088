"""What computes the noise of sums that lie on a GPU, bits and all: nothing of their size crosses the bus."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Protocol

import torch
from torch import Tensor

from noisette.core.keys import SecretKey
from noisette.mechanisms.noise_tiles import Part
from noisette.mechanisms.torch_noise import TorchNoise


class DeviceNoise(Protocol):
    """Noise of one key on one device."""

    def add_(
        self, flat: Mapping[str, Tensor], parts: tuple[Part, ...], *, step: int, std: float, divisor: float
    ) -> None:
        """Divide each tensor by a number and add noise to it, as ``GaussianNoise.add_``, for these parts."""
        ...


def device_noise(key: SecretKey, dtype: torch.dtype, device: torch.device) -> DeviceNoise:
    """The quickest way for sums of this type on this device; all give the same values."""
    if device.type == "cuda" and dtype == torch.float32 and find_spec("triton") is not None:
        return _by_triton(key, device)
    return TorchNoise(key, dtype, device)


def _by_triton(key: SecretKey, device: torch.device) -> DeviceNoise:
    from noisette.mechanisms.triton_noise import TritonNoise

    return TritonNoise(key, device)
