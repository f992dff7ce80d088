"""Hugging Face's ``Trainer`` with differential privacy: texts are padded alone, and no loss is logged.

Which fields are padded is decided by their names and the kind of model, never by the lengths met in the records.
"""

import copy
import math
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import Subset
from transformers import Trainer, TrainerState, TrainingArguments
from transformers.models.auto import modeling_auto
from transformers.trainer_callback import CallbackHandler, DefaultFlowCallback
from transformers.trainer_utils import TrainOutput, get_last_checkpoint

from noisette.core.batches import Batch
from noisette.errors import PrivacyError
from noisette.run.checkpoint import SavedRun, check_declared_again
from noisette.run.collation import PaddedBuckets, collated, row_of
from noisette.run.loading import record
from noisette.run.per_example import PerExampleClip
from noisette.run.private import PrivateRun, privatize

Collate = Callable[[list[Any]], Mapping[str, Any]]
_IGNORED_LABEL = -100  # which the losses of transformers leave out
_ONE_FOR_EACH_TOKEN = dict.fromkeys(
    ("attention_mask", "token_type_ids", "position_ids", "global_attention_mask", "mm_token_type_ids", "bbox"), 0.0
) | {"special_tokens_mask": 1.0}
_OF_TARGETS: dict[str, float] = {"decoder_attention_mask": 0, "labels": _IGNORED_LABEL}  # with a length of their own


def _classes(*kinds: str) -> set[str]:
    """Names of the model classes of these kinds; a version of transformers may lack a kind."""
    return {
        name
        for kind in kinds
        for entry in getattr(modeling_auto, f"MODEL_FOR_{kind}_MAPPING_NAMES", {}).values()
        for name in ([entry] if isinstance(entry, str) else entry)
    }


_OF_TOKENS = _classes("TOKEN_CLASSIFICATION")
_OF_TEXTS = _classes(
    *("CAUSAL_LM", "MASKED_LM", "PRETRAINING", "SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "VISION_2_SEQ"),
    *("IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM"),
)
_OF_CHOICES = _classes("MULTIPLE_CHOICE")


@dataclass(frozen=True)
class CollatedRecords:
    """Records as tensors, each made by the collator from that record alone; a resumed run knows them by the records."""

    known_by: Any
    collate: Collate

    def __len__(self) -> int:
        return len(self.known_by)

    def __getitem__(self, index: int) -> dict[str, Any]:
        made = self.collate([record(self.known_by, int(index))])
        one = row_of({name: _as_tensor(value) for name, value in made.items()})
        if "input_ids" in one and "attention_mask" not in one:  # so that padding is left out
            one["attention_mask"] = torch.ones_like(one["input_ids"])
        return one


def _as_tensor(value: Any) -> Any:
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):  # such as texts, which nobody may read
        return value


@dataclass(frozen=True)
class Padding:
    """How texts are padded: to buckets with these ``edges``; the kind of model says whether labels are."""

    edges: Sequence[int]
    pad_token: int
    model: nn.Module
    padded_fields: Mapping[str, float]

    def bucketed(self, records: Any, collate: Collate) -> Any:
        if not (hasattr(records, "__len__") and hasattr(records, "__getitem__")):
            raise TypeError(f"expected a train_dataset with len and indexing, got a {type(records).__name__}")
        padded: Any = CollatedRecords(records, collate)
        for fills in self._fills_of(padded):
            padded = PaddedBuckets(padded, self.edges, pad=fills)
        return padded

    def together(self, collate: Collate, records: list[Any]) -> Any:
        """A batch for evaluation: as in training, but all texts are padded to the bucket of the longest one."""
        padded = [CollatedRecords(records, collate)[index] for index in range(len(records))]
        for fills in self._fills_of(padded):
            largest = int(PaddedBuckets(padded, self.edges, pad=fills).buckets.max(initial=0))  # that holds a text
            alike = PaddedBuckets(padded, [self.edges[largest]], pad=fills)
            padded = [alike[index] for index in range(len(records))]
        return collated(padded)

    def _fills_of(self, records: Any) -> list[dict[int | str, float]]:
        """Fields of these that are as long as the text, and as its target, with what fills them up."""
        of_text: dict[str, float] = {"input_ids": self.pad_token} | _ONE_FOR_EACH_TOKEN
        of_target: dict[str, float] = {}
        inner = getattr(self.model, "get_base_model", lambda: self.model)()  # that of transformers within one of PEFT
        kinds = {kind.__name__ for kind in type(inner).__mro__}
        if kinds & _OF_CHOICES:  # the first axis of a record is that of the choices
            of_text = {}
        elif kinds & _OF_TEXTS and getattr(getattr(self.model, "config", None), "is_encoder_decoder", False):
            of_target = {"decoder_input_ids": self.pad_token} | _OF_TARGETS
        elif kinds & (_OF_TEXTS | _OF_TOKENS):
            of_text["labels"] = _IGNORED_LABEL
        more, names = self.padded_fields, records[0].keys() if len(records) else set()
        found = of_text | dict(more), {name: fill for name, fill in of_target.items() if name not in more}
        kept: list[dict[int | str, float]] = [{n: fill for n, fill in fills.items() if n in names} for fills in found]
        return [fills for fills in kept if fills]


