"""Faults of the noise: its size, its source, its independence."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from noisette.core import noise
from noisette.core.clip import Accumulator
from noisette.core.noise import MASK, WHOLE, GaussianNoise, PlainPass, SecretKey, Window
from noisette.core.release import BoundedSum, GaussianRelease
from noisette.noise import device as device_noise
from planted import Mutant, Patch

Add = Callable[..., None]
_SIZE = "core/test_gaussian_release.py::test_deviation_is_noise_times_bound_over_the_constant"
_AUDIT = "audit/test_step_audit.py::test_real_loop_is_the_documented_mechanism[BookKeeping-1.0]"


def added(change: Callable[..., None]) -> Patch:
    """Noise is added by ``change(add, tensors, std=, step=, divisor=)``, where ``add`` is the library's own way."""
    whole = GaussianNoise.add_

    def add_(self: GaussianNoise, tensors: Any, *, std: float = 1.0, **numbers: Any) -> None:
        change(partial(whole, self), tensors, std=std, **numbers)

    return lambda patch: patch.setattr(GaussianNoise, "add_", add_)


def times(factor: float) -> Patch:
    def scaled(add: Add, tensors: Any, *, std: float, **place: Any) -> None:
        add(tensors, std=factor * std, **place)

    return added(scaled)


def of_an_average(patch: pytest.MonkeyPatch) -> None:
    """The sum's noise is divided by the batch size a second time."""
    whole = GaussianRelease._deviations_of
    patch.setattr(
        GaussianRelease,
        "_deviations_of",
        lambda self, sums: [std / self.expected_batch_size for std in whole(self, sums)],
    )


def for_each_piece(patch: pytest.MonkeyPatch) -> None:
    """Each piece of a batch brings noise of its own."""
    whole = Accumulator.add

    def add(self: Accumulator, sums: Mapping[str, Tensor]) -> None:
        whole(self, {name: total + torch.randn_like(total) for name, total in sums.items()})

    patch.setattr(Accumulator, "add", add)


def at_the_same_step(add: Add, tensors: Any, *, step: int, **numbers: Any) -> None:
    add(tensors, step=0, **numbers)


def by_one_name(add: Add, tensors: Any, **numbers: Any) -> None:
    for tensor in tensors.values():
        add({"one name": tensor}, **numbers)


def tiled(add: Add, tensors: Any, **numbers: Any) -> None:
    for name, tensor in tensors.items():
        for half in tensor.view(-1).chunk(2):
            add({name: half}, **numbers)


def where_something_is(patch: pytest.MonkeyPatch) -> None:
    whole = GaussianRelease.__call__

    def release(self: GaussianRelease, sums: Sequence[BoundedSum], names: Any, *, step: int) -> None:
        reached = [(p, bool(g.any())) for part in sums for p, g in zip(part.params, part.grads, strict=True)]
        whole(self, sums, names, step=step)
        for p, there in reached:
            if p.grad is not None and not there:
                p.grad.zero_()

    patch.setattr(GaussianRelease, "__call__", release)


def of_the_global_generator(add: Add, tensors: Any, *, std: float, divisor: float = 1.0, **place: int) -> None:
    for tensor in tensors.values():
        tensor.div_(divisor).add_(torch.randn(tensor.shape), alpha=std)


def of_24_bits(patch: pytest.MonkeyPatch) -> None:
    """As of a generator of 24 bits: the others are ones."""
    whole = PlainPass.radius
    patch.setattr(PlainPass, "radius", lambda self, radii, has_rare: whole(self, radii | 2**29 - 1, has_rare))


def of_53_bits(patch: pytest.MonkeyPatch) -> None:
    """No radius is rare."""
    patch.setattr(noise, "RARE", 0)


def without_levels(patch: pytest.MonkeyPatch) -> None:
    """A rare radius is drawn anew, and not made longer."""
    whole = PlainPass.radius
    patch.setattr(PlainPass, "radius", lambda self, radii, has_rare: whole(self, radii & MASK, False))


def of_one_rare_word(patch: pytest.MonkeyPatch) -> None:
    """All rare radii of a step have the same further words."""
    whole = noise.rare_radius
    patch.setattr(noise, "rare_radius", lambda key, name, step, pair: whole(key, name, step, 0))


