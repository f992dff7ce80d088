"""The random states that user code advances: torch's, NumPy's and Python's global generators, and single generators."""

from __future__ import annotations

import gc
import hashlib
import random
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from types import CellType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

OF_PYTHON_AND_NUMPY = (np.random.Generator, np.random.RandomState, np.random.BitGenerator, random.Random)
GENERATORS = (torch.Generator, *OF_PYTHON_AND_NUMPY)
# What generators_of does not look into, because it holds none.
_WITHOUT_GENERATORS = (Tensor, ModuleType, type, str, bytes, int, float, type(None))
# Loaders, samplers, trainers and runs draw outside of losses, and their orders are the user's.
_OUTSIDE = ("torch.utils.data.", "lightning.", "pytorch_lightning.", "accelerate.", "noisette.")
_MOST_OBJECTS, _MOST_ENTRIES = 10_000, 1_000_000
_LEAVES = frozenset((Tensor, Parameter, str, bytes, bool, int, float, complex, type(None)))
EMPTY_CELL = CellType()
_BITS = 2**63 - 1
_SECRET_BITS = 256  # nobody can try all of them
_WORDS_OF_TORCH = slice(3, 3 + 624)  # of the state of its generators on the processor, as whole numbers of 64 bits


def reseed_later(generators: Iterable[object]) -> Callable[[], None]:
    """Draw a seed from each global generator and from each of these now; the function that is returned sets them.

    Whatever is drawn in between, the states that it sets are functions of the states at the time of this call.
    Torch's generators on accelerators get the seed of the one on the processor.
    """
    seeded = _all(generators)
    seeds = [draw() for draw, _ in seeded]

    def reseed() -> None:
        for (_, seed), value in zip(seeded, seeds, strict=True):
            seed(value)

    return reseed


def seed_secretly(generators: Iterable[object]) -> Callable[[], None]:
    """Give each global generator and each of these a seed from the operating system, which nobody knows or can guess.

    It has 256 bits, and 63 on accelerators. Of 32 bits, which is all that ``torch.manual_seed`` uses on a processor,
    others could try each one. The function that is returned is that of :func:`reseed_later`.
    """
    generators = list(generators)
    reseed = reseed_later(generators)
    seed_secretly_again(generators)
    return reseed


def seed_secretly_again(generators: Iterable[object]) -> None:
    """Give them other secret seeds."""
    for _, seed in _all(generators):
        seed(secrets.randbits(_SECRET_BITS))


def generators_of(*values: object, known: Iterable[object] = ()) -> list[object]:
    """The generators that objects are or draw from, each once.

    Looked at are the object and the function of a method; the closure, defaults and attributes of a function; and what
    any other object holds, such as the entries of a container, attributes and slots, what a ``partial`` is given, and
    the results that a ``functools.cache`` keeps; up to ten thousand objects and a million entries beside these. Not
    looked at are global names, attributes of classes, and what is held weakly.

    Args:
        values: the objects.
        known: others that are not looked into.
    """
    found: list[object] = []
    seen = {id(one): one for one in known}  # while they are here, no other object has their ids
    following, left, entries = deque(values), len(values) + _MOST_OBJECTS, _MOST_ENTRIES  # what is nearest comes first
    while following and left and entries > 0:
        held = following.popleft()
        if issubclass(type(held), _WITHOUT_GENERATORS) or id(held) in seen:
            continue
        left -= 1
        seen[id(held)] = held
        if issubclass(type(held), GENERATORS):
            found.append(held)
        elif not f"{type(held).__module__}.".startswith(_OUTSIDE):
            parts = _held_by(held)
            entries -= len(parts)
            following.extend(islice((part for part in parts if type(part) not in _LEAVES), _MOST_OBJECTS))
    return found


def _held_by(value: Any) -> list[Any]:
    """What an object holds that it may draw from; no code of its class is called."""
    if type(value) is FunctionType:
        return [*held_by_function(value), vars(value)]
    # The collector finds what an object holds of any type, also of those written in C, but for arrays of objects.
    if isinstance(value, np.ndarray):
        return value.ravel().tolist() if value.dtype.hasobject else []
    return gc.get_referents(value)


def closure_of(function: FunctionType) -> list[object]:
    """The values that a function encloses, without those that have none yet.

    >>> closure_of((lambda inner: lambda: inner)(3))
    [3]
    """
    return [cell.cell_contents for cell in function.__closure__ or () if cell != EMPTY_CELL]


def held_by_function(function: FunctionType) -> list[object]:
    """What a function may draw from beside global names: the values of its closure and the defaults of its arguments.

    >>> held_by_function(lambda one=1, *, two=2: one + two)
    [1, 2]
    """
    return [*closure_of(function), *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]


def held_by_torch(parts: Iterable[object]) -> list[Any]:
    """The generators of torch among the attributes of these objects."""
    return [held for part in parts for held in vars(part).values() if isinstance(held, torch.Generator)]


@contextmanager
def torch_seeded(seed: int) -> Iterator[None]:
    """Within it torch's global generators have this seed; then they go on as by :func:`reseed_later`."""
    reseed = reseed_later(())
    seed_torch(seed)
    try:
        yield
    finally:
        reseed()


def is_drawn_since_seeded() -> bool:
    """Whether torch's global generators have given numbers since ``torch.manual_seed`` was called."""
    fresh = torch.Generator().manual_seed(torch.initial_seed())
    on_devices = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
    return not torch.equal(torch.get_rng_state(), fresh.get_state()) or any(g.get_offset() for g in on_devices)


