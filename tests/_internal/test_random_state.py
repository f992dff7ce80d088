"""Random generators get secret seeds, and go on as if they had not been used."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from noisette._internal.random_state import (
    generator_apart,
    generators_of,
    of_python_and_numpy,
    reseed_later,
    seed_secretly,
    seed_worker_secretly,
)


def known() -> list[object]:
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    return [torch.Generator().manual_seed(2), np.random.default_rng(2), np.random.RandomState(2), random.Random(2)]


def drawn(own: list[object]) -> tuple[float, ...]:
    of_torch, of_numpy, older, of_python = own
    assert isinstance(of_torch, torch.Generator)
    assert isinstance(of_numpy, np.random.Generator)
    assert isinstance(older, np.random.RandomState)
    assert isinstance(of_python, random.Random)
    whole = torch.rand(()).item(), np.random.rand(), random.random()
    return (*whole, torch.rand((), generator=of_torch).item(), of_numpy.random(), older.rand(), of_python.random())


def test_known_seeds_tell_nothing_until_the_generators_go_on() -> None:
    within, after = [], []
    for _ in range(2):
        own = known()
        go_on = seed_secretly(own)
        within.append(drawn(own))
        go_on()
        after.append(drawn(own))
    assert not set(within[0]) & set(within[1])
    assert after[0] == after[1]


def test_generators_go_on_as_without_secret_seeds() -> None:
    own = known()
    seed_secretly(own)()
    expected = drawn(own)
    own = known()
    reseed_later(own)()
    assert drawn(own) == expected


_NUMPY: Any = np.random


@pytest.fixture
def _other_bits() -> Iterator[None]:
    before = _NUMPY.get_bit_generator()
    yield
    _NUMPY.set_bit_generator(before)


@pytest.mark.usefixtures("_other_bits")
@pytest.mark.parametrize("bits", [np.random.PCG64, np.random.Philox, np.random.SFC64])
def test_older_generators_of_numpy_may_have_other_bits(bits: Any) -> None:
    drawn, after = list[float](), list[list[float]]()
    for _ in range(2):
        own = np.random.RandomState(bits(1))
        _NUMPY.set_bit_generator(bits(1))
        for generator in (own, np.random):
            generator.standard_normal()  # keeps a second number for the next call
        before = of_python_and_numpy([own])
        go_on = seed_secretly([own])
        assert of_python_and_numpy([own]) != before
        drawn += [own.standard_normal(), np.random.standard_normal()]
        go_on()
        after.append([own.standard_normal(), np.random.standard_normal()])
    assert len(set(drawn)) == 4
    assert after[0] == after[1]


@pytest.mark.parametrize("number", range(1, 4))
def test_each_generator_is_seen_to_draw(number: int) -> None:
    own = known()
    before = of_python_and_numpy(own)
    assert of_python_and_numpy(own) == before
    generator: Any = own[number]
    generator.random()
    assert of_python_and_numpy(own) != before


def test_generators_behind_methods_and_functions_are_found() -> None:
    own = random.Random(1)

    def first() -> float:
        return own.random() + second()

    def second() -> float:
        return first() if later is None else 0.0

    assert generators_of(first) == generators_of(own.random) == generators_of(partial(first)) == [own]
    assert generators_of(print) == []
    later = first


def test_a_generator_apart_has_a_secret_seed_and_uses_no_other() -> None:
    seeds = set()
    for _ in range(2):
        torch.manual_seed(1)
        state = torch.get_rng_state()
        seeds.add(generator_apart().initial_seed())
        assert torch.equal(torch.get_rng_state(), state)
    assert len(seeds) == 2


def has_a_seed_of_32_bits(generator: torch.Generator) -> bool:
    """Whether its state is one that torch itself makes of a seed, of which it uses 32 bits."""
    return torch.equal(torch.Generator().manual_seed(generator.initial_seed()).get_state(), generator.get_state())


def test_secret_seeds_are_too_many_to_be_tried() -> None:
    own = torch.Generator().manual_seed(2)
    assert has_a_seed_of_32_bits(own)
    seed_secretly([own])
    assert not has_a_seed_of_32_bits(own)
    assert not has_a_seed_of_32_bits(torch.default_generator)
    assert not has_a_seed_of_32_bits(generator_apart())
    seed_worker_secretly(0)
    assert not has_a_seed_of_32_bits(torch.default_generator)


def test_a_long_seed_becomes_the_whole_state_of_a_mersenne_twister() -> None:
    """Judged by that of NumPy: the words of the state are where they are expected, and all of them are used."""
    own = torch.Generator()
    seed_secretly([own])
    key = own.get_state().view(torch.int64)[3:627].numpy().astype(np.uint32)
    twister: Any = np.random.MT19937()
    twister.state = twister.state | {"state": {"key": key, "pos": 624}}
    expected = (twister.random_raw(2000) % 2**24).tolist()
    assert torch.empty(2000, dtype=torch.int64).random_(0, 2**24, generator=own).tolist() == expected
