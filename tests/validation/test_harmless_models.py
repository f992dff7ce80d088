"""Harmless models of many kinds: each trains by the batched way, exactly as a loop over single examples says."""

from __future__ import annotations

import random
from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.checkpoint import checkpoint

from asserted_loop import AssertedLoop, Custom, call_with_all, records
from noisette import PerExampleClip, PrivacyError
from noisette.clipping.engines import PerExampleLoop, Vmap


@dataclass
class Harmless:
    """A model, the shape of a record or its columns, and whether the oracle can repeat it."""

    model: Callable[[], nn.Module]
    shape: tuple[int, ...] | Callable[[], tuple[Tensor, ...]] = (8,)
    random: bool = False  # then training must work, but no oracle repeats its numbers
    scores: Callable[..., Tensor] = call_with_all
    engine: Any = None

    def columns(self) -> tuple[Tensor, ...]:
        if callable(self.shape):
            return (*self.shape(), torch.arange(8) % 3)
        return records(*self.shape)


def custom(function: Callable[..., Any], **parts: Any) -> Callable[[], nn.Module]:
    """A model whose parts are made anew: each is a function without arguments."""
    return lambda: Custom(function, **{name: part() for name, part in parts.items()})


def linear(n: int, m: int = 3) -> Callable[[], nn.Module]:
    return lambda: nn.Linear(n, m)


SEQUENCE = (5, 8)


def attend(m: Any, x: Tensor) -> Tensor:
    return m.out(m.attention(x, x, x)[0].mean(1))


def attend_time_first(m: Any, x: Tensor) -> Tensor:
    x = x.transpose(0, 1)
    return m.out(m.attention(x, x, x)[0].mean(0))


def encoder(**settings: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **settings)
    return nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Flatten(), nn.Linear(40, 3))


def last_state(m: Any, x: Any) -> Tensor:
    return m.out(m.recurrent(x)[0][:, -1])


def lengths() -> tuple[Tensor, Tensor]:
    return records(*SEQUENCE)[0], torch.tensor([5, 3, 2, 4, 1, 5, 2, 3])


def packing(m: Any, x: Tensor, lengths: Any) -> Tensor:
    return m.out(m.recurrent(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))[1][-1])


def packed(x: Tensor, lengths: Tensor) -> Any:
    return pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)


def reparametrised(m: Any, x: Tensor) -> Tensor:
    mean, spread = m.mean(x), m.spread(x).exp()
    return m.out(mean + torch.randn_like(mean) * spread + torch.normal(0.0, 0.1, mean.shape))


def sampled(m: Any, x: Tensor) -> Tensor:
    drawn = torch.multinomial(m.mean(x).softmax(1), 2)
    return m.out(m.words(drawn).sum(1))


def cropped(m: Any, x: Tensor, offset: Callable[[], int]) -> Tensor:
    i, j = offset(), offset()
    return m.out(m.conv(x[:, :, i : i + 6, j : j + 6]).mean((2, 3)))


def cropped_each(m: Any, x: Tensor) -> Tensor:
    rows = [row[:, (i := random.randint(0, 3)) : i + 6, (j := int(torch.randint(0, 4, ()))) : j + 6] for row in x]
    return m.out(m.conv(torch.stack(rows)).mean((2, 3)))


def sparse_experts(m: Any, x: Tensor) -> Tensor:
    weight, chosen = m.router(x).softmax(1).max(1)
    outputs = [e(x) * (weight * (chosen == k)).unsqueeze(1) for k, e in enumerate(m.experts)]
    return m.out(torch.stack(outputs).sum(0))


def zeroed(layer: nn.Linear) -> nn.Linear:
    nn.init.zeros_(layer.weight)
    return layer


def adapted(m: Any, x: Tensor) -> Tensor:
    return m.out(m.frozen(x) + m.b(m.a(x)))


@dataclass
class Inputs:
    x: Tensor
    mask: Tensor
    name: str = "batch"


@dataclass
class Outputs:
    logits: Tensor
    hidden: Tensor


def masked(m: Any, x: Tensor, mask: Tensor) -> Tensor:
    return m.out((m.first(x) * mask.unsqueeze(-1)).sum(1))


def masks() -> tuple[Tensor, Tensor]:
    return records(*SEQUENCE)[0], (torch.arange(40).reshape(8, 5) % 3 > 0).float()


def of_dataclass(m: Any, batch: Inputs) -> Outputs:
    return Outputs(masked(m, batch.x, batch.mask), m.first(batch.x))


def of_mapping(m: Any, batch: UserDict[str, Tensor]) -> UserDict[str, Tensor]:
    return UserDict(logits=masked(m, batch["x"], batch["mask"]))


def in_range(m: Any, x: Tensor) -> Tensor:
    if x.min() < 0 or x.max() > 1:
        raise ValueError("values outside of [0, 1]")
    return m.out(m.first(x).tanh())


def words(m: Any, ids: Tensor) -> Tensor:
    assert ids.min() >= 0
    assert ids.max() < 10
    return m.out(m.words(ids).mean(1))


