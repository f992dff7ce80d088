"""Losses that cannot be vectorised behind models that can: the model is computed at once, what follows one by one."""

import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from model_cases import Forward
from noisette import OneByOneWarning, PerExampleClip
from noisette.clipping.engines import BookKeeping, PerExampleLoop, ReweightGP
from noisette.core.clip import Engine
from oracle import example_gradients
from small_loop import clipped_by

B = 6
pytestmark = pytest.mark.filterwarnings("ignore::noisette.OneByOneWarning")


class Clamp(nn.Module):
    def forward(self, given: dict[str, Tensor]) -> Tensor:
        given["x"] = given["x"].clamp(-0.1, 0.1)
        return given["x"]


class Detector(nn.Module):
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 8), nn.Tanh())
        self.mix, self.clamp, self.relu = nn.Linear(8, 8), Clamp(), nn.ReLU(inplace=True)
        self.classes, self.boxes = nn.Linear(8, 3), nn.Linear(8, 4)
        self.register_buffer("seen", torch.zeros((), dtype=torch.float64))
        self.calls, self.features = 0, None

    def forward(self, x: Tensor) -> dict[str, Any]:
        self.calls += 1
        h = self.mix(self.encoder(x))
        return {"classes": self.classes(h), "boxes": [self.boxes(h).sigmoid()], "norm": (h * 0).norm(), "name": "tiny"}


def detector() -> Detector:
    torch.manual_seed(0)
    return Detector().double()


def data() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(B, 5, 4, dtype=torch.float64), torch.randint(0, 2, (B, 3)), torch.rand(B, 3, 4).double()


def matched(m: Detector, x: Tensor, y: Tensor, boxes: Tensor) -> Tensor:
    """Hungarian matching, as in DETR."""
    out = m(x * 2 - 1)
    classes, found = out["classes"][0], out["boxes"][0][0]
    cost = -classes.softmax(-1)[:, y[0]] + torch.cdist(found, boxes[0], p=1)
    i, j = map(torch.as_tensor, linear_sum_assignment(cost.detach().cpu().numpy()))
    labels = torch.full((5,), 2).index_put((i,), y[0][j])
    return F.cross_entropy(classes, labels) + (found[i] - boxes[0][j]).abs().sum()


def listed(m: Detector, x: Tensor, y: Tensor, boxes: Tensor) -> Tensor:
    """Targets as lists of dictionaries, of as many objects as there are."""
    out = m(x)
    targets = [{"labels": each[each > 0], "n": int((each > 0).sum())} for each in y]
    return sum((out["classes"][0, : t["n"]].sum(0)[t["labels"]].square().sum() for t in targets), x.new_zeros(()))


def walked(m: Detector, x: Tensor, y: Tensor, boxes: Tensor) -> Tensor:
    """A loop over values of the data, with a text made of one."""
    scores = m(x)["classes"][0]
    numbers = [round(number) for number in boxes[0, :, 0].tolist()]
    return torch.stack([scores.sum(), *[scores[int(f"{k}")].sum() * (k + 1) for k in numbers]]).square().sum()


def weighed(m: Detector, x: Tensor, y: Tensor, boxes: Tensor) -> Tensor:
    value = m(x)["classes"].square().sum()
    return value * value.item()


def in_parts(m: Detector, x: Tensor, y: Tensor, boxes: Tensor) -> Tensor:
    """Calls of parts, of which one takes what another has given, and torch's code between them."""
    h = m.encoder(x).clone().mul_(3)
    scores = m.classes(m.mix(h).relu() + h)
    return scores.square().sum() * float(scores.detach().numpy().max()) + h.sum()


def in_place(m: Detector, x: Tensor, y: Tensor, boxes: Tensor) -> Tensor:
    """It writes into what the model returns before it fails."""
    scores = m(x)["classes"]
    scores.div_(2)
    return scores.square().sum() * scores.sum().item()


def in_place_after(m: Detector, x: Tensor, y: Tensor, boxes: Tensor) -> Tensor:
    out = m(x)
    factor = out["classes"].sum().item()
    out["classes"] = out.pop("classes").mul_(factor)
    return out["classes"].square().sum()


def with_weights(m: Detector, x: Tensor, y: Tensor, boxes: Tensor) -> Tensor:
    return weighed(m, x, y, boxes) + m.mix.weight.square().sum()


def with_attribute(m: Detector, x: Tensor, y: Tensor, boxes: Tensor) -> Tensor:
    kept: list[Tensor] = []
    handle = m.encoder.register_forward_hook(lambda *call: kept.append(call[2]))
    value = weighed(m, x, y, boxes)
    handle.remove()
    return value + kept[0].square().sum()


def with_buffer(m: Detector, x: Tensor, y: Tensor, boxes: Tensor) -> Tensor:
    m.seen.copy_(m.encoder(x).detach().sum())
    return weighed(m, x, y, boxes) * m.seen


def later_call(m: Detector, x: Tensor, y: Tensor, boxes: Tensor) -> Tensor:
    value = m.encoder(x).sum()
    return m.mix(m.encoder(x) * value.item()).square().sum()


