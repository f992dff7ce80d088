"""Lightning's ``Trainer`` on a private module: exact sums, nothing private in logs, refusals, and runs that go on."""

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler

import noisette
import noisette.integrations.lightning as module_of_lightning
from lightning_modules import SIZE, Classifier, held_out, lightning, loader, private, rows, trainer
from oracle import clipped_sum
from small_loop import paid

pytestmark = pytest.mark.filterwarnings("ignore")  # of other libraries


class Inputs(Classifier):
    """A batch that is a dictionary, and a hook that centres it: alone, a record becomes zero in one column."""

    def training_step(self, batch: dict[str, Tensor]) -> Tensor:  # type: ignore[override]
        return F.cross_entropy(self(batch["x"]), batch["y"], reduction="sum")

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        x = batch["x"]
        return batch | {"x": torch.cat([x[:, :2], x[:, 2:] - x[:, 2:].mean(0)], 1)}


class Texts(Classifier):  # by manual optimization
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.net = nn.Sequential(nn.EmbeddingBag(9, 3, padding_idx=0), nn.Linear(3, 2))

    def training_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(F.cross_entropy(self(x), y))
        optimizer.step()


class Watching(lightning.Callback):
    def __init__(self) -> None:
        self.gradients: dict[str, Tensor] = {}
        self.calls: list[str] = []
        self.outputs: list[Any] = []

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.calls.append("batch")
        assert isinstance(batch, int)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        assert pl_module.trainer is trainer
        self.calls.append("released")
        if not self.gradients:
            self.gradients = {n: p.grad.clone() for n, p in pl_module.named_parameters() if p.grad is not None}

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.calls.append("stepped")
        self.outputs.append(outputs)


def of_tuple(module: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(module(x), y)


def of_two_columns(module: Any, x: Tensor, y: Tensor) -> Tensor:
    return of_tuple(module, x * torch.tensor([1.0, 1.0, 0.0]), y)


TEXTS = torch.arange(1, 9).expand(8, 8).tril(), torch.arange(SIZE) % 2  # each a word longer than the one before
BUCKETS = noisette.PaddedBuckets([(x[x > 0], y) for x, y in zip(*TEXTS, strict=True)], (4, 8))


@pytest.mark.parametrize(
    ("module", "records", "dataset", "loss_of", "precision"),
    [
        (Classifier, rows(), TensorDataset(*rows()), of_tuple, "32-true"),
        (Classifier, rows(), list(zip(*rows(), strict=True)), of_tuple, "64-true"),
        (Inputs, rows(), [{"x": x, "y": y} for x, y in zip(*rows(), strict=True)], of_two_columns, "64-true"),
        (Texts, TEXTS, BUCKETS, of_tuple, "64-true"),
    ],
)
@pytest.mark.usefixtures("little_noise")
def test_gradients_are_those_of_single_records(tmp_path, module, records, dataset, loss_of, precision) -> None:
    watching, made = Watching(), module()
    training = trainer(tmp_path, max_steps=1, callbacks=[watching], precision=precision, limit_val_batches=0)
    truth = clipped_sum(made, loss_of, records, 0.1)
    training.fit(private(made, microbatch_size=3, max_grad_norm=0.1), loader(dataset, batch_size=SIZE))
    assert watching.calls == ["batch", "released", "stepped"]
    assert (truth.norms > 0.1).any()
    assert watching.gradients.keys() == truth.sums.keys()
    rtol, atol = (1e-4, 1e-7) if precision == "32-true" else (1e-8, 1e-9)
    for name, gradient in watching.gradients.items():
        torch.testing.assert_close(gradient.double(), truth.sums[name] / SIZE, rtol=rtol, atol=atol)


def spent_in(folder: Path) -> float:
    with noisette.Ledger(folder / "ledger.jsonl") as ledger:
        return noisette.PldAccountant().compose(ledger.events).epsilon(delta=1e-3)


def test_one_release_a_step_and_only_public_values_in_logs_and_checkpoints(tmp_path: Path) -> None:
    watching, saving = Watching(), lightning.callbacks.ModelCheckpoint(tmp_path, save_last=True)
    training, module = trainer(tmp_path, callbacks=[watching, saving]), private()
    training.fit(module, loader(), held_out())
    assert training.global_step == 8  # two epochs at a rate of 2 / 8
    assert watching.calls == ["batch", "released", "stepped"] * 8
    assert all(outputs.keys() == {"loss"} and outputs["loss"].isnan() for outputs in watching.outputs)
    assert training.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.5 / 4), "the rate falls once an epoch"
    assert paid(tmp_path) == 8
    assert float(training.callback_metrics["epsilon"]) == pytest.approx(spent_in(tmp_path))
    assert spent_in(tmp_path) <= 8.0
    assert training.callback_metrics.keys() == {"epsilon", "val_loss"}
    header, *lines = (tmp_path / "metrics.csv").read_text().splitlines()
    assert set(header.split(",")) == {"epoch", "step", "epsilon", "val_loss"}
    logged = [float(line.split(",")[header.split(",").index("epsilon")] or 0) for line in lines]
    assert len([epsilon for epsilon in logged if epsilon]) == 10, "after each step, and at the end of each epoch"
    assert float(module.seen) == 0.0
    assert all(p.grad is None or not p.grad.isnan().any() for p in module.parameters())
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert saved["private_run"].keys() >= {"terms", "steps_taken", "ledger", "head"}
    assert "fingerprint" not in json.dumps(saved["private_run"])
    assert saved["state_dict"].keys() == Classifier().state_dict().keys()
    assert not list(tmp_path.rglob("fingerprint.json")), "the run has ended"