def cells(m: Any, x: Tensor) -> Tensor:
    state = torch.zeros(len(x), 6).to(x.dtype)
    for t in range(x.shape[1]):
        state = m.cell(x[:, t], state)
    return m.out(state)


def unused(m: Any, x: Tensor) -> Tensor:
    return m.out(x)


def times_zero(m: Any, x: Tensor) -> Tensor:
    return m.out(x) + 0 * m.other.weight.sum()


def recomputed(m: Any, x: Tensor) -> Tensor:
    return m.out(checkpoint(m.first, x, use_reentrant=False))


def deep() -> nn.Module:
    return nn.Sequential(*[layer for _ in range(12) for layer in (nn.Linear(8, 8), nn.ReLU())], nn.Linear(8, 3))


TABLE = {"words": lambda: nn.Embedding(10, 8), "out": linear(8)}
IMAGE = (3, 9, 9)
CONV = {"conv": lambda: nn.Conv2d(3, 4, 3), "out": linear(4)}
BODY = {"first": linear(8, 8), "out": linear(8)}


def attention(**settings: Any) -> dict[str, Any]:
    return {"attention": lambda: nn.MultiheadAttention(8, 2, **settings), "out": linear(8)}


def recurrent(kind: type[nn.Module], **settings: Any) -> dict[str, Any]:
    return {"recurrent": lambda: kind(8, 6, batch_first=True, **settings), "out": linear(6)}


ZOO = {
    "attention": Harmless(custom(attend, **attention(batch_first=True)), SEQUENCE),
    "attention with dropout": Harmless(
        custom(attend, **attention(batch_first=True, dropout=0.3)), SEQUENCE, random=True
    ),
    "attention, time first": Harmless(custom(attend_time_first, **attention(dropout=0.3)), SEQUENCE, random=True),
    "encoder": Harmless(lambda: encoder(dropout=0.0), SEQUENCE),
    "encoder with dropout": Harmless(encoder, SEQUENCE, random=True),
    "encoder, norm first": Harmless(lambda: encoder(norm_first=True), SEQUENCE, random=True),
    "decoder": Harmless(
        custom(
            lambda m, x: m.out(m.decoder(x, x).mean(1)),
            decoder=lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), 1),
            out=linear(8),
        ),
        SEQUENCE,
        random=True,
    ),
    "two-layer LSTM with dropout": Harmless(
        custom(last_state, **recurrent(nn.LSTM, num_layers=2, dropout=0.5)), SEQUENCE, random=True
    ),
    "two-layer GRU with dropout": Harmless(
        custom(last_state, **recurrent(nn.GRU, num_layers=2, dropout=0.5)), SEQUENCE, random=True
    ),
    "recurrent cells": Harmless(custom(cells, cell=lambda: nn.GRUCell(8, 6), out=linear(6)), SEQUENCE),
    "lengths as a tensor": Harmless(custom(packing, **recurrent(nn.GRU)), lengths),
    "lengths as a list": Harmless(
        custom(packing, **recurrent(nn.GRU)), lengths, scores=lambda m, x, n: m(x, n.tolist())
    ),
    "packed inputs": Harmless(
        custom(lambda m, x: m.out(m.recurrent(x)[1][-1]), **recurrent(nn.GRU)),
        lengths,
        scores=lambda m, x, n: m(packed(x, n)),
    ),
    "RReLU": Harmless(lambda: nn.Sequential(nn.Linear(8, 8), nn.RReLU(), nn.Linear(8, 3)), random=True),
    "Gumbel softmax": Harmless(custom(lambda m, x: m.out(F.gumbel_softmax(m.first(x), tau=0.7)), **BODY), random=True),
    "hard Gumbel softmax": Harmless(
        custom(lambda m, x: m.out(F.gumbel_softmax(m.first(x), hard=True)), **BODY), random=True
    ),
    "reparametrised": Harmless(
        custom(reparametrised, mean=linear(8, 4), spread=linear(8, 4), out=linear(4)), random=True
    ),
    "uniform_ and exponential_": Harmless(
        custom(
            lambda m, x: m.out(x + torch.empty_like(x).uniform_(-0.1, 0.1) * x.new_empty(len(x), 1).exponential_()),
            out=linear(8),
        ),
        random=True,
    ),
    "multinomial": Harmless(custom(sampled, mean=linear(8, 10), **TABLE), random=True),
    "randperm over positions": Harmless(
        custom(lambda m, x: m.out(x[:, torch.randperm(5)[:3]].flatten(1)), out=linear(24)), SEQUENCE, random=True
    ),
    "crops": Harmless(
        custom(lambda m, x: cropped(m, x, lambda: int(torch.randint(0, 4, ()))), **CONV), IMAGE, random=True
    ),
    "crops by Python": Harmless(
        custom(lambda m, x: cropped(m, x, lambda: random.randrange(4)), **CONV), IMAGE, random=True
    ),
    "crops by NumPy": Harmless(
        custom(lambda m, x: cropped(m, x, lambda: int(np.random.randint(0, 4))), **CONV), IMAGE, random=True
    ),
    "a crop for each example": Harmless(custom(cropped_each, **CONV), IMAGE, random=True),
    "layers left out at random": Harmless(
        custom(lambda m, x: m.out(x + m.first(x) if torch.rand(()) > 0.2 else x), **BODY), random=True
    ),
    "dropout, recomputed": Harmless(
        custom(recomputed, first=lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)), out=linear(8)), random=True
    ),
    "values in a range": Harmless(custom(in_range, **BODY), lambda: (records(8, positive=True)[0].clamp(max=1),)),
    "identifiers in a range": Harmless(custom(words, **TABLE), lambda: (torch.arange(40).reshape(8, 5) % 10,)),
    "dataclasses": Harmless(custom(of_dataclass, **BODY), masks, scores=lambda m, x, k: m(Inputs(x, k)).logits),
    "dataclasses, repeated": Harmless(
        custom(of_dataclass, **BODY), masks, scores=lambda m, x, k: m(Inputs(x, k)).logits, engine=Vmap()
    ),
    "mappings": Harmless(custom(of_mapping, **BODY), masks, scores=lambda m, x, k: m(UserDict(x=x, mask=k))["logits"]),
    "rare experts": Harmless(
        custom(
            sparse_experts,
            router=linear(8, 16),
            experts=lambda: nn.ModuleList([nn.Linear(8, 8) for _ in range(16)]),
            out=linear(8),
        )
    ),
    "adapters whose second matrix is zero": Harmless(
        custom(
            adapted,
            frozen=lambda: nn.Linear(8, 8).requires_grad_(False),
            a=linear(8, 2),
            b=lambda: zeroed(nn.Linear(2, 8, bias=False)),
            out=linear(8),
        )
    ),
    "a last layer of zeros": Harmless(lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(), zeroed(nn.Linear(8, 3)))),
    "an unused layer": Harmless(custom(unused, out=linear(8), other=linear(3))),
    "a layer times zero": Harmless(custom(times_zero, out=linear(8), other=linear(3))),
    "deep": Harmless(deep),
    "weight norm": Harmless(lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(8, 8)), nn.Linear(8, 3))),
    "Fourier": Harmless(
        custom(lambda m, x: m.out(torch.fft.rfft(m.first(x)).abs()), first=linear(8, 8), out=linear(5))
    ),
}


