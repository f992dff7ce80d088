"""Whitening by public examples: what its features are, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from noisette.nn import Whitening, models

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


def test_constants_are_saved_and_not_trained() -> None:
    whitening = Whitening.of_public(PUBLIC, 5)
    assert not list(whitening.parameters())
    other = Whitening(torch.zeros(12).double(), torch.zeros(5, 12).double())
    other.load_state_dict(whitening.state_dict())
    torch.testing.assert_close(other(PUBLIC), whitening(PUBLIC))


@pytest.mark.parametrize("components", [0, 13, 200])
def test_too_many_components_are_refused(components: int) -> None:
    with pytest.raises(ValueError, match="expected from 1 to 12 components of 200 public examples of 12 numbers"):
        Whitening.of_public(PUBLIC, components)


def test_public_examples_that_do_not_differ_are_refused() -> None:
    with pytest.raises(ValueError, match="do not differ"), np.errstate(all="ignore"):
        Whitening.of_public(torch.ones(9, 4), 2)


def test_a_model_whose_trained_part_is_not_linear_is_refused() -> None:
    model = models.build("scattering", (1, 12, 12), 4)
    assert isinstance(model, models.FixedFeatures)
    whitening = Whitening(torch.zeros(729), torch.zeros(8, 729))
    assert models.whitened(model, whitening)(torch.zeros(2, 1, 12, 12)).shape == (2, 4)
    with pytest.raises(ValueError, match=r"one linear layer.*trains a Sequential"):
        models.whitened(models.FixedFeatures(model.features, torch.nn.Sequential(model.head)), whitening)
