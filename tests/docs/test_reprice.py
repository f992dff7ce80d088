"""The script in docs recomputes the epsilon of a ledger without noisette, and agrees with noisette."""

import ast
import math
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from finished_runs import redigested
from noisette import BallsInBinsGaussian, BandedGaussian, Ledger, TruncatedPoissonGaussian, UserLevel, ZcdpAmount
from noisette.accounting import FixedSizeGaussian, GroupPrivacy, Laplace, PoissonGaussian, RepeatAndSelect
from noisette.accounting.events import _EVENTS, DiscreteGaussian, DpAmount, Event, Gaussian, ReplacedPoissonGaussian
from noisette.accounting.filters import RenyiOdometer
from noisette.accounting.pld import PldAccountant

SCRIPT = Path(__file__).parents[2] / "docs" / "reprice.py"
PROJECTION = Gaussian(7.0, (("principal components", 1.0),))
QUANTILE = PoissonGaussian(0.02, 6.0, (("count", 1.0),))
JOINT = PoissonGaussian(0.02, 1.4796, (("gradient", 0.973), ("count", 0.027)))
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


@pytest.fixture(scope="module")
def epsilon_of():
    return runpy.run_path(str(SCRIPT))["epsilon_of"]


@pytest.fixture
def said_on(monkeypatch, capsys):
    """What the script says on a ledger: standard output and standard error."""

    def said(path):
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(path), "1e-5"])
        runpy.run_path(str(SCRIPT), run_name="__main__")
        return capsys.readouterr()

    return said


@pytest.mark.parametrize(
    ("runs", "charges", "counted"),
    [
        ([(RUN, 1000, 700, True), (QUANTILE, 9, 0, True)], [(PROJECTION, 2)], {RUN: 700, PROJECTION: 2}),
        ([(RUN, 600, 500, False), (PoissonGaussian(0.01, 4.0), 400, 300, True)], [], None),
        ([(JOINT, 100, 100, True)], [(QUANTILE, 200)], None),
    ],
)
def test_epsilon_is_that_of_noisette(tmp_path, said_on, runs, charges, counted):
    path = spend(tmp_path / "ledger.jsonl", *runs, charges=charges)
    events = Ledger.read(path).events
    assert counted is None or events == counted
    assert float(said_on(path).out) == pytest.approx(PldAccountant().compose(events).epsilon(delta=1e-5), rel=1e-3)


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


def test_lines_that_cannot_be_are_refused_though_their_digests_fit(tmp_path, epsilon_of):
    for changed, said in (
        ({"kind": "reserve", "steps": -2}, "fewer than no steps"),
        ({"kind": "release", "steps": 9}, "given back than were reserved"),
        ({"mechanism": "Cauchy"}, "this script does not know the mechanism 'Cauchy'"),
    ):
        path = spend(tmp_path / f"{said[:5]}.jsonl", (RUN, 3, 3, True))
        redigested(path, lambda lines, changed=changed: [*lines, lines[0] | changed])
        with pytest.raises(SystemExit, match=said):
            epsilon_of(path, 1e-5)
    result = subprocess.run([sys.executable, str(SCRIPT), str(path), "1e-5"], capture_output=True)
    assert (result.returncode, result.stdout) == (1, b"")


STEP = PoissonGaussian(0.01, 4.0)
EVERY_KIND: list[dict[Event, int]] = [  # together every kind of event, each ledger with one neighbouring relation
    {
        Gaussian(7.0): 2,
        RUN: 700,
        TruncatedPoissonGaussian(0.01, 1.1, largest_batch=120, most_records=10_000): 300,
        Laplace(5.0): 3,
        DiscreteGaussian(5.0): 3,
        DpAmount(0.5, 1e-9, "synthetic table"): 2,
    },
    {BallsInBinsGaussian(50, 2.0): 150},
    {BandedGaussian(0.002, 1.5, bands=8): 2400, BandedGaussian(0.25, 40.0, bands=4): 12},
    {GroupPrivacy(STEP, 3): 50, GroupPrivacy(Gaussian(20.0), 3): 2},
    {UserLevel(STEP, 2): 50, UserLevel(Gaussian(20.0), 5): 2},
    {FixedSizeGaussian(100, 10_000, 2.0): 300, ReplacedPoissonGaussian(0.01, 2.0): 200},
    {ZcdpAmount(0.01, "table of counts"): 2},
    {RepeatAndSelect(((STEP, 1000),), mean=5.0, shape=1.0): 1},
    {RepeatAndSelect(((STEP, 100), (Gaussian(9.0), 1)), mean=5.0, shape=math.inf): 1},
]


