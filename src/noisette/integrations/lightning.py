"""Lightning with differential privacy: the same module, the same ``Trainer``, loaders, callbacks and checkpoints.

Needs ``pip install noisette[lightning]``; modules of ``pytorch_lightning`` work as well. ::

    model = make_private(MyModule(), public_size=60_000, epsilon=3.0, delta=1e-5, max_grad_norm=1.0)
    Trainer(max_epochs=10).fit(model, train_loader, val_loader)
"""

from __future__ import annotations

import math
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial, reduce
from importlib import import_module
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler

from noisette.accounting.budget import check_numbers
from noisette.core.batches import Batch
from noisette.core.steps import held_by
from noisette.core.trees import tensors
from noisette.errors import PrivacyError, plain
from noisette.integrations.boundary import WHOLE, Boundary
from noisette.run.checkpoint import Fingerprint, SavedRun, capture_state, check_declared_again
from noisette.run.per_example import PerExampleClip
from noisette.run.private import PrivateRun, privatize

_IN_CHECKPOINT, _DECLARED = "private_run", "declared"
MicrobatchSize = int | Literal["auto"]
_Module: Any = object  # the class of the user's module stands behind in the order of methods


def make_private(
    module: Any,
    *,
    public_size: int,
    delta: float,
    max_grad_norm: float,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    microbatch_size: MicrobatchSize = "auto",
    ledger: Path | str | None = None,
    discriminator: str | None = None,
) -> Any:
    """Make ``Trainer.fit`` of a module release noised sums of clipped per-example gradients alone.

    The module stays the same object, and its class becomes a subclass of what it was. ``fit`` takes data set, collation
    and ``batch_size`` from the training loader; its batches are Poisson samples of that expected size. Steps and noise
    follow from ``max_epochs`` or ``max_steps``. ``training_step`` is called with a batch of one record, for each
    record; what it logs is private and left out. With ``automatic_optimization = False`` it is called with the whole
    batch, or a bucket of it, calls ``self(x)``, ``manual_backward`` and the optimizer's ``step``, once, for a mean of
    the records' losses: each row of ``self(x)`` is computed apart.

    Args:
        module: a ``LightningModule`` with one optimizer.
        public_size, delta, max_grad_norm, epsilon, noise_multiplier: of a ``fit``, as for :func:`noisette.privatize`
            and :class:`noisette.PerExampleClip`.
        microbatch_size: examples that are processed at once, which only bounds memory.
        ledger: the file that records every release. Unless given, ``ledger.jsonl`` in the folder of the first ``fit``'s
            logs; later fits of this module add to it.
        discriminator: the name of the part of a GAN, with manual optimization, that records train. It is called in the
            place of ``self``. The rest is in ``eval`` mode meanwhile, and its optimizers step in
            ``on_train_batch_end``, which gets no record.

    Guarantee: that of :func:`noisette.privatize` for the training records: all weights, checkpoints and logs of ``fit``
    together are (epsilon, delta)-differentially private. Validation, and choices made by it (early stopping, the best
    checkpoint), are not covered for the records of the validation loader. ``training_step`` is a loss as of
    :meth:`noisette.PrivateRun.accumulate`: it keeps nothing between its calls, and what it prints, or writes otherwise
    than by ``self.log`` and metrics of torchmetrics, is yours. With manual optimization the guarantee is that of
    :mod:`noisette.integrations.boundary`: the criterion is yours as well.

    Raises:
        ValueError: lists what is wrong with the numbers, or with the module; ``fit``, with trainer and loader.
    """
    given = {"public_size": public_size, "epsilon": epsilon, "delta": delta, "noise_multiplier": noise_multiplier}
    declared: dict[str, Any] = {name: plain(value) for name, value in given.items()}
    check_numbers(expected_batch_size=1.0, sampling_rate=None, steps=1, epochs=None, **declared)
    if isinstance(module, PrivateHooks):
        raise ValueError("this module is private already")
    if problems := list(_problems_of_module(module, discriminator)):
        raise ValueError("\n".join(problems))
    declared["max_grad_norm"] = plain(max_grad_norm)
    part = module if discriminator is None else getattr(module, discriminator)
    run = LightningRun(part, declared, microbatch_size, None if ledger is None else Path(ledger).resolve())
    for each, methods in {part: PrivateCall, module: PrivateHooks}.items():
        own = type(each)
        each.__class__ = type(f"Private{own.__name__}", (methods, own), {"__module__": own.__module__})
        each._private_run = run
    return module