def unlike(m: Detector, x: Tensor, y: Tensor, boxes: Tensor) -> Tensor:
    """Examples that do not depend on the same outputs, and one that depends on none."""
    out, n = m(x), y[0].tolist()
    return out["classes"].square().sum() * n[0] + (out["boxes"][0].square().sum() if n[1] else 0 * x.sum())


def written_by_a_module(m: Detector, x: Tensor, y: Tensor, boxes: Tensor) -> Tensor:
    """What follows sees what a module has written into its arguments: a tensor, and a dictionary."""
    given = {"x": m.encoder(x)}
    scores = m.classes(m.clamp(given))
    return (scores.sum() + given["x"].square().sum()) * scores.sum().item()


def written_in_place(m: Detector, x: Tensor, y: Tensor, boxes: Tensor) -> Tensor:
    h = x * 2
    return m.encoder(F.relu(m.relu(h))).square().sum() * h.sum().item()


BEHIND = [matched, listed, in_place, walked, weighed, in_parts, in_place_after, unlike]
NOT_BEHIND = [written_by_a_module, written_in_place, with_weights, with_attribute, with_buffer, later_call]


@pytest.mark.parametrize("loss", BEHIND + NOT_BEHIND)
@pytest.mark.parametrize("engine", [BookKeeping(), ReweightGP(), PerExampleLoop()], ids=lambda e: type(e).__name__)
def test_sums_are_those_of_single_examples(loss: Callable[..., Tensor], engine: Engine) -> None:
    inputs = data()
    truth = example_gradients(detector(), loss, inputs).clipped(0.5).vector
    halves = [[x[:4] for x in inputs], [x[4:] for x in inputs]]
    found = clipped_by(detector(), 0.5, loss, *halves, engine=engine, capture="eager")
    torch.testing.assert_close(found, truth, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("loss", [matched, walked, weighed, unlike])
def test_the_model_is_called_for_all_examples_at_once(loss: Callable[..., Tensor]) -> None:
    model = detector()
    clip = PerExampleClip(model, 0.5, capture="eager")
    for _ in range(3):
        clip.accumulate(loss, *data())
    assert model.calls <= 6  # of 18: each microbatch is tried as a whole before


class Noisy(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * random.random()


def with_its_loss() -> Any:
    """It computes its loss itself, with numbers of Python in the part that is computed at once, and behind it."""
    part = detector()
    part.mix = Noisy(8, 8).double()
    return Forward(lambda m, *batch: matched(m.part, *batch) * random.random(), part=part)


def test_a_module_that_cannot_be_vectorised_is_opened() -> None:
    model, loss, batch = with_its_loss(), lambda m, *batch: m(*batch), data()
    truth = clipped_by(model, 0.5, loss, batch, engine=PerExampleLoop())
    model.part.calls = 0
    torch.testing.assert_close(clipped_by(model, 0.5, loss, batch, batch), 2 * truth, rtol=1e-9, atol=1e-12)
    assert model.part.calls <= 6


def test_a_random_argument_of_the_model_is_the_one_that_the_loss_goes_on_with() -> None:
    """Noise that the model has to find: with other noise behind the model than before it, losses are above 1."""
    model, seen = nn.Linear(4, 4, bias=False).double(), list[float]()
    nn.init.eye_(model.weight)

    def loss(m: nn.Module, x: Tensor) -> Tensor:
        noise = torch.randn_like(x)
        off = (m(x + noise) - x - noise).square().sum()
        seen.append(off.item())
        return off + 0 * m(x).sum()

    clip = PerExampleClip(model, 0.5, capture="eager")
    clip.accumulate(loss, torch.randn(B, 4, dtype=torch.float64))
    assert len(seen) >= B
    assert max(seen) < 1e-9


def test_an_example_whose_loss_raises_behind_the_model_adds_nothing_where_that_is_asked_for() -> None:
    def loss(m: Detector, x: Tensor, y: Tensor, boxes: Tensor) -> Tensor:
        return m(x)["classes"][0, 0, [1, 2, 5][y[0].tolist()[0]]]

    x, y, boxes = data()
    y[:, 0] = torch.tensor([0, 1, 2, 1, 0, 1])
    keep = y[:, 0] < 2
    truth = example_gradients(detector(), loss, (x[keep], y[keep], boxes[keep])).clipped(0.5).vector
    found = clipped_by(detector(), 0.5, loss, (x, y, boxes), errors="skip", capture="eager")
    torch.testing.assert_close(found, truth, rtol=1e-9, atol=1e-12)


def test_an_example_reaches_no_other() -> None:
    x, y, boxes = data()
    parts = [clipped_by(detector(), 0.5, weighed, (x[k : k + 1], y[k : k + 1], boxes[k : k + 1])) for k in range(1, B)]
    x[0] = np.nan
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = clipped_by(detector(), 0.5, weighed, (x, y, boxes), capture="eager")
    torch.testing.assert_close(found, torch.stack(parts).sum(0), rtol=1e-9, atol=1e-12)
    assert [each.category for each in said] == [OneByOneWarning]
