"""Faults of runs on several ranks: keys, sums, noise and accounting that are not those of one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from torch import Tensor

import process_group
from noisette.core.noise import GaussianNoise, SecretKey
from noisette.ranks import Ranks
from noisette.ranks.joint_sums import JointSums
from noisette.run.private import PrivateRun
from planted import Mutant, Patch

_REPLICAS = "ranks/test_replicas.py"
_FAILURES = "ranks/test_failures.py"
_SAME = f"{_REPLICAS}::test_a_run_is_that_of_one_process"
_TWO = f"{_SAME}[plain-{{}}-2]"
_NOISE = f"{_REPLICAS}::test_the_noise_of_empty_batches_is_the_same_bit_for_bit"
_DIFFER = f"{_REPLICAS}::test_ranks_that_differ_are_refused_by_name"


def on_each_rank(*faults: Patch) -> Patch:
    """A fault of the processes that a test starts, not of the test's own."""
    return lambda patch: patch.setattr(process_group, "PLANTED", faults)


def a_key_for_each_rank(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ranks, "key", lambda self: SecretKey())


def noise_before_the_sum(patch: pytest.MonkeyPatch) -> None:
    """Every rank adds noise to its own sum."""

    def release_(self: JointSums, sums: Mapping[str, Tensor], *, step: int, std: float, divisor: float) -> None:
        self._noise.add_(sums, step=step, std=std, divisor=divisor)
        self._ranks.add_up(list(sums.values()))

    patch.setattr(JointSums, "release_", release_)


def sums_of_one_rank(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ranks, "add_up", lambda self, sums: None)


def mean_over_ranks(patch: pytest.MonkeyPatch) -> None:
    whole = Ranks.add_up

    def add_up(self: Ranks, sums: Sequence[Tensor]) -> None:
        whole(self, sums)
        for tensor in sums:
            tensor.div_(self.size)

    patch.setattr(Ranks, "add_up", add_up)


def noise_from_the_first_element(patch: pytest.MonkeyPatch) -> None:
    """The parts of a parameter get the same noise on all ranks."""
    whole = GaussianNoise.add_

    def add_(self: GaussianNoise, tensors: Any, *, step: int, std: float, divisor: float, windows: Any = None) -> None:
        whole(self, tensors, step=step, std=std, divisor=divisor)

    patch.setattr(GaussianNoise, "add_", add_)


def whole_batch_on_each_rank(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ranks, "share", lambda self, indices: indices)


def commit_after_the_release(patch: pytest.MonkeyPatch) -> None:
    """The line is written when the step is over, so that a rank may release what is not paid for."""
    patch.setattr(PrivateRun, "_commit_step", lambda self: None)
    patch.setattr(PrivateRun, "_reserve_step", _reserve_one)
    after = PrivateRun._after_step

    def write_late(self: PrivateRun, *args: object) -> None:
        after(self, *args)
        if self._ranks.rank == 0:
            self.ledger.reserve(self.terms.event, 1, run=self._recorded)
            self.ledger.commit(self.terms.event, run=self._recorded)

    patch.setattr(PrivateRun, "_after_step", write_late)


def _reserve_one(self: PrivateRun) -> None:
    """Nothing is written before a batch is drawn."""


def nothing_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ranks, "check_equal", lambda self, phase, facts: None)


def errors_kept_to_oneself(patch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def unanimous(self: Ranks, phase: str) -> Iterator[dict[str, float]]:
        yield {}

    patch.setattr(Ranks, "unanimous", unanimous)


def all_silent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("noisette.ranks.launch.were_started_together", lambda: False)


def wrappers_in_names(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("noisette.ranks.process_group.canonical_name", lambda root, name: name)


_PLANTS: list[tuple[str, str, Callable[[pytest.MonkeyPatch], None], str]] = [
    (
        "each rank has a key of its own",
        "batches and noise are not those that are accounted for",
        a_key_for_each_rank,
        f"{_REPLICAS}::test_each_rank_has_a_key_of_its_own_only_alone",
    ),
    ("each rank adds noise to its own sum", "the noise is N times as large as accounted", noise_before_the_sum, _NOISE),
    ("sums are not added up over the ranks", "each rank trains another model", sums_of_one_rank, _TWO),
    ("the sum is divided by the number of ranks", "the noise is N times as large as accounted", mean_over_ranks, _TWO),
    (
        "each part of a parameter has the noise of its beginning",
        "the difference of two parts has no noise",
        noise_from_the_first_element,
        _NOISE,
    ),
    (
        "each rank takes the whole batch",
        "a record counts N times, and moves the sum by N times its bound",
        whole_batch_on_each_rank,
        _TWO,
    ),
    (
        "a step is written to the ledger after its release",
        "a crash leaves a release that nobody counts",
        commit_after_the_release,
        f"{_FAILURES}::test_a_killed_rank_leaves_nothing_uncounted[after the parts are gathered-0]",
    ),
    (
        "ranks are not compared",
        "they train different models or data, and add up their sums",
        nothing_compared,
        f"{_DIFFER}[weights]",
    ),
    (
        "errors of one rank stay with it",
        "the others wait, or release without it",
        errors_kept_to_oneself,
        f"{_FAILURES}::test_an_error_on_one_rank_ends_all[after the commit-refuse]",
    ),
]
MUTANTS = [Mutant(name, harm, on_each_rank(plant), (caught,)) for name, harm, plant, caught in _PLANTS] + [
    Mutant(
        "processes that were started together are separate runs",
        "N runs spend the budget, and one is counted",
        all_silent,
        (f"{_REPLICAS}::test_without_a_process_group_torchrun_is_refused",),
        seen_as=(pytest.fail.Exception,),
    ),
    Mutant(
        "names of wrappers are part of the names of parameters",
        "a wrapped model has other noise than the plain one, and a checkpoint fits one of them alone",
        wrappers_in_names,
        ("ranks/test_wrappers.py::test_wrappers_are_left_out_of_names",),
    ),
]
