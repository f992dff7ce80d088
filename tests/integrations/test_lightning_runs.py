"""Runs behind fits of Lightning: after a crash, a second time, and in several processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import noisette
from lightning_modules import Classifier, lightning, loader, private, released, rows, trainer

pytestmark = pytest.mark.filterwarnings("ignore")  # of other libraries


class Failing(lightning.Callback):
    """Ends the process, in a manner of speaking, after the fifth step."""

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == 5:
            raise OSError("the power fails")


def saved_every_three(folder: Path) -> Any:
    return lightning.callbacks.ModelCheckpoint(
        folder, filename="{step}", every_n_train_steps=3, save_top_k=-1, save_last=False
    )


def crashed(folder: Path, dataset: Any = None) -> Path:
    training = trainer(folder, callbacks=[saved_every_three(folder), Failing()])
    module = private()
    with pytest.raises(OSError, match="power"):
        training.fit(module, loader(dataset))
    assert module.trainer is training
    return folder / "step=3.ckpt"


def test_a_crashed_run_goes_on_within_its_budget(tmp_path: Path) -> None:
    checkpoint = crashed(tmp_path)
    assert released(tmp_path) == 5
    assert list((tmp_path / "private-run").rglob("fingerprint.json"))
    before = torch.load(checkpoint, weights_only=True)
    training, module = trainer(tmp_path), private()
    training.fit(module, loader(), ckpt_path=checkpoint)
    assert released(tmp_path) == 8, "the two steps after the checkpoint are spent and not made again"
    assert training.global_step == 6
    assert float(training.callback_metrics["epsilon"]) <= 8.0
    assert not torch.equal(before["state_dict"]["net.0.bias"], module.net[0].bias)
    assert not (tmp_path / "private-run").exists() or not list((tmp_path / "private-run").rglob("*.json"))


def test_a_run_whose_steps_are_all_spent_trains_nothing(tmp_path: Path) -> None:
    training = trainer(tmp_path, callbacks=[saved_every_three(tmp_path)])
    training.fit(private(), loader())
    again, module = trainer(tmp_path), private()
    with pytest.warns(UserWarning, match="all 8 steps of this run are spent, 5 of them after the checkpoint"):
        again.fit(module, loader(), ckpt_path=tmp_path / "step=3.ckpt")
    assert again.global_step == 3
    assert released(tmp_path) == 8
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
    with pytest.raises(ValueError, match="declared otherwise") as raised:
        trainer(tmp_path, max_epochs=3).fit(
            private(epsilon=1.0, delta=1e-4, max_grad_norm=9.0, noise_multiplier=2.0, public_size=16),
            loader(batch_size=4),
            ckpt_path=checkpoint,
        )
    assert len(str(raised.value).splitlines()) == 9, "seven differences"
    assert "batch size of the loader: 2 in the checkpoint, 4 now" in str(raised.value)
    assert released(tmp_path) == 5, "nothing was spent"


class Interrupted(Classifier):
    """Counts its calls, and fails within a batch."""

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
    assert float(saved["state_dict"]["seen"]) == 0.0
    assert saved["private_run"]["steps_taken"] == 3
    training = trainer(tmp_path, max_epochs=8)
    training.fit(private(Interrupted(after=-1)), loader(batch_size=8), ckpt_path=tmp_path / "on_exception.ckpt")
    assert training.global_step == released(tmp_path) == 8, "the batch under way was not released"


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
    assert released(tmp_path) == int(ranks[0][1]) == 2, "two records of each process: a rate of 4 / 8"
