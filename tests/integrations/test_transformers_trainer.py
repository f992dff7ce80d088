"""Hugging Face's ``Trainer`` with a privacy budget: exact sums, the price after a crash, what is padded."""

import shutil
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import default_collate

transformers = pytest.importorskip("transformers", reason="Hugging Face's transformers are not installed")

from transformers import BertForSequenceClassification, TrainerCallback, default_data_collator  # noqa: E402

import noisette.integrations.transformers as module_of_trainer  # noqa: E402
from noisette import Ledger, PerExampleClip, PldAccountant, PrivacyError  # noqa: E402
from noisette.integrations.transformers import Padding, PrivateTrainer, PrivateTrainingArguments  # noqa: E402
from noisette.run.loading import records_of  # noqa: E402
from oracle import clipped_sum  # noqa: E402
from small_loop import paid  # noqa: E402
from small_trainer import LENGTHS, arguments, config, model, records  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of other libraries


class Watching(TrainerCallback):
    def __init__(self) -> None:
        self.events: list[str] = []
        self.gradients: dict[str, Tensor] = {}

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.events.append("train")

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.events.append("step")

    def on_optimizer_step(self, *_: Any, model: Any = None, **__: Any) -> None:
        self.events.append("released")
        if not self.gradients:
            self.gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.events.append("end")


def loss_of_text(model: Any, place: Tensor) -> Tensor:
    text = records()[int(place)]
    return model(input_ids=torch.tensor([text["input_ids"]]), labels=torch.tensor([text["label"]])).loss


@pytest.mark.usefixtures("little_noise")
def test_gradients_are_those_of_single_texts(tmp_path: Path) -> None:
    watching = Watching()
    args = arguments(tmp_path, max_steps=1, gradient_accumulation_steps=4, max_grad_norm=0.5)
    PrivateTrainer(model(), args, train_dataset=records(), callbacks=[watching]).train()
    truth = clipped_sum(model().train(), loss_of_text, (torch.arange(8),), 0.5)
    assert (truth.norms > 0.5).any()
    assert watching.gradients
    for name, gradient in watching.gradients.items():
        torch.testing.assert_close(gradient.double(), truth.sums[name] / 8, rtol=1e-4, atol=1e-7)


def test_one_release_a_step_and_no_loss_in_the_logs(tmp_path: Path) -> None:
    watching = Watching()
    trainer = PrivateTrainer(model(0.1), arguments(tmp_path), train_dataset=records(), callbacks=[watching])
    done = trainer.train()
    assert done.global_step == 8  # two epochs at a rate of 2 / 8
    assert watching.events == ["train", *["step", "released"] * 8, "end"]
    assert done.metrics["epsilon"] <= 8.0
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        spent = PldAccountant().compose(ledger.events).epsilon(delta=1e-3)
        assert (spent, sum(ledger.events.values())) == (pytest.approx(done.metrics["epsilon"]), 8)
    logged = trainer.state.log_history
    assert [line["epsilon"] for line in logged] == sorted(line["epsilon"] for line in logged)
    assert all("loss" not in line and "grad_norm" not in line for line in logged)
    assert trainer.lr_scheduler.get_last_lr()[0] == pytest.approx(0.0)


class Failing(TrainerCallback):
    def __init__(self, after: int) -> None:
        self.after = after

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.after:
            raise KeyboardInterrupt


def stopped(folder: Path, after: int, every: int, **changed: Any) -> Any:
    args = arguments(folder, save_strategy="steps", save_steps=every, **changed)
    with pytest.raises(KeyboardInterrupt):
        PrivateTrainer(model(), args, train_dataset=records(), callbacks=[Failing(after)]).train()
    return args


def test_a_crashed_run_goes_on_within_its_budget(tmp_path: Path) -> None:
    args = stopped(tmp_path, 5, every=3)
    assert paid(tmp_path) >= 5
    with pytest.raises((ValueError, PrivacyError)):
        PrivateTrainer(model(), args, train_dataset=records(LENGTHS[:-1])).train(resume_from_checkpoint=True)
    again = PrivateTrainer(model(), args, train_dataset=records())
    done = again.train(resume_from_checkpoint=True)
    assert paid(tmp_path) == 8, "the two steps after the checkpoint are spent and not made again"
    assert done.global_step == 6
    assert done.metrics["epsilon"] <= 8.0
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(ValueError, match="not written by a PrivateTrainer"):
        again.train(resume_from_checkpoint=str(other))


