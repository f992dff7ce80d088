"""Calls of the command line, and what lies in the folders of its runs."""

import json
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from noisette.cli import app
from noisette.cli.train import Watch
from noisette.run.private import PrivateRun
from noisette.training.report.facts import Point
from noisette.training.run_folder import sealed

FILES = {"card.md", "ledger.jsonl", "model.safetensors", "privacy.txt", "report.html", "run.json"}


def noisette(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def train(*options: object) -> Result:
    return noisette("train", *options)


def succeeded(result: Result) -> Result:
    """The result of a command that ended well."""
    assert result.exit_code == 0, result.output
    return result


def refusal(result: Result, *said: str) -> Result:
    """The result of a command that ended with exit code 2 and said all of this, wherever its lines break."""
    text = result.output + " ".join(result.output.split())
    assert (result.exit_code, [words for words in said if words not in text]) == (2, []), result.output
    assert "Traceback" not in text
    return result


def facts(out: Path | str) -> dict[str, Any]:
    return json.loads(Path(out, "run.json").read_text())


def reseal(run: Path, facts: dict[str, Any]) -> None:
    """Write facts into a run folder with a seal that fits them and the other files, as whoever forges them would."""
    files = {name: (run / name).read_bytes() for name in FILES - {"ledger.jsonl", "run.json"} if (run / name).exists()}
    (run / "run.json").write_text(sealed({key: value for key, value in facts.items() if key != "sealed"}, files))


def words(path: Path | str) -> str:
    return " ".join(Path(path).read_text().split())


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def after_step(step: int, action: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Watch.on_step

    def on_step(watch: Watch, run: PrivateRun, point: Point) -> None:
        shown(watch, run, point)
        if point.step == step:
            action()

    monkeypatch.setattr(Watch, "on_step", on_step)


@contextmanager
def full_disk(after: int) -> Iterator[None]:
    """No file may grow beyond this many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (after, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