def test_metrics_of_torchmetrics_are_left_out_of_a_step(tmp_path: Path) -> None:
    torchmetrics = pytest.importorskip("torchmetrics", reason="torchmetrics is not installed")

    class Measured(Classifier):
        def __init__(self, *, in_loss: bool = False) -> None:
            super().__init__()
            self.accuracy = torchmetrics.Accuracy("binary")
            self.all = torchmetrics.MetricCollection([torchmetrics.Accuracy("binary")])
            self.in_loss = in_loss

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            x, y = batch
            found = self.accuracy(self(x).argmax(1), y)
            self.log_dict(self.all(self(x).argmax(1), y))
            self.log("accuracy", self.accuracy)
            loss = super().training_step(batch, batch_idx)["loss"]
            return loss + found if self.in_loss else loss

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.accuracy(self(batch[0]).argmax(1), batch[1])
            self.log("val_accuracy", self.accuracy)

    module, training = private(Measured()), trainer(tmp_path / "one")
    training.fit(module, loader(), held_out())
    assert training.callback_metrics.keys() == {"epsilon", "val_accuracy"}
    assert isinstance(module.accuracy, torchmetrics.Metric)
    assert isinstance(module.all, torchmetrics.MetricCollection)
    with pytest.raises(noisette.PrivacyError, match="value of a metric"):
        trainer(tmp_path / "two").fit(private(Measured(in_loss=True)), loader())


def test_loaders_of_data_modules_and_modules_are_taken(tmp_path: Path) -> None:
    class Data(lightning.LightningDataModule):
        def setup(self, stage: str) -> None:
            self.records = TensorDataset(*rows())

        def train_dataloader(self) -> Any:
            return loader(self.records)

        def val_dataloader(self) -> Any:
            return DataLoader(self.records, 4)

    class WithLoader(Classifier):
        def train_dataloader(self) -> Any:
            return loader()

    training = trainer(tmp_path / "one")
    training.fit(private(public_size=13, delta=1e-4), datamodule=Data())
    assert training.global_step == 2 * training.num_training_batches == paid(tmp_path / "one") == 14, "by declared size"
    assert "val_loss" in training.callback_metrics
    training = trainer(tmp_path / "two", max_epochs=-1, max_steps=3)
    training.fit(private(WithLoader()))
    assert training.global_step == paid(tmp_path / "two") == 3


class Stopping(lightning.Callback):
    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        trainer.should_stop = trainer.global_step >= 5


