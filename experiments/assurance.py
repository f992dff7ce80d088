"""Run the tests and audits behind docs/assurance.md, store the results, and write the page and the lists beside it.

    python -m experiments.assurance [mutants] [audits] [faults] [load] [--write | --check]

Without a name all four parts run, which takes about half an hour on two cores; otherwise the results of the others
are kept. With --write nothing is run, and page and lists are written from the stored results. With --check nothing is
run or written, and the exit code is 1 if page or lists differ from the stored results.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent
TESTS = ROOT / "tests"
LISTS = ROOT / "docs" / "assurance"
RESULTS, ATTACKS = LISTS / "results.json", LISTS / "attacks.json"
PAGE = ROOT / "docs" / "assurance.md"
sys.path[:0] = [str(TESTS), str(TESTS / "assurance"), str(TESTS / "support")]

from experiments.assurance_page import faults_around_a_run, listed, planted_faults, with_results  # noqa: E402
from planting import FAULTS, GROUPS, Mutant  # noqa: E402

Json = dict[str, Any]
SIGMAS = (0.5, 1.0, 4.0)


def main() -> None:
    parts: dict[str, Callable[[], Json]] = {"mutants": mutants, "audits": audits, "faults": faults, "load": load}
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("parts", nargs="*", help=", ".join(parts))
    without_running = parser.add_mutually_exclusive_group()
    without_running.add_argument("--write", action="store_true")
    without_running.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if unknown := sorted(set(options.parts) - parts.keys()):
        parser.error(f"there is no {unknown[0]}; there are {', '.join(parts)}")
    if options.check:
        sys.exit(any(path.read_text(encoding="utf-8") != text for path, text in documents().items()))
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for name in [] if options.write else options.parts or parts:
        start = time.perf_counter()
        results[name] = parts[name]() | {"seconds": round(time.perf_counter() - start)}
        results["machine"] = machine()
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        print(f"{name}: {results[name]['seconds']} s", file=sys.stderr)
    for path, text in documents().items():
        path.write_text(text, encoding="utf-8")


def documents() -> dict[Path, str]:
    """The page and the lists beside it, by the stored results."""
    results, attacks = (json.loads(path.read_text(encoding="utf-8")) for path in (RESULTS, ATTACKS))
    planted, around = planted_faults(results, GROUPS), faults_around_a_run(results, FAULTS)
    return {
        LISTS / "faults.json": listed(planted),
        LISTS / "run-faults.json": listed(around),
        PAGE: with_results(PAGE.read_text(encoding="utf-8"), results, planted, around, attacks),
    }


def machine() -> Json:
    import torch

    import noisette

    return {
        "noisette": noisette.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
    }


# Results of pytest


def run_tests(*arguments: str) -> list[Json]:
    """Run these tests, slow ones too. For each case: name, test, outcome, seconds, and recorded figures."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        options = ["-m", "", "-q", "-p", "no:cacheprovider", "-o", "junit_family=xunit1", f"--junit-xml={report}"]
        subprocess.run([sys.executable, "-m", "pytest", *options, *arguments], cwd=ROOT, check=False)
        return [_case(case) for case in ElementTree.parse(report).iter("testcase")]


def _case(case: ElementTree.Element) -> Json:
    name, place = case.get("name", ""), (case.get("file") or "").removeprefix("tests/")
    outcome = next((child.tag for child in case if child.tag in ("failure", "error", "skipped")), "passed")
    figures = {p.get("name", ""): float(p.get("value", "nan")) for p in case.iter("property")}
    return {
        "name": name,
        "test": f"{place}::{name.partition('[')[0]}",
        "outcome": outcome,
        "seconds": float(case.get("time", 0)),
        "figures": figures,
    }


def mutants() -> Json:
    """Whether each planted fault makes the tests that are named for it fail."""
    cases = run_tests("tests/assurance/test_mutants.py", "-k", "planted_fault")
    caught = {case["name"].partition("[")[2].removesuffix("]"): case["outcome"] == "passed" for case in cases}
    return {"caught": caught}


