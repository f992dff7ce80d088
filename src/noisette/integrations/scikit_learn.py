"""Private training as scikit-learn estimators, for tables of numbers."""

import math
import textwrap
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone, is_regressor
from sklearn.utils import assert_all_finite, check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel

from noisette import errors as checks
from noisette.accounting import Ledger
from noisette.accounting.calibrate import SEE_PLAN, check_ranges
from noisette.data.columns import Columns, Date, Number
from noisette.data.dataset import Target, refuse
from noisette.errors import plain
from noisette.nn.models.networks import UnitNorm
from noisette.run.per_example import PerExampleClip
from noisette.run.private import PrivateRun, privatize
from noisette.training import defaults

Loss = Callable[[nn.Module, Tensor, Tensor, Tensor], Tensor]  # of the model, and a batch of one example with its weight

_ROWS_AT_ONCE = 4096
_PREDICTED_AT_ONCE = 10_000
_WIDTH = 88  # of the statement
_WAYS_OUT = {
    "size": "size=N, the public number of rows; it need not be exact",
    "bounds": "bounds=(low, high), numbers or one for each feature: values outside count as the nearer bound; or "
    "columns=, the kinds of a frame's columns",
    "classes": "classes=[...], all labels that are possible",
    "target_bounds": "target_bounds=(low, high): targets outside count as the nearer bound",
}
_FORMS = {  # what scikit-learn says of rows, with their values, and what is said instead
    "could not convert string": "X holds texts, where numbers were expected; declare columns= with their categories, "
    "or encode them with OneHotEncoder(categories=...)",
    "contains NaN": "X contains NaN; declare columns=, with what a missing value counts as, or fill in public numbers",
    "Complex data": "Complex data not supported: X holds complex numbers; give their parts as columns of their own",
    "Expected 2D array": "Expected 2D array. Reshape your data: X.reshape(-1, 1) if it has one feature, "
    "X.reshape(1, -1) if it is one row",
}
Pair = tuple[Any, Any]


def feature_bounds(
    bounds: Pair | Mapping[str, Pair], names: Sequence[str] | None, features: int, argument: str = "bounds"
) -> np.ndarray:
    """The lowest and the highest value of each feature, float64, shape (2, features), from any form of bounds."""
    if isinstance(bounds, Mapping):
        if names is None:
            raise ValueError("bounds by name need X as a frame whose columns have names; or give bounds=(lows, highs)")
        problems = [f"{name!r} has no bounds" for name in names if name not in bounds]
        problems += [f"there is no column {name!r}" for name in bounds if name not in names]
        if problems:
            raise ValueError(f"bounds: {'; '.join(problems)}")
        bounds = [list(side) for side in zip(*(bounds[name] for name in names), strict=True)]  # type: ignore[assignment]
    try:
        low, high = bounds
        pair = np.array([np.broadcast_to(np.asarray(v, dtype=np.float64), (features,)) for v in (low, high)])
    except (TypeError, ValueError) as error:
        each = "numbers" if features == 1 else f"each a number or {features} numbers, one for each feature"
        raise ValueError(f"expected {argument} as (low, high), {each}, got {checks.brief(bounds)}") from error
    with np.errstate(over="ignore"):
        usable = np.isfinite(pair).all() and np.isfinite(pair[1] - pair[0]).all() and (pair[0] < pair[1]).all()
    if not usable:
        raise ValueError(f"expected {argument} to be finite, each low one below its high one")
    return pair


def bounds_of_rows(rows: np.ndarray) -> Pair:
    """The lowest and highest value in each column; a constant column gets a bound above its value."""
    low, high = rows.min(axis=0), rows.max(axis=0)
    return low, np.where(low < high, high, low + np.maximum(1.0, np.abs(low)))


class Knots(nn.Module):
    """Each number in [0, 1], and the heights of ``knots`` triangles above it: (b, n) to (b, n + n * knots).

    The tops of the triangles are evenly spaced, the last one at 1; at 0 all heights are zero, so an indicator takes
    part only where it is one. Triangles are half as high as numbers, so that they refine a line.
    """

    def __init__(self, knots: int) -> None:
        super().__init__()
        self.tops = nn.Buffer(torch.arange(1, knots + 1, dtype=torch.get_default_dtype()))

    def forward(self, x: Tensor) -> Tensor:
        heights = 1 - (x.unsqueeze(2) * len(self.tops) - self.tops).abs()
        return torch.cat([x, heights.clamp(min=0).flatten(1) / 2], dim=1)