@pytest.mark.parametrize("every", [3, None])
def test_epsilon_is_that_of_the_last_step(tmp_path: Path, every: int | None) -> None:
    training = trainer(tmp_path, max_epochs=5, callbacks=[Stopping()], log_every_n_steps=every)
    training.fit(private(), loader())
    assert training.global_step == paid(tmp_path) == 5
    assert float(training.callback_metrics["epsilon"]) == pytest.approx(spent_in(tmp_path))


class Annealed(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx)["loss"] * (0.0 if self.current_epoch < 10 else 1.0)


@pytest.mark.usefixtures("little_noise")
def test_a_captured_step_follows_the_numbers_that_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_of_lightning, "PerExampleClip", partial(noisette.PerExampleClip, capture="graph"))
    norms: list[float] = []

    class Norms(lightning.Callback):
        def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            norms.append(sum(float(p.grad.norm()) for p in pl_module.parameters()))

    training = trainer(tmp_path, max_epochs=14, callbacks=[Norms()], limit_val_batches=0)
    training.fit(private(Annealed(rate=0.0), microbatch_size=8), loader(batch_size=SIZE))
    assert max(norms[:10]) < 1e-3
    assert min(norms[10:]) > 1e-2


def test_pytorch_lightning_works_as_well(tmp_path: Path) -> None:
    other = pytest.importorskip("pytorch_lightning", reason="pytorch_lightning is not installed")

    class Other(other.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(3, 2)

        def training_step(self, batch: Any) -> Tensor:
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters())

    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    training = other.Trainer(max_epochs=1, default_root_dir=tmp_path, accelerator="cpu", **quiet)
    training.fit(private(Other()), loader())
    assert training.global_step == paid(tmp_path) == 4


