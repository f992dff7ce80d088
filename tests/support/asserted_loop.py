"""Training by the batched way through the public API, with every record in every batch and next to no noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import noisette
from oracle import clipped_sum

BOUND = 0.5


def call_with_all(model: nn.Module, *inputs: Tensor) -> Tensor:
    """The scores of a model that takes every column but the last."""
    return model(*inputs)


@dataclass
class AssertedLoop:
    """A loop that the operator asserts to keep examples apart.

    Args:
        model: the user's model.
        columns: the records, of which the last column are classes.
        scores: how the loop calls the model: ``scores(model, *columns)``.
        example: what privatize gets as example.
        before_step: called with the number of the step before its batch.
    """

    model: nn.Module
    columns: tuple[Tensor, ...]
    scores: Callable[..., Tensor] = call_with_all
    example: Any = None
    before_step: Callable[[int], Any] = lambda step: None
    before_microbatch: Callable[[int], Any] = lambda number: None
    engine: Any = None
    steps_taken: int = 0
    errors: list[float] = field(default_factory=list)  # distance to the oracle's sum in each step

    def losses(self, model: nn.Module, *columns: Tensor) -> Tensor:
        return F.cross_entropy(self.scores(model, *columns[:-1]), columns[-1], reduction="none")

    def train(self, steps: int = 2, *, microbatch: int = 4, compare: bool = False) -> AssertedLoop:
        """Take these steps; with ``compare`` each released sum is held against a loop over single examples."""
        clip = noisette.PerExampleClip(self.model, BOUND, engine=self.engine)
        optimizer = torch.optim.SGD([p for p in self.model.parameters() if p.requires_grad], lr=0.1)
        with noisette.privatize(
            clip,
            optimizer,
            self.columns,
            sampling_rate=1.0,
            expected_batch_size=1,
            steps=steps,
            noise_multiplier=1e-7,
            separability="asserted",
            example=self.example,
        ) as run:
            for step, batch in enumerate(run.batches()):
                self.before_step(step)
                want = clipped_sum(self.model, self.losses, self.columns, BOUND).vector if compare else None
                for number, columns in enumerate(batch.microbatches(microbatch)):
                    self.before_microbatch(number)
                    run.backward(self.losses(self.model, *columns))
                optimizer.step()
                if want is not None:
                    got = [p.grad.double().flatten() for p in clip.parameters.values() if p.grad is not None]
                    self.errors.append(float((torch.cat(got) - want).norm()))
                optimizer.zero_grad()
                self.steps_taken += 1
        return self


def records(*shape: int, count: int = 8, positive: bool = False) -> tuple[Tensor, Tensor]:
    """Inputs and classes of three kinds, always the same."""
    generator = torch.Generator().manual_seed(3)
    draw = torch.rand if positive else torch.randn
    return draw(count, *shape, generator=generator) + 0.1 * positive, torch.arange(count) % 3


class Custom(nn.Module):
    """A module from its parts and a function of itself and its inputs."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)
