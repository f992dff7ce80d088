"""What loggers get of a private training is released."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest


@pytest.mark.filterwarnings("ignore")  # of transformers
def test_the_writer_of_tensorboard_gets_what_is_released(tmp_path, monkeypatch):
    trainer = pytest.importorskip("small_trainer")
    utils = pytest.importorskip("transformers.integrations.integration_utils")
    monkeypatch.setattr(utils, "is_tensorboard_available", lambda: True)
    logged: list[str] = []

    class Writer:
        def add_scalar(self, name: str, *_: Any) -> None:
            logged.append(name)

        def __getattr__(self, name: str) -> Any:
            return lambda *_, **__: None

    monkeypatch.setitem(sys.modules, "tensorboardX", SimpleNamespace(SummaryWriter=Writer))
    arguments = trainer.arguments(tmp_path, max_steps=3, logging_steps=1)
    callbacks = [utils.TensorBoardCallback(Writer())]
    from noisette.integrations.transformers import PrivateTrainer

    PrivateTrainer(trainer.model(), arguments, train_dataset=trainer.records(), callbacks=callbacks).train()
    assert {name.removeprefix("train/") for name in logged} <= {
        *("epsilon", "learning_rate", "epoch", "train_runtime", "train_samples_per_second", "train_steps_per_second"),
        *("total_flos", "step"),
    }
    assert "train/epsilon" in logged