class Monitored(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("loss", 1.0, on_epoch=True)
        return super().training_step(batch, batch_idx)


class Unsaved(lightning.Callback):
    def on_save_checkpoint(self, *_: Any) -> None:
        raise OSError("the disk takes no file")


stopping, saving = lightning.callbacks.EarlyStopping, lightning.callbacks.ModelCheckpoint


@pytest.mark.parametrize(
    ("callbacks", "says", "remedy"),
    [
        (lambda: [stopping("loss")], 'EarlyStopping has monitor="loss"', lambda: [stopping("val_loss")]),
        (lambda: [saving(monitor="loss_epoch")], 'Checkpoint .*="loss_epoch"', lambda: [saving(monitor="epsilon")]),
        (lambda: [saving(), Unsaved()], "takes no file", lambda: [saving()]),
    ],
)
def test_what_would_fail_after_an_epoch_fails_before_the_first_release(tmp_path, callbacks, says, remedy) -> None:
    with pytest.raises((noisette.PrivacyError, OSError), match=says):
        trainer(tmp_path, callbacks=callbacks()).fit(private(Monitored()), loader(), held_out())
    assert paid(tmp_path) == 0
    assert not list(tmp_path.glob("rehearsal-*"))
    training = trainer(tmp_path, callbacks=remedy())
    training.fit(private(Monitored()), loader(), held_out())
    assert training.global_step == paid(tmp_path) == 8


class WithLogger(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)["loss"]
        self.logger.log_metrics({"loss": float(loss)})
        return loss


class Streamed(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(TensorDataset(*rows()))


class WithoutLoss(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> None:
        pass


@pytest.mark.parametrize(("module", "said"), [(WithLogger, "uses a logger"), (WithoutLoss, "returned no loss")])
def test_a_step_that_gives_records_away_is_refused(tmp_path: Path, module: type[Any], said: str) -> None:
    training, made = trainer(tmp_path), private(module())
    with pytest.raises(noisette.PrivacyError, match=said):
        training.fit(made, loader())
    assert "loss" not in ((tmp_path / "metrics.csv").read_text() if (tmp_path / "metrics.csv").exists() else "")


def test_all_problems_of_a_trainer_at_once(tmp_path: Path) -> None:
    wrong = {"accumulate_grad_batches": 2, "gradient_clip_val": 1.0, "limit_train_batches": 3, "max_epochs": -1}
    more = {"callbacks": [lightning.callbacks.BatchSizeFinder()], "precision": "bf16-true"}
    with pytest.raises(ValueError) as raised:
        trainer(tmp_path, **wrong, **more).fit(private(), loader())
    named = [f"{name}={value}" for name, value in wrong.items()]
    assert all(words in str(raised.value) for words in (*named, "BatchSizeFinder", 'precision="bf16-true"'))
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
    def backward(self, loss: Tensor) -> None:
        (2 * loss).backward()


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (nn.Linear(2, 2), "expected a LightningModule, got a Linear"),
        (lightning.LightningModule(), "has no training_step\n.*has no configure_optimizers"),
        (WithHook(), "overrides backward.*\n.*automatic_optimization = False.*\n.*no part of WithHook, which has net"),
    ],
)
def test_modules_that_cannot_be_private_are_refused(module: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        private(module, discriminator="critic")
    with pytest.raises(ValueError, match="delta"):
        private(delta=0.0)
    with pytest.raises(ValueError, match="private already"):
        private(private())


class Failing(lightning.Callback):
    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == 5:
            raise OSError("the power fails")


def saved_every_three(folder: Path) -> Any:
    return saving(folder, filename="{step}", every_n_train_steps=3, save_top_k=-1, save_last=False)


def crashed(folder: Path) -> Path:
    training = trainer(folder, callbacks=[saved_every_three(folder), Failing()])
    module = private()
    with pytest.raises(OSError, match="power"):
        training.fit(module, loader())
    assert module.trainer is training
    return folder / "step=3.ckpt"


def test_a_crashed_run_goes_on_within_its_budget(tmp_path: Path) -> None:
    checkpoint = crashed(tmp_path)
    assert paid(tmp_path) == 5
    assert list((tmp_path / "private-run").rglob("fingerprint.json"))
    before = torch.load(checkpoint, weights_only=True)
    training, module = trainer(tmp_path), private()
    training.fit(module, loader(), ckpt_path=checkpoint)
    assert paid(tmp_path) == 8, "the two steps after the checkpoint are spent and not made again"
    assert training.global_step == 6
    assert float(training.callback_metrics["epsilon"]) <= 8.0
    assert not torch.equal(before["state_dict"]["net.0.bias"], module.net[0].bias)
    assert not (tmp_path / "private-run").exists() or not list((tmp_path / "private-run").rglob("*.json"))


def test_a_run_whose_steps_are_all_spent_trains_nothing(tmp_path: Path) -> None:
    trainer(tmp_path, callbacks=[saved_every_three(tmp_path)]).fit(private(), loader())
    again, module = trainer(tmp_path), private()
    with pytest.warns(UserWarning, match="all 8 steps of this run are spent, 5 of them after the checkpoint"):
        again.fit(module, loader(), ckpt_path=tmp_path / "step=3.ckpt")
    assert (again.global_step, paid(tmp_path)) == (3, 8)
    saved = torch.load(tmp_path / "step=3.ckpt", weights_only=True)["state_dict"]
    assert all(torch.equal(value, saved[name]) for name, value in module.state_dict().items())


def test_a_run_goes_on_with_its_own_weights_records_and_ledger_alone(tmp_path: Path) -> None:
    checkpoint = crashed(tmp_path)
    with pytest.raises(ValueError, match="not the one that the run began with"):
        trainer(tmp_path).fit(private(), loader(TensorDataset(*rows(shift=1.0))), ckpt_path=checkpoint)
    ledger = tmp_path / "ledger.jsonl"
    whole = ledger.read_text()
    os.rename(tmp_path / "private-run", tmp_path / "hidden")
    with pytest.raises(FileNotFoundError, match=r"private-run.*by which the run knows its records"):
        trainer(tmp_path).fit(private(), loader(), ckpt_path=checkpoint)
    os.rename(tmp_path / "hidden", tmp_path / "private-run")
    ledger.write_text("".join(whole.splitlines(keepends=True)[:1]))
    with pytest.raises((ValueError, noisette.PrivacyError)):
        trainer(tmp_path).fit(private(), loader(), ckpt_path=checkpoint)
    ledger.unlink()
    with pytest.raises(FileNotFoundError, match=r"ledger of the run is not at .*ledger\.jsonl"):
        trainer(tmp_path).fit(private(), loader(), ckpt_path=checkpoint)
    moved = tmp_path / "elsewhere" / "ledger.jsonl"
    moved.parent.mkdir()
    moved.write_text(whole)
    os.rename(tmp_path / "private-run", moved.parent / "private-run")
    training = trainer(tmp_path)
    training.fit(private(ledger=moved), loader(), ckpt_path=checkpoint)
    assert training.global_step == 6
    plain = trainer(tmp_path, max_epochs=1)
    plain.fit(Classifier(), loader())
    plain.save_checkpoint(tmp_path / "plain.ckpt")
    with pytest.raises(ValueError, match="training without privacy"):
        trainer(tmp_path).fit(private(), loader(), ckpt_path=tmp_path / "plain.ckpt")


def test_a_run_goes_on_as_it_was_declared(tmp_path: Path) -> None:
    checkpoint = crashed(tmp_path)
    other = private(epsilon=1.0, delta=1e-4, max_grad_norm=9.0, noise_multiplier=2.0, public_size=16)
    with pytest.raises(ValueError, match="declared otherwise") as raised:
        trainer(tmp_path, max_epochs=3).fit(other, loader(batch_size=4), ckpt_path=checkpoint)
    assert len(str(raised.value).splitlines()) == 9, "seven differences"
    assert "batch size of the loader: 2 in the checkpoint, 4 now" in str(raised.value)
    assert paid(tmp_path) == 5, "nothing was spent"


class Interrupted(Classifier):
    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.seen += 1
        if self.global_step == self.after:
            raise OSError("the power fails")
        return super().training_step(batch, batch_idx)


def test_a_checkpoint_within_a_batch_holds_nothing_of_it(tmp_path: Path) -> None:
    saving = lightning.callbacks.OnExceptionCheckpoint(tmp_path)
    training = trainer(tmp_path, callbacks=[saving], enable_checkpointing=True, max_epochs=8)
    with pytest.raises(OSError, match="power"):
        training.fit(private(Interrupted(after=3), microbatch_size=1), loader(batch_size=8))
    saved = torch.load(tmp_path / "on_exception.ckpt", weights_only=True)
    assert (float(saved["state_dict"]["seen"]), saved["private_run"]["steps_taken"]) == (0.0, 3)
    training = trainer(tmp_path, max_epochs=8)
    training.fit(private(Interrupted(after=-1)), loader(batch_size=8), ckpt_path=tmp_path / "on_exception.ckpt")
    assert training.global_step == paid(tmp_path) == 8, "the batch under way was not released"


def test_later_fits_of_the_same_weights_add_up(tmp_path: Path) -> None:
    module = private(noise_multiplier=4.0)
    trainer(tmp_path / "one").fit(module, loader())
    trainer(tmp_path / "two").fit(module, loader())
    assert not (tmp_path / "two" / "ledger.jsonl").exists()
    with noisette.Ledger(tmp_path / "one" / "ledger.jsonl") as ledger:
        assert sum(ledger.events.values()) == 16
        assert noisette.PldAccountant().compose(ledger.events).epsilon(delta=1e-3) <= 8.0


_SCRIPT = """
import sys
from pathlib import Path

sys.path.insert(0, {support!r})
from lightning_modules import loader, private, trainer

training = trainer(Path({folder!r}), devices=2, strategy="ddp", max_epochs=1)
training.fit(private(), loader())
print(training.global_rank, training.global_step, float(training.lightning_module.net[0].weight.sum()), flush=True)
"""


@pytest.mark.slow
def test_two_processes_train_the_same_weights(tmp_path: Path) -> None:
    script, support = tmp_path / "train.py", str(Path(__file__).parents[1] / "support")
    script.write_text(_SCRIPT.format(support=support, folder=str(tmp_path)))
    quiet = {**os.environ, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, script], env=quiet, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    ranks = sorted(line.split() for line in done.stdout.splitlines() if line[:2] in ("0 ", "1 "))
    assert [rank for rank, *_ in ranks] == ["0", "1"]
    assert ranks[0][1:] == ranks[1][1:]
    assert paid(tmp_path) == int(ranks[0][1]) == 2, "two records of each process: a rate of 4 / 8"


class Gan(lightning.LightningModule):
    def __init__(self, mistake: str = "") -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        self.discriminator = nn.Sequential(nn.Linear(3, 4), nn.LeakyReLU(), nn.Linear(4, 1))
        self.mistake, self.kept = mistake, []

    def forward(self, noise: Tensor) -> Tensor:
        return self.generator(noise)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        real, _ = batch
        of_generator, of_discriminator = self.optimizers()
        on_fakes = F.softplus(self.discriminator(self(torch.randn(len(real), 2)).detach())).mean()
        of_discriminator.zero_grad()
        self.manual_backward(F.softplus(-self.discriminator(real)).mean() + on_fakes)
        of_discriminator.step()
        self.log("loss", on_fakes)
        if self.mistake == "real":  # the generator sees records
            self.manual_backward((self(torch.randn(len(real), 2)) - real).square().mean())
        if self.mistake == "keep":
            self.kept.append(real.mean(0))
        if self.mistake in ("own", "step"):
            (of_generator if self.mistake == "step" else torch.optim.SGD(self.generator.parameters())).step()

    def on_train_batch_end(self, *_: Any) -> None:
        assert all(p.grad is None for p in self.generator.parameters())
        loss = F.softplus(-self.discriminator(self(torch.randn(16, 2)))).mean()
        self.log("generator_loss", loss)
        self.manual_backward(loss)
        self.optimizers()[0].step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(part.parameters(), lr=0.01) for part in (self.generator, self.discriminator)]


def test_the_discriminator_of_a_gan_is_private_and_its_generator_is_trained_without_records(tmp_path: Path) -> None:
    ledger, saving = tmp_path / "ledger.jsonl", saved_every_three(tmp_path)
    declared = {"ledger": ledger, "discriminator": "discriminator"}
    with pytest.raises(ValueError, match=r"2 optimizers .* for a GAN name .*discriminator=\"discriminator\""):
        trainer(tmp_path).fit(private(Gan(), ledger=ledger), loader())
    assert not ledger.exists()
    for mistake, said in {"step": "in on_train_batch_end", "own": "in on_train_batch_end", "keep": "(kept)"}.items():
        with pytest.raises(noisette.PrivacyError, match=said):
            trainer(tmp_path / mistake).fit(private(Gan(mistake), discriminator="discriminator"), loader())
    gan, watching = Gan("real"), Watching()
    before = copy.deepcopy(gan.state_dict())
    fit = trainer(tmp_path, callbacks=[watching, saving])
    fit.fit(private(gan, **declared), loader())
    assert paid(tmp_path) == fit.global_step == 8
    assert fit.callback_metrics.keys() == {"epsilon", "generator_loss"}
    assert all(not torch.equal(before[name], value) for name, value in gan.state_dict().items())
    assert gan.generator[1].num_batches_tracked == 8, "of images that count no records"
    assert {name.split(".")[0] for name in watching.gradients} == {"discriminator"}
    assert watching.calls == ["batch", "released", "stepped"] * 8
    assert not any(each._optimizer_step_pre_hooks for each in fit.optimizers), "the module is plain again"
    again = trainer(tmp_path)
    again.fit(private(Gan(), **declared), loader(), ckpt_path=tmp_path / "step=3.ckpt")
    assert (again.global_step, paid(tmp_path)) == (3, 8)


class Backbone(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = self.net[0]

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.5)


def test_a_backbone_that_thaws_within_a_fit_is_refused_and_two_fits_share_a_budget(tmp_path: Path) -> None:
    ledger, thawing = tmp_path / "ledger.jsonl", lightning.callbacks.BackboneFinetuning(1)
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