def _noted(name: str) -> Any:
    """A property of the user's module; that a step has read it is taken down, and that is no logger."""

    def read(self: PrivateHooks) -> Any:
        if self._private_run.computes_loss:
            if name.startswith("logger"):
                raise PrivacyError(
                    "training_step uses a logger, and what it computes of a record is private: log in validation_step, "
                    "whose records are not covered by the guarantee; self.log() in training_step is left out by itself"
                )
            self._private_run.numbers_read.add(name)
        return getattr(super(PrivateHooks, self), name)

    return property(read)


class PrivateCall(_Module):
    """With manual optimization, what the module of the records returns is behind a boundary for gradients."""

    _private_run: LightningRun

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        run = self._private_run
        if run.boundary is None or run.part is not self or run.is_called:
            return super().__call__(*args, **kwargs)
        run.is_called = True  # by the boundary
        try:
            return run.boundary.call(*args, **kwargs)
        finally:
            run.is_called = False


class PrivateHooks(PrivateCall):
    """The methods that Lightning calls in a private ``fit``, in front of those of the user's module."""

    def configure_callbacks(self) -> list[Any]:
        given = super().configure_callbacks()
        callbacks = list(given) if isinstance(given, list | tuple) else [given]
        if self.trainer.state.fn == "fit":
            self._private_run.take_over(self)
            callbacks.append(_closing(module_of_lightning(self).__module__.removesuffix(".core.module"))())
        return callbacks

    def train_dataloader(self) -> range:
        return self._private_run.steps(self, super().train_dataloader)

    def on_train_start(self) -> None:
        own = super().training_step
        number = (0,) * (len(signature(own).parameters) > 1)  # of the batch
        self._private_run.begin(self, lambda rows: own(rows, *number), [*_transfer_hooks(self, super())])
        self._private_run.stop_if_finished(self.trainer)
        super().on_train_start()

    def training_step(self, batch: Any, batch_idx: int = 0) -> Tensor | None:
        """Add up clipped gradients of a batch, or give it to a step that optimizes; the loss returned is no number."""
        if not self.automatic_optimization:
            self._private_run.give_batch(self)
            return None
        self._private_run.accumulate(self)
        return torch.full((), math.nan, device=self.device)

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        if not self.automatic_optimization:
            super().backward(loss, *args, **kwargs)

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
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

    logger, loggers, current_epoch, global_step = map(_noted, ("logger", "loggers", "current_epoch", "global_step"))

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

    # The numbers of steps are no batch that a hook of the user's could change
    def _on_before_batch_transfer(self, batch: Any, **where: Any) -> Any:
        return batch if isinstance(batch, int) else super()._on_before_batch_transfer(batch, **where)

    def _apply_batch_transfer_handler(self, batch: Any, **where: Any) -> Any:
        return batch if isinstance(batch, int) else super()._apply_batch_transfer_handler(batch, **where)


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
    """A callback of this package that ends the run where ``fit`` fails, and notes what validation logs."""

    class CloseRun(import_module(package).Callback):
        def on_sanity_check_end(self, trainer: Any, pl_module: Any) -> None:
            pl_module._private_run.validated = set(trainer.callback_metrics)

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            pl_module._private_run.close()

    return CloseRun


class NotComputed:
    """What a metric returns for private records: it may be logged, which does nothing, and enter no computation."""

    def __getattr__(self, name: str) -> Any:
        raise PrivacyError(
            "training_step computes with the value of a metric of torchmetrics, which is not computed of private "
            "records: call the metric in validation_step, or use a function of torch in the loss"
        )

    def __torch_function__(self, *_: object) -> Any:
        return self.value


class _Muted(nn.Module):
    def forward(self, *_: object, **__: object) -> NotComputed:
        return NotComputed()

    compute = update = reset = forward