def trained_part(features: int, outputs: int, *, knots: int, hidden_layer_sizes: tuple[int, ...]) -> nn.Sequential:
    """Hidden layers of tanh units, and a linear layer whose weights begin at zero, behind knots."""
    widths = features * (1 + knots), *hidden_layer_sizes
    hidden = [layer for sizes in pairwise(widths) for layer in (nn.Linear(*sizes), nn.Tanh())]
    last = nn.Linear(widths[-1], outputs)
    for p in last.parameters():
        nn.init.zeros_(p)
    return nn.Sequential(*hidden, last)


def _train(run: PrivateRun, model: nn.Module, fixed: nn.Module, loss: Loss) -> nn.Module:
    """All steps of the run; the model with its mean weights over the second half of them, in evaluation mode."""
    averaged = AveragedModel(model)
    for batch in run.batches():
        for inputs, targets, counts in batch.microbatches(_ROWS_AT_ONCE):
            run.accumulate(loss, fixed(inputs), targets, counts)
        run.optimizer.step()
        run.optimizer.zero_grad()
        if 2 * run.steps_spent >= run.steps:
            averaged.update_parameters(model)
    return averaged.module.eval()


def _warn_of_noise(run: PrivateRun, batch_size: int, weights: int, least: float) -> None:
    """Warn where all gradients of the run, if they agreed, would be below ``least`` times the noise on all weights."""
    if math.sqrt(run.steps) * batch_size < least * run.noise_multiplier * math.sqrt(weights):
        spent = ", a ledger with more left of its budget" if run.ledger.events else ""
        warnings.warn(
            f"with noise multiplier {run.noise_multiplier:.4g}, batches of {batch_size} and {weights} weights the "
            f"noise hides what there is to learn; use more rows, a larger epsilon{spent} or fewer features: {SEE_PLAN}",
            stacklevel=4,
        )


def _statement(run: PrivateRun, delta: float, from_rows: Sequence[str]) -> str:
    """The statement of the run, before it what was read from the rows, and after it what a fit does not cover."""
    read = (
        f"Read from the rows and NOT covered by epsilon: {', '.join(from_rows)} (undeclared_from_rows=True). For the "
        "guarantee below to hold for private rows, these must be public; declare them."
    )
    others = (
        "Not covered either: transformers that were fitted to the same rows, such as a scaler in the same pipeline; "
        "choosing among several fits by a score on private rows; what predict returns about the rows that it is given."
    )
    before = textwrap.fill(read, _WIDTH) + "\n\n" if from_rows else ""
    return f"{before}{run.statement(delta)}\n{textwrap.fill(others, _WIDTH)}\n"


