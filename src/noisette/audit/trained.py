"""Audits that train: one run with canaries in it, and the shadow models of a membership attack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from noisette._internal import checks
from noisette.audit.guesses import OneRunAudit, audit_guesses
from noisette.audit.membership import Membership, by_class, by_loss, by_shadows, confidences, halves
from noisette.data import DataSet, Split
from noisette.training.loop import train
from noisette.training.outcome import Watch
from noisette.training.recipe import Recipe

Trained = Callable[[DataSet, Watch], nn.Module]


def trained_by(recipe: Recipe, public: DataSet | None) -> Trained:
    """What trains the recipe's model on some records, within its budget; the ledger ends with the process."""
    return lambda data, on_step: train(recipe, data, public=public, ledger_path=None, on_step=on_step).model


@dataclass(frozen=True)
class Canaried:
    """A data set in which some records are canaries, and which of all canaries these are."""

    data: DataSet
    canaries: Split
    inside: np.ndarray


def with_canaries(data: DataSet, count: int) -> Canaried:
    """So many training records with a wrong class at random, each of which stays by the toss of a secret coin.

    Raises:
        ValueError: there are not so many records, or only one class.
    """
    checks.count(canaries=count)
    inputs, targets = data.train.inputs, data.train.targets
    if count > len(targets) or data.classes < 2:
        raise ValueError(f"{data.name} has not {count} records with another class to give them; ask for fewer canaries")
    random = np.random.default_rng()
    chosen = random.permutation(len(targets))[:count]
    wrong = (targets[chosen] + random.integers(1, data.classes, count)) % data.classes
    inside = random.random(count) < 0.5
    changed = targets.copy()
    changed[chosen] = wrong
    left = np.ones(len(targets), dtype=bool)
    left[chosen[~inside]] = False
    canaried = replace(data, train=Split(inputs[left], changed[left]))
    return Canaried(canaried, Split(inputs[chosen], wrong), inside)


def audit_one_run(
    trained: Trained,
    data: DataSet,
    *,
    canaries: int,
    delta: float,
    confidence: float = 0.95,
    on_step: Watch = lambda run, point: None,
) -> OneRunAudit:
    """Train once with mislabelled canaries, and guess from the model alone who they were.

    A lower bound from outside: it finds large leaks, and a small one says little about how tight the claim is.

    Args:
        trained: trains a model on a data set.
        data: the records, some of which become canaries.
        canaries: how many.
        delta: of the claim.
        confidence: 0.95 to 0.999.
        on_step: called after each step of the run.

    Raises:
        ValueError: a number outside its domain.
    """
    made = with_canaries(data, canaries)
    model = trained(made.data, on_step)
    return audit_guesses(_confidences(model, made.canaries), made.inside, delta=delta, confidence=confidence)


def membership_of(
    model: nn.Module,
    data: DataSet,
    *,
    epsilon: float,
    delta: float,
    shadows: int = 0,
    trained: Trained | None = None,
    on_step: Watch = lambda run, point: None,
) -> Membership:
    """Attack a trained model with the records it learned from and those of the test set.

    Args:
        model: the published model.
        data: training records are the members, test records the others.
        epsilon: of the claim.
        delta: of the claim.
        shadows: models to train on halves of all records, for the attack that compares with them; 0 for none.
        trained: trains a shadow model on a data set.
        on_step: called after each step of each shadow model.

    Raises:
        ValueError: the data set has no test records, or shadows cannot be trained.
    """
    if data.test is None:
        raise ValueError(f"{data.name} has no test records, which the model must not have seen; give --test")
    members, others = _confidences(model, data.train), _confidences(model, data.test)
    attacks = [
        by_loss(members, others),
        by_class(members, others, member_classes=data.train.targets, other_classes=data.test.targets),
    ]
    if shadows:
        if shadows < 2 or trained is None:
            raise ValueError(f"expected two shadow models or more, or none, got {shadows}")
        everyone = Split(
            np.concatenate([data.train.inputs, data.test.inputs]),
            np.concatenate([data.train.targets, data.test.targets]),
        )
        chosen = halves(shadows, len(everyone.targets))
        found = []
        for half in chosen:
            own = replace(data, train=Split(everyone.inputs[half], everyone.targets[half]))
            found.append(_confidences(trained(own, on_step), everyone))
        attacks.append(by_shadows(members, others, shadows=found, without=[~half for half in chosen]))
    return Membership(tuple(attacks), epsilon, delta)


def _confidences(model: nn.Module, split: Split) -> np.ndarray:
    return confidences(model, torch.as_tensor(split.inputs), torch.as_tensor(split.targets))