_MUTED = _Muted()  # in the place of each metric: a captured step expects the same object


@contextmanager
def muted_metrics(module: nn.Module) -> Iterator[None]:
    """Within it, metrics that the module holds do nothing."""
    parts = [part._modules for part in module.modules() if not _is_metric(part)]
    held = [(modules, name, metric) for modules in parts for name, metric in modules.items() if _is_metric(metric)]
    for modules, name, _ in held:
        modules[name] = _MUTED
    try:
        yield
    finally:
        for modules, name, metric in held:
            modules[name] = metric


def _is_metric(part: object) -> bool:
    kinds = [base for base in type(part).__mro__ if base.__module__.startswith("torchmetrics.")]
    return any(kind.__name__ in ("Metric", "MetricCollection") for kind in kinds)


_MODULES = ("lightning.pytorch.core.module", "pytorch_lightning.core.module")
_PRECISIONS = ("32-true", "64-true", "bf16-mixed")
_STRATEGIES = ("SingleDeviceStrategy", "DDPStrategy")
_MEMORY = "memory is bounded by microbatches"
_FINDERS = {
    "LearningRateFinder": "it trains on the records without a price; choose the rate on public records",
    "BaseFinetuning": "what is clipped is fixed when fit begins. Freeze the backbone for one fit, unfreeze it for a "
    "second one, of another make_private with the same ledger and a larger epsilon",
    **dict.fromkeys(("BatchSizeFinder", "GradientAccumulationScheduler"), f"the batch size is declared; {_MEMORY}"),
}
_OWN_HOOKS = {
    "optimizer_step": "the private step calls the optimizer; change the rate by a scheduler",
    "backward": "gradients are computed for each record alone",
    "configure_gradient_clipping": "each record is clipped to max_grad_norm",
}


def module_of_lightning(module: Any) -> Any:
    """The class ``LightningModule`` that a module is of, from ``lightning`` or ``pytorch_lightning``, or ``None``."""
    return next((base for base in type(module).__mro__ if base.__module__ in _MODULES), None)


def _problems_of_module(module: Any, discriminator: str | None) -> Iterator[str]:
    lightning, own = module_of_lightning(module), type(module)
    if lightning is None:
        yield f"expected a LightningModule, got a {own.__name__}"
        return
    needed = ("training_step", "configure_optimizers")
    yield from (f"{own.__name__} has no {hook}" for hook in needed if getattr(own, hook) is getattr(lightning, hook))
    for hook, why in _OWN_HOOKS.items():
        if getattr(own, hook) is not getattr(lightning, hook):
            yield f"{own.__name__} overrides {hook}: {why}"
    if discriminator is not None and module.automatic_optimization:
        yield "discriminator= needs a module with automatic_optimization = False, whose training_step trains that part"
    if discriminator not in (None, *(parts := dict(module.named_children()))):
        yield f"discriminator={discriminator!r} is no part of {own.__name__}, which has {', '.join(parts)}"


def _problems_of_fit(module: Any) -> Iterator[str]:
    trainer, strategy, precision = module.trainer, type(module.trainer.strategy).__name__, module.trainer.precision
    together, limit, clip = trainer.accumulate_grad_batches, trainer.limit_train_batches, trainer.gradient_clip_val
    tried = next((name for name in ("fast_dev_run", "overfit_batches") if getattr(trainer, name)), None)
    spawns = strategy in _STRATEGIES and getattr(trainer.strategy, "_start_method", "popen") != "popen"
    is_endless, is_compiled = trainer.max_epochs == trainer.max_steps == -1, getattr(module, "_compiler_ctx", None)
    found = {
        f"accumulate_grad_batches={together}: give the loader the whole batch_size; {_MEMORY}": together != 1,
        f"gradient_clip_val={clip}: each record is clipped to max_grad_norm; leave it out": clip,
        f'precision="{precision}": use one of {", ".join(_PRECISIONS)}': precision not in _PRECISIONS,
        f"{tried}: each step on private records has its price; try it on public ones, without make_private": tried,
        f"limit_train_batches={limit}: shorten the training by max_steps": limit != 1.0 and not tried,
        f'strategy {strategy}: use strategy="ddp", or shard with noisette.privatize': strategy not in _STRATEGIES,
        'a strategy that spawns or forks: use strategy="ddp", which starts the script once for each device': spawns,
        "max_epochs=-1: declare max_epochs or max_steps; the noise depends on the number of steps": is_endless,
        "torch.compile: the private step is compiled by itself; give fit the module itself": is_compiled,
    }
    yield from (problem for problem, is_so in found.items() if is_so)
    for callback in trainer.callbacks:
        kinds = {base.__name__ for base in type(callback).__mro__}
        yield from (f"the callback {type(callback).__name__}: {_FINDERS[kind]}" for kind in kinds & _FINDERS.keys())


