"""Draw random plans, and compare the epsilon of an accountant with that of the independent oracle.

    python -m experiments.prices [--plans 400] [--seed 0] [--accountant pld] [--out FILE]

Each plan holds one to five kinds of releases and a delta; half of them lie where rounding errors are the most
dangerous. The script prints how many prices are below the truth, and how far the others are above it, and exits with 1
if one is below. Plans are drawn until the oracle is sure of that many to 1e-6; the others are counted apart.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.grid_privacy import TooSlowError, epsilon_on_grids  # noqa: E402

from noisette.accounting import (  # noqa: E402
    DiscreteGaussian,
    DpAmount,
    Event,
    FixedSizeGaussian,
    Gaussian,
    GroupPrivacy,
    Laplace,
    PoissonGaussian,
    ReplacedPoissonGaussian,
    TruncatedPoissonGaussian,
    UserLevel,
)
from noisette.accounting.events import facts_of  # noqa: E402
from noisette.accounting.registry import ACCOUNTANTS  # noqa: E402

MOST_SECONDS = 10.0  # of processor time for the truth of a plan
SURE = 1e-6  # the largest relative error of an oracle's value that a price is held against
SMALLEST, LARGEST = 1e-3, 3000.0  # epsilons of the plans

HARD = [  # plans that accountants have priced too low
    (PoissonGaussian(4.6e-4, 0.5371), 5675, 9.85e-12),
    (PoissonGaussian(2.46e-4, 0.5238), 5607, 1e-11),
]


@dataclass(frozen=True)
class Plan:
    """Releases and a delta."""

    kind: str
    events: dict[Event, int]
    delta: float


@dataclass(frozen=True)
class Draw:
    """Random parameters of events."""

    random: np.random.Generator

    def log(self, low: float, high: float) -> float:
        return float(np.exp(self.random.uniform(math.log(low), math.log(high))))

    def count(self, low: float, high: float) -> int:
        return max(1, round(self.log(low, high)))

    def poisson(self) -> tuple[Event, int]:
        return PoissonGaussian(self.log(1e-6, 1), self.log(0.05, 100)), self.count(1, 1e6)

    def hard(self) -> tuple[Event, int]:
        """A rare batch with little noise: few steps decide, and their privacy loss is large."""
        return PoissonGaussian(self.log(1e-5, 1e-2), self.log(0.35, 1.2)), self.count(100, 1e5)

    def gaussian(self) -> tuple[Event, int]:
        return Gaussian(self.log(0.3, 100)), self.count(1, 1000)

    def group(self) -> tuple[Event, int]:
        return GroupPrivacy(self.poisson()[0], self.count(2, 20)), self.count(1, 1e5)  # pyright: ignore[reportArgumentType]

    def user(self) -> tuple[Event, int]:
        return UserLevel(self.poisson()[0], self.count(1, 20)), self.count(1, 1e5)  # pyright: ignore[reportArgumentType]

    def fixed_size(self) -> tuple[Event, int]:
        size = self.count(100, 1e6)
        return FixedSizeGaussian(self.count(1, size), size, self.log(0.3, 100)), self.count(1, 1e5)

    def replaced(self) -> tuple[Event, int]:
        return ReplacedPoissonGaussian(self.log(1e-5, 1), self.log(0.4, 100)), self.count(1, 1e5)

    def truncated(self) -> tuple[Event, int]:
        rate, records = self.log(1e-5, 0.5), self.count(100, 1e6)
        largest = max(1, round(rate * records + self.random.uniform(-1, 6) * math.sqrt(rate * records)))
        return TruncatedPoissonGaussian(rate, self.log(0.3, 100), largest, records), self.count(1, 1e5)

    def laplace(self) -> tuple[Event, int]:
        return Laplace(self.log(0.3, 1000)), self.count(1, 100)

    def discrete(self) -> tuple[Event, int]:
        return DiscreteGaussian(self.log(0.5, 100)), self.count(1, 100)

    def amount(self) -> tuple[Event, int]:
        return DpAmount(self.log(1e-3, 3), self.log(1e-18, 1e-16)), self.count(1, 10)

    def mix(self) -> list[tuple[Event, int]]:
        """A smooth release and one to four others of any kind: the oracle sums discrete losses alone only."""
        others: list[Callable[[], tuple[Event, int]]] = [
            *(self.poisson, self.hard, self.gaussian, self.truncated, self.laplace, self.discrete, self.amount)
        ]
        smooth = [self.poisson, self.hard, self.gaussian][self.random.integers(3)]
        chosen = self.random.choice(len(others), size=self.random.integers(1, 5))
        return [smooth(), *(others[i]() for i in chosen)]

    def plan(self) -> Plan:
        kind = str(self.random.choice(list(SHARES), p=list(SHARES.values())))
        delta = self.log(1e-15, 1e-2)
        several = {
            "mix": self.mix,
            "users": self._of(self.user),
            "fixed sizes": self._of(self.fixed_size),
            "replaced records": lambda: [self.fixed_size(), self.replaced(), self.replaced()],
        }
        if kind in several:
            return Plan(kind, dict(several[kind]()), delta)
        one = {
            "Poisson": self.poisson,
            "little noise": self.hard,
            "group": self.group,
            "user": self.user,
            "fixed size": self.fixed_size,
            "replaced record": self.replaced,
            "truncated": self.truncated,
            "discrete Gaussian": self.discrete,
            "declared amount": self.amount,
        }[kind]()
        if kind == "little noise":
            delta = self.log(1e-15, 1e-7)
        return Plan(kind, dict([one]), delta)

    def _of(self, one: Callable[[], tuple[Event, int]]) -> Callable[[], list[tuple[Event, int]]]:
        return lambda: [one() for _ in range(self.random.integers(2, 4))]


SHARES = {
    "Poisson": 0.2,
    "little noise": 0.2,
    "mix": 0.2,
    "group": 0.05,
    "user": 0.05,
    "users": 0.03,
    "fixed size": 0.05,
    "fixed sizes": 0.02,
    "replaced record": 0.06,
    "replaced records": 0.02,
    "truncated": 0.08,
    "discrete Gaussian": 0.02,
    "declared amount": 0.02,
}


def plans(seed: int) -> Iterator[Plan]:
    """The hard plans, and random ones without end."""
    for event, times, delta in HARD:
        yield Plan("little noise", {event: times}, delta)
    draw = Draw(np.random.default_rng(seed))
    while True:
        yield draw.plan()


def rows(number: int, seed: int, accountant: str) -> Iterator[dict[str, Any]]:
    """Compare plans of an epsilon between 1e-3 and 3000, until the oracle is sure of so many."""
    sure = 0
    for plan in plans(seed):
        if sure == number:
            return
        row = compared(plan, accountant)
        if row["error"] > SURE or SMALLEST < row["truth"] < LARGEST:
            sure += row["error"] <= SURE
            yield row


def compared(plan: Plan, accountant: str) -> dict[str, Any]:
    """The price of a plan, the truth, and the processor time of both."""
    start = time.process_time()
    price = ACCOUNTANTS[accountant].compose(plan.events).epsilon(delta=plan.delta)
    middle = time.process_time()
    try:
        truth, error = epsilon_on_grids(plan.events, plan.delta, MOST_SECONDS)
    except TooSlowError:
        truth, error = 0.0, math.inf
    return {
        "kind": plan.kind,
        "events": [[facts_of(event), times] for event, times in plan.events.items()],
        "delta": plan.delta,
        "truth": truth,
        "error": error if math.isfinite(error) else 1.0,
        "price": price,
        "excess": price / truth - 1 if truth else 0.0,
        "seconds": round(middle - start, 3),
        "oracle_seconds": round(time.process_time() - middle, 3),
    }


def is_low(row: dict[str, Any]) -> bool:
    """Whether the price is below the truth by more than the oracle's error."""
    return not row["price"] >= row["truth"] * (1 - max(1e-9, 2 * row["error"]))


