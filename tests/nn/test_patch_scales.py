"""Patches of several scales, and wavelets: what the features of each are, and that mirror images have the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from noisette.data.built_in_images import shaded_leaves
from noisette.nn import PatchFeatures, Scattering2d, models
from noisette.nn.models import PatchScale

F = nn.functional

SCALES = (PatchScale(1, 5, stride=2), PatchScale(2, 4, side=4))
IMAGES = torch.rand(3, 1, 20, 20, generator=torch.Generator().manual_seed(1))


BUILT = (models.multi_scale_patches, models.patches_and_scattering)


@pytest.fixture(scope="module", params=BUILT)
def any_model(request: pytest.FixtureRequest) -> nn.Module:
    return request.param((1, 20, 20), 3, scales=SCALES)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return models.multi_scale_patches((1, 20, 20), 3, scales=SCALES)


def test_features_of_a_scale_are_those_of_averaged_images_and_their_mirror_images(model: nn.Module) -> None:
    leaves = torch.as_tensor(shaded_leaves(2000, 0, channels=1))
    parts = []
    for scale in SCALES:
        public, x = (F.avg_pool2d(images, scale.averaged) for images in (leaves, IMAGES))
        of_patches = PatchFeatures.of_public(public, scale.filters, side=scale.side, stride=scale.stride)
        flat = ((of_patches(x) + of_patches(x.flip(-1))) / 2).flatten(1)
        centred = flat - flat.mean(1, keepdim=True)
        parts.append(centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt())
    torch.testing.assert_close(model.get_submodule("features")(IMAGES), torch.cat(parts, 1))


def test_scattering_coefficients_of_both_mirror_images_stand_behind_those_of_patches(model: nn.Module) -> None:
    both = models.patches_and_scattering((1, 20, 20), 3, scales=SCALES).get_submodule("features")(IMAGES)
    of_patches, of_wavelets = both.split([both.shape[1] - 81 * 4 * 4, 81 * 4 * 4], 1)
    torch.testing.assert_close(of_patches, model.get_submodule("features")(IMAGES))
    averaged = [F.adaptive_avg_pool2d(Scattering2d()(images), 4) for images in (IMAGES, IMAGES.flip(-1))]
    flat = torch.stack(averaged).mean(0).flatten(1)
    expected = (flat - flat.mean(1, keepdim=True)) / (flat.var(1, keepdim=True, correction=0) + 1e-5).sqrt()
    torch.testing.assert_close(of_wavelets, expected)


def test_an_image_and_its_mirror_image_have_the_same_scores(any_model: nn.Module) -> None:
    torch.testing.assert_close(any_model(IMAGES), any_model(IMAGES.flip(-1)))


def test_only_the_linear_layer_is_trained(any_model: nn.Module) -> None:
    assert [name for name, _ in any_model.named_parameters()] == ["head.weight", "head.bias"]
    assert len(any_model.get_submodule("features").state_dict()) == 2 * len(SCALES)
