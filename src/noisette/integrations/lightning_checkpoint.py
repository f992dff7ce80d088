"""The part of a checkpoint of Lightning that is the private run's: what was declared, and its place in the ledger.

Weights and optimizer are Lightning's own part. A keyed fingerprint of the records, by which a run knows them again, is
private: until the run has ended it lies beside the ledger, and is no part of a checkpoint.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch.optim.optimizer import Optimizer

from noisette.clipping.per_example import PerExampleClip
from noisette.run import checkpoint_file
from noisette.run.checkpoint import SavedRun
from noisette.run.dataset_fingerprint import Fingerprint
from noisette.run.declared_again import check_declared_again
from noisette.run.model_state import capture_state
from noisette.run.private import PrivateRun
from noisette.sampling.loading import Collate

_DECLARED = "declared"
_RECORDS = "private-run"  # folder beside the ledger, with a folder for each unfinished run


def facts_of(run: PrivateRun, dataset: Any, declared: Mapping[str, float | None]) -> dict[str, Any]:
    """What a checkpoint says of a run with a ledger on disk; the fingerprint is written if it is not there.

    Args:
        run: the run.
        dataset: its records.
        declared: the numbers that were declared for it.
    """
    assert run.ledger.path is not None
    folder = _fingerprint_of(run.ledger.path, run.terms.run)
    if run.steps_left and not folder.is_dir():
        folder.mkdir(parents=True)
        Fingerprint.of(dataset).write(folder)
    with TemporaryDirectory() as made:
        SavedRun.write(
            Path(made),
            run.bound,
            terms=run.terms,
            steps_taken=run.steps_taken,
            ledger=run.ledger,
            learned={},
            extras={},
        )
        facts = checkpoint_file.read(Path(made))
    return facts | {"ledger": str(run.ledger.path.resolve()), _DECLARED: dict(declared)}


def resumed(
    saved: Mapping[str, Any],
    ledger: Path,
    clip: PerExampleClip,
    optimizer: Optimizer,
    dataset: Any,
    collate: Collate | None,
    declared: Mapping[str, float | None],
) -> PrivateRun:
    """The run of a checkpoint whose weights and optimizer state Lightning has restored by now.

    Args:
        saved: what :func:`facts_of` returned.
        ledger: where the ledger of the run is now.
        clip: of the module.
        optimizer: of its parameters.
        dataset: the records of the run.
        collate: as for :func:`noisette.privatize`.
        declared: the numbers that are declared now.

    Raises:
        ValueError: they are not those of the run.
        FileNotFoundError: the fingerprint of the records is not beside the ledger.
        ValueError, PrivacyError, FileNotFoundError: as by :meth:`noisette.PrivateRun.resume`.
    """
    saved = dict(saved)
    check_declared_again(saved.pop(_DECLARED, {}), declared)
    fingerprint = _fingerprint_of(ledger, saved["terms"]["run"])
    with TemporaryDirectory() as made:
        folder = Path(made).resolve()
        place = {"ledger": os.path.relpath(ledger, folder)}
        checkpoint_file.write(folder, {**saved, **place, "learned": capture_state(clip.model, optimizer)})
        if fingerprint.is_dir():
            shutil.copytree(fingerprint, folder, dirs_exist_ok=True)
        try:
            return PrivateRun.resume(folder, clip, optimizer, dataset, collate_fn=collate)
        except FileNotFoundError as error:
            if fingerprint.is_dir() or not ledger.is_file():
                raise
            raise FileNotFoundError(
                f"{fingerprint} is not there, by which the run knows its records: move it along with its ledger"
            ) from error


def forget_records(run: PrivateRun) -> None:
    """Delete the fingerprint of a run that has no steps left."""
    if run.steps_left or run.ledger.path is None:
        return
    folder = _fingerprint_of(run.ledger.path, run.terms.run)
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        folder.parent.rmdir()  # if it was the last one


def _fingerprint_of(ledger: Path, run: str) -> Path:
    return ledger.parent / _RECORDS / run
