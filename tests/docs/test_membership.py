"""Membership inference: rates agree with their definitions, and the attacks detect memorisation."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from experiments.membership import Attack, Membership, by_class, confidences_of, membership_of
from noisette.data import DataSet, Split


def test_rates_are_those_of_the_definition():
    random = np.random.default_rng(0)
    members, others = random.integers(0, 12, 50).astype(float), random.integers(0, 9, 40).astype(float)
    attack = Attack("", members, others)
    assert attack.auc == pytest.approx(np.mean([(m > o) + (m == o) / 2 for m in members for o in others]))
    for rate in (0.025, 0.1, 0.5, 0.99):
        passing = {t: (others > t).mean() for t in [*others, -1.0]}
        best = max((members > t).mean() for t, share in passing.items() if share <= rate)
        assert attack.caught(rate) == pytest.approx(best)
    assert attack.caught(1.0) == 1.0
    assert attack.caught(0.001) is None, "forty others are too few to measure a thousandth"


def test_allowed_rates_are_those_of_the_definition_of_differential_privacy():
    """From both inequalities of (epsilon, delta)-DP, for the test and for its complement."""
    found = Membership((), epsilon=1.0, delta=0.01)
    for rate in (0.0, 0.001, 0.2, 0.5, 1.0):
        caught = np.linspace(0, 1, 200_001)
        fine = (caught <= math.e * rate + 0.01) & (1 - rate <= math.e * (1 - caught) + 0.01)
        assert found.allowed(rate) == pytest.approx(caught[fine].max(), abs=1e-5)
    assert Membership((), epsilon=1e6, delta=0.0).allowed(1e-9) == 1.0


def test_confidence_is_the_logit_of_the_true_class():
    model = nn.Linear(3, 4).double()
    x, y = torch.randn(7, 3, dtype=torch.float64), torch.randint(0, 4, (7,))
    p = model(x).softmax(1)[torch.arange(7), y]
    np.testing.assert_allclose(
        confidences_of(model, Split(x.numpy(), y.numpy())), (p / (1 - p)).log().detach().numpy(), rtol=1e-9
    )
    assert model.training, "as it was"


def test_class_statistics_correct_for_the_difficulty_of_a_class():
    random = np.random.default_rng(2)
    classes = random.integers(0, 2, (2, 2_000))
    members, others = random.normal(size=(2, 2_000)) + np.array([0.0, 20.0])[classes]
    members += 1.5
    easy = by_class(members, others, member_classes=classes[0], other_classes=classes[1])
    assert Attack("loss", members, others).auc < 0.7
    assert easy.auc > 0.8
    assert len(easy.others) == 1_000, "the other half gives the statistics of each class"
    one, zero = np.array([1.0, 1.0, 2.0]), np.array([0, 0, 0])
    alone = by_class(np.array([3.0]), one, member_classes=np.array([7]), other_classes=zero)
    assert np.isfinite(alone.members).all(), "a class without another record is standardised by all classes"


class Memory(nn.Module):
    """Memorises its training records, and guesses the class of others."""

    def __init__(self, data: DataSet) -> None:
        super().__init__()
        self.known = {x.tobytes(): int(y) for x, y in zip(data.train.inputs, data.train.targets, strict=True)}
        self.idle = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = torch.randn(len(x), 3)
        for row, record in zip(scores, x.numpy(), strict=True):
            if (known := self.known.get(record.tobytes())) is not None:
                row[known] += 6
        return scores


def forgetful(data: DataSet) -> nn.Module:
    return Memory(replace(data, train=Split(data.train.inputs[:0], data.train.targets[:0])))


@pytest.fixture
def data():
    random = np.random.default_rng(3)
    splits = [Split(random.normal(size=(n, 4)).astype(np.float32), random.integers(0, 3, n)) for n in (400, 200)]
    return DataSet("records", *splits, classes=3, declared_size=400, note="")


def test_attacks_succeed_on_a_model_that_memorises_its_records(data):
    found = membership_of(Memory(data), data, epsilon=3.0, delta=1e-4)
    assert [attack.name for attack in found.attacks] == ["loss", "loss by class"]
    assert all(attack.auc > 0.95 for attack in found.attacks)
    facts = found.facts()
    assert "not for release" in facts["note"]
    assert facts["attacks"]["loss"]["caught at 0.01"] > facts["allowed"]["0.01"]
    assert facts["attacks"]["loss"]["caught at 0.001"] is None


def test_attacks_fail_on_a_model_that_learned_nothing(data):
    found = membership_of(forgetful(data), data, epsilon=3.0, delta=1e-4)
    assert all(0.4 < attack.auc < 0.6 for attack in found.attacks)


def test_a_set_without_test_records_is_refused(data):
    with pytest.raises(ValueError, match="no test records"):
        membership_of(forgetful(data), replace(data, test=None), epsilon=1.0, delta=1e-5)
