"""Fixed features of images and texts against their definitions, and several views of a record: clipped once."""

import math
from collections import Counter
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from noisette.clipping.registry import ENGINES
from noisette.clipping.rules import FlatClipping
from noisette.data.built_in_images import shaded_leaves
from noisette.lipschitz import NormBound
from noisette.nn import PatchFeatures, Scattering2d, Standardise, Whitening, WordCounts, models
from noisette.nn.features import ANGLES, MirrorAndShift, mean_over_views
from noisette.nn.models import PatchScale
from noisette.run.per_example import PerExampleClip
from small_loop import loss as cross_entropy
from small_loop import losses as each_cross_entropy


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
    assert layer(torch.tensor([-1.0, 0.0])).norm().item() == pytest.approx(reach.norm)
    assert layer.bound_backward(NormBound(1.0, (2,)), 0.3) == (pytest.approx(0.6), {})


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
    for row, text in zip(WordCounts(weights)(TEXTS).tolist(), TEXTS.tolist(), strict=True):
        expected = [0.0] * 7
        for word, count in Counter(word for word in text if word).items():
            expected[word] = math.sqrt(count) * weights[word].item()
        assert row == pytest.approx([value / (math.hypot(*expected) or 1) for value in expected], rel=1e-5)


def morlet(deviation: float, angle: float) -> np.ndarray:
    radius = math.ceil(2.75 * deviation / 0.5)
    kernel = np.zeros((2 * radius + 1, 2 * radius + 1), dtype=complex)
    envelope = np.zeros_like(kernel)
    for row in range(-radius, radius + 1):
        for column in range(-radius, radius + 1):
            along = column * math.cos(angle) + row * math.sin(angle)
            across = row * math.cos(angle) - column * math.sin(angle)
            height = math.exp(-(along**2 + across**2 / 4) / (2 * deviation**2))
            envelope[row + radius, column + radius] = height
            kernel[row + radius, column + radius] = height * np.exp(1j * 0.6 * math.pi / deviation * along)
    return (kernel - envelope * kernel.sum() / envelope.sum()) / (4 * math.pi * deviation**2)


def correlate(image: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    radius = kernel.shape[0] // 2
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(image, radius, mode="reflect"), kernel.shape)
    return (windows * kernel).sum((2, 3))


def blur(image: np.ndarray, deviation: float) -> np.ndarray:
    radius = math.ceil(2.75 * deviation)
    line = np.exp(-(np.arange(-radius, radius + 1) ** 2) / (2 * deviation**2))
    kernel = np.outer(line, line)
    return correlate(image, kernel / kernel.sum())


def test_features_follow_the_definition() -> None:
    image = np.random.default_rng(0).random((16, 16))
    features = Scattering2d()(torch.tensor(image, dtype=torch.float32).view(1, 1, 16, 16))[0].numpy()
    fine = [np.abs(correlate(image, morlet(0.8, math.pi * k / ANGLES))) for k in range(ANGLES)]
    coarse = [np.abs(correlate(image, morlet(1.6, math.pi * k / ANGLES)))[::2, ::2] for k in range(ANGLES)]
    second = [np.abs(correlate(u, morlet(1.6, math.pi * k / ANGLES)))[::2, ::2] for u in fine for k in range(ANGLES)]
    expected = [blur(u, 1.6)[::4, ::4] for u in [image, *fine]] + [blur(u, 0.8)[::2, ::2] for u in [*coarse, *second]]
    np.testing.assert_allclose(features, np.stack(expected), atol=2e-5)


def test_features_do_not_mix_examples() -> None:
    images = torch.rand(3, 2, 12, 20)
    features = Scattering2d()(images)
    assert features.shape == (3, 162, 3, 5)
    torch.testing.assert_close(features[1:2], Scattering2d()(images[1:2]))


def test_the_first_order_is_the_first_part_of_the_second() -> None:
    images = torch.rand(2, 3, 16, 12)
    first, second = Scattering2d(order=1)(images), Scattering2d(order=2)(images)
    assert first.shape == (2, 3 * 17, 4, 3)
    torch.testing.assert_close(first.view(2, 3, 17, 4, 3), second.view(2, 3, 81, 4, 3)[:, :, :17])


IMAGES = torch.rand(40, 3, 14, 14, generator=torch.Generator().manual_seed(1)).double()


def by_loop(features: PatchFeatures, image: np.ndarray) -> np.ndarray:
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
    torch.testing.assert_close(features(0.5 * IMAGES[:4] + 0.2), features(IMAGES[:4]), rtol=0.05, atol=0.01)


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


_VIEWS, _NORM = 3, 4.6  # some gradients are longer, some shorter


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 4 * 4, 3)
    return nn.Sequential(*layers).double()


def scaled(x: Tensor) -> Tensor:
    """Views without random numbers, for a comparison: a row is scaled by its place among the views."""
    return x * torch.arange(1, len(x) + 1, dtype=x.dtype).remainder(_VIEWS).add(0.5).view(-1, 1, 1, 1)


def examples() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(5, 2, 6, 6, dtype=torch.float64), torch.randint(0, 3, (5,))