def levels_of_one_word(patch: pytest.MonkeyPatch) -> None:
    """Each level draws the word of the first."""
    whole = SecretKey.fill

    def fill(self: SecretKey, words: Any, *, step: int, **stream: Any) -> None:
        whole(self, words, step=step % 2**64 + (step >> 64 > 0) * 2**64, **stream)

    patch.setattr(SecretKey, "fill", fill)


def without_offset(add: Add, tensors: Any, *, windows: Any = None, **numbers: Any) -> None:
    add(tensors, **numbers)


def without_stride(add: Add, tensors: Any, *, windows: Mapping[str, Window] = MappingProxyType({}), **numbers: Any):
    add(tensors, windows={name: Window(window.start) for name, window in windows.items()}, **numbers)


def by_rounded_words(patch: pytest.MonkeyPatch) -> None:
    """u in single precision: it rounds to one, and noise to zero, once in 3e7 pairs."""
    whole = PlainPass.radius

    def radius(self: PlainPass, radii: np.ndarray, has_rare: bool) -> np.ndarray:
        return whole(self, np.where(radii & MASK >= 2**53 - 2**28, radii | MASK, radii), has_rare)

    patch.setattr(PlainPass, "radius", radius)


def with_even_angles(patch: pytest.MonkeyPatch) -> None:
    """Angles that are multiples of a right angle: their sine or cosine is zero."""
    whole = PlainPass.sines

    def sines(self: PlainPass, angles: np.ndarray) -> np.ndarray:
        values = whole(self, angles)
        odd = abs(angles | 1)
        values[0][odd == 2**30 + 1] = 0
        values[1][odd == 1] = 0
        return values

    patch.setattr(PlainPass, "sines", sines)


def approximate_roots(patch: pytest.MonkeyPatch) -> None:
    """Roots whose last digit is not always right, as those of torch on a processor."""
    whole = PlainPass.radius
    patch.setattr(PlainPass, "radius", lambda *args: torch.from_numpy(whole(*args)).square_().sqrt_().numpy())


def kernel_without_windows(patch: pytest.MonkeyPatch) -> None:
    real = device_noise.table_of
    patch.setattr(device_noise, "table_of", lambda parts, tiles: real([p._replace(window=WHOLE) for p in parts], tiles))


def one_key_for_all(patch: pytest.MonkeyPatch) -> None:
    real = SecretKey.__init__
    patch.setattr(SecretKey, "__init__", lambda self, secret=None: real(self, secret or bytes(32)))


