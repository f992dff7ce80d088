"""What loggers get of a private training is released."""

import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

FROM_TRAINER = {
    *("epsilon", "learning_rate", "epoch", "train_runtime", "train_samples_per_second", "train_steps_per_second"),
    *("total_flos", "step", "global_step"),
}


def names_logged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that from now on fakes of TensorBoard, W&B and MLflow are given, by the methods that these document."""
    names: list[str] = []

    def log(data: dict[str, float], step: int | None = None) -> None:
        names.extend(data)

    def log_metrics(metrics: dict[str, float], step: int, synchronous: bool) -> None:
        names.extend(metrics)

    def log_batch(run_id: str, metrics: Any = (), params: Any = (), tags: Any = ()) -> None:
        names.extend(metric.key for metric in metrics)

    run = MagicMock(log=log)
    run.summary.__setitem__.side_effect = lambda name, value: names.append(name)
    kinds = SimpleNamespace(RunDisabled=type("RunDisabled", (), {}), Run=type("Run", (), {}), ConfigError=KeyError)
    limits = SimpleNamespace(validation=SimpleNamespace(MAX_PARAM_VAL_LENGTH=500, MAX_PARAMS_TAGS_PER_BATCH=100))
    client = MagicMock(log_batch=log_batch)
    writer = MagicMock(add_scalar=lambda name, *_: names.append(name))
    for name, fake in {
        "tensorboardX": SimpleNamespace(SummaryWriter=lambda **_: writer),
        "wandb": MagicMock(log=log, run=run),
        **dict.fromkeys(("wandb.sdk.lib", "wandb.sdk.lib.config_util", "wandb.wandb_run"), kinds),
        "mlflow": MagicMock(log_metrics=log_metrics, utils=limits, __version__="3.0"),
        "mlflow.entities": SimpleNamespace(Metric=SimpleNamespace, Param=SimpleNamespace),
        "mlflow.tracking": SimpleNamespace(MlflowClient=lambda uri: client, context=None),
    }.items():
        monkeypatch.setitem(sys.modules, name, fake)
    return names


@pytest.mark.filterwarnings("ignore")  # of transformers
@pytest.mark.parametrize("kind", ["TensorBoard", "Wandb", "MLflow"])
def test_loggers_of_the_trainer_get_what_is_released(kind, tmp_path, monkeypatch):
    trainer = pytest.importorskip("small_trainer")
    utils = pytest.importorskip("transformers.integrations.integration_utils")
    monkeypatch.setattr(utils, f"is_{kind.lower()}_available", lambda: True)
    arguments = trainer.arguments(tmp_path, max_steps=3, logging_steps=1)
    from noisette.integrations.transformers import PrivateTrainer

    logged, callback = names_logged(monkeypatch), getattr(utils, f"{kind}Callback")()
    PrivateTrainer(trainer.model(), arguments, train_dataset=trainer.records(), callbacks=[callback]).train()
    assert "epsilon" in {name.removeprefix("train/") for name in logged} <= FROM_TRAINER


@pytest.mark.filterwarnings("ignore")  # of lightning
@pytest.mark.parametrize("kind", ["Wandb", "MLFlow"])
def test_loggers_of_lightning_get_what_is_released(kind, tmp_path, monkeypatch):
    modules = pytest.importorskip("lightning_modules")
    loggers = pytest.importorskip("lightning.pytorch.loggers")
    monkeypatch.setattr(f"lightning.pytorch.loggers.{kind.lower()}._{kind.upper()}_AVAILABLE", True)
    logged, logger = names_logged(monkeypatch), getattr(loggers, f"{kind}Logger")(save_dir=tmp_path)
    fit = modules.trainer(tmp_path, logger=logger, max_epochs=2)
    fit.fit(modules.private(), modules.loader(), modules.held_out())
    assert set(logged) - {"trainer/global_step"} == {"epsilon", "epoch", "val_loss"}
