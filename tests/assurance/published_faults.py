"""Faults of what is published with the weights: values of records stay in buffers, or parameters are written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from noisette.core.state import ModelBuffers
from noisette.core.steps import DpSgd, RandomStates
from planted import Mutant

_STATE = "redteam/test_published_state.py"


def buffers_of_the_model(patch: pytest.MonkeyPatch) -> None:
    """The model computes with its own buffers."""

    @contextmanager
    def lent(self: ModelBuffers, change: Callable[..., Any] = lambda name, copy: copy) -> Iterator[None]:
        yield

    patch.setattr(ModelBuffers, "lent", lent)


def copies_that_stay(patch: pytest.MonkeyPatch) -> None:
    """What a call has written into its copies is what the next one starts from."""
    whole = ModelBuffers.lent

    @contextmanager
    def lent(self: ModelBuffers, change: Callable[..., Any] = lambda name, copy: copy) -> Iterator[None]:
        with whole(self, change):
            yield
            found = {name: b.detach().clone() for name, b in self._model.named_buffers()}
        for name, (buffer, version, _) in (self._kept or {}).items():
            self._kept[name] = buffer, version, found[name]

    patch.setattr(ModelBuffers, "lent", lent)


def writes_of_the_loop(patch: pytest.MonkeyPatch) -> None:
    def end_batch(self: ModelBuffers) -> list[str]:
        self._kept = None
        return []

    patch.setattr(ModelBuffers, "end_batch", end_batch)


MUTANTS = [
    Mutant(
        "the model computes with its own buffers",
        "running statistics of the records are published, and carry values from one record to the next",
        buffers_of_the_model,
        (
            f"{_STATE}::test_what_a_loss_writes_into_buffers_is_dropped",
            "core/test_buffers.py::test_no_example_sees_what_another_has_written",
        ),
        seen_as=(UserWarning,),
    ),
    Mutant(
        "what a call wrote is there in the next one",
        "a spectral norm has other weights in each microbatch, so that examples are not clipped under one function",
        copies_that_stay,
        (f"{_STATE}::test_spectral_norm_has_one_weight_for_all_microbatches",),
    ),
    Mutant(
        "what the loop writes into buffers within a batch stays",
        "statistics of the batch are published, and move the gradients of the records that follow",
        writes_of_the_loop,
        (
            f"{_STATE}::test_a_buffer_that_the_loop_writes_within_a_batch_is_put_back",
            f"{_STATE}::test_a_run_that_is_closed_within_a_batch_leaves_nothing",
        ),
    ),
    Mutant(
        "writes into parameters are not noticed",
        "weights move by values of records, past the noise",
        lambda patch: patch.setattr(DpSgd, "_versions", lambda self: [0] * len(self._weights)),
        ("core/test_buffers.py::test_a_parameter_that_is_written_within_a_batch_ends_the_run",),
    ),
    Mutant(
        "random generators go on from where the batch left them",
        "their state tells the number of microbatches",
        lambda patch: patch.setattr(RandomStates, "restore", lambda self: None),
        (f"{_STATE}::test_the_generator_does_not_tell_the_batch",),
    ),
]
