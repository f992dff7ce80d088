"""Random generators get secret seeds, and go on as if they had not been used."""

from __future__ import annotations

import random

import numpy as np
import torch

from noisette._internal.random_state import generator_apart, reseed_later, seed_secretly


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


def test_a_generator_apart_has_a_secret_seed_and_uses_no_other() -> None:
    seeds = set()
    for _ in range(2):
        torch.manual_seed(1)
        state = torch.get_rng_state()
        seeds.add(generator_apart().initial_seed())
        assert torch.equal(torch.get_rng_state(), state)
    assert len(seeds) == 2