def faults() -> Json:
    """For each test of a fault around a run: the number of cases, and how many passed."""
    named = dict.fromkeys(test for fault in FAULTS for test in fault.tried_by)
    replay = "assurance/test_neighbour_replay.py"
    cases = run_tests(*(f"tests/{name}" for name in (*named, replay)))
    tests: dict[str, dict[str, int]] = {}
    for case in cases:
        entry = tests.setdefault(case["test"], {"cases": 0, "passed": 0})
        entry["cases"] += 1
        entry["passed"] += case["outcome"] == "passed"
    return {"tests": tests}


def load() -> Json:
    """Figures of long and large runs."""
    cases = run_tests("tests/assurance/test_large_runs.py")
    figures = {name: value for case in cases for name, value in case["figures"].items()}
    return {"figures": figures, "failed": sorted(case["test"] for case in cases if case["outcome"] != "passed")}


# Results of the audits


def audits() -> Json:
    """The step audit of every gradient bound, and of every planted fault in clipping and noise."""
    import torch

    torch.set_num_threads(1)
    rows = [audited(name, way, canary_model, sigma) for name, (way, canary_model) in ways().items() for sigma in SIGMAS]
    groups = [group for name, group in GROUPS.items() if name in ("Bounds by clipping", "Noise")]
    return {"ways": rows, "mutants": {mutant.name: verdict_on(mutant) for group in groups for mutant in group}}


def ways() -> dict[str, tuple[Any, Any]]:
    import noisette as n
    from noisette.audit import Axes, BehindPublicNorm, LipschitzAxes
    from noisette.nn.lipschitz import TauCrossEntropy

    def clip(**how: Any) -> Any:
        return lambda model: n.PerExampleClip(model, **how)

    def lipschitz(model: Any) -> Any:
        shape = LipschitzAxes().input_shape
        return n.LipschitzBound(model, loss=TauCrossEntropy(tau=1.0), input_shape=shape)

    return {
        "clipping, book-keeping": (clip(max_grad_norm=0.7), Axes),
        "clipping, two backward passes": (clip(max_grad_norm=0.7, engine=n.engines.ReweightGP()), Axes),
        "clipping, one example at a time": (clip(max_grad_norm=0.7, engine=n.engines.PerExampleLoop()), Axes),
        "clipping, `torch.func`": (clip(max_grad_norm=0.7, engine=n.engines.Vmap()), Axes),
        "clipping per layer": (clip(clipping=n.PerLayerClipping(0.7)), Axes),
        "adaptive clipping": (clip(clipping=n.AdaptiveClip(0.7)), Axes),
        "clipping behind public batch norm": (clip(max_grad_norm=0.7), BehindPublicNorm),
        "Lipschitz network, no clipping": (lipschitz, LipschitzAxes),
    }


def audited(name: str, way: Any, canary_model: Any, sigma: float) -> Json:
    from noisette.audit import audit_bound

    audit = audit_bound(way, noise_multiplier=sigma, canary_model=canary_model())
    return {
        "way": name,
        "noise_multiplier": sigma,
        "scores": audit.scores.values.size,
        "guaranteed_mu": round(audit.guaranteed_mu, 4),
        "certified_mu": round(audit.certified_mu, 4),
        "verdict": audit.verdict.value,
    }


def verdict_on(mutant: Mutant) -> str:
    """The verdict of the step audit alone on a planted fault."""
    import pytest

    from noisette import PerExampleClip, PrivacyError
    from noisette.audit import audit_bound

    with pytest.MonkeyPatch.context() as patch:
        mutant.patch(patch)
        try:
            return audit_bound(lambda model: PerExampleClip(model, 0.7), noise_multiplier=1.0).verdict.value
        except (PrivacyError, RuntimeError):  # a fault may also stop the run
            return "refused"


if __name__ == "__main__":
    main()
