"""The checkpoint of a run, and the check that model, optimizer, bound and ledger belong to it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from torch.optim import Optimizer

from noisette import errors as checks
from noisette._internal import atomic_files
from noisette.accounting import Ledger
from noisette.accounting.events import in_whole_rounds
from noisette.accounting.run_parameters import RunParameters
from noisette.core.release import GradientBound, parts_of
from noisette.errors import PrivacyError
from noisette.run import checkpoint_file
from noisette.run.model_state import check_fits, restore_state


@dataclass(frozen=True)
class SavedRun:
    """A run after some of its steps. Holds no secret, and released values only.

    Args:
        terms: the run's declared parameters.
        steps_taken: steps that moved the weights.
        ledger: path of the ledger, relative to the folder of the checkpoint.
        dataset: name of the data set in the ledger.
        head: of the ledger at the time of the checkpoint.
        trained: names of the trained parameters.
        bound: what the bound has learned.
        learned: weights, buffers and the optimizer's state.
        extras: the caller's own values.
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
        *,
        terms: RunParameters,
        steps_taken: int,
        ledger: Ledger,
        learned: Mapping[str, Any],
        extras: Mapping[str, Any],
    ) -> None:
        """Write the checkpoint of a run whose ledger is a file, in place of an older one.

        Raises:
            TypeError: something cannot be saved; the message names it.
            OSError: the files cannot be written; the older checkpoint stays.
        """
        assert ledger.path is not None, "in memory"
        ledger.shorten()
        head = ledger.head
        atomic_files.sync(ledger.path)  # the line that the checkpoint names must be on disk first
        saved = cls(
            terms=terms,
            steps_taken=steps_taken,
            ledger=os.path.relpath(ledger.path, folder.resolve()),
            dataset=ledger.dataset,
            head=head,
            trained=list(bound.parameters),
            bound=bound.state(),
            learned=learned,
            extras=extras,
        )
        content = {known.name: getattr(saved, known.name) for known in fields(cls)}
        checkpoint_file.write(folder, content | {"terms": terms.facts()})

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The checkpoint in a folder.

        Raises:
            FileNotFoundError: there is none.
            ValueError: a file was truncated or altered, or is not the checkpoint of a run.
        """
        content = checkpoint_file.read(folder)
        try:
            terms = RunParameters.of(content.pop("terms"))
            checks.count(steps_taken=content["steps_taken"] + 1)
            return cls(terms=terms, **content)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{folder} holds no checkpoint of a run: {error}") from error

    def check_fits(self, bound: GradientBound, optimizer: Optimizer) -> None:
        """Check that bound, model and optimizer are like those of the run.

        Raises:
            ValueError: they are not.
        """
        check_fits(self.learned, bound.model, optimizer)
        if self.trained != list(bound.parameters):
            raise ValueError("the checkpoint is of a run that trained other parameters; freeze the same ones")
        if self.terms.event.parts != parts_of(bound.pop_sums()) or self.bound.keys() != bound.state().keys():
            raise ValueError("the checkpoint is of a run with another clipping rule; give the bound the same one")

    def restore_state(self, bound: GradientBound, optimizer: Optimizer) -> None:
        """Restore the state of bound, model and optimizer.

        Raises:
            ValueError: they are not like those of the run, or the saved bound is outside its domain; they are left as
                they were.
        """
        self.check_fits(bound, optimizer)
        bound.restore(self.bound)  # first, because only it can still refuse its values
        restore_state(self.learned, bound.model, optimizer)

    def open_ledger(self, path: Path) -> Ledger:
        """The ledger of the run at this path, open for writing.

        Raises:
            FileNotFoundError: it is not at its path.
            ValueError: a line was truncated or altered.
            PrivacyError: it is open elsewhere.
        """
        if not path.is_file():
            raise FileNotFoundError(f"the ledger of the run is not at {path}; move it there, or pass ledger=")
        return Ledger(path, dataset=self.dataset)

    def steps_lost(self, ledger: Ledger) -> int:
        """Number of steps that the ledger records beyond those that moved the saved weights.

        Raises:
            PrivacyError: the ledger does not continue from the checkpoint.
        """
        spent, steps = self.terms.spent(ledger), self.terms.steps
        if spent > steps:  # the last round may be longer than what is left
            spent -= in_whole_rounds(self.terms.event, steps) - steps
        lost = spent - self.steps_taken
        if not ledger.holds(self.head) or lost < 0:
            raise PrivacyError(
                "the ledger does not continue from the checkpoint: it belongs to another run, or is an older copy that "
                "misses steps spent since. Give the run its own ledger"
            )
        return lost