def test_every_kind_of_event_is_priced():
    assert {type(event) for events in EVERY_KIND for event in events} == set(_EVENTS.values())


@pytest.mark.parametrize("events", EVERY_KIND, ids=lambda events: " and ".join(e.mechanism for e in events))
def test_each_kind_of_event_has_the_epsilon_of_noisette(tmp_path, epsilon_of, events):
    path = spend(tmp_path / "ledger.jsonl", charges=events.items())
    assert epsilon_of(path, 1e-7) == pytest.approx(PldAccountant().compose(events).epsilon(delta=1e-7), rel=0.01)


def test_batches_that_are_often_full_cost_a_little_more_by_the_script(tmp_path, epsilon_of):
    """It takes the worst number of records for each delta, noisette for all releases together."""
    events = {TruncatedPoissonGaussian(0.02, 4.0, largest_batch=1000, most_records=100_000): 1000}
    ours = PldAccountant().compose(events).epsilon(delta=1e-7)
    assert 0.99 * ours < epsilon_of(spend(tmp_path / "ledger.jsonl", charges=events.items()), 1e-7) < 1.05 * ours


def test_declared_and_searched_amounts_add_up_with_steps(tmp_path, epsilon_of):
    """Either bound may be the tighter one: both make a distribution of the divergences."""
    events = {RUN: 700, ZcdpAmount(0.01): 2, RepeatAndSelect(((STEP, 1000),), mean=5.0, shape=1.0): 1}
    path = spend(tmp_path / "ledger.jsonl", charges=events.items())
    assert epsilon_of(path, 1e-6) == pytest.approx(PldAccountant().compose(events).epsilon(delta=1e-6), rel=0.03)


def test_what_has_no_resolved_epsilon_is_refused_in_words(tmp_path, epsilon_of):
    path = spend(tmp_path / "ledger.jsonl", charges=[(RUN, 1)])
    with pytest.raises(SystemExit, match="does not resolve a delta of 1e-12"):
        epsilon_of(path, 1e-12)
    path = spend(tmp_path / "amount.jsonl", charges=[(DpAmount(0.1, 1e-3), 1)])
    with pytest.raises(SystemExit, match="no finite epsilon at a delta of 1e-05"):
        epsilon_of(path, 1e-5)


@pytest.mark.parametrize("event", [DpAmount(750.0), ZcdpAmount(1e6), Laplace(1e-6), Gaussian(1e-3)])
def test_a_huge_amount_has_no_finite_epsilon_and_is_said_in_words(tmp_path, epsilon_of, event):
    path = spend(tmp_path / "ledger.jsonl", charges=[(event, 1)])
    with pytest.raises(SystemExit, match="epsilon is infinite, or above 200: too little noise or too large an amount"):
        epsilon_of(path, 1e-5)


def test_the_odometer_of_several_declarations_is_that_of_noisette(tmp_path, said_on):
    path = spend(tmp_path / "ledger.jsonl", (RUN, 700, 600, True), charges=[(PROJECTION, 2), (ZcdpAmount(0.01), 1)])
    ledger = Ledger.read(path)
    ours = RenyiOdometer().compose(ledger.events).epsilon(delta=1e-5)
    found = re.fullmatch(
        r"as if all 3 declarations .*: ([\d.]+); whatever was chosen after looking: ([\d.]+)\n", said_on(path).err
    )
    assert float(found[1]) < float(found[2]) == pytest.approx(ours, rel=1e-3)
    with Ledger(tmp_path / "one.jsonl", dataset="mnist") as ledger:
        for event in (PROJECTION, RUN):
            ledger.charge(event, declaration="all")
    assert not said_on(tmp_path / "one.jsonl").err


def test_the_script_is_short_and_imports_known_libraries_only():
    text = SCRIPT.read_text()
    imports = {node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)}
    imports |= {name.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import) for name in node.names}
    outside = {name for name in imports if name.split(".")[0] not in sys.stdlib_module_names}
    assert {name.split(".")[0] for name in outside} == {"dp_accounting", "numpy", "scipy"}
    assert len(text.splitlines()) < 380
    assert not re.search(r"import noisette|from noisette", text)
