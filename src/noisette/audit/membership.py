"""Membership-inference attacks on a trained model by its losses, and their error rates.

None of this is private. It reads the records themselves, and its results are for the owner of the data only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.special import ndtr, ndtri
from scipy.stats import binom, mannwhitneyu
from torch import nn

from noisette import errors as checks
from noisette.audit.certificate import epsilon_of
from noisette.data import DataSet, Split
from noisette.nn.batch_norm import in_evaluation
from noisette.training.evaluation import Watch

RATES = (1e-3, 1e-2)  # false positive rates at which attacks are compared
NOT_PRIVATE = "computed from the records themselves, without noise: not covered by any guarantee, and not for release"
_AT_ONCE = 500  # records in a forward pass
_LEAST_SPREAD = 1e-6

Trainer = Callable[[DataSet, Watch], nn.Module]  # trains a model, with a call after each step


@dataclass(frozen=True)
class Attack:
    """Scores of members, on which the model was trained, and of other records; members tend to score higher.

    Source: Carlini et al. 2022, "Membership Inference Attacks From First Principles", for evaluating attacks at low
    false positive rates.

    >>> Attack("loss", np.array([2.0, 3.0]), np.array([1.0, 2.0])).auc
    0.875
    """

    name: str
    members: np.ndarray
    others: np.ndarray

    @property
    def auc(self) -> float:
        """Probability that a member scores higher than another record; ties count half."""
        above = mannwhitneyu(self.members, self.others, method="asymptotic").statistic
        return float(above / (len(self.members) * len(self.others)))

    def caught(self, rate: float) -> float | None:
        """True positive rate at this false positive rate; ``None`` if the other records are too few to measure it."""
        allowed = math.floor(rate * len(self.others) + 1e-9)
        if not allowed:
            return None
        threshold = np.sort(self.others)[::-1][allowed] if allowed < len(self.others) else -math.inf
        return float((self.members > threshold).mean())

    def curve(self) -> tuple[np.ndarray, np.ndarray]:
        """False and true positive rates at each threshold, from the highest threshold downwards."""
        places = np.unique(np.concatenate([self.members, self.others]))[::-1]
        false = 1 - np.searchsorted(np.sort(self.others), places, "left") / len(self.others)
        caught = 1 - np.searchsorted(np.sort(self.members), places, "left") / len(self.members)
        return np.concatenate([[0.0], false]), np.concatenate([[0.0], caught])


@dataclass(frozen=True)
class Membership:
    """The results of the attacks, and the bound that the guarantee gives for any attack."""

    attacks: tuple[Attack, ...]
    epsilon: float
    delta: float

    def allowed(self, rate: float) -> float:
        """The largest true positive rate at this false positive rate that (epsilon, delta)-DP allows any attack.

        Source: Kairouz, Oh and Viswanath 2015, theorem 2.1.
        """
        highest = math.exp(min(self.epsilon, 700)) * rate + self.delta
        return min(1.0, highest, 1 - math.exp(-self.epsilon) * (1 - self.delta - rate))

    def facts(self) -> dict[str, Any]:
        return {
            "note": NOT_PRIVATE,
            "members": len(self.attacks[0].members),
            "others": len(self.attacks[0].others),
            "allowed": {f"{rate:g}": self.allowed(rate) for rate in RATES},
            "attacks": {
                attack.name: {"auc": attack.auc, **{f"caught at {rate:g}": attack.caught(rate) for rate in RATES}}
                for attack in self.attacks
            },
        }


def confidences_of(model: nn.Module, split: Split) -> np.ndarray:
    """ln(p / (1 - p)) for the probability p that the model gives each record's own class, (n,).

    It decreases as the loss increases. Unlike the loss, it is approximately normal over models.
    """
    device = next(model.parameters()).device
    inputs, targets = torch.as_tensor(split.inputs), torch.as_tensor(split.targets)
    found = []
    with torch.no_grad(), in_evaluation(model):
        for x, y in zip(inputs.split(_AT_ONCE), targets.split(_AT_ONCE), strict=True):
            scores = model(x.to(device)).double().cpu()
            own = scores.gather(1, y.unsqueeze(1)).squeeze(1)
            others = scores.scatter(1, y.unsqueeze(1), -math.inf).logsumexp(1)
            found.append((own - others).numpy())
    return np.concatenate(found)


def by_class(
    members: np.ndarray, others: np.ndarray, *, member_classes: np.ndarray, other_classes: np.ndarray
) -> Attack:
    """Confidences standardised by those of other records of the same class.

    Half of the others give mean and standard deviation for each class; the attack is evaluated on the rest.
    """
    known, known_classes = others[::2], other_classes[::2]
    members, others = (
        _standardised(values, classes, known, known_classes)
        for values, classes in ((members, member_classes), (others[1::2], other_classes[1::2]))
    )
    return Attack("loss by class", members, others)


def _standardised(values: np.ndarray, classes: np.ndarray, known: np.ndarray, known_classes: np.ndarray) -> np.ndarray:
    out = np.empty_like(values)
    for c in np.unique(classes):
        own = known[known_classes == c]
        reference = own if own.size > 1 else known
        out[classes == c] = (values[classes == c] - reference.mean()) / max(reference.std(), _LEAST_SPREAD)
    return out


def by_shadows(
    members: np.ndarray, others: np.ndarray, *, shadows: Sequence[np.ndarray], without: Sequence[np.ndarray]
) -> Attack:
    """Confidences standardised by those of shadow models, trained in the same way without the record.

    ``members`` (n,) and ``others`` (k,) are confidences of the attacked model; ``shadows`` those of each shadow model
    on both, (n + k,), and ``without`` says whether it was trained without the record.

    Source: Carlini et al. 2022, the offline attack, with one standard deviation for all records, since shadow models
    are few.

    Raises:
        ValueError: some record is in the training data of every shadow model.
    """
    values, left_out = np.stack(shadows), np.stack(without)
    counts = left_out.sum(0)
    if not counts.all():
        raise ValueError(f"{(counts == 0).sum()} records are in the training data of every shadow model; train more")
    means = np.where(left_out, values, 0).sum(0) / counts
    deviations = np.where(left_out, values - means, 0)
    std = math.sqrt(float(np.square(deviations).sum()) / max(1, int(counts.sum()) - len(means)))
    scores = (np.concatenate([members, others]) - means) / max(std, _LEAST_SPREAD)
    return Attack(f"{len(shadows)} shadow models", scores[: len(members)], scores[len(members) :])


def halves(shadows: int, records: int) -> list[np.ndarray]:
    """Which records each shadow model is trained on: alternately a random half of all, and the other half.

    >>> [half.sum() for half in halves(4, 10)]
    [np.int64(5), np.int64(5), np.int64(5), np.int64(5)]
    """
    checks.count(shadows=shadows, records=records)
    chosen: list[np.ndarray] = []
    for _ in range(0, shadows, 2):
        half = np.random.default_rng().permutation(records) < records // 2
        chosen += [half, ~half]
    return chosen[:shadows]


def membership_of(
    model: nn.Module,
    data: DataSet,
    *,
    epsilon: float,
    delta: float,
    shadows: int = 0,
    trained: Trainer | None = None,
    on_step: Watch = lambda run, point: None,
) -> Membership:
    """Attack a trained model with the records that it was trained on and those of the test set.

    Args:
        model: the published model.
        data: its training records are the members, its test records the others.
        epsilon, delta: of the guarantee.
        shadows: number of shadow models to train, each on half of all records; 0 for none.
        trained: trains a shadow model on a data set.
        on_step: called after each step of each shadow model.

    Raises:
        ValueError: the data set has no test records, or shadow models cannot be trained.
    """
    if data.test is None:
        raise ValueError(
            f"{data.name} has no test records, which the attacks compare with the training records; give --test"
        )
    members, others = confidences_of(model, data.train), confidences_of(model, data.test)
    attacks = [
        Attack("loss", members, others),  # one threshold for all records (Yeom et al. 2018)
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
        halved = (replace(data, train=Split(everyone.inputs[half], everyone.targets[half])) for half in chosen)
        found = [confidences_of(trained(own, on_step), everyone) for own in halved]
        attacks.append(by_shadows(members, others, shadows=found, without=[~half for half in chosen]))
    return Membership(tuple(attacks), epsilon, delta)


_LEAST_CONFIDENCE, _MOST_CONFIDENCE = 0.95, 0.999
_LARGEST_MU, _LARGEST_EPSILON = 50.0, 100.0
_TRIED_SHARES = (0.01, 0.03, 0.1, 0.3, 1.0)


@dataclass(frozen=True)
class Guesses:
    """A number of guesses about canaries, and how many were correct."""

    canaries: int
    made: int
    correct: int


@dataclass(frozen=True)
class OneRunAudit:
    """What the guesses about one run prove at this confidence, corrected for the several numbers of guesses tried.

    ``mu`` and ``epsilon``, its privacy cost at ``delta``, hold for mechanisms with a Gaussian trade-off curve;
    ``plain_epsilon`` holds for any (epsilon, delta)-DP mechanism.
    """

    tried: tuple[Guesses, ...]
    delta: float
    confidence: float
    mu: float
    plain_epsilon: float

    @property
    def epsilon(self) -> float:
        return epsilon_of(self.mu, delta=self.delta)

    def facts(self) -> dict[str, Any]:
        return {
            "delta": self.delta,
            "confidence": self.confidence,
            "tried": [{"canaries": t.canaries, "guesses": t.made, "correct": t.correct} for t in self.tried],
            "mu": self.mu,
            "epsilon": self.epsilon,
            "plain_epsilon": self.plain_epsilon,
        }


def audit_guesses(
    scores: np.ndarray,
    inside: np.ndarray,
    *,
    delta: float,
    guesses: Sequence[int] | None = None,
    confidence: float = 0.95,
) -> OneRunAudit:
    """Guess from scores which canaries were in the data set, and certify what the correct guesses prove.

    Args:
        scores: one for each canary, higher the more likely it is in the data set, (m,).
        inside: whether it is, decided by fair coins, (m,).
        delta: of the guarantee.
        guesses: numbers of guesses to try, chosen without these scores; 1 % to 100 % of m unless given.
        confidence: 0.95 to 0.999. At a higher confidence one run proves next to nothing.

    Raises:
        ValueError: a number outside its domain, or scores and coins of different length.
    """
    m = len(scores)
    if not m or scores.shape != inside.shape:
        raise ValueError(f"expected a score and a coin for each canary, got {scores.shape} and {inside.shape}")
    numbers = sorted({max(1, round(m * share)) for share in _TRIED_SHARES}) if guesses is None else list(guesses)
    checks.all_of(
        lambda: checks.open_fraction(delta=delta),
        lambda: check_confidence(confidence),
        lambda: _check_guesses(numbers, m),
    )
    order = np.argsort(scores, kind="stable")
    tried = []
    for r in numbers:
        low, high = order[: r // 2], order[m - (r - r // 2) :]
        tried.append(Guesses(m, r, int((~inside[low]).sum() + inside[high].sum())))
    level = (1 - confidence) / len(tried)
    return OneRunAudit(
        tuple(tried),
        delta,
        confidence,
        mu=max(certified_mu_of_guesses(t, level=level) for t in tried),
        plain_epsilon=max(
            _largest_refuted(lambda epsilon, t=t: chance_of_guesses(t, epsilon, delta) < level, _LARGEST_EPSILON)
            for t in tried
        ),
    )


def check_confidence(confidence: float) -> None:
    """Check that one run can prove something at this confidence."""
    if not _LEAST_CONFIDENCE <= confidence <= _MOST_CONFIDENCE:
        raise ValueError(
            f"expected {_LEAST_CONFIDENCE} <= confidence <= {_MOST_CONFIDENCE}, got confidence={confidence}: one run "
            "proves next to nothing above that; for more confidence, use the step audit"
        )


def _check_guesses(numbers: Sequence[int], m: int) -> None:
    if not all(1 <= r <= m for r in numbers):
        raise ValueError(f"expected 1 to {m} guesses, the number of canaries, got {numbers}")


def certified_mu_of_guesses(tried: Guesses, *, level: float) -> float:
    """The largest mu such that a mu-GDP run allows this many correct guesses with probability ``level`` at most.

    Source: Mahloujifar, Melis and Chaudhuri 2024, "Auditing f-Differential Privacy in One Run", section 3.
    """
    return _largest_refuted(lambda mu: _refutes_gdp(tried, mu, level), _LARGEST_MU)


def _refutes_gdp(tried: Guesses, mu: float, level: float) -> bool:
    """Whether mu-GDP runs allow fewer correct guesses than these, with a probability of at least one less ``level``.

    Let p_j be the probability of j correct guesses. For a canary I drawn at random, let r_i be the probability that
    the guess on I is correct and i or more are correct in all: r_i = sum_{j >= i} p_j j/m. With the coin of I reversed,
    that guess is wrong and i - 1 or more are correct: h_(i-1) = sum_{j >= i-1} p_j (guesses - j)/m. The two cases
    differ by one record, so r_i is at most Phi(Phi^-1(h_(i-1)) + mu). Suppose that the observed
    number of correct guesses has probability ``level``. The inequalities, from the observed i downwards, give the least
    probability of smaller numbers; mu is refuted if r + h exceeds its value at i = 0, r_0 + h_0 = guesses/m.
    """
    m, guesses, correct = tried.canaries, tried.made, tried.correct
    if 2 * correct <= guesses:
        return False
    r, h = level * correct / m, level * (guesses - correct) / m
    for i in range(correct - 1, -1, -1):
        least = max(h, float(ndtr(ndtri(r) - mu)))
        if least == h:
            return False  # no constraint on smaller numbers is left
        r, h = r + i / (guesses - i) * (least - h), least
        if r + h > guesses / m:
            return True
    return False


def chance_of_guesses(tried: Guesses, epsilon: float, delta: float) -> float:
    """Upper bound on the probability that an (epsilon, delta)-DP run allows this many correct guesses.

    Source: Steinke, Nasr and Jagielski 2023, "Privacy Auditing with One (1) Training Run", theorem 5.2.
    """
    rate = 1 / (1 + math.exp(-epsilon))
    v, r = tried.correct, tried.made
    chance = float(binom.sf(v - 1, r, rate))
    if v == 0:
        return 1.0
    i = np.arange(1, v + 1)
    below = (binom.cdf(v - 1, r, rate) - binom.cdf(v - 1 - i, r, rate)) / i
    return min(1.0, chance + 2 * tried.canaries * delta * float(below.max()))


def _largest_refuted(refuted: Callable[[float], bool], largest: float) -> float:
    """The largest refuted value up to ``largest``, to a relative error of 1e-4 and rounded downwards; 0 if none is."""
    low, high = 1e-6, largest
    if not refuted(low):
        return 0.0
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def with_canaries(data: DataSet, count: int) -> tuple[DataSet, Split, np.ndarray]:
    """Give ``count`` training records a wrong class at random, and keep each of them with probability one half.

    Returns:
        The data set, all canaries, and which of them the data set contains, (canaries,).

    Raises:
        ValueError: there are fewer records, or only one class.
    """
    checks.count(canaries=count)
    inputs, targets = data.train.inputs, data.train.targets
    if count > len(targets) or data.classes < 2:
        raise ValueError(
            f"{data.name} does not have {count} records and a second class to give them; ask for fewer canaries"
        )
    random = np.random.default_rng()
    chosen = random.permutation(len(targets))[:count]
    wrong = (targets[chosen] + random.integers(1, data.classes, count)) % data.classes
    inside = random.random(count) < 0.5
    changed = targets.copy()
    changed[chosen] = wrong
    left_out = np.isin(np.arange(len(targets)), chosen[~inside])
    train = Split(inputs[~left_out], changed[~left_out])
    return replace(data, train=train), Split(inputs[chosen], wrong), inside


def audit_one_run(
    trained: Trainer,
    data: DataSet,
    *,
    canaries: int,
    delta: float,
    confidence: float = 0.95,
    on_step: Watch = lambda run, point: None,
) -> OneRunAudit:
    """Train once with mislabelled canaries, and guess from the model alone which canaries were in the data set.

    The lower bound is that of a black-box attack: it finds large leaks, and a small bound does not show that the
    guarantee is tight. ``trained`` trains a model on a data set, and calls ``on_step`` after each step.

    Raises:
        ValueError: a number outside its domain.
    """
    records, mislabelled, inside = with_canaries(data, canaries)
    model = trained(records, on_step)
    return audit_guesses(confidences_of(model, mislabelled), inside, delta=delta, confidence=confidence)
