"""Checkpointed blocks inside of ``vmap``: nothing of them is kept, and they come out the same when recomputed."""

import gc
from collections.abc import Mapping
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from noisette.clipping.engines import BookKeeping, ReweightGP
from noisette.core.backward import per_example_gradients
from noisette.core.clip import ClippedSum, Clipping, Engine
from noisette.core.trace import ForwardPass
from noisette.errors import PrivacyError
from noisette.rules.recomputed_blocks import _Block
from oracle import example_gradients
from small_loop import clipped_by

ENGINES = [BookKeeping(), ReweightGP()]


class Block(nn.Module):
    def __init__(self, width: int, drop: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.drop(F.gelu(self.up(self.norm(x)))))


class Net(nn.Module):
    """Two blocks that share a weight, between an embedding and the same embedding."""

    def __init__(self, checkpointed: bool, drop: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(11, 6)
        self.blocks = nn.ModuleList([Block(6, drop), Block(6, drop)])
        self.blocks[1].up.weight = self.blocks[0].up.weight
        self.call = partial(checkpoint, use_reentrant=False) if checkpointed else lambda block, x: block(x)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for block in self.blocks:
            x = self.call(block, x)
        return F.linear(x, self.words.weight)


def of_words(model: nn.Module, ids: Tensor) -> Tensor:
    return F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())


def summed(model: nn.Module, engine: Engine, ids: Tensor) -> Tensor:
    return clipped_by(model, 0.05, of_words, (ids,), engine=engine, capture="eager")


@pytest.mark.parametrize("engine", ENGINES, ids=lambda e: type(e).__name__)
def test_exact(engine: Engine) -> None:
    ids, model = torch.randint(0, 11, (7, 5)), Net(checkpointed=True).double()

    def losses(model: nn.Module, ids: Tensor) -> Tensor:
        return F.cross_entropy(model(ids).transpose(1, 2), ids, reduction="none").mean(1)

    truth = example_gradients(Net(checkpointed=False).double(), losses, (ids,)).clipped(0.05).vector
    torch.testing.assert_close(summed(model, engine, ids), truth, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("lower", [False, True], ids=["single", "autocast"])
def test_random_numbers_and_precision_are_those_of_the_first_time(engine: Engine, lower: bool) -> None:
    ids = torch.randint(0, 11, (7, 5))
    found: list[Tensor] = []
    for checkpointed in (False, True):
        model = Net(checkpointed, drop=0.5)
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
    summed(Net(checkpointed=True), looking, torch.randint(0, 11, (7, 5)))
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
        summed(Net(checkpointed=True), Twice(), torch.randint(0, 11, (7, 5)))


def test_a_block_that_comes_out_different_is_refused() -> None:
    class Changing(Net):
        def forward(self, ids: Tensor) -> Tensor:
            blocks = iter([self.blocks[0], nn.Sequential(*self.blocks)])
            again = checkpoint(lambda x: next(blocks)(x), self.words(ids), use_reentrant=False)
            return F.linear(again, self.words.weight)

    with pytest.raises(PrivacyError, match="did not do the same"):
        summed(Changing(checkpointed=True), BookKeeping(), torch.randint(0, 11, (7, 5)))


def test_an_argument_that_was_written_to_is_refused() -> None:
    class Writing(Net):
        def forward(self, ids: Tensor) -> Tensor:
            x = self.words(ids) * 1
            y = checkpoint(self.blocks[0], x, use_reentrant=False)
            x.mul_(2)
            return F.linear(y, self.words.weight)

    with pytest.raises(PrivacyError, match="changed in place"):
        summed(Writing(checkpointed=True), BookKeeping(), torch.randint(0, 11, (7, 5)))
