"""The tutorials run, and what they print is what they promise."""

from __future__ import annotations

import runpy
import tempfile
from pathlib import Path

import pytest

TUTORIALS = Path(__file__).parents[2] / "docs/tutorials"


def test_digits_are_learnt_within_the_budget(capsys: pytest.CaptureFixture[str]) -> None:
    left = runpy.run_path(str(TUTORIALS / "mnist.py"))
    assert left["accuracy"] > 0.75
    assert left["epsilon"] <= 3.0
    assert "epsilon" in capsys.readouterr().out


def test_an_audit_finds_something_and_no_more_than_the_guarantee_allows() -> None:
    audit = runpy.run_path(str(TUTORIALS / "audit.py"))["audit"]
    assert 0.3 < audit.certified_mu <= 1.0


def test_a_table_is_learnt_by_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # left again after the script, which changes the folder
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    result = runpy.run_path(str(TUTORIALS / "own_table.py"))["result"]
    assert result["test_accuracy"] > 0.8
    assert result["epsilon"] <= 3.0
    assert [line.partition(",")[0] for line in capfd.readouterr().out.splitlines()[-3:-1]] == ["no", "yes"]


def test_certified_radii_are_positive_and_hold() -> None:
    left = runpy.run_path(str(TUTORIALS / "clipless.py"))
    assert left["plain"] > 0.7
    assert 0.4 < left["certified"] <= left["plain"]
    assert left["altered"][0.99] == 0
    assert left["altered"][3.0] > 50
    assert left["epsilon"] <= 3.0


@pytest.mark.filterwarnings("ignore")  # of other libraries
@pytest.mark.parametrize("has_data", [True, False], ids=["data-if-there", "made-sentences"])
def test_adapters_of_bert_are_trained_and_saved(
    has_data: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("accelerate", "peft", "transformers"):
        pytest.importorskip(
            package, reason="the tutorial needs transformers, accelerate and peft", exc_type=ImportError
        )
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if not has_data:
        monkeypatch.delenv("NOISETTE_DATA", raising=False)
    left = runpy.run_path(str(TUTORIALS / "bert_lora.py"))
    assert 7.9 < left["epsilon"] <= 8.0
    assert len(left["records"]) == 1000
    assert (Path(left["folder"]) / "adapter" / "adapter_model.safetensors").is_file()
