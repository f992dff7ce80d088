"""The arguments of a ``PrivateTrainer``: those of transformers, a privacy budget, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from transformers import TrainingArguments

_SEE_CHECKPOINT = "the steps of a run that goes on are those that it has left, with fresh batches; leave it out"
_REFUSED = {
    "fp16": "a gradient scaler changes gradients after the noise; use bf16=True",
    "auto_find_batch_size": "the batch size is declared; a microbatch that does not fit is halved anyway",
    "dataloader_drop_last": "Poisson batches have no last one; leave it out",
    "torch_compile": "the private step is captured and compiled by itself; leave it out",
    "deepspeed": "its engine steps by itself; start ranks with torchrun instead",
    "fsdp": "shard the model with fully_shard and train it with noisette.privatize",
    "parallelism_config": "shard the model with fully_shard and train it with noisette.privatize",
    "neftune_noise_alpha": "register a forward hook on the embedding that adds this noise; leave it out",
    "use_liger_kernel": "its kernels compute the gradients of a whole batch; leave it out",
    "debug": "it prints values that the model computes of private records; leave it out",
    "include_num_input_tokens_seen": "the number of tokens in private records is not released; leave it out",
    "data_seed": "batches are drawn with a secret key; leave it out",
    "ignore_data_skip": _SEE_CHECKPOINT,
    "restore_callback_states_from_checkpoint": "callbacks begin anew; leave it out",
    "enable_jit_checkpoint": "a checkpoint is written between steps alone; use save_steps",
    "save_only_model": "a checkpoint holds what it takes to go on; delete its folder private-run by yourself",
    "torch_empty_cache_steps": "memory is not handed back between steps; leave it out",
    "ddp_find_unused_parameters": "the run adds up the ranks' gradients by itself; leave it out",
    "ddp_bucket_cap_mb": "the run adds up the ranks' gradients by itself; leave it out",
    "ddp_broadcast_buffers": "the run adds up the ranks' gradients by itself; leave it out",
    "ddp_static_graph": "the run adds up the ranks' gradients by itself; leave it out",
}


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
        padded_fields: fields of a record, beside those of transformers, that have a value for each token, and what
            fills them up, such as ``{"tags": -100}``.
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
    padded_fields: dict | None = field(
        default=None, metadata={"help": "Further fields with a value for each token, and what fills them up."}
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

    @property
    def length(self) -> str:
        """How long the training is to be, in words."""
        return f"{self.max_steps} steps" if self.max_steps > 0 else f"{self.num_train_epochs:g} epochs"

    def _problems(self) -> Iterator[str]:
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
        if getattr(self, "train_sampling_strategy", "random") != "random":
            yield f"train_sampling_strategy={self.train_sampling_strategy!r}: batches are Poisson samples; leave it out"
        for name, why in _REFUSED.items():
            value = getattr(self, name, None)
            if value and value != "no":
                yield f"{name}={value!r}: {why}"


def declared(args: PrivateTrainingArguments) -> dict[str, float | str | None]:
    """What a run is told at its start, under the names of the arguments; a run that goes on must be told the same."""
    return {
        "epsilon": args.epsilon,
        "delta": args.delta,
        "noise_multiplier": args.noise_multiplier,
        "public_size": args.public_size,
        "max_grad_norm": float(args.max_grad_norm),
        "per_device_train_batch_size * gradient_accumulation_steps": args.expected_batch_size,
        "max_steps or num_train_epochs": args.length,
    }