@dataclass(eq=False, repr=False)
class PrivateEstimator(BaseEstimator):
    """Trains a small model on rows of bounded numbers; the subclasses know the targets."""

    epsilon: float = 3.0
    _: KW_ONLY
    delta: float | None = None
    size: int | None = None
    bounds: Pair | Mapping[str, Pair] | None = None
    columns: Columns | Mapping[str, Any] | Path | str | None = None
    hidden_layer_sizes: Sequence[int] | int = ()
    n_knots: int | None = None
    epochs: float | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    ledger: Ledger | Path | str | None = None
    random_state: Any = None
    undeclared_from_rows: bool = False

    _declared: ClassVar[tuple[str, ...]] = ()  # what is read from the rows unless it is given
    _curvature: ClassVar[float | None] = None  # of the loss

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:  # noqa: N803
        """Train on rows X (n, features), an array or a frame, with targets y (n,); each call has a cost of its own.

        ``sample_weight`` (n,) is what the loss of each row counts, above 0 and at most 1: each from its own row and
        what is public, since a weight that counts other rows would not be covered by epsilon.

        A ``ValueError`` lists what is not declared, with the ways out. A fit that fails leaves the one before.
        """
        before, mistakes = dict(vars(self)), checks.Mistakes()
        try:
            nothing = None, None, torch.empty(0)
            rows, targets, counts = mistakes.check(lambda: self._validated(X, y, sample_weight)) or nothing
            self.read_from_rows_ = mistakes.check(self._undeclared) or ()
            mistakes.check(self._hidden)
            mistakes.check(lambda: self._note_bounds(rows))
            prepared = mistakes.check(lambda: self._prepared(targets))
            mistakes.refuse()
            assert prepared is not None, "checked above"
            return self._fit(rows, *prepared, counts)
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise

    def _undeclared(self) -> tuple[str, ...]:
        """The names of what is read from the rows, where that is permitted, because it is not declared."""
        asked = [name for name in self._declared if name != "bounds" or self.columns is None]
        missing = [name for name in asked if getattr(self, name) is None]
        if missing and not self.undeclared_from_rows:
            raise ValueError(
                f"not declared: {', '.join(missing)}. What is learnt from the rows without noise is not covered by "
                f"epsilon, so declare it: {'; '.join(_WAYS_OUT[name] for name in missing)}. Where the rows themselves "
                "may tell it, as in a trial on public data, set undeclared_from_rows=True: the statement in privacy_ "
                "then says what is not covered"
            )
        return tuple(missing)

    def _prepared(self, y: np.ndarray | None) -> tuple[Tensor, int, Loss]:
        """The targets of the model, the number of its outputs and its loss; ``y`` is ``None`` if it is refused."""
        raise NotImplementedError

    def _hidden(self) -> tuple[int, ...]:
        """The units of hidden layers, after the check of all numbers."""
        given: Any = self.hidden_layer_sizes
        is_one, batch_size = isinstance(given, str) or not isinstance(given, Iterable), plain(self.batch_size)
        hidden: tuple[Any, ...] = tuple(map(plain, (given,) if is_one else given))
        checks.all_of(
            lambda: checks.positive(epsilon=self.epsilon),
            lambda: check_ranges(size=plain(self.size), delta=self.delta, epochs=self.epochs, batch_size=batch_size),
            lambda: self.n_knots is None or checks.whole(n_knots=plain(self.n_knots)),
            lambda: checks.count(**{f"hidden_layer_sizes[{k}]": units for k, units in enumerate(hidden)}),
            lambda: self.learning_rate is None or checks.positive(learning_rate=self.learning_rate),
        )
        return hidden

    def _validated(self, X: Any, y: Any, sample_weight: Any) -> tuple[Any, np.ndarray, Tensor]:  # noqa: N803
        """Rows of numbers, or a frame whose columns are declared, targets and weights; the shape of a row is noted."""
        if is_regressor(self):
            given = np.asarray(y)
            if given.dtype.kind == "c":
                raise ValueError("Complex data not supported: y holds complex numbers; fit their parts one by one")
            of_objects = given.ravel() if given.dtype.kind == "O" else ()
            if given.dtype.kind in "UST" or any(isinstance(value, str | bytes) for value in of_objects):
                raise ValueError("y holds texts, no numbers: give y.astype(float), or use PrivateClassifier")
        if self.columns is None:
            rows, targets = _numbers(self, X, y, y_numeric=is_regressor(self))
            return rows, np.asarray(targets), _counts(sample_weight, targets)
        if isinstance(X, Mapping):
            self.n_features_in_ = len(X)
        else:
            validate_data(self, X, skip_check_array=True)
        targets = column_or_1d(y, dtype=np.float64 if is_regressor(self) else None, warn=True)
        assert_all_finite(targets, input_name="y")
        check_consistent_length(*(X.values() if isinstance(X, Mapping) else [X]), targets)
        return X, targets, _counts(sample_weight, targets)

    def _fit(self, X: Any, targets: Tensor, outputs: int, loss: Loss, counts: Tensor) -> Self:  # noqa: N803
        """Fit a model with so many outputs to checked rows, each of which counts so much."""
        size = len(targets) if self.size is None else plain(self.size)
        batch_size, knots, hidden = plain(self.batch_size), plain(self.n_knots), self._hidden()
        features = self.bounds_.shape[1]
        knots = defaults.knots_for(features, size) if knots is None else knots
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(check_random_state(self.random_state).randint(2**31 - 1))
            model = trained_part(features, outputs, knots=knots, hidden_layer_sizes=hidden)
        fixed, weights = nn.Sequential(Knots(knots), UnitNorm()), sum(p.numel() for p in model.parameters())
        by_rule = defaults.batches_for(size)
        self.batch_size_ = batch_size or min(by_rule.expected_batch_size, size)
        self.delta_ = defaults.delta_for(size) if self.delta is None else plain(self.delta)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=defaults.MOMENTUM)
        # At the larger norm no gradient of a rare class is cut, which a fit needs that has enough signal for the noise.
        has_signal = self._curvature is None and float(self.epsilon) * size >= defaults.SIGNAL * math.sqrt(weights)
        norm = defaults.TABLE_NORM if has_signal else defaults.MAX_GRAD_NORM
        run = privatize(
            PerExampleClip(model, max_grad_norm=norm, capture="eager"),  # a step takes milliseconds
            optimizer,
            (self._inputs(X), targets, counts),
            expected_batch_size=self.batch_size_,
            public_size=size,
            epochs=by_rule.epochs if self.epochs is None else self.epochs,
            epsilon=float(self.epsilon),
            delta=self.delta_,
            ledger=self.ledger,
        )
        with run:
            by_noise = defaults.learning_rate_for(
                dimensions=weights,
                noise_multiplier=run.noise_multiplier,
                expected_batch_size=self.batch_size_,
                steps=run.steps,
                momentum=defaults.MOMENTUM,
                curvature=self._curvature,
            )
            self.learning_rate_ = by_noise if self.learning_rate is None else plain(self.learning_rate)
            optimizer.param_groups[0]["lr"] = self.learning_rate_
            is_linear = self._curvature is not None and not self.hidden_layer_sizes  # the signal was measured on those
            least = defaults.SQUARES_SIGNAL if is_linear else 1.0
            _warn_of_noise(run, self.batch_size_, weights, least)
            self.model_ = nn.Sequential(fixed, _train(run, model, fixed, loss))
            self.epsilon_ = run.epsilon(delta=self.delta_)
            self.privacy_ = _statement(run, self.delta_, self.read_from_rows_)
        self.noise_multiplier_, self.n_iter_ = run.noise_multiplier, run.steps
        return self

    def _note_bounds(self, X: Any) -> None:  # noqa: N803
        if self.columns is None:
            self.columns_ = None
            bounds = bounds_of_rows(X) if X is not None and "bounds" in self.read_from_rows_ else self.bounds
            if X is not None and bounds is not None:
                self.bounds_ = feature_bounds(bounds, getattr(self, "feature_names_in_", None), X.shape[1])
        elif self.bounds is not None:
            raise ValueError("declare bounds or columns, whose numbers have bounds of their own, not both")
        else:
            given = self.columns
            found = Columns.of(given) if isinstance(given, Mapping) else given
            self.columns_ = found if isinstance(found, Columns) else Columns.read(found)
            kinds = self.columns_.declared
            open_ = [name for name, kind in kinds.items() if isinstance(kind, Number) and kind.low is None]
            refuse("columns", [f"{name!r}: declare low and high, by which its values are scaled" for name in open_])
            low = [-1.0 if isinstance(kinds.get(name), Number | Date) else 0.0 for name in self.columns_.inputs]
            self.bounds_ = np.array([low, np.ones(len(low))])

    def _inputs(self, X: Any) -> Tensor:  # noqa: N803
        """Rows with each number clipped to its declared bounds and mapped to [0, 1], float32."""
        if self.columns_ is not None:
            X = self.columns_.encode(X)  # noqa: N806
        low, high = self.bounds_
        return torch.as_tensor(((np.clip(X, low, high) - low) / (high - low)).astype(np.float32))

    @torch.no_grad()
    def _outputs(self, X: Any) -> Tensor:  # noqa: N803
        check_is_fitted(self)
        inputs = self._inputs(X if self.columns_ is not None else _numbers(self, X, reset=False))
        return torch.cat([self.model_(part).double() for part in inputs.split(_PREDICTED_AT_ONCE)])

    def __sklearn_clone__(self) -> Self:
        """An estimator with the same ledger, because a copied ledger would miss the cost of the other's fits."""
        parameters = self.get_params(deep=False)
        copied: dict[str, Any] = {k: v if k == "ledger" else clone(v, safe=False) for k, v in parameters.items()}
        return type(self)(**copied)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True  # noise and batches are drawn by a secret key, which no seed reaches
        return tags


