"""How well a trained model tells the records it learned from: attacks by its losses, and their error rates.

None of this is private. It looks at the records themselves, and what it says of them is for their keeper alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from noisette._internal import checks
from noisette.nn.evaluation import in_evaluation

RATES = (1e-3, 1e-2)  # of false alarms at which attacks are compared
NOT_PRIVATE = "computed from the records themselves, without noise: not covered by any claim, and not for release"
_AT_ONCE = 500
_LEAST_SPREAD = 1e-6


@dataclass(frozen=True)
class Attack:
    """Scores of records that the model learned from and of records that it never saw, high where it seems to know them.

    Source: Carlini et al. 2022, "Membership Inference Attacks From First Principles", for judging attacks at low rates
    of false alarms.

    >>> Attack("loss", np.array([2.0, 3.0]), np.array([1.0, 2.0])).auc
    0.875
    """

    name: str
    members: np.ndarray
    others: np.ndarray

    @property
    def auc(self) -> float:
        """Probability that a member scores higher than another record; ties count half."""
        others = np.sort(self.others)
        below = np.searchsorted(others, self.members, "left") + np.searchsorted(others, self.members, "right")
        return float(below.mean() / (2 * len(others)))

    def caught(self, rate: float) -> float | None:
        """Share of members above the threshold that no more than this share of the others passes.

        ``None`` where that is less than one of the others: so rare a false alarm cannot be measured by so few.
        """
        allowed = math.floor(rate * len(self.others) + 1e-9)
        if not allowed:
            return None
        threshold = np.sort(self.others)[::-1][allowed] if allowed < len(self.others) else -math.inf
        return float((self.members > threshold).mean())

    def curve(self) -> tuple[np.ndarray, np.ndarray]:
        """Share of others, and of members, that pass each threshold from the highest on."""
        places = np.unique(np.concatenate([self.members, self.others]))[::-1]
        false = 1 - np.searchsorted(np.sort(self.others), places, "left") / len(self.others)
        caught = 1 - np.searchsorted(np.sort(self.members), places, "left") / len(self.members)
        return np.concatenate([[0.0], false]), np.concatenate([[0.0], caught])


@dataclass(frozen=True)
class Membership:
    """What the attacks came to, beside what the claim allows any attack."""

    attacks: tuple[Attack, ...]
    epsilon: float
    delta: float

    def allowed(self, rate: float) -> float:
        """The largest share of members that any attack may catch at this rate of false alarms, by the claim.

        Source: Kairouz, Oh and Viswanath 2015, theorem 2.1.
        """
        highest = math.exp(min(self.epsilon, 700)) * rate + self.delta
        return min(1.0, highest, 1 - math.exp(-self.epsilon) * (1 - self.delta - rate))

    def facts(self) -> dict[str, Any]:
        """All numbers, as plain values; they are not private."""
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


def confidences(model: nn.Module, inputs: Tensor, targets: Tensor) -> np.ndarray:
    """ln(p / (1 - p)) for the probability p that the model gives each record's own class, (n,).

    All but normal over models, other than the loss. It falls as the loss rises.
    """
    device = next(model.parameters()).device
    found = []
    with torch.no_grad(), in_evaluation(model):
        for x, y in zip(inputs.split(_AT_ONCE), targets.split(_AT_ONCE), strict=True):
            scores = model(x.to(device)).double().cpu()
            own = scores.gather(1, y.unsqueeze(1)).squeeze(1)
            others = scores.scatter(1, y.unsqueeze(1), -math.inf).logsumexp(1)
            found.append((own - others).numpy())
    return np.concatenate(found)


def by_loss(members: np.ndarray, others: np.ndarray) -> Attack:
    """One threshold on the loss for all.

    Source: Yeom et al. 2018.
    """
    return Attack("loss", members, others)


def by_class(
    members: np.ndarray, others: np.ndarray, *, member_classes: np.ndarray, other_classes: np.ndarray
) -> Attack:
    """Confidences in units of those that records of the class have which the model never saw.

    Every second of the others says what is usual for its class; the rest is attacked.
    """
    known, known_classes = others[::2], other_classes[::2]
    left, left_classes = others[1::2], other_classes[1::2]
    return Attack(
        "loss by class",
        _standardised(members, member_classes, known, known_classes),
        _standardised(left, left_classes, known, known_classes),
    )


def _standardised(values: np.ndarray, classes: np.ndarray, known: np.ndarray, known_classes: np.ndarray) -> np.ndarray:
    out = np.empty_like(values)
    for c in np.unique(classes):
        own = known[known_classes == c]
        usual = own if own.size > 1 else known
        out[classes == c] = (values[classes == c] - usual.mean()) / max(usual.std(), _LEAST_SPREAD)
    return out


def by_shadows(
    members: np.ndarray, others: np.ndarray, *, shadows: Sequence[np.ndarray], without: Sequence[np.ndarray]
) -> Attack:
    """Confidences in units of those that models have which were trained in the same way without the record.

    Args:
        members: confidences of the attacked model, (n,).
        others: those of records that it never saw, (k,).
        shadows: those of each shadow model for members and others, (n + k,).
        without: whether each shadow model was trained without the record, (n + k,).

    Source: Carlini et al. 2022, the offline attack, with one spread for all records since shadows are few.

    Raises:
        ValueError: no shadow model did without some record.
    """
    values, left_out = np.stack(shadows), np.stack(without)
    counts = left_out.sum(0)
    if not counts.all():
        raise ValueError(f"{(counts == 0).sum()} records are in the training data of every shadow model; train more")
    usual = np.where(left_out, values, 0).sum(0) / counts
    apart = np.where(left_out, values - usual, 0)
    spread = math.sqrt(float(np.square(apart).sum()) / max(1, int(counts.sum()) - len(usual)))
    scores = (np.concatenate([members, others]) - usual) / max(spread, _LEAST_SPREAD)
    return Attack(f"{len(shadows)} shadow models", scores[: len(members)], scores[len(members) :])


def halves(shadows: int, records: int) -> list[np.ndarray]:
    """Which records each shadow model is trained on: one half of all, or the other half, by turns of two.

    Two halves make a whole, so no record is in all of them.

    >>> [half.sum() for half in halves(4, 10)]
    [np.int64(5), np.int64(5), np.int64(5), np.int64(5)]
    """
    checks.count(shadows=shadows, records=records)
    chosen: list[np.ndarray] = []
    for k in range(shadows):
        if k % 2:
            chosen.append(~chosen[-1])
            continue
        half = np.zeros(records, dtype=bool)
        half[np.random.default_rng().permutation(records)[: records // 2]] = True
        chosen.append(half)
    return chosen
