"""Hugging Face's ``Trainer`` with differential privacy: same models, data sets, callbacks and checkpoints.

Needs ``pip install noisette[transformers]``.
"""

from __future__ import annotations

import math
import shutil
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau
from transformers import Trainer, TrainerState, TrainingArguments
from transformers.trainer_utils import TrainOutput, get_last_checkpoint

from noisette.clipping.per_example import PerExampleClip
from noisette.core.batches import Batch
from noisette.integrations.tokenized_records import bucketed
from noisette.integrations.transformers_arguments import PrivateTrainingArguments, declared
from noisette.integrations.transformers_surroundings import Surroundings
from noisette.run.checkpoint import SavedRun
from noisette.run.declared_again import check_declared_again
from noisette.run.private import PrivateRun
from noisette.run.privatize import privatize

__all__ = ["PrivateTrainer", "PrivateTrainingArguments"]

_RUN = "private-run"  # folder of the run's own checkpoint, inside of one of the trainer
_STATE = "trainer_state.json"


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
    (``load_best_model_at_end``, ``reduce_lr_on_plateau``), are not covered for the records of ``eval_dataset``.
    ``compute_loss`` is a loss as of :meth:`noisette.PrivateRun.accumulate`: it keeps nothing between its calls, and
    what it prints, or writes otherwise than by ``self.log``, is yours.
    """

    args: PrivateTrainingArguments
    model: Any  # a module; ``Trainer`` leaves it out where it makes one itself
    optimizer: Any  # an optimizer and a schedule of torch, once ``train`` has created them
    lr_scheduler: Any
    _surroundings: Surroundings | None = None  # of a training

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
        self._checkpoint_activations()
        clip = PerExampleClip(self.model, max_grad_norm=float(self.args.max_grad_norm))
        self.is_in_train = True  # so that evaluation leaves the type of the weights as it is
        try:
            self.create_optimizer()
            with self._run(clip, _checkpoint(resume_from_checkpoint, self.args)) as run:
                self._surroundings = Surroundings(self)
                self._train(run)
                epsilon = self._epsilon(run)
        finally:
            self.is_in_train, self._surroundings = False, None
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

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As always, but for values of ``compute_loss`` of training records, which are private and left out."""
        if self._surroundings is None or not self._surroundings.is_loss_computed:
            super().log(logs, start_time)

    # The run

    def _run(self, clip: PerExampleClip, checkpoint: Path | None) -> PrivateRun:
        """A new run, or that of a checkpoint; the trainer's state and schedule follow it."""
        args = self.args
        collate = self._get_collator_with_removed_columns(self.data_collator, "training")
        pad_token = getattr(self.processing_class, "pad_token_id", None) or 0
        more = args.padded_fields or {}
        records = bucketed(self.train_dataset, collate, args.bucket_edges, pad_token, self.model, more)
        if self._created_lr_scheduler:  # of an earlier training
            self.lr_scheduler, self._created_lr_scheduler = None, False
        run = self._new_run(clip, records) if checkpoint is None else self._run_of(checkpoint, clip, records)
        self.state.max_steps = run.steps
        self.state.compute_steps(args, run.steps)
        return run

    def _new_run(self, clip: PerExampleClip, records: Any) -> PrivateRun:
        args = self.args
        ledger = Path(args.ledger) if args.ledger else _folder(args) / "ledger.jsonl"
        ledger.parent.mkdir(parents=True, exist_ok=True)
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
        _warn_of_what_is_spent(run, args)
        self.state = TrainerState(train_batch_size=args.per_device_train_batch_size)
        self._create_scheduler(run.steps)
        return run

    def _run_of(self, checkpoint: Path, clip: PerExampleClip, records: Any) -> PrivateRun:
        """The run of a checkpoint. The schedule is there before the optimizer gets its learning rates back."""
        saved = SavedRun.read(checkpoint / _RUN)
        now = declared(self.args)
        check_declared_again(dict.fromkeys(now) | saved.extras.get("declared", {}), now)
        self._create_scheduler(saved.terms.steps)
        run = PrivateRun.resume(checkpoint / _RUN, clip, self.optimizer, records)
        self.lr_scheduler.load_state_dict(run.extras["schedule"])
        self.state = TrainerState.load_from_json(str(checkpoint / _STATE))
        return run

    def _create_scheduler(self, steps: int) -> None:
        """The schedule of the learning rate.

        Raises:
            ValueError: it follows a metric, and there is none.
        """
        self.create_scheduler(num_training_steps=steps, optimizer=self.optimizer)
        has_metric = self.args.eval_strategy != "no" and self.args.metric_for_best_model is not None
        if self._follows_a_metric and not has_metric:
            raise ValueError(
                f"a {type(self.lr_scheduler).__name__} follows a metric of the evaluation: give eval_strategy and "
                "metric_for_best_model; the training loss is private"
            )

    @property
    def _follows_a_metric(self) -> bool:
        """Whether the schedule goes on at each evaluation, not at each step."""
        return isinstance(self.lr_scheduler, ReduceLROnPlateau) or type(self.lr_scheduler).__name__ == "GreedyLR"

    def _checkpoint_activations(self) -> None:
        """Have the model recompute activations, if the arguments say so; as ``Trainer`` does."""
        args, model = self.args, self.model
        if not getattr(args, "activation_checkpointing", args.gradient_checkpointing):
            return
        given = getattr(args, "activation_checkpointing_kwargs", args.gradient_checkpointing_kwargs)
        others: dict[str, Any] = dict(given) if isinstance(given, Mapping) else {}
        if hasattr(model, "activation_checkpointing_enable"):
            layers, offload = others.pop("every_n_layers", 1), others.pop("offload", False)
            model.activation_checkpointing_enable(others or None, every_n_layers=layers, offload=offload)
        else:
            model.gradient_checkpointing_enable(others or None)

    def _train(self, run: PrivateRun) -> None:
        """All steps that remain, in epochs that callbacks may end."""
        steps_of_epoch = math.ceil(round(1 / run.sampling_rate, 9))
        self.state.num_train_epochs = math.ceil(run.steps / steps_of_epoch)
        batches = run.batches()
        self._call("on_train_begin")
        if self.args.eval_on_start:
            self._evaluate(None, None, skip_scheduler=True)
        epoch, done = divmod(round((self.state.epoch or 0) * steps_of_epoch), steps_of_epoch)
        while run.steps_left and epoch < self.state.num_train_epochs:
            self._call("on_epoch_begin")
            for k in range(done, steps_of_epoch):
                self._step_of_epoch(run, batches, (epoch * steps_of_epoch + k + 1) / steps_of_epoch)
                if self.control.should_training_stop or self.control.should_epoch_stop or not run.steps_left:
                    break
            self._call("on_epoch_end")
            self._follow_up(run)
            if self.control.should_training_stop:
                break
            epoch, done = epoch + 1, 0

    def _step_of_epoch(self, run: PrivateRun, batches: Iterator[Batch], epoch: float) -> None:
        """A step, after which so much of the epochs has passed, and what callbacks ask for."""
        batch = next(batches)
        self.state.global_step = run.steps_taken
        self._call("on_step_begin")
        self._step(run, batch)
        self.state.global_step, self.state.epoch = run.steps_taken, epoch
        self._call("on_step_end")
        self._follow_up(run)

    def _step(self, run: PrivateRun, batch: Batch) -> None:
        """One release and the step of the optimizer."""
        assert self._surroundings is not None, "set by train"
        for rows in batch.microbatches(self.args.per_device_train_batch_size):
            inputs = self._prepare_inputs(rows)
            with self.compute_loss_context_manager(), self._surroundings.loss() as loss:
                run.accumulate(loss, inputs)
        self._call("on_pre_optimizer_step")
        self.optimizer.step()
        self._call("on_optimizer_step")
        if not self._follows_a_metric:
            self.lr_scheduler.step()
        self.optimizer.zero_grad()

    def _follow_up(self, run: PrivateRun) -> None:
        """What callbacks have asked for: logs, evaluation, a checkpoint."""
        if self.control.should_log:
            self.control.should_log = False
            self.log({"learning_rate": self._get_learning_rate(), "epsilon": self._epsilon(run)})
        if self.control.should_evaluate:
            self.control.should_evaluate = False
            metrics = self._evaluate(None, None)
            is_best = self._determine_best_metric(metrics, trial=None)
            if self.args.save_strategy == "best":
                self.control.should_save = is_best
            self.model.train()
        if self.control.should_save:
            self.control.should_save = False
            self._save_private_checkpoint(run)
            self._call("on_save")

    def _save_private_checkpoint(self, run: PrivateRun) -> None:
        folder = _folder(self.args) / f"checkpoint-{run.steps_taken}"
        self.save_model(str(folder), _internal_call=True)
        run.save(folder / _RUN, {"declared": declared(self.args), "schedule": self.lr_scheduler.state_dict()})
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


def _warn_of_what_is_spent(run: PrivateRun, args: PrivateTrainingArguments) -> None:
    """Warn where a new run has little of its budget, because its ledger holds an earlier one."""
    assert args.delta is not None, "checked by the arguments"
    earlier = sum(run.terms.beside(run.ledger).values())
    if not earlier or args.epsilon is None:
        return
    spent = run.epsilon(delta=args.delta)
    warnings.warn(
        f"{run.ledger.path} holds {earlier} earlier releases, which have spent epsilon={spent:.4g} of "
        f"{args.epsilon:g}: within the rest, this training has noise multiplier {run.noise_multiplier:.4g}. For other "
        "records give another output_dir or ledger; for the same ones take a larger epsilon, or go on with the "
        "earlier training by resume_from_checkpoint",
        stacklevel=4,
    )


def _folder(args: TrainingArguments) -> Path:
    assert args.output_dir is not None, "set by TrainingArguments"
    return Path(args.output_dir)


def _outdated(folder: Path, most: int | None, best: str | None) -> list[Path]:
    """The checkpoints beyond the latest ``most``, without the best one."""
    found = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    return [] if not most else [path for path in found[:-most] if best is None or path != Path(best)]
