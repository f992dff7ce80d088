"""The page about batch norm: its code runs, and the library gives its numbers and its picture."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.batch_norm import moved
from noisette.nn import PublicBatchNorm
from papers.davody_2020.mixture_batch_norm import MixtureBatchNorm

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "batch-norm.md").read_text(encoding="utf-8")


def test_code_of_the_page_exports_the_same_function() -> None:
    [block] = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(block, names)
    assert torch.equal(names["exported"](names["images"][:4]), names["outputs"])


def test_numbers_of_the_page_are_those_of_the_library() -> None:
    text = " ".join(PAGE.split())
    for norm in (MixtureBatchNorm, PublicBatchNorm):
        without, joined = moved(norm)
        assert (without, joined) == pytest.approx((round(without), round(joined)), abs=1e-3)
        assert f"from {without:.0f} C to {joined:.0f} C" in text


def test_the_picture_is_up_to_date() -> None:
    command = [sys.executable, "-m", "experiments.batch_norm", "--check"]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0, "run: python -m experiments.batch_norm"
