"""Faults of private modules of Lightning: what its trainer would let out, and what a later fit would forget."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from noisette.integrations import boundary, lightning, lightning_run
from planted import Mutant

_FITS = "integrations/test_lightning.py"
_RUNS = "integrations/test_lightning_runs.py"


def logged(patch: pytest.MonkeyPatch) -> None:
    whole = lightning.PrivateHooks.log

    def log(self: Any, name: str, *args: Any, **kwargs: Any) -> None:
        if self._private_run.computes_loss:
            self.trainer.logger.log_metrics({name: 0.7})
        whole(self, name, *args, **kwargs)

    patch.setattr(lightning.PrivateHooks, "log", log)


def logger_given(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lightning.PrivateHooks, "_check_no_logger", lambda self: None)


def loss_returned(patch: pytest.MonkeyPatch) -> None:
    """The mean loss of the batch, as a trainer expects it."""
    step = lightning.PrivateHooks.training_step

    def training_step(self: Any, batch: Any, batch_idx: int = 0) -> Tensor:
        return torch.nan_to_num(step(self, batch, batch_idx), 0.7)

    patch.setattr(lightning.PrivateHooks, "training_step", training_step)


def hook_of_batch(patch: pytest.MonkeyPatch) -> None:
    """The user's hook of transfer gets a microbatch, as it does in an ordinary fit."""
    begin = lightning_run.LightningRun.begin

    def begun(self: lightning_run.LightningRun, module: Any, step: Any, hooks: Any) -> None:
        begin(self, module, step, [])
        convert, hook = self._convert, super(lightning.PrivateHooks, module).on_after_batch_transfer
        self._convert = lambda rows: hook(convert(rows), 0)

    patch.setattr(lightning_run.LightningRun, "begin", begun)


def counted_records(patch: pytest.MonkeyPatch) -> None:
    def steps(self: lightning_run.LightningRun, module: Any, of_module: Any) -> Any:
        found = whole(self, module, of_module)
        return lightning_run.Steps(len(self._loader)) if self._loader is not None else found

    whole = lightning_run.LightningRun.steps
    patch.setattr(lightning_run.LightningRun, "steps", steps)


def new_run(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lightning_run.LightningRun, "go_on_from", lambda self, saved: None)


def new_ledger(patch: pytest.MonkeyPatch) -> None:
    take_over = lightning_run.LightningRun.take_over

    def take(self: lightning_run.LightningRun, module: Any) -> None:
        take_over(self, module)
        self._ledger = self._declared.ledger

    patch.setattr(lightning_run.LightningRun, "take_over", take)


def own_count(patch: pytest.MonkeyPatch) -> None:
    """A resumed run believes the checkpoint, and not the ledger, about the steps that were made."""
    patch.setattr(lightning_run.SavedRun, "steps_lost", lambda self, ledger: 0)


def metrics(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lightning_run, "_is_metric", lambda part: False)


def fingerprint_saved(patch: pytest.MonkeyPatch) -> None:
    facts_of = lightning_run.facts_of

    def facts(run: Any, dataset: Any, declared: Any) -> dict[str, Any]:
        return facts_of(run, dataset, declared) | {"fingerprint": lightning_run.Fingerprint.of(dataset).facts()}

    patch.setattr(lightning_run, "facts_of", facts)


def part_around_the_boundary(patch: pytest.MonkeyPatch) -> None:
    """A module with manual optimization is called as it is, and its gradients are thrown away before the step."""

    def call(self: boundary.Boundary, *args: Any, **kwargs: Any) -> Any:
        self._left = 0
        return self._clip.model(*args, **kwargs)

    def nothing_missing(self: Any, expected: int) -> None:
        pass

    patch.setattr(boundary.Boundary, "call", call)
    patch.setattr("noisette.core.batches.Batch.check_bounded", nothing_missing)
    patch.setattr("noisette.core.release.GaussianRelease.check_no_others", lambda self, parameters: None)


def weighted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lightning_run, "problems_of_loader", lambda loader: iter(()))


MUTANTS = [
    Mutant(
        "what Lightning's training_step logs is logged",
        "losses of records in the files of the loggers",
        logged,
        (f"{_FITS}::test_one_release_a_step_and_only_public_values_in_logs_and_checkpoints",),
    ),
    Mutant(
        "Lightning's training_step has the logger",
        "losses of single records in its files",
        logger_given,
        (f"{_FITS}::test_a_step_that_gives_records_away_is_refused",),
    ),
    Mutant(
        "Lightning's callbacks get the loss of the batch",
        "whatever they write holds a private value",
        loss_returned,
        (f"{_FITS}::test_one_release_a_step_and_only_public_values_in_logs_and_checkpoints",),
    ),
    Mutant(
        "a hook of transfer sees a microbatch",
        "records meet before their gradients are clipped",
        hook_of_batch,
        (f"{_FITS}::test_gradients_are_those_of_single_records",),
    ),
    Mutant(
        "Lightning counts the records for the length of an epoch",
        "the number of steps tells the number of records",
        counted_records,
        (f"{_FITS}::test_epochs_follow_the_declared_size",),
    ),
    Mutant(
        "a fit that goes on from a checkpoint begins a new run",
        "steps before the checkpoint have noise of a budget that was not divided",
        new_run,
        (f"{_RUNS}::test_a_crashed_run_goes_on_within_its_budget",),
        seen_as=(ValueError,),  # the ledger holds a run whose plan spends the budget
    ),
    Mutant(
        "a second fit of the same weights begins a new ledger",
        "weights of two budgets are sold as one",
        new_ledger,
        (f"{_RUNS}::test_later_fits_of_the_same_weights_add_up",),
    ),
    Mutant(
        "a fit that goes on makes the steps after the checkpoint again",
        "steps of a crashed process are spent twice and counted once",
        own_count,
        (
            f"{_RUNS}::test_a_crashed_run_goes_on_within_its_budget",
            f"{_RUNS}::test_a_run_whose_steps_are_all_spent_trains_nothing",
        ),
        seen_as=(pytest.fail.Exception,),
    ),
    Mutant(
        "metrics of Lightning's training_step add up records",
        "their values are logged and saved",
        metrics,
        (f"{_FITS}::test_metrics_of_torchmetrics_are_left_out_of_a_step",),
    ),
    Mutant(
        "Lightning's checkpoint holds the fingerprint of the records",
        "who has it tests guesses of a record",
        fingerprint_saved,
        (f"{_FITS}::test_one_release_a_step_and_only_public_values_in_logs_and_checkpoints",),
    ),
    Mutant(
        "manual optimization of Lightning without a boundary",
        "gradients of the batch are trained with, or nothing is",
        part_around_the_boundary,
        (f"{_FITS}::test_manual_optimization_by_the_boundary",),
    ),
    Mutant(
        "samplers of Lightning's loaders are left out without a word",
        "records are believed to be drawn as their weights say",
        weighted,
        (f"{_FITS}::test_loaders_without_a_price_are_refused",),
        seen_as=(AttributeError, TypeError),
    ),
]
