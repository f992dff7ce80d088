"""Audits of single steps: how far a record moves what a step releases, and whether the noise is the documented one.

Canary k is record k. Its gradient has the same value at element k of every trained parameter, zeros elsewhere, and a
norm above every bound; the gradients of ordinary records have other elements. So each step gives a score per canary.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor, nn

from noisette import errors as checks
from noisette.audit.certificate import FALSE_ALARM, Audit, Verdict, certified_mu
from noisette.core.batches import Batch
from noisette.core.loss import Loss, Microbatch
from noisette.core.release import ROUNDING, GradientBound, shares_of
from noisette.nn import PublicBatchNorm, convert_batch_norm
from noisette.nn.lipschitz import BoundedInput, SpectralLinear
from noisette.run.private import PrivateRun, privatize

__all__ = ["Axes", "BehindPublicNorm", "Canaries", "CanaryModel", "LipschitzAxes", "NeighbourAudit", "Rows", "Scores"]
__all__ += ["StepAudit", "assert_consistent", "audit_bound", "audit_neighbours", "audit_step"]

# Norm of a canary's gradient: above every clipping norm, and its square is far below the limit of single precision.
LENGTH = 1000.0
_ELSEWHERE = 8  # axes of the ordinary records


@dataclass
class CanaryModel:
    """A model, and records of which the first ``canaries`` are canaries, (records, ...)."""

    model: nn.Module
    records: Tensor
    canaries: int
    scale: float = LENGTH  # the factor from an output of the model to a loss

    def loss(self, model: nn.Module, record: Tensor) -> Tensor:
        return self.scale * model(record).flatten()


def _records(canaries: int, ordinary: int, widths: tuple[int, ...]) -> Tensor:
    """Canaries on their axes in each part of ``widths`` elements, ordinary records on the axes behind them."""
    parts = []
    for width in widths:
        part = torch.zeros(canaries + ordinary, width)
        part[:canaries, :canaries] = LENGTH * torch.eye(canaries)
        part[canaries:, canaries:] = torch.randn(ordinary, width - canaries)
        parts.append(part)
    return torch.cat(parts, 1)


class _TwoLayers(nn.Module):
    """The gradient of an example's output is the example itself, split over two parameters of different size."""

    def __init__(self, widths: tuple[int, int]) -> None:
        super().__init__()
        self.cut = widths[0]
        self.a, self.b = (nn.Linear(width, 1, bias=False) for width in widths)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x[:, : self.cut]) + self.b(x[:, self.cut :])


class Axes(CanaryModel):
    """For every clipping rule: two linear layers, whose gradient is the record."""

    def __init__(self, canaries: int = 512, ordinary: int = 100) -> None:
        widths = canaries + _ELSEWHERE, canaries + 4 * _ELSEWHERE + 1
        super().__init__(_TwoLayers(widths), _records(canaries, ordinary, widths), canaries, scale=1.0)


class BehindPublicNorm(CanaryModel):
    """For models with public batch norm: a linear layer whose output is normalised by public statistics.

    The public examples are on the axes of the ordinary records, so they change a canary's gradient on those axes only.
    """

    def __init__(self, canaries: int = 512, ordinary: int = 100) -> None:
        width = canaries + _ELSEWHERE
        layer = nn.Linear(width, 1, bias=False)
        nn.init.zeros_(layer.weight[:, :canaries].detach())
        model = nn.Sequential(layer, nn.BatchNorm1d(1, affine=False))
        public = torch.zeros(64, width)
        public[:, canaries:] = torch.randn(64, _ELSEWHERE)
        convert_batch_norm(model, to=PublicBatchNorm, public=public)
        super().__init__(model, _records(canaries, ordinary, (width,)), canaries)


class LipschitzAxes(CanaryModel):
    """For Lipschitz bounds: a 1-Lipschitz network whose gradient is that of its score times an input of norm one."""

    def __init__(self, canaries: int = 512, ordinary: int = 100) -> None:
        width = canaries + _ELSEWHERE
        self.input_shape = (width,)
        model = nn.Sequential(BoundedInput(1.0), SpectralLinear(width, 1))
        super().__init__(model, _records(canaries, ordinary, (width,)), canaries)


class Rows(CanaryModel):
    """For audits with many thousands of canaries: a table of which each canary changes a row of its own."""

    def __init__(self, canaries: int) -> None:
        super().__init__(nn.Embedding(canaries, 1), torch.arange(canaries), canaries)


class Canaries(CanaryModel):
    """For a training step of your own: a linear layer without bias, so that the gradient of a record is the record."""

    def __init__(self, canaries: int = 512, ordinary: int = 100) -> None:
        self.width = canaries + _ELSEWHERE  # elements of a record
        layer = nn.Linear(self.width, 1, bias=False)
        super().__init__(layer, _records(canaries, ordinary, (self.width,)), canaries, scale=1.0)