def whole_budget_for_each_sum(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("noisette.core.release.shares_of", lambda sums: [1.0] * len(sums))


MUTANTS = [
    Mutant("no noise", "the clipped sum is published", times(1e-12), (_SIZE, _AUDIT)),
    Mutant("half the noise", "epsilon is more than twice what is stated", times(0.5), (_SIZE, _AUDIT)),
    Mutant("nine tenths of the noise", "epsilon is a tenth more than stated", times(0.9), (_SIZE, _AUDIT)),
    Mutant("twice the noise", "accuracy is lost for nothing", times(2.0), (_SIZE, _AUDIT)),
    Mutant("noise of an average", "noise too small by the batch size", of_an_average, (_SIZE, _AUDIT)),
    Mutant(
        "noise for each piece",
        "noise depends on how a batch is cut",
        for_each_piece,
        ("run/test_private_run.py::test_pieces_change_nothing",),
    ),
    Mutant(
        "same noise in each step",
        "the difference of two steps has none",
        added(at_the_same_step),
        ("core/test_noise.py::test_independent_across", _AUDIT),
    ),
    Mutant(
        "same noise for each tensor",
        "the difference of two tensors has none",
        added(by_one_name),
        ("core/test_gaussian_release.py::test_all_parameters_get_noise_of_their_own", _AUDIT),
    ),
    Mutant(
        "tiled noise",
        "the difference of two halves of a tensor has none",
        added(tiled),
        ("core/test_noise.py::test_no_correlation_at_any_lag", "core/test_noise.py::test_no_value_comes_twice"),
    ),
    Mutant(
        "no noise where the sum is zero",
        "tells which parameters a batch has reached, and which batches are empty",
        where_something_is,
        (
            "run/test_private_run.py::test_unused_parameter_gets_its_noise",
            "run/test_private_run.py::test_empty_batch_is_a_step_of_noise_alone",
        ),
    ),
    Mutant(
        "torch.randn in single precision",
        "a tail that stops at 5.8 deviations, and a seed that others know",
        added(of_the_global_generator),
        ("core/test_noise.py::test_tail_and_edge", "core/test_noise.py::test_global_seed_does_not_reach_it"),
    ),
    Mutant(
        "radius of 24 bits",
        "what the tail cannot reach shows the sum",
        of_24_bits,
        ("core/test_noise.py::test_tail_and_edge", "core/test_noise.py::test_radius_uses_53_bits"),
    ),
    Mutant(
        "radius of 53 bits",
        "what the tail cannot reach shows the sum, at a billion weights",
        of_53_bits,
        ("core/test_noise.py::test_tail_and_edge", "core/test_noise.py::test_a_rare_radius_of_a_known_key"),
    ),
    Mutant(
        "rare radii that are not longer",
        "the tail stops at 5.8 deviations, and short values stand in its place",
        without_levels,
        (
            "core/test_noise.py::test_a_rare_radius_of_a_known_key",
            "core/test_noise.py::test_the_longest_noise_is_as_rare_as_the_gaussian_has_it",
        ),
    ),
    Mutant(
        "one word for all rare radii",
        "the difference of two values has no noise",
        of_one_rare_word,
        (
            "core/test_noise.py::test_a_rare_radius_of_a_known_key",
            "core/test_noise.py::test_the_longest_noise_is_as_rare_as_the_gaussian_has_it",
        ),
    ),
    Mutant(
        "one word for all levels of a radius",
        "a radius that is rare twice is of the largest length",
        levels_of_one_word,
        ("core/test_noise.py::test_the_longest_noise_is_as_rare_as_the_gaussian_has_it",),
    ),
    Mutant(
        "noise without offset on shards",
        "the difference of two shards has none",
        added(without_offset),
        (
            "core/test_noise.py::test_shards_get_their_part_of_the_whole_noise",
            "core/test_noise.py::test_each_tensor_has_its_own_window",
        ),
    ),
    Mutant(
        "noise of rows on a shard of columns",
        "columns of two ranks share noise",
        added(without_stride),
        (
            "core/test_noise.py::test_shards_get_their_part_of_the_whole_noise",
            "core/test_noise.py::test_each_tensor_has_its_own_window",
        ),
    ),
    Mutant(
        "u rounded to single precision",
        "noise is zero once in 3e7 pairs, and the sum is released",
        by_rounded_words,
        (
            "core/test_noise.py::test_noise_is_never_exactly_zero_for_large_uniforms",
            "core/test_noise_formula.py::test_radii_are_right_to_the_last_digits",
        ),
    ),
    Mutant(
        "angles that are multiples of a right angle",
        "noise is zero once in 2e9 values, and the sum is released",
        with_even_angles,
        ("core/test_noise_formula.py::test_sines_are_right_to_the_last_digits",),
    ),
    Mutant(
        "roots that are not rounded correctly",
        "ranks and passes draw different noise for one element",
        approximate_roots,
        ("run/test_fixed_keys.py::test_noise_in_single_precision",),
    ),
    Mutant(
        "a kernel that ignores windows",
        "the difference of two shards has none",
        kernel_without_windows,
        ("noise/test_launch_table.py::test_each_tile_of_each_run_is_touched_once",),
    ),
    Mutant(
        "one key for all processes",
        "noise can be computed again, and a resumed run repeats it",
        one_key_for_all,
        (
            "core/test_keys.py::test_keys_differ",
            "run/test_private_run.py::test_two_runs_never_share_noise",
            "run/test_resume.py::test_each_process_draws_noise_of_its_own",
        ),
    ),
    Mutant(
        "whole budget for each of several sums",
        f"noise of k sums too small by the root of k (for two by {math.sqrt(2):.1f})",
        whole_budget_for_each_sum,
        ("core/test_gaussian_release.py::test_several_sums_share_one_mechanism",),
    ),
]