def problems_of_loader(loader: Any) -> Iterator[str]:
    """What is wrong with a loader of the training records, of which data set, batch size and collation are taken."""
    if not isinstance(loader, DataLoader):
        yield f"expected one DataLoader of the training records, got a {type(loader).__name__}"
    elif isinstance(loader.dataset, IterableDataset):
        yield "the training records are an IterableDataset: give one with len and indexing, such as list(dataset)"
    elif not loader.batch_size:
        yield "the training loader has no batch_size, the expected size of a batch: give it one, not a batch_sampler"
    elif not isinstance(at := loader.sampler, RandomSampler | SequentialSampler) or getattr(at, "replacement", False):
        yield f"the training loader has a {type(at).__name__}: batches are Poisson samples; leave the sampler out"


def _fingerprint_of(ledger: Path, run: str) -> Path:
    return ledger.parent / "private-run" / run  # while the run is unfinished


@dataclass(eq=False)
class LightningRun:
    """The private runs of a module, of which records train this part, one for each ``fit``."""

    part: nn.Module
    _declared: Mapping[str, Any]
    _microbatch_size: MicrobatchSize
    _given_ledger: Path | None

    def __post_init__(self) -> None:
        self._ledger = self._given_ledger  # once chosen it is kept: later fits of the same weights add to it
        self._source: Any = None  # of the training loader, as given to fit
        self._loader: Any = None
        self._saved: Mapping[str, Any] | None = None  # what a checkpoint to go on from says of the run
        self._last: dict[str, Any] | None = None  # what a checkpoint says after the end of a fit
        self._run: PrivateRun | None = None
        self.numbers_read: set[str] = set()  # of the trainer, by a loss
        self.computes_loss = False  # whether private values are being computed
        self.validated: set[str] | None = None  # what validation logs, where it was tried before the training
        self.boundary: Boundary | None = None  # of a module that steps its optimizer itself
        self.is_called = False  # whether the boundary calls the module

    def __deepcopy__(self, memo: dict[int, object]) -> LightningRun:
        return self  # a copy of the module, as for averages of weights, is of the same run

    def take_over(self, module: Any) -> None:
        """Before a fit: check the trainer, and put the module in the place of its training loader."""
        trainer = module.trainer
        if problems := list(_problems_of_fit(module)):
            raise ValueError("\n".join(problems))
        self.close()
        source = trainer.fit_loop._data_source
        self._source, source.instance = source.instance, module
        self._loader = self._saved = self.validated = None
        self._processes = trainer.world_size
        if self._processes > 1:  # the run adds up the ranks' gradients; a wrapper would wait for them in .grad
            trainer.strategy.configure_ddp = lambda: None

    def steps(self, module: Any, of_module: Any) -> range:
        """The numbers of an epoch's steps, which Lightning gets as batches; ``of_module`` makes the module's loader."""
        if self._loader is None:
            made = of_module if self._source is module else getattr(self._source, "train_dataloader", None)
            loader = made() if callable(made) else self._source
            self._refused = list(problems_of_loader(loader))
            if self._refused:  # by `begin`: an error here would leave changes that Lightning makes meanwhile
                return range(1)
            self._loader = loader
        return range(math.ceil(self._declared["public_size"] / self._batch_size * (1 - 1e-12)))

    @property
    def _batch_size(self) -> int:
        """Of all processes, of which each has a loader of its part."""
        return self._loader.batch_size * self._processes

    def go_on_from(self, saved: Mapping[str, Any] | None) -> None:
        if saved is None:
            raise ValueError(
                "ckpt_path is a checkpoint of a training without privacy; load its weights with load_from_checkpoint, "
                "if they are public, and call fit without ckpt_path"
            )
        self._saved = saved

    def begin(self, module: Any, step: Callable[..., Any], hooks: Sequence[Callable[..., Any]]) -> None:
        """Start the run, or go on with that of the checkpoint, by the module's own ``training_step`` and ``hooks``."""
        if self._refused:
            raise ValueError("\n".join(self._refused))
        trainer, of_part = module.trainer, set(map(id, self.part.parameters()))
        trains = [each for each in trainer.optimizers if held_by(each) & of_part]
        if len(trains) != 1:
            raise ValueError(
                f"{len(trains)} optimizers of what records train, where a private fit has one: for a GAN name that "
                'part, make_private(..., discriminator="discriminator"), with automatic_optimization = False. '
                "training_step steps its optimizer, and on_train_batch_end, which gets no record, that of the generator"
            )
        [optimizer], free = trains, [each for each in trainer.optimizers if each not in trains]
        if free and self._processes > 1:
            raise ValueError("the generator of a GAN is trained in one process: take Trainer(devices=1)")
        if self._processes > 1:
            module.load_state_dict(trainer.strategy.broadcast(module.state_dict()))
        clip = PerExampleClip(self.part, max_grad_norm=self._declared["max_grad_norm"])
        boundary = None if module.automatic_optimization else Boundary(clip, optimizer, mean=True)
        try:
            run = (self._new if self._saved is None else self._resumed)(clip, optimizer, trainer)
        except BaseException:
            clip.close()
            raise
        self._run, self._saved, self._told, self.boundary = run, None, self._numbers(trainer), boundary
        if boundary is not None:
            boundary.run = run
            for each in trainer.strategy._lightning_optimizers:
                each.step = partial(_step, each)
        self._batches = run.batches(to=module.device)
        self._step, self._hooks, self._convert = step, hooks, trainer.precision_plugin.convert_input
        self._hook, self._free = optimizer.register_step_pre_hook(partial(_after_release, module)), free
        if trainer.checkpoint_callbacks and self._processes == 1:  # so that it fails before the first release
            Path(trainer.default_root_dir).mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(prefix="rehearsal-", dir=trainer.default_root_dir) as folder:
                trainer.save_checkpoint(Path(folder, "first.ckpt"))

    def leaves_out(self, trainer: Any, *names: str) -> bool:
        """Whether a loss logs these names, which is left out; refused where one is monitored that nothing else logs."""
        if not self.computes_loss:
            return False
        validated = self.validated or set()
        schedules = [config for config in trainer.lr_scheduler_configs if config.reduce_on_plateau]
        for watching in [] if self.validated is None and trainer.enable_validation else trainer.callbacks + schedules:
            monitored = getattr(watching, "monitor", None)
            if monitored not in validated and monitored in {n + end for n in names for end in ("", "_step", "_epoch")}:
                raise PrivacyError(
                    f'{type(watching).__name__} has monitor="{monitored}", which training_step logs: what it computes '
                    "of private records is left out. Log it in validation_step, whose records are not covered by the "
                    'guarantee, or monitor "epsilon"'
                )
        return True

    def _numbers(self, trainer: Any) -> dict[str, Any]:
        """What is declared, by the names that users know, for a later process to compare."""
        steps = {"steps of max_epochs or max_steps": _last_step(trainer)}
        return {**self._declared, **steps, "batch size of the loader": self._batch_size}

    def _new(self, clip: PerExampleClip, optimizer: Any, trainer: Any) -> PrivateRun:
        folder = Path(trainer.strategy.broadcast(trainer.log_dir or trainer.default_root_dir))
        self._ledger = (self._ledger or folder / "ledger.jsonl").resolve()
        self._ledger.parent.mkdir(parents=True, exist_ok=True)
        return privatize(
            clip,
            optimizer,
            self._loader.dataset,
            expected_batch_size=self._batch_size,
            steps=_last_step(trainer) - trainer.global_step,
            ledger=self._ledger,
            collate_fn=self._loader.collate_fn,
            **{name: value for name, value in self._declared.items() if name != "max_grad_norm"},
        )

    def _resumed(self, clip: PerExampleClip, optimizer: Any, trainer: Any) -> PrivateRun:
        """The run of a checkpoint whose weights and optimizer state Lightning has restored by now."""
        facts = dict(self._saved or {})
        check_declared_again(facts.pop(_DECLARED, {}), self._numbers(trainer))
        ledger = self._ledger = self._given_ledger or Path(facts["ledger"])
        folder = _fingerprint_of(ledger, facts["terms"]["run"])
        saved = SavedRun.told({**facts, "learned": capture_state(clip.model, optimizer)})
        given = {"ledger": ledger, "collate_fn": self._loader.collate_fn, "saved": saved}
        try:
            return PrivateRun.resume(folder, clip, optimizer, self._loader.dataset, **given)
        except FileNotFoundError as error:
            if ledger.is_file() and not folder.is_dir():
                error.add_note(f"{folder}, by which the run knows its records, is missing: move it with its ledger")
            raise

    def accumulate(self, module: Any) -> None:
        """Draw a batch and add up the clipped gradients of its records."""
        run, batch = self._next()
        with self._computing(module):
            for rows in batch.microbatches(self._microbatch_size):
                # Numbers that a loss has read are given to it as well: a captured step is kept while they are the same.
                numbers = tuple([getattr(module, name) for name in sorted(self.numbers_read)])
                run.accumulate(partial(_loss_of_one, self._step, self._hooks, numbers), self._convert(rows))

    def give_batch(self, module: Any) -> None:
        """Draw a batch and give it to a ``training_step`` that calls ``backward`` and steps the optimizer itself."""
        assert self.boundary is not None
        (run, batch), trainer = self._next(), module.trainer
        optimizer = trainer.strategy._lightning_optimizers[trainer.optimizers.index(run.optimizer)]
        others = [part for part in module.children() if self.part not in (module, part)]
        modes = [(each, each.training) for part in others for each in part.modules()]
        for part in others:  # in training mode the batch norm of a generator would mix the batch, and count it
            part.eval()
        held = self._held(module)
        hook = register_optimizer_step_pre_hook(self._check_no_records)  # also of one that Lightning does not know
        try:
            with self._computing(module):
                for piece in self.boundary.pieces(batch, optimizer, WHOLE):
                    self._step(_changed(self._convert(piece), self._hooks))
                if self.part is not module:
                    self._check_nothing_is_kept(held, self._held(module))
        finally:
            hook.remove()
            for part, mode in modes:
                part.training = mode
            for each in self._free:
                each.zero_grad()

    def _held(self, module: Any) -> dict[str, list[tuple[Tensor, int]]]:
        """The tensors that the module holds beside weights and the part that records train, and their versions."""
        of_part = set(self.part.modules())
        values = {
            f"{prefix}.{name}".strip("."): value
            for prefix, each in module.named_modules()
            for name, value in ({} if each in of_part else vars(each) | each._buffers).items()
            if name not in ("_parameters", "_buffers")
        }
        return {name: [(tensor, tensor._version) for tensor in tensors(value)] for name, value in values.items()}

    def _check_nothing_is_kept(self, before: Any, now: Any) -> None:
        of = {name: [(id(tensor), version) for tensor, version in held] for name, held in before.items()}
        if kept := [
            name for name, held in now.items() if [(id(t), version) for t, version in held] != of.get(name, [])
        ]:
            raise PrivacyError(
                f"training_step keeps tensors in the module ({', '.join(kept)}), and they may come from records, which "
                "on_train_batch_end would train the generator with: compute them there, from what is public"
            )

    def _check_no_records(self, optimizer: Any, *_: object) -> None:
        if self._run is not None and optimizer is not self._run.optimizer:
            raise PrivacyError(
                f"training_step steps the {type(optimizer).__name__} of what records do not train, and it has records: "
                "compute the loss of the generator and step its optimizer in on_train_batch_end(self, outputs, batch, "
                "batch_idx), which gets none"
            )

    def _next(self) -> tuple[PrivateRun, Batch]:
        if self._run is None:
            raise PrivacyError("training_step of a private module is called by trainer.fit alone")
        batch = next(self._batches, None)
        if batch is None:
            raise PrivacyError(
                f"all {self._run.steps} steps of this run are spent, {self._run.steps_lost} of them lost in a crash: "
                "leave out min_epochs and min_steps"
            )
        return self._run, batch

    @contextmanager
    def _computing(self, module: Any) -> Iterator[None]:
        """Within it the values that are computed are private: nothing is logged. The run ends where it fails."""
        self.computes_loss = True
        try:
            with muted_metrics(module):
                yield
        except BaseException:
            self.close()  # nothing of the batch stays in the module, which callbacks may save
            raise
        finally:
            self.computes_loss = False

    def epsilon(self) -> float:
        assert self._run is not None
        return self._run.epsilon(delta=self._declared["delta"])

    def stop_if_finished(self, trainer: Any) -> bool:
        """Have the trainer stop if no step is left, and tell whether that is so."""
        if (run := self._run) is None or run.steps_left:
            return False
        trainer.should_stop = True
        if trainer.global_step < run.steps:
            warnings.warn(
                f"all {run.steps} steps of this run are spent, {run.steps_lost} of them after the checkpoint that it "
                "went on from: no more training fits in its budget. Save checkpoints more often",
                stacklevel=2,
            )
        return True

    def facts(self) -> dict[str, Any] | None:
        """What a checkpoint says of the run, whose records have a fingerprint beside the ledger."""
        if (run := self._run) is None or run.ledger.path is None:  # another rank writes the checkpoint
            return self._last
        folder = _fingerprint_of(run.ledger.path, run.terms.run)
        if run.steps_left and not folder.is_dir():
            folder.mkdir(parents=True)
            Fingerprint.of(self._loader.dataset).write(folder)
        facts = run.saved(folder, learned={}, extras={}).facts()
        return facts | {"ledger": str(run.ledger.path.resolve()), _DECLARED: dict(self._told)}

    def close(self) -> None:
        if (run := self._run) is None:
            return
        try:
            self._last = self.facts()
        finally:
            if not run.steps_left and run.ledger.path is not None:  # the fingerprint of its records has no more use
                folder = _fingerprint_of(run.ledger.path, run.terms.run)
                shutil.rmtree(folder, ignore_errors=True)
                with suppress(OSError):
                    folder.parent.rmdir()  # if it was the last one
            self._hook.remove()
            run.close()
            self._run, self._batches = None, iter(())
            if self.boundary is not None:
                self.boundary.close()
                self.boundary = None