def test_evaluation_and_the_best_model(tmp_path: Path) -> None:
    each = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2}
    args = arguments(tmp_path, **each, load_best_model_at_end=True)
    held_out = [{"input_ids": [5, 6, 7], "attention_mask": [1, 1, 1], "label": k % 2} for k in range(4)]
    trainer = PrivateTrainer(model(), args, train_dataset=records(), eval_dataset=held_out)
    trainer.train()
    evaluated = [line for line in trainer.state.log_history if "eval_loss" in line]
    assert [line["step"] for line in evaluated] == [2, 4, 6, 8]
    best = BertForSequenceClassification.from_pretrained(trainer.state.best_model_checkpoint).state_dict()
    assert all(torch.equal(p.cpu(), best[name]) for name, p in trainer.model.state_dict().items())


def test_all_problems_of_the_arguments_at_once(tmp_path: Path) -> None:
    wrong: dict[str, Any] = {"max_grad_norm": 0.0, "auto_find_batch_size": True, "dataloader_drop_last": True}
    with pytest.raises(ValueError) as raised:
        PrivateTrainingArguments(output_dir=str(tmp_path), **wrong)
    named = "declare epsilon", "declare delta", "declare public_size", "max_grad_norm above 0"
    refused = "auto_find_batch_size=True", "dataloader_drop_last=True"
    assert all(words in str(raised.value) for words in (*named, *refused))
    with pytest.raises(ValueError, match="larger than public_size=8"):
        arguments(tmp_path, per_device_train_batch_size=16)
    plain: Any = transformers.TrainingArguments(output_dir=str(tmp_path), report_to=[])
    with pytest.raises(TypeError, match="PrivateTrainingArguments"):
        PrivateTrainer(model(), plain, train_dataset=records()).train()
    assert not arguments(tmp_path).push_to_hub


def test_adapters_are_trained_saved_and_loaded(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="PEFT is not installed")
    adapted = peft.get_peft_model(model(), peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"]))
    before = {name: p.clone() for name, p in adapted.named_parameters() if not p.requires_grad}
    trainer = PrivateTrainer(adapted, arguments(tmp_path, learning_rate=1e-2), train_dataset=records())
    trainer.train()
    trainer.save_model(str(tmp_path / "adapter"))
    assert all(torch.equal(dict(adapted.named_parameters())[name], value) for name, value in before.items())
    loaded = peft.PeftModel.from_pretrained(model(), tmp_path / "adapter").eval()
    x = torch.tensor([[5, 6, 7]])
    torch.testing.assert_close(loaded(input_ids=x).logits, adapted.eval()(input_ids=x).logits)


def test_what_differs_from_the_declared_on_resuming_is_refused_at_once(tmp_path: Path) -> None:
    stopped(tmp_path, 4, every=2)
    other: dict[str, Any] = {"epsilon": 4.0, "delta": 1e-4, "public_size": 16, "max_grad_norm": 5.0, "max_steps": 12}
    other["per_device_train_batch_size"] = 4
    again = PrivateTrainer(model(), arguments(tmp_path, **other), train_dataset=records())
    with pytest.raises(ValueError) as raised:
        again.train(resume_from_checkpoint=True)
    changed = "epsilon: 8.0 in the checkpoint, 4.0 now", "accumulation_steps: 2 in the checkpoint, 4 now"
    for words in (*changed, "delta", "public_size", "max_grad_norm", "2 epochs in the checkpoint, 12 steps now"):
        assert words in str(raised.value)
    halved = arguments(tmp_path, per_device_train_batch_size=1, gradient_accumulation_steps=2)
    assert PrivateTrainer(model(), halved, train_dataset=records()).train(resume_from_checkpoint=True).metrics


def test_the_schedule_goes_on_where_it_was(tmp_path: Path) -> None:
    given = {"lr_scheduler_type": "cosine", "warmup_steps": 2, "logging_steps": 1, "learning_rate": 0.5}
    whole = PrivateTrainer(model(), arguments(tmp_path / "whole", **given), train_dataset=records())
    whole.train()
    rates = [line["learning_rate"] for line in whole.state.log_history if "learning_rate" in line]
    stopped(tmp_path, 4, every=2, **given)
    again = PrivateTrainer(model(), arguments(tmp_path, **given), train_dataset=records())
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert not [warning for warning in said if "lr_scheduler.step" in str(warning.message)]
    found = [line["learning_rate"] for line in again.state.log_history if "learning_rate" in line]
    assert found == pytest.approx(rates[: len(found)])
    assert len(found) > 2


def test_activations_are_recomputed_where_asked(tmp_path: Path) -> None:
    args = arguments(tmp_path, max_steps=1, gradient_checkpointing=True)
    trainer = PrivateTrainer(model(), args, train_dataset=records())
    assert trainer.train().global_step == 1
    assert trainer.model.is_gradient_checkpointing


def test_a_rerun_in_the_same_folder_says_how_little_is_left(tmp_path: Path) -> None:
    PrivateTrainer(model(), arguments(tmp_path), train_dataset=records()).train()
    again = PrivateTrainer(model(), arguments(tmp_path), train_dataset=records())
    with pytest.raises(ValueError, match=r"choose a larger epsilon than 8 .*, or go on with the earlier run"):
        again.train()
    again = PrivateTrainer(model(), arguments(tmp_path, epsilon=30.0), train_dataset=records())
    with pytest.warns(UserWarning, match=r"holds 8 earlier releases, .*epsilon=.* of 30: .*noise multiplier \d"):
        again.train()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=FutureWarning)
        PrivateTrainer(model(), arguments(tmp_path / "other"), train_dataset=records()).train()


