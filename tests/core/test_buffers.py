"""What a loss writes into buffers reaches no other example; what the loop writes in a batch is refused and put back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from noisette import PerExampleClip, PrivacyError, PrivateRun
from noisette.core.loss import ModelBuffers
from small_loop import start

X = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def added(m: Model, x: Tensor) -> None:
    m.seen += x.mean()


def row_set(m: Model, x: Tensor) -> None:
    m.seen[0] = x.mean()


def replaced(m: Model, x: Tensor) -> None:
    m.seen = 0.9 * m.seen + x[0, :2]


def through_another(m: Model, x: Tensor) -> None:
    m.count += 1
    m.scale.mul_(x.mean())
    m.seen.copy_(m.scale * m.count)


def by_item(m: Model, x: Tensor) -> None:
    m.seen.add_(x.sum().item())


WRITES = {"added": added, "row": row_set, "replaced": replaced, "two buffers": through_another, "item": by_item}


class Model(nn.Module):
    seen: Tensor
    scale: Tensor
    count: Tensor

    def __init__(self, write: Callable[[Model, Tensor], None]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 2).double()
        self.write = write
        self.register_buffer("seen", torch.ones(2, dtype=torch.float64))
        self.register_buffer("scale", torch.ones(2, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        self.write(self, x)
        return self.layer(x) * self.seen


def squares(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().sum()


def by_fresh_models(write: Callable[[Model, Tensor], None]) -> Tensor:
    total = torch.zeros(())
    for row in X.split(1):
        model = Model(write)
        gradients = torch.autograd.grad(squares(model, row), list(model.parameters()))
        flat = torch.cat([g.flatten() for g in gradients])
        total = total + flat * min(1.0, 0.5 / float(flat.norm()))
    return total


@pytest.mark.filterwarnings("ignore::noisette.capture.captured.CaptureWarning")  # of what asks for numbers
@pytest.mark.filterwarnings("ignore::noisette.OneByOneWarning")
@pytest.mark.parametrize("capture", ["eager", "graph"])
@pytest.mark.parametrize("name", WRITES)
def test_no_example_sees_what_another_has_written(name: str, capture: str) -> None:
    model = Model(WRITES[name])
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    clip = PerExampleClip(model, 0.5, capture=capture)  # pyright: ignore[reportArgumentType]
    for _ in range(3):
        for part in X.split(3):
            clip.accumulate(squares, part)
        [total] = clip.pop_sums()
        torch.testing.assert_close(torch.cat([g.flatten() for g in total.grads]), by_fresh_models(WRITES[name]))
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, before[name]), name


def run_of(model: nn.Module, steps: int = 2) -> PrivateRun:
    clip = {"max_grad_norm": 0.5, "capture": "eager"}
    return start(model, (X,), clip=clip, sampling_rate=1.0, expected_batch_size=6, steps=steps)


def nothing(m: Model, x: Tensor) -> None: ...


def test_a_parameter_that_is_written_within_a_batch_ends_the_run() -> None:
    model = Model(nothing)
    with run_of(model) as run:
        batches = run.batches()
        for (x,) in next(batches).microbatches(6):
            run.accumulate(squares, x)
        with torch.no_grad():
            model.layer.bias.add_(X.mean())
        for _ in range(2):
            with pytest.raises(PrivacyError, match=r"layer\.bias: written between"):
                run.optimizer.step()


def test_buffers_that_are_made_or_exchanged_are_put_back() -> None:
    model = Model(nothing)
    kept, buffers = model.seen, ModelBuffers(model)
    buffers.begin_batch()
    model.seen = torch.zeros(2, dtype=torch.float64)
    model.register_buffer("new", torch.zeros(1))
    assert buffers.end_batch() == ["seen", "new"]
    assert torch.equal(model.seen, kept)
    assert "new" not in dict(model.named_buffers())
    assert buffers.values()["seen"] is model.seen