def summary(rows: list[dict[str, Any]]) -> str:
    """A table: for each kind of plan how many prices are below the truth, and how far the others are above it."""
    lines = ["| Plans | sure | others | below | excess: median | 90 % | largest | seconds: price | truth |"]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    for kind in (*dict.fromkeys(row["kind"] for row in rows), "all"):
        of_kind = [row for row in rows if kind in (row["kind"], "all")]
        sure = [row for row in of_kind if row["error"] <= SURE]
        low = sum(map(is_low, sure))
        excess = np.array([row["excess"] for row in sure] or [math.nan])
        middle, high, worst = (f"{100 * np.quantile(excess, part):.2g} %" for part in (0.5, 0.9, 1))
        times = " | ".join(f"{np.median([row[name] for row in of_kind]):.2f}" for name in ("seconds", "oracle_seconds"))
        row = f"{kind} | {len(sure)} | {len(of_kind) - len(sure)} | {low} | {middle} | {high} | {worst} | {times}"
        lines.append(f"| {row} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--plans", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--accountant", choices=sorted(ACCOUNTANTS), default="pld")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = []
    with np.errstate(all="ignore"):
        for row in rows(options.plans, options.seed, options.accountant):
            found.append(row)
            if options.out:
                options.out.write_text("".join(json.dumps(row) + "\n" for row in found), encoding="utf-8")
            if row["error"] <= SURE and is_low(row):
                print("below the truth:", json.dumps(row), flush=True)
    print(summary(found))
    sys.exit(any(row["error"] <= SURE and is_low(row) for row in found))


if __name__ == "__main__":
    main()