def clipped_by_hand(model: nn.Module, views: Tensor, y: Tensor, norm: float) -> list[Tensor]:
    """The gradients of the mean loss of each example's views, (n, views, ...), each clipped to ``norm``, added up."""
    total = [torch.zeros_like(p) for p in model.parameters()]
    for of_one, label in zip(views, y, strict=True):
        sums = [torch.zeros_like(p) for p in model.parameters()]
        for view in of_one:
            loss = F.cross_entropy(model(view.unsqueeze(0)), label.unsqueeze(0))
            for kept, grad in zip(sums, torch.autograd.grad(loss, list(model.parameters())), strict=True):
                kept += grad / len(of_one)
        factor = min(1.0, norm / torch.cat([g.flatten() for g in sums]).norm().item())
        for kept, grad in zip(total, sums, strict=True):
            kept += factor * grad
    return total


@pytest.mark.parametrize("loss", [cross_entropy, each_cross_entropy])
@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_the_mean_over_views_is_clipped_once(engine: str, loss: object) -> None:
    model, (x, y) = network(), examples()
    right = clipped_by_hand(model, torch.stack([scaled(row.expand(_VIEWS, *row.shape)) for row in x]), y, _NORM)
    clip = PerExampleClip(model, clipping=FlatClipping(_NORM), engine=ENGINES[engine].resolve()())
    clip.accumulate(mean_over_views(loss, scaled, _VIEWS), x, y)  # type: ignore[arg-type]
    (found,) = clip.pop_sums()
    for grad, expected in zip(found.grads, right, strict=True):
        torch.testing.assert_close(grad, expected, rtol=1e-5, atol=1e-7)


def test_each_view_has_the_label_of_its_own_record() -> None:
    model, (x, y) = network(), examples()
    losses = mean_over_views(each_cross_entropy, scaled, _VIEWS)
    apart = [losses(model, x[k : k + 1], y[k : k + 1]) for k in range(len(x))]
    torch.testing.assert_close(losses(model, x, y), torch.cat(apart))


def test_a_captured_step_with_random_views_draws_new_ones_for_each_example() -> None:
    """Of a linear model with loss ``sum(w x)`` the clipped gradients are the views themselves, each within the norm."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 1, bias=False)).double()
    one = torch.zeros(1, 1, 3, 3, dtype=torch.float64)
    one[0, 0, 1, 1] = 1.0
    augment, seen = MirrorAndShift(flip=False, shift=1), []
    loss = mean_over_views(lambda model, x: model(x).squeeze(1), augment, 2)
    clip = PerExampleClip(model, clipping=FlatClipping(10.0), capture="graph")
    for _ in range(8):
        clip.accumulate(loss, one.expand(4, 1, 3, 3))
        (found,) = clip.pop_sums()
        assert found.grads[0].sum().item() == pytest.approx(4.0, rel=1e-5)
        seen.append(found.grads[0])
    assert len({tuple(grad.flatten().tolist()) for grad in seen}) > 6


def test_random_views_are_the_mirrored_and_shifted_images() -> None:
    torch.manual_seed(0)
    image = torch.rand(1, 1, 4, 5)
    found = MirrorAndShift(flip=True, shift=1)(image.expand(400, 1, 4, 5))
    padded = F.pad(image, (1, 1, 1, 1), mode="replicate")
    offered = [
        plain[0, :, down : down + 4, right : right + 5]
        for plain, down, right in product((padded, padded.flip(-1)), range(3), range(3))
    ]
    counts = torch.stack([(found == view).flatten(1).all(1) for view in offered]).sum(1)
    assert counts.sum() == 400
    assert counts.min() > 5


def one_view_of_three() -> Tensor:
    x, y = examples()
    return mean_over_views(cross_entropy, lambda x: x[:1], 3)(network(), x[:1], y[:1])


REFUSED: list[tuple[Callable[[], object], str]] = [
    *((lambda scale=scale: Standardise(0.0, scale), "above zero") for scale in (0.0, -1.0, math.inf, math.nan)),
    (lambda: Standardise(torch.tensor([0.0, math.nan])), "finite means"),
    *((lambda n=n: Whitening.of_public(PUBLIC, n), "from 1 to 12 components of 200 public examp") for n in (0, 13)),
    (lambda: Whitening.of_public(torch.ones(9, 4), 2), "do not differ"),
    *((lambda n=n: Scattering2d()(torch.zeros(1, 1, n, 28)), "multiples of 4") for n in (8, 30)),
    (lambda: Scattering2d(order=3), "1 or 2, got order=3"),
    (lambda: PatchFeatures.of_public(IMAGES, 801), "expected from 1 to 800 filters of 40 public images"),
    (lambda: MirrorAndShift(flip=False), "ask for flip"),
    (lambda: MirrorAndShift(shift=-1), "shift"),
    (lambda: mean_over_views(cross_entropy, scaled, 0), "views=0"),
    (one_view_of_three, "expected 3 views of 1 examples, got 1"),
]


@pytest.mark.parametrize(("make", "says"), REFUSED)
def test_what_does_not_fit_is_refused(make: Callable[[], object], says: str) -> None:
    with pytest.raises(ValueError, match=says), np.errstate(all="ignore"):
        make()
