"""Settings of Lightning that contradict the guarantee, each with the way out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler

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


def problems_of_trainer(trainer: Any) -> Iterator[str]:
    """What contradicts the guarantee in a trainer's arguments."""
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


def problems_of_compilation(module: Any) -> Iterator[str]:
    """What is wrong with a module that is given to ``fit`` compiled."""
    if getattr(module, "_compiler_ctx", None) is not None:
        yield "torch.compile: the private step is captured and compiled by itself; give fit the module itself"


def problems_of_loader(loader: Any) -> Iterator[str]:
    """What is wrong with a loader of the training records, of which data set, batch size and collation are taken."""
    if not isinstance(loader, DataLoader):
        yield f"expected one DataLoader of the training records, got a {type(loader).__name__}"
        return
    if isinstance(loader.dataset, IterableDataset):
        yield (
            "the training records are an IterableDataset: Poisson batches need a data set with len and indexing, such "
            "as list(dataset)"
        )
        return
    if not loader.batch_size:
        yield "the training loader has no batch_size, the expected size of a batch: give it one, not a batch_sampler"
    sampler = loader.sampler
    if not isinstance(sampler, RandomSampler | SequentialSampler) or getattr(sampler, "replacement", False):
        yield (
            f"the training loader has a {type(sampler).__name__}: batches are Poisson samples, in which each record is "
            "with the same probability; leave the sampler out"
        )