def seed_worker_secretly(worker: int) -> None:
    """Called in a process of a ``DataLoader``, which seeds torch with 32 bits that count."""
    seed_secretly(())


def of_python_and_numpy(generators: Iterable[object] = ()) -> tuple[object, ...]:
    """The states of Python's and NumPy's global generators and of these, to be compared with later ones."""
    return random.getstate(), _of_numpy(np.random.get_state(legacy=False)), *map(_state_of, generators)


def _state_of(generator: object) -> object:
    if isinstance(generator, random.SystemRandom):
        return None  # it has no state
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.RandomState):
        return _of_numpy(generator.get_state(legacy=False))
    bits = bits_of(generator)
    return None if bits is None else _of_numpy(bits.state)


def bits_of(generator: object) -> Any:
    """What a newer generator of NumPy draws bits from, or is; ``None`` of others, and where all of it is the user's.

    >>> type(bits_of(np.random.default_rng(1))).__name__
    'PCG64'
    """
    bits = generator.bit_generator if isinstance(generator, np.random.Generator) else generator
    return bits if _kind_of(bits) else None


def _kind_of(bits: object) -> Any:
    """The class of NumPy's that bits come from, also where they are of a class derived from it."""
    if not isinstance(bits, np.random.BitGenerator):
        return None
    kind = next(base for base in type(bits).__mro__ if base.__module__.startswith("numpy."))
    return None if kind is np.random.BitGenerator else kind


def _of_numpy(state: Any) -> object:
    if state["bit_generator"] != "MT19937":
        return repr(state)
    twister = state["state"]
    return twister["key"].tobytes(), twister["pos"], state.get("has_gauss"), state.get("gauss")


_Seeded = tuple[Callable[[], int], Callable[[int], Any]]  # draws a seed, and sets one

_default: _Seeded = (lambda: _drawn(torch.default_generator), lambda seed: seed_torch(seed))
_numpy: _Seeded = (
    lambda: _joined(np.random.randint(2**32, size=8, dtype=np.uint32).tolist(), 32),
    lambda seed: _seed_numpy(seed),
)
_python: _Seeded = (lambda: random.getrandbits(_SECRET_BITS), lambda seed: random.seed(seed))


def _all(generators: Iterable[object]) -> list[_Seeded]:
    return [_default, _numpy, _python, *(_of(generator) for generator in generators)]


def _seed_numpy(seed: int) -> None:
    numpy: Any = np.random
    if isinstance(numpy.get_bit_generator(), np.random.MT19937):
        np.random.seed(_words(seed))  # in a fifth of the time that the state takes to read
    else:
        _seed_older(np.random, seed)


def _seed_older(generator: Any, seed: int) -> None:
    """Seed a ``RandomState``, or NumPy's global one."""
    state = generator.get_state(legacy=False)
    if state["bit_generator"] == "MT19937":
        generator.seed(_words(seed))
    else:
        bits = getattr(np.random, state["bit_generator"])
        generator.set_state({**bits(seed).state, "has_gauss": 0, "gauss": 0.0})


def _words(seed: int) -> list[int]:
    """A seed of 64 bits or more as NumPy's older generators take it."""
    return [seed >> shift & (2**32 - 1) for shift in range(0, max(64, seed.bit_length()), 32)]


def seed_torch(seed: int, generator: torch.Generator = torch.default_generator) -> None:
    """Seed a generator of torch; through the global one, those of accelerators too.

    On the processor torch uses the lower 32 bits of a seed alone. Where a seed is longer than torch takes it, all of it
    is brought into the state. Where there is no accelerator, ``torch.manual_seed`` would keep a list of its calls with
    their tracebacks for accelerators that may come, which takes up to a millisecond each.
    """
    short = seed % 2**63
    if generator is torch.default_generator and torch.accelerator.is_available():
        torch.manual_seed(short)  # also where no accelerator has been used yet, which takes 0.1 ms
    if generator.device.type == "cpu":
        generator.set_state(_state_of_torch(seed, short))  # at once: another thread may draw meanwhile
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


def _of(generator: Any) -> _Seeded:
    if isinstance(generator, torch.Generator):
        return lambda: _drawn(generator), lambda seed: seed_torch(seed, generator)
    if isinstance(generator, random.Random):
        return lambda: generator.getrandbits(_SECRET_BITS), lambda seed: generator.seed(seed)
    if isinstance(generator, np.random.RandomState):
        draw = partial(generator.randint, 2**32, size=8, dtype=np.uint32)
        return lambda: _joined(draw().tolist(), 32), lambda seed: _seed_older(generator, seed)
    bits = bits_of(generator)
    if bits is None:
        return lambda: 0, lambda seed: None

    def seed(value: int) -> None:
        bits.state = _kind_of(bits)(value).state | {"bit_generator": type(bits).__name__}

    return lambda: _joined(np.random.Generator(bits).integers(2**32, size=8).tolist(), 32), seed


def _drawn(generator: torch.Generator) -> int:
    drawn = torch.empty(4, dtype=torch.int64, device=generator.device).random_(0, _BITS, generator=generator)
    return _joined(drawn.tolist(), 63)


def _joined(words: Iterable[int], bits: int) -> int:
    """Numbers of so many bits as one: of a short seed, a chain of steps would soon come back to its beginning."""
    joined = 0
    for word in words:
        joined = joined << bits | word
    return joined


def generator_apart() -> torch.Generator:
    """A generator with a secret seed, which leaves torch's global one alone."""
    generator = torch.Generator()
    seed_torch(secrets.randbits(_SECRET_BITS), generator)
    return generator
