"""What the lists of built-in data sets and models say; tests/training/test_registries.py adds to them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from noisette import data
from noisette.data.load import REGISTRY
from noisette.nn import models


def test_errors_list_the_registered_names() -> None:
    with pytest.raises(data.DataError, match="adult; or the path"):
        data.load("absent")
    with pytest.raises(ValueError, match=r"scattering-lipschitz-linear, .*or give your own"):
        models.build("absent", (4,), 2)


def test_every_entry_has_a_description_of_one_line() -> None:
    for entry in (*models.REGISTRY.values(), *REGISTRY.values()):
        assert 10 < len(entry.description) < 80
        assert "\n" not in entry.description


def test_names_of_models_are_known_without_torch() -> None:
    code = "import sys; from noisette.nn.models import names; sys.exit(not names() or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
