"""What contradicts the guarantee in trainers, loaders and modules of Lightning is refused, with the way out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler

import noisette
from lightning_modules import Classifier, lightning, loader, private, rows, trainer

pytestmark = pytest.mark.filterwarnings("ignore")  # of other libraries


class WithLogger(Classifier):
    """Writes the loss of a record to the logger itself."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)["loss"]
        self.logger.log_metrics({"loss": float(loss)})
        return loss


class Records(lightning.LightningDataModule):
    """Hands out a loader."""

    def __init__(self, loader: Any) -> None:
        super().__init__()
        self.loader, self.value = loader, 0.0

    def train_dataloader(self) -> Any:
        return self.loader


class Streamed(IterableDataset[Any]):
    """Records without a length."""

    def __iter__(self) -> Iterator[Any]:
        return iter(TensorDataset(*rows()))


class WithoutLoss(Classifier):
    """Leaves records out."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        pass


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (WithLogger, "uses a logger"),
        (WithoutLoss, "returned no loss"),
    ],
)
def test_a_step_that_gives_records_away_is_refused(tmp_path: Path, module: type[Any], said: str) -> None:
    training, made = trainer(tmp_path), private(module())
    with pytest.raises(noisette.PrivacyError, match=said):
        training.fit(made, datamodule=Records(loader()))
    assert "loss" not in ((tmp_path / "metrics.csv").read_text() if (tmp_path / "metrics.csv").exists() else "")


def test_all_problems_of_a_trainer_at_once(tmp_path: Path) -> None:
    training = trainer(
        tmp_path,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        limit_train_batches=3,
        max_epochs=-1,
        callbacks=[lightning.callbacks.BatchSizeFinder()],
        precision="bf16-true",
    )
    with pytest.raises(ValueError) as raised:
        training.fit(private(), loader())
    said = str(raised.value)
    for words in (
        "accumulate_grad_batches=2",
        "gradient_clip_val=1.0",
        "limit_train_batches=3",
        "max_epochs=-1",
        "BatchSizeFinder",
        'precision="bf16-true"',
    ):
        assert words in said
    with pytest.raises(ValueError, match="fast_dev_run"):
        trainer(tmp_path, fast_dev_run=True).fit(private(), loader())
    with pytest.raises(ValueError, match=r"torch\.compile"):
        trainer(tmp_path).fit(torch.compile(private()), loader())
    assert not (tmp_path / "ledger.jsonl").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda: [loader(), loader()], "expected one DataLoader"),
        (lambda: DataLoader(TensorDataset(*rows()), 2, sampler=WeightedRandomSampler([1.0] * 8, 8)), "Weighted"),
        (lambda: DataLoader(TensorDataset(*rows()), batch_size=None), "no batch_size"),
        (lambda: DataLoader(Streamed(), 2), "IterableDataset.*list"),
    ],
)
def test_loaders_without_a_price_are_refused(tmp_path: Path, given: Callable[[], Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        trainer(tmp_path).fit(private(), given())


class WithHook(Classifier):
    """Scales the loss."""

    def backward(self, loss: Tensor) -> None:
        (2 * loss).backward()


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (nn.Linear(2, 2), "expected a LightningModule, got a Linear"),
        (lightning.LightningModule(), "has no training_step\n.*has no configure_optimizers"),
        (WithHook(), "overrides backward"),
    ],
)
def test_modules_that_cannot_be_private_are_refused(module: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        private(module)
    with pytest.raises(ValueError, match="delta"):
        private(delta=0.0)
    with pytest.raises(ValueError, match="private already"):
        private(private())
