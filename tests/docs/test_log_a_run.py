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


@pytest.mark.filterwarnings("ignore")  # of lightning
def test_loggers_of_lightning_get_what_is_released(tmp_path):
    modules = pytest.importorskip("lightning_modules")
    loggers = pytest.importorskip("lightning.pytorch.loggers")
    logged: list[str] = []

    class Fake(loggers.CSVLogger):  # as those of TensorBoard, W&B and MLflow do, it gets metrics by name
        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            logged.extend(metrics)

    fit = modules.trainer(tmp_path, logger=Fake(tmp_path), max_epochs=2)
    fit.fit(modules.private(), modules.loader(), modules.held_out())
    assert set(logged) == {"epsilon", "epoch", "val_loss"}
