"""A second oracle of privacy costs, for plans along whose contour too many points are needed: rare large losses.

The outputs of a release are divided into panels of Gauss points, so narrow that the loss changes by at most the
distance h of a grid. Each point gives its probability to the four nearest points of the grid by Lagrange's cubic, which
keeps the first three moments. Fourier transforms add the losses up. They round relatively to the largest probability,
so probabilities are tilted by exp(theta L) before. No theta suits rare large losses. Hence a release A + B, with the
losses above a threshold in B, counts as the sum of binomial(n, k) A^(n - k) B^k, each with a theta of its own.

The difference from a coarser grid is the error estimate.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import scipy.fft
from scipy.optimize import brentq
from scipy.special import gammaln, logsumexp, ndtr
from support import exact_privacy as exact
from support.exact_privacy import LOG_ROOT, GaussianLoss, SampledLoss, Truth

from noisette.accounting.events import Event

NODES, WEIGHTS = np.polynomial.legendre.leggauss(3)
REACH, FARTHEST = 13.0, 100.0  # standard deviations: of outputs from their mean, and of tilted means
NEGLIGIBLE, UNLIKELY = 60.0, 36.0  # densities, and probabilities, below exp(-this) are left out
RARE, MOST_RARE = 0.3, 8  # the expected number of losses above a threshold, and the most that are counted
THRESHOLDS = (math.inf, 0.5, 0.35, 0.25, 0.18, 0.12, 0.08, 0.05, 0.03)  # of epsilon
THETAS = np.concatenate([-np.geomspace(1e5, 1e-4, 140), [0.0], np.geomspace(1e-4, 1e5, 140)])
LEAST, WANTED = 1e-3, 2e-7  # epsilon, and its relative error
SIZES, MOST_POINTS = (2**13, 2**15), 2**19
ZERO = len(THETAS) // 2

Points = tuple[np.ndarray, np.ndarray]  # losses, and ln of their probabilities


@dataclass(frozen=True)
class Outputs:
    """Standard Gaussian outputs right of ``low``, that are moved by at most ``shift`` under P."""

    loss: Callable[[np.ndarray], np.ndarray]  # a monotonic function of outputs
    shift: float
    log_weight: Callable[[np.ndarray], np.ndarray] = np.zeros_like  # ln of the density under Q, over that of Gaussians
    low: float = -math.inf

    def points(self, power: float, h: float, least: float, most: float) -> Points:
        """Losses at most h apart and ln of their probabilities under Q, for sums of exp(power L)."""
        means = np.clip(self.shift * np.array([0, 1, power, 1 - power]), -FARTHEST, FARTHEST)
        edges = _edges(max(self.low, means.min() - REACH), means.max() + REACH, 0.1)
        losses = self.loss(edges)
        for end in (least, most):  # so that no panel lies on both sides of a threshold
            if losses.min() < end < losses.max():
                left = int((losses[:-1] < end).sum() - 1 if losses[0] < end else (losses[:-1] >= end).sum() - 1)
                at = brentq(lambda z, end=end: float(self.loss(np.array([z]))[0]) - end, *edges[left : left + 2])
                edges = np.insert(edges, left + 1, at)
                losses = self.loss(edges)
        heights = power * losses + self.log_weight(edges) - edges**2 / 2
        heights = np.maximum(heights[:-1], heights[1:])
        low, high = np.minimum(losses[:-1], losses[1:]), np.maximum(losses[:-1], losses[1:])
        inside = (high >= least) & (low <= most)
        if not inside.any():
            return np.zeros(0), np.zeros(0)
        kept = inside & (heights > heights[inside].max() - NEGLIGIBLE)
        parts = np.maximum(1, np.ceil((high - low)[kept] / h)).astype(int)
        widths = np.repeat(np.diff(edges)[kept] / parts, parts)
        within = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
        return self._at(np.repeat(edges[:-1][kept], parts) + widths * within, widths)

    def few_points(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Points for any power that moves outputs by at most ``FARTHEST``; which of them have others beyond."""
        edges = _edges(max(self.low, -FARTHEST - REACH), FARTHEST + REACH, 0.5)
        values, log_q = self._at(edges[:-1], np.diff(edges))
        at_end = np.zeros(len(values), bool)
        at_end[0], at_end[-1] = self.low == -math.inf, True
        return values, log_q, at_end

    def _at(self, starts: np.ndarray, widths: np.ndarray) -> Points:
        z = (starts[:, None] + widths[:, None] * (1 + NODES) / 2).ravel()
        log_q = np.log(np.outer(widths, WEIGHTS / 2)).ravel() - z**2 / 2 - LOG_ROOT
        return self.loss(z), log_q + self.log_weight(z)