_NUMBERS = (bool, int, float, str, type(None))


class _State:
    """The trainer's state while losses are computed: it takes down what is read of it."""

    def __init__(self, state: Any) -> None:
        self._state = state
        self._names_read: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self._names_read.add(name)
        return getattr(self._state, name)


def _loss_of_one(compute_loss: Any, numbers: str, model: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
    loss = compute_loss(model, dict(inputs))
    loss = loss[0] if isinstance(loss, tuple) else loss
    if loss is None:
        raise PrivacyError("compute_loss returned no loss for a record; return one for each, such as 0 * outputs.sum()")
    return loss


_OF_DDP = ("ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers", "ddp_static_graph")
_REFUSED = {
    "fp16": "a gradient scaler changes gradients after the noise; use bf16=True",
    "auto_find_batch_size": "the batch size is declared; a microbatch that does not fit is halved anyway",
    "dataloader_drop_last": "Poisson batches have no last one; leave it out",
    "torch_compile": "the private step is captured and compiled by itself; leave it out",
    "deepspeed": "its engine steps by itself; start ranks with torchrun instead",
    **dict.fromkeys(("fsdp", "parallelism_config"), "shard with fully_shard and train with noisette.privatize"),
    "neftune_noise_alpha": "register a forward hook on the embedding that adds this noise; leave it out",
    "use_liger_kernel": "its kernels compute the gradients of a whole batch; leave it out",
    "debug": "it prints values that the model computes of private records; leave it out",
    "include_num_input_tokens_seen": "the number of tokens in private records is not released; leave it out",
    "data_seed": "batches are drawn with a secret key; leave it out",
    "ignore_data_skip": "a run goes on with the steps that it has left, with fresh batches; leave it out",
    "restore_callback_states_from_checkpoint": "callbacks begin anew; leave it out",
    "enable_jit_checkpoint": "a checkpoint is written between steps alone; use save_steps",
    "save_only_model": "a checkpoint holds what it takes to go on; delete its folder private-run by yourself",
    "torch_empty_cache_steps": "memory is not handed back between steps; leave it out",
    **dict.fromkeys(_OF_DDP, "the run adds up the ranks' gradients by itself; leave it out"),
    "packing": "a row would hold several records; leave it out, or pack texts first and declare rows as the records",
    "padding_free": "rows are padded one by one; leave it out",
    "activation_offloading": "it is done in TRL's own step; use gradient_checkpointing=True",
    "loss_type": "the loss is the model's own; leave it out, or override compute_loss",
}


@dataclass
class PrivateTrainingArguments(TrainingArguments):
    """``TrainingArguments`` with a privacy budget.

    ``max_grad_norm`` is the clipping norm of one example. ``per_device_train_batch_size`` times
    ``gradient_accumulation_steps`` is the expected size of a Poisson batch; the former is also the size of a
    microbatch. An epoch is as many steps as give each record one expected turn. A ``ValueError`` lists every number
    that is missing, and every setting that contradicts the guarantee.

    Args:
        epsilon, delta, noise_multiplier, public_size: as for :func:`noisette.privatize`.
        bucket_edges: the lengths to which texts are padded, ascending, chosen without a look at private lengths; a
            longer text is cut.
        padded_fields: fields of a record, beside those of transformers, that have a value for each token, and what
            fills them up, such as ``{"tags": -100}``.
        ledger: the file that records every release; ``ledger.jsonl`` in the output folder unless given.
    """

    epsilon: float | None = None
    delta: float | None = None
    noise_multiplier: float | None = None
    public_size: int | None = None
    bucket_edges: tuple[int, ...] = (16, 32, 64, 128, 256, 512)
    padded_fields: dict | None = None
    ledger: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if problems := self._problems():
            raise ValueError("\n".join(problems))

    @property
    def expected_batch_size(self) -> int:
        return self.per_device_train_batch_size * self.gradient_accumulation_steps

    def _problems(self) -> list[str]:
        size, public, norm = self.expected_batch_size, self.public_size, self.max_grad_norm
        sampling, has_no_budget = getattr(self, "train_sampling_strategy", "random"), self.epsilon is None
        found: dict[str, object] = {
            "declare epsilon, the privacy budget, or noise_multiplier": has_no_budget and self.noise_multiplier is None,
            "declare delta, below one over the number of records, such as 1e-5": self.delta is None,
            "declare public_size, the number of training records; it is not read from the data set": public is None,
            f"a batch of {size} examples is larger than public_size={public}; lower per_device_train_batch_size or "
            "gradient_accumulation_steps": public is not None and size > public,
            f"expected max_grad_norm above 0, the clipping norm of one example, got {norm}": not norm or norm <= 0,
            f"train_sampling_strategy={sampling!r}: batches are Poisson samples; leave it out": sampling != "random",
        }
        given = {name: own for name in _REFUSED if (own := getattr(self, name, None)) and own not in ("no", "nll")}
        found |= {f"{name}={own!r}: {_REFUSED[name]}": True for name, own in given.items()}
        return [problem for problem, is_so in found.items() if is_so]


def declared(args: PrivateTrainingArguments) -> dict[str, float | str | None]:
    """What a run is told at its start, under the names of the arguments; a run that goes on must be told the same."""
    length = f"{args.max_steps} steps" if args.max_steps > 0 else f"{args.num_train_epochs:g} epochs"
    return {name: getattr(args, name) for name in ("epsilon", "delta", "noise_multiplier", "public_size")} | {
        "max_grad_norm": float(args.max_grad_norm),
        "per_device_train_batch_size * gradient_accumulation_steps": args.expected_batch_size,
        "max_steps or num_train_epochs": length,
    }


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
    _state_of_loss: _State | None = None  # of a training
    _is_silent = False

    def train(self, resume_from_checkpoint: str | bool | None = None) -> TrainOutput:  # type: ignore[override]
        """Train within the budget, and return the number of steps, the time and the epsilon spent.

        ``resume_from_checkpoint`` is a checkpoint of this trainer, or true for the latest in the output folder. Errors
        are those of :func:`noisette.privatize`.
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
                self._state_of_loss = _State(self.state)
                self._rehearse(run)
                self._train(run)
                epsilon = self._epsilon(run)
                self._set_optimizer("eval")
        finally:
            self.is_in_train, self._state_of_loss = False, None
            clip.close()
        metrics = {"train_runtime": time.time() - started, "epsilon": epsilon}
        self.log(dict(metrics))
        self.control = self.callback_handler.on_train_end(self.args, self.state, self.control)
        if self.args.load_best_model_at_end and self.state.best_model_checkpoint is not None:
            self._load_best_model()
        return TrainOutput(self.state.global_step, math.nan, metrics)

    def get_train_dataloader(self) -> Any:
        raise TypeError("a PrivateTrainer has no training loader: the private run draws its batches; call train()")

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """As always, with each record collated alone and padded as in training, to the longest bucket in its batch."""
        return self._padding_together(super().get_eval_dataloader, eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        return self._padding_together(super().get_test_dataloader, test_dataset)

    def _padding_together(self, made: Callable[[Any], Any], records: Any) -> Any:
        own, self.data_collator = self.data_collator, cast(Any, partial(self._padding.together, self.data_collator))
        try:
            return made(records)
        finally:
            self.data_collator = own

    @property
    def _padding(self) -> Padding:
        pad_token = getattr(self.processing_class, "pad_token_id", None) or 0
        return Padding(self.args.bucket_edges, pad_token, self.model, self.args.padded_fields or {})

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As always, but for values of ``compute_loss`` of training records, which are private and left out."""
        if not self._is_silent:
            super().log(logs, start_time)

    def _run(self, clip: PerExampleClip, checkpoint: Path | None) -> PrivateRun:
        collate = self._get_collator_with_removed_columns(self.data_collator, "training")
        records = self._padding.bucketed(self.train_dataset, collate)
        if self._created_lr_scheduler:  # of an earlier training
            self.lr_scheduler, self._created_lr_scheduler = None, False
        if checkpoint is None:
            run = self._new_run(clip, records)
            self.state = TrainerState(train_batch_size=self.args.per_device_train_batch_size)
            self._create_scheduler(run.steps)
        else:
            saved, now = SavedRun.read(checkpoint / _RUN), declared(self.args)
            check_declared_again(dict.fromkeys(now) | saved.extras.get("declared", {}), now)
            self._create_scheduler(saved.terms.steps)  # before the optimizer gets its learning rates back
            ledger = Path(self.args.ledger) if self.args.ledger else checkpoint.parent / "ledger.jsonl"
            run = PrivateRun.resume(checkpoint / _RUN, clip, self.optimizer, records, ledger=ledger)
            self.lr_scheduler.load_state_dict(run.extras["schedule"])
            self.state = TrainerState.load_from_json(str(checkpoint / _STATE))
        self.state.max_steps = run.steps
        self.state.compute_steps(self.args, run.steps)
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
        if args.epsilon is not None and (earlier := sum(run.terms.beside(run.ledger).values())):
            warnings.warn(
                f"{run.ledger.path} holds {earlier} earlier releases, which have spent epsilon={self._epsilon(run):.4g}"
                f" of {args.epsilon:g}: within the rest, this training has noise multiplier {run.noise_multiplier:.4g}."
                " For other records give another output_dir or ledger; for the same ones take a larger epsilon, or go "
                "on with the earlier training by resume_from_checkpoint",
                stacklevel=4,
            )
        return run

    def _create_scheduler(self, steps: int) -> None:
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

    def _rehearse(self, run: PrivateRun) -> None:
        """Try what could otherwise fail only after steps were paid for: an evaluation, its metrics, a checkpoint."""
        kept = self.callback_handler, self.state, self.control
        self.callback_handler = CallbackHandler([DefaultFlowCallback], *[None] * 4)
        self.state, self.control, self._is_silent = copy.deepcopy(self.state), copy.copy(self.control), True
        try:
            if self.args.eval_strategy != "no":
                self._determine_best_metric(self._metrics_of_few(), trial=None)
            if self.args.save_strategy != "no" and not run.steps_spent:
                with TemporaryDirectory(prefix="rehearsal-", dir=_folder(self.args)) as folder:
                    self._write_checkpoint(run, Path(folder))
                    size = sum(file.stat().st_size for file in Path(folder).rglob("*"))
                steps, most = self.state.save_steps, self.args.save_total_limit
                number = run.steps_left // steps if self.args.save_strategy == "steps" and steps else 1
                number = min(number, most + 1) if most else number
                if (free := shutil.disk_usage(_folder(self.args)).free) < number * size:
                    raise ValueError(
                        f"{number} checkpoints of {size:,} bytes or more do not fit in {self.args.output_dir}, where "
                        f"{free:,} bytes are free: give save_total_limit, larger save_steps or another output_dir. No "
                        "step was taken"
                    )
        finally:
            (self.callback_handler, self.state, self.control), self._is_silent = kept, False
        self.model.train()

    def _metrics_of_few(self) -> dict[str, float]:
        """Metrics of one batch; of all records where that fails, because a metric may need both classes, say."""
        sets = self.eval_dataset if isinstance(self.eval_dataset, dict) else {"": self.eval_dataset}
        if self.args.world_size == 1 and all(hasattr(records, "__len__") for records in sets.values()):
            few = {name: _first(records, self.args.eval_batch_size) for name, records in sets.items()}
            with suppress(Exception):
                return self.evaluate(few.get("", few))
        return self.evaluate()

    def _train(self, run: PrivateRun) -> None:
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
                self._step(run, next(batches), (epoch * steps_of_epoch + k + 1) / steps_of_epoch)
                if self.control.should_training_stop or self.control.should_epoch_stop or not run.steps_left:
                    break
            self._call("on_epoch_end")
            self._follow_up(run)
            if self.control.should_training_stop:
                break
            epoch, done = epoch + 1, 0

    def _step(self, run: PrivateRun, batch: Batch, epoch: float) -> None:
        """One release and the step of the optimizer, after which so much of the epochs has passed."""
        self.state.global_step = run.steps_taken
        self._call("on_step_begin")
        self._set_optimizer("train")
        for rows in batch.microbatches(self.args.per_device_train_batch_size):
            inputs = self._prepare_inputs(rows)
            with self.compute_loss_context_manager(), self._losses_computed() as loss:
                run.accumulate(loss, inputs)
        self._call("on_pre_optimizer_step")
        self.optimizer.step()
        self._call("on_optimizer_step")
        if not self._follows_a_metric:
            self.lr_scheduler.step()
        self.optimizer.zero_grad()
        self.state.global_step, self.state.epoch = run.steps_taken, epoch
        self._call("on_step_end")
        self._follow_up(run)

    @contextmanager
    def _losses_computed(self) -> Iterator[Callable[..., Tensor]]:
        """Within it losses are computed by the function that it gives, and nothing is logged."""
        state, of_loss = self.state, self._state_of_loss
        assert of_loss is not None, "set by train"
        # A captured step is kept while numbers of the trainer, its arguments and what was read of its state stay.
        of_state = [getattr(state, name) for name in sorted(of_loss._names_read)]
        values = [*vars(self).values(), *vars(self.args).values(), *of_state]
        numbers = repr([value for value in values if isinstance(value, _NUMBERS)])  # one value, however many they are
        self.state, self._is_silent = cast(Any, of_loss), True
        try:
            yield partial(_loss_of_one, self.compute_loss, numbers)
        finally:
            self.state, self._is_silent = state, False

    def _follow_up(self, run: PrivateRun) -> None:
        if self.control.should_log:
            self.control.should_log = False
            self.log({"learning_rate": self._get_learning_rate(), "epsilon": self._epsilon(run)})
        if self.control.should_evaluate:
            self.control.should_evaluate = False
            is_best = self._determine_best_metric(self._evaluate(None, None), trial=None)
            if self.args.save_strategy == "best":
                self.control.should_save = is_best
            self.model.train()
        if self.control.should_save:
            self.control.should_save = False
            folder, most = _folder(self.args), self.args.save_total_limit
            self._write_checkpoint(run, folder / f"checkpoint-{run.steps_taken}")
            best = self.state.best_model_checkpoint
            found = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
            for old in found[:-most] if most else []:
                if best is None or old != Path(best):
                    shutil.rmtree(old)
            self._call("on_save")

    def _set_optimizer(self, mode: str) -> None:
        """Put an optimizer that has two kinds of weights, as those without a schedule have, in this mode."""
        getattr(self.optimizer, mode, lambda: None)()

    def _write_checkpoint(self, run: PrivateRun, folder: Path) -> None:
        self._set_optimizer("eval")
        self.save_model(str(folder), _internal_call=True)
        run.save(folder / _RUN, {"declared": declared(self.args), "schedule": self.lr_scheduler.state_dict()})
        best = _folder(self.args) / f"checkpoint-{self.state.best_global_step}"
        if best.is_dir():
            self.state.best_model_checkpoint = str(best)
        self.state.save_to_json(str(folder / _STATE))

    def _epsilon(self, run: PrivateRun) -> float:
        assert self.args.delta is not None, "checked by the arguments"
        return run.epsilon(delta=self.args.delta)

    def _call(self, event: str) -> None:
        self.control = getattr(self.callback_handler, event)(self.args, self.state, self.control)


def _first(records: Any, number: int) -> Any:
    """The first records of a data set, in its own type where the trainer looks at that."""
    chosen = range(min(number, len(records)))
    return records.select(chosen) if hasattr(records, "select") else Subset(records, chosen)


def _checkpoint(asked: str | bool | None, args: TrainingArguments) -> Path | None:
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
