"""What a loss writes into buffers reaches no other example; what the loop writes in a batch is refused and put back."""

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization, remove_parametrizations

from model_cases import Forward
from noisette import PerExampleClip, PrivacyError, PrivateRun
from noisette.core.loss import ModelBuffers
from oracle import example_gradients
from small_loop import clipped_by, start
from small_loop import square as squares

X = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def added(m: Any, x: Tensor) -> None:
    m.seen += x.mean()


def through_another(m: Any, x: Tensor) -> None:
    m.count += 1
    m.scale.mul_(x.mean())
    m.seen.copy_(m.scale * m.count)


WRITES: dict[str, Callable[[Any, Tensor], object]] = {
    "added": added,
    "row": lambda m, x: operator.setitem(m.seen, 0, x.mean()),
    "replaced": lambda m, x: setattr(m, "seen", 0.9 * m.seen + x[0, :2]),
    "two buffers": through_another,
    "item": lambda m, x: m.seen.add_(x.sum().item()),
}


def written_by(write: Callable[[Any, Tensor], object]) -> Any:
    """A model whose forward pass begins with this writing."""

    def forward(m: Any, x: Tensor) -> Tensor:
        write(m, x)
        return m.layer(x) * m.seen

    torch.manual_seed(0)
    buffers = {name: torch.ones(2, dtype=torch.float64) for name in ("seen", "scale")}
    return Forward(forward, layer=nn.Linear(3, 2).double(), **buffers, count=torch.zeros((), dtype=torch.long))


def by_fresh_models(write: Callable[[Any, Tensor], object]) -> Tensor:
    total = torch.zeros(())
    for row in X.split(1):
        model = written_by(write)
        gradients = torch.autograd.grad(squares(model, row), list(model.parameters()))
        flat = torch.cat([g.flatten() for g in gradients])
        total = total + flat * min(1.0, 0.5 / float(flat.norm()))
    return total


@pytest.mark.filterwarnings("ignore::noisette.capture.captured.CaptureWarning")  # of what asks for numbers
@pytest.mark.filterwarnings("ignore::noisette.OneByOneWarning")
@pytest.mark.parametrize("capture", ["eager", "graph"])
@pytest.mark.parametrize("name", WRITES)
def test_no_example_sees_what_another_has_written(name: str, capture: str) -> None:
    model = written_by(WRITES[name])
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


def nothing(m: Any, x: Tensor) -> None: ...


def test_a_parameter_that_is_written_within_a_batch_ends_the_run() -> None:
    model = written_by(nothing)
    with run_of(model) as run:
        batches = run.batches()
        for (x,) in next(batches).microbatches(6):
            run.accumulate(squares, x)
        with torch.no_grad():
            model.layer.bias.add_(X.mean())
        for _ in range(2):
            with pytest.raises(PrivacyError, match=r"layer\.bias: written between"):
                run.optimizer.step()


def test_a_parametrization_of_a_frozen_weight_may_begin_and_end_in_each_forward_pass() -> None:
    """As PEFT's of ``target_parameters``."""

    def forward(m: Any, x: Tensor) -> Tensor:
        register_parametrization(m.layer, "weight", Forward(lambda _, weight: weight + m.up @ m.down))
        m.layer.parametrizations.weight.original.requires_grad_(False)
        try:
            return m.layer(x)
        finally:
            remove_parametrizations(m.layer, "weight", leave_parametrized=False)

    up, down = nn.Parameter(torch.ones(2, 1)), nn.Parameter(torch.ones(1, 3))
    model = Forward(forward, layer=nn.Linear(3, 2).requires_grad_(False), up=up, down=down).double()
    truth = example_gradients(model, squares, (X,)).clipped(0.5).vector
    torch.testing.assert_close(clipped_by(model, 0.5, squares, (X,)), truth)
    with run_of(model) as run:
        for (x,) in next(run.batches()).microbatches(6):
            run.accumulate(squares, x)
        run.optimizer.step()


def test_buffers_that_are_made_or_exchanged_are_put_back() -> None:
    model = written_by(nothing)
    kept, buffers = model.seen, ModelBuffers(model)
    buffers.begin_batch()
    model.seen = torch.zeros(2, dtype=torch.float64)
    model.register_buffer("new", torch.zeros(1))
    assert buffers.end_batch() == ["seen", "new"]
    assert torch.equal(model.seen, kept)
    assert "new" not in dict(model.named_buffers())
    assert buffers.values()["seen"] is model.seen


COUNTS: dict[str, Callable[[Any, Tensor], object]] = {
    "in place": lambda m, x: m.count.add_(1),
    "anew": lambda m, x: setattr(m, "count", m.count + 1),
    "one by one": lambda m, x: m.count.add_(int(x.sum().item() > -9)),
}


@pytest.mark.filterwarnings("ignore::noisette.OneByOneWarning")
@pytest.mark.parametrize("kind", [torch.long, torch.float32])
@pytest.mark.parametrize("write", COUNTS.values(), ids=COUNTS)
def test_a_counter_is_named_once_and_may_be_counted_in_the_loop(
    write: Callable[[Any, Tensor], object], kind: torch.dtype, recwarn: pytest.WarningsRecorder
) -> None:
    model, counts = written_by(write), []
    model.count = model.count.to(kind)
    with run_of(model, steps=3) as run:
        for batch in run.batches():
            model.get_buffer("count").fill_(run.steps_taken)
            for (x,) in batch.microbatches(3):
                run.accumulate(lambda model, x: squares(model, x) * model.get_buffer("count"), x)
            run.optimizer.step()
            counts.append(int(model.count))
    assert counts == [0, 1, 2]
    [said] = [str(each.message) for each in recwarn if "the loss counts" in str(each.message)]
    assert said.startswith("the loss counts in the buffer count, which stays as it is")
    assert "model.get_buffer('count').fill_(run.steps_taken)" in said


def test_other_buffers_that_a_loss_writes_are_not_named(recwarn: pytest.WarningsRecorder) -> None:
    for name in ("count", "norm.num_batches_tracked", "of_two", "is_set", "mean"):

        def write(m: Any, x: Tensor, name: str = name) -> None:
            m.get_buffer(name).add_(x.mean() if name == "mean" else 1)

        model = written_by(nothing if name == "count" else write)
        model.norm = nn.BatchNorm1d(2).double().eval()
        model.register_buffer("of_two", torch.zeros(2, dtype=torch.long))
        model.register_buffer("is_set", torch.zeros((), dtype=torch.uint8))
        model.register_buffer("mean", torch.zeros((), dtype=torch.float64))
        clip = PerExampleClip(model, 0.5)
        clip.begin_batch()
        clip.accumulate(squares, X)
    assert not recwarn.list
