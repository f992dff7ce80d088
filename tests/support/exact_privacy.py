"""An independent oracle: the privacy cost of composed releases to about eight digits, without a grid of losses.

Let P and Q be the output distributions on two neighbouring data sets, L = ln(P/Q) and M(p) the mean of exp(p L) under
Q, which is an entire function of p for all mechanisms here. With K the sum of ln M(s + 1) over all releases

    delta(epsilon) = 1/(2 pi i) times the integral of exp(K(s) - s epsilon) / (s (s + 1)) ds,

from below to above, to the right of 0; the other direction has M(-s) in place of M(s + 1). Every M is a sum of Gauss
panels over the outputs themselves, moved off the real line where that damps oscillations; the contour bends like the
path of steepest descent through the saddle point. The integral is taken along two contours; their difference is the
error estimate. Releases whose losses are all discrete are summed directly instead. Nothing of noisette's accounting is
imported but the events.
"""

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

import mpmath
import numpy as np
from scipy.optimize import brentq
from scipy.special import gammaln, log_ndtr, logsumexp
from scipy.stats import binom

from noisette.accounting import events
from noisette.accounting.events import DpAmount, Event, Gaussian, PoissonGaussian, TruncatedPoissonGaussian

NODES, WEIGHTS = np.polynomial.legendre.leggauss(16)
LOG_ROOT = 0.5 * math.log(2 * math.pi)
REACH = 13.0  # standard deviations
MOST_PANELS = 30_000  # of one moment
MOST_PIECES, MOST_SECONDS = 120, 1.5  # of a contour; where it needs more, the oracle says that it does not know
NEGLIGIBLE = 50.0  # integrands are left out below exp(-50) of their largest value


def gaussian_delta(mu: float, epsilon: float) -> mpmath.mpf:
    """Balle and Wang's formula, with far more digits than cancellation loses."""
    with mpmath.workdps(60):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


class UndecidedError(ArithmeticError):
    """An integral needs more points than the oracle takes."""


class Loss(Protocol):
    """The privacy loss of one release."""

    def log_moment(self, p: np.ndarray) -> np.ndarray:
        """ln of the mean of exp(p L) under Q, for a block of complex numbers that lie close together."""
        ...


@dataclass(frozen=True)
class GaussianLoss:
    """Two Gaussians whose means are ``shift`` standard deviations apart."""

    shift: float

    def log_moment(self, p: np.ndarray) -> np.ndarray:
        return p * (p - 1) * self.shift**2 / 2


