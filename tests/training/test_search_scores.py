"""How the runs of a search are compared: exact public figures, and noisy counts on records held out."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from model_cases import Forward
from noisette.accounting import Gaussian, Ledger, noise_multiplier_for
from noisette.data import DataSet, Split
from noisette.data.dataset import Target
from noisette.training import search as scores_module
from noisette.training.report.facts import NumberFigures
from noisette.training.search import HeldOutScore, PublicScore, right_answers


def mixes_the_batch(m, x):
    """Outputs depend on all examples of a batch, also in evaluation."""
    return m.linear(x - 5 * x.mean(0))


def split_of(records, classes=4, seed=0):
    random = np.random.default_rng(seed)
    return Split(random.normal(size=(records, 3)).astype(np.float32), random.integers(0, classes, records))


def data_of(records, target=None, test=True):
    split = split_of(records, classes=4 if target is None else 1)
    if target is not None:
        split = Split(split.inputs, np.random.default_rng(1).uniform(-1, 1, records).astype(np.float32))
    return DataSet("own", split, split if test else None, 4 if target is None else 1, records, target=target)


def outcome_of(model, data):
    return SimpleNamespace(model=model, data=data, test=None)


def without(split, index):
    kept = np.arange(len(split.inputs)) != index
    return Split(split.inputs[kept], split.targets[kept])


def test_right_answers_are_those_of_each_example_by_itself():
    torch.manual_seed(0)
    split, model = split_of(40), nn.Linear(3, 4)
    by_hand = 0
    for one, right in zip(split.inputs, split.targets, strict=True):
        scores = (
            one.astype(np.float64) @ model.weight.detach().double().numpy().T + model.bias.detach().double().numpy()
        )
        by_hand += int(np.argmax(scores) == right)
    assert right_answers(model, split, classes=True) == by_hand
    assert 0 < by_hand < 40


@pytest.mark.parametrize(
    "model", [Forward(mixes_the_batch, linear=nn.Linear(3, 4)), nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 4))]
)
def test_one_record_moves_the_count_by_one_at_most(model):
    split = split_of(30)
    whole = right_answers(model, split, classes=True)
    moves = [whole - right_answers(model, without(split, index), classes=True) for index in range(30)]
    assert (set(moves), sum(moves)) == ({0.0, 1.0}, whole)


def test_one_record_moves_the_worth_of_numbers_by_one_at_most():
    torch.manual_seed(1)
    split, model = data_of(30, Target(0, 10)).train, nn.Linear(3, 1)
    outputs = model(torch.as_tensor(split.inputs)).detach().double().numpy()[:, 0]
    by_hand = np.clip(1 - np.abs(outputs - split.targets), 0, 1)
    whole = right_answers(model, split, classes=False)
    assert whole == pytest.approx(by_hand.sum())
    moves = [whole - right_answers(model, without(split, index), classes=False) for index in range(30)]
    assert moves == pytest.approx(list(by_hand))


@pytest.mark.parametrize("weight", [math.nan, math.inf, 1e30])
def test_answers_that_are_no_numbers_are_worth_nothing(weight):
    model = nn.Linear(3, 1)
    nn.init.constant_(model.weight, weight)
    assert right_answers(model, data_of(10, Target(0, 10)).train, classes=False) == 0


def test_noise_has_the_charged_standard_deviation_and_is_fresh():
    score, ledger, data = HeldOutScore(0.2, 3.0), Ledger(), data_of(100)
    model, held = nn.Linear(3, 4), split_of(20)
    total = right_answers(model, held, classes=True)
    found = np.array([score.of(outcome_of(model, data), held, ledger) for _ in range(400)])
    noise = found * score.expected_records(100) - total
    assert stats.kstest(noise, stats.norm(0, 3.0).cdf).pvalue > 1e-6  # a search is not seeded
    assert len(set(noise)) == 400
    assert ledger.events == {Gaussian(3.0, parts=(("right answers", 1.0),)): 400}


def test_the_score_is_charged_before_its_noise_is_drawn(monkeypatch):
    ledger = Ledger()

    def noised(total, *_):
        assert ledger.events, "nothing is charged"
        return total

    monkeypatch.setattr(scores_module, "noised", noised)
    HeldOutScore(0.2, 3.0).of(outcome_of(nn.Linear(3, 4), data_of(100)), split_of(20), ledger)


def test_records_held_out_are_not_trained_on_and_their_number_is_not_used():
    data, score = data_of(2000), HeldOutScore(0.25, 3.0)
    trained, held = score.split(data)
    rows = {tuple(row) for row in data.train.inputs.tolist()}
    parts = [{tuple(row) for row in part.inputs.tolist()} for part in (trained.train, held)]
    assert not parts[0] & parts[1]
    assert parts[0] | parts[1] == rows
    assert abs(len(held.inputs) - 500) < 100
    assert trained.test is data.test
    assert (trained.declared_size, score.expected_records(1500)) == (1500, 500)
    assert {tuple(row) for row in score.split(data)[1].inputs.tolist()} != parts[1]


def test_numbers_outside_of_their_domain_are_refused_and_noise_by_default_costs_a_tenth_of_the_budget():
    for share, noise in ((0.0, 1.0), (1.0, 1.0), (0.5, 0.0), (0.5, math.inf)):
        with pytest.raises(ValueError, match=r"hold_out|score_noise"):
            HeldOutScore(share, noise)
    noise = HeldOutScore.for_budget(0.1, epsilon=3.0, delta=1e-5).noise_multiplier
    assert noise == noise_multiplier_for(epsilon=0.3, delta=1e-5, sampling_rate=1.0, steps=1)


def test_public_scores_release_nothing_and_need_test_examples():
    score, data = PublicScore(), data_of(10)
    assert score.split(data) == (data, None)
    with pytest.raises(ValueError, match="--score-on held-out"):
        score.split(data_of(10, test=False))
    wrong, ledger = SimpleNamespace(test=NumberFigures(2.5, 1.0, 3.0, 2.0, "")), Ledger()
    assert (score.of(wrong, None, ledger), ledger.events) == (-2.5, {})
