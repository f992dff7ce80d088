"""The private runs of a Lightning module: what is refused, what a checkpoint keeps, and the steps of a ``fit``."""

from __future__ import annotations

import math
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler

from noisette.core.batches import Batch
from noisette.errors import PrivacyError
from noisette.integrations.boundary import WHOLE, Boundary
from noisette.run.checkpoint import Fingerprint, SavedRun, capture_state, check_declared_again
from noisette.run.per_example import PerExampleClip
from noisette.run.private import PrivateRun, privatize


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
    """In the place of each metric; always the same object, as a captured step expects."""

    def forward(self, *_: object, **__: object) -> NotComputed:
        return NotComputed()

    compute = update = reset = forward


_MUTED = _Muted()


@contextmanager
def muted_metrics(module: nn.Module) -> Iterator[None]:
    """Within it, metrics that the module holds do nothing."""
    held = [
        (part._modules, name, metric)
        for part in module.modules()
        if not _is_metric(part)
        for name, metric in part._modules.items()
        if _is_metric(metric)
    ]
    for modules, name, _ in held:
        modules[name] = _MUTED
    try:
        yield
    finally:
        for modules, name, metric in held:
            modules[name] = metric


def _is_metric(part: object) -> bool:
    return any(
        base.__name__ in ("Metric", "MetricCollection") and base.__module__.startswith("torchmetrics.")
        for base in type(part).__mro__
    )


_MODULES = ("lightning.pytorch.core.module", "pytorch_lightning.core.module")
_PRECISIONS = ("32-true", "64-true", "bf16-mixed")
_STRATEGIES = ("SingleDeviceStrategy", "DDPStrategy")
_FINDERS = {
    "LearningRateFinder": "it trains on the records without a price; choose the rate on public records",
    "BatchSizeFinder": "the batch size is declared; memory is bounded by microbatches",
    "GradientAccumulationScheduler": "the batch size is declared; memory is bounded by microbatches",
}
_OWN_HOOKS = {
    "optimizer_step": "the private step calls the optimizer; change the rate by a scheduler",
    "backward": "gradients are computed for each record alone",
    "configure_gradient_clipping": "each record is clipped to max_grad_norm",
}


def module_of_lightning(module: Any) -> type | None:
    """The class ``LightningModule`` that a module is of, from ``lightning`` or ``pytorch_lightning``."""
    for base in type(module).__mro__:
        if base.__name__ == "LightningModule" and base.__module__ in _MODULES:
            return base
    return None


def problems_of_module(module: Any) -> Iterator[str]:
    """What is wrong with a module of Lightning, before it is private."""
    lightning = module_of_lightning(module)
    if lightning is None:
        yield f"expected a LightningModule, got a {type(module).__name__}"
        return
    for hook in ("training_step", "configure_optimizers"):
        if getattr(type(module), hook, None) is getattr(lightning, hook):
            yield f"{type(module).__name__} has no {hook}"
    for hook, why in _OWN_HOOKS.items():
        if getattr(type(module), hook) is not getattr(lightning, hook):
            yield f"{type(module).__name__} overrides {hook}: {why}"


