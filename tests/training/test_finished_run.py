"""A finished run folder: its seal, damaged and forged facts, and models whose code is not noisette's."""

import copy
import json
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields
from functools import reduce
from importlib.util import find_spec
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
import torch
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from command_line import after_step, facts, noisette, refusal, reseal, succeeded, train
from noisette import cli
from noisette.audit.audited_run import AuditedRun
from noisette.training.run_folder import FinishedRun
from noisette.training.saved_model import SavedModel

ROWS = "a,b,label\n" + "".join(f"{k % 7},{k % 3},{k % 2}\n" for k in range(60))
OPTIONS = ("--classes", 2, "--size", 60, "--epochs", 1, "--delta", 1e-3)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("table")
    (folder / "rows.csv").write_text(ROWS)
    succeeded(train("--data", folder / "rows.csv", *OPTIONS, "--out", folder / "run"))
    return folder / "run"


@pytest.fixture
def run(finished, tmp_path):
    shutil.copy(finished.parent / "rows.csv", tmp_path)
    return Path(shutil.copytree(finished, tmp_path / "run"))


def commands(run: Path) -> Iterator[tuple[object, ...]]:
    yield "predict", run, run.parent / "rows.csv"
    yield "ledger", "price", run
    yield "ledger", "show", run
    yield "audit", run, "--steps", 2, "--pairs", 1, "--out", run.parent / "audit"


def flip_a_bit(path: Path, at: float = 0.5) -> None:
    content = bytearray(path.read_bytes())
    content[int(at * len(content))] ^= 1
    path.write_bytes(content)


def shorten(run: Path) -> None:
    lines = (run / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (run / "ledger.jsonl").write_bytes(b"".join(lines[:-1]))


def write_twice(path: Path, name: str) -> None:
    """Of a name that is there twice Python takes the last value, and others may take the first."""
    path.write_text(path.read_text().replace(name, f"{name}0.01,\n  {name}", 1))


CHANGES: dict[str, Callable[[Path], object]] = {
    "model.safetensors": lambda run: flip_a_bit(run / "model.safetensors", 0.99),
    "report.html": lambda run: flip_a_bit(run / "report.html"),
    "privacy.txt": lambda run: flip_a_bit(run / "privacy.txt"),
    "run.json": lambda run: reseal_nothing(run, epsilon=0.1),
    "run.json is truncated or altered": lambda run: write_twice(run / "run.json", '"epsilon": '),
    "contains no run.json": lambda run: ((run / "run.json").unlink(), os.mkfifo(run / "run.json")),
    "ledger.jsonl": shorten,
    "ledger.jsonl, line 1": lambda run: flip_a_bit(run / "ledger.jsonl", 0),
}


def keys(folder: Path) -> tuple[Path, Path]:
    key, kind = Ed25519PrivateKey.generate(), serialization.PublicFormat.SubjectPublicKeyInfo
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / "key.pem").write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()))
    (folder / "public.pem").write_bytes(key.public_key().public_bytes(pem, kind))
    return folder / "key.pem", folder / "public.pem"


def test_a_run_is_signed_and_verified_without_its_records(tmp_path):
    (tmp_path / "rows.csv").write_text(ROWS)
    own, public = keys(tmp_path)
    begin = "--data", tmp_path / "rows.csv", *OPTIONS, "--out", tmp_path / "run"
    assert "holds no private Ed25519 key" in train(*begin, "--sign", public).output
    assert not list(tmp_path.glob("run*")), "it has trained first"
    succeeded(train(*begin, "--sign", own))
    rows = (tmp_path / "rows.csv").rename(tmp_path / "others.csv")
    run, verified = tmp_path / "run", ("ledger", "verify", tmp_path / "run", "--key")
    said = noisette(*verified, public)
    assert (said.exit_code, "unchanged since; card.md" in said.output) == (0, True), said.output
    for command in (("predict", run, rows), *list(commands(run))[1:]):
        assert "there; check it by: noisette ledger verify" in noisette(*command).output
    succeeded(noisette("ledger", "charge", run, "--zcdp", 0.1, "--tool", "x"))
    assert "came later are not signed" in noisette(*verified, public).output
    (other := tmp_path / "other").mkdir()
    assert "another key or another run" in noisette(*verified, keys(other)[1]).output
    reseal(run, {key: value for key, value in facts(run).items() if key != "signature"} | {"epsilon": 0.1})
    assert "is not signed" in noisette(*verified, public).output
    assert "signature" not in noisette("predict", run, rows).output
    reseal_nothing(run, signature="00" * 64)
    refusal(noisette(*verified, public), "another key or another run")


