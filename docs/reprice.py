"""Recompute the epsilon of a noisette ledger without noisette: python reprice.py ledger.jsonl 1e-5

Uses NumPy, SciPy and dp-accounting (pip install dp-accounting). The script checks that every line follows from the line
before it, adds up the steps that were reserved or charged and not given back, and prints an upper bound on their
epsilon at this delta, for the neighbouring relation of the ledger: the larger epsilon of both directions.

That number holds if the parameters of all releases were fixed before the first. For a ledger of several declarations,
each of which may have been chosen by the results of earlier ones, it is no bound. The script then writes to standard
error the epsilon of an odometer, which is one: the least, over 16 orders, of the sum of the Rényi divergences plus
log(16 / delta) / (order - 1). Source: Lécuyer 2021, "Practical Privacy Filters and Odometers with Rényi DP".

dp-accounting composes privacy losses by Fourier transforms with rounding errors near 1e-16 of the whole probability.
Below a delta of 1e-10 the script therefore says that its result is not resolved, and exits with 1.
"""

import functools
import hashlib
import json
import math
import sys
from collections import Counter

import numpy as np
from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.pld import common, pld_pmf
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.rdp import RdpAccountant
from scipy.special import ndtr
from scipy.stats import binom

WEIGHT = {"reserve": 1, "charge": 1, "release": -1, "commit": 0}
LEAST_DELTA = 1e-10  # the least delta that dp-accounting resolves
INTERVAL = 1e-4  # between the privacy losses of a distribution
UNLIKELY = 1e-18  # the probability of privacy losses beyond the ends of a distribution
ORDERS = [1 + x / 10 for x in range(1, 100)] + list(range(11, 64)) + [80, 96, 128, 192, 256, 512, 1024]
ODOMETER_ORDERS = (1.5, 2, 3, 4, 5, 7, 10, 14, 20, 28, 40, 56, 80, 112, 160, 256)
OF_THE_LINE = ("sequence", "kind", "dataset", "steps", "mark", "previous", "run_id", "dimensions", "parts", "tool")
OF_THE_LINE += ("planned", "declaration", "version")
LARGEST_LOSS = 200  # of one release, so that its distribution fits in memory
Loss = pld.PrivacyLossDistribution


# The ledger


def lines_of(path: str) -> list[dict]:
    """Return the lines of a ledger after checking its chain of digests."""
    lines, head = [], ""
    try:
        with open(path, encoding="utf-8") as file:
            texts = file.readlines()
    except (OSError, UnicodeError) as error:
        sys.exit(f"{path} cannot be read: {error}")
    for number, text in enumerate(texts, start=1):
        try:
            line = json.loads(text)
            digest = line.pop("digest")
        except (ValueError, AttributeError, KeyError):
            sys.exit(f"{path} is no ledger of noisette: line {number} is not one of its lines")
        if (line["previous"], line["sequence"]) != (head, number - 1):
            sys.exit(f"line {number} does not follow from the line before it")
        if hashlib.sha256(json.dumps(line).encode()).hexdigest() != digest or not text.endswith("\n"):
            sys.exit(f"line {number} was altered")
        if line["steps"] < 0:
            sys.exit(f"line {number} has fewer than no steps")
        lines.append(line)
        head = digest
    return lines


def releases_of(lines: list[dict]) -> list[tuple[dict, int]]:
    """Return each kind of release with its number. Which run made it, and its dimensions, change no cost."""
    times: Counter[str] = Counter()
    for line in lines:
        facts = {name: value for name, value in line.items() if name not in OF_THE_LINE}
        times[json.dumps(facts, sort_keys=True)] += WEIGHT[line["kind"]] * line["steps"]
    if min(times.values(), default=0) < 0:
        sys.exit("more steps were given back than were reserved")
    found = [(json.loads(facts), number) for facts, number in times.items() if number]
    if len(relations := {facts["neighbouring"] for facts, _ in found}) > 1:
        sys.exit(f"releases of different neighbouring relations have no common epsilon: {', '.join(sorted(relations))}")
    return found


