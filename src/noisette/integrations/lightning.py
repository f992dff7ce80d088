"""Lightning with differential privacy: the same module, the same ``Trainer``, loaders, callbacks and checkpoints.

Needs ``pip install noisette[lightning]``; modules of ``pytorch_lightning`` work as well. ::

    model = make_private(MyModule(), public_size=60_000, epsilon=3.0, delta=1e-5, max_grad_norm=1.0)
    Trainer(max_epochs=10).fit(model, train_loader, val_loader)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from noisette.accounting.budget import check_numbers
from noisette.errors import PrivacyError, plain
from noisette.integrations.lightning_run import (
    Declared,
    LightningRun,
    Step,
    Steps,
    module_of_lightning,
    problems_of_module,
)

_IN_CHECKPOINT = "private_run"
_Module: Any = object  # the class of the user's module stands behind in the order of methods


def make_private(
    module: Any,
    *,
    public_size: int,
    delta: float,
    max_grad_norm: float,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    microbatch_size: int | Literal["auto"] = "auto",
    ledger: Path | str | None = None,
) -> Any:
    """Make ``Trainer.fit`` of a module release noised sums of clipped per-example gradients alone.

    The module stays the same object, and its class becomes a subclass of what it was. ``fit`` takes data set, collation
    and ``batch_size`` from the training loader; its batches are Poisson samples of that expected size. Number of steps
    and noise follow from ``max_epochs`` or ``max_steps`` of the trainer. ``training_step`` is called with a batch of
    one record, for each record; what it logs is private and left out.

    With ``automatic_optimization = False`` it is called with the whole batch, calls ``self(x)``, ``manual_backward``
    and the optimizer's ``step``, once, for a mean of the records' losses: each row of ``self(x)`` is computed apart.

    Args:
        module: a ``LightningModule`` with one optimizer.
        public_size: declared number of training records. It is not computed from the data set.
        delta: probability with which epsilon may fail; below one over ``public_size``.
        max_grad_norm: the clipping norm of one example.
        epsilon: the privacy budget of a ``fit``, together with everything in ``ledger``.
        noise_multiplier: instead of, or within, ``epsilon``: standard deviation of the noise in units of the clipping
            norm.
        microbatch_size: examples that are processed at once, which only bounds memory.
        ledger: the file that records every release. Unless given, ``ledger.jsonl`` in the folder of the first ``fit``'s
            logs; later fits of this module add to it.

    Returns:
        The module.

    Guarantee: that of :func:`noisette.privatize` for the training records: all weights, checkpoints and logs of ``fit``
    together are (epsilon, delta)-differentially private. Validation, and choices made by it (early stopping, the best
    checkpoint), are not covered for the records of the validation loader. ``training_step`` is a loss as of
    :meth:`noisette.PrivateRun.accumulate`: it keeps nothing between its calls, and what it prints, or writes otherwise
    than by ``self.log`` and metrics of torchmetrics, is yours. With manual optimization the guarantee is that of
    :mod:`noisette.integrations.boundary`: the criterion is yours as well.

    Raises:
        ValueError: a number is missing or outside its domain, or the module contradicts the guarantee; all problems
            of a kind are listed. ``fit`` raises it for settings of trainer and loader.
    """
    public_size, delta, max_grad_norm = plain(public_size), plain(delta), plain(max_grad_norm)
    epsilon, noise_multiplier = plain(epsilon), plain(noise_multiplier)
    check_numbers(
        expected_batch_size=1.0,
        sampling_rate=None,
        steps=1,
        public_size=public_size,
        epochs=None,
        epsilon=epsilon,
        noise_multiplier=noise_multiplier,
        delta=delta,
    )
    if isinstance(module, PrivateHooks):
        raise ValueError("this module is private already")
    if problems := list(problems_of_module(module)):
        raise ValueError("\n".join(problems))
    declared = Declared(
        public_size=public_size,
        delta=delta,
        epsilon=epsilon,
        noise_multiplier=noise_multiplier,
        max_grad_norm=max_grad_norm,
        microbatch_size=microbatch_size,
        ledger=None if ledger is None else Path(ledger).resolve(),
    )
    own = type(module)
    module.__class__ = type(f"Private{own.__name__}", (PrivateHooks, own), {"__module__": own.__module__})
    module._private_run = LightningRun(declared)
    return module


class PrivateHooks(_Module):
    """The methods that Lightning calls in a private ``fit``, in front of those of the user's module."""

    _private_run: LightningRun

    def configure_callbacks(self) -> list[Any]:
        given = super().configure_callbacks()
        callbacks = list(given) if isinstance(given, list | tuple) else [given]
        if self.trainer.state.fn == "fit":
            self._private_run.take_over(self)
            lightning = module_of_lightning(self)
            assert lightning is not None
            callbacks.append(_closing(lightning.__module__.removesuffix(".core.module"))())
        return callbacks

    def train_dataloader(self) -> Steps:
        """The steps of an epoch, by number: the private run draws the batches."""
        return self._private_run.steps(self, super().train_dataloader)

    def on_train_start(self) -> None:
        own = super().training_step
        number = (0,) * (len(signature(own).parameters) > 1)  # of the batch

        def step(rows: Any) -> Any:
            return own(rows, *number)

        self._private_run.begin(self, step, [*_transfer_hooks(self, super())])
        self._private_run.try_checkpoint(self.trainer)
        self._private_run.stop_if_finished(self.trainer)
        super().on_train_start()

    def training_step(self, batch: Any, batch_idx: int = 0) -> Tensor | None:
        """Draw a batch and add up clipped gradients; the loss that Lightning gets is no number.

        With manual optimization the module's own step gets the batch, and Lightning no loss.
        """
        if not self.automatic_optimization:
            self._private_run.give_batch(self)
            return None
        self._private_run.accumulate(self)
        return torch.full((), math.nan, device=self.device)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """With manual optimization, what the module returns is behind a boundary that gradients do not pass."""
        run = self._private_run
        if run.boundary is None or run.is_called:
            return super().__call__(*args, **kwargs)
        run.is_called = True  # by the boundary
        try:
            return run.boundary.call(*args, **kwargs)
        finally:
            run.is_called = False

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Nothing is left to do with automatic optimization: gradients were added up by ``training_step``."""
        if not self.automatic_optimization:
            super().backward(loss, *args, **kwargs)

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Callable[[], Any] | None = None
    ) -> None:
        """One release, and the step of the optimizer."""
        assert optimizer_closure is not None
        optimizer_closure()
        getattr(optimizer, "optimizer", optimizer).step()

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        run, trainer = self._private_run, self.trainer
        if run.stop_if_finished(trainer) or trainer.global_step % (trainer.log_every_n_steps or math.inf) == 0:
            self.log("epsilon", run.epsilon(), prog_bar=True, on_step=True, on_epoch=False)
        super().on_train_batch_end(outputs, batch, batch_idx)

    def on_train_epoch_end(self) -> None:
        self.log("epsilon", self._private_run.epsilon(), on_step=False, on_epoch=True)
        super().on_train_epoch_end()

    def on_train_end(self) -> None:
        self.trainer.callback_metrics["epsilon"] = torch.tensor(self._private_run.epsilon())
        super().on_train_end()
        self._private_run.close()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        if (facts := self._private_run.facts()) is not None:
            checkpoint[_IN_CHECKPOINT] = facts

    def on_load_checkpoint(self, checkpoint: Mapping[str, Any]) -> None:
        if self.trainer.state.fn == "fit":
            self._private_run.go_on_from(checkpoint.get(_IN_CHECKPOINT))
        super().on_load_checkpoint(checkpoint)

    # What a step may not do with private values

    @property
    def logger(self) -> Any:
        self._check_no_logger()
        return super().logger

    @property
    def loggers(self) -> Any:
        self._check_no_logger()
        return super().loggers

    def _check_no_logger(self) -> None:
        if self._private_run.computes_loss:
            raise PrivacyError(
                "training_step uses a logger, and what it computes of a record is private: log in validation_step, "
                "whose records are not covered by the guarantee; self.log() in training_step is left out by itself"
            )

    def log(self, *args: Any, **kwargs: Any) -> None:
        """As always, but for values of ``training_step``, which are private and left out."""
        if not self._private_run.leaves_out(self.trainer, *args[:1]):
            super().log(*args, **kwargs)

    def log_dict(self, dictionary: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        names = dictionary if isinstance(dictionary, Mapping) else ()  # a collection of metrics is not computed
        if not self._private_run.leaves_out(self.trainer, *names):
            super().log_dict(dictionary, *args, **kwargs)

    def print(self, *args: Any, **kwargs: Any) -> None:
        if not self._private_run.computes_loss:
            super().print(*args, **kwargs)

    @property
    def current_epoch(self) -> int:
        self._private_run.read("current_epoch")
        return super().current_epoch

    @property
    def global_step(self) -> int:
        self._private_run.read("global_step")
        return super().global_step

    # The numbers of steps are no batch that a hook of the user's could change

    def _on_before_batch_transfer(self, batch: Any, dataloader_idx: int = 0) -> Any:
        return batch if isinstance(batch, Step) else super()._on_before_batch_transfer(batch, dataloader_idx)

    def _apply_batch_transfer_handler(
        self, batch: Any, device: torch.device | None = None, dataloader_idx: int = 0
    ) -> Any:
        if isinstance(batch, Step):
            return batch
        return super()._apply_batch_transfer_handler(batch, device, dataloader_idx)


def _transfer_hooks(module: Any, own: Any) -> Iterator[Callable[..., Any]]:
    """The user's hooks that change a batch on its way to the device, of the data module or of the module."""
    lightning, data = module_of_lightning(module), module.trainer.datamodule
    plain = next((base for base in type(data).__mro__ if base.__name__ == "LightningDataModule"), None)
    for hook in ("on_before_batch_transfer", "on_after_batch_transfer"):
        if data is not None and getattr(type(data), hook) is not getattr(plain, hook):
            yield getattr(data, hook)
        elif getattr(type(module), hook) is not getattr(lightning, hook):
            yield getattr(own, hook)


@cache
def _closing(package: str) -> type:
    """A callback that ends the run where ``fit`` fails; of a class of the package that the module is of."""

    class CloseRun(import_module(package).Callback):
        """Ends the private run of a ``fit`` that fails, and notes what validation logs."""

        def on_sanity_check_end(self, trainer: Any, pl_module: Any) -> None:
            pl_module._private_run.validated = set(trainer.callback_metrics)

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            pl_module._private_run.close()

    return CloseRun