def _counts(sample_weight: Any, targets: np.ndarray) -> Tensor:
    """What each row counts, float32, shape (n,)."""
    counts = np.ones(len(targets)) if sample_weight is None else column_or_1d(sample_weight, dtype=np.float64)
    check_consistent_length(counts, targets)
    if not ((counts > 0) & (counts <= 1)).all():
        raise ValueError("expected sample_weight above zero and at most 1: divide it by the largest that is possible")
    return torch.as_tensor(counts, dtype=torch.float32)


def _numbers(estimator: Any, *given: Any, **how: bool) -> Any:
    """Rows, and targets if given, as :func:`validate_data` returns them; errors contain no values of the rows."""
    try:
        return validate_data(estimator, *given, dtype=np.float64, **how)
    except ValueError as error:
        for words, fact in _FORMS.items():
            if words in str(error):
                raise ValueError(fact) from None
        raise


@dataclass(eq=False, repr=False)
class PrivateClassifier(ClassifierMixin, PrivateEstimator):
    """Classifier with differential privacy: logistic regression on fixed piecewise linear features, or a small network.

    Each number gets ``n_knots`` fixed triangles within its declared bounds as further inputs, rows are scaled to norm
    one, and weights are trained by DP-SGD with settings that need no search (``training.defaults``).

    Args:
        epsilon: the privacy budget of a fit together with everything in ``ledger``.
        delta: the probability with which epsilon may fail; 1e-5 unless given, or less where ``size`` is large.
        size: the public number of rows; it need not be exact.
        bounds: (low, high), each a number or one number for each feature, or a mapping from the names of a frame's
            columns to (low, high). Values outside count as the nearer bound.
        columns: instead of ``bounds``, for a frame: the kind, bounds, categories and rule for missing values of each
            column, as :class:`noisette.data.columns.Columns`, its tables, or the path of its TOML file. Other columns
            are not read.
        classes: all labels that are possible, or their number for labels from 0 on.
        class_weight: what the loss of a row counts, by its label; 1 for other labels. Declared numbers, such as
            ``{"ill": 5}``: "balanced" would count the labels. The largest counts as 1.
        hidden_layer_sizes: units of hidden tanh layers; with none the model is linear in the features.
        n_knots: triangles for each number; 8 unless given, or fewer where ``size`` is small for the features.
        epochs, batch_size, learning_rate: passes over the declared size, expected number of rows in a batch, and rate
            of SGD with momentum 0.9; by rule unless given.
        ledger: a :class:`Ledger`, or the path of its file, that records the releases; in memory unless given. A clone
            writes to the same ledger.
        random_state: determines the first weights of hidden layers. Noise and batches never depend on it.
        undeclared_from_rows: read what is not declared from the rows, which epsilon does not cover, as ``privacy_``
            says. For trials on public data.

    Attributes:
        classes_: the labels, sorted, shape (classes,).
        epsilon_, delta_: what the fit cost together with its ledger.
        privacy_: the guarantee in words, and what it does not cover.
        read_from_rows_: names of what was read from the rows and is not covered.
        bounds_: shape (2, features). n_features_in_, feature_names_in_: the shape of a row, which is public.
        noise_multiplier_, n_iter_, batch_size_, learning_rate_: of the fit. model_: the ``torch.nn.Module``.

    Guarantee: a fit is (epsilon, delta)-differentially private for adding or removing one row, provided that what is
    declared, and everything else given to it but ``X`` and ``y``, is public. An error that a value causes (a NaN, a
    label that is not declared) may disclose it.
    Source: Abadi et al. 2016, algorithm 1.

    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, size=(2000, 2))
    >>> y = np.where(np.abs(X[:, 0]) > 0.5, "outside", "inside")
    >>> declared = {"size": 2000, "bounds": (-1, 1), "classes": ["inside", "outside"]}
    >>> model = PrivateClassifier(epsilon=3, **declared, epochs=30).fit(X, y)
    >>> model.score(X, y) > 0.8
    True
    >>> 2.9 < model.epsilon_ <= 3, model.read_from_rows_
    (True, ())
    """

    _: KW_ONLY
    classes: Sequence[Any] | int | None = None
    class_weight: Mapping[Any, float] | None = None
    _declared = ("classes", "size", "bounds")

    def _prepared(self, y: np.ndarray | None) -> tuple[Tensor, int, Loss]:
        labels = self.classes
        if y is not None:
            check_classification_targets(y)
            labels = unique_labels(y) if "classes" in self.read_from_rows_ else labels
        self.classes_ = np.empty(0) if labels is None else _declared_labels(labels)
        weights, codes = checks.all_of(
            lambda: None if self.class_weight is None else _weights(self.class_weight, self.classes_),
            lambda: torch.empty(0) if y is None or labels is None else _codes(self.classes_, y),
        )

        def loss(model: nn.Module, x: Tensor, y: Tensor, count: Tensor) -> Tensor:
            return count * F.cross_entropy(model(x), y, weights, reduction="sum")

        return codes, len(self.classes_), loss

    def predict_proba(self, X: Any) -> np.ndarray:  # noqa: N803
        """The probability of each class in the order of ``classes_``, shape (n, classes)."""
        return torch.softmax(self._outputs(X), dim=1).numpy()

    def predict_log_proba(self, X: Any) -> np.ndarray:  # noqa: N803
        return torch.log_softmax(self._outputs(X), dim=1).numpy()

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """The most probable class of each row, shape (n,)."""
        highest = self._outputs(X).argmax(dim=1).numpy()  # which checks first that there was a fit
        return self.classes_[highest]


