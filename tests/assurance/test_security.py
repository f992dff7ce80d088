"""Files that are read run no code, files that are written hold no secret, and imports use no network."""

import ast
import base64
import importlib
import pickle
import pkgutil
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import noisette as package
from command_line import after_step, noisette, refusal
from noisette.data.files import Source
from replay import SECRET, course

SOURCE = Path(package.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
RECIPE = '[privacy]\naccountant = "rdp"\nepsilon = 2.0\ndelta = 1e-4\n[training]\nepochs = 1\nbatch_size = 360\n'
TRAIN = ["train", "recipe.toml", "--model", "linear", "--out", "run"]


def calls(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)


FORBIDDEN = {"system", "popen", "Popen", "extract", "extractall", "unpack_archive", "__import__", "Unpickler"}
BY_NAME = {  # the library itself, a user's model, Lightning under either of its names, packages with a public network
    *("__init__.py", "nn/__init__.py", "nn/models/__init__.py", "nn/models/factory.py", "rules/__init__.py"),
    *("integrations/lightning.py", "nn/models/backbones.py"),
    "training/run_folder.py",
}


def test_nothing_that_is_read_is_run_or_unpacked() -> None:
    """In addition to the architecture tests: no shell, no archive unpacked on the disk, and no import by name where the
    name could come from a file."""
    for path in FILES:
        place = path.relative_to(SOURCE).as_posix()
        called = set(calls(ast.parse(path.read_text(encoding="utf-8"))))
        ends = {name.rpartition(".")[2] for name in called}
        assert not ends & FORBIDDEN, place
        assert "import_module" not in ends or place in BY_NAME, place
        assert not any(name.startswith("subprocess.") for name in called), place


def test_a_whole_run_unpickles_nothing_asks_no_network_and_shows_no_file(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.toml").write_text(RECIPE)
    assert noisette(*TRAIN).exit_code == 0, "torch has now imported what it unpickles of its own"

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("something was unpickled, or the network was asked")

    for owner, name in (
        *((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load")),
        *((socket.socket, "connect"), (socket, "getaddrinfo")),
    ):
        monkeypatch.setattr(owner, name, refuse)
    with monkeypatch.context() as pressed:
        after_step(2, lambda: signal.raise_signal(signal.SIGTERM), pressed)
        assert noisette(*TRAIN).exit_code == 143
    files = [path for path in (tmp_path / "run.unfinished-1").rglob("*") if path.is_file()]
    assert len(files) == 4
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert noisette("train", "--resume", "run").exit_code == 0


CODE = "__import__('pathlib').Path('owned').touch()"


@pytest.mark.parametrize(
    "text",
    [
        f'[model]\nname = "{CODE}"\n',
        f'[data]\nname = "{CODE}"\n',
        '[model]\nname = "os:abort"\n[data]\nname = "no such data"\n',
        '[model]\nname = "builtins:exec"\n',
        f'[training]\nlr = "{CODE}"\n',
        '[model]\nname = "owning:model"\n',
        "[training]\nlr = 1" + "0" * 5000 + "\n",
    ],
    ids=range(7),
)
def test_a_recipe_is_data(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its text is never run. It may name a model of an installed module, but not of a module beside the recipe."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    (tmp_path / "owning.py").write_text(CODE)
    (tmp_path / "recipe.toml").write_text(text)
    refusal(noisette("train", "recipe.toml", "--out", "run"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["owning.py", "recipe.toml"]


@pytest.mark.parametrize(
    ("where", "name"),
    [
        *(("data.name", "../../up.csv"), ("data.name", "/dev/zero"), ("data.test", "/etc/passwd")),
        *(("model.weights", "a\0b"), ("public.data", "x" * 5000)),
    ],
)
def test_paths_of_a_recipe_are_read_and_never_written(where, name, tmp_path, monkeypatch) -> None:
    """Whatever lies there is data of a known format or refused, unquoted; what is written lies under --out."""
    (tmp_path / "below" / "here").mkdir(parents=True)
    (tmp_path / "up.csv").write_text("secret-column\nsecret-value\n")
    monkeypatch.chdir(tmp_path / "below" / "here")
    before = sorted(tmp_path.rglob("*"))
    section, _, key = where.partition(".")
    extra = {"public.data": '[model]\nname = "linear"\nbatch_norm = "public"\n'}.get(where, "")
    declared = "classes = 2\nsize = 100\n" if where == "data.name" else ""
    Path("recipe.toml").write_text(f"{extra}[{section}]\n{key} = {toml(name)}\n{declared}{RECIPE}")
    shown = refusal(noisette("train", "recipe.toml", "--out", "run"))
    assert "secret-value" not in shown.output
    assert "root:" not in shown.output
    assert sorted(path for path in tmp_path.rglob("*") if path.name != "recipe.toml") == before


def toml(text: str) -> str:
    return '"' + text.replace("\0", "\\u0000") + '"'


def spellings(secret: bytes) -> list[bytes]:
    numbers = ", ".join(map(str, secret)).encode()
    texts = secret.hex(), secret.hex().upper(), repr(secret)[2:-1]
    encoded = base64.b64encode(secret), base64.urlsafe_b64encode(secret), numbers, numbers.replace(b" ", b"")
    return [secret[:16], secret[16:], *map(str.encode, texts), *encoded]


def test_no_key_is_written_or_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    after_step(2, lambda: signal.raise_signal(signal.SIGTERM), monkeypatch)
    place = tmp_path / "place"
    place.mkdir()
    (tmp_path / "recipe.toml").write_text(RECIPE + "[projection]\ncomponents = 3\nnoise_multiplier = 9.0\n")
    train = ["train", tmp_path / "recipe.toml", "--model", "linear", "--out", "run"]
    let_out = course(place, [train, ["train", "--resume", "run"]])
    assert let_out.exit_codes[0] == 143
    assert any("checkpoint.safetensors" in name for name in let_out.files)
    for content in (*let_out.files.values(), let_out.printed.encode()):
        assert not any(spelling in content for spelling in spellings(SECRET))


OFFLINE = """
import socket, sys

def refuse(*_, **__):
    raise AssertionError("the network was asked")

for name in ("connect", "connect_ex", "sendto", "bind"):
    setattr(socket.socket, name, refuse)
socket.create_connection = socket.getaddrinfo = refuse
"""
IMPORT_ALL = """
import importlib, pkgutil, noisette
for module in pkgutil.walk_packages(noisette.__path__, "noisette."):
    if not module.name.endswith(("__main__", "triton_noise", "trl")):  # Triton and TRL may be absent
        importlib.import_module(module.name)
"""


@pytest.mark.slow
def test_no_import_asks_the_network() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", OFFLINE + IMPORT_ALL], check=True)


def test_what_is_fetched_has_a_checksum() -> None:
    rooms = pkgutil.iter_modules([str(SOURCE / "data")])
    modules = [importlib.import_module(f"noisette.data.{room.name}") for room in rooms]
    sources = [value for module in modules for value in vars(module).values() if isinstance(value, Source)]
    assert len(sources) >= 5
    for source in sources:
        assert all(re.fullmatch(r"md5:[0-9a-f]{32}|sha256:[0-9a-f]{64}", known) for known in source.checksums.values())


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.html")) + sorted(SOURCE.rglob("*.css")), ids=lambda p: p.name)
def test_no_page_fetches_or_runs_anything(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    found = re.search(
        r"<script|<link|<iframe|<img|@import|url\(\s*['\"]?http|\son\w+=|javascript:", text, re.IGNORECASE
    )
    assert not found
