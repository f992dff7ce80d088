"""Standardised and whitened features, counts of words and sums of word vectors, against their definitions."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch

from noisette.lipschitz import NormBound
from noisette.nn import Standardise, Whitening, WordCounts, WordVectors, models


def test_it_subtracts_the_mean_and_divides_by_the_scale() -> None:
    layer = Standardise(torch.tensor([1.0, 2.0]), torch.tensor([0.5, 4.0]))
    torch.testing.assert_close(layer(torch.tensor([[2.0, 6.0], [1.0, 0.0]])), torch.tensor([[2.0, 1.0], [0.0, -0.5]]))


def test_public_constants_are_a_mean_for_each_position_and_a_deviation_for_each_channel() -> None:
    examples = np.random.default_rng(0).normal(size=(50, 3, 4, 4)) * [[[1.0]], [[5.0]], [[0.1]]] + 7.0
    layer = Standardise.of_public(torch.as_tensor(examples))
    out = layer(torch.as_tensor(examples)).numpy()
    np.testing.assert_allclose(out.mean(0), 0, atol=1e-5)
    for channel in range(3):
        centred = examples[:, channel] - examples[:, channel].mean(0)
        np.testing.assert_allclose(out[:, channel], centred / np.sqrt((centred**2).mean()), rtol=1e-5, atol=1e-5)


def test_flat_features_have_one_deviation_each_and_constant_ones_are_only_centred() -> None:
    examples = torch.tensor([[1.0, 5.0], [3.0, 5.0]])
    torch.testing.assert_close(Standardise.of_public(examples)(examples), torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))


def test_the_bounds_hold_and_are_reached() -> None:
    mean, scale = torch.tensor([3.0, 0.0]), torch.tensor([0.5, 2.0])
    layer = Standardise(mean, scale)
    reach = layer.bound_forward(NormBound(1.0, (2,)))
    assert reach.shape == (2,)
    furthest = layer(torch.tensor([-1.0, 0.0])).norm().item()
    assert furthest == pytest.approx(reach.norm)
    assert layer.bound_backward(NormBound(1.0, (2,)), 0.3) == (pytest.approx(0.6), {})


def test_constants_outside_their_domain_are_refused() -> None:
    for scale in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="above zero"):
            Standardise(0.0, scale)
    with pytest.raises(ValueError, match="finite means"):
        Standardise(torch.tensor([0.0, float("nan")]))


PUBLIC = torch.randn(200, 3, 4, generator=torch.Generator().manual_seed(1)).double()
PUBLIC = PUBLIC * torch.linspace(0.1, 3, 12).view(3, 4) + PUBLIC.flip(1).cos()


def by_eigenvectors(x: np.ndarray, public: np.ndarray, components: int, floor: float) -> np.ndarray:
    """The same by the covariance matrix: projections on its eigenvectors, which have a sign of their own."""
    mean = public.mean(0)
    values, vectors = np.linalg.eigh(np.cov((public - mean).T))
    values, vectors = values[::-1][:components], vectors[:, ::-1][:, :components]
    projected = (x - mean) @ vectors / np.sqrt(values + floor * values.mean())
    return projected / np.sqrt((projected**2).mean(1, keepdims=True))


@pytest.mark.parametrize(("components", "floor"), [(1, 0.2), (5, 0.0), (12, 0.2)])
def test_components_are_those_of_the_covariance_matrix(components: int, floor: float) -> None:
    whitening = Whitening.of_public(PUBLIC, components, floor)
    x = torch.randn(7, 3, 4, generator=torch.Generator().manual_seed(2)).double()
    expected = by_eigenvectors(x.flatten(1).numpy(), PUBLIC.flatten(1).numpy(), components, floor)
    np.testing.assert_allclose(whitening(x).abs().numpy(), np.abs(expected), rtol=1e-6, atol=1e-8)


def test_without_a_floor_the_public_examples_are_white() -> None:
    whitening = Whitening.of_public(PUBLIC, 12, floor=0.0)
    flat = (PUBLIC.flatten(1) - whitening.mean) @ whitening.components.T
    torch.testing.assert_close(flat.T @ flat / (len(flat) - 1), torch.eye(12, dtype=torch.float64))


def test_public_examples_that_do_not_fit_are_refused() -> None:
    for components in (0, 13, 200):
        with pytest.raises(ValueError, match="expected from 1 to 12 components of 200 public examples of 12 numbers"):
            Whitening.of_public(PUBLIC, components)
    with pytest.raises(ValueError, match="do not differ"), np.errstate(all="ignore"):
        Whitening.of_public(torch.ones(9, 4), 2)


def test_a_model_whose_trained_part_is_not_linear_is_refused() -> None:
    model = models.build("scattering", (1, 12, 12), 4)
    assert isinstance(model, models.FixedFeatures)
    whitening = Whitening(torch.zeros(729), torch.zeros(8, 729))
    assert models.whitened(model, whitening)(torch.zeros(2, 1, 12, 12)).shape == (2, 4)
    with pytest.raises(ValueError, match=r"one linear layer.*trains a Sequential"):
        models.whitened(models.FixedFeatures(model.features, torch.nn.Sequential(model.head)), whitening)


def test_constants_are_saved_and_not_trained() -> None:
    made = [Standardise(torch.ones(3), 2.0), Whitening.of_public(PUBLIC, 5), WordCounts(torch.ones(4))]
    for layer, names in zip(made, ({"mean", "scale"}, {"mean", "components"}, {"weights"}), strict=True):
        assert set(layer.state_dict()) == names
        assert not list(layer.parameters())


TEXTS = torch.tensor([[5, 3, 5, 5, 0, 0], [1, 2, 3, 4, 5, 6], [0, 0, 0, 0, 0, 0]])


def test_counts_are_those_of_a_loop_over_words() -> None:
    weights = torch.tensor([9.0, 1.0, 2.0, 0.5, 1.0, 3.0, 1.0])
    found = WordCounts(weights)(TEXTS)
    for row, text in zip(found.tolist(), TEXTS.tolist(), strict=True):
        expected = [0.0] * 7
        for word, count in Counter(word for word in text if word).items():
            expected[word] = math.sqrt(count) * weights[word].item()
        assert row == pytest.approx([value / (math.hypot(*expected) or 1) for value in expected], rel=1e-5)


def test_the_order_of_words_and_bytes_of_padding_do_not_matter() -> None:
    counts = WordCounts(torch.ones(7))
    torch.testing.assert_close(counts(TEXTS.flip(1).int()), counts(TEXTS))


def test_sums_are_those_of_a_loop_over_words() -> None:
    vectors = torch.randn(7, 4, dtype=torch.float64)
    for row, text in zip(WordVectors(vectors)(TEXTS), TEXTS.tolist(), strict=True):
        total = torch.zeros(4, dtype=torch.float64)
        for word in text:
            total = total + vectors[word] * (word != 0)
        torch.testing.assert_close(row, total / (total.norm() or 1))


@pytest.mark.parametrize("unlisted", [1, 6])
def test_a_word_whose_vector_is_zero_changes_nothing(unlisted: int) -> None:
    vectors = torch.randn(7, 4)
    vectors[unlisted] = 0
    module = WordVectors(vectors)
    torch.testing.assert_close(module(torch.tensor([[2, unlisted, 3]])), module(torch.tensor([[2, 0, 3]])))