def _weights(given: Any, labels: np.ndarray) -> Tensor:
    """The weight of each label, float32, the largest one 1; of no label where they are not known."""
    known = labels.tolist()
    if not isinstance(given, Mapping) or (known and not set(given) <= set(known)):
        raise ValueError(
            f'expected class_weight as a mapping from declared classes to numbers, got {given!r}; "balanced" would '
            "count private labels"
        )
    checks.all_of(*(partial(checks.positive, **{f"class_weight[{k!r}]": w}) for k, w in given.items()))
    weights = torch.tensor([float(given.get(label, 1.0)) for label in known])
    return weights / weights.max() if known else weights


def _declared_labels(labels: Sequence[Any] | int) -> np.ndarray:
    number = plain(labels)
    if isinstance(number, str) or not isinstance(number, int | Iterable):
        raise ValueError(f"expected classes as all labels, or as their whole number, got classes={number!r}")
    labels = list(range(number) if isinstance(number, int) else number)
    sorted_ = np.unique(np.asarray(labels))
    if len(sorted_) < len(labels):
        raise ValueError(f"expected different classes, got {labels}")
    if len(sorted_) < 2:
        raise ValueError(f"a classifier needs two classes or more, got {len(sorted_)} class")
    return sorted_


def _codes(labels: np.ndarray, y: np.ndarray) -> Tensor:
    if len(unknown := np.flatnonzero(~np.isin(y, labels))):
        raise ValueError(
            f"y holds labels that are not among the {len(labels)} declared classes, such as that of row {unknown[0]} "
            "(from 0); declare every label that is possible"
        )
    return torch.as_tensor(np.searchsorted(labels, y), dtype=torch.int64)


