"""Gaussian noise as a pure function of (secret key, step, parameter name, element).

It applies the Box-Muller transform to a ChaCha20 keystream. The radius is computed from 53 bits, so values reach 8.57
standard deviations. A generator with 24 bits stops at 5.77, and values beyond the largest noise identify the sum (see
`noisette.accounting.noise_tail`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from noisette.core.keys import SecretKey
from noisette.mechanisms.box_muller import Compiled, CompiledPass, Pass
from noisette.mechanisms.device_noise import DeviceNoise, device_noise
from noisette.mechanisms.eager_noise import EagerPass, is_faithful
from noisette.mechanisms.noise_tiles import TILE, TILES_AT_ONCE, Bits, Part, TileBuffers
from noisette.mechanisms.window import WHOLE, Window

# The compiled pass always computes all tiles of the buffers. Up to this number the eager one takes less time.
_FEWEST_COMPILED_TILES = TILES_AT_ONCE // 8
_ALL_WHOLE: Mapping[str, Window] = MappingProxyType({})


Source = Callable[[torch.dtype, int], Compiled | None]
"""Gives the compiled pass for sums of a type, if it is there; asked before so many values are drawn."""


def never(dtype: torch.dtype, values: int) -> None:
    """There is no compiled pass."""


class GaussianNoise:
    """A generator of Gaussian noise with a secret key.

    Args:
        key: the secret key.
        compiled: asked in every call for the compiled :func:`~noisette.mechanisms.box_muller.noised_quotient`, until it
            is there. Up to then, and where there is none, noise is computed by one operation after another.

    Guarantee: values are independent across names, steps and elements, as far as the cipher is secure. The same key,
    step, name and element give the same value to the bit: whether a tensor is filled at once or in parts, whether the
    pass is compiled or not, and on every processor and GPU.

    >>> noise = GaussianNoise(SecretKey(bytes(32)))
    >>> whole, part = torch.zeros(1000), torch.zeros(100)
    >>> noise.add_({"weight": whole}, step=1)
    >>> noise.add_({"weight": part}, step=1, windows={"weight": Window(start=700)})
    >>> bool((whole[700:800] == part).all())
    True
    """

    def __init__(self, key: SecretKey, compiled: Source = never) -> None:
        self._key = key
        self._ask = compiled
        self._compiled: dict[torch.dtype, CompiledPass] = {}
        self._devices: dict[tuple[torch.dtype, torch.device], DeviceNoise] = {}
        self._tools: dict[torch.dtype, tuple[TileBuffers, Bits, EagerPass]] = {}

    @torch.no_grad()
    def add_(
        self,
        tensors: Mapping[str, Tensor],
        *,
        step: int,
        std: float = 1.0,
        divisor: float = 1.0,
        windows: Mapping[str, Window] = _ALL_WHOLE,
    ) -> None:
        """Divide each tensor by a number and add noise of mean zero and this standard deviation to it, in place.

        Args:
            tensors: by name, contiguous, all float32 or all float64, on one device, no two in the same memory.
            step: number of the step; the noise of a step must be used only once.
            std: standard deviation of the noise.
            divisor: the number; the noise is not divided by it.
            windows: which elements of the named parameter a tensor holds, flat; without an entry all, from the first.

        Raises:
            ValueError: a window has the name of no tensor. Its tensor would get the noise of other elements.
        """
        if not windows.keys() <= tensors.keys():
            raise ValueError(f"windows of no tensor: {sorted(windows.keys() - tensors.keys())}")
        flat = {name: tensor.view(-1) for name, tensor in tensors.items() if tensor.numel()}
        if not flat:
            return
        first = next(iter(flat.values()))
        parts = tuple([Part(name, len(tensor), windows.get(name, WHOLE)) for name, tensor in flat.items()])
        if first.device.type == "cpu":
            self._add_on_processor(flat, parts, step=step, std=std, divisor=divisor)
        else:
            self._elsewhere(first.dtype, first.device).add_(flat, parts, step=step, std=std, divisor=divisor)

    def _add_on_processor(
        self, flat: Mapping[str, Tensor], parts: tuple[Part, ...], *, step: int, std: float, divisor: float
    ) -> None:
        first = flat[parts[0].name]
        buffers, bits, eager = self._tools_for(first.dtype)
        compiled = self._compiled_for(first, sum([part.size for part in parts]))
        for group in buffers.groups(parts):
            streams = [(bits.words[place], name, start) for place, name, start in group.words]
            self._key.fill_each(streams, purpose="noise", step=step)
            one_pass: Pass = eager if compiled is None or group.tiles < _FEWEST_COMPILED_TILES else compiled
            if group.is_whole:
                one_pass(bits, group.whole(flat), group.tiles, std=std, divisor=divisor)
            else:
                pieces = group.pieces_of(flat)
                group.gather(pieces)
                one_pass(bits, buffers.sums, group.tiles, std=std, divisor=divisor)
                group.scatter(pieces)

    def _elsewhere(self, dtype: torch.dtype, device: torch.device) -> DeviceNoise:
        """What computes bits and noise on a device."""
        if (dtype, device) not in self._devices:
            self._devices[dtype, device] = device_noise(self._key, dtype, device)
        return self._devices[dtype, device]

    def _tools_for(self, dtype: torch.dtype) -> tuple[TileBuffers, Bits, EagerPass]:
        if dtype not in self._tools:
            self._tools[dtype] = TileBuffers(dtype, torch.device("cpu")), Bits(), EagerPass(dtype)
        return self._tools[dtype]

    def _compiled_for(self, tensor: Tensor, values: int) -> CompiledPass | None:
        """The compiled pass, if it is there and computes with tensors of this kind.

        It is used only if it gives what the eager one gives: an error in compiled code would leave sums without noise.
        """
        if values < _FEWEST_COMPILED_TILES * TILE:
            return None
        if tensor.dtype not in self._compiled and (compiled := self._ask(tensor.dtype, values)) is not None:
            if is_faithful(compiled, tensor.dtype):
                self._compiled[tensor.dtype] = CompiledPass(compiled)
            else:
                self._ask = never
                warnings.warn("the compiled noise differs from the eager one, so it is not used", stacklevel=2)
        return self._compiled.get(tensor.dtype)