class Logging(PrivateTrainer):
    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:  # type: ignore[override]
        loss = super().compute_loss(model, inputs)
        self.log({"of_a_record": loss.item()})
        return loss


def test_what_compute_loss_logs_is_left_out(tmp_path: Path) -> None:
    heard: list[Any] = []
    callback = type("Heard", (TrainerCallback,), {"on_log": lambda *_, logs, **__: heard.extend(logs)})()
    args = arguments(tmp_path, max_steps=2, save_strategy="steps", save_steps=1)
    trainer = Logging(model(), args, train_dataset=records(), callbacks=[callback])
    trainer.train()
    assert "epsilon" in heard
    assert "of_a_record" not in heard
    assert all("of_a_record" not in line for line in trainer.state.log_history)
    assert all("of_a_record" not in path.read_text() for path in tmp_path.glob("*/trainer_state.json"))


def test_a_record_without_a_loss_is_refused(tmp_path: Path) -> None:
    nothing = type("Nothing", (PrivateTrainer,), {"compute_loss": lambda *_, **__: None})
    with pytest.raises(PrivacyError, match="returned no loss"):
        nothing(model(), arguments(tmp_path, max_steps=3), train_dataset=records()).train()


STEPS = 14  # a graph is compared with the step itself in calls 8 and 16, and in none between them


class Turned(PrivateTrainer):
    """A weight in an attribute, which a callback sets."""

    weight = 0.0

    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:  # type: ignore[override]
        return super().compute_loss(model, inputs) * self.weight


class Annealed(PrivateTrainer):
    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:  # type: ignore[override]
        return super().compute_loss(model, inputs) * float(self.state.global_step >= STEPS - 4)


