"""One record shows nowhere but in the sums that are noised: not in a file, a line, a rate, a step or an exit code."""

import signal
from pathlib import Path

import numpy as np
import pytest

from command_line import after_step
from replay import Course, course, moved

RECORDS = 401
PRIVACY = '[privacy]\nepsilon = 4.0\ndelta = 1e-3\naccountant = "rdp"\nmax_grad_norm = 0.3\n'
TRAINING = "[training]\nepochs = 2\nbatch_size = 60\nlr = 0.5\n"
RECIPES = {
    "plain": PRIVACY + TRAINING,
    "per layer, momentum, average, rate in a line": PRIVACY
    + 'clipping = "per-layer"\n'
    + TRAINING
    + "momentum = 0.9\naveraging = 0.9\nlr_end = 0.1\nlr_epochs = 1.0\n",
    "projection": PRIVACY + TRAINING + "[projection]\ncomponents = 3\nnoise_multiplier = 9.0\n",
}
NUMBERS = np.random.default_rng(0).normal(size=(RECORDS + 80, 6)).astype(np.float32)
CLASSES = np.random.default_rng(1).integers(0, 2, RECORDS + 80)


def odd(value: float) -> np.ndarray:
    numbers = NUMBERS.copy()
    numbers[RECORDS - 1, ::2] = value
    return numbers


ODD = {"an ordinary record": NUMBERS, "no number": odd(np.nan), "infinite": odd(-np.inf), "huge": odd(1e30)}


def write(folder: Path, numbers: np.ndarray, *, records: int) -> None:
    train = {"x_train": numbers[:records], "y_train": CLASSES[:records]}
    np.savez(folder / "own.npz", **train, x_test=NUMBERS[RECORDS:], y_test=CLASSES[RECORDS:])


def with_and_without(tmp_path, recipe, numbers, *more, records=(401, 400)) -> tuple[Course, Course]:
    """The run with all records, and that without the last of them, forced to the same released values."""
    (tmp_path / "recipe.toml").write_text('[model]\nname = "mlp"\n' + recipe)
    data = ["--data", tmp_path / "own.npz", "--classes", 2, "--size", 400]
    commands = [["train", tmp_path / "recipe.toml", *data, "--out", "run"], *more]
    (tmp_path / "place").mkdir()
    write(tmp_path, numbers, records=records[0])
    whole = course(tmp_path / "place", commands)
    write(tmp_path, numbers, records=records[1])
    return whole, course(tmp_path / "place", commands, forced=whole.mechanisms)


def check(whole: Course, less: Course) -> list[float]:
    """All that is public is the same; by how much each input of the mechanism differs, in units of the bound."""
    assert (whole.exit_codes, whole.printed) == (less.exit_codes, less.printed)
    assert whole.files.keys() == less.files.keys()
    assert [name for name in whole.files if whole.files[name] != less.files[name]] == []
    assert [call.public for call in whole.mechanisms] == [call.public for call in less.mechanisms]
    differences = [moved(one, other) for one, other in zip(whole.mechanisms, less.mechanisms, strict=True)]
    assert max(differences) <= 1 + 1e-6
    return differences


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(recipe, id=name, marks=pytest.mark.slow if name in ("plain", "projection") else [])
        for name, recipe in RECIPES.items()
    ],
)
def test_one_record_changes_nothing_but_the_noised_sums(recipe: str, tmp_path: Path) -> None:
    whole, less = with_and_without(tmp_path, recipe, NUMBERS)
    assert whole.exit_codes == [0], whole.printed
    assert {Path(name).name for name in whole.files} >= {"ledger.jsonl", "model.safetensors", "privacy.txt", "run.json"}
    differences = check(whole, less)
    assert max(differences) > 0.1, "the record takes part"
    assert min(differences) == 0, "where it is not drawn nothing differs at all"


@pytest.mark.parametrize(
    "numbers",
    [pytest.param(ODD[name], id=name, marks=pytest.mark.slow if name == "infinite" else []) for name in list(ODD)[1:]],
)
def test_a_record_that_is_no_good_changes_nothing_at_all(numbers: np.ndarray, tmp_path: Path) -> None:
    whole, less = with_and_without(tmp_path, RECIPES["plain"], numbers)
    assert whole.exit_codes == [0], whole.printed
    assert max(check(whole, less)) <= (1 if np.isfinite(numbers).all() else 0)


def test_a_run_that_is_put_off_and_resumed_shows_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    after_step(5, lambda: signal.raise_signal(signal.SIGTERM), monkeypatch)
    whole, less = with_and_without(tmp_path, RECIPES["plain"], NUMBERS, ["train", "--resume", "run"])
    assert whole.exit_codes[0] == 143
    assert any("checkpoint.safetensors" in name for name in whole.files)
    check(whole, less)


@pytest.mark.slow
def test_no_records_at_all_show_nowhere_either(tmp_path: Path) -> None:
    whole, less = with_and_without(tmp_path, RECIPES["plain"], NUMBERS, records=(1, 0))
    assert whole.exit_codes == [0], whole.printed
    check(whole, less)