@dataclass(eq=False, repr=False)
class PrivateRegressor(RegressorMixin, PrivateEstimator):
    """Regression with differential privacy: least squares on fixed piecewise linear features, or a small network.

    Args:
        target_bounds: (low, high): targets outside count as the nearer bound, and predictions lie within.

    The other arguments, attributes and errors, and the guarantee, are those of :class:`PrivateClassifier`.

    Attributes:
        target_bounds_: shape (2,).

    >>> X = np.random.default_rng(0).uniform(-1, 1, size=(5000, 2))
    >>> model = PrivateRegressor(epsilon=3, size=5000, bounds=(-1, 1), target_bounds=(-1, 2), epochs=3)
    >>> bool(model.fit(X, X[:, 1]).predict([[0, 0.5]])[0] > 0)
    True
    """

    _: KW_ONLY
    target_bounds: Pair | None = None
    _declared = ("target_bounds", "size", "bounds")
    _curvature = 2.0  # of a linear model whose inputs are a row of norm one and a one for the bias

    def _prepared(self, y: np.ndarray | None) -> tuple[Tensor, int, Loss]:
        y = np.empty(0) if y is None else y
        pair = bounds_of_rows(y) if "target_bounds" in self.read_from_rows_ and len(y) else self.target_bounds
        bounds = feature_bounds((0, 1) if pair is None else pair, None, 1, "target_bounds")
        self.target_bounds_ = bounds[:, 0]

        def loss(model: nn.Module, x: Tensor, y: Tensor, count: Tensor) -> Tensor:
            return count * (model(x)[:, 0] - y).square() / 2

        return torch.as_tensor(Target(*self.target_bounds_).scaled(y)), 1, loss

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """The prediction for each row, within ``target_bounds``, shape (n,)."""
        return Target(*self.target_bounds_).unscaled(self._outputs(X)[:, 0].numpy())