@pytest.mark.usefixtures("little_noise")
@pytest.mark.parametrize("kind", [Turned, Annealed])
def test_a_captured_step_notices_what_the_loss_reads_of_its_trainer(kind, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module_of_trainer, "PerExampleClip", partial(PerExampleClip, capture="graph"))
    norms: list[float] = []

    class Norms(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == STEPS - 4:
                trainer.weight = 1.0

        def on_optimizer_step(self, *_: Any, model: Any = None, **__: Any) -> None:
            norms.append(sum(float(p.grad.norm()) for p in model.parameters() if p.grad is not None))

    args = arguments(tmp_path, max_steps=STEPS, per_device_train_batch_size=8, learning_rate=0.0)
    same = [{"input_ids": [5 + k, 6, 7, 8], "label": k % 2} for k in range(8)]  # one bucket, and all in each batch
    trainer: Any = kind(model(), args, train_dataset=same, callbacks=[Norms()])
    torch.manual_seed(0)
    trainer.train()
    assert max(norms[:-4]) < 1e-3
    assert min(norms[-4:]) > 1e-2


HELD_OUT = [{"input_ids": list(range(5, 5 + n)), "label": k % 2} for k, n in enumerate((3, 9, 2, 20))]
OUT_OF_RANGE = [{"input_ids": [99], "label": 0}]


def needs_both_classes(prediction: Any) -> dict[str, float]:
    if len(set(prediction.label_ids)) < 2:
        raise ValueError("only one class")
    return {"classes": 2.0}


misspelt = lambda prediction: {"accuracy": prediction.labels.mean()}  # noqa: E731


class Unwritten(PrivateTrainer):
    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        raise OSError("the folder takes no file")


EVALUATED = {"eval_strategy": "epoch", "per_device_eval_batch_size": 1}
SAVED = {"save_strategy": "steps", "save_steps": 1}


@pytest.mark.parametrize(
    ("kind", "changed", "given", "says", "remedy"),
    [
        (PrivateTrainer, EVALUATED, {"compute_metrics": misspelt}, "labels", {"compute_metrics": needs_both_classes}),
        (PrivateTrainer, EVALUATED | {"metric_for_best_model": "f1"}, {}, "f1", {"metric_for_best_model": "loss"}),
        (PrivateTrainer, EVALUATED, {"eval_dataset": OUT_OF_RANGE}, "range", {"eval_dataset": HELD_OUT}),
        (PrivateTrainer, SAVED, {}, "give save_total_limit", {"save_total_limit": 1}),
        (Unwritten, SAVED, {}, "takes no file", {"save_strategy": "no"}),
    ],
)
def test_what_would_fail_late_fails_before_the_first_release(
    kind: Any, changed: Any, given: Any, says: str, remedy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 8 * sum(p.numel() * 4 for p in model().parameters())
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, free))
    data = {"train_dataset": records(), "eval_dataset": HELD_OUT}
    with pytest.raises((ValueError, AttributeError, KeyError, IndexError, OSError), match=says):
        kind(model(), arguments(tmp_path, **changed), **data | given).train()
    assert paid(tmp_path) == 0, "all of the budget is left"
    assert not list(tmp_path.glob("rehearsal-*"))
    of_trainer = {name: value for name, value in remedy.items() if name in ("compute_metrics", "eval_dataset")}
    of_arguments = {name: value for name, value in remedy.items() if name not in of_trainer}
    trainer = kind(model(), arguments(tmp_path, **changed | of_arguments), **data | given | of_trainer)
    assert trainer.train().global_step == 8
    assert all(line["step"] > 0 for line in trainer.state.log_history), "the rehearsal is not logged"


def test_texts_of_several_lengths_are_evaluated_as_they_are_trained(tmp_path: Path) -> None:
    trainer = PrivateTrainer(model(), arguments(tmp_path, **EVALUATED), train_dataset=records(), eval_dataset=HELD_OUT)
    together = trainer.predict(HELD_OUT)  # type: ignore[arg-type]
    trainer.args.per_device_eval_batch_size = 4
    torch.testing.assert_close(trainer.predict(HELD_OUT).predictions, together.predictions)  # type: ignore[arg-type]
    [batch] = trainer.get_eval_dataloader()
    assert batch["input_ids"].shape == (4, 16), "the longest bucket, at which longer texts are cut"
    assert batch["attention_mask"].sum(1).tolist() == [3, 9, 2, 16]


class TwoKindsOfWeights(torch.optim.SGD):
    """An optimizer that steps in one mode alone, as those without a schedule do, and whose weights are averages."""

    training = False

    def train(self) -> None:
        self.training = True

    def eval(self) -> None:
        self.training = False

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        assert self.training, "not in train mode"
        super().step(closure)


def test_an_optimizer_with_two_kinds_of_weights_is_put_in_its_mode(tmp_path: Path) -> None:
    network, modes = model(), []

    class Seen(PrivateTrainer):
        def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
            modes.append(self.optimizer.training)
            super().save_model(output_dir, _internal_call)

    optimizer = TwoKindsOfWeights(network.parameters(), lr=0.1)
    args = arguments(tmp_path, **SAVED, save_total_limit=1, **EVALUATED)
    given = {"train_dataset": records(), "eval_dataset": HELD_OUT, "optimizers": (optimizer, None)}
    assert (Seen(network, args, **given).train().global_step, len(modes)) == (8, 9)
    assert not any(modes)
    assert not optimizer.training, "the weights that are left are those of evaluation"


PADDING = Padding((4, 8), 0, model(), {})


def padded(records: Any, of: Any = None, **fields: float) -> Any:
    return Padding((4, 8), 0, of or model(), fields).bucketed(records, default_data_collator)


