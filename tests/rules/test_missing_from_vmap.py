"""Masks, packed sequences and gradients within a loss: vectorised, and exact against a loop over single examples."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from model_cases import Forward
from noisette import OneByOneWarning, PerExampleClip
from oracle import clipped_sum

F = nn.functional
LENGTHS = torch.tensor([3, 1, 4, 3, 1, 4, 4, 3])
SEQUENCES = torch.randn(8, 5, 4, generator=torch.Generator().manual_seed(1))
VECTORS = SEQUENCES[:, 0]
MASKS = torch.tensor([[1, 0, 1], [0, 1, 1], [0, 0, 0], [1, 0, 1], [1, 1, 1], [0, 0, 0], [1, 1, 1], [1, 1, 0]]).bool()
LABELS = torch.tensor([[1, 2, 0], [3, 0, 0], [2, 1, 3], [1, 0, 0], [2, 2, 0], [3, 1, 0], [1, 1, 0], [2, 0, 0]])
LABEL_LENGTHS = torch.tensor([2, 1, 3, 1, 2, 2, 2, 1])


def net() -> nn.Module:
    torch.manual_seed(0)
    f = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    lstm = nn.LSTM(4, 3, num_layers=2, bidirectional=True, batch_first=True)
    return Forward(lambda m, x: m.f(x), f=f, lstm=lstm, gru=nn.GRU(4, 3))


def selected(m: Any, x: Tensor, mask: Tensor) -> Tensor:
    h = m(x)
    return h[mask].square().sum() + h[0, mask[0]].sum() + h.masked_select(mask).exp().sum()


def by_places(m: Any, x: Tensor, mask: Tensor) -> Tensor:
    h, at = m(x), mask.nonzero()
    return h[at[:, 0], at[:, 1]].exp().sum() + h[torch.where(condition=mask)].square().sum()


def written(m: Any, x: Tensor, mask: Tensor) -> Tensor:
    h = m(x)
    out = torch.zeros_like(h)
    out[mask] = h[mask].exp()
    out[~mask] = 0.5
    return (out * h).sum()


def transcribed(m: Any, x: Tensor, y: Tensor, n: Tensor) -> Tensor:
    """CTC of labels without their padding, as speech models of transformers compute it."""
    scores = F.pad(m(x), (0, 1)).log_softmax(-1).transpose(0, 1)
    return F.ctc_loss(scores, y.masked_select(torch.arange(3) < n[:, None]), torch.full((1,), 5), n)


def packed(m: Any, x: Tensor, n: Tensor) -> Tensor:
    output, (h, _) = m.lstm(pack_padded_sequence(x, n, batch_first=True, enforce_sorted=False))
    padded, lengths = pad_packed_sequence(output, batch_first=True, total_length=5)
    return padded.square().sum() / lengths.sum() + h.sum()


def packed_by_list(m: Any, x: Tensor, n: Tensor) -> Tensor:
    output, h = m.gru(pack_padded_sequence(x.transpose(0, 1), n.tolist()))
    return pad_packed_sequence(output)[0].exp().sum() + h.sum()


def gradient_penalty(m: Any, x: Tensor, z: Tensor) -> Tensor:
    between = (0.3 * x + 0.7 * z).requires_grad_()
    [slope] = torch.autograd.grad(m(between).sum(), between, create_graph=True)
    return (m(x) - m(z)).mean() + (slope.norm(2, dim=1) - 1).square().mean()


def second_derivative(m: Any, x: Tensor) -> Tensor:
    x = x.clone()
    x.requires_grad = True
    y = m(x)
    [first] = torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)
    [second] = torch.autograd.grad([first], [x], [torch.ones_like(first)], create_graph=True)
    return (second + y.sum()).square().mean()


def adversarial(m: Any, x: Tensor) -> Tensor:
    moved = x.clone().requires_grad_()
    [slope] = torch.autograd.grad(m(moved).square().sum(), moved)
    return m(x + 0.1 * slope.sign()).square().sum()


def learned_to_learn(m: Any, x: Tensor, z: Tensor) -> Tensor:
    weights = dict(m.f.named_parameters())
    for _ in range(2):
        loss = functional_call(m.f, weights, (x,)).square().sum()
        slopes = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        weights = {name: p - 0.1 * g for (name, p), g in zip(weights.items(), slopes, strict=True)}
    return functional_call(m.f, weights, (z,)).exp().sum()


def learned_by_functions(m: Any, x: Tensor, z: Tensor) -> Tensor:
    weights = dict(m.f.named_parameters())
    slopes = torch.func.grad(lambda p: functional_call(m.f, p, (x,)).square().sum())(weights)
    each = torch.func.vmap(lambda row: (row * x[0]).sum().sin())(m.f[0].weight)
    moved = {name: p - 0.1 * slopes[name] for name, p in weights.items()}
    return functional_call(m.f, moved, (z,)).exp().sum() + each.sum()


def own_gradient(m: Any, x: Tensor) -> Tensor:
    weight = m.f[0].weight
    [slope, unused] = torch.autograd.grad(
        m(x).sum(), [weight, m.gru.weight_hh_l0], create_graph=True, allow_unused=True
    )
    assert unused is None
    return (slope * weight).sum() + slope.square().sum()


def of_a_leaf(m: Any, x: Tensor) -> Tensor:
    """Of a latent code that starts the same for each example, and of a perturbation; in a microbatch of 8 by 8."""
    code, moved = torch.zeros(1, 4, requires_grad=True), torch.zeros_like(x, requires_grad=True)
    [of_code, of_moved] = torch.autograd.grad(
        [m(x + code + moved).square().sum()], [code, moved], grad_outputs=[None], create_graph=True
    )
    return m(x - 0.1 * of_code).square().sum() + of_moved.square().sum() + (code.T * x).sum()


def of_nothing(m: Any, x: Tensor, mask: Tensor) -> Tensor:
    scores = (x[:, :, None] * m(x)[:, None, :]).flatten(0, 1)[:3]
    return F.cross_entropy(scores[mask[0]], torch.arange(3)[mask[0]], reduction="sum")


CASES: dict[Callable[..., Tensor], tuple[Tensor, ...]] = {
    **dict.fromkeys((selected, by_places, written, of_nothing), (VECTORS, MASKS)),
    transcribed: (SEQUENCES, LABELS, LABEL_LENGTHS),
    **dict.fromkeys((packed, packed_by_list), (SEQUENCES, LENGTHS)),
    **dict.fromkeys((gradient_penalty, learned_to_learn, learned_by_functions), (VECTORS, VECTORS.flip(0))),
    **dict.fromkeys((second_derivative, adversarial, own_gradient, of_a_leaf), (VECTORS,)),
}


def check(loss: Callable[..., Tensor], batch: tuple[Tensor, ...], capture: Any = "auto", calls: int = 1) -> None:
    """The sum of the last call is that of single examples."""
    model, given = net().double(), [x.double() if x.is_floating_point() else x for x in batch]
    clip = PerExampleClip(model, 0.5, capture=capture)
    for _ in range(calls):
        clip.pop_sums()
        clip.accumulate(loss, *given)
    [total] = clip.pop_sums()
    expected = clipped_sum(model, loss, given, 0.5).sums
    torch.testing.assert_close(dict(zip(clip.parameters, total.grads, strict=True)), expected)


@pytest.mark.parametrize("capture", ["eager", "graph"])
@pytest.mark.parametrize("loss", CASES, ids=lambda loss: loss.__name__)
@pytest.mark.filterwarnings("ignore::noisette.capture.captured.CaptureWarning")
def test_vectorised_and_exact(loss: Callable[..., Tensor], capture: str) -> None:
    check(loss, CASES[loss], capture, calls=3)  # the third by a graph, where there is one


def of_another_network(m: Any, x: Tensor) -> Tensor:
    """Gradients of a network that is not trained, for records and for what is made of them."""
    [wanted] = torch.autograd.grad(OTHER(x[:, :3]).square().sum(), OTHER.weight)
    [slope] = torch.autograd.grad(OTHER(m(x)).square().sum(), OTHER.weight, create_graph=True)
    return (slope - wanted).square().sum()


def of_several_sequences(m: Any, x: Tensor, n: Tensor) -> Tensor:
    both = torch.cat([x, x.flip(1)])
    return m.gru(pack_padded_sequence(both, torch.cat([n, n]), batch_first=True))[1].square().sum()


def repeated(m: Any, x: Tensor, n: Tensor) -> Tensor:
    return m(x[0].repeat_interleave(torch.cat([n, n, n, n, n]), 0)).square().sum()


OTHER = nn.Linear(3, 3).double()
ONE_BY_ONE: dict[Callable[..., Tensor], tuple[Tensor, ...]] = {
    of_another_network: (VECTORS,),
    **dict.fromkeys((of_several_sequences, repeated), (SEQUENCES, LENGTHS)),
}


@pytest.mark.parametrize("loss", ONE_BY_ONE, ids=lambda loss: loss.__name__)
def test_what_remains_is_computed_one_by_one(loss: Callable[..., Tensor]) -> None:
    with pytest.warns(OneByOneWarning):
        check(loss, ONE_BY_ONE[loss])


def test_one_microbatch_of_different_masks_leaves_the_others_together() -> None:
    clip = PerExampleClip(net(), 1.0)
    with pytest.warns(OneByOneWarning):
        clip.accumulate(selected, VECTORS[:3], torch.ones(3, 3).tril().bool())
    clip.accumulate(selected, VECTORS, MASKS)


def test_what_cannot_be_packed_is_said_as_torch_says_it() -> None:
    clip = PerExampleClip(net(), 1.0)
    with pytest.raises(ValueError, match="length of a packed sequence is zero"):
        clip.accumulate(packed, SEQUENCES, LENGTHS * 0)


@torch.library.custom_op("noisette_tests::doubled", mutates_args=())
def doubled(x: Tensor) -> Tensor:
    return 2 * x


def test_torch_says_nothing_of_an_operation_without_a_rule_for_vmap(capfd: pytest.CaptureFixture[str]) -> None:
    doubled.register_autograd(lambda ctx, dy: 2 * dy)
    check(lambda m, x: doubled(m(x)).square().sum(), (VECTORS,))
    assert "performance drop" not in "".join(capfd.readouterr())
