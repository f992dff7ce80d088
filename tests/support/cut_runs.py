"""Runs of a recipe that are cut short after a step, to be resumed."""

from pathlib import Path

import pytest

from noisette.data import DataSet
from noisette.run.private import PrivateRun
from noisette.training.loop import train
from noisette.training.recipe import Recipe
from noisette.training.report.facts import Point


def pass_by(run: PrivateRun, point: Point) -> None:
    """What is called after each step of a run that nobody watches."""


def cut_short(recipe: Recipe, data: DataSet, folder: Path, *, step: int, public: DataSet | None = None) -> Path:
    """Begin a run in this folder and stop it after this step; returns the folder of its checkpoint."""

    def stop(run: PrivateRun, point: Point) -> None:
        if point.step == step:
            raise SystemExit

    folder.mkdir(exist_ok=True)
    ledger, saved = folder / "ledger.jsonl", folder / "saved"
    with pytest.raises(SystemExit):
        train(recipe, data, public=public, ledger_path=ledger, on_step=stop, checkpoint=saved)
    return saved
