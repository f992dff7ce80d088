"""Loops written for Opacus: the same ``PrivacyEngine``, with examples that are separate by construction.

Opacus itself is not needed. The loop stays as it is, except for one number to declare::

    model, optimizer, loader = PrivacyEngine().make_private(
        module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.1, max_grad_norm=1.0,
        public_size=60_000,
    )
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader

from noisette.accounting import GdpAccountant, Ledger, PldAccountant, RdpAccountant
from noisette.clipping.automatic import AutomaticClipping
from noisette.clipping.flat import FlatClipping
from noisette.clipping.per_example import PerExampleClip
from noisette.clipping.per_layer import PerLayerClipping
from noisette.errors import PrivacyError
from noisette.gradients.existing_tensors import existing_tensors
from noisette.integrations.deferred import Deferred, Trace, plain
from noisette.integrations.loss_of_one import LengthCheck, LossOfOne
from noisette.run.private import PrivateRun
from noisette.run.privatize import privatize

_ACCOUNTANTS = {"prv": PldAccountant, "rdp": RdpAccountant, "gdp": GdpAccountant}
_CLIPPING: dict[str, Callable[[float], Any]] = {
    "flat": FlatClipping,
    "per_layer": PerLayerClipping,
    "automatic": AutomaticClipping,
}
_MOST_STEPS = 1_000_000  # of a run that was given its noise; its cost is that of the steps it makes
_WHOLE = 2**31  # examples of a microbatch: the whole batch


class PrivacyEngine:
    """Makes a model, an optimizer and a loader private, by the arguments of Opacus' ``PrivacyEngine``.

    What PyTorch computes from the tensors of a batch, in front of the model and behind it, is computed again for each
    example alone when ``loss.backward()`` is called, so it cannot couple examples, and every model that
    :meth:`noisette.PrivateRun.accumulate` takes is taken. Values that the loop reads, such as ``loss.item()``, are
    private: the guarantee does not cover what you print. A loss that such a number enters is refused, as far as it can
    be followed: not through ``float``, ``math``, ``if`` and Python's own loops. A tensor that was made after the first
    batch otherwise than from the present one is refused.

    Args:
        accountant: ``"prv"`` (the privacy loss distribution), ``"rdp"`` or ``"gdp"``.
        secure_mode: accepted; noise is always from a secure source.
        ledger: records every release; in memory unless given.

    Raises:
        ValueError: the accountant is unknown.
    """

    def __init__(
        self, *, accountant: str = "prv", secure_mode: bool = False, ledger: Ledger | Path | str | None = None
    ) -> None:
        if accountant not in _ACCOUNTANTS:
            raise ValueError(f"expected accountant to be one of {', '.join(_ACCOUNTANTS)}, got {accountant!r}")
        self._accountant = _ACCOUNTANTS[accountant]()
        self._ledger = ledger
        self._run: PrivateRun | None = None

    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: Optimizer,
        data_loader: DataLoader[Any],
        noise_multiplier: float,
        max_grad_norm: float,
        public_size: int | None = None,
        batch_first: bool = True,
        loss_reduction: str = "mean",
        poisson_sampling: bool = True,
        clipping: str = "flat",
        noise_generator: torch.Generator | None = None,
        grad_sample_mode: str = "hooks",
    ) -> tuple[PrivateModule, Optimizer, PoissonLoader]:
        """The model, the optimizer and the loader of a private loop, given the noise.

        Args:
            module: the model; its trainable parameters are trained.
            optimizer: of these parameters.
            data_loader: its data set, collate function and batch size are taken; batches are Poisson samples of that
                expected size.
            noise_multiplier: standard deviation of the noise in units of ``max_grad_norm``.
            max_grad_norm: the clipping norm of one example.
            public_size: declared number of records. Opacus takes the length of the data set, which is private.
            batch_first, loss_reduction, poisson_sampling, noise_generator: as in Opacus; values that would not be
                private are refused.
            clipping: ``"flat"``, ``"per_layer"`` or ``"automatic"``.
            grad_sample_mode: accepted; gradients are the same in each mode.

        Guarantee: that of :func:`noisette.privatize`.

        Raises:
            ValueError: an argument is missing or would not be private; all problems are listed.
            PrivacyError: as by :func:`noisette.privatize`.
        """
        _check(data_loader, public_size, batch_first, loss_reduction, poisson_sampling, clipping, noise_generator)
        clip = PerExampleClip(module, clipping=_CLIPPING[clipping](max_grad_norm), capture="eager")
        run = privatize(
            clip,
            optimizer,
            data_loader.dataset,
            expected_batch_size=data_loader.batch_size or 1,
            public_size=public_size,
            steps=_MOST_STEPS,
            noise_multiplier=noise_multiplier,
            ledger=self._ledger,
            collate_fn=data_loader.collate_fn,
        )
        return self._parts(run, optimizer)

    def make_private_with_epsilon(
        self,
        *,
        module: nn.Module,
        optimizer: Optimizer,
        data_loader: DataLoader[Any],
        target_epsilon: float,
        target_delta: float,
        epochs: float,
        max_grad_norm: float,
        public_size: int | None = None,
        batch_first: bool = True,
        loss_reduction: str = "mean",
        poisson_sampling: bool = True,
        clipping: str = "flat",
        noise_generator: torch.Generator | None = None,
        grad_sample_mode: str = "hooks",
    ) -> tuple[PrivateModule, Optimizer, PoissonLoader]:
        """Like :meth:`make_private`, with the noise that the budget asks for; the run ends after ``epochs``.

        Args:
            target_epsilon, target_delta: the budget.
            epochs: passes over the declared size.
            module, optimizer, data_loader, max_grad_norm, public_size: as for :meth:`make_private`.
            batch_first, loss_reduction, poisson_sampling, clipping, noise_generator, grad_sample_mode: likewise.

        Raises:
            ValueError, PrivacyError: as by :meth:`make_private`.
        """
        _check(data_loader, public_size, batch_first, loss_reduction, poisson_sampling, clipping, noise_generator)
        clip = PerExampleClip(module, clipping=_CLIPPING[clipping](max_grad_norm), capture="eager")
        run = privatize(
            clip,
            optimizer,
            data_loader.dataset,
            expected_batch_size=data_loader.batch_size or 1,
            public_size=public_size,
            epochs=epochs,
            epsilon=target_epsilon,
            delta=target_delta,
            accountant=self._accountant,
            ledger=self._ledger,
            collate_fn=data_loader.collate_fn,
        )
        return self._parts(run, optimizer)

    def get_epsilon(self, delta: float) -> float:
        """The epsilon spent so far.

        Raises:
            PrivacyError: nothing was made private yet.
        """
        if self._run is None:
            raise PrivacyError("call make_private first: there is no run whose cost could be told")
        return self._accountant.compose(self._run.ledger.events).epsilon(delta=delta)

    def _parts(self, run: PrivateRun, optimizer: Optimizer) -> tuple[PrivateModule, Optimizer, PoissonLoader]:
        self._run = run
        loader = PoissonLoader(run, optimizer)
        return PrivateModule(run, loader), optimizer, loader


class PrivateModule(nn.Module):
    """The model of a private loop; its outputs remember how they were computed.

    In ``eval`` mode, and under ``torch.no_grad``, it is the model itself.
    """

    def __init__(self, run: PrivateRun, loader: PoissonLoader) -> None:
        super().__init__()
        self._module = run.bound.model
        self._run = [run]
        self._loader = loader
        loader.on_backward = self._backward
        self._check_lengths = LengthCheck()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not self.training or not torch.is_grad_enabled():
            return self._module(*args, **kwargs)
        with torch.no_grad():
            output = self._module(*tree_map(plain, args), **tree_map(plain, kwargs))
        return self._loader.trace.called(None, args, kwargs, output)

    def _backward(self, loss: Deferred) -> None:
        """Add the clipped gradients of the current batch.

        Raises:
            PrivacyError: the loss may depend on other examples than each one's own in a way that cannot be undone.
        """
        of_one = LossOfOne(loss, self._loader.is_older)
        if not of_one.rows:
            raise PrivacyError("the loss has no tensor with one row per example of the batch that the loader gave")
        if loss.recorded_in.count_was_read:
            self._check_lengths(loss.recorded_in.count, of_one.numbers)
        try:
            self._run[0].accumulate(of_one, *of_one.rows)
        except IndexError as error:
            raise PrivacyError(
                "the loss takes other examples of the batch by their position, as by x[order], and each example's loss "
                "is computed from it alone; draw pairs in the data set, or leave this out"
            ) from error


class PoissonLoader:
    """Poisson batches of the data set, each whole; a pass has as many steps as a record has one expected turn in.

    Attributes:
        trace: of the present batch.
        on_backward: what ``loss.backward()`` does.
    """

    on_backward: Callable[[Deferred], None]

    def __init__(self, run: PrivateRun, optimizer: Optimizer) -> None:
        self._batches = run.batches()
        self._optimizer = optimizer
        self._steps = math.ceil(1 / run.sampling_rate * (1 - 1e-12))
        self.trace = Trace(0, lambda loss: self.on_backward(loss))
        self._existing = {id(tensor): weakref.ref(tensor) for tensor in existing_tensors()}

    def is_older(self, tensor: Tensor) -> bool:
        """Whether a tensor was there before the first batch, as the weights of classes are."""
        reference = self._existing.get(id(tensor))
        return reference is not None and reference() is tensor

    def __len__(self) -> int:
        """The steps of a pass."""
        return self._steps

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self._steps):
            batch = next(self._batches, None)
            if batch is None:
                return
            if not len(batch.indices):  # the release is noise alone, and is made all the same
                self._optimizer.step()
                self._optimizer.zero_grad()
                continue
            given = next(batch.microbatches(_WHOLE))
            self.trace.close()
            self.trace = Trace(len(batch.indices), self.on_backward)
            yield self.trace.of_batch(given)


def _check(
    loader: DataLoader[Any],
    public_size: int | None,
    batch_first: bool,
    loss_reduction: str,
    poisson_sampling: bool,
    clipping: str,
    noise_generator: torch.Generator | None,
) -> None:
    """Check arguments of Opacus that would not be private, or are not known.

    Raises:
        ValueError: lists all problems.
    """
    problems = [
        said
        for wrong, said in (
            (public_size is None, "declare public_size=, the number of records: the length of the data set is private"),
            (not batch_first, "batch_first=False: put the examples on the first axis"),
            (loss_reduction != "mean", f'loss_reduction={loss_reduction!r}: use the mean, loss_reduction="mean"'),
            (not poisson_sampling, "poisson_sampling=False: no price is known for shuffled batches; leave it out"),
            (noise_generator is not None, "noise_generator: noise comes from a secure source; leave it out"),
            (clipping not in _CLIPPING, f"expected clipping to be one of {', '.join(_CLIPPING)}, got {clipping!r}"),
            (not loader.batch_size, "the data_loader has no batch_size: give it one, not a batch_sampler"),
        )
        if wrong
    ]
    if problems:
        raise ValueError("\n".join(problems))
