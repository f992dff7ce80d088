"""Lightning with a generator beside the private discriminator, and with a backbone that is trained later."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_modules import Classifier, lightning, loader, private, trainer

pytestmark = pytest.mark.filterwarnings("ignore")  # of other libraries


class Gan(lightning.LightningModule):
    """The remedy of the refusal: the generator is out of the module, which has a frozen copy."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 4), nn.LeakyReLU(), nn.Linear(4, 1))
        self.generator = [nn.Linear(2, 3)]
        self.copied = copy.deepcopy(self.generator[0]).requires_grad_(False)
        self.of_generator = torch.optim.Adam(self.generator[0].parameters(), lr=0.01)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        real, _ = batch
        return F.softplus(-self(real)).mean() + F.softplus(self(self.copied(torch.randn(len(real), 2)))).mean()

    def on_train_batch_end(self, *_: Any) -> None:
        loss = F.softplus(-self(self.generator[0](torch.randn(16, 2)))).mean()
        self.of_generator.zero_grad()
        loss.backward()
        self.of_generator.step()
        self.zero_grad()
        self.copied.load_state_dict(self.generator[0].state_dict())

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.net.parameters(), lr=0.01)


class Two(Gan):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def configure_optimizers(self) -> Any:
        return [super().configure_optimizers(), self.of_generator]


def test_two_optimizers_are_refused_before_the_first_release_and_the_remedy_trains_both(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    with pytest.raises(ValueError, match="2 optimizers, where a private fit has one: for a GAN"):
        trainer(tmp_path).fit(private(Two(), ledger=ledger), loader())
    assert not ledger.exists()
    gan = Gan()
    before = [copy.deepcopy(part.state_dict()) for part in (gan.net, gan.generator[0])]
    fit = trainer(tmp_path)
    fit.fit(private(gan, ledger=ledger), loader())
    assert fit.callback_metrics["epsilon"] <= 8
    for part, old in zip((gan.net, gan.generator[0]), before, strict=True):
        assert any(not torch.equal(old[name], value) for name, value in part.state_dict().items())


class Backbone(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = self.net[0]

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.5)


def test_a_backbone_that_thaws_within_a_fit_is_refused_and_two_fits_share_a_budget(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    thawing = lightning.callbacks.BackboneFinetuning(1)
    with pytest.raises(ValueError, match="BackboneFinetuning: what is clipped is fixed when fit begins"):
        trainer(tmp_path, callbacks=[thawing]).fit(private(Backbone(), ledger=ledger), loader())
    assert not ledger.exists()
    first = Backbone()
    first.backbone.requires_grad_(requires_grad=False)
    frozen = first.backbone.weight.clone()
    trainer(tmp_path).fit(private(first, ledger=ledger, epsilon=4.0), loader())
    assert torch.equal(first.backbone.weight, frozen)
    second, fit = Backbone(), trainer(tmp_path)
    second.load_state_dict(first.state_dict())
    fit.fit(private(second, ledger=ledger, epsilon=8.0), loader())
    assert not torch.equal(second.backbone.weight, frozen)
    assert 4 < fit.callback_metrics["epsilon"] <= 8
