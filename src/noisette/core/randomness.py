"""The random numbers of torch within a batch: from a secret seed, so that masks and views of examples are secret."""

from __future__ import annotations

import hashlib
import secrets
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

_SECRET_BITS = 256
_WORDS_OF_TORCH = slice(3, 3 + 624)  # of the state of the generator on a processor, in words of 64 bits


class RandomStates(NamedTuple):
    """The states of torch's global generators on the processor and on the GPUs."""

    cpu: Tensor
    cuda: list[Tensor]

    @classmethod
    def now(cls) -> RandomStates:
        """Their states at this moment."""
        return cls(torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [])

    def restore(self) -> None:
        """Give the generators these states."""
        torch.set_rng_state(self.cpu)
        if self.cuda:
            torch.cuda.set_rng_state_all(self.cuda)


def seed_secretly() -> int:
    """Give torch's global generators a seed from the operating system; the number by which a later seed is noticed.

    It has 256 bits, and 63 on accelerators. Of 32 bits, which is all that ``torch.manual_seed`` uses on a processor,
    others could try each one: by a known seed, one record more would give those behind it other masks that others could
    compute.
    """
    seed_torch(secrets.randbits(_SECRET_BITS))
    return torch.initial_seed()


def seed_torch(seed: int, generator: torch.Generator = torch.default_generator) -> None:
    """Seed a generator of torch; through the global one, those of accelerators too.

    On the processor torch uses the lower 32 bits of a seed alone. Where a seed is longer than torch takes it, all of it
    is brought into the state. Where there is no accelerator, ``torch.manual_seed`` would keep a list of its calls with
    their tracebacks for accelerators that may come, which takes up to a millisecond each.
    """
    short = seed % 2**63
    if generator is torch.default_generator and torch.accelerator.is_available():
        torch.manual_seed(short)
    if generator.device.type == "cpu":
        generator.set_state(_state_of_torch(seed, short))
    else:
        generator.manual_seed(short)


def _state_of_torch(seed: int, short: int) -> Tensor:
    """The state of a generator on the processor with this seed."""
    state = torch.Generator().manual_seed(short).get_state()
    if seed != short:
        words = state.view(torch.int64)[_WORDS_OF_TORCH]
        if int(words[0]) != short % 2**32:
            raise RuntimeError("this version of torch keeps the state of a generator in a form that is not known here")
        longer = hashlib.shake_256(seed.to_bytes(seed.bit_length() // 8 + 1, "little")).digest(4 * len(words))
        words.copy_(torch.from_numpy(np.frombuffer(longer, np.uint32).astype(np.int64)))
    return state


def generator_apart() -> torch.Generator:
    """A generator with a secret seed, which leaves torch's global one alone."""
    generator = torch.Generator()
    seed_torch(secrets.randbits(_SECRET_BITS), generator)
    return generator


def seed_worker_secretly(worker: int) -> None:
    """Called in a process of a ``DataLoader``, which seeds torch with 32 bits that count."""
    seed_secretly()
