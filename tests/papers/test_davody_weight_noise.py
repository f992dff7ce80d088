"""Training under weight noise: the trainer of tables 2 to 4 and figure 1."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from finished_runs import quiet
from noisette.data import DataSet, Split, load
from noisette.nn import models
from papers.davody_2020 import distortion, table_4, weight_noise
from papers.davody_2020.setting import NoisyWeights
from papers.davody_2020.weight_noise import Examples, train, with_fresh_statistics

DIGITS = NoisyWeights("digits", "bn-lenet-300-100", sigma=1.0, epochs=8, batch_size=64, lr=0.5, lr_norms=0.003)


@pytest.fixture(scope="module")
def digits() -> DataSet:
    return load("digits")


def test_a_normalised_network_learns_under_noise_as_large_as_its_weights(digits: DataSet) -> None:
    told: list[tuple[float, float | None]] = []
    facts = train(DIGITS, 0, digits, lambda share, accuracy: told.append((share, accuracy)))
    assert facts["test_accuracy"] > 0.85
    assert [epoch for epoch, _ in facts["points"]] == list(range(1, 9))
    assert told == [(epoch / 8, accuracy) for epoch, accuracy in facts["points"]]


@pytest.mark.parametrize(("accuracy", "patience", "epochs"), [(0.14, 4, 4), (0.16, 4, 6), (0.14, None, 6)])
def test_a_network_that_is_no_better_than_chance_is_given_up_unless_it_has_patience(
    accuracy: float, patience: int | None, epochs: int, digits: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_noise, "accuracy_under_noise", lambda *arguments, draws: accuracy)
    setting = replace(DIGITS, epochs=6, batch_size=1000, patience=patience)
    assert train(setting, 0, digits, quiet)["points"] == [(epoch, accuracy) for epoch in range(1, epochs + 1)]


def test_every_sixth_record_is_held_out_and_always_the_same_ones() -> None:
    examples = Examples(torch.arange(60.0), torch.arange(60))
    kept, held_out = examples.divided()
    assert (len(kept), len(held_out)) == (50, 10)
    assert sorted([*kept.targets.tolist(), *held_out.targets.tolist()]) == list(range(60))
    torch.manual_seed(1)
    assert torch.equal(examples.divided()[1].targets, held_out.targets)
    assert torch.equal(kept.inputs.long(), kept.targets)


def test_images_are_shifted_by_up_to_four_pixels_and_mirrored() -> None:
    image = 1 + np.arange(3 * 6 * 6).reshape(3, 6, 6)
    framed = np.pad(image, ((0, 0), (4, 4), (4, 4)))
    cuts = [framed[:, top : top + 6, left : left + 6] for top in range(9) for left in range(9)]
    known = {cut.tobytes() for straight in cuts for cut in (straight, straight[:, :, ::-1])}
    torch.manual_seed(0)
    seen = distortion.shifted_and_mirrored(torch.as_tensor(image).expand(4000, 3, 6, 6)).contiguous().numpy()
    assert {cut.tobytes() for cut in seen} == known


@pytest.mark.parametrize("model", ["bilstm-dl", "ln-bilstm-dl"])
def test_a_cell_of_table_4_runs(model: str) -> None:
    rng = np.random.default_rng(0)
    words, targets = rng.integers(0, 30, (24, 6)), rng.integers(0, 4, 24)
    vectors = rng.normal(size=(30, 8)).astype(np.float32)
    data = DataSet("ag-news", Split(words, targets), Split(words, targets), 4, 24, "", vectors)
    facts = train(replace(table_4.setting(model, 0.1), epochs=1, batch_size=10), 0, data, quiet)
    assert len(facts["points"]) == 1


@pytest.mark.parametrize(("name", "shape"), [("bn-lenet-5", (1, 28, 28)), ("bilstm-dl", (6, 8))])
def test_a_pass_uses_the_means_plus_noise_that_all_examples_share(name: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    plain = with_fresh_statistics(models.build(name, shape, 4)).eval()
    model, x = weight_noise.NoisyWeights(plain, 0.3), torch.rand(3, *shape)
    noisy = copy.deepcopy(plain)
    torch.manual_seed(1)
    for layer in noisy.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d | nn.LSTM):
            for mean in layer.parameters():
                mean.data += torch.empty_like(mean).normal_(0.0, 0.3)
    torch.manual_seed(1)
    scores = model(x)
    torch.testing.assert_close(scores, noisy(x))
    scores.square().sum().backward()
    noisy(x).square().sum().backward()
    for p, expected in zip(plain.parameters(), noisy.parameters(), strict=True):
        torch.testing.assert_close(p.grad, expected.grad)
    assert not torch.equal(model(x), model(x))