@dataclass(frozen=True)
class SampledLoss:
    """P: the standard Gaussian moved by ``shift`` times a binomial number of ``records`` at ``rate``. Q: not moved."""

    rate: float
    shift: float
    records: int = 1

    @property
    def widest_shift(self) -> float:
        return self.records * self.shift

    def log_moment(self, p: np.ndarray) -> np.ndarray:
        return _log1p(self.excess(p)) if self._largest(p) < 300 else self._log_mean(p)

    def hockey_stick(self, epsilon: float, added: bool) -> float:
        """Delta of one release in closed form, from the output at which the loss is epsilon."""
        i, log_weights = np.arange(self.records + 1), self._log_weights()
        if added and epsilon >= -log_weights[0]:
            return 0.0
        aim = -epsilon if added else epsilon
        at = brentq(lambda x: float(self._log_ratio(np.array([x]))[0]) - aim, -1e6, 1e6, xtol=1e-13, rtol=1e-15)
        tails = log_ndtr(at - i * self.shift) if added else log_ndtr(i * self.shift - at)
        mixture, alone = logsumexp(log_weights + tails), float(log_ndtr(at if added else -at))
        first, second = (alone, mixture) if added else (mixture, alone)
        return float(math.exp(first) * -math.expm1(min(0.0, epsilon + second - first)))

    def excess(self, p: np.ndarray) -> np.ndarray:
        """M(p) - 1, accurate also where it is tiny."""
        z, widths = self._path(p)
        log_density = -(z**2) / 2 - LOG_ROOT
        return _sum_of_powers(p, self._loss(z), self._ratio_excess(z), log_density, widths)

    def _log_mean(self, p: np.ndarray) -> np.ndarray:
        z, widths = self._path(p)
        exponent = p[:, None] * self._loss(z) - z**2 / 2 - LOG_ROOT
        top = exponent.real.max(axis=1)
        return top + np.log(np.exp(exponent - top[:, None]) @ widths)

    def _largest(self, p: np.ndarray) -> float:
        """The largest exponent that occurs in the integral."""
        x = np.linspace(*self._range(p), 2000)
        return float((p.real.max() * self._loss(x) - x**2 / 2).max())

    def _range(self, p: np.ndarray) -> tuple[float, float]:
        whole = self.records * self.shift
        return -REACH - max(0.0, -p.real.min()) * whole, REACH + max(1.0, p.real.max()) * whole

    def _log_weights(self) -> np.ndarray:
        i, k = np.arange(self.records + 1), self.records
        with np.errstate(divide="ignore"):
            none = (k - i) * np.log1p(-self.rate) if self.rate < 1 else np.where(i == k, 0.0, -np.inf)
        return gammaln(k + 1) - gammaln(i + 1) - gammaln(k - i + 1) + i * math.log(self.rate) + none

    def _loss(self, z: np.ndarray) -> np.ndarray:
        if self.records == 1:
            exponent = self.shift * z - self.shift**2 / 2
            small = exponent.real < 1
            moved = np.where(small, exponent, 0)
            large, rest = np.where(small, 0, exponent), (1 - self.rate) / self.rate
            beyond = math.log(self.rate) + large + _log1p(rest * np.exp(-large))
            return np.where(small, _log1p(self.rate * np.expm1(moved)), beyond)
        ratio = self._ratio_excess(z)
        small = np.abs(ratio) < 0.5
        return np.where(small, _log1p(np.where(small, ratio, 0)), self._log_ratio(z))

    def _log_ratio(self, z: np.ndarray) -> np.ndarray:
        i = np.arange(self.records + 1)[:, None] * self.shift
        return logsumexp(self._log_weights()[:, None] + i * z - i**2 / 2, axis=0)

    def _ratio_excess(self, z: np.ndarray) -> np.ndarray:
        total = np.zeros_like(z)
        with np.errstate(over="ignore", invalid="ignore"):
            for i, log_weight in enumerate(self._log_weights()):
                exponent = i * self.shift * z - (i * self.shift) ** 2 / 2
                total = total + np.exp(log_weight) * np.expm1(np.where(exponent.real > 600, 600, exponent))
        return total

    def _path(self, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Points and weights of a line parallel to the real one; the zeros of P/Q are further off, by pi / shift."""
        whole = self.records * self.shift
        sign = np.sign(p.imag[np.abs(p.imag).argmax()]) if np.iscomplexobj(p) else 0.0
        height = sign * min(1.8 / self.shift, 2.8 / whole, 1.5)
        low, high = self._range(p)
        width = min(0.7 / self.shift, 1.0)
        edges = np.linspace(low, high, _panel_count((high - low) / width)) + 1j * height
        if not sign:
            edges = edges.real
        return panels(edges, self._exponents(p))

    def _exponents(self, p: np.ndarray):
        """For points: the logarithm of a bound of the integrand, and the change of its phase."""
        ends = np.array([p[p.real.argmin()], p[p.real.argmax()], p[p.imag.argmin()], p[p.imag.argmax()]])
        largest = np.abs(p).max()

        def exponents(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            loss = self._loss(z)
            powers = np.stack([end * loss for end in ends])
            with np.errstate(divide="ignore"):
                small = 2 * np.log(np.abs(largest * loss) + 1e-300)
                bound = np.maximum(powers.real.max(axis=0), np.maximum(loss.real + math.log(largest + 1), 0))
            bound = np.where(np.abs(largest * loss) < 1, small, bound)
            density = -(z**2) / 2
            return bound + density.real, powers + density

        return exponents


@dataclass(frozen=True)
class MixedLoss:
    """One of several losses with these probabilities; which one is known to the observer."""

    cases: tuple[tuple[float, SampledLoss], ...]

    @property
    def widest_shift(self) -> float:
        return max(loss.shift for _, loss in self.cases)

    def hockey_stick(self, epsilon: float, added: bool) -> float:
        return math.fsum(weight * loss.hockey_stick(epsilon, added) for weight, loss in self.cases)

    def log_moment(self, p: np.ndarray) -> np.ndarray:
        cases = [(weight, loss) for weight, loss in self.cases if weight]
        if max(loss._largest(p) for _, loss in cases) < 300:
            return _log1p(sum(weight * loss.excess(p) for weight, loss in cases))
        logs = np.stack([math.log(weight) + loss.log_moment(p) for weight, loss in cases])
        top = logs.real.max(axis=0)
        return top + np.log(np.exp(logs - top).sum(axis=0))


@dataclass(frozen=True)
class ReplacedLoss:
    """A record of a batch of fixed size is replaced: the pair whose losses above 0 are those of the sampled pair, and
    whose losses below 0 are those of the sampled pair in the other direction. The rest of the probability has loss 0.

    Source: Zhu, Dong and Wang 2022, "Optimal Accounting of Differential Privacy via Characteristic Function",
    Proposition 30.
    """

    sampled: SampledLoss

    @property
    def widest_shift(self) -> float:
        return self.sampled.shift

    def hockey_stick(self, epsilon: float, added: bool) -> float:
        return self.sampled.hockey_stick(epsilon, added=False)

    def log_moment(self, p: np.ndarray) -> np.ndarray:
        pair, (low, high) = self.sampled, self.sampled._range(np.concatenate([p, 1 - p]))
        low = pair.shift / 2
        width = min(0.7 / pair.shift, 1.0)
        edges = np.linspace(low, high, _panel_count((high - low) / width))
        x, widths = panels(edges, pair._exponents(np.concatenate([p, 1 - p])))
        loss, ratio, log_density = pair._loss(x), pair._ratio_excess(x), -(x**2) / 2 - LOG_ROOT
        if pair._largest(np.concatenate([p, 1 - p])) < 300:
            above = _sum_of_powers(p, loss, ratio, log_density, widths)
            below = _sum_of_powers(1 - p, loss, ratio, log_density, widths)
            return _log1p(above + below)  # the terms p r and (1 - p) r add up to r: the mass at a loss of 0 has that
        exponents = [end[:, None] * loss + log_density for end in (p, 1 - p)]
        top = np.maximum(exponents[0].real.max(axis=1), exponents[1].real.max(axis=1))
        total = sum(np.exp(exponent - top[:, None]) @ widths for exponent in exponents)
        rest = 1 - np.exp(log_density) @ ((2 + ratio) * widths)
        return top + np.log(total + rest * np.exp(-top))


@dataclass(frozen=True)
class ExchangedLoss:
    """A record of a Poisson batch is replaced by one whose gradient has the other sign: under P the standard Gaussian
    is moved by ``shift`` at the rate, under Q by as much to the other side. It is known to the grids alone.
    """

    rate: float
    shift: float

    def loss(self, z: np.ndarray) -> np.ndarray:
        """The loss at outputs."""
        rest, middle = math.log1p(-self.rate), math.log(self.rate) - self.shift**2 / 2
        return np.logaddexp(rest, middle + self.shift * z) - np.logaddexp(rest, middle - self.shift * z)

    def log_moment(self, p: np.ndarray) -> np.ndarray:
        raise UndecidedError("not along a contour")


@dataclass(frozen=True)
class NodesLoss:
    """Losses that take these values, or are integrated over these values, with these probabilities under Q."""

    values: np.ndarray
    log_q: np.ndarray

    def log_moment(self, p: np.ndarray) -> np.ndarray:
        excess = np.expm1(np.minimum(self.values, 600))
        if (p.real[:, None] * self.values + self.log_q).max() < 300:
            return _log1p(_sum_of_powers(p, self.values, excess, self.log_q, np.ones(len(self.values))))
        exponent = p[:, None] * self.values + self.log_q
        top = exponent.real.max(axis=1)
        return top + np.log(np.exp(exponent - top[:, None]).sum(axis=1))


@dataclass(frozen=True)
class LaplaceLoss:
    """Laplace noise: M(p) = (e^((p-1) e) p + e^(-p e) (p - 1)) / (2 p - 1), where e is the epsilon of the release."""

    epsilon: float

    def log_moment(self, p: np.ndarray) -> np.ndarray:
        inside, widths = _panel_points(np.linspace(0, 1, 2 + math.ceil(np.abs(p).max() * self.epsilon / 3)))
        log_q = np.concatenate([np.log(widths * self.epsilon / 2) - (1 - inside) * self.epsilon, -np.log([2, 2])])
        log_q[-1] -= self.epsilon
        values = np.concatenate([(1 - 2 * inside) * self.epsilon, [-self.epsilon, self.epsilon]])
        return NodesLoss(values, log_q).log_moment(p)


def atoms(event: Event) -> tuple[np.ndarray, np.ndarray] | None:
    """The losses of a release without continuous losses, and ln of their probabilities under Q."""
    match event:
        case events.DiscreteGaussian(noise_multiplier=sigma):
            k = np.arange(-math.ceil(40 * sigma) - 60, math.ceil(40 * sigma) + 62)
            log_q = -((k - 1.0) ** 2) / (2 * sigma**2)
            return (1 - 2 * k) / (2 * sigma**2), log_q - logsumexp(log_q)
        case DpAmount(epsilon=epsilon):
            return np.array([epsilon, -epsilon]), -np.logaddexp(0, [epsilon, -epsilon])
    return None


def _truncated(event: TruncatedPoissonGaussian, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How often the batch of so many other records is full, and how often the record is then in it."""
    full = binom.sf(event.largest_batch - 1, others, event.sampling_rate)
    kept = event.largest_batch * binom.sf(event.largest_batch, others + 1, event.sampling_rate) / (others + 1)
    return full, np.where(full > 0, np.minimum(event.sampling_rate, kept / np.maximum(full, 1e-300)), 1e-9)


def worst_number(charged: Mapping[Event, int]) -> int:
    """A number of other records with which truncated batches cost much: no price may be below that."""
    truncated = [(event, times) for event, times in charged.items() if isinstance(event, TruncatedPoissonGaussian)]
    if not truncated:
        return 0
    others = np.unique(np.geomspace(1, min(event.most_records for event, _ in truncated), 3000).astype(int))
    total = np.zeros(len(others))
    for event, times in truncated:
        full, kept = _truncated(event, others)
        grows, exchanges = (math.expm1(min((norm / event.noise_multiplier) ** 2, 300)) for norm in (1, 2))
        total += times * ((1 - full) * event.sampling_rate**2 * grows + full * kept**2 * exchanges)
    return int(others[np.argmax(total)])


@lru_cache(maxsize=64)
def loss_of(event: Event, others: int = 0) -> Loss:
    """The privacy loss of an event beside so many other records; of a declared amount, where delta did not happen."""
    match event:
        case Gaussian(noise_multiplier=sigma) | PoissonGaussian(sampling_rate=1, noise_multiplier=sigma):
            return GaussianLoss(1 / sigma)
        case PoissonGaussian(sampling_rate=q, noise_multiplier=sigma):
            return SampledLoss(q, 1 / sigma)
        case events.GroupPrivacy(event=one, records=k) | events.UserLevel(event=one, records=k):
            if one.sampling_rate == 1:
                return GaussianLoss(k / one.noise_multiplier)
            return SampledLoss(one.sampling_rate, 1 / one.noise_multiplier, k)
        case events.FixedSizeGaussian(batch_size=b, size=n, noise_multiplier=sigma):
            return GaussianLoss(2 / sigma) if b == n else ReplacedLoss(SampledLoss(b / n, 2 / sigma))
        case events.ReplacedPoissonGaussian(sampling_rate=q, noise_multiplier=sigma):
            return GaussianLoss(2 / sigma) if q == 1 else ExchangedLoss(q, 1 / sigma)
        case TruncatedPoissonGaussian(sampling_rate=q, noise_multiplier=sigma):
            full, kept = (float(each[0]) for each in _truncated(event, np.array([others])))
            return MixedLoss(((1 - full, SampledLoss(q, 1 / sigma)), (full, SampledLoss(kept, 2 / sigma))))
        case events.Laplace(noise_multiplier=b):
            return LaplaceLoss(1 / b)
    if found := atoms(event):
        return NodesLoss(*found)
    raise TypeError(f"the oracle does not know {event!r}")


@dataclass
class Truth:
    """The privacy cost in one direction."""

    events: Mapping[Event, int]
    added: bool
    worst_error: float = field(default=0.0, init=False)
    """The largest relative difference between two contours so far."""

    def __post_init__(self) -> None:
        amounts = [(e.delta, n) for e, n in self.events.items() if isinstance(e, DpAmount)]
        self.certain = -math.expm1(math.fsum(n * math.log1p(-delta) for delta, n in amounts))
        others = worst_number(self.events)
        self.losses = [(loss_of(e, others), n) for e, n in self.events.items()]
        shifts = [getattr(loss, "widest_shift", 1e-3) for loss, _ in self.losses]
        self._largest_shift = max(1e-3, *shifts)
        self.discrete_losses = [(loss, n) for loss, n in self.losses if isinstance(loss, NodesLoss | LaplaceLoss)]
        only = self.losses[0][0] if [n for _, n in self.losses] == [1] else None
        self.single = only if isinstance(only, SampledLoss | MixedLoss | ReplacedLoss) else None
        self.discrete = self._discrete() if all(atoms(e) for e in self.events) else None

    def delta(self, epsilon: float) -> float:
        """Delta at this epsilon."""
        if self.discrete is not None:
            values, log_p = self.discrete
            above = values > epsilon
            return self._total(float(-np.exp(log_p[above]) @ np.expm1(epsilon - values[above])))
        if self.single:
            return self._total(self.single.hockey_stick(epsilon, self.added))
        at = self._saddle_for_epsilon(epsilon)
        first, second = (self._on(contour, [epsilon])[0] for contour in self._contours(at, epsilon))
        self._note(first, second)
        return self._total(first)

    def epsilon(self, delta: float) -> float:
        """Epsilon at this delta."""
        if delta <= self.certain:
            return math.inf
        aim = (delta - self.certain) / (1 - self.certain)
        if self.discrete is not None or self.single:
            return self._by_root_search(delta)
        at, epsilon = self._saddle_for_delta(aim)
        if epsilon <= 0 and self.delta(0.0) <= delta:
            return 0.0
        for _ in range(8):  # until the contours were placed for this very epsilon
            first, second = (self._root(contour, epsilon, aim) for contour in self._contours(at, epsilon))
            if not abs(first - epsilon) > 1e-3 * abs(epsilon):
                self._note(first, second)
                return max(0.0, first)
            bound = max(abs(epsilon), 1e-3)
            epsilon = float(np.clip(first, epsilon - 0.7 * bound, epsilon + bound))
            at, self.worst_error = self._saddle_for_epsilon(epsilon), 0.0
        return math.nan

    def approximate_epsilon(self, delta: float) -> float:
        """Epsilon by the saddle-point approximation, within a few percent; 0 for losses that are summed directly."""
        if self.discrete is not None or self.single or delta <= self.certain:
            return 0.0
        return max(0.0, self._saddle_for_delta((delta - self.certain) / (1 - self.certain))[1])

    def _note(self, first: float, second: float) -> None:
        error = abs(first - second) / max(abs(first), 1e-300)
        self.worst_error = max(self.worst_error, error if math.isfinite(error) else math.inf)

    def _total(self, of_losses: float) -> float:
        return self.certain + (1 - self.certain) * of_losses

    def _k(self, s: np.ndarray) -> np.ndarray:
        p = -s if self.added else s + 1
        return sum((n * loss.log_moment(p) for loss, n in self.losses), np.zeros_like(s))

    def _derivatives(self, s: float) -> tuple[float, float, float, float]:
        """K and its first three derivatives on the real line, by differences: they only place the contour."""
        h = 0.02 * s
        for _ in range(6):  # K bends within h where rare outputs begin to decide
            k = self._k(s + h * np.arange(-2, 3))
            first = (k[0] - 8 * k[1] + 8 * k[3] - k[4]) / (12 * h)
            second = (-k[0] + 16 * k[1] - 30 * k[2] + 16 * k[3] - k[4]) / (12 * h * h)
            third = (k[4] - 2 * k[3] + 2 * k[1] - k[0]) / (2 * h**3)
            if not h * (abs(third) + max(second, 0) ** 1.5) > 0.2 * (second + s**-2):
                break
            h /= 4
        return k[2], first, max(second, 0.0), third

    def _saddle_for_epsilon(self, epsilon: float) -> float:
        def slope(log_s: float) -> float:
            s = math.exp(log_s)
            return self._derivatives(s)[1] - epsilon - 1 / s - 1 / (s + 1)

        return math.exp(_increasing_root(slope, math.log(1e-3), math.log(10.0)))

    def _saddle_for_delta(self, delta: float) -> tuple[float, float]:
        def excess(log_s: float) -> float:
            s = math.exp(log_s)
            k, first, second, _ = self._derivatives(s)
            epsilon = first - 1 / s - 1 / (s + 1)
            curvature = second + s**-2 + (s + 1) ** -2
            return math.log(delta) - (k - s * epsilon - math.log(s * (s + 1)) - math.log(2 * math.pi * curvature) / 2)

        s = math.exp(_increasing_root(excess, math.log(1e-3), math.log(10.0)))
        return s, self._derivatives(s)[1] - 1 / s - 1 / (s + 1)

    def _contours(self, at: float, epsilon: float) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Two contours: one close to the path of steepest descent, one elsewhere with another bend."""
        contours = []
        for start, factor in ((at, 1.0), (0.96 * at, 0.6)):
            _, _, second, third = self._derivatives(start)
            curvature = second + start**-2 + (start + 1) ** -2
            skew = third - 2 * start**-3 - 2 * (start + 1) ** -3
            bend = factor * skew / (6 * curvature)
            contours.append(self._contour(start, bend, curvature**-0.5, epsilon))
        return contours

    def _contour(self, start: float, bend: float, scale: float, epsilon: float):
        """Points s, K(s) and weights, in panels of t above 0. Near the saddle s = start + i t + bend t^2; far away the
        contour turns to the side on which exp(-s epsilon) decays, no faster than the moments are computed there."""
        shift, height = self._largest_shift, 0.4 * min(1.8, 1.5 * self._largest_shift)
        side, growth, calm = math.copysign(1, bend), 2 * height / shift**2, 3 * start + 3 / shift

        def sample(low: float, high: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            t, widths = _panel_points(np.array([low, high]))
            damped = 1 + (t / scale) ** 2 / 4
            late, root = t**2 / (t + calm), np.sqrt(start**2 + growth * t**2 / (t + calm))
            s = start + 1j * t + bend * t**2 / damped + side * growth * late / (root + start)
            speed = 1j + 2 * bend * t / damped**2 + side * growth / (2 * root) * (1 - (calm / (t + calm)) ** 2)
            return s, self._k(s), widths * speed / (1j * math.pi)

        def value(sampled: tuple[np.ndarray, np.ndarray, np.ndarray]) -> np.ndarray:
            s, k, widths = sampled
            return widths * np.exp(k - s * epsilon - top) / (s * (s + 1))

        def bound(sampled: tuple[np.ndarray, np.ndarray, np.ndarray]) -> float:
            """The integrand without the periodic zeros of discrete losses, behind which it returns."""
            s, k, widths = sampled
            for loss, n in self.discrete_losses:
                p = -s if self.added else s + 1
                k = k + n * (loss.log_moment(p.real) - loss.log_moment(p).real)
            return float(np.abs(value((s, k, widths))).sum())

        top = float(self._k(np.array([start]))[0]) - start * epsilon
        peak = scale / (start * (start + 1))
        done, pieces, quiet, low, up, unresolved, largest = [], 0, 0, 0.0, scale, 0.0, 0.0
        end = time.process_time() + MOST_SECONDS
        while quiet < 2 and pieces < MOST_PIECES:
            waiting, largest = [(low, up)], 0.0
            while waiting:
                left, right = waiting.pop()
                if time.process_time() > end:
                    pieces = MOST_PIECES
                middle, pieces = (left + right) / 2, pieces + 1
                whole, halves = sample(left, right), [sample(left, middle), sample(middle, right)]
                fine = sum(value(half).sum() for half in halves)
                gap = abs((value(whole).sum() - fine).real)
                if gap > 1e-10 * peak and pieces < MOST_PIECES:
                    waiting += [(left, middle), (middle, right)]
                else:
                    done, unresolved = done + halves, unresolved + gap
                    largest += sum(bound(half) for half in halves)
            quiet = quiet + 1 if largest < 1e-10 * peak else 0
            low, up = up, min(1.6 * up, up + 8 * scale) if self.discrete_losses else 1.6 * up
        if pieces >= MOST_PIECES:  # what is missing, as a relative error of epsilon
            missing = (unresolved + 10 * largest) / peak / max(start * abs(epsilon), 1e-6)
            self.worst_error = max(self.worst_error, missing if math.isfinite(missing) else math.inf)
        return tuple(np.concatenate(parts) for parts in zip(*done, strict=True))

    @staticmethod
    def _on(contour: Sequence[np.ndarray], epsilons: Sequence[float]) -> list[float]:
        s, k, widths = contour
        return [float((widths * np.exp(k - s * epsilon) / (s * (s + 1))).real.sum()) for epsilon in epsilons]

    def _root(self, contour: Sequence[np.ndarray], epsilon: float, delta: float) -> float:
        s, k, widths = contour
        for _ in range(60):
            terms = widths * np.exp(k - s * epsilon)
            value, slope = float((terms / (s * (s + 1))).real.sum()), -float((terms / (s + 1)).real.sum())
            if not value > 0 or not slope < 0:
                return math.nan
            step = value * math.log(delta / value) / slope
            epsilon += step
            if abs(step) < 1e-13 * max(abs(epsilon), 1e-12):
                break
        return epsilon

    def _discrete(self) -> tuple[np.ndarray, np.ndarray]:
        """All losses together and ln of their probabilities under P; in this direction, which has the same losses."""
        values, log_p = np.zeros(1), np.zeros(1)
        for event, times in self.events.items():
            found = atoms(event)
            assert found is not None
            more, log_q = _self_convolved(*found, times)
            values = np.add.outer(values, more).ravel()
            log_p = np.add.outer(log_p, log_q + more).ravel()
        return values, log_p

    def _by_root_search(self, delta: float) -> float:
        if self.delta(0.0) <= delta:
            return 0.0
        low, high = 0.0, 1.0
        while self.delta(high) > delta:
            low, high = high, 2 * high
        return float(brentq(lambda epsilon: self.delta(epsilon) - delta, low, high, xtol=1e-300, rtol=1e-15))


@dataclass(frozen=True)
class Oracle:
    """The privacy cost of these events in the worse of both directions."""

    events: Mapping[Event, int]

    @property
    def directions(self) -> tuple[Truth, Truth]:
        return Truth(self.events, added=False), Truth(self.events, added=True)

    def epsilon(self, delta: float) -> tuple[float, float]:
        """Epsilon at this delta, and its estimated relative error.

        Where the saddle-point approximation of one direction is far below that of the other, it is not computed.
        """
        with contextlib.suppress(UndecidedError), np.errstate(all="ignore"):
            return self._epsilon(delta)
        return math.nan, math.inf

    def _epsilon(self, delta: float) -> tuple[float, float]:
        rough = [way.approximate_epsilon(delta) for way in self.directions]
        # An approximation of 0 tells nothing: rare large losses may have led it astray.
        ways = [way for way, about in zip(self.directions, rough, strict=True) if not 0 < about < 0.2 * max(rough)]
        return self._worst([(way.epsilon(delta), way) for way in ways])

    def delta(self, epsilon: float) -> tuple[float, float]:
        """Delta at this epsilon, and its estimated relative error."""
        with contextlib.suppress(UndecidedError), np.errstate(all="ignore"):
            return self._worst([(way.delta(epsilon), way) for way in self.directions])
        return math.nan, math.inf

    @staticmethod
    def _worst(found: list[tuple[float, Truth]]) -> tuple[float, float]:
        values = [value for value, _ in found]
        if any(math.isnan(value) for value in values):
            return math.nan, math.inf
        return max(values), max(way.worst_error for _, way in found)


def panels(edges: np.ndarray, exponents) -> tuple[np.ndarray, np.ndarray]:
    """Gauss points and weights of the panels that matter, each so narrow that the integrand is smooth on it."""
    lows, highs = edges[:-1], edges[1:]
    kept_lows, kept_highs = [], []
    for _ in range(30):
        (bound_low, phase_low), (bound_high, phase_high) = exponents(lows), exponents(highs)
        middle_bound, _ = exponents((lows + highs) / 2)
        bound = np.maximum(np.maximum(bound_low, bound_high), middle_bound)
        if not kept_lows:
            top = bound.max()
        matters = bound > top - NEGLIGIBLE
        coarse = matters & (np.abs(phase_high - phase_low).max(axis=0) > 8)
        kept_lows.append(lows[matters & ~coarse])
        kept_highs.append(highs[matters & ~coarse])
        if sum(map(len, kept_lows)) + 2 * coarse.sum() > MOST_PANELS:
            raise UndecidedError("too many panels")
        if not coarse.any():
            break
        cut = (lows[coarse] + highs[coarse]) / 2
        lows, highs = np.concatenate([lows[coarse], cut]), np.concatenate([cut, highs[coarse]])
    lows, highs = np.concatenate(kept_lows), np.concatenate(kept_highs)
    middle, half = (lows + highs) / 2, ((highs - lows) / 2).real
    return (middle[:, None] + half[:, None] * NODES).ravel(), (half[:, None] * WEIGHTS).ravel()


def _panel_count(wanted: float) -> int:
    if wanted > 10 * MOST_PANELS:
        raise UndecidedError("too many panels")
    return math.ceil(wanted) + 1


def _panel_points(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    middle, half = (edges[:-1] + edges[1:]) / 2, np.diff(edges) / 2
    return (middle[:, None] + half[:, None] * NODES).ravel(), (half[:, None] * WEIGHTS).ravel()


def _sum_of_powers(
    p: np.ndarray, loss: np.ndarray, ratio: np.ndarray, log_density: np.ndarray, widths: np.ndarray
) -> np.ndarray:
    """Sum of density times (e^(p L) - 1 - p (e^L - 1)): M(p) - 1, because the mean of e^L - 1 is 0 under Q."""
    total = np.empty(len(p), complex if np.iscomplexobj(p) else float)
    density, huge = widths * np.exp(log_density), loss.real > 15
    small_ratio = np.abs(ratio) < 0.2
    gap = np.where(small_ratio, -_log1p_tail(np.where(small_ratio, ratio, 0)), ratio - loss)  # ratio - loss, 0 or more
    linear = np.where(huge, widths * np.exp(log_density + np.where(huge, loss, 0)) - density, 0).sum()
    moderate = ~huge
    d, losses, r, g = density[moderate], loss[moderate], ratio[moderate], gap[moderate]
    far_d, far_l, far_w, far_log = density[huge], loss[huge], widths[huge], log_density[huge]
    for j, power in enumerate(p):
        z = power * losses
        near = np.abs(z) < 0.3
        with np.errstate(over="ignore", invalid="ignore"):
            direct = np.exp(z + log_density[moderate]) * widths[moderate] - d * (1 + power * r)
        close = d * (_expm1_tail(np.where(near, z, 0)) - power * g)
        value = np.where(near, close, direct).sum()
        if len(far_d):
            value += (far_w * np.exp(far_log + power * far_l)).sum() - far_d.sum() - power * linear
        total[j] = value
    return total


def _expm1_tail(z: np.ndarray) -> np.ndarray:
    """e^z - 1 - z for |z| < 0.3."""
    total = np.zeros_like(z)
    for n in range(14, 1, -1):
        total = (total + 1) * z / n
    return total * z


def _log1p_tail(r: np.ndarray) -> np.ndarray:
    """ln(1 + r) - r for |r| < 0.2."""
    total = np.zeros_like(r)
    for n in range(26, 1, -1):
        total = (total + (-1) ** (n - 1) / n) * r
    return total * r


def _log1p(z: np.ndarray) -> np.ndarray:
    if not np.iscomplexobj(z):
        return np.log1p(z)
    x, y = z.real, z.imag
    far = x < -0.5
    near = np.log1p(np.where(far, 0, 2 * x + x * x + y * y)) / 2
    with np.errstate(divide="ignore"):
        return np.where(far, np.log(np.abs(1 + z)), near) + 1j * np.arctan2(y, 1 + x)


def _increasing_root(function, low: float, high: float) -> float:
    """The root of an increasing function, to three digits; the bracket grows until it holds it."""
    while function(low) > 0 and low > -40:
        low -= 2
    while function(high) < 0 and high < 18:
        high += 0.7
    for _ in range(18):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < 0 else (low, middle)
    return (low + high) / 2


def _self_convolved(values: np.ndarray, log_q: np.ndarray, times: int) -> tuple[np.ndarray, np.ndarray]:
    """The sum of this many independent losses at equal spacing: products of positive numbers, no cancellation."""
    order = np.argsort(values)
    values, mass = values[order], np.exp(log_q[order])
    spacing = values[1] - values[0] if len(values) > 1 else 0.0
    start, result, power, left, low = 0.0, np.ones(1), mass, times, values[0]
    while left:
        if left & 1:
            result, start = np.convolve(result, power), start + low
            result, start = _cut(result, start, spacing)
        left >>= 1
        if left:
            power, low = np.convolve(power, power), 2 * low
            power, low = _cut(power, low, spacing)
    with np.errstate(divide="ignore"):
        return start + spacing * np.arange(len(result)), np.log(result)


def _cut(mass: np.ndarray, start: float, spacing: float) -> tuple[np.ndarray, float]:
    kept = np.flatnonzero(mass > 1e-250)
    return mass[kept[0] : kept[-1] + 1], start + spacing * kept[0]
