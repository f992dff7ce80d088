"""Checkpointed blocks inside of ``vmap``: nothing of them is kept, and they come out the same when recomputed."""

import gc
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from model_cases import Forward
from noisette.clipping.engines import BookKeeping, ReweightGP
from noisette.core.backward import per_example_gradients
from noisette.core.clip import ClippedSum, Clipping, Engine
from noisette.core.trace import ForwardPass
from noisette.errors import PrivacyError
from noisette.rules.recomputed_blocks import _Block
from oracle import example_gradients
from small_loop import clipped_by

ENGINES = [BookKeeping(), ReweightGP()]


def block(width: int, drop: float) -> Any:
    def forward(m: Forward, x: Tensor) -> Tensor:
        return x + m.down(m.drop(F.gelu(m.up(m.norm(x)))))

    up, down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
    return Forward(forward, norm=nn.LayerNorm(width), up=up, down=down, drop=nn.Dropout(drop))


def plain(m: Forward, x: Tensor) -> Tensor:
    for each in m.blocks:
        x = each(x)
    return x


def checkpointed(m: Forward, x: Tensor) -> Tensor:
    for each in m.blocks:
        x = checkpoint(each, x, use_reentrant=False)
    return x


def net(between: Callable[[Any, Tensor], Tensor] = checkpointed, drop: float = 0.0) -> nn.Module:
    """Two blocks that share a weight, between an embedding and the same embedding."""
    torch.manual_seed(0)
    words, blocks = nn.Embedding(11, 6), nn.ModuleList([block(6, drop), block(6, drop)])
    blocks[1].up.weight = blocks[0].up.weight
    return Forward(lambda m, ids: F.linear(between(m, m.words(ids)), m.words.weight), words=words, blocks=blocks)


def of_words(model: nn.Module, ids: Tensor) -> Tensor:
    return F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())


def summed(model: nn.Module, engine: Engine, ids: Tensor) -> Tensor:
    return clipped_by(model, 0.05, of_words, (ids,), engine=engine, capture="eager")


@pytest.mark.parametrize("engine", ENGINES, ids=lambda e: type(e).__name__)
def test_exact(engine: Engine) -> None:
    ids, model = torch.randint(0, 11, (7, 5)), net().double()

    def losses(model: nn.Module, ids: Tensor) -> Tensor:
        return F.cross_entropy(model(ids).transpose(1, 2), ids, reduction="none").mean(1)

    truth = example_gradients(net(plain).double(), losses, (ids,)).clipped(0.05).vector
    torch.testing.assert_close(summed(model, engine, ids), truth, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("lower", [False, True], ids=["single", "autocast"])
def test_random_numbers_and_precision_are_those_of_the_first_time(engine: Engine, lower: bool) -> None:
    ids = torch.randint(0, 11, (7, 5))
    found: list[Tensor] = []
    for between in (plain, checkpointed):
        model = net(between, drop=0.5)
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=lower):
            found.append(torch.cat([summed(model, engine, ids), torch.rand(3)]))
    assert torch.equal(*found)


class Looking(ReweightGP):
    def __init__(self) -> None:
        self.kept = 0
        self.inside = 0

    def clipped_sum(self, forward: ForwardPass, parameters: Mapping[str, Tensor], clipping: Clipping) -> ClippedSum:
        inside = [use for use in forward.recording.uses if type(use).__name__ == "_UseInBlock"]
        self.inside, self.kept = len(inside), sum(len(use.args) for use in inside)
        return super().clipped_sum(forward, parameters, clipping)


def test_nothing_of_a_block_is_kept() -> None:
    looking = Looking()
    summed(net(), looking, torch.randint(0, 11, (7, 5)))
    assert looking.inside >= 2 * 3
    assert looking.kept == 0
    gc.collect()
    assert not [thing for thing in gc.get_objects() if type(thing) is _Block]


class Twice:
    def clipped_sum(self, forward: ForwardPass, parameters: Mapping[str, Tensor], clipping: Clipping) -> ClippedSum:
        per_example_gradients(
            forward,
            parameters,
            lambda forms: {name: form.squared_norms() for name, form in forms.items()},
            retain_graph=True,
        )
        return BookKeeping().clipped_sum(forward, parameters, clipping)


def test_arguments_that_are_asked_for_twice_are_refused() -> None:
    with pytest.raises(PrivacyError, match="turn the checkpoints off"):
        summed(net(), Twice(), torch.randint(0, 11, (7, 5)))


def test_a_block_that_comes_out_different_is_refused() -> None:
    def changing(m: Any, x: Tensor) -> Tensor:
        blocks = iter([m.blocks[0], nn.Sequential(*m.blocks)])
        return checkpoint(lambda x: next(blocks)(x), x, use_reentrant=False)

    with pytest.raises(PrivacyError, match="did not do the same"):
        summed(net(changing), BookKeeping(), torch.randint(0, 11, (7, 5)))


def test_an_argument_that_was_written_to_is_refused() -> None:
    def writing(m: Any, x: Tensor) -> Tensor:
        y = checkpoint(m.blocks[0], x := x * 1, use_reentrant=False)
        x.mul_(2)
        return y

    with pytest.raises(PrivacyError, match="changed in place"):
        summed(net(writing), BookKeeping(), torch.randint(0, 11, (7, 5)))
