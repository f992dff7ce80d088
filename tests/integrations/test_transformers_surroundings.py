"""``compute_loss`` of a ``PrivateTrainer``: what it may keep, log and read while it computes the loss of one record."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="Hugging Face's transformers are not installed")
pytest.importorskip("accelerate", reason="the Trainer of transformers needs accelerate, which is not installed")

from transformers import TrainerCallback

import noisette.integrations.transformers as module_of_trainer
from noisette import PerExampleClip, PrivacyError
from noisette.core.noise import GaussianNoise
from noisette.integrations.transformers import PrivateTrainer
from small_trainer import arguments, model, records

pytestmark = pytest.mark.filterwarnings("ignore")  # of other libraries, and one-by-one


class Logging(PrivateTrainer):
    """Logs the loss of each record."""

    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:  # type: ignore[override]
        loss = super().compute_loss(model, inputs)
        self.log({"of_a_record": loss.item()})
        return loss


class Heard(TrainerCallback):
    def __init__(self) -> None:
        self.logged: set[str] = set()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self.logged |= set(logs)


def test_what_compute_loss_logs_is_left_out(tmp_path: Path) -> None:
    heard = Heard()
    args = arguments(tmp_path, max_steps=2, save_strategy="steps", save_steps=1)
    trainer = Logging(model(), args, train_dataset=records(), callbacks=[heard])
    trainer.train()
    assert "epsilon" in heard.logged
    assert "of_a_record" not in heard.logged
    assert all("of_a_record" not in line for line in trainer.state.log_history)
    assert all("of_a_record" not in path.read_text() for path in tmp_path.glob("*/trainer_state.json"))


def test_a_record_without_a_loss_is_refused(tmp_path: Path) -> None:
    class Nothing(PrivateTrainer):
        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:  # type: ignore[override]
            return None

    with pytest.raises(PrivacyError, match="returned no loss"):
        Nothing(model(), arguments(tmp_path, max_steps=3), train_dataset=records()).train()


STEPS = 14  # a graph is compared with the step itself in calls 8 and 16, and in none between them


class Annealed(PrivateTrainer):
    """A weight that grows with the steps, as of a KL term."""

    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:  # type: ignore[override]
        loss = super().compute_loss(model, inputs)
        return loss * (0.0 if self.state.global_step < STEPS - 4 else 1.0)


class Turned(PrivateTrainer):
    """A weight in an attribute, which a callback sets."""

    weight = 0.0

    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:  # type: ignore[override]
        return super().compute_loss(model, inputs) * self.weight


class Norms(TrainerCallback):
    """Takes down the norm of the released gradient, and turns weights on."""

    def __init__(self) -> None:
        self.norms: list[float] = []
        self.trainer: Any = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == STEPS - 4:
            self.trainer.weight = 1.0

    def on_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        self.norms.append(sum(float(p.grad.norm()) for p in model.parameters() if p.grad is not None))


@pytest.mark.parametrize(("kind", "capture"), [(Annealed, "graph"), (Turned, "graph"), (Annealed, "eager")])
def test_a_captured_step_notices_what_the_loss_reads_of_its_trainer(
    kind: type[PrivateTrainer], capture: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = GaussianNoise.add_

    def add_little(self: GaussianNoise, tensors: Any, *, std: float = 1.0, **others: Any) -> None:
        add(self, tensors, std=std * 1e-9, **others)

    monkeypatch.setattr(GaussianNoise, "add_", add_little)
    monkeypatch.setattr(module_of_trainer, "PerExampleClip", partial(PerExampleClip, capture=capture))
    norms = Norms()
    args = arguments(tmp_path, max_steps=STEPS, per_device_train_batch_size=8, learning_rate=0.0)
    same = [{"input_ids": [5 + k, 6, 7, 8], "label": k % 2} for k in range(8)]  # one bucket, and all in each batch
    trainer = norms.trainer = kind(model(), args, train_dataset=same, callbacks=[norms])
    torch.manual_seed(0)
    trainer.train()
    assert max(norms.norms[:-4]) < 1e-3
    assert min(norms.norms[-4:]) > 1e-2
