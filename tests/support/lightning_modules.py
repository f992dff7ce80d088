"""Modules of Lightning and their trainers, as tests of private ones use them."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")

from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402
from lightning.pytorch.loggers import CSVLogger  # noqa: E402

from noisette.integrations.lightning import make_private  # noqa: E402

SIZE = 8


def rows(shift: float = 0.0) -> tuple[Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(0)
    return torch.randn(SIZE, 3, generator=drawn, dtype=torch.float32) + shift, torch.arange(SIZE) % 2


class Classifier(lightning.LightningModule):
    def __init__(self, rate: float = 0.5) -> None:
        super().__init__()
        self.save_hyperparameters()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss, prog_bar=True, on_step=True, on_epoch=True)
        self.log_dict({"train_accuracy": (self(x).argmax(1) == y).float().mean()})
        return {"loss": loss, "outputs": x}

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log("val_loss", F.cross_entropy(self(x), y))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams["rate"])
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]


def private(module: Any = None, **changed: Any) -> Any:
    given: dict[str, Any] = {"public_size": SIZE, "delta": 1e-3, "epsilon": 8.0, "max_grad_norm": 0.5}
    return make_private(Classifier() if module is None else module, **given | changed)


def trainer(folder: Path, **changed: Any) -> Any:
    given: dict[str, Any] = {
        "default_root_dir": folder,
        "accelerator": "cpu",
        "max_epochs": 2,
        "logger": CSVLogger(folder, name=None, version=""),
        "log_every_n_steps": 1,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": any(isinstance(each, ModelCheckpoint) for each in changed.get("callbacks", [])),
    }
    return lightning.Trainer(**given | changed)


def loader(dataset: Any = None, batch_size: int = 2) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*rows()) if dataset is None else dataset, batch_size=batch_size, shuffle=True)


def held_out() -> DataLoader[Any]:
    return DataLoader(TensorDataset(*rows(shift=0.1)), batch_size=2)