@pytest.mark.filterwarnings("ignore:the preflight found no public inputs with a gradient")
@pytest.mark.parametrize("harmless", ZOO.values(), ids=ZOO)
def test_two_steps_are_those_of_single_examples(harmless: Harmless) -> None:
    torch.manual_seed(2)
    loop = AssertedLoop(harmless.model(), harmless.columns(), harmless.scores, engine=harmless.engine)
    loop.train(compare=not harmless.random)
    assert loop.steps_taken == 2
    assert all(error < 1e-4 for error in loop.errors)


def test_parameters_that_were_not_checked_are_named() -> None:
    model = ZOO["a layer times zero"].model()
    with pytest.warns(UserWarning, match=r"no public inputs with a gradient in other\.weight"):
        AssertedLoop(model, records(8)).train()


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_lazy_modules_are_called_once_first() -> None:
    model = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(3))
    with pytest.raises(ValueError, match=r"0\.weight, .* a lazy module has no parameters before its first input"):
        PerExampleClip(model, 1.0)
    model(torch.zeros(1, 8))
    assert max(AssertedLoop(model, records(8)).train(compare=True).errors) < 1e-4


def test_cached_parametrizations_are_computed_once_a_call() -> None:
    model = ZOO["weight norm"].model()
    loop = AssertedLoop(model, records(8))
    with parametrize.cached():
        loop.train()
    plain = AssertedLoop(model, records(8)).train(compare=True)
    assert loop.steps_taken == 2
    assert max(plain.errors) < 1e-4


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_part_in_torchscript_names_the_engine_that_takes_it() -> None:
    def model() -> nn.Module:
        scripted = torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.Tanh()))
        return nn.Sequential(nn.Linear(8, 8), scripted, nn.Linear(8, 3))

    with pytest.raises(PrivacyError, match=r"TorchScript are not recorded; engine=noisette\.engines\.PerExampleLoop"):
        AssertedLoop(model(), records(8)).train()
    assert AssertedLoop(model(), records(8), engine=PerExampleLoop()).train().steps_taken == 2


def test_batches_of_a_tokenizer() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, pad_token_id=0
    )
    torch.manual_seed(0)
    model = transformers.LlamaForSequenceClassification(config)
    ids = torch.arange(48).reshape(8, 6) % 29 + 1
    batch = transformers.BatchEncoding
    scores: Any = lambda m, ids: m(**batch({"input_ids": ids, "attention_mask": torch.ones_like(ids)})).logits  # noqa: E731
    loop = AssertedLoop(model, (ids, torch.arange(8) % 2), scores)
    assert max(loop.train(compare=True).errors) < 1e-4
