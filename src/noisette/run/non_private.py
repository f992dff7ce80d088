"""Training with noise and without a claim, for models that couple their examples: for comparison, not for release."""

from __future__ import annotations

from typing import Any, NoReturn

from torch.optim.optimizer import Optimizer

from noisette._internal import checks
from noisette._internal.keystream import SecretKey
from noisette.accounting.sampling_plan import check_numbers, schedule
from noisette.clipping.engines import MultiLoss, PerExampleLoop
from noisette.clipping.per_example import PerExampleClip
from noisette.errors import PrivacyError
from noisette.run.dp_sgd import DpSgdRun
from noisette.validation.optimizer import check_optimizer

NO_GUARANTEE = (
    "this run has no privacy claim: nothing was checked about its model, whose examples may share statistics. Then one "
    "record moves the gradients of all others of its batch, each up to its bound, and noise for one gradient hides "
    "nothing of that"
)


def non_private(
    bound: PerExampleClip,
    optimizer: Optimizer,
    dataset: Any,
    *,
    expected_batch_size: float,
    noise_multiplier: float,
    sampling_rate: float | None = None,
    steps: int | None = None,
    public_size: int | None = None,
    epochs: float | None = None,
) -> NonPrivateRun:
    """Train as :func:`noisette.privatize` does, with a model that it refuses and without any claim of privacy.

    Sampling, clipping and noise are those of a private run, and so is its loop. There is no preflight, no ledger and no
    accountant. A model that couples its examples, such as one with batch norm in training mode, has the statistics of
    the piece it is called with: call it with a whole batch, ``batch.microbatches(max(1, len(batch.indices)))``.

    Args:
        bound: clips with the engine ``PerExampleLoop()`` or ``MultiLoss()``, which give each example the gradient of its
            own loss through all that the examples share; so one step costs as many backward passes of a batch as it has
            examples.
        optimizer: any optimizer of the same trainable parameters whose ``step`` takes no closure.
        dataset: tensors, arrays, or anything with ``len`` and indexing.
        expected_batch_size: the constant that the noised sum is divided by, in examples.
        noise_multiplier: standard deviation of the noise in units of the bound.
        sampling_rate: probability in (0, 1] that a record is in a step's batch.
        steps: number of logical steps.
        public_size: declared number of records, to give ``sampling_rate`` as expected batch size over it.
        epochs: passes over the declared size, to give ``steps``.

    Source: the training of Davody et al. 2020, algorithm 1, whose stated price does not hold.

    Raises:
        ValueError: numbers outside their domain, contradicting or missing, or another engine; all are listed.
        PrivacyError: the optimizer does not fit the bound.

    >>> import torch
    >>> from noisette import PerExampleClip, engines
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    >>> sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> clip = PerExampleClip(model, max_grad_norm=1.0, engine=engines.PerExampleLoop())
    >>> records = torch.arange(16.0).reshape(8, 2)
    >>> run = non_private(clip, sgd, records, expected_batch_size=8, sampling_rate=1, steps=2, noise_multiplier=1.0)
    >>> for batch in run.batches():
    ...     for x in batch.microbatches(max(1, len(batch.indices))):
    ...         run.backward(model(x).square().sum(1))
    ...     sgd.step()
    ...     sgd.zero_grad()
    >>> run.steps_taken
    2
    >>> run.close()
    """
    checks.all_of(
        lambda: check_numbers(
            expected_batch_size=expected_batch_size,
            sampling_rate=sampling_rate,
            steps=steps,
            public_size=public_size,
            epochs=epochs,
            epsilon=None,
            noise_multiplier=noise_multiplier,
            delta=None,
        ),
        lambda: _check_engine(bound),
    )
    sampling_rate, steps = schedule(expected_batch_size, sampling_rate, steps, public_size, epochs)
    check_optimizer(optimizer, bound)
    return NonPrivateRun(
        bound,
        optimizer,
        dataset,
        key=SecretKey(),
        sampling_rate=sampling_rate,
        noise_multiplier=noise_multiplier,
        expected_batch_size=expected_batch_size,
        steps=steps,
    )


def _check_engine(bound: PerExampleClip) -> None:
    if not isinstance(bound.engine, PerExampleLoop | MultiLoss):
        raise ValueError(
            f"engine {type(bound.engine).__name__} takes each example's gradient as if the others were not there, "
            "which is wrong where they share statistics; give the bound engine=PerExampleLoop() or engine=MultiLoss()"
        )


class NonPrivateRun(DpSgdRun):
    """A training run without a claim, made by :func:`non_private`."""

    def epsilon(self, *, delta: float) -> NoReturn:
        """No number: there is none.

        Raises:
            PrivacyError: always.
        """
        raise PrivacyError(
            f"{NO_GUARANTEE}. So there is no epsilon at delta={delta:g} or any other. For a run with one take a norm "
            "that keeps examples apart, such as noisette.nn.PublicBatchNorm, and noisette.privatize"
        )

    def _reserve_step(self) -> None:
        """Nothing is reserved."""

    def _commit_step(self) -> None:
        """Nothing is paid."""

    def close(self) -> None:
        """Leave model and optimizer as they were."""
        self._remove_hooks()
        self.bound.close()
