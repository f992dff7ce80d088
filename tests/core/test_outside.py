"""Tensors that a loss reaches otherwise than as an argument: constants pass, values of a batch do not."""

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noisette import PerExampleClip, PrivacyError, PrivateRun
from oracle import example_gradients
from small_loop import clipped_by, start

X = torch.randn(8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
Y = torch.arange(8) % 2


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 2).double()


def run_of(model: nn.Module, capture: Any = "eager") -> PrivateRun:
    clip = {"max_grad_norm": 0.5, "capture": capture}
    return start(model, (X, Y), clip=clip, sampling_rate=1.0, expected_batch_size=8, noise_multiplier=1e-9)


def steps(run: PrivateRun) -> Iterator[tuple[Tensor, Tensor]]:
    for batch in run.batches():
        yield from batch.microbatches(8)
        run.optimizer.step()


def weighted(model: nn.Module, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")[0] * weights[y][0]


def step_and_check(run: PrivateRun, weights: Tensor) -> None:
    """Release the sum of a batch of all records, which is that of single examples with these weights."""
    model = run.bound.model
    found = example_gradients(model, lambda m, x, y: weighted(m, x, y, weights), (X, Y)).clipped(0.5)
    run.optimizer.step()
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.grad, found.sums[name] / 8, rtol=1e-6, atol=1e-8)


BY_THE_LOOP: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "class weights": lambda x, y: 1 / torch.bincount(y, minlength=2).double(),
    "a mean of the batch": lambda x, y: x.mean(0)[:2],
    "a view": lambda x, y: x[0, :2],
    "a copy on no graph": lambda x, y: torch.tensor(x[0, :2].tolist(), dtype=torch.float64),
}


@pytest.mark.parametrize(("capture", "generation"), [("eager", 0), ("graph", 2)])
@pytest.mark.parametrize("name", BY_THE_LOOP)
def test_a_tensor_computed_from_the_batch_is_refused_in_the_first_step(name, capture, generation) -> None:
    with run_of(net(), capture) as run:
        x, y = next(steps(run))
        weights = BY_THE_LOOP[name](x, y)
        gc.collect(generation)
        with pytest.raises(PrivacyError, match=r"neither an argument nor part of the model.*public=\[tensor\]"):
            run.accumulate(lambda m, x, y: weighted(m, x, y, weights), x, y)


@pytest.mark.parametrize("capture", ["eager", "graph"])
def test_constants_from_before_the_run_are_welcome(capture: str) -> None:
    table = torch.tensor([2.0, 0.5], dtype=torch.float64)
    with run_of(net(), capture) as run:
        for batch in run.batches():
            for x, y in batch.microbatches(8):
                run.accumulate(lambda m, x, y: weighted(m, x, y, table), x, y)
            step_and_check(run, table)
    assert run.steps_taken == 3


def test_a_constant_that_is_written_between_calls_is_refused() -> None:
    table = torch.ones(2, dtype=torch.float64)
    with run_of(net()) as run:
        seen = steps(run)
        x, y = next(seen)
        run.accumulate(lambda m, x, y: weighted(m, x, y, table), x, y)
        x, y = next(seen)
        table.copy_(torch.bincount(y, minlength=2))
        with pytest.raises(PrivacyError, match="written to since the first call"):
            run.accumulate(lambda m, x, y: weighted(m, x, y, table), x, y)


def test_what_is_declared_public_may_be_new_in_each_step() -> None:
    """The remedy for numbers that no record has been used for; values of records become an argument with a row each."""
    with run_of(net()) as run:
        for k, batch in enumerate(run.batches()):
            weights = torch.tensor([1.0 + k, 0.5], dtype=torch.float64)
            for x, y in batch.microbatches(8):
                if k == 2:
                    run.accumulate(lambda m, x, y, w: weighted(m, x, y, w[0]), x, y, weights.expand(len(x), 2))
                else:
                    run.accumulate(lambda m, x, y, w=weights: weighted(m, x, y, w), x, y, public=[weights])
            step_and_check(run, weights)


def test_parameters_that_replace_those_of_the_model_are_called_so() -> None:
    with run_of(net()) as run:
        model, (x, y) = run.bound.model, next(steps(run))
        model.load_state_dict({name: p.clone() for name, p in model.state_dict().items()}, assign=True)
        with pytest.raises(PrivacyError, match=r"load_state_dict\(assign=True\) replaces .* with assign=False"):
            run.accumulate(lambda m, x, y: F.cross_entropy(m(x), y), x, y)


def test_without_a_run_a_new_tensor_in_the_second_call_is_refused() -> None:
    clip = PerExampleClip(net(), 0.5)
    call = lambda w: clip.accumulate(lambda m, x, y: weighted(m, x, y, w), X, Y)  # noqa: E731
    call(torch.bincount(Y, minlength=2).double())
    with pytest.raises(PrivacyError, match="neither an argument nor part of the model"):
        call(torch.bincount(Y, minlength=2).double())


def test_a_teacher_from_before_the_run_may_train_or_not() -> None:
    teacher, model = net(), net()
    with torch.no_grad():
        teacher.weight.mul_(2)
    distil = lambda m, x, y: (m(x) - teacher(x).detach()).square().sum()  # noqa: E731
    for frozen in (False, True):
        teacher.requires_grad_(not frozen)
        truth = example_gradients(model, distil, (X, Y)).clipped(0.5).vector
        torch.testing.assert_close(clipped_by(model, 0.5, distil, (X, Y)), truth)
    assert all(p.grad is None for p in teacher.parameters())