@dataclass(frozen=True)
class Atoms:
    """Losses that take these values."""

    values: np.ndarray
    log_q: np.ndarray

    def points(self, power: float, h: float, least: float, most: float) -> Points:
        return self.values, self.log_q

    def few_points(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.values, self.log_q, np.zeros(len(self.values), bool)


@dataclass(frozen=True)
class Between:
    """The losses of Laplace noise between its ends."""

    epsilon: float

    def points(self, power: float, h: float, least: float, most: float) -> Points:
        edges = _edges(0.0, 1.0, min(h, 0.1) / (2 * self.epsilon))
        inside = (edges[:-1, None] + np.diff(edges)[:, None] * (1 + NODES) / 2).ravel()
        log_q = np.log(np.outer(np.diff(edges), WEIGHTS / 2)).ravel() - (1 - inside) * self.epsilon
        return (1 - 2 * inside) * self.epsilon, log_q + math.log(self.epsilon / 2)

    def few_points(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        values, log_q = self.points(0.0, math.inf, 0.0, 0.0)
        return values, log_q, np.zeros(len(values), bool)


def _edges(low: float, high: float, widest: float) -> np.ndarray:
    return np.linspace(low, high, math.ceil((high - low) / widest) + 1)


@dataclass(frozen=True)
class Release:
    """A release that happened some times, seen in one direction.

    Losses above a threshold are counted as rare ones. Those above ``cap`` are so unlikely that they are left out.
    """

    outputs: Sequence[Outputs | Atoms | Between]
    times: int
    added: bool
    threshold: float = math.inf
    cap: float = math.inf

    def points(self, theta: float, h: float, rare: bool) -> Points:
        """The frequent, or the rare, losses and ln of their probabilities."""
        least, most = (self.threshold, self.cap) if rare else (-math.inf, min(self.threshold, self.cap))
        if self.added:
            found = [part.points(-theta, h, -most, -least) for part in self.outputs]
        else:
            found = [part.points(1 + theta, h, least, most) for part in self.outputs]
        values, logs = self._seen(*zip(*found, strict=True))
        chosen = (values > least) & (values <= most)
        return values[chosen], logs[chosen]

    def few_points(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Points that tell thetas and ranges, and which of them have others beyond."""
        losses, log_q, at_end = zip(*(part.few_points() for part in self.outputs), strict=True)
        return *self._seen(losses, log_q), np.concatenate(at_end)

    def _seen(self, of_losses: Sequence[np.ndarray], of_logs: Sequence[np.ndarray]) -> Points:
        losses, log_q = np.concatenate(of_losses), np.concatenate(of_logs)
        return (-losses, log_q) if self.added else (losses, log_q + losses)


@dataclass(frozen=True)
class Term:
    """The outcomes with so many rare losses, tilted by the theta that suits an epsilon; the range of their sum."""

    rare: int
    theta: float
    low: float
    high: float


class Few:
    """A few points of all releases: how likely losses are, about."""

    @np.errstate(all="ignore")
    def __init__(self, releases: Sequence[Release], delta: float) -> None:
        negligible = math.log(delta / len(releases)) - 25
        self.releases, self.points = [], []
        for each in releases:
            points = each.few_points()
            order = np.argsort(-points[0])
            above = np.logaddexp.accumulate(points[1][order]) + math.log(each.times)
            first = max(0, int(np.searchsorted(above, negligible)) - 1)
            cap = float(points[0][order[first]])
            self.releases.append(replace(each, cap=cap))
            self.points.append(tuple(part[points[0] <= cap] for part in points))
        self.tilted = [logs + THETAS[:, None] * values for values, logs, _ in self.points]

    def divided(self, threshold: float) -> list[Release]:
        """Releases for which losses above this threshold are rare have it."""
        divided = []
        for each, (values, logs, _) in zip(self.releases, self.points, strict=True):
            chance = each.times * np.exp(logs[values > threshold]).sum()
            divided.append(replace(each, threshold=threshold) if 0 < chance < RARE else each)
        return divided

    def terms(self, releases: Sequence[Release], epsilon: float, delta: float) -> tuple[list[Term], float]:
        """The terms that matter for this epsilon, and the relative rounding error of their delta."""
        often, rare = [], []
        for each, (values, logs, at_end), tilted in zip(releases, self.points, self.tilted, strict=True):
            above = values > each.threshold
            if above.any():  # the points next to the threshold move there, as losses are as close
                near = [np.where(above, -math.inf, values).argmax(), np.where(above, values, math.inf).argmin()]
                tilted = tilted.copy()
                tilted[:, near] = logs[near] + each.threshold * THETAS[:, None]
            often.append(_log_mean(tilted[:, ~above], at_end[~above]))
            rare.append(_log_mean(tilted[:, above], at_end[above]))
        terms, error = [], 0.0
        for k in range(MOST_RARE + 1):
            logs = _log_means(releases, often, rare, k)
            if k and logs[ZERO] < math.log(delta) - 26:
                return terms, error
            rounding = np.exp(np.minimum(logs - THETAS * epsilon - math.log(delta) - 35.5, 700))
            low, high = _ranges(logs, epsilon, delta)
            likely = (THETAS >= 0) & (rounding <= max(1e-10, 10 * rounding[ZERO:].min()))
            narrow = np.where(likely, high - low, math.inf)
            best = int(np.argmin(narrow))
            if not math.isfinite(narrow[best]):
                return terms, math.inf
            if high[best] > epsilon:
                terms.append(Term(k, float(THETAS[best]), min(float(low[best]), epsilon), float(high[best])))
                error += float(rounding[best])
        return terms, math.inf

    def bound(self, delta: float) -> float:
        """A bound on epsilon by Chernoff's inequality."""
        means = [_log_mean(tilted, at_end) for tilted, (_, _, at_end) in zip(self.tilted, self.points, strict=True)]
        logs = sum(each.times * mean for each, mean in zip(self.releases, means, strict=True))
        return float(((logs - math.log(delta))[ZERO + 1 :] / THETAS[ZERO + 1 :]).min())

    def best(self, epsilon: float, delta: float) -> tuple[list[Release], list[Term], float, float]:
        """The division with the least range of losses that rounds little; its rounding, and the range over epsilon."""
        found = []
        for share in THRESHOLDS:
            releases = self.divided(share * epsilon) if share < math.inf else list(self.releases)
            terms, error = self.terms(releases, epsilon, delta)
            width = max((term.high - term.low for term in terms), default=0.0) / epsilon
            found.append(((max(error, 1e-9), width), releases, terms, error, width))
            if error < 1e-9 and width < 40:
                break
        return min(found, key=lambda each: each[0])[1:]


def _log_mean(tilted: np.ndarray, at_end: np.ndarray) -> np.ndarray:
    """ln of the means of exp(theta L); infinite for a theta for which outputs beyond the points matter."""
    if not tilted.shape[1]:
        return np.full(len(THETAS), -math.inf)
    means = logsumexp(tilted, axis=1)
    if at_end.any():
        means[tilted[:, at_end].max(axis=1) > means - UNLIKELY] = math.inf
    return means


def _log_means(releases: Sequence[Release], often: Sequence, rare: Sequence, k: int) -> np.ndarray:
    """ln of the means of exp(theta L) over outcomes with k rare losses."""
    total = [np.zeros(len(THETAS)), *[np.full(len(THETAS), -math.inf)] * k]
    for each, a, b in zip(releases, often, rare, strict=True):
        if not np.isfinite(b[ZERO]):
            total = [each.times * a + one for one in total]
            continue
        n, most = each.times, min(k, each.times)
        own = [_log_binomial(n, i) + (n - i) * a + (i * b if i else 0) for i in range(most + 1)]
        own += [np.full(len(THETAS), -math.inf)] * (k + 1 - len(own))
        total = [logsumexp([total[j] + own[i - j] for j in range(i + 1)], axis=0) for i in range(k + 1)]
    return np.where(np.isnan(total[k]), math.inf, total[k])


def _ranges(logs: np.ndarray, epsilon: float, delta: float) -> tuple[np.ndarray, np.ndarray]:
    """For each theta a range beyond which tilted losses change this delta by a share of exp(-25) at most."""
    least = math.log(delta) + THETAS * epsilon - 25
    differences = THETAS[:, None] - THETAS
    with np.errstate(divide="ignore", invalid="ignore"):
        ends = (logs[:, None] - least) / differences
    low = np.where((differences < 0) & np.isfinite(ends), ends, -math.inf).max(axis=0)
    high = np.where((differences > 0) & np.isfinite(ends), ends, math.inf).min(axis=0)
    return low, high


def _log_binomial(n: int, k: int) -> float:
    return float(gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1))


class Sum:
    """The distribution of the sum of all losses, around one epsilon."""

    def __init__(self, releases: Sequence[Release], terms: Sequence[Term], size: int) -> None:
        self.parts = [(term.theta, *_convolved(releases, term, size)) for term in terms]

    def delta(self, epsilon: float) -> float:
        """Delta at this epsilon."""
        return math.fsum(self._deltas(epsilon))

    def epsilon(self, delta: float, about: float) -> float:
        """Epsilon at this delta, or a bound of it if it is not within a factor of 2 of ``about``."""

        def excess(epsilon: float) -> float:
            return math.log(max(self.delta(epsilon), 1e-320) / delta)

        above = excess(about) > 0
        last = about
        for factor in (1.02, 1.1, 1.4, 2):
            end = about * factor if above else about / factor
            if (excess(end) > 0) != above:
                return brentq(excess, min(last, end), max(last, end), xtol=1e-300, rtol=1e-12)
            last = end
        return last

    def _deltas(self, epsilon: float) -> Iterator[float]:
        for theta, start, h, log_scale, masses in self.parts:
            first = max(1, math.floor(epsilon / h) + 1 - start)
            if first < len(masses):
                above = h * (start + np.arange(first, len(masses))) - epsilon
                total = float(masses[first:] @ (np.exp(-theta * above) * -np.expm1(-above)))
                t = above[0] / h  # the kink lies between two points
                total += h / 2 * (t * t - t + 1 / 6) * float((1 - t) * masses[first] + t * masses[first - 1])
                yield math.exp(min(log_scale - theta * epsilon, 700)) * total


def _convolved(releases: Sequence[Release], term: Term, size: int) -> tuple[int, float, float, np.ndarray]:
    """The first point in units of the distance, the distance, and tilted probabilities over exp of a logarithm."""
    h = (term.high - term.low) / (0.9 * size)
    start, log_scale = math.floor(term.low / h - 0.05 * size), 0.0
    total: list = [1.0, *[0.0] * term.rare]
    for each in releases:
        a, log_a = _transform(*each.points(term.theta, h, rare=False), term.theta, h, size)
        log_scale += each.times * log_a
        if each.threshold == math.inf or not term.rare:
            total = [one * a**each.times for one in total]
            continue
        b, log_b = _transform(*each.points(term.theta, h, rare=True), term.theta, h, size)
        n, most = each.times, min(term.rare, each.times)
        weights = [math.exp(_log_binomial(n, i) + i * (log_b - log_a)) for i in range(most + 1)]
        own = [weight * a ** (n - i) * b**i for i, weight in enumerate(weights)]
        total = [sum(total[j] * own[i - j] for j in range(i + 1) if i - j <= most) for i in range(term.rare + 1)]
    masses = scipy.fft.irfft(total[-1], size) if isinstance(total[-1], np.ndarray) else np.zeros(size)
    return start, h, log_scale, np.roll(masses, -(start % size))


def _transform(values: np.ndarray, logs: np.ndarray, theta: float, h: float, size: int) -> tuple[np.ndarray, float]:
    """The Fourier transform of tilted probabilities on the grid, with sum 1, and ln of their sum before."""
    logs = logs + theta * values
    total = float(logsumexp(logs))
    kept = logs > total - NEGLIGIBLE
    values, mass = values[kept] / h, np.exp(logs[kept] - total)
    left = np.floor(values)
    t, left = values - left, left.astype(np.int64) - 1
    shares = ((t - 1) * (2 - t) * t / 6, (1 - t * t) * (2 - t) / 2, (1 + t) * t * (2 - t) / 2, (t * t - 1) * t / 6)
    on_grid = sum(np.bincount((left + i) % size, mass * share, size) for i, share in enumerate(shares))
    return scipy.fft.rfft(on_grid), total


class TooSlowError(ArithmeticError):
    """An epsilon takes more processor time than was allowed."""


def epsilon_on_grids(events: Mapping[Event, int], delta: float, seconds: float = 60.0) -> tuple[float, float]:
    """Epsilon of these events in the worse of both directions, 0 below 1e-3, and its estimated relative error.

    Raises:
        TooSlowError: after so many seconds of processor time.
    """
    end, found = time.process_time() + seconds, []
    for added in (False, True):
        truth = Truth(events, added)
        if delta <= truth.certain:
            return math.inf, 0.0
        if truth.discrete is not None or truth.single:
            found.append((truth.epsilon(delta), 0.0))
            continue
        aim = (delta - truth.certain) / (1 - truth.certain)
        least = 0.99 * max([LEAST, *(value for value, _ in found)])
        found.append(epsilon_of(Few(releases_of(truth.losses, added), aim), aim, least, end))
    largest = max(value for value, _ in found)
    return largest, max(error for value, error in found if not value * (1 + 10 * error) < largest)


@np.errstate(all="ignore")
def epsilon_of(few: Few, delta: float, smallest: float = LEAST, end: float = math.inf) -> tuple[float, float]:
    """Epsilon of these releases, 0 below the smallest that matters, and its estimated relative error."""
    if Sum(*few.best(smallest, delta)[:2], SIZES[1]).delta(smallest) < delta:
        return 0.0, 0.0
    for least in SIZES:
        about, size = few.bound(delta), least
        for _ in range(40):
            *plan, _, width = few.best(about, delta)
            size = min(MOST_POINTS // 2, max(least, 2 ** math.ceil(math.log2(50 * width + 1))))
            found = Sum(*plan, size).epsilon(delta, about)
            done, about = abs(found - about) <= 0.01 * about, found
            if time.process_time() > end:
                raise TooSlowError
            if about < 0.5 * smallest:
                return 0.0, 0.0
            if done:
                break
        *plan, rounding, _ = few.best(about, delta)
        value, error = Sum(*plan, size).epsilon(delta, about), math.inf
        while error > WANTED and size < MOST_POINTS:
            size *= 4
            finer = Sum(*plan, size).epsilon(delta, about)
            value, error = finer, abs(finer - value) / finer + rounding
            if time.process_time() > end:
                raise TooSlowError
        if error <= WANTED and abs(value - about) <= 0.1 * about:  # not the end of a search that found nothing
            return value, error
    return value, math.inf


def releases_of(losses: Sequence[tuple[object, int]], added: bool) -> list[Release]:
    """The releases with these losses. Those of Gaussian noise on a sum over all records are one."""
    squares, releases = 0.0, []
    for loss, times in losses:
        if isinstance(loss, GaussianLoss):
            squares += times * loss.shift**2
        else:
            releases.append(Release(_outputs(loss), times, added))
    if squares:
        shift = math.sqrt(squares)
        releases.append(Release([Outputs(lambda z: shift * z - shift**2 / 2, shift)], 1, added))
    return releases


def _outputs(loss: object) -> list[Outputs | Atoms | Between]:
    match loss:
        case SampledLoss():
            return [Outputs(loss._loss, loss.widest_shift)]
        case exact.MixedLoss():
            cases = [(partial(_constant, math.log(weight)), one) for weight, one in loss.cases if weight]
            return [Outputs(one._loss, one.widest_shift, log_weight) for log_weight, one in cases]
        case exact.ReplacedLoss(sampled=one):
            middle = one.shift / 2
            above_p = one.rate * ndtr(middle) + (1 - one.rate) * ndtr(-middle)
            rest = -math.expm1(math.log(ndtr(-middle) + above_p))
            return [
                Outputs(one._loss, one.shift, low=middle),
                Outputs(lambda z: -one._loss(z), one.shift, one._loss, low=middle),
                Atoms(np.zeros(1), np.log([rest])),
            ]
        case exact.ExchangedLoss(rate=rate, shift=shift):
            middle = math.log(rate) - shift**2 / 2
            return [Outputs(loss.loss, shift, lambda z: np.logaddexp(math.log1p(-rate), middle - shift * z))]
        case exact.NodesLoss():
            return [Atoms(loss.values, loss.log_q)]
        case exact.LaplaceLoss(epsilon=epsilon):
            return [Between(epsilon), Atoms(np.array([-epsilon, epsilon]), -np.log(2) - np.array([0, epsilon]))]
    raise TypeError(f"no outputs of {loss!r}")


def _constant(value: float, z: np.ndarray) -> np.ndarray:
    return np.full_like(z, value)