def _changed(rows: Any, hooks: Sequence[Callable[..., Any]]) -> Any:
    return reduce(lambda changed, hook: hook(changed, 0), hooks, rows)


def _loss_of_one(step: Callable[..., Any], hooks: Sequence[Any], numbers: object, module: Any, rows: Any) -> Tensor:
    """The loss of one record: the user's hooks of transfer and ``training_step``, with a batch of one."""
    output = step(_changed(rows, hooks))
    loss = output.get("loss") if isinstance(output, Mapping) else output
    if loss is None:  # whether a record takes part would depend on the record
        raise PrivacyError("training_step returned no loss for a record; return one for each: such as 0 * output.sum()")
    return loss


def _step(optimizer: Any, closure: Callable[[], Any] | None = None) -> None:
    """The step of an optimizer of Lightning's, which otherwise gives the optimizer a closure, also without one."""
    optimizer._on_before_step()
    optimizer.optimizer.step(*(() if closure is None else (closure,)))
    optimizer._on_after_step()


def _after_release(module: Any, optimizer: Any, *_: object) -> None:
    for callback in module.trainer.callbacks:
        callback.on_before_optimizer_step(module.trainer, module, optimizer)
    module.on_before_optimizer_step(optimizer)


def _last_step(trainer: Any) -> int:
    lengths = trainer.max_epochs * trainer.num_training_batches, trainer.max_steps
    return min(length for length in lengths if length > -1)
