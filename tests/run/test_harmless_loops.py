"""Loops and losses that people write, and that harm nothing: accepted, with the result of the plain loop."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Normal, kl_divergence
from torch.nn import functional as F
from torch.optim import SGD, AdamW, Optimizer

from noisette import PerExampleClip
from noisette.clipping.engines import BookKeeping, PerExampleLoop, ReweightGP
from noisette.run.per_example import _check_initialized as check_initialized
from oracle import clipped_sum
from small_loop import C, X, Y, clipped_mean, flat, loss, process, small_model, small_pair, small_run, start, take_steps


def trained() -> Tensor:
    model = small_model()
    with small_run(model, SGD(model.parameters(), lr=0.3)) as run:
        take_steps(run)
    return flat(model)


BEFORE: dict[str, Callable[[nn.Module, Optimizer], Any]] = {
    "zeros": lambda m, o: [setattr(p, "grad", torch.zeros_like(p)) for p in m.parameters()],
    "gradients of zero by the model": lambda m, o: m.zero_grad(set_to_none=False),
    "clipped norm": lambda m, o: nn.utils.clip_grad_norm_(m.parameters(), 1e-3),
    "a backward that was cleared": lambda m, o: (loss(m, X, Y).backward(), o.zero_grad()),
    "a call without gradients": lambda m, o: torch.no_grad()(m)(X),
}


@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
def test_what_precedes_a_step(before):
    model, optimizer = small_pair()
    with small_run(model, optimizer) as run:
        for batch in run.batches():
            process(run, batch)
            before(model, optimizer)
            optimizer.step()
            optimizer.zero_grad()
    torch.testing.assert_close(flat(model), trained(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("engine", "layer"), [(BookKeeping(), 0), (BookKeeping(), 2), (ReweightGP(), 0), (PerExampleLoop(), 2)]
)
def test_a_layer_that_is_frozen_stops_and_the_others_are_clipped_without_it(engine, layer):
    model = small_model()
    parameters = model.parameters()
    optimizer = AdamW(parameters, lr=0.1) if layer else SGD(parameters, lr=0.3, momentum=0.9, weight_decay=0.1)
    with small_run(model, optimizer, engine=engine) as run:
        batches = run.batches()
        process(run, next(batches))
        optimizer.step()
        model[layer].requires_grad_(False)
        frozen, truth = copy.deepcopy(model[layer].state_dict()), clipped_mean(model)
        process(run, next(batches))
        optimizer.step()
        found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        torch.testing.assert_close(found, truth, rtol=1e-5, atol=1e-7)
        assert all(torch.equal(value, frozen[name]) for name, value in model[layer].state_dict().items())
        model[layer].requires_grad_(True)
        truth = clipped_mean(model)
        optimizer.zero_grad()
        process(run, next(batches))
        optimizer.step()
        for name, p in model.named_parameters():
            torch.testing.assert_close(p.grad, truth[name], rtol=1e-5, atol=1e-7)
        assert not torch.equal(model[layer].weight, frozen["weight"]), "thawed again, and within the bound"


LAZY: dict[str, Callable[[], nn.Module]] = {
    "behind a plain layer": lambda: nn.Sequential(nn.Linear(5, 4), nn.LazyLinear(3)),
    "buffers": lambda: nn.Sequential(nn.Linear(5, 4), nn.LazyBatchNorm1d(affine=False)),
}


@pytest.mark.parametrize("make", LAZY.values(), ids=LAZY)
def test_lazy_modules_are_refused_until_they_have_shapes(make):
    model = make()
    with pytest.raises(ValueError, match="a lazy module has no parameters before its first input"):
        PerExampleClip(model, C)
    assert not model._forward_pre_hooks
    model(torch.ones(4, 5))
    PerExampleClip(model, C).close()
    check_initialized(model)


ROWS, CLASSES = torch.randn(6, 8, generator=torch.Generator().manual_seed(1)).double(), torch.tensor([0, 1, 2, 2, 1, 0])
WEIGHTS = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)


def released(of: Callable[..., Tensor], model: nn.Module, *data: Tensor, public: Sequence[Tensor]) -> Sequence[Tensor]:
    declared = {"expected_batch_size": 1, "sampling_rate": 1.0, "noise_multiplier": 1e-6, "steps": 1}
    with start(model, data, clip={"max_grad_norm": 1.0}, **declared) as run:
        for batch in run.batches():
            for part in batch.microbatches(4):
                run.accumulate(of, *part, public=public)
            run.optimizer.step()
    return [p.grad for p in model.parameters() if p.grad is not None]


def normal_prior(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return kl_divergence(Normal(m(x), F.softplus(m(x))), Normal(torch.zeros(3), torch.ones(3))).sum()


def normal_with_a_number(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return -Independent(Normal(m(x), 1.0), 1).log_prob(x[:, :3]).sum()


def weighted_classes(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(m(x), y, weight=WEIGHTS, label_smoothing=0.1)


def number_at_a_mask(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    kept = x.clone()
    kept[x < 0] = -2.0
    outputs = m(kept) * 1.0
    outputs[outputs.sum(1) > 0] = 0.5
    return F.cross_entropy(outputs + m(x), y)


def penalised_gradient(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(m(x), y) + torch.func.grad(lambda z: m(z).pow(2).sum())(x).norm()


LOSSES = [normal_prior, normal_with_a_number, weighted_classes, number_at_a_mask, penalised_gradient]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda f: f.__name__)
def test_sum_of_single_examples(loss):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    before = Distribution._validate_args
    sums = released(loss, copy.deepcopy(model), ROWS, CLASSES, public=[WEIGHTS])
    assert Distribution._validate_args == before
    expected = [*clipped_sum(model, loss, (ROWS, CLASSES), 1.0).sums.values()]
    torch.testing.assert_close(sums, expected, rtol=1e-4, atol=1e-4)