def test_a_signed_run_that_was_cut_off_goes_on_with_its_key_alone(tmp_path, monkeypatch):
    (own, public), out = keys(tmp_path), tmp_path / "run"
    with monkeypatch.context() as pressed:
        after_step(2, lambda: signal.raise_signal(signal.SIGTERM), pressed)
        assert train("--epochs", 1, "--sign", own, "--out", out).exit_code == 143
    refusal(train("--resume", out), f"begun with --sign {own} and would end unsigned")
    assert not any(b"PRIVATE KEY" in path.read_bytes() for path in tmp_path.glob("run*/**/*") if path.is_file())
    succeeded(train("--resume", out, "--sign", own))
    succeeded(noisette("ledger", "verify", out, "--key", public))


def reseal_nothing(run: Path, **changed: object) -> None:
    (run / "run.json").write_text(json.dumps(facts(run) | changed, indent=2) + "\n")


@pytest.mark.parametrize("name", CHANGES)
def test_what_was_changed_after_the_run_is_named(run, name):
    CHANGES[name](run)
    for command in commands(run):
        refusal(noisette(*command), name)


def test_a_whole_folder_is_accepted_also_after_a_charge(run):
    succeeded(noisette("ledger", "charge", run, "--zcdp", 0.1))
    for command in commands(run):
        succeeded(noisette(*command))


def test_a_removed_file_is_named(run):
    (run / "privacy.txt").unlink()
    assert "privacy.txt" in noisette("ledger", "price", run).stderr
    seal = facts(run)
    del seal["sealed"]
    (run / "run.json").write_text(json.dumps(seal, indent=2) + "\n")
    assert "lacks 'sealed'" in noisette("predict", run, run.parent / "rows.csv").stderr


OWN = "import torch\n\ndef small(shape, classes):\n    return torch.nn.Linear(*shape, classes)\n"
EVIL = "raise SystemExit('code of the run folder was run')\n"


@pytest.fixture
def own(finished, tmp_path, monkeypatch):
    """A run with a model of the user's own; its author has put a module of this name into its folder, where we are."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "own_small.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path / "code")
    shutil.copy(finished.parent / "rows.csv", tmp_path)
    options = ("--data", tmp_path / "rows.csv", *OPTIONS, "--model", "own_small:small", "--out", tmp_path / "run")
    succeeded(train(*options))
    (tmp_path / "run" / "own_small.py").write_text(EVIL)
    sys.modules.pop("own_small")
    monkeypatch.chdir(tmp_path / "run")
    monkeypatch.syspath_prepend("")
    yield tmp_path / "run"
    sys.modules.pop("own_small", None)


def test_code_of_others_is_run_only_where_the_caller_names_it(own):
    rows, found = own.parent / "rows.csv", own.parent / "audit"
    refusal(noisette("predict", own, rows), "if you trust it, give --model own_small:small")
    with pytest.raises(ValueError, match="code of its author"):
        SavedModel.of_run(own)
    assert "'os:getcwd' is another one" in noisette("predict", own, rows, "--model", "os:getcwd").stderr
    shown = noisette("audit", own, "--steps", 2, "--out", found)
    assert (shown.exit_code, "was not audited: its folder does not contain its model" in shown.stdout) == (0, True)
    assert "own_small" not in sys.modules, "nothing was imported"
    shown = noisette("audit", own, "--steps", 2, "--model", "own_small:small", "--out", found)
    assert "was not audited" not in shown.stdout, "its model is known now"
    assert "own_small" in sys.modules


def test_code_is_not_searched_in_the_folder_of_the_run(own):
    rows, named = own.parent / "rows.csv", ("--model", "own_small:small")
    shown = noisette("predict", own, rows, *named)
    assert (shown.exit_code, shown.stdout.count("\n")) == (0, 61), shown.output
    sys.modules.pop("own_small")
    assert SavedModel.of_run(own, "own_small:small").model.in_features == 2
    sys.modules.pop("own_small")
    (own.parent / "code" / "own_small.py").unlink()
    refusal(noisette("predict", own, rows, *named), "the folder of the run is not searched")


@pytest.mark.parametrize("inside", [".", "deeper"])
def test_the_command_imports_nothing_from_the_run_folder_that_it_stands_in(run, inside, monkeypatch):
    (run / inside).mkdir(exist_ok=True)
    (run / inside / "evil.py").write_text(EVIL)
    monkeypatch.chdir(run / inside)
    monkeypatch.setattr(cli, "app", lambda: None)
    elsewhere = list(sys.path)

    def is_found() -> bool:
        monkeypatch.setattr(sys, "path", ["", *elsewhere])
        cli.main()
        return find_spec("evil") is not None

    assert not is_found()
    (run / "run.json").unlink()
    assert is_found(), "of no run folder"
    (run / "checkpoint").mkdir()
    (run / "checkpoint" / "settings.json").touch()
    assert not is_found(), "of a run that has not ended"


DEEP: Any = []
for _ in range(700):
    DEEP = [DEEP]
FORGED: tuple[Any, ...] = (
    *(None, True, -1, 0, 10**9, 10**18, 10**400, 1e308, float("inf"), float("nan")),
    *("", "x", "../x", "a\0b", "\ud800", "os:getcwd", "x" * 5000, "resnet-18", "lipschitz-dense"),
    *([], [-1], [10**9, 10**9], [[]], ["a"], {}, {"a": {}}, DEEP),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of everything in a JSON value; of a list its first element."""
    inside = value.items() if isinstance(value, dict) else list(enumerate(value))[:1] if isinstance(value, list) else ()
    for key, part in inside:
        yield (*path, key)
        yield from places(part, (*path, key))


