"""A whole run captured is the same run eager: same batches, same noise, weights that agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from noisette import AdaptiveClip, PerExampleClip
from noisette.capture.captured import Captured
from small_loop import loss, start

pytestmark = pytest.mark.usefixtures("known_key")


class Noted:
    """A loss whose weight follows the epoch."""

    def __init__(self) -> None:
        self.weight = 1.0

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return self.weight * loss(model, x, y)


def train(capture: Any, size: Any, **clip: Any) -> tuple[Tensor, list[np.ndarray], set[int], PerExampleClip]:
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
def test_a_captured_run_is_the_eager_run(clip: dict[str, Any]) -> None:
    found, expected = [train(how, 24, **{name: make(0.5) for name, make in clip.items()}) for how in ("graph", "eager")]
    assert found[3].captured_operations > 0
    assert not found[3].capture_problems
    torch.testing.assert_close(found[0], expected[0], rtol=1e-4, atol=1e-4)
    assert all(np.array_equal(one, other) for one, other in zip(found[1], expected[1], strict=True))
    assert len(found[2]) > 5


def test_memory_that_runs_out_in_a_graph_halves_the_microbatch(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = train("eager", "auto")
    whole, calls = Captured.__call__, []

    def runs_out(self: Captured, rows: int, *given: Any, **settings: Any) -> Any:
        calls.append(rows)
        if len(calls) in (2, 5, 9):
            raise torch.OutOfMemoryError("simulated")
        return whole(self, rows, *given, **settings)

    monkeypatch.setattr(Captured, "__call__", runs_out)
    found = train("graph", "auto")
    assert len(calls) > 9
    assert not found[3].capture_problems
    torch.testing.assert_close(found[0], expected[0], rtol=1e-4, atol=1e-4)
