"""What a checkpoint holds of a run, and whether a model, an optimizer, a bound and a ledger are those that it needs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from torch.optim import Optimizer

from noisette._internal import atomic_files, checks
from noisette.accounting import Ledger
from noisette.accounting.run_parameters import RunParameters
from noisette.errors import PrivacyError
from noisette.mechanisms.bounded_sum import GradientBound
from noisette.mechanisms.gaussian import parts_of
from noisette.run import checkpoint_file
from noisette.run.model_state import capture_state, check_fits, restore_state


@dataclass(frozen=True)
class SavedRun:
    """A run after some of its steps, without any secret and without anything that was not released.

    Args:
        terms: what the run may do.
        steps_taken: steps that moved the weights.
        ledger: where the ledger lies, as seen from the folder of the checkpoint.
        dataset: the name in the ledger.
        head: of the ledger when the run was saved.
        trained: names of the trained parameters.
        bound: what the bound has learned.
        learned: weights, buffers and the optimizer's state.
        extras: what the caller gave.
    """

    terms: RunParameters
    steps_taken: int
    ledger: str
    dataset: str
    head: str
    trained: list[str]
    bound: Mapping[str, float]
    learned: Mapping[str, Any]
    extras: Mapping[str, Any]

    @classmethod
    def write(
        cls,
        folder: Path,
        bound: GradientBound,
        optimizer: Optimizer,
        *,
        terms: RunParameters,
        steps_taken: int,
        ledger: Ledger,
        extras: Mapping[str, Any],
    ) -> None:
        """Keep a run, whose ledger is a file, in a folder, in place of the one that it held.

        Raises:
            TypeError: something cannot be kept; the message says what.
            OSError: the files cannot be written; the older checkpoint stays.
        """
        assert ledger.path is not None, "in memory"
        ledger.shorten()
        atomic_files.sync(ledger.path)  # a checkpoint must not outlive the line that it names
        saved = cls(
            terms=terms,
            steps_taken=steps_taken,
            ledger=os.path.relpath(ledger.path.resolve(), folder.resolve()),
            dataset=ledger.dataset,
            head=ledger.head,
            trained=list(bound.parameters),
            bound=bound.state(),
            learned=capture_state(bound.model, optimizer),
            extras=extras,
        )
        content = {known.name: getattr(saved, known.name) for known in fields(cls)}
        checkpoint_file.write(folder, content | {"terms": terms.facts()})

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The run that a folder keeps.

        Raises:
            FileNotFoundError: it keeps none.
            ValueError: a file was cut or altered, or is no checkpoint of a run.
        """
        content = checkpoint_file.read(folder)
        try:
            terms = RunParameters.of(content.pop("terms"))
            checks.count(steps_taken=content["steps_taken"] + 1)
            return cls(terms=terms, **content)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{folder} holds no checkpoint of a run: {error}") from error

    def check_fits(self, bound: GradientBound, optimizer: Optimizer) -> None:
        """Bound, model and optimizer are like those of the run.

        Raises:
            ValueError: they are not.
        """
        check_fits(self.learned, bound.model, optimizer)
        if self.trained != list(bound.parameters):
            raise ValueError("the checkpoint is of a run that trained other parameters; freeze the same ones")
        if self.terms.event.parts != parts_of(bound.pop_sums()) or self.bound.keys() != bound.state().keys():
            raise ValueError("the checkpoint is of a run with another clipping rule; give the bound the same one")

    def restore_state(self, bound: GradientBound, optimizer: Optimizer) -> None:
        """Give bound, model and optimizer what they had learned.

        Raises:
            ValueError: they are not like those of the run, or the bound learned what no bound can be; they are left
                as they were.
        """
        self.check_fits(bound, optimizer)
        bound.restore(self.bound)  # first: it alone has values left to refuse
        restore_state(self.learned, bound.model, optimizer)

    def open_ledger(self, folder: Path) -> Ledger:
        """The ledger of the run, open for writing.

        Raises:
            FileNotFoundError: it is not where it lay.
            ValueError: a line was cut or altered.
            PrivacyError: it is open elsewhere.
        """
        path = folder / self.ledger
        if not path.is_file():
            raise FileNotFoundError(
                f"the ledger of the run is not at {path}; put it there, or give the ledger yourself"
            )
        return Ledger(path, dataset=self.dataset)

    def steps_lost(self, ledger: Ledger) -> int:
        """How many steps the ledger holds of the run beyond those that moved the saved weights.

        Raises:
            PrivacyError: the ledger does not go on from where the run was saved.
        """
        lost = self.terms.spent(ledger.events) - self.steps_taken
        if not ledger.holds(self.head) or lost < 0:
            raise PrivacyError(
                "the ledger does not go on from where the checkpoint was made: it is that of another run, or an older "
                "copy was put in its place, and what was spent since would not count. Give the run its own ledger"
            )
        return lost
