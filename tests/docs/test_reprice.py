"""The script in docs recomputes the epsilon of a ledger without noisette, and agrees with noisette."""

import ast
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from noisette.accounting import FixedSizeGaussian, Gaussian, GroupPrivacy, Ledger, PldAccountant, PoissonGaussian

SCRIPT = Path(__file__).parents[2] / "docs" / "reprice.py"
PROJECTION = Gaussian(7.0, (("principal components", 1.0),))
QUANTILE = PoissonGaussian.quantile_query(0.02, count_deviation=3.0)
RUN = PoissonGaussian(256 / 60_000, 1.1)


def spend(path, *runs, charges=()):
    """Write a ledger of several runs, each of which used part of the steps that it reserved."""
    for event, reserved, used, closed in runs:
        with Ledger(path, dataset="mnist") as ledger:
            ledger.reserve(event, reserved)
            for _ in range(used):
                ledger.commit()
            if closed:
                ledger.release()
    with Ledger(path, dataset="mnist") as ledger:
        for event, times in charges:
            ledger.charge(event, times)
    return path


def reprice(path, delta="1e-5"):
    return subprocess.run([sys.executable, str(SCRIPT), str(path), delta], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("runs", "charges", "counted"),
    [
        ([(RUN, 1000, 700, True), (QUANTILE, 9, 0, True)], [(PROJECTION, 2)], {RUN: 700, PROJECTION: 2}),
        ([(RUN, 600, 500, False), (PoissonGaussian(0.01, 4.0), 400, 300, True)], [], None),
        ([(PoissonGaussian.joint(0.02, {"gradient": 1.5, "count": 9.0}), 100, 100, True)], [(QUANTILE, 200)], None),
    ],
    ids=["run-and-projection", "two-runs-one-of-them-crashed", "parts-and-quantiles"],
)
def test_epsilon_is_that_of_noisette(tmp_path, runs, charges, counted):
    path = spend(tmp_path / "ledger.jsonl", *runs, charges=charges)
    events = Ledger.read(path).events
    assert counted is None or events == counted
    ours = PldAccountant().compose(events).epsilon(delta=1e-5)
    assert float(reprice(path).stdout) == pytest.approx(ours, rel=1e-3)


@pytest.fixture(scope="module")
def epsilon_of():
    return runpy.run_path(str(SCRIPT))["epsilon_of"]


def test_an_altered_line_and_a_missing_line_are_refused(tmp_path, epsilon_of):
    path = spend(tmp_path / "ledger.jsonl", (RUN, 3, 2, True))
    lines = path.read_text().splitlines(keepends=True)
    for changed, said in (
        ([lines[0].replace('"steps": 3', '"steps": 2'), *lines[1:]], "line 1 was altered"),
        ([lines[0], *lines[2:]], "line 2 does not follow"),
        ([*lines[:-1], lines[-1].rstrip("\n")], "line 4 was altered"),
    ):
        path.write_text("".join(changed))
        with pytest.raises(SystemExit, match=said):
            epsilon_of(path, 1e-5)


@pytest.mark.parametrize("event", [FixedSizeGaussian(10, 100, 2.0), GroupPrivacy(RUN, 2)], ids=lambda e: e.mechanism)
def test_an_unknown_mechanism_is_refused(tmp_path, epsilon_of, event):
    path = spend(tmp_path / "ledger.jsonl", charges=[(event, 1)])
    with pytest.raises(SystemExit, match=f"line 1: this script does not know the mechanism '{event.mechanism}'"):
        epsilon_of(path, 1e-5)


def test_a_refusal_exits_with_1_and_prints_no_epsilon(tmp_path):
    path = tmp_path / "ledger.jsonl"
    path.write_text("{}\n")
    result = reprice(path)
    assert (result.returncode, result.stdout) == (1, "")


def test_the_script_is_short_and_imports_dp_accounting_only():
    text = SCRIPT.read_text()
    imports = {node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)}
    imports |= {name.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import) for name in node.names}
    outside = {name for name in imports if name.split(".")[0] not in sys.stdlib_module_names}
    assert outside == {"dp_accounting", "dp_accounting.pld"}
    assert len(text.splitlines()) <= 60
    assert not re.search(r"import noisette|from noisette", text)