def declarations_of(lines: list[dict]) -> int:
    """Return how many groups of releases there are that were fixed together: of one name, or else of one run."""
    paid: Counter[str] = Counter()
    for line in lines:
        event = {name: value for name, value in line.items() if name not in OF_THE_LINE or name in ("parts", "tool")}
        name = line.get("declaration") or [line.get("run_id", ""), event]
        paid[json.dumps(name, sort_keys=True)] += WEIGHT[line["kind"]] * line["steps"]
    return sum(times > 0 for times in paid.values())


def odometer(releases: list[tuple[dict, int]], delta: float) -> float | None:
    """Return epsilon whatever was chosen after looking, or nothing where a mechanism is not an ordinary one."""
    total = RdpAccountant(ODOMETER_ORDERS)
    for facts, times in releases:
        noise = dp_event.GaussianDpEvent(facts.get("noise_multiplier", 0.0))
        match facts["mechanism"]:
            case "Gaussian":
                event = noise
            case "Poisson Gaussian":
                event = dp_event.PoissonSampledDpEvent(facts["sampling_rate"], noise)
            case "balls-in-bins Gaussian":  # a pass is at most a release over all records
                event, times = noise, -(-times // facts["bins"])
            case "declared zCDP":
                event = dp_event.ZCDpEvent(facts["rho"])
            case "repeated runs":
                event = search(facts)
            case _:
                return None
        total.compose(event, times)
    orders = np.array(ODOMETER_ORDERS)
    return float(np.min(total._rdp + np.log(len(orders) / delta) / (orders - 1)))


# The privacy loss of one release


def loss_of(facts: dict, times: int) -> Loss:
    """Return the distribution of the privacy loss of some equal releases."""
    sigma = facts.get("noise_multiplier", 0.0)
    match facts["mechanism"]:
        case "Gaussian":
            return sampled(sigma / math.sqrt(times), 1.0)
        case "Poisson Gaussian":
            return sampled(sigma, facts["sampling_rate"]).self_compose(times)
        case "seen by a group" | "seen by a user":
            return group(facts["event"], facts["records"]).self_compose(times)
        case "Poisson Gaussian, replaced record":
            return sampled(sigma, facts["sampling_rate"], NeighboringRelation.REPLACE_ONE).self_compose(times)
        case "fixed-size Gaussian":
            return replaced(sigma, facts["batch_size"] / facts["size"]).self_compose(times)
        case "truncated Poisson Gaussian":
            return truncated(facts).self_compose(times)
        case "balls-in-bins Gaussian":
            passes = -(-times // facts["bins"])
            if facts["bins"] == 1 or sigma < 0.05:
                return sampled(sigma / math.sqrt(passes), 1.0)
            return balls_in_bins(sigma, facts["bins"]).self_compose(passes)
        case "banded Gaussian":
            rate, rounds = min(1.0, facts["bands"] * facts["sampling_rate"]), -(-times // facts["bands"])
            return sampled(sigma / math.sqrt(rounds), 1.0) if rate == 1 else sampled(sigma, rate).self_compose(rounds)
        case "Laplace":
            return pld.from_laplace_mechanism(sigma, value_discretization_interval=INTERVAL).self_compose(times)
        case "discrete Gaussian":
            one = pld.from_discrete_gaussian_mechanism(sigma, 1, value_discretization_interval=INTERVAL)
            return one.self_compose(times)
        case "declared epsilon and delta":
            return declared(facts["epsilon"], facts["delta"]).self_compose(times)
        case "declared zCDP":
            return by_divergences(dp_event.SelfComposedDpEvent(dp_event.ZCDpEvent(facts["rho"]), times))
        case "repeated runs":
            return by_divergences(dp_event.SelfComposedDpEvent(search(facts), times))
    sys.exit(f"this script does not know the mechanism {facts['mechanism']!r}")


def sampled(sigma: float, rate: float, relation=NeighboringRelation.ADD_OR_REMOVE_ONE) -> Loss:
    """Return the loss of one Poisson batch, or at rate 1 of one release over all records."""
    return pld.from_gaussian_mechanism(
        sigma, sampling_prob=rate, neighboring_relation=relation, value_discretization_interval=INTERVAL
    )


def is_huge(facts: dict, times: int) -> bool:
    """Return whether so little noise, or so large an amount, has losses that count as infinite here."""
    if max(facts.get("epsilon", 0.0), facts.get("rho", 0.0)) > LARGEST_LOSS:
        return True
    event = facts.get("event", facts)
    noise = event.get("noise_multiplier", 1.0)
    if event["mechanism"] == "Gaussian":  # all records of all releases are one
        noise /= facts.get("records", 1) * math.sqrt(times)
    return (1 / noise if event["mechanism"] == "Laplace" else 0.5 / noise**2 + 9 / noise) > LARGEST_LOSS


def declared(epsilon: float, delta: float) -> Loss:
    """Return the worst loss that an epsilon with a delta allows."""
    return pld.from_privacy_parameters(common.DifferentialPrivacyParameters(epsilon, delta), INTERVAL)


def group(event: dict, records: int) -> Loss:
    """Return the loss of a release that a random number of a group's records enter: a mixture of Gaussians."""
    shifts = np.arange(records + 1)
    rate = event.get("sampling_rate", 1.0)
    if rate == 1:
        return sampled(event["noise_multiplier"] / records, 1.0)
    weights = binom.pmf(shifts, records, rate)
    return pld.from_mixture_gaussian_mechanism(
        event["noise_multiplier"], shifts, weights / weights.sum(), value_discretization_interval=INTERVAL
    )


def truncated(facts: dict) -> Loss:
    """Return the loss of a Poisson batch that is cut at its largest size.

    Whether the batch is full depends on the other records alone; knowing it can only help. If it is, the record shifts
    the sum by twice the norm at most, and only if it is kept. Of all numbers of records the largest delta counts.
    """
    rate, sigma, size = facts["sampling_rate"], facts["noise_multiplier"], facts["largest_batch"]
    around = (size + math.sqrt(size) * np.linspace(-3, 6, 60)) / rate
    numbers = np.unique(np.clip([0, *around, np.inf], 0, facts["most_records"]).astype(int))
    full = binom.sf(size - 1, numbers, rate)
    kept = size * binom.sf(size, numbers + 1, rate) / (numbers + 1) / np.maximum(full, 1e-300)
    kept = np.where(full > 0, np.minimum(kept, rate), rate)

    def largest(epsilons: np.ndarray, direction: str) -> np.ndarray:
        grows, exchanged = (sampled_delta(epsilons, norm / sigma, rate, direction) for norm in (1, 2))
        ranges = (
            (1 - most) * grows + (most - least) * exchanged + least * sampled_delta(epsilons, 2 / sigma, q, direction)
            for least, most, q in zip(full[:-1], full[1:], kept[:-1], strict=True)
        )
        return functools.reduce(np.maximum, ranges)

    return Loss(from_deltas(lambda e: largest(e, "remove")), from_deltas(lambda e: largest(e, "add")))


def replaced(sigma: float, rate: float) -> Loss:
    """Return the loss of a batch of fixed size, where one record is replaced: the sum moves by twice the norm at most.

    Source: Zhu, Dong and Wang 2022, "Optimal Accounting of Differential Privacy via Characteristic Function".
    """

    def deltas(epsilons: np.ndarray) -> np.ndarray:
        above = sampled_delta(np.abs(epsilons), 2 / sigma, rate, "remove")
        return np.where(epsilons >= 0, above, 1 - np.exp(np.minimum(epsilons, 0)) * (1 - above))

    pmf = from_deltas(deltas)
    return Loss(pmf, pmf)


def sampled_delta(epsilons: np.ndarray, shift: float, rate: float, direction: str) -> np.ndarray:
    """Return delta at each epsilon of one release: a Gaussian against its mixture with one moved by ``shift``."""
    sign = 1 if direction == "remove" else -1
    ratio = (np.exp(sign * epsilons) - (1 - rate)) / rate  # of the moved Gaussian's density to the other's
    with np.errstate(divide="ignore", invalid="ignore"):
        at = np.where(ratio > 0, np.log(np.where(ratio > 0, ratio, 1)) / shift + shift / 2, -np.inf)
    mixture, alone = (
        (rate * ndtr(shift - at) + (1 - rate) * ndtr(-at), ndtr(-at))
        if direction == "remove"
        else (rate * ndtr(at - shift) + (1 - rate) * ndtr(at), ndtr(at))
    )
    larger, smaller = (mixture, alone) if direction == "remove" else (alone, mixture)
    return np.clip(larger - np.exp(epsilons) * smaller, 0, 1)


def balls_in_bins(sigma: float, bins: int) -> Loss:
    """Return the loss of a pass in which each record falls into one of the batches.

    Its density ratio is the mean of those of the bins. Each value goes to two neighbours on a grid and keeps its mean:
    delta is the mean of a convex function, and does not decrease.
    """
    z = np.linspace(-9.5, 9.5 + 1 / sigma, 3000)
    mass, ratio = np.diff(ndtr(z)), np.exp(z / sigma - sigma**-2 / 2)
    inside = np.clip(np.diff(ndtr(z - 1 / sigma)) / np.maximum(mass, 1e-300), ratio[:-1], ratio[1:])
    one = total = on_grid(inside, mass, ratio)
    for digit in f"{bins:b}"[1:]:
        for other in (total, one) if digit == "1" else (total,):
            values, masses = np.add.outer(total[0], other[0]).ravel(), np.outer(total[1], other[1]).ravel()
            mean, low, high = masses @ values, values.min(), values.max()
            near = mean + 12 * math.sqrt(masses @ (values - mean) ** 2) * np.linspace(-1, 1, 1000)
            total = on_grid(values, masses, np.union1d(np.geomspace(low, high, 2000), np.clip(near, low, high)))
    s, q = total[0] / bins, total[1]

    def removed(epsilons: np.ndarray) -> np.ndarray:
        of_s, of_q = (np.append(np.cumsum(weight[::-1])[::-1], 0) for weight in (q * s, q))
        above = np.searchsorted(s, np.exp(epsilons))
        return np.maximum(of_s[above] - np.exp(epsilons) * of_q[above], 0)

    def added(epsilons: np.ndarray) -> np.ndarray:
        of_s, of_q = (np.append(0, np.cumsum(weight)) for weight in (q * s, q))
        below = np.searchsorted(s, np.exp(-epsilons))
        return np.maximum(of_q[below] - np.exp(epsilons) * of_s[below], 0)

    return Loss(from_deltas(removed), from_deltas(added))


def on_grid(values: np.ndarray, masses: np.ndarray, grid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return points with probabilities: each value gives its own to its two neighbours, and keeps its mean."""
    left = np.clip(np.searchsorted(grid, values, side="right") - 1, 0, len(grid) - 2)
    up = masses * np.clip((values - grid[left]) / (grid[left + 1] - grid[left]), 0, 1)
    found = np.bincount(left, masses - up, len(grid)) + np.bincount(left + 1, up, len(grid))
    likely = np.cumsum(found) > UNLIKELY
    return grid[likely], found[likely]


def search(facts: dict) -> dp_event.DpEvent:
    """Return a search as an event of dp-accounting."""
    run = []
    for event, times in facts["run"]:
        noise = dp_event.GaussianDpEvent(event["noise_multiplier"])
        rate = event.get("sampling_rate", 1.0)
        run.append(
            dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(rate, noise) if rate < 1 else noise, times)
        )
    return dp_event.RepeatAndSelectDpEvent(dp_event.ComposedDpEvent(run), facts["mean"], float(facts["shape"]))


def by_divergences(event: dp_event.DpEvent) -> Loss:
    """Return the worst loss that the Rényi divergences of an event allow.

    Source: Canonne, Kamath and Steinke 2020, Proposition 12. Delta is convex in exp(epsilon), so the convex hull of
    bounds is a bound.
    """
    accountant = RdpAccountant(ORDERS).compose(event)
    orders, divergences = (np.array(values)[:, None] for values in (accountant._orders, accountant._rdp))
    slack = np.log1p(-1 / orders) * (orders - 1) - np.log(orders)

    def bound(epsilons: np.ndarray) -> np.ndarray:
        return np.exp(np.minimum(((orders - 1) * (divergences - epsilons) + slack).min(axis=0), 0))

    largest = INTERVAL
    while bound(np.array([largest]))[0] > UNLIKELY and largest < 700:
        largest *= 1.1
    above = largest * np.linspace(1e-9, 1, 3000) ** 2
    x = np.concatenate([[0], np.exp(-above[::-1]), np.exp(above)])
    y = np.concatenate([[1], 1 - np.exp(-above[::-1]) * (1 - bound(above[::-1])), bound(above)])
    return Loss(*2 * [from_deltas(lambda epsilons: np.interp(np.exp(epsilons), *lower_hull(x, y)), largest)])


def lower_hull(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the corners of the lower convex hull of points from left to right."""
    hull: list[int] = []
    for k in range(len(x)):
        while len(hull) > 1 and (y[hull[-1]] - y[hull[-2]]) * (x[k] - x[hull[-2]]) >= (y[k] - y[hull[-2]]) * (
            x[hull[-1]] - x[hull[-2]]
        ):
            hull.pop()
        hull.append(k)
    return x[hull], y[hull]


def from_deltas(delta, largest: float = 0.0) -> pld_pmf.PLDPmf:
    """Return the distribution of losses that has these deltas on a grid, and larger ones between."""
    if not largest:
        largest = INTERVAL
        while delta(np.array([largest]))[0] > UNLIKELY and largest < 700:
            largest *= 1.1
    end = math.ceil(largest / INTERVAL)
    rounded = np.arange(-end, end + 1)
    return pld_pmf.create_pmf_pessimistic_connect_dots(INTERVAL, rounded, delta(rounded * INTERVAL))


def epsilon_of(path: str, delta: float) -> float:
    """Return the epsilon of a ledger at this delta."""
    if delta < LEAST_DELTA:
        sys.exit(
            f"dp-accounting does not resolve a delta of {delta:g}; the least that this script takes is {LEAST_DELTA:g}"
        )
    total = pld.identity(INTERVAL)
    releases = releases_of(lines := lines_of(path))
    for facts, times in releases:
        if is_huge(facts, times):
            sys.exit(
                f"epsilon is infinite, or above {LARGEST_LOSS}: too little noise or too large an amount in {facts}"
            )
        total = total.compose(loss_of(facts, times))
    epsilon = float(total.get_epsilon_for_delta(delta))
    if math.isinf(epsilon):
        sys.exit(f"no finite epsilon at a delta of {delta:g}: losses beyond what dp-accounting holds are more likely")
    if (declarations := declarations_of(lines)) > 1:
        adaptive = odometer(releases, delta)
        print(
            f"as if all {declarations} declarations had been made together: {epsilon:.6g}; whatever was chosen after "
            f"looking: {'not known to this script' if adaptive is None else f'{adaptive:.6g}'}",
            file=sys.stderr,
        )
    return epsilon


if __name__ == "__main__":
    if len(sys.argv) != 3 or not 0 < float(sys.argv[2]) < 1:
        sys.exit("expected a ledger and a delta between 0 and 1: python reprice.py ledger.jsonl 1e-5")
    print(epsilon_of(sys.argv[1], float(sys.argv[2])))
