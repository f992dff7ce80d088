"""Recompute the epsilon of a noisette ledger without noisette: python reprice.py ledger.jsonl 1e-5

Uses the standard library and dp-accounting (pip install dp-accounting). The script checks that every line follows from
the line before it, adds up the steps that were reserved or charged and not given back, and prints their epsilon at this
delta, for adding or removing one record.
"""

import hashlib
import json
import sys
from collections import Counter

from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant

WEIGHT = {"reserve": 1, "charge": 1, "release": -1, "commit": 0}


def lines_of(path: str) -> list[dict]:
    """Return the lines of a ledger after checking its chain of digests."""
    lines, head = [], ""
    with open(path, encoding="utf-8") as file:
        for number, text in enumerate(file, start=1):
            line = json.loads(text)
            digest = line.pop("digest")
            if (line["previous"], line["sequence"]) != (head, number - 1):
                sys.exit(f"line {number} does not follow from the line before it")
            if hashlib.sha256(json.dumps(line).encode()).hexdigest() != digest or not text.endswith("\n"):
                sys.exit(f"line {number} was altered")
            lines.append(line)
            head = digest
    return lines


def event_of(line: dict) -> DpEvent:
    """Convert the release of a line to an event of dp-accounting."""
    match line["neighbouring"], line["mechanism"]:
        case "add or remove one record", "Gaussian":
            return GaussianDpEvent(line["noise_multiplier"])
        case "add or remove one record", "Poisson Gaussian":
            return PoissonSampledDpEvent(line["sampling_rate"], GaussianDpEvent(line["noise_multiplier"]))
    sys.exit(f"line {line['sequence'] + 1}: this script does not know the mechanism {line['mechanism']!r}")


def epsilon_of(path: str, delta: float) -> float:
    """Compute an upper bound: pessimistic privacy loss distributions, the larger epsilon of both directions."""
    times: Counter[DpEvent] = Counter()
    for line in lines_of(path):
        times[event_of(line)] += WEIGHT[line["kind"]] * line["steps"]
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    for event, count in times.items():
        if count:
            accountant.compose(event, count)
    return accountant.get_epsilon(delta)


if __name__ == "__main__":
    if len(sys.argv) != 3 or not 0 < float(sys.argv[2]) < 1:
        sys.exit("expected a ledger and a delta between 0 and 1: python reprice.py ledger.jsonl 1e-5")
    print(epsilon_of(sys.argv[1], float(sys.argv[2])))
