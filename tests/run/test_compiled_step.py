"""``torch.compile(optimizer.step)`` releases once in each step, before the optimizer reads a gradient.

The backend that traces and runs what it traced is enough: whether a release is left out, moved or made twice is decided
while tracing.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import noisette
from noisette.core.noise import GaussianNoise
from noisette.errors import PrivacyError
from noisette.run.per_example import PerExampleClip
from small_loop import loss, start

GENERATOR = torch.Generator().manual_seed(1)
X, Y = torch.randn(200, 6, generator=GENERATOR), torch.randint(0, 3, (200,), generator=GENERATOR)
pytestmark = [
    pytest.mark.usefixtures("known_key"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of torch itself, while it traces
]
Optimizers = Callable[[nn.Module], torch.optim.Optimizer]


class Derived(torch.optim.SGD):
    """An optimizer whose step calls that of its base class, which calls the hooks once more."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        super().step()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.1)


def derived(model: nn.Module) -> torch.optim.Optimizer:
    return Derived(model.parameters(), lr=0.5)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def begin(model: nn.Module, optimizer: torch.optim.Optimizer) -> noisette.PrivateRun:
    declared = {"steps": 4, "sampling_rate": 0.2, "expected_batch_size": 40}
    return start(model, (X, Y), optimizer=optimizer, clip={"max_grad_norm": 1.0, "capture": "eager"}, **declared)


def gradients_of(run: noisette.PrivateRun, step: Callable[[], object]) -> list[Tensor]:
    """Train, and return the gradients that each step has left."""
    gradients = []
    for batch in run.batches():
        for x, y in batch.microbatches(25):
            run.accumulate(loss, x, y)
        step()
        gradients.append(torch.cat([p.grad.flatten() for p in run.bound.model.parameters()]))
        run.optimizer.zero_grad()
    return gradients


def compiled(step: Callable[[], object]) -> Callable[[], object]:
    torch._dynamo.reset()
    return torch.compile(step, backend="eager")


@pytest.mark.parametrize(
    ("make", "when"), [(sgd, "before privatize"), (adam, "called before privatize"), (derived, "after privatize")]
)
def test_a_compiled_step_is_the_step(make: Optimizers, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    whole, after = GaussianNoise.add_, PerExampleClip.after_step

    def add(source: GaussianNoise, *args, step: int, **numbers) -> None:
        drawn.append(step)
        whole(source, *args, step=step, **numbers)

    def counted_end(clip: PerExampleClip) -> None:
        ended.append(clip)
        after(clip)

    monkeypatch.setattr(GaussianNoise, "add_", add)
    monkeypatch.setattr(PerExampleClip, "after_step", counted_end)
    weights, gradients = [], []
    for is_compiled in (False, True):
        drawn.clear()
        ended: list[PerExampleClip] = []
        model = net()
        optimizer = make(model)
        step: Callable[[], object] = compiled(optimizer.step) if is_compiled and "before" in when else optimizer.step
        if when == "called before privatize":
            step()  # without gradients, so that nothing moves
        with begin(model, optimizer) as run:
            if is_compiled and "before" not in when:
                step = compiled(optimizer.step)
            gradients.append(gradients_of(run, step))
            assert len(ended) == 1 + 4, "the bound adapts before the first batch and once for each step"
        assert run.steps_taken == 4
        assert drawn == [0, 1, 2, 3]
        weights.append([p.detach() for p in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
        assert float(other.std()) > 0.01
    for one, other in zip(*weights, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


def test_a_compiled_step_without_a_batch_is_refused() -> None:
    model = net()
    optimizer = sgd(model)
    with begin(model, optimizer) as run:
        step = compiled(optimizer.step)
        with pytest.raises(PrivacyError, match="needs a batch of its own"):
            step()
        gradients_of(run, step)
        step()  # the run has ended, and left the optimizer as it was