def problems_of_fit(module: Any) -> Iterator[str]:
    """What contradicts the guarantee in a module that is given to ``fit``, and in its trainer's arguments."""
    trainer = module.trainer
    if trainer.accumulate_grad_batches != 1:
        yield (
            f"accumulate_grad_batches={trainer.accumulate_grad_batches}: give the loader the whole batch_size; memory "
            "is bounded by microbatches"
        )
    if trainer.gradient_clip_val:
        yield f"gradient_clip_val={trainer.gradient_clip_val}: each record is clipped to max_grad_norm; leave it out"
    if trainer.precision not in _PRECISIONS:
        yield f'precision="{trainer.precision}": use one of {", ".join(_PRECISIONS)}'
    if trainer.fast_dev_run or trainer.overfit_batches:
        name = "fast_dev_run" if trainer.fast_dev_run else "overfit_batches"
        yield f"{name}: each step on private records has its price; try the module on public ones, without make_private"
    elif trainer.limit_train_batches != 1.0:
        yield f"limit_train_batches={trainer.limit_train_batches}: shorten the training by max_steps"
    if type(trainer.strategy).__name__ not in _STRATEGIES:
        yield f'strategy {type(trainer.strategy).__name__}: use strategy="ddp", or shard with noisette.privatize'
    elif getattr(trainer.strategy, "_start_method", "popen") != "popen":
        yield 'a strategy that spawns or forks: use strategy="ddp", which starts the script once for each device'
    if trainer.max_epochs == -1 and trainer.max_steps == -1:
        yield "max_epochs=-1: declare max_epochs or max_steps; the noise depends on the number of steps"
    for callback in trainer.callbacks:
        for base in type(callback).__mro__:
            if base.__name__ in _FINDERS:
                yield f"the callback {type(callback).__name__}: {_FINDERS[base.__name__]}"
    if getattr(module, "_compiler_ctx", None) is not None:
        yield "torch.compile: the private step is captured and compiled by itself; give fit the module itself"


def problems_of_loader(loader: Any) -> Iterator[str]:
    """What is wrong with a loader of the training records, of which data set, batch size and collation are taken."""
    if not isinstance(loader, DataLoader):
        yield f"expected one DataLoader of the training records, got a {type(loader).__name__}"
    elif isinstance(loader.dataset, IterableDataset):
        yield (
            "the training records are an IterableDataset: Poisson batches need a data set with len and indexing, such "
            "as list(dataset)"
        )
    elif not loader.batch_size:
        yield "the training loader has no batch_size, the expected size of a batch: give it one, not a batch_sampler"
    elif not isinstance(loader.sampler, RandomSampler | SequentialSampler) or getattr(
        loader.sampler, "replacement", False
    ):
        yield (
            f"the training loader has a {type(loader.sampler).__name__}: batches are Poisson samples, in which each "
            "record is with the same probability; leave the sampler out"
        )


_DECLARED = "declared"
_RECORDS = "private-run"  # folder beside the ledger, with a folder for each unfinished run


def facts_of(run: PrivateRun, dataset: Any, declared: Mapping[str, float | None]) -> dict[str, Any]:
    """What a checkpoint says of a run with a ledger on disk, whose records have a fingerprint beside it."""
    assert run.ledger.path is not None
    folder = _fingerprint_of(run.ledger.path, run.terms.run)
    if run.steps_left and not folder.is_dir():
        folder.mkdir(parents=True)
        Fingerprint.of(dataset).write(folder)
    facts = run.saved(folder, learned={}, extras={}).facts()
    return facts | {"ledger": str(run.ledger.path.resolve()), _DECLARED: dict(declared)}


def forget_records(run: PrivateRun) -> None:
    """Delete the fingerprint of a run that has no steps left."""
    if run.steps_left or run.ledger.path is None:
        return
    folder = _fingerprint_of(run.ledger.path, run.terms.run)
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        folder.parent.rmdir()  # if it was the last one


def _fingerprint_of(ledger: Path, run: str) -> Path:
    return ledger.parent / _RECORDS / run


@dataclass(frozen=True)
class Declared:
    """What :func:`noisette.integrations.lightning.make_private` was given."""

    public_size: int
    delta: float
    epsilon: float | None
    noise_multiplier: float | None
    max_grad_norm: float
    microbatch_size: int | Literal["auto"]
    ledger: Path | None


class Step(int):
    """The number of a step within its epoch, which Lightning gets in place of a batch."""


