"""Membership-inference attacks on a trained model by its losses, and their error rates.

None of this is private. It reads the records themselves, and its results are for the owner of the data only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.stats import mannwhitneyu
from torch import nn

from noisette.data import DataSet, Split
from noisette.nn.batch_norm import in_evaluation

RATES = (1e-3, 1e-2)  # false positive rates at which attacks are compared
NOT_PRIVATE = "computed from the records themselves, without noise: not covered by any guarantee, and not for release"
_AT_ONCE = 500  # records in a forward pass
_LEAST_SPREAD = 1e-6


@dataclass(frozen=True)
class Attack:
    """Scores of members, on which the model was trained, and of other records; members tend to score higher.

    Source: Carlini et al. 2022, "Membership Inference Attacks From First Principles", for evaluating attacks at low
    false positive rates.
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

    def standardised(values: np.ndarray, classes: np.ndarray) -> np.ndarray:
        out = np.empty_like(values)
        for c in np.unique(classes):
            own = known[known_classes == c]
            reference = own if own.size > 1 else known
            out[classes == c] = (values[classes == c] - reference.mean()) / max(reference.std(), _LEAST_SPREAD)
        return out

    return Attack(
        "loss by class", standardised(members, member_classes), standardised(others[1::2], other_classes[1::2])
    )


def membership_of(model: nn.Module, data: DataSet, *, epsilon: float, delta: float) -> Membership:
    """Attack a trained model with the records that it was trained on, the members, and those of the test set.

    ``epsilon`` and ``delta`` are those of its guarantee. A ``ValueError`` if there are no test records.
    """
    if data.test is None:
        raise ValueError(f"{data.name} has no test records, which the attacks compare with the training records")
    members, others = confidences_of(model, data.train), confidences_of(model, data.test)
    attacks = (
        Attack("loss", members, others),  # one threshold for all records (Yeom et al. 2018)
        by_class(members, others, member_classes=data.train.targets, other_classes=data.test.targets),
    )
    return Membership(attacks, epsilon, delta)
