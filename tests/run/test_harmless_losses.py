"""Losses of one example that people write, and that harm nothing: accepted, with the sum of single examples."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Normal, kl_divergence
from torch.nn import functional as F

from noisette import OneByOneWarning
from small_loop import start

C = 1.0
X, Y = torch.randn(6, 8, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 2, 1, 0])
WEIGHTS = torch.tensor([1.0, 2.0, 3.0])


def released(
    loss: Callable[..., Tensor], model: nn.Module, *data: Tensor, public: Sequence[Tensor] = ()
) -> Sequence[Tensor]:
    declared = {"expected_batch_size": 1, "sampling_rate": 1.0, "noise_multiplier": 1e-6, "steps": 1}
    with start(model, data, clip={"max_grad_norm": C}, **declared) as run:
        for batch in run.batches():
            for part in batch.microbatches(4):
                run.accumulate(loss, *part, public=public)
            run.optimizer.step()
    return [p.grad for p in model.parameters() if p.grad is not None]


def clipped_sum(loss: Callable[..., Tensor], model: nn.Module, *data: Tensor) -> list[Tensor]:
    parameters = list(model.parameters())
    total = [torch.zeros_like(p) for p in parameters]
    for k in range(len(data[0])):
        gradients = torch.autograd.grad(loss(model, *[tensor[k : k + 1] for tensor in data]), parameters)
        norm = torch.cat([g.flatten() for g in gradients]).norm()
        total = [s + g * min(1.0, float(C / norm)) for s, g in zip(total, gradients, strict=True)]
    return total


def normal_prior(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    prior = Normal(torch.zeros(3), torch.ones(3))
    return kl_divergence(Normal(m(x), F.softplus(m(x))), prior).sum()


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
    gradient = torch.func.grad(lambda z: m(z).pow(2).sum())(x)
    return F.cross_entropy(m(x), y) + gradient.norm()


LOSSES = [normal_prior, normal_with_a_number, weighted_classes, number_at_a_mask, penalised_gradient]


def small() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3))


@pytest.mark.parametrize("loss", LOSSES, ids=lambda f: f.__name__)
def test_sum_of_single_examples(loss: Callable[..., Tensor]) -> None:
    model = small()
    before = Distribution._validate_args
    sums = released(loss, copy.deepcopy(model), X, Y, public=[WEIGHTS])
    assert Distribution._validate_args == before
    torch.testing.assert_close(sums, clipped_sum(loss, model, X, Y), rtol=1e-4, atol=1e-4)


def test_packed_sequences_and_gradients_by_autograd_train_one_by_one() -> None:
    lengths = torch.tensor([5, 3, 2, 4, 1, 5])

    def packed(model: nn.Module, x: Tensor, n: Tensor) -> Tensor:
        return model(nn.utils.rnn.pack_padded_sequence(x[:, :, None].repeat(1, 1, 8), n, True, False).data).sum()

    def gradient(model: nn.Module, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        return torch.autograd.grad(model(x).sum(), x, create_graph=True)[0].norm()

    with pytest.warns(OneByOneWarning, match="packs a sequence by the length of an example"):
        sums = released(packed, small(), X, lengths)
    torch.testing.assert_close(sums, clipped_sum(packed, small(), X, lengths), rtol=1e-4, atol=1e-4)
    with pytest.warns(OneByOneWarning, match="asks for a gradient"):
        released(gradient, nn.Linear(8, 3).requires_grad_(True), X)