class Steps:
    """A loader of step numbers: as many as give each record one expected turn."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __len__(self) -> int:
        return self._number

    def __iter__(self) -> Iterator[Step]:
        return map(Step, range(self._number))


class LightningRun:
    """The private runs of a module, one for each ``fit``."""

    def __init__(self, declared: Declared) -> None:
        self._declared = declared
        self._ledger = declared.ledger  # once chosen it is kept: later fits of the same weights add to it
        self._processes = 1
        self._source: Any = None  # of the training loader, as given to fit
        self._loader: Any = None
        self._refused: list[str] = []
        self._saved: Mapping[str, Any] | None = None  # what a checkpoint to go on from says of the run
        self._last: dict[str, Any] | None = None  # what a checkpoint says after the end of a fit
        self._run: PrivateRun | None = None
        self._declared_numbers: dict[str, float | None] = {}  # of the run
        self._read: set[str] = set()  # the numbers of the trainer that a loss has read
        self.computes_loss = False  # whether private values are being computed
        self.validated: set[str] | None = None  # what validation logs, where it was tried before the training
        self.boundary: Boundary | None = None  # of a module that steps its optimizer itself
        self.is_called = False  # whether the boundary calls the module

    def __deepcopy__(self, memo: dict[int, object]) -> LightningRun:
        return self  # a copy of the module, as for averages of weights, is of the same run

    # The start

    def take_over(self, module: Any) -> None:
        """Before a fit: check the trainer, and put the module in the place of its training loader."""
        trainer = module.trainer
        if problems := list(problems_of_fit(module)):
            raise ValueError("\n".join(problems))
        self.close()
        source = trainer.fit_loop._data_source
        self._source, source.instance = source.instance, module
        self._loader = self._saved = self.validated = None
        self._processes = trainer.world_size
        if self._processes > 1:  # the run adds up the ranks' gradients; a wrapper would wait for them in .grad
            trainer.strategy.configure_ddp = lambda: None

    def steps(self, module: Any, of_module: Any) -> Steps:
        """The loader for Lightning, once its data are set up; ``of_module`` makes the module's own.

        What is wrong is refused by :meth:`begin`: an error here would leave changes that Lightning makes meanwhile.
        """
        if self._loader is None:
            if self._source is module:
                loader = of_module()
            else:
                made = getattr(self._source, "train_dataloader", None)
                loader = made() if callable(made) else self._source
            self._refused = list(problems_of_loader(loader))
            if self._refused:
                return Steps(1)
            self._loader = loader
        return Steps(math.ceil(self._declared.public_size / self._batch_size * (1 - 1e-12)))

    @property
    def _batch_size(self) -> int:
        """Of all processes, of which each has a loader of its part."""
        return self._loader.batch_size * self._processes

    def go_on_from(self, saved: Mapping[str, Any] | None) -> None:
        """The next fit goes on from a checkpoint, of which this is the run's part."""
        if saved is None:
            raise ValueError(
                "ckpt_path is a checkpoint of a training without privacy; load its weights with load_from_checkpoint, "
                "if they are public, and call fit without ckpt_path"
            )
        self._saved = saved

    def begin(self, module: Any, step: Callable[..., Any], hooks: Sequence[Callable[..., Any]]) -> None:
        """Start the run, or go on with that of the checkpoint, when module and optimizer are ready.

        Args:
            module: the private module.
            step: its own ``training_step``, of a batch.
            hooks: the user's own, that change a batch on its way to the device.
        """
        if self._refused:
            raise ValueError("\n".join(self._refused))
        trainer = module.trainer
        (optimizer,) = trainer.optimizers
        folder = Path(trainer.strategy.broadcast(trainer.log_dir or trainer.default_root_dir))
        if self._processes > 1:
            module.load_state_dict(trainer.strategy.broadcast(module.state_dict()))
        clip = PerExampleClip(module, max_grad_norm=self._declared.max_grad_norm)
        if not module.automatic_optimization:
            self.boundary = Boundary(clip, optimizer, mean=True)
            for each in trainer.strategy._lightning_optimizers:
                each.step = partial(_step, each)
        try:
            run = self._new(clip, optimizer, trainer, folder) if self._saved is None else self._resumed(clip, trainer)
        except BaseException:
            clip.close()
            self._close_boundary()
            raise
        self._run, self._saved, self._declared_numbers = run, None, self._numbers(trainer)
        if self.boundary is not None:
            self.boundary.begin(run)
        self._batches = run.batches(to=module.device)
        self._step, self._hooks, self._convert = step, hooks, trainer.precision_plugin.convert_input
        self._hook = optimizer.register_step_pre_hook(partial(_after_release, module))

    def try_checkpoint(self, trainer: Any) -> None:
        """Write a checkpoint and delete it, so that one that cannot be written fails before the first release."""
        if trainer.checkpoint_callbacks and self._processes == 1:
            Path(trainer.default_root_dir).mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(prefix="rehearsal-", dir=trainer.default_root_dir) as folder:
                trainer.save_checkpoint(Path(folder, "first.ckpt"))

    def leaves_out(self, trainer: Any, *names: str) -> bool:
        """Whether values of these names are logged by a loss, and so are private and left out.

        Raises:
            PrivacyError: one is monitored, and validation does not log it: the end of the epoch would find nothing.
        """
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
        names = "public_size", "epsilon", "delta", "noise_multiplier", "max_grad_norm"
        numbers = {name: getattr(self._declared, name) for name in names}
        of_trainer = {"steps of max_epochs or max_steps": _last_step(trainer)}
        return numbers | of_trainer | {"batch size of the loader": self._batch_size}

    def _new(self, clip: PerExampleClip, optimizer: Any, trainer: Any, folder: Path) -> PrivateRun:
        self._ledger = (self._ledger or folder / "ledger.jsonl").resolve()
        self._ledger.parent.mkdir(parents=True, exist_ok=True)
        return privatize(
            clip,
            optimizer,
            self._loader.dataset,
            expected_batch_size=self._batch_size,
            public_size=self._declared.public_size,
            steps=_last_step(trainer) - trainer.global_step,
            epsilon=self._declared.epsilon,
            delta=self._declared.delta,
            noise_multiplier=self._declared.noise_multiplier,
            ledger=self._ledger,
            collate_fn=self._loader.collate_fn,
        )

    def _resumed(self, clip: PerExampleClip, trainer: Any) -> PrivateRun:
        """The run of a checkpoint whose weights and optimizer state Lightning has restored by now."""
        facts, (optimizer,) = dict(self._saved or {}), trainer.optimizers
        check_declared_again(facts.pop(_DECLARED, {}), self._numbers(trainer))
        ledger = self._ledger = self._declared.ledger or Path(facts["ledger"])
        folder = _fingerprint_of(ledger, facts["terms"]["run"])
        saved = SavedRun.told({**facts, "learned": capture_state(clip.model, optimizer)})
        given = {"ledger": ledger, "collate_fn": self._loader.collate_fn, "saved": saved}
        try:
            return PrivateRun.resume(folder, clip, optimizer, self._loader.dataset, **given)
        except FileNotFoundError as error:
            if folder.is_dir() or not ledger.is_file():
                raise
            raise FileNotFoundError(
                f"{folder} is not there, by which the run knows its records: move it along with its ledger"
            ) from error

    # A step

    def accumulate(self, module: Any) -> None:
        """Draw a batch and add up the clipped gradients of its records."""
        run, batch = self._next()
        try:
            for rows in batch.microbatches(self._declared.microbatch_size):
                # Numbers that a loss has read are given to it as well: a captured step is kept while they are the same.
                numbers = tuple([getattr(module, name) for name in sorted(self._read)])
                loss = partial(_loss_of_one, self._step, self._hooks, numbers)
                with self._computing(module):
                    run.accumulate(loss, self._convert(rows))
        except BaseException:
            self.close()  # nothing of the batch stays in the module, which callbacks may save
            raise

    def give_batch(self, module: Any) -> None:
        """Draw a batch and give it to a ``training_step`` that calls ``backward`` and steps the optimizer itself."""
        assert self.boundary is not None
        _, batch = self._next()
        self.boundary.begin_batch(len(batch.indices))
        if not len(batch.indices):  # the release is noise alone, and is made all the same
            module.optimizers().step()
            return
        rows = self._convert(next(batch.microbatches(WHOLE)))
        for hook in self._hooks:
            rows = hook(rows, 0)
        try:
            with self._computing(module):
                self._step(rows)
        except BaseException:
            self.close()
            raise

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
        """Within it the values that are computed are private: nothing is logged."""
        self.computes_loss = True
        try:
            with muted_metrics(module):
                yield
        finally:
            self.computes_loss = False

    def read(self, name: str) -> None:
        """A loss has read this number of the trainer."""
        if self.computes_loss:
            self._read.add(name)

    def epsilon(self) -> float:
        """What is spent so far, by everything in the ledger."""
        assert self._run is not None
        return self._run.epsilon(delta=self._declared.delta)

    def stop_if_finished(self, trainer: Any) -> bool:
        """Have the trainer stop if no step is left, and tell whether that is so."""
        run = self._run
        if run is None or run.steps_left:
            return False
        trainer.should_stop = True
        if trainer.global_step < run.steps:
            warnings.warn(
                f"all {run.steps} steps of this run are spent, {run.steps_lost} of them after the checkpoint that it "
                "went on from: no more training fits in its budget. Save checkpoints more often",
                stacklevel=2,
            )
        return True

    # The end

    def facts(self) -> dict[str, Any] | None:
        """What a checkpoint of Lightning says of the run: declared and released values, and where its ledger is."""
        run = self._run
        if run is None or run.ledger.path is None:  # another rank writes the checkpoint
            return self._last
        return facts_of(run, self._loader.dataset, self._declared_numbers)

    def close(self) -> None:
        """End the run, if there is one; what was reserved and not used is given back."""
        run = self._run
        if run is None:
            return
        try:
            self._last = self.facts()
        finally:
            forget_records(run)
            self._hook.remove()
            run.close()
            self._run, self._batches = None, iter(())
            self._close_boundary()

    def _close_boundary(self) -> None:
        if self.boundary is not None:
            self.boundary.close()
            self.boundary = None