def forged(told: dict[str, Any], place: tuple[Any, ...], value: Any) -> dict[str, Any]:
    other = copy.deepcopy(told)
    holder = reduce(getitem, place[:-1], other)
    holder[place[-1]] = value
    if value == "absent":
        del holder[place[-1]]
    return other


READ = {"private", "ledger_head", *(own.name for own in fields(FinishedRun))}


def test_forged_facts_end_in_a_message(run):
    """The seal of whoever forges them fits, so that every value is reached."""
    told, draw = facts(run), random.Random(0)
    for place in places({key: value for key, value in told.items() if key in READ}):
        for value in ("absent", *draw.sample(FORGED, 2)):
            reseal(run, forged(told, place, value))
            for read in (lambda: SavedModel.of_run(run), lambda: AuditedRun.of_run(run).audit_neighbours(pairs=1)):
                with suppress(ValueError, FileNotFoundError):
                    read()
            if place == ("recipe", "privacy", "delta"):
                assert noisette("ledger", "price", run).exit_code in (0, 2)


def test_facts_that_would_need_more_memory_than_there_is_are_refused(run):
    told = facts(run)
    large = {"classes": 10**9, "input_shape": [10**9] * 2, "words": 10**10}
    for name, value in (large | {"event": {"mechanism": []}}).items():
        reseal(run, told | {name: value})
        refusal(noisette("audit", run), "is altered: ")
    reseal(run, told | {"features": told["features"][1:]})
    refusal(noisette("predict", run, run.parent / "rows.csv"), "its model takes")


def test_a_model_is_exported_with_what_prepares_its_inputs(run):
    saved = SavedModel.of_run(run)
    inputs = torch.as_tensor(saved.read(run.parent / "rows.csv"))
    exported = torch.export.export(saved.model, (inputs,), dynamic_shapes=({0: torch.export.Dim("rows")},))
    torch.export.save(exported, run / "model.pt2")
    loaded = torch.export.load(run / "model.pt2").module()
    torch.testing.assert_close(loaded(inputs[:7]), saved.model(inputs[:7]))


def test_a_model_is_exported_to_onnx(run):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    saved = SavedModel.of_run(run)
    inputs = torch.as_tensor(saved.read(run.parent / "rows.csv"))
    torch.onnx.export(saved.model, (inputs,), run / "model.onnx", dynamic_shapes=({0: torch.export.Dim("rows")},))
    session = runtime.InferenceSession(run / "model.onnx")
    [scores] = session.run(None, {session.get_inputs()[0].name: inputs[:7].numpy()})
    torch.testing.assert_close(torch.as_tensor(scores), saved.model(inputs[:7]).detach())
