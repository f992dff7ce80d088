"""The clipped sum of a loss that cannot be vectorised: one example after the other, each in a call of its own.

Guarantee: an example's gradient is computed from that example and the weights, provided that nothing of an earlier
example is left in what the loss reads. Tensors are followed, the model is put back after each example where a run does
so, and what else Python keeps is compared: the attributes of modules and objects, closures, globals, and containers.
Generators are refused. Not seen are other objects of Python's own library, such as files, results that a
``functools.cache`` keeps, context variables and the environment, and containers of more than a million entries. Random
numbers of an example start from a seed that was drawn before the first one, also those of generators that the model and
the loss hold.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator

import torch
from torch import Tensor

from noisette._internal.random_state import reseed_later
from noisette.core.clip import ClippedSum, Clipping, Sums, Weights, group_norms
from noisette.core.forms import Dense
from noisette.core.trace import Loss, Microbatch, Tape
from noisette.errors import PrivacyError
from noisette.gradients.outside_tensors import OutsideTensors
from noisette.gradients.single_examples import call_with_zeros, gradients_of_each

PutBack = Callable[[], None]

_WIDEST = 2**20  # entries of a container that are compared, as of a table with a number for each record

_LEFT_BEHIND = (
    "the loss changes what Python code keeps from one call to the next, so one example could be computed with the "
    "values of another; compute everything in each call anew, and keep no list, counter or cache outside of it"
)

_GENERATOR = (
    "the loss reaches a generator, which goes on with what an earlier example has left in its variables, and nothing "
    "can compare that; compute everything in each call anew, or draw random numbers from torch"
)


class OneByOneWarning(UserWarning):
    """The loss cannot be vectorised; its examples are computed one after the other, with the same result."""


def says_one_by_one(cause: str) -> str:
    """The warning, given why the loss cannot be vectorised."""
    return (
        f"{cause} Each example is therefore computed in a call of its own: the sum is the same, and takes as long as "
        "so many microbatches of one example."
    )


class OneByOne:
    """Computes clipped sums by one call of the loss for each example.

    Args:
        tape: of the model.
        outside: the tensors from outside that losses have used.
    """

    def __init__(self, tape: Tape, outside: OutsideTensors) -> None:
        self._tape = tape
        self._outside = outside
        self.is_running = False  # while the loss is called with one example at a time

    def clipped_sum(
        self,
        loss: Loss,
        microbatch: Microbatch,
        clipping: Clipping,
        public: Iterable[Tensor],
        put_back: PutBack | None,
    ) -> ClippedSum:
        """The clipped sum of a microbatch.

        Args:
            loss: the loss of one example.
            microbatch: its arguments.
            clipping: how gradients are clipped.
            public: tensors from outside that are declared public.
            put_back: makes the model what it was before the first example; without it the model may not change.

        Raises:
            PrivacyError: something of an example is left for the next one.
        """
        self.is_running = True
        try:
            return self._sum_of_each(loss, microbatch, clipping, tuple(public), put_back)
        finally:
            self.is_running = False

    def _sum_of_each(
        self,
        loss: Loss,
        microbatch: Microbatch,
        clipping: Clipping,
        public: tuple[Tensor, ...],
        put_back: PutBack | None,
    ) -> ClippedSum:
        # Drawn before any example is seen: what one draws, or seeds, does not reach the random numbers of the next.
        held: list[object] = []
        reseeds = iter([reseed_later(held) for _ in range(microbatch.count + 1)])
        call_with_zeros(self._tape, loss, microbatch, self._outside, public)
        if put_back is not None:
            put_back()
        next(reseeds)()
        left = _Left(self._tape, loss, put_back, reseeds)
        total: Sums = {}
        norms: list[Tensor] = []
        each = gradients_of_each(self._tape, loss, microbatch, self._outside, public, left.check)
        for value, found in each:
            forms = {name: Dense(gradient.unsqueeze(0)) for name, gradient in found.items()}
            squared = {name: form.squared_norms() for name, form in forms.items()}
            norms.append(group_norms(squared, clipping.groups, value))
            weights = Weights.of(clipping, norms[-1])
            for name, form in forms.items():
                clipped = weights.sum_of(name, form)
                total[name] = total[name].add_(clipped) if name in total else clipped.double()
        return ClippedSum(total, torch.cat(norms, 1))


class _Left:
    """What a call of the loss may leave behind, as it was before the first one."""

    def __init__(
        self,
        tape: Tape,
        loss: Loss,
        put_back: PutBack | None,
        reseeds: Iterator[Callable[[], None]],
    ) -> None:
        self._loss = loss
        self._put_back = put_back
        self._reseeds = reseeds
        self._buffers = [] if put_back else list(tape.root.buffers())
        self._before = self._now()

    def check(self) -> None:
        """Put the model and random states back, and check that nothing else has changed.

        Raises:
            PrivacyError: something has.
        """
        if self._put_back is not None:
            self._put_back()
        next(self._reseeds)()
        if self._now() != self._before:
            raise PrivacyError(_LEFT_BEHIND)

    def _now(self) -> Hashable:
        return tuple([0 if buffer.is_inference() else buffer._version for buffer in self._buffers])