BoundFactory = Callable[[nn.Module], GradientBound]


@dataclass(frozen=True)
class Scores:
    """Scores of canaries in units of the noise: N(0, 1) for those out of a batch, N(``shift``, 1) for those in it.

    ``values`` and ``inside`` are (steps, canaries). ``noise_multiplier`` is the documented one, and ``shift`` one over
    it where canaries reach every bound.
    """

    values: np.ndarray
    inside: np.ndarray
    noise_multiplier: float
    shift: float


def released_scores(
    bound: GradientBound,
    canary_model: CanaryModel,
    *,
    noise_multiplier: float,
    expected_batch_size: float,
    records: Tensor | None = None,
    microbatch_size: int = 200,
    **declared: Any,
) -> Iterator[tuple[PrivateRun, Batch, np.ndarray, float]]:
    """Train with the real loop, and score the canaries by what each step releases.

    ``records`` are those of the model unless given, and ``declared`` other arguments of ``privatize``. A canary reaches
    the bound of each sum of parameters equally. It yields the run, the batch, the component of the release along the
    axis of each canary, (canaries,), and the mean of those in the batch, both in units of the noise.
    """
    records = canary_model.records if records is None else records
    trained = {id(p) for p in bound.parameters.values()}
    optimizer = torch.optim.SGD(list(bound.parameters.values()), lr=0.1)
    numbers = {"noise_multiplier": noise_multiplier, "expected_batch_size": expected_batch_size}
    with privatize(bound, optimizer, records, **numbers, **declared) as run:
        for batch in run.batches():
            sums = bound.pop_sums()  # which hold nothing but the bounds of this step
            for microbatch in batch.microbatches(microbatch_size):
                run.accumulate(canary_model.loss, microbatch)
            optimizer.step()
            scores, reached = torch.zeros(canary_model.canaries, dtype=torch.float64), 0.0
            for part, share in zip(sums, shares_of(sums), strict=True):
                for p in part.params:
                    if id(p) in trained:
                        reached += share / len(part.params)
                        weight = share * expected_batch_size / (part.bound * math.sqrt(len(part.params)))
                        assert p.grad is not None, "released"
                        scores += weight * p.grad.double().flatten()[: canary_model.canaries]
            shift = math.sqrt(reached)
            yield run, batch, scores.numpy() / shift / noise_multiplier, shift / noise_multiplier
            optimizer.zero_grad()


_LAGS_LEFT_OUT = 20  # the longest, for which a step has few products


class Check(NamedTuple):
    """A statistic that is within ``limit`` of zero for the documented mechanism, up to the rate of false alarms."""

    name: str
    z: float
    limit: float


class StepAudit(Audit):
    """What scores of canaries prove about the mechanism that was audited.

    ``guaranteed_mu`` is an upper bound on how many standard deviations of the noise one record moves a release, and
    ``certified_mu`` a lower bound. ``checks`` compare the mechanism with its documentation: too much noise is a finding
    too. ``false_alarm`` is the probability that the documented mechanism is a violation, and that it fails each check.

    Guarantee: the probability of a false alarm is that of the documented Gaussian mechanism with independent noise. A
    proof about arbitrary mechanisms would need each canary in a run of its own. Source: Nasr et al. 2023, "Tight
    Auditing of Differentially Private Machine Learning", section 4.
    """

    def __init__(self, scores: Scores, *, false_alarm: float = FALSE_ALARM) -> None:
        checks.open_fraction(false_alarm=false_alarm)
        self.scores = scores
        self.false_alarm = false_alarm
        self.guaranteed_mu = 1 / scores.noise_multiplier
        out, inside = scores.values[~scores.inside], scores.values[scores.inside]
        residuals = scores.values - scores.shift * scores.inside  # without the documented means: the noise
        self.certified_mu = certified_mu(inside, out, threshold=scores.shift / 2, alpha=false_alarm)
        limit = -float(ndtri(false_alarm / 2))
        peak_within, lags = peak_within_steps(residuals)
        peak_across, pairs = peak_across_steps(residuals)
        self.checks = (
            Check("spread of those out", spread_z(out), limit),
            Check("spread of those in", spread_z(inside), limit),
            Check("mean of those out", float(out.mean() * math.sqrt(out.size)) if out.size else 0.0, limit),
            Check("shift", shift_z(inside, out, scores.shift), limit),
            Check("coins", float((scores.inside.mean() - 0.5) * 2 * math.sqrt(scores.inside.size)), limit),
            Check("correlation within a step", peak_within, _peak_limit(lags, false_alarm)),
            Check("correlation between steps", peak_across, _peak_limit(pairs, false_alarm)),
        )

    @property
    def _leaks(self) -> bool:
        return self.certified_mu > self.guaranteed_mu

    @property
    def findings(self) -> tuple[str, ...]:
        moved = f"one record moves the release by {self.certified_mu:.3g} standard deviations"
        failed = [c for c in self.checks if abs(c.z) > c.limit]
        others = [f"{c.name}: z = {c.z:.1f}, expected within {c.limit:.1f} of 0" for c in failed]
        return (f"{moved}; at most {self.guaranteed_mu:.3g} are guaranteed", *others) if self._leaks else tuple(others)

    @property
    def verdict(self) -> Verdict:
        return Verdict.NOT_AS_DOCUMENTED if self.findings and not self._leaks else super().verdict

    def facts(self) -> dict[str, Any]:
        return super().facts() | {
            "noise_multiplier": self.scores.noise_multiplier,
            "scores": self.scores.values.size,
            "false_alarm": self.false_alarm,
            "guaranteed_mu": self.guaranteed_mu,
            "certified_mu": self.certified_mu,
            "checks": {check.name: {"z": check.z, "limit": check.limit} for check in self.checks},
        }


