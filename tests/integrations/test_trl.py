"""TRL's ``SFTTrainer`` with a privacy budget, and the same over a stand-in for what is relied on of it."""

import copy
import importlib
import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

transformers = pytest.importorskip("transformers", reason="Hugging Face's transformers are not installed")

import small_llama  # noqa: E402
from oracle import clipped_sum  # noqa: E402


@dataclass
class SFTConfig(transformers.TrainingArguments):
    packing: bool = False
    loss_type: str = "nll"


class SFTTrainer(transformers.Trainer):
    """As TRL's: its loss keeps sums over records, which its log shows."""

    def compute_loss(self, model: Any, inputs: Any, *_: Any) -> Any:
        self.sums = {"entropy": 1.0}
        return super().compute_loss(model, inputs)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        super().log(logs | vars(self).get("sums", {}), start_time)


class Gradients(transformers.TrainerCallback):
    def on_optimizer_step(self, *_: Any, model: Any = None, **__: Any) -> None:
        self.found = {name: p.grad.double() for name, p in model.named_parameters() if p.grad is not None}


def given_to_trl(kind: str) -> dict[str, Any]:
    rows: list[Any] = [{"prompt": "number " * (k + 1), "completion": "is " + "7 " * (k % 3)} for k in range(8)]
    if "chats" in kind:
        of = {"user": "prompt", "assistant": "completion"}
        rows = [{"messages": [{"role": role, "content": row[part]} for role, part in of.items()]} for row in rows]
    given = {"train_dataset": pytest.importorskip("datasets").Dataset.from_list(rows)}
    if "adapters" in kind:
        peft = pytest.importorskip("peft")
        given["peft_config"] = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    return given | {"processing_class": small_llama.tokenizer()}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("little_noise")
@pytest.mark.parametrize("kind", ["completions, adapters", "chats", "chats, bfloat16", "stand-in"])
def test_sums_are_those_of_single_records_and_nothing_of_them_is_logged(kind, tmp_path, monkeypatch) -> None:
    stand_in: Any = SimpleNamespace(SFTConfig=SFTConfig, SFTTrainer=SFTTrainer)
    trl = stand_in if kind == "stand-in" else pytest.importorskip("trl", reason="TRL is not installed")
    monkeypatch.setitem(sys.modules, "trl", trl)
    monkeypatch.delitem(sys.modules, "noisette.integrations.trl", raising=False)
    module: Any = importlib.import_module("noisette.integrations.trl")
    settings: dict[str, Any] = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "max_steps": 1}
    bound = 0.004 if "adapters" in kind else 0.5
    settings |= {"epsilon": 8.0, "delta": 1e-3, "public_size": 8, "max_grad_norm": bound, "logging_steps": 1}
    settings |= {"report_to": [], "disable_tqdm": True, "use_cpu": True, "bf16": "bfloat16" in kind}
    with pytest.raises(ValueError, match=r"packing=True: a row would hold several records(.|\n)*loss_type='dft'"):
        module.PrivateSFTConfig(str(tmp_path), packing=True, loss_type="dft", **settings)
    if "chats" in kind:
        settings["assistant_only_loss"] = True
    rows = [{"input_ids": [2, *[4] * k, 5, 6], "labels": [-100] * (k + 1) + [5, 6]} for k in range(8)]
    gradients, model = Gradients(), small_llama.model() if settings["bf16"] else small_llama.model().double()
    given = {"train_dataset": rows} if kind == "stand-in" else given_to_trl(kind)
    arguments = module.PrivateSFTConfig(str(tmp_path), **settings)
    trainer = module.PrivateSFTTrainer(model, arguments, callbacks=[gradients], **given)
    before = copy.deepcopy(trainer.model).train()
    trainer.train()

    def loss(model: Any, place: Tensor) -> Tensor:
        inner = getattr(model, "get_base_model", lambda: model)()  # whose own forward pass TRL has wrapped
        row = trainer.train_dataset[int(place)]
        assert row["labels"][0] == -100  # of a prompt
        labels = torch.tensor([row["labels"]])
        return transformers.LlamaForCausalLM.forward(inner, torch.tensor([row["input_ids"]]), labels=labels).loss

    of_singles = clipped_sum(before, loss, (torch.arange(8),), bound)
    assert of_singles.norms.max() > bound
    assert gradients.found.keys() == of_singles.sums.keys()
    for name, gradient in gradients.found.items():
        off = (gradient - of_singles.sums[name] / 8).norm()
        assert off <= (0.05 if settings["bf16"] else 1e-7) * gradient.norm() + 1e-8
    names = {name for line in trainer.state.log_history for name in line}
    assert names == {"learning_rate", "epsilon", "epoch", "step", "train_runtime"}
