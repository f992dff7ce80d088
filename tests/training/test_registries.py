"""A new accountant, data set or model is one class or function and one line in its registry."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from command_line import train
from noisette import RdpAccountant
from noisette.accounting import registry as accountants
from noisette.data import DataSet, Split
from noisette.data.files import BuiltIn
from noisette.data.load import REGISTRY
from noisette.nn import models

SPLIT = Split(np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32), np.arange(64) % 2)
RECIPE: dict[str, dict[str, object]] = {
    "data": {},
    "model": {"name": '"linear"'},
    "privacy": {"epsilon": 8.0, "delta": 1e-4, "accountant": '"rdp"'},
    "training": {"epochs": 1, "batch_size": 60},
}


@dataclass(frozen=True)
class DummyAccountant(RdpAccountant):
    name = "dummy"
    description = "Renyi divergences under another name"
    method = "dummy divergences"


def dummy_data(data_dir: Path | None) -> DataSet:
    return DataSet("dummy", SPLIT, SPLIT, classes=2, declared_size=64)


def dummy_model(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), classes))


ADDITIONS: dict[tuple[str, str], Callable[[], tuple[Any, Any]]] = {
    ("privacy", "accountant"): lambda: (accountants.ACCOUNTANTS, DummyAccountant()),
    ("data", "name"): lambda: (REGISTRY, BuiltIn(dummy_data, "four random numbers")),
    ("model", "name"): lambda: (models.REGISTRY, models.BuiltIn(dummy_model, "one linear layer")),
}


def trained(section: str, key: str, folder: Path) -> tuple[int, str]:
    """Train with ``dummy`` in this place of the recipe; exit code and output."""
    tables = {**RECIPE, section: RECIPE[section] | {key: '"dummy"'}}
    lines = (f"{name}.{field} = {value}\n" for name, table in tables.items() for field, value in table.items())
    (folder / "recipe.toml").write_text("".join(lines))
    shown = train(folder / "recipe.toml", "--out", folder / "run")
    return shown.exit_code, shown.output


@pytest.mark.parametrize(("section", "key"), ADDITIONS, ids=[" ".join(place) for place in ADDITIONS])
def test_a_registered_addition_is_trained_with_by_name(section, key, tmp_path, monkeypatch):
    code, output = trained(section, key, tmp_path)
    assert code == 2, "unknown before it is registered"
    assert "dummy" in output
    registry, entry = ADDITIONS[section, key]()
    monkeypatch.setitem(registry, "dummy", entry)
    code, output = trained(section, key, tmp_path)
    assert code == 0, output
    text = (tmp_path / "run" / "privacy.txt").read_text() + (tmp_path / "run" / "run.json").read_text()
    assert "dummy" in text
