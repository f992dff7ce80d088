"""Loops written for Opacus: the same ``PrivacyEngine``, with records that the model computes apart by construction.

Opacus itself is not needed. The loop stays as it is, except for the import and ``public_size``, a number to declare.
"""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from torch import Generator, nn
from torch.optim.optimizer import Optimizer
from torch.utils.data import DataLoader, SubsetRandomSampler, WeightedRandomSampler

from noisette.accounting import GdpAccountant, Ledger, PldAccountant, RdpAccountant
from noisette.clipping.rules import AutomaticClipping, FlatClipping, PerLayerClipping
from noisette.errors import PrivacyError, warn
from noisette.integrations.boundary import WHOLE, Boundary
from noisette.run.per_example import PerExampleClip
from noisette.run.private import PrivateRun, privatize

DPLSTM, DPGRU, DPRNN = nn.LSTM, nn.GRU, nn.RNN  # those of torch are private as they are
_ACCOUNTANTS = {"prv": PldAccountant, "rdp": RdpAccountant, "gdp": GdpAccountant}
_CLIPPING: dict[str, Any] = {"flat": FlatClipping, "per_layer": PerLayerClipping, "automatic": AutomaticClipping}
_MOST_STEPS = 1_000_000  # of a run that was given its noise; its cost is that of the steps it makes


class PrivacyEngine:
    """Makes a model, an optimizer and a loader private, by the arguments of Opacus' ``PrivacyEngine``.

    The model is called as :mod:`noisette.integrations.boundary` says, with what it asks of the loop. As with Opacus,
    what the loop prints is private.

    Args:
        accountant: ``"prv"`` (the privacy loss distribution), ``"rdp"`` or ``"gdp"``.
        secure_mode: accepted; noise is always from a secure source.
        ledger: records every release; in memory unless given.
    """

    def __init__(
        self, *, accountant: str = "prv", secure_mode: bool = False, ledger: Ledger | Path | str | None = None
    ) -> None:
        if accountant not in _ACCOUNTANTS:
            raise ValueError(f"expected accountant to be one of {', '.join(_ACCOUNTANTS)}, got {accountant!r}")
        self._accountant = _ACCOUNTANTS[accountant]()
        self._ledger = Ledger() if ledger is None else ledger  # of all runs of this engine
        self._run: PrivateRun | None = None
        self._saved: Path | str | None = None  # the checkpoint that the next run goes on from

    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: Optimizer,
        data_loader: DataLoader[Any],
        noise_multiplier: float | None,
        max_grad_norm: float,
        public_size: int | None = None,
        batch_first: bool = True,
        loss_reduction: str = "mean",
        poisson_sampling: bool = True,
        clipping: str = "flat",
        noise_generator: Generator | None = None,
        grad_sample_mode: str = "hooks",
        criterion: Any = None,
        **budget: Any,
    ) -> tuple[Any, ...]:
        """The model, the optimizer and the loader of a private loop, given the noise.

        Args:
            module, optimizer: the model, and an optimizer of its trainable parameters, which gets the attributes
                ``noise_multiplier``, ``max_grad_norm`` and ``expected_batch_size``.
            data_loader: its data set, collate function and batch size are taken; batches are Poisson samples.
            noise_multiplier, max_grad_norm: the clipping norm of one example, and the noise in units of it.
            public_size: declared number of records. Opacus takes the length of the data set, which is private.
            loss_reduction: ``"mean"``, or ``"sum"`` for a loss that adds up its rows.
            batch_first, poisson_sampling, noise_generator: what would not be private is refused.
            clipping: ``"flat"``, ``"per_layer"`` or ``"automatic"``.
            grad_sample_mode: accepted; with ``"ghost"`` ``criterion`` is returned as well, in front of the loader.
            budget: of :meth:`make_private_with_epsilon`.

        Guarantee: that of :func:`noisette.privatize`, which raises a ``PrivacyError`` where it does not hold.

        Raises:
            ValueError: an argument is missing or would not be private; all problems are listed.
        """
        chooses = isinstance(sampler := data_loader.sampler, SubsetRandomSampler | WeightedRandomSampler)
        found = {
            "declare public_size=, the number of records: the length of the data set is private": public_size is None,
            "batch_first=False: put the examples on the first axis": not batch_first,
            "poisson_sampling=False: no price is known for shuffled batches; leave it out": not poisson_sampling,
            "noise_generator: noise comes from a secure source; leave it out": noise_generator is not None,
            "the data_loader has no batch_size: give it one, not a batch_sampler": not data_loader.batch_size,
            f"batches are Poisson samples, without a {type(sampler).__name__}: give a data set of its records": chooses,
            f"loss_reduction={loss_reduction!r}: use mean or sum": loss_reduction not in ("mean", "sum"),
            f"expected clipping to be one of {', '.join(_CLIPPING)}, got {clipping!r}": clipping not in _CLIPPING,
        }
        if any(found.values()):
            raise ValueError("\n".join(problem for problem, is_so in found.items() if is_so))
        clip = PerExampleClip(module, clipping=_CLIPPING[clipping](max_grad_norm), capture="eager")
        boundary = Boundary(clip, optimizer, mean=loss_reduction == "mean")
        batch_size = data_loader.batch_size or 1
        alike: dict[str, Any] = {"optimizer": optimizer, "dataset": data_loader.dataset, "ledger": self._ledger}
        alike |= {"accountant": self._accountant, "collate_fn": data_loader.collate_fn}
        if self._saved is None:
            run = privatize(
                clip,
                **alike,
                expected_batch_size=batch_size,
                public_size=public_size,
                noise_multiplier=noise_multiplier,
                **(budget or {"steps": _MOST_STEPS}),
            )
        else:
            run = PrivateRun.resume(self._saved, clip, **alike)
        self._run = boundary.run = run
        found = {"noise_multiplier": run.noise_multiplier, "max_grad_norm": max_grad_norm}
        vars(optimizer).update(found, expected_batch_size=batch_size)
        model, loader = PrivateModule(module, boundary), PoissonLoader(run, boundary, data_loader)
        return (model, optimizer, *([criterion] if "ghost" in grad_sample_mode else []), loader)

    def make_private_with_epsilon(
        self, *, target_epsilon: float, target_delta: float, epochs: float, **given: Any
    ) -> tuple[Any, ...]:
        """Like :meth:`make_private`, with the noise that the budget asks for; the run ends after ``epochs``."""
        budget = {"epochs": epochs, "epsilon": target_epsilon, "delta": target_delta}
        return self.make_private(noise_multiplier=None, **budget, **given)

    @property
    def accountant(self) -> Self:
        """What has ``get_epsilon``, as in Opacus."""
        return self

    @property
    def _begun(self) -> PrivateRun:
        if self._run is None:
            raise PrivacyError("call make_private first: there is no run whose cost could be told")
        return self._run

    def get_epsilon(self, delta: float) -> float:
        """Epsilon of the steps that all runs of this engine have taken; a crash adds those that a file has reserved."""
        return self._begun.epsilon(delta=delta)

    def save_checkpoint(self, *, path: Path | str, module: Any = None, optimizer: Any = None) -> None:
        """Write model, optimizer and cost into a folder; the ledger is a file, ``PrivacyEngine(ledger=PATH)``."""
        self._begun.save(path)

    def load_checkpoint(self, *, path: Path | str, module: Any = None, optimizer: Any = None) -> None:
        """Have :meth:`make_private` or :meth:`make_private_with_epsilon`, called after this, go on with a saved run.

        All arguments are those of the saved run, and so is the ledger. The errors are those of ``PrivateRun.resume``.
        """
        if self._run is not None:
            raise PrivacyError(
                "load_checkpoint came after make_private, which has begun another run: call it before, on a new "
                "PrivacyEngine(ledger=PATH); make_private then goes on with the saved run"
            )
        self._saved = path


