"""The tutorials run, what they print is what they promise, and their notebooks have the same cells with outputs."""

import json
import re
import runpy
import tempfile
from pathlib import Path

import pytest

TUTORIALS = Path(__file__).parents[2] / "docs/tutorials"


@pytest.mark.parametrize("script", sorted(TUTORIALS.glob("*.py")), ids=lambda script: script.stem)
def test_a_notebook_has_the_cells_of_its_script(script):
    notebook = json.loads(script.with_suffix(".ipynb").read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["metadata"]["kernelspec"]["name"]) == (4, "python3")
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    cells = re.split(r"^# %%(.*)\n", script.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    written = [text.strip() for kind, text in zip(cells[::2], cells[1::2], strict=True) if not kind.strip()]
    assert ["".join(cell["source"]) for cell in code] == written, f"run: python docs/site/notebooks.py {script.stem}"
    assert any(cell["outputs"] for cell in code)


def test_digits_are_learnt_within_the_budget(capsys):
    left = runpy.run_path(str(TUTORIALS / "1_first_network.py"))
    assert left["accuracy"] > 0.75
    assert left["epsilon"] <= 3.0
    assert "epsilon" in capsys.readouterr().out


def test_an_audit_finds_something_and_no_more_than_the_guarantee_allows():
    assert 0.3 < runpy.run_path(str(TUTORIALS / "4_audit.py"))["audit"].certified_mu <= 1.0


@pytest.mark.slow
def test_a_table_is_learnt_by_commands(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)  # left again after the script, which changes the folder
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    result = runpy.run_path(str(TUTORIALS / "2_own_table.py"))["result"]
    assert result["test_accuracy"] > 0.8
    assert result["epsilon"] <= 3.0
    assert [line.partition(",")[0] for line in capfd.readouterr().out.splitlines()[-3:-1]] == ["no", "yes"]


def test_certified_radii_are_positive_and_hold():
    left = runpy.run_path(str(TUTORIALS / "5_clipless.py"))
    assert left["plain"] > 0.7
    assert 0.4 < left["certified"] <= left["plain"]
    assert left["altered"][0.99] == 0
    assert left["altered"][3.0] > 50
    assert left["epsilon"] <= 3.0


@pytest.mark.filterwarnings("ignore")  # of other libraries
@pytest.mark.parametrize(
    "has_data", [pytest.param(True, marks=pytest.mark.slow), False], ids=["data-if-there", "made-sentences"]
)
def test_adapters_of_bert_are_trained_and_saved(has_data, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if not has_data:
        monkeypatch.delenv("NOISETTE_DATA", raising=False)
    left = runpy.run_path(str(TUTORIALS / "3_bert_lora.py"))
    assert 7.9 < left["epsilon"] <= 8.0
    assert len(left["records"]) == 1000
    assert (Path(left["folder"]) / "adapter" / "adapter_model.safetensors").is_file()
