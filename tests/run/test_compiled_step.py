"""``torch.compile(optimizer.step)`` releases once in each step, and a run whose steps are captured is the eager run.

The backend that traces and runs what it traced is enough: whether a release is left out, moved or made twice is decided
while tracing.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from noisette import AdaptiveClip, PerExampleClip, PrivateRun
from noisette.capture.captured import Captured
from noisette.core.noise import GaussianNoise
from noisette.errors import PrivacyError
from small_loop import loss, start

GENERATOR = torch.Generator().manual_seed(1)
X, Y = torch.randn(200, 6, generator=GENERATOR), torch.randint(0, 3, (200,), generator=GENERATOR)
pytestmark = [
    pytest.mark.usefixtures("known_key"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of torch itself, while it traces
]


class Derived(torch.optim.SGD):
    """An optimizer whose step calls that of its base class, which calls the hooks once more."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        super().step()


sgd, adam = partial(torch.optim.SGD, lr=0.5, momentum=0.9), partial(torch.optim.Adam, lr=0.1)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def begin(model: nn.Module, optimizer: torch.optim.Optimizer) -> PrivateRun:
    declared = {"steps": 4, "sampling_rate": 0.2, "expected_batch_size": 40}
    return start(model, (X, Y), optimizer=optimizer, clip={"max_grad_norm": 1.0, "capture": "eager"}, **declared)


def gradients_of(run: PrivateRun, step: Callable[[], object]) -> list[Tensor]:
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
    ("make", "when"),
    [(sgd, "before privatize"), (adam, "called before privatize"), (partial(Derived, lr=0.5), "after privatize")],
)
def test_a_compiled_step_is_the_step(make, when, monkeypatch):
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
        optimizer = make(model.parameters())
        step: Callable[[], object] = compiled(optimizer.step) if is_compiled and "before" in when else optimizer.step
        if when == "called before privatize":
            step()  # without gradients, so that nothing moves
        with begin(model, optimizer) as run:
            if is_compiled and "before" not in when:
                step = compiled(optimizer.step)
            gradients.append(gradients_of(run, step))
            assert len(ended) == 1 + 4, "the bound adapts before the first batch and once for each step"
        assert (run.steps_taken, drawn) == (4, [0, 1, 2, 3])
        weights.append([p.detach() for p in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
        assert float(other.std()) > 0.01
    for one, other in zip(*weights, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


def test_a_compiled_step_without_a_batch_is_refused():
    model = net()
    optimizer = sgd(model.parameters())
    with begin(model, optimizer) as run:
        step = compiled(optimizer.step)
        with pytest.raises(PrivacyError, match="needs a batch of its own"):
            step()
        gradients_of(run, step)
        step()  # the run has ended, and left the optimizer as it was


class Noted:
    """A loss whose weight follows the epoch."""

    def __init__(self) -> None:
        self.weight = 1.0

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return self.weight * loss(model, x, y)


def trained(capture: Any, size: Any, **clip: Any) -> tuple[Tensor, list[np.ndarray], set[int], PerExampleClip]:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    inputs, targets = torch.randn(400, 6, generator=generator), torch.randint(0, 4, (400,), generator=generator)
    inputs[7] = torch.nan
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    bound = PerExampleClip(model, capture=capture, **(clip or {"max_grad_norm": 0.5}))
    noted = Noted()
    batches, sizes = [], set()
    declared = {"sampling_rate": 0.1, "expected_batch_size": 40, "steps": 30}
    with start(model, (inputs, targets), optimizer=optimizer, clip=bound, **declared) as run:
        for step, batch in enumerate(run.batches()):
            batches.append(batch.indices.copy())
            noted.weight = 1.0 if step < 20 else 0.5
            for x, y in batch.microbatches(size):
                sizes.add(len(x))
                run.accumulate(noted.loss, x, y)
            optimizer.step()
            optimizer.zero_grad()
            if step == 10:
                model[0].requires_grad_(False)
            if step == 15:
                model[0].requires_grad_(True)
    return torch.cat([p.detach().flatten() for p in model.parameters()]), batches, sizes, bound


@pytest.mark.parametrize("clip", [{}, {"clipping": AdaptiveClip}], ids=["flat", "adaptive"])
def test_a_captured_run_is_the_eager_run(clip):
    found, expected = (trained(how, 24, **{k: make(0.5) for k, make in clip.items()}) for how in ("graph", "eager"))
    assert found[3].captured_operations > 0
    assert not found[3].capture_problems
    torch.testing.assert_close(found[0], expected[0], rtol=1e-4, atol=1e-4)
    assert all(np.array_equal(one, other) for one, other in zip(found[1], expected[1], strict=True))
    assert len(found[2]) > 5


def test_memory_that_runs_out_in_a_graph_halves_the_microbatch(monkeypatch):
    expected = trained("eager", "auto")
    whole, calls = Captured.__call__, []

    def runs_out(self: Captured, rows: int, *given: Any, **settings: Any) -> Any:
        calls.append(rows)
        if len(calls) in (2, 5, 9):
            raise torch.OutOfMemoryError("simulated")
        return whole(self, rows, *given, **settings)

    monkeypatch.setattr(Captured, "__call__", runs_out)
    found = trained("graph", "auto")
    assert len(calls) > 9
    assert not found[3].capture_problems
    torch.testing.assert_close(found[0], expected[0], rtol=1e-4, atol=1e-4)
