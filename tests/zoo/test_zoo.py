"""Foreign models from random configurations: the clipped sum of each against a loop over single examples."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="transformers is not installed")
peft = pytest.importorskip("peft", reason="peft is not installed")

from experiments.zoo import RESULTS, entries, left_out, measured  # noqa: E402
from experiments.zoo_check import check  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

MEASURED: dict[str, dict[str, Any]] = measured()
QUICK = (Path(__file__).parent / "quick.txt").read_text().split("\n")[:-1]
# Crops and sizes of these are of real images, so that a step takes long; `python -m experiments.zoo` measures them.
LIBRARIES = ("transformers", "peft", "torch")
EXACT = [name for name, found in MEASURED.items() if found["outcome"] == "exact" and found["library"] in LIBRARIES]


@cache
def _entries() -> dict[str, Any]:
    return {name: entry for library in LIBRARIES for name, entry in entries(library).items()}


def assert_exact(name: str) -> None:
    found = _entries()
    if name not in found:
        pytest.skip(f"{name} is not in the installed version of its library")
    result = check(found[name])
    if result.outcome == "not built":
        pytest.skip(f"{name} does not run on one example here: {result.message}")
    assert result.outcome == "exact", result
    assert result.trains or MEASURED[name]["trains"] is not True, result


@pytest.mark.parametrize("name", QUICK)
def test_a_model_of_another_library_is_exact(name: str) -> None:
    assert_exact(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(EXACT) - set(QUICK)))
def test_every_model_that_was_exact_still_is(name: str) -> None:
    assert_exact(name)


def test_quick_models_are_sixty_of_the_exact_ones() -> None:
    assert len(QUICK) == 60
    assert set(QUICK) <= set(EXACT)


# Its text has a causal mask where it is compiled, padded, or computed beside a padded one; in a run always.
KNOWN = {"transformers/Aimv2Model": "wrong"}


def test_no_other_sum_is_wrong_and_no_other_model_crashes() -> None:
    assert {name: r["outcome"] for name, r in MEASURED.items() if r["outcome"] in ("wrong", "crashed")} == KNOWN


def test_what_is_no_model_has_a_reason_and_is_not_counted() -> None:
    held = json.loads(RESULTS.read_text())
    assert held["left out"] == {name: reason for library in LIBRARIES for name, reason in left_out(library).items()}
    assert not set(held["left out"]) & set(held["models"])


def test_a_wrong_sum_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from experiments import zoo_check

    original = zoo_check.clipped_by_loop

    def doubled(*args: Any) -> Any:
        wanted, bound = original(*args)
        return [g * (1 + 1e-3) for g in wanted], bound

    monkeypatch.setattr(zoo_check, "clipped_by_loop", doubled)
    assert check(_entries()["torch/Linear"]).outcome == "wrong"


def test_the_command_measures_one_model(tmp_path: Path) -> None:
    output = tmp_path / "zoo.json"
    command = [sys.executable, "-m", "experiments.zoo", "--library", "torch", "--only", "LSTMCell", "--output", output]
    subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, cwd=Path(__file__).parents[2])
    assert measured(output)["torch/LSTMCell"]["outcome"] == "exact"