def audit_bound(
    bound_of: BoundFactory, *, noise_multiplier: float, canary_model: CanaryModel | None = None, steps: int = 24
) -> StepAudit:
    """Audit a gradient bound in the real training loop of :func:`noisette.privatize`.

    Args:
        bound_of: makes the bound of a model.
        noise_multiplier: of the run.
        canary_model: model, records and losses; ``Axes()`` unless given.
        steps: number of steps; each gives a score for every canary.

    Raises:
        ValueError, PrivacyError: a number outside its domain; the bound refuses the model or the losses.

    >>> from noisette import PerExampleClip
    >>> audit = audit_bound(lambda model: PerExampleClip(model, 0.7), noise_multiplier=1.0, steps=4)
    >>> audit.verdict
    <Verdict.CONSISTENT: 'consistent'>
    """
    checks.all_of(lambda: checks.positive(noise_multiplier=noise_multiplier), lambda: checks.count(steps=steps))
    made = Axes() if canary_model is None else canary_model
    half, noise = len(made.records) / 2, noise_multiplier
    found = [
        (scores, np.isin(np.arange(made.canaries), batch.indices), shift)
        for _, batch, scores, shift in released_scores(
            bound_of(made.model), made, noise_multiplier=noise, expected_batch_size=half, sampling_rate=0.5, steps=steps
        )
    ]
    values, inside, shifts = zip(*found, strict=True)
    return StepAudit(Scores(np.array(values), np.array(inside), noise_multiplier, shifts[-1]))


def audit_step(
    step: Callable[[Tensor], Tensor],
    *,
    bound: float,
    noise_multiplier: float,
    canaries: Canaries | None = None,
    steps: int = 24,
) -> StepAudit:
    """Audit a training step of your own, written with any library.

    Args:
        step: takes the records of a batch, (n, ``canaries.width``), and returns the noised sum of their clipped
            gradients, flat, (``canaries.width``,): before any division by a batch size, or multiplied with it. The
            audit draws the batches.
        bound: the documented bound on the gradient of one example.
        noise_multiplier: the documented standard deviation of the noise in units of the bound.
        canaries: the records; ``Canaries()`` unless given.
        steps: number of steps.

    Raises:
        ValueError: a number outside its domain, or the step returned something else.
    """
    checks.all_of(
        lambda: checks.positive(bound=bound, noise_multiplier=noise_multiplier), lambda: checks.count(steps=steps)
    )
    canaries = canaries if canaries is not None else Canaries()
    records, generator = canaries.records, np.random.default_rng()
    values, chosen = [], []
    for _ in range(steps):
        inside = generator.random(len(records)) < 0.5
        noised = step(records[torch.as_tensor(inside)])
        if not isinstance(noised, Tensor) or noised.numel() != canaries.width:
            got = tuple(noised.shape) if isinstance(noised, Tensor) else type(noised).__name__
            raise ValueError(f"expected the step to return a tensor of {canaries.width} elements, got {got}")
        released = noised.detach().cpu().double().flatten()[: canaries.canaries].numpy()
        values.append(released / (noise_multiplier * bound))
        chosen.append(inside[: canaries.canaries])
    return StepAudit(Scores(np.array(values), np.array(chosen), noise_multiplier, 1 / noise_multiplier))


def assert_consistent(audit: StepAudit) -> None:
    """For your tests: raise an AssertionError with the findings if there are any."""
    if audit.verdict is not Verdict.CONSISTENT:
        raise AssertionError(f"{audit.verdict.value}: " + "; ".join(audit.findings))