def _loss_of_one(step: Callable[..., Any], hooks: Sequence[Any], numbers: object, module: Any, rows: Any) -> Tensor:
    """The loss of one record: the user's hooks of transfer and ``training_step``, with a batch of one."""
    for hook in hooks:
        rows = hook(rows, 0)
    output = step(rows)
    loss = output.get("loss") if isinstance(output, Mapping) else output
    if loss is None:  # whether a record takes part would depend on the record
        raise PrivacyError(
            "training_step returned no loss for a record; return a loss for each, such as 0 * the sum of the outputs"
        )
    return loss


def _step(optimizer: Any, closure: Callable[[], Any] | None = None) -> None:
    """The step of an optimizer of Lightning's, which otherwise gives the optimizer a closure, also without one."""
    optimizer._on_before_step()
    optimizer.optimizer.step(*(() if closure is None else (closure,)))
    optimizer._on_after_step()


def _after_release(module: Any, optimizer: Any, *_: object) -> None:
    """A hook before the optimizer's step, after the run's own: gradients are noised by now."""
    for callback in module.trainer.callbacks:
        callback.on_before_optimizer_step(module.trainer, module, optimizer)
    module.on_before_optimizer_step(optimizer)


def _last_step(trainer: Any) -> int:
    """The number of the step after which the trainer stops."""
    lengths = [trainer.max_epochs * trainer.num_training_batches] if trainer.max_epochs > -1 else []
    lengths += [trainer.max_steps] if trainer.max_steps > -1 else []
    return min(lengths)
