"""Convolutions learnt from images of a random process, and the files that take them."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from noisette.data.built_in_images import shaded_leaves
from noisette.nn import models
from papers.abadi_2016 import public_convolutions
from papers.abadi_2016.public_convolutions import contrast, learnt


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.from_numpy(shaded_leaves(40, seed=0))


def test_a_pictures_twin_is_half_the_batch_away() -> None:
    apart = torch.eye(4)
    assert contrast(torch.cat([apart, apart])) < contrast(torch.cat([apart, apart.flip(0)]))
    alike = torch.ones(6, 3)
    assert contrast(alike).item() == pytest.approx(np.log(5)), "every other picture is as likely"


def test_a_seed_gives_the_same_weights_and_features_of_unit_mean_square(images: torch.Tensor) -> None:
    weights, again = learnt(images, steps=2), learnt(images, steps=2)
    assert all(torch.equal(value, again[name]) for name, value in weights.items())
    model = models.build("cifar-tutorial", (3, 32, 32), 10)
    missing, unknown = model.load_state_dict(weights, strict=False)
    assert not unknown
    assert all(name.startswith("head.") for name in missing)
    with torch.no_grad():
        assert model.get_submodule("features")(images).square().mean().item() == pytest.approx(1, rel=1e-4)


@pytest.mark.parametrize("network", public_convolutions.NETWORKS)
def test_the_command_writes_a_file_that_its_network_accepts(
    network: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "public.safetensors"
    monkeypatch.setattr(public_convolutions, "IMAGES", 40)
    monkeypatch.setattr(public_convolutions, "learnt", lambda images, name: learnt(images, name, steps=1))
    monkeypatch.setattr(sys, "argv", ["public_convolutions", str(file), "--network", network])
    public_convolutions.main()
    model = models.pretrained(models.build(network, (3, 32, 32), 10), file)
    assert isinstance(model, models.FixedFeatures), "the features are computed once"
