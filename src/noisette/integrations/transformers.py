"""Hugging Face's ``Trainer`` with differential privacy: same models, data sets, callbacks and checkpoints.

Needs ``pip install noisette[transformers]``.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import Trainer, TrainerState, TrainingArguments
from transformers.trainer_utils import TrainOutput, get_last_checkpoint

from noisette.clipping.per_example import PerExampleClip
from noisette.integrations.tokenized_records import bucketed
from noisette.run.private import PrivateRun
from noisette.run.privatize import privatize
from noisette.sampling.poisson import Batch

_RUN = "private-run"  # folder of the run's own checkpoint, inside of one of the trainer
_STATE = "trainer_state.json"


@dataclass
class PrivateTrainingArguments(TrainingArguments):
    """``TrainingArguments`` with a privacy budget.

    ``max_grad_norm`` is the clipping norm of one example. ``per_device_train_batch_size`` times
    ``gradient_accumulation_steps`` is the expected size of a Poisson batch; the former is also the size of a
    microbatch. An epoch is as many steps as give each record one expected turn.

    Args:
        epsilon: the privacy budget of the training, together with everything in ``ledger``.
        delta: probability with which epsilon may fail; below one over ``public_size``.
        noise_multiplier: instead of, or within, ``epsilon``: standard deviation of the noise in units of the clipping
            norm.
        public_size: declared number of training records. It is not computed from the data set.
        bucket_edges: the lengths to which texts are padded, ascending; a longer text is cut. Chosen without looking at
            private lengths.
        ledger: the file that records every release; ``ledger.jsonl`` in the output folder unless given.

    Raises:
        ValueError: a number is missing, or a setting contradicts the guarantee; all problems are listed.
    """

    epsilon: float | None = field(default=None, metadata={"help": "Privacy budget of the training."})
    delta: float | None = field(default=None, metadata={"help": "Probability with which epsilon may fail."})
    noise_multiplier: float | None = field(default=None, metadata={"help": "Noise, in units of the clipping norm."})
    public_size: int | None = field(default=None, metadata={"help": "Declared number of training records."})
    bucket_edges: tuple[int, ...] = field(
        default=(16, 32, 64, 128, 256, 512), metadata={"help": "Lengths to which texts are padded."}
    )
    ledger: str | None = field(default=None, metadata={"help": "The file that records every release."})

    def __post_init__(self) -> None:
        super().__post_init__()
        if problems := list(self._problems()):
            raise ValueError("\n".join(problems))

    @property
    def expected_batch_size(self) -> int:
        """Examples of a step on average: the constant that the noised sum is divided by."""
        return self.per_device_train_batch_size * self.gradient_accumulation_steps

    def _problems(self) -> Any:
        """Each setting that is missing or contradicts the guarantee, with the way out."""
        if self.epsilon is None and self.noise_multiplier is None:
            yield "declare epsilon, the privacy budget, or noise_multiplier"
        if self.delta is None:
            yield "declare delta, below one over the number of records, such as 1e-5"
        if self.public_size is None:
            yield "declare public_size, the number of training records; it is not read from the data set"
        elif self.expected_batch_size > self.public_size:
            yield (
                f"a batch of {self.expected_batch_size} examples is larger than public_size={self.public_size}; lower "
                "per_device_train_batch_size or gradient_accumulation_steps"
            )
        if not self.max_grad_norm or self.max_grad_norm <= 0:
            yield f"expected max_grad_norm above 0, the clipping norm of one example, got {self.max_grad_norm}"
        for name, why in _REFUSED.items():
            if getattr(self, name, None):
                yield f"{name}={getattr(self, name)!r}: {why}"


_REFUSED = {
    "fp16": "a gradient scaler changes gradients after the noise; use bf16=True",
    "auto_find_batch_size": "the batch size is declared; a microbatch that does not fit is halved anyway",
    "dataloader_drop_last": "Poisson batches have no last one; leave it out",
    "torch_compile": "the private step is captured and compiled by itself; leave it out",
    "deepspeed": "its engine steps by itself; start ranks with torchrun instead",
    "fsdp": "shard the model with fully_shard and train it with noisette.privatize",
    "use_liger_kernel": "its kernels compute the gradients of a whole batch; leave it out",
}


class PrivateTrainer(Trainer):
    """Hugging Face's ``Trainer``, whose ``train`` releases noised sums of clipped per-example gradients alone.

    Callbacks, evaluation, learning-rate schedules, saving, resuming and PEFT models work as in ``Trainer``. Each record
    is collated alone and padded to the bucket of its own length, so no record sees another one's length. The training
    loss is private and is not logged: logs have the learning rate and the epsilon spent so far.

    Args:
        model, args, data_collator, train_dataset, ...: as for ``Trainer``; ``args`` are
            :class:`PrivateTrainingArguments`.

    Guarantee: that of :func:`noisette.privatize` for the training records: all weights, checkpoints and logs of
    ``train`` together are (epsilon, delta)-differentially private. Evaluation, and choices made by it
    (``load_best_model_at_end``), are not covered for the records of ``eval_dataset``.

    """

    args: PrivateTrainingArguments
    model: Any  # a module; ``Trainer`` leaves it out where it makes one itself
    optimizer: Any  # an optimizer and a schedule of torch, once ``train`` has created them
    lr_scheduler: Any

    def train(self, resume_from_checkpoint: str | bool | None = None) -> TrainOutput:  # type: ignore[override]
        """Train within the budget, and return the number of steps, the time and the epsilon spent.

        Args:
            resume_from_checkpoint: a checkpoint of this trainer, or true for the latest in the output folder.

        Raises:
            TypeError: the arguments are no :class:`PrivateTrainingArguments`, or there is no training set.
            ValueError, PrivacyError: as by :func:`noisette.privatize`, or there is no such checkpoint.
        """
        if not isinstance(self.args, PrivateTrainingArguments):
            raise TypeError(f"expected args=PrivateTrainingArguments(...), got a {type(self.args).__name__}")
        started = time.time()
        self.model.train()
        clip = PerExampleClip(self.model, max_grad_norm=float(self.args.max_grad_norm))
        try:
            self.create_optimizer()
            with self._run(clip, _checkpoint(resume_from_checkpoint, self.args)) as run:
                self._train(run)
                epsilon = self._epsilon(run)
        finally:
            clip.close()
        metrics = {"train_runtime": time.time() - started, "epsilon": epsilon}
        self.log(dict(metrics))
        self.control = self.callback_handler.on_train_end(self.args, self.state, self.control)
        if self.args.load_best_model_at_end and self.state.best_model_checkpoint is not None:
            self._load_best_model()
        return TrainOutput(self.state.global_step, math.nan, metrics)

    def get_train_dataloader(self) -> Any:
        """Refused: batches of the training set are Poisson samples that the run draws.

        Raises:
            TypeError: always.
        """
        raise TypeError("a PrivateTrainer has no training loader: the private run draws its batches; call train()")

    # The run

    def _run(self, clip: PerExampleClip, checkpoint: Path | None) -> PrivateRun:
        """A new run, or that of a checkpoint; the trainer's state and schedule follow it."""
        args = self.args
        collate = self._get_collator_with_removed_columns(self.data_collator, "training")
        pad_token = getattr(self.processing_class, "pad_token_id", None) or 0
        records = bucketed(self.train_dataset, collate, args.bucket_edges, pad_token)
        ledger = Path(args.ledger) if args.ledger else _folder(args) / "ledger.jsonl"
        ledger.parent.mkdir(parents=True, exist_ok=True)
        if checkpoint is not None:
            run = PrivateRun.resume(checkpoint / _RUN, clip, self.optimizer, records)
            self.state = TrainerState.load_from_json(str(checkpoint / _STATE))
        else:
            run = privatize(
                clip,
                self.optimizer,
                records,
                expected_batch_size=args.expected_batch_size,
                public_size=args.public_size,
                epochs=None if args.max_steps > 0 else args.num_train_epochs,
                steps=args.max_steps if args.max_steps > 0 else None,
                epsilon=args.epsilon,
                delta=args.delta,
                noise_multiplier=args.noise_multiplier,
                ledger=ledger,
            )
            self.state = TrainerState(train_batch_size=args.per_device_train_batch_size)
        self.state.max_steps, self.state.num_train_epochs = run.steps, math.ceil(run.steps * run.sampling_rate)
        self.state.compute_steps(args, run.steps)
        self.create_scheduler(num_training_steps=run.steps, optimizer=self.optimizer)
        for _ in range(run.steps_taken):
            self.lr_scheduler.step()
        return run

    def _train(self, run: PrivateRun) -> None:
        """All steps that remain."""
        steps_of_epoch = max(1, round(1 / run.sampling_rate))
        self._call("on_train_begin")
        for batch in run.batches():
            self.state.global_step = run.steps_taken
            if run.steps_taken % steps_of_epoch == 0:
                self._call("on_epoch_begin")
            self._call("on_step_begin")
            self._step(run, batch)
            self.state.global_step, self.state.epoch = run.steps_taken, run.steps_taken * run.sampling_rate
            self._call("on_step_end")
            self._follow_up(run)
            if run.steps_taken % steps_of_epoch == 0 or run.steps_taken == run.steps:
                self._call("on_epoch_end")
                self._follow_up(run)
            if self.control.should_training_stop or self.control.should_epoch_stop:
                break

    def _step(self, run: PrivateRun, batch: Batch) -> None:
        """One release and the step of the optimizer."""
        for inputs in batch.microbatches(self.args.per_device_train_batch_size):
            with self.compute_loss_context_manager():
                run.accumulate(self._loss, self._prepare_inputs(inputs))
        self._call("on_pre_optimizer_step")
        self.optimizer.step()
        self._call("on_optimizer_step")
        self.lr_scheduler.step()
        self.optimizer.zero_grad()

    def _loss(self, model: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
        """The loss of one record, by ``compute_loss``, which may be overridden."""
        loss = self.compute_loss(model, dict(inputs))
        return loss[0] if isinstance(loss, tuple) else loss

    def _follow_up(self, run: PrivateRun) -> None:
        """What callbacks have asked for: logs, evaluation, a checkpoint."""
        if self.control.should_log:
            self.control.should_log = False
            self.log({"learning_rate": self._get_learning_rate(), "epsilon": self._epsilon(run)})
        if self.control.should_evaluate:
            self.control.should_evaluate = False
            metrics = self.evaluate()
            self._determine_best_metric(metrics, trial=None)
            self.model.train()
        if self.control.should_save:
            self.control.should_save = False
            self._save_private_checkpoint(run)
            self._call("on_save")

    def _save_private_checkpoint(self, run: PrivateRun) -> None:
        folder = _folder(self.args) / f"checkpoint-{run.steps_taken}"
        self.save_model(str(folder), _internal_call=True)
        run.save(folder / _RUN)
        best = _folder(self.args) / f"checkpoint-{self.state.best_global_step}"
        if best.is_dir():
            self.state.best_model_checkpoint = str(best)
        self.state.save_to_json(str(folder / _STATE))
        for old in _outdated(_folder(self.args), self.args.save_total_limit, self.state.best_model_checkpoint):
            shutil.rmtree(old)

    def _epsilon(self, run: PrivateRun) -> float:
        assert self.args.delta is not None, "checked by the arguments"
        return run.epsilon(delta=self.args.delta)

    def _call(self, event: str) -> None:
        """Tell the callbacks of an event."""
        self.control = getattr(self.callback_handler, event)(self.args, self.state, self.control)


def _checkpoint(asked: str | bool | None, args: TrainingArguments) -> Path | None:
    """The folder to resume from.

    Raises:
        ValueError: there is none, or it was not written by a :class:`PrivateTrainer`.
    """
    if not asked:
        return None
    found = get_last_checkpoint(str(_folder(args))) if asked is True else asked
    if found is None:
        raise ValueError(f"there is no checkpoint in {args.output_dir}; train without resume_from_checkpoint")
    if not Path(found, _RUN).is_dir():
        raise ValueError(f"{found} has no folder {_RUN}: it was not written by a PrivateTrainer")
    return Path(found)


def _folder(args: TrainingArguments) -> Path:
    assert args.output_dir is not None, "set by TrainingArguments"
    return Path(args.output_dir)


def _outdated(folder: Path, most: int | None, best: str | None) -> list[Path]:
    """The checkpoints beyond the latest ``most``, without the best one."""
    found = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    return [] if not most else [path for path in found[:-most] if best is None or path != Path(best)]
