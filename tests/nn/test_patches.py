"""Patch features against a loop over patches in float64, and the models on patches of several scales and wavelets."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from noisette.data.built_in_images import shaded_leaves
from noisette.nn import PatchFeatures, Scattering2d, models
from noisette.nn.models import PatchScale

F = torch.nn.functional

IMAGES = torch.rand(40, 3, 14, 14, generator=torch.Generator().manual_seed(1)).double()


def by_loop(features: PatchFeatures, image: np.ndarray) -> np.ndarray:
    """Resemblances of one image: each patch normalised by itself, and averaged over the quarter it lies in."""
    filters, bias, side = features.filters.numpy(), features.bias.numpy(), features.filters.shape[-1]
    places = range(0, image.shape[1] - side + 1, features.stride)
    found = np.empty((2 * len(filters), len(places), len(places)))
    for i, top in enumerate(places):
        for j, left in enumerate(places):
            patch = image[:, top : top + side, left : left + side].ravel()
            normal = (patch - patch.mean()) / np.sqrt(patch.var() + 1e-3)
            product = filters.reshape(len(filters), -1) @ normal - bias
            found[:, i, j] = np.maximum(np.concatenate([product, -product]) - 0.5, 0)
    half, more = len(places) // 2, -(-len(places) // 2)
    parts = (slice(0, more), slice(half, None))
    return np.stack([[found[:, down, across].mean((1, 2)) for across in parts] for down in parts]).transpose(2, 0, 1)


@pytest.mark.parametrize("stride", [1, 2])
def test_features_are_those_of_a_loop_over_patches(stride: int) -> None:
    features = PatchFeatures.of_public(IMAGES[:30], 7, side=5, stride=stride)
    expected = np.stack([by_loop(features, image) for image in IMAGES[30:34].numpy()])
    assert expected.any()
    np.testing.assert_allclose(features(IMAGES[30:34]).numpy(), expected, rtol=1e-6, atol=1e-9)


def test_each_image_is_treated_alone_and_brightness_and_contrast_hardly_matter() -> None:
    features = PatchFeatures.of_public(IMAGES, 9)
    torch.testing.assert_close(features(IMAGES[:4]), torch.cat([features(image[None]) for image in IMAGES[:4]]))
    darker = features(0.5 * IMAGES[:4] + 0.2)
    torch.testing.assert_close(darker, features(IMAGES[:4]), rtol=0.05, atol=0.01)


@pytest.mark.parametrize("filters", [0, 801])
def test_too_many_filters_are_refused(filters: int) -> None:
    with pytest.raises(ValueError, match="expected from 1 to 800 filters of 40 public images"):
        PatchFeatures.of_public(IMAGES, filters)


SCALES = (PatchScale(1, 5, stride=2), PatchScale(2, 4, side=4))
SMALL = torch.rand(3, 1, 20, 20, generator=torch.Generator().manual_seed(1))


def normalised(flat: torch.Tensor) -> torch.Tensor:
    return (flat - flat.mean(1, keepdim=True)) / (flat.var(1, keepdim=True, correction=0) + 1e-5).sqrt()


def test_features_are_those_of_averaged_images_and_wavelets_over_both_mirror_images() -> None:
    model = models.patches_and_scattering((1, 20, 20), 3, scales=SCALES)
    leaves = torch.as_tensor(shaded_leaves(2000, 0, channels=1))
    parts = []
    for scale in SCALES:
        public, x = (F.avg_pool2d(images, scale.averaged) for images in (leaves, SMALL))
        of_patches = PatchFeatures.of_public(public, scale.filters, side=scale.side, stride=scale.stride)
        parts.append(normalised(((of_patches(x) + of_patches(x.flip(-1))) / 2).flatten(1)))
    averaged = [F.adaptive_avg_pool2d(Scattering2d()(images), 4) for images in (SMALL, SMALL.flip(-1))]
    parts.append(normalised(torch.stack(averaged).mean(0).flatten(1)))
    torch.testing.assert_close(model.get_submodule("features")(SMALL), torch.cat(parts, 1))
    torch.testing.assert_close(model(SMALL), model(SMALL.flip(-1)))
    assert [name for name, _ in model.named_parameters()] == ["head.weight", "head.bias"]