def test_a_field_that_is_as_long_as_the_first_text_by_chance_is_left_alone() -> None:
    one = {"input_ids": [1, 2, 3], "pixel_values": torch.ones(3, 4, 4), "features": [0.1, 0.2, 0.3]}
    found = padded([one, {**one, "input_ids": [1, 2, 3, 4, 5]}])
    assert found[0]["input_ids"].tolist() == [1, 2, 3, 0]
    assert found[0]["attention_mask"].tolist() == [1, 1, 1, 0]
    assert found[0]["pixel_values"].shape == (3, 4, 4)
    assert len(found[0]["features"]) == len(found[1]["features"]) == 3
    assert len(found[1]["input_ids"]) == 8


@pytest.mark.parametrize("kind", ["BertForMaskedLM", "BertForTokenClassification"])
def test_labels_of_tokens_are_padded(kind: str) -> None:
    own = type("Own", (getattr(transformers, kind),), {})(config())
    records = [{"input_ids": [1] * n, "labels": [2] * n, "special_tokens_mask": [0] * n} for n in (1, 3, 5)]
    found = padded(records, own)
    assert [len(found[k]["labels"]) for k in range(3)] == [4, 4, 8]
    assert found[1]["labels"].tolist() == [2, 2, 2, -100]
    assert found[1]["special_tokens_mask"].tolist() == [0, 0, 0, 1]


def test_further_fields_are_declared() -> None:
    records = [{"input_ids": [1, 2], "tags": [1, 1], "label": 0}, {"input_ids": [1] * 5, "tags": [1] * 5, "label": 1}]
    assert padded(records, tags=-1)[0]["tags"].tolist() == [1, 1, -1, -1]
    assert padded(records)[0]["tags"].tolist() == [1, 1]


TRANSLATIONS = [{"input_ids": [5 + k] * (2 + k), "labels": [6 + k] * (10 - k)} for k in range(8)]


def test_translations_have_a_bucket_for_source_and_target(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"d_model": 8, "d_ff": 8, "d_kv": 4, "num_layers": 1, "num_heads": 2, "vocab_size": 40}
    config = transformers.T5Config(dropout_rate=0.0, decoder_start_token_id=0, **sizes)
    translator: Any = transformers.T5ForConditionalGeneration(config)
    found = padded(TRANSLATIONS, translator)
    assert [(len(found[k]["input_ids"]), len(found[k]["labels"])) for k in (0, 3, 7)] == [(4, 8), (8, 8), (8, 4)]
    assert len({found.buckets[k] for k in (0, 3, 7)}) == 3
    alone = translator(**{name: torch.tensor([numbers]) for name, numbers in TRANSLATIONS[6].items()})
    filled = translator(**{name: value.unsqueeze(0) for name, value in found[6].items()})
    torch.testing.assert_close(filled.loss, alone.loss)
    trainer = PrivateTrainer(translator, arguments(tmp_path, max_steps=3), train_dataset=TRANSLATIONS)
    assert trainer.train().global_step == 3


def test_labels_that_nobody_declared_are_named(tmp_path: Path) -> None:
    records = [{"input_ids": [5] * n, "labels": [0] * n} for n in (2, 3) * 4]
    args = arguments(tmp_path, max_steps=3, per_device_train_batch_size=8)
    with pytest.raises(ValueError, match="the field 'labels' has another shape in some records"):
        PrivateTrainer(model(), args, train_dataset=records).train()


def test_a_collator_sees_one_record_and_what_it_returns_for_one_is_a_row() -> None:
    seen: list[int] = []

    def collate(records: list[Any]) -> dict[str, Any]:
        seen.append(len(records))
        ids = default_collate([{"input_ids": torch.tensor(r["input_ids"])} for r in records])
        return {**ids, "text": ["a"], "no": None}

    records = [{"input_ids": [1, 2, 3]}, {"input_ids": [4, 5, 6, 7, 8]}, {"input_ids": [9]}]
    found = PADDING.bucketed(records, collate)
    assert list(found[1]) == ["input_ids", "text", "attention_mask"], "and no field that is None"
    whole = records_of(found).gather(np.array([0, 2]))
    assert whole["input_ids"].tolist() == [[1, 2, 3, 0], [9, 0, 0, 0]]
    assert whole["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 0, 0, 0]]
    assert (whole["text"], set(seen)) == (["a", "a"], {1})
