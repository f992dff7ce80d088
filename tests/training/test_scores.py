"""Figures on test examples, against loops over single examples."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score
from torch import nn

from noisette.data.dataset import Target
from noisette.training.build import outputs
from noisette.training.loop import class_figures, number_figures


def area(scores: list[float], members: list[bool]) -> float:
    """The share of pairs of a member and another in which the member has the higher score; ties count half."""
    inside, outside = ([s for s, member in zip(scores, members, strict=True) if member is k] for k in (True, False))
    pairs = [(a > b) + (a == b) / 2 for a, b in product(inside, outside)]
    return sum(pairs) / len(pairs)


@pytest.mark.parametrize("classes", [2, 4])
def test_classes(classes):
    random = np.random.default_rng(classes)
    targets = random.choice(classes, 60, p=[0.7, *[0.3 / (classes - 1)] * (classes - 1)])
    scores = random.normal(size=(60, classes)).astype(np.float32) + np.eye(classes, dtype=np.float32)[targets]
    found = class_figures(scores, targets)
    counts = [[0] * classes for _ in range(classes)]
    for row, target in zip(scores.tolist(), targets.tolist(), strict=True):
        counts[target][row.index(max(row))] += 1
    assert found.confusion == tuple(map(tuple, counts))
    assert found.accuracy == pytest.approx(sum(counts[k][k] for k in range(classes)) / 60)
    assert found.base_rate == pytest.approx(max(map(sum, counts)) / 60)
    assert found.macro_accuracy == pytest.approx(sum(counts[k][k] / sum(counts[k]) for k in range(classes)) / classes)
    areas = []
    for k in range(classes) if classes > 2 else [1]:
        shares = [math.exp(row[k]) / sum(map(math.exp, row)) for row in scores.tolist()]
        areas.append(area(shares, (targets == k).tolist()))
    assert found.auc == pytest.approx(sum(areas) / len(areas))
    every = [[math.exp(value) / sum(map(math.exp, row)) for value in row] for row in scores.tolist()]
    loss = [-math.log(row[target]) for row, target in zip(every, targets.tolist(), strict=True)]
    assert found.log_loss == pytest.approx(sum(loss) / 60)
    shares = [sum(row) / 60 for row in counts]
    assert found.base_log_loss == pytest.approx(-sum(share * math.log(share) for share in shares if share))
    assert found.mean_probabilities == pytest.approx([sum(row[k] for row in every) / 60 for k in range(classes)])
    if classes > 2:
        assert (found.average_precision, found.recall_precision) == (None, ())
        return
    ranked = targets[np.argsort([-row[1] for row in every])] == 1  # the second class is the rarer one
    assert found.average_precision == pytest.approx(average_precision_score(targets == 1, [row[1] for row in every]))
    precisions = [ranked[: n + 1].mean() for n in np.flatnonzero(ranked)]
    assert found.average_precision == pytest.approx(np.mean(precisions))
    recalls = [(n + 1) / len(precisions) for n in range(len(precisions))]
    assert np.array(found.recall_precision) == pytest.approx(np.array([recalls, precisions]).T)
    assert found.found_share == len(precisions) / 60
    many = class_figures(random.normal(size=(2000, 2)), random.choice(2, 2000))
    assert len(many.recall_precision) == 50, "not the order of all examples"


def test_classes_that_do_not_occur_count_nowhere():
    scores = np.array([[3.0, 0.0, 1.0], [0.0, 2.0, 1.0], [0.0, 2.0, 1.0]])
    found = class_figures(scores, np.array([0, 1, 0]))
    assert found.macro_accuracy == 0.75
    assert found.auc is not None
    alone = class_figures(scores, np.array([0, 0, 0]))
    assert alone.auc is None
    assert ("log loss", f"{alone.log_loss:.3f} (base rate: 0.000)") in alone.rows("abc")


def test_scores_that_are_not_finite():
    found = class_figures(np.array([[np.nan, 0.0], [0.0, 1.0]]), np.array([0, 1]))
    assert (found.auc, found.log_loss, found.mean_probabilities) == (None, None, ())
    assert found.problem == "Worse than the base rate in log loss"


def test_numbers_in_their_unit():
    target = Target(10, 50, "kg")
    predictions, targets = np.array([[0.0], [-0.5], [7.0]]), np.array([0.5, -0.5, 0.0])
    found = number_figures(predictions, targets, target)
    right, predicted = [40, 20, 30], [30, 20, 50]  # the last prediction is clipped to the bounds
    errors = [a - b for a, b in zip(predicted, right, strict=True)]
    assert found.rmse == pytest.approx(math.sqrt(sum(e * e for e in errors) / 3))
    assert found.mae == pytest.approx(sum(map(abs, errors)) / 3)
    assert found.base_rmse == pytest.approx(math.sqrt(sum((x - 30) ** 2 for x in right) / 3))
    assert (found.base_mae, found.unit) == (pytest.approx(sum(abs(x - 30) for x in right) / 3), "kg")


def test_outputs_are_those_of_evaluation():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 2)).train()
    inputs = torch.randn(7, 3)
    assert np.allclose(outputs(model, inputs, at_once=2), model[1](inputs).detach().numpy(), atol=1e-6)
    assert model.training
