"""The networks of Abadi et al. 2016."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from noisette.nn import models


def trained_scalars(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def test_networks_have_the_layers_of_the_paper() -> None:
    cifar = models.build("cifar-tutorial", (3, 32, 32), 10)
    assert trained_scalars(cifar) == 1_144_138
    assert cifar.features[:5](torch.rand(2, 3, 32, 32)).shape == (2, 64, 12, 12)
    assert cifar.features[:8](torch.rand(2, 3, 32, 32)).shape == (2, 64, 6, 6)
    assert [layer.out_features for layer in cifar.head if isinstance(layer, nn.Linear)] == [384, 384, 10]
    mnist = models.build("mlp1000", (60,), 10)
    assert [p.shape for p in mnist.parameters()] == [(1000, 60), (10, 1000)]


def test_the_cifar_network_uses_only_the_centre_of_the_image_and_ignores_brightness_and_contrast() -> None:
    model, image = models.build("cifar-tutorial", (3, 32, 33), 10), torch.rand(1, 3, 32, 33)
    padded = image.clone()
    padded[..., :4, :] = padded[..., 28:, :] = padded[..., :4] = padded[..., 28:] = 7.0
    torch.testing.assert_close(model(padded), model(image))
    torch.testing.assert_close(model(0.3 * image + 0.5), model(image), rtol=1e-3, atol=1e-3)
    middle = model.features[:2](image)
    assert middle.shape == (1, 3, 24, 24)
    torch.testing.assert_close(middle.mean(), torch.tensor(0.0), rtol=0, atol=1e-5)
    torch.testing.assert_close(middle.var(correction=0), torch.tensor(1.0), rtol=1e-3, atol=0)


def test_initial_weights_are_normal_and_truncated_at_two_standard_deviations() -> None:
    cifar, mnist = models.build("cifar-tutorial", (3, 32, 32), 10), models.build("mlp1000", (60,), 10)
    expected: list[tuple[Tensor, float]] = [
        (cifar.features.conv1.weight, 0.05),
        (cifar.features.conv2.weight, 0.05),
        (cifar.head.fc1.weight, 0.04),
        (cifar.head.fc2.weight, 0.04),
        (cifar.head.scores.weight, 1 / 384),
        (mnist[1].weight, 60**-0.5),
        (mnist[3].weight, 1000**-0.5),
    ]
    for weight, std in [(weight.detach(), std) for weight, std in expected]:
        assert float(weight.abs().max()) <= 2 * std
        assert float(weight.std()) == pytest.approx(0.87962 * std, rel=0.06)  # of a normal number cut there
    biases = {name: float(value.detach().unique()) for name, value in cifar.named_parameters() if "bias" in name}
    assert list(biases.values()) == pytest.approx([0, 0.1, 0.1, 0.1, 0])


# The network of the tutorial itself


def test_pooling_windows_of_the_tutorial_overlap_and_extend_beyond_the_lower_and_right_edge() -> None:
    features, x = models.build("tf-tutorial", (3, 32, 32), 10).features, torch.randn(2, 3, 24, 24)
    edged = torch.full((2, 3, 25, 25), -torch.inf)
    edged[..., :24, :24] = x
    windows = edged.unfold(2, 3, 2).unfold(3, 3, 2)
    assert windows.shape[2:4] == (12, 12)
    assert torch.equal(features.pool1(x), windows.amax((-1, -2)))
    assert features.pool2(x[..., :12, :12]).shape == (2, 3, 6, 6)


def test_responses_of_the_tutorial_are_divided_by_those_of_nine_channels() -> None:
    responses, x = models.build("tf-tutorial", (3, 32, 32), 10).features.responses1, 30 * torch.randn(2, 12, 4, 4)
    expected = torch.empty_like(x)
    for c in range(12):
        near = x[:, max(c - 4, 0) : c + 5].square().sum(1)
        expected[:, c] = x[:, c] / (1 + 0.001 / 9 * near) ** 0.75
    torch.testing.assert_close(responses(x), expected)


def test_layers_of_the_tutorial_are_in_its_order() -> None:
    model = models.build("tf-tutorial", (3, 32, 32), 10)
    names = [name for name, _ in model.features.named_children()]
    assert names[2:] == ["conv1", "act1", "pool1", "responses1", "conv2", "act2", "responses2", "pool2", "flat"]
    assert [layer.out_features for layer in model.head if isinstance(layer, nn.Linear)] == [384, 192, 10]
    scores = model.head.scores.weight.detach()
    assert float(scores.abs().max()) <= 2 / 192
    assert float(scores.std()) == pytest.approx(0.87962 / 192, rel=0.06)