def spread_z(values: np.ndarray) -> float:
    """How far the variance is from 1, as a z-score (Wilson and Hilferty 1931); 0 for fewer than two values."""
    n = values.size - 1
    if n < 1:
        return 0.0
    small = 2 / (9 * n)
    return float((values.var(ddof=1) ** (1 / 3) - 1 + small) / math.sqrt(small))


def shift_z(inside: np.ndarray, outside: np.ndarray, shift: float) -> float:
    """How far the difference of the means is from ``shift``, as a z-score."""
    if not inside.size or not outside.size:
        return 0.0
    return float((inside.mean() - outside.mean() - shift) / math.sqrt(1 / inside.size + 1 / outside.size))


def peak_within_steps(residuals: np.ndarray) -> tuple[float, int]:
    """The strongest correlation of a step's noise with itself at any lag, and the number of lags tested."""
    steps, n = residuals.shape
    lags = n - 1 - _LAGS_LEFT_OUT
    if lags < 1:
        return 0.0, 1
    # The inverse transform of the power spectrum is the autocorrelation; zero padding keeps it from wrapping around.
    spectrum = np.abs(np.fft.rfft(residuals, 2 * n, axis=1)) ** 2
    products = np.fft.irfft(spectrum, axis=1)[:, 1 : lags + 1]
    return _peak(products, n - np.arange(1, lags + 1)), steps * lags


def peak_across_steps(residuals: np.ndarray) -> tuple[float, int]:
    """The strongest correlation of the noise of two steps, and the number of pairs."""
    steps, n = residuals.shape
    if steps < 2:
        return 0.0, 1
    products = (residuals @ residuals.T)[np.triu_indices(steps, 1)]
    return _peak(products, np.full(products.shape, n)), products.size


def _peak(sums: np.ndarray, terms: np.ndarray) -> float:
    """The largest z for which e^(-z^2 / 2) bounds the tail of one of these sums of products of two normal numbers."""
    # Chernoff: where the factors are all different, or each is in two products, the log moment generating function of
    # n products is at most -n/8 ln(1 - 4 t^2).
    size = np.abs(sums)
    t = (np.sqrt(terms**2 + 16.0 * size**2) - terms) / (8 * np.maximum(size, 1e-300))
    exponent = t * size + terms / 8 * np.log1p(-4 * np.minimum(t, 0.5 * (1 - 1e-15)) ** 2)
    return float(np.sqrt(2 * np.maximum(exponent, 0).max()))


def _peak_limit(sums: int, alpha: float) -> float:
    return math.sqrt(2 * math.log(2 * sums / alpha))


Records = tuple[Tensor, ...]  # columns, each with the records along its first axis
Draw = Callable[[int], Records]

_SCALES = (1.0, 10.0, 1000.0)


@dataclass(frozen=True)
class NeighbourAudit(Audit):
    """How far one record moved the sum of a batch, in units of the bound, for each pair."""

    reached: np.ndarray

    @property
    def worst(self) -> float:
        return float(self.reached.max())

    @property
    def findings(self) -> tuple[str, ...]:
        beyond = f"one record moves the sum of a batch by {self.worst:.3g} times the bound"
        return (beyond,) if self.worst > 1 + ROUNDING else ()

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"pairs": self.reached.size, "worst": self.worst}


def audit_neighbours(bound: GradientBound, draw: Draw, loss: Loss, *, pairs: int = 50) -> NeighbourAudit:
    """Compare the sums, before noise, of batches that differ by one record, on a model of your own, without dropout.

    A third of the differing records is used as drawn; the others are scaled by 10 or 1000.

    Args:
        bound: of the model. It is closed.
        draw: returns this number of random public records, as columns of the model's inputs and what the losses need.
        loss: as for a run, see :class:`noisette.Loss`.
        pairs: number of pairs, each with 15 other records in both batches.

    Raises:
        ValueError, PrivacyError: a number outside its domain; the bound refuses the loss.
    """
    checks.count(pairs=pairs)
    for module in bound.model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.eval()
    reached = []
    for k in range(pairs):
        shared, (inputs, *rest) = draw(15), draw(1)
        extra = (inputs * _SCALES[k % len(_SCALES)] if inputs.is_floating_point() else inputs, *rest)
        both = tuple(torch.cat(columns) for columns in zip(shared, extra, strict=True))
        reached.append(float((_sum(bound, both, loss) - _sum(bound, shared, loss)).norm()))
    bound.close()
    return NeighbourAudit(np.array(reached))


def _sum(bound: GradientBound, records: Records, loss: Loss) -> Tensor:
    """The bounded sum of a batch, flat, in units of the noise at multiplier one: a record moves it by at most one."""
    bound.add(loss, Microbatch(records, {}), ())
    sums = bound.pop_sums()
    weighted = zip(sums, shares_of(sums), strict=True)
    return torch.cat([g.double().flatten() * share**0.5 / part.bound for part, share in weighted for g in part.grads])
