"""Sums of single examples by every engine, layer, precision and captured step, also on a GPU, by its own code."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from captured_check import assert_captured
from device_check import accumulated, assert_close, both_ways, check_on, on
from engine_check import ENGINES, every_engine
from model_cases import CASES, Case, Forward, cross_entropy, floats, ids, labelled, squares
from noisette import PerExampleClip
from noisette.clipping.engines import BookKeeping, PerExampleLoop, ReweightGP
from noisette.core.clip import Engine
from noisette.core.release import ROUNDING
from oracle import example_gradients
from small_loop import loss

F = nn.functional
QUICK: tuple[Engine, ...] = (BookKeeping(), ReweightGP(), PerExampleLoop())
BOTH = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)


def last(m: Forward, x: Tensor) -> Tensor:
    return m.head(m.layer(x)[0][:, -1])


def recurrent(layer: nn.Module, width: int) -> nn.Module:
    return Forward(last, layer=layer, head=nn.Linear(width, 4))


@BOTH
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers(device: torch.device, kind: type[nn.RNNBase], dtype: torch.dtype) -> None:
    both_ways(device, recurrent(kind(5, 7, batch_first=True), 7), squares, floats(6, 5)(5), dtype, *QUICK)


def test_backward_twice_through_a_recurrent_layer(device: torch.device) -> None:
    """cuDNN keeps what the backward pass needs only while training, and a second pass needs it again."""
    model = recurrent(nn.LSTM(5, 7, batch_first=True), 7)
    both_ways(device, model.train(), squares, floats(6, 5)(3), torch.float32, ReweightGP())
    both_ways(device, model.eval(), squares, floats(6, 5)(3), torch.float32, ReweightGP())


def convolutions() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(4, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 8, 3, stride=2, groups=2, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 4, 4)),
    )


@BOTH
@pytest.mark.parametrize("weights", [True, False], ids=["weights", "inputs alone"])
def test_channels_last(any_device: torch.device, weights: bool, dtype: torch.dtype) -> None:
    x, y = labelled(4, 11, 11)(5)
    model = convolutions()
    if weights:
        model = model.to(memory_format=torch.channels_last)
    both_ways(any_device, model, cross_entropy, (x.to(memory_format=torch.channels_last), y), dtype, *ENGINES)


def attend(m: Forward, x: Tensor, *, causal: bool = False) -> Tensor:
    q, k, v = (layer(x).view(*x.shape[:2], 2, -1).transpose(1, 2) for layer in (m.q, m.k, m.v))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return m.norm(x + m.out(out.transpose(1, 2).reshape(x.shape))).mean(1)


def attention(causal: bool = False) -> nn.Module:
    layers = {name: nn.Linear(32, 32) for name in ("q", "k", "v", "out")}
    return Forward(partial(attend, causal=causal), norm=nn.LayerNorm(32), **layers)


@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_by_each_backend(any_device: torch.device, backend: SDPBackend, causal: bool) -> None:
    """Without one that does not compute in single precision, or not on this device, another one is taken."""
    with sdpa_kernel([backend, SDPBackend.MATH], set_priority=True):
        both_ways(any_device, attention(causal), squares, floats(9, 32)(4), torch.float32, *QUICK)


def test_layers_of_a_transformer(any_device: torch.device) -> None:
    """Attention in a module, embeddings, and the weight of the embedding once more at the end."""

    def forward(m: Forward, words: Tensor) -> Tensor:
        x = m.table(words) + m.places(torch.arange(words.shape[1], device=words.device))
        return F.linear(m.layer(x), m.table.weight).mean(1)

    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = Forward(forward, table=nn.Embedding(11, 8), places=nn.Embedding(6, 8), layer=layer)
    both_ways(any_device, model, squares, ids(6)(4), torch.float64, *QUICK)


# Their forward passes make tensors on the processor.
ON_PROCESSOR = {"python-loop recurrent", "attention", "weight put together"}
every_case = pytest.mark.parametrize(
    "case", [case for case in CASES if case.name not in ON_PROCESSOR], ids=lambda case: case.name.replace(" ", "-")
)


@every_case
def test_double_precision(any_device: torch.device, case: Case) -> None:
    check_on(any_device, case, ENGINES, torch.float64)


@every_case
def test_single_precision(gpu: torch.device, case: Case) -> None:
    check_on(gpu, case, ENGINES, torch.float32)


EXAMPLES = 6


def model_of(device: torch.device) -> nn.Module:
    body = [nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.GELU(), nn.Flatten(2), nn.LayerNorm(36)]
    return nn.Sequential(*body, nn.Linear(36, 16), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4)).to(device)


def batch(device: torch.device, examples: int = EXAMPLES) -> tuple[Tensor, Tensor]:
    return torch.randn(examples, 3, 6, 6).to(device), (torch.arange(examples) % 4).to(device)


@every_engine
def test_autocast_is_close_to_single_precision(device: torch.device, engine: Engine) -> None:
    model, (x, y) = model_of(device), batch(device)
    sums = []
    for lower in (False, True):
        clip = PerExampleClip(model, 0.5, engine=engine)
        with torch.autocast(device.type, torch.bfloat16, enabled=lower):
            clip.accumulate(cross_entropy, x, y)
        [total] = clip.pop_sums()
        assert all(g.dtype in (torch.float32, torch.float64) for g in total.grads)
        sums.append(torch.cat([g.flatten().double() for g in total.grads]))
    assert float((sums[1] - sums[0]).norm()) <= 0.05 * 0.5 * EXAMPLES**0.5


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16], ids=str)
def test_one_example_stays_within_the_bound(device: torch.device, weights: torch.dtype, scale: float) -> None:
    """Measured in double precision on what the noise is added to."""
    model, (x, y) = model_of(device).to(weights), batch(device, 1)
    with torch.no_grad():
        model[-1].weight.mul_(scale)
    for bound in (1e-3, 1.0):
        clip = PerExampleClip(model, bound, engine=BookKeeping())
        with torch.autocast(device.type, torch.bfloat16):
            clip.accumulate(cross_entropy, x.to(weights), y)
        [total] = clip.pop_sums()
        assert 0 < float(torch.cat([g.flatten().double() for g in total.grads]).norm()) <= bound * (1 + ROUNDING)


BOUND = 0.5


MODELS = {
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(108, 16), nn.Tanh(), nn.Linear(16, 4)),
    "cnn": lambda: nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32, 4))
    ),
    "lstm": lambda: Forward(lambda m, x: last(m, x[:, 0]), layer=nn.LSTM(6, 8, batch_first=True), head=nn.Linear(8, 4)),
}


@pytest.mark.parametrize("way", ["graph", pytest.param("compiled", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", MODELS)
def test_steps_are_those_of_single_examples(device: torch.device, name: str, way: str) -> None:
    model = MODELS[name]().to(device)
    clip = PerExampleClip(model, BOUND, capture=way)  # pyright: ignore[reportArgumentType]
    for size in (9, 9, 10, 9, 9):
        inputs = torch.randn(size, 3, 6, 6), torch.arange(size) % 4
        found = accumulated(clip, loss, on(device, inputs))
        truth = example_gradients(model.cpu(), cross_entropy, inputs).clipped(BOUND)
        model.to(device)
        assert_close(found, truth, BOUND, 1e-4)
    assert_captured(clip, way)