class PrivateModule(nn.Module):
    """The model of a private loop, called by :meth:`noisette.integrations.boundary.Boundary.call`."""

    def __init__(self, module: nn.Module, boundary: Boundary) -> None:
        super().__init__()
        self._module = module
        self._boundary = boundary

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._boundary.call(*args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a private model holds records: save its weights, torch.save(model.state_dict(), FILE)")

    def __getattr__(self, name: str) -> Any:
        """Attributes of the model; calls of its parts are not behind the boundary, and so refused at the step."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("_module"), name)

    def __deepcopy__(self, memo: dict[int, object]) -> nn.Module:
        """A copy of the model itself, as for an average of its weights."""
        return copy.deepcopy(self._module, memo)


class PoissonLoader:
    """Poisson batches of the data set; a pass has as many steps as a record has one expected turn in."""

    def __init__(self, run: PrivateRun, boundary: Boundary, loader: DataLoader[Any]) -> None:
        self.dataset, self.batch_size, self.most, self._boundary = loader.dataset, loader.batch_size, WHOLE, boundary
        self._optimizer, self._batches, self.sample_rate = run.optimizer, run.batches(), run.sampling_rate
        self._steps = math.ceil(1 / run.sampling_rate * (1 - 1e-12))

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[Any]:
        batch = None
        for _, batch in zip(range(self._steps), self._batches, strict=False):
            yield from self._boundary.pieces(batch, self._optimizer, self.most)
        if batch is None:
            warn("all steps of the run were taken, so no batch is left: declare as many epochs as are trained")


@contextmanager
def BatchMemoryManager(  # noqa: N802 - the name in Opacus
    *, data_loader: PoissonLoader, max_physical_batch_size: int, optimizer: Optimizer
) -> Iterator[PoissonLoader]:
    """The loader, with each batch in pieces of at most ``max_physical_batch_size`` records."""
    in_pieces = copy.copy(data_loader)
    in_pieces.most = max_physical_batch_size
    yield in_pieces
