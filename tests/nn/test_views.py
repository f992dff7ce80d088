"""Several views of a record: one gradient, clipped once, with every engine and as a captured graph."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from noisette.clipping.registry import ENGINES
from noisette.clipping.rules import FlatClipping
from noisette.nn import MirrorAndShift, mean_over_views
from noisette.run.per_example import PerExampleClip

_VIEWS, _NORM = 3, 4.6  # some gradients are longer, some shorter


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 4 * 4, 3)
    ).double()


def scaled(x: Tensor) -> Tensor:
    """Views without random numbers, for a comparison: a row is scaled by its place among the views."""
    return x * torch.arange(1, len(x) + 1, dtype=x.dtype).remainder(_VIEWS).add(0.5).view(-1, 1, 1, 1)


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def each_cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


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
    stacked = torch.stack([scaled(row.expand(_VIEWS, *row.shape)) for row in x])
    right = clipped_by_hand(model, stacked, y, _NORM)
    clip = PerExampleClip(model, clipping=FlatClipping(_NORM), engine=ENGINES[engine].resolve()())
    clip.accumulate(mean_over_views(loss, scaled, _VIEWS), x, y)  # type: ignore[arg-type]
    (found,) = clip.pop_sums()
    clip.close()
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
    clip.close()
    assert len({tuple(grad.flatten().tolist()) for grad in seen}) > 6


def test_random_views_are_the_mirrored_and_shifted_images() -> None:
    torch.manual_seed(0)
    image = torch.rand(1, 1, 4, 5)
    found = MirrorAndShift(flip=True, shift=1)(image.expand(400, 1, 4, 5))
    padded = F.pad(image, (1, 1, 1, 1), mode="replicate")
    offered = [
        view
        for plain in (padded, padded.flip(-1))
        for down in range(3)
        for right in range(3)
        for view in [plain[0, :, down : down + 4, right : right + 5]]
    ]
    counts = torch.stack([(found == view).flatten(1).all(1) for view in offered]).sum(1)
    assert counts.sum() == 400
    assert counts.min() > 5


def test_what_is_no_view_is_refused() -> None:
    with pytest.raises(ValueError, match="ask for flip"):
        MirrorAndShift(flip=False)
    with pytest.raises(ValueError, match="shift"):
        MirrorAndShift(shift=-1)
    with pytest.raises(ValueError, match="views=0"):
        mean_over_views(cross_entropy, scaled, 0)
    model, (x, y) = network(), examples()
    with pytest.raises(ValueError, match="expected 3 views of 1 examples, got 1"):
        mean_over_views(cross_entropy, lambda x: x[:1], 3)(model, x[:1], y[:1])
