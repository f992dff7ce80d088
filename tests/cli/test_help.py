"""What ``--help`` says, and that neither it nor a mistake waits for the import of torch."""

import json
import re
import subprocess
import sys

import pytest
import typer

from command_line import noisette as run
from noisette.cli import app


def commands(group, before=""):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


COMMANDS = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_every_option_is_explained(name):
    command = COMMANDS[name]
    assert command.help
    assert [parameter.name for parameter in command.params if not parameter.help] == []
    shown = run(*name.split(), "--help")
    assert shown.exit_code == 0
    assert all(option in shown.output for p in command.params for option in p.opts if option.startswith("--"))


# The exit code and the errors of each of several commands in one process, and whether torch was imported by then.
PROGRAM = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from noisette.cli import app
ended = []
for words in json.loads(sys.argv[1]):
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as said:
        try:
            app(words.split())
        except SystemExit as end:
            ended.append([end.code, said.getvalue(), "torch" in sys.modules])
print(json.dumps(ended))
"""
WITHOUT_A_MODEL = [
    "train --help",
    "account --sampling-rate 0.1 --noise-multiplier 2 --steps 10 --delta 1e-5",
    "calibrate --sampling-rate 0.1 --epsilon 2 --steps 10 --delta 1e-5",
    "plan --size 100 --epsilon 2 --delta 1e-5 --batch-sizes 50 --epochs 1",
    "ledger charge ledger.jsonl --zcdp 0.1 --dataset census",
]
WRONG = {
    "train --data digitz --model nope --epsilon -1": "epsilon=-1.*no file 'digitz'.*no model 'nope'",
    "train --batches truncated --largest-batch 10": "would cut most batches, of 360 expected; give 455 or more",
    "train --out /dev/null": "is not a run",
    "train --resume nowhere": "there is no unfinished run",
    "curve --data digits --epsilon 1,-3": "expected --epsilon as numbers above 0",
    "curve --data digits --epsilon 1,3,1": "as different budgets, one for each run, got '1,3,1'",
    "curve --data digits --epochs none": "epochs = 'none' is not of the expected type: a valid number",
    "curve --data digits --without-privacy": "leave out --resume, --without-privacy and --sign",
    "curve --data digits --batches balls-in-bins": "without privacy batches are Poisson",
    "search recipe.toml --over lr=log(0,1) --score-on public-set": "lr: expected two numbers above 0",
    "doctor mlp --data nonsense": "expected --data as one of digits",
    "doctor nonsense:model": "no model 'nonsense:model'",
    "audit nowhere": "there is no nowhere; give the folder of a run",
    "predict . recipe.toml": "is not the folder of a finished run",
}


def test_neither_accounting_nor_a_mistake_waits_for_torch(tmp_path):
    (tmp_path / "recipe.toml").write_text("")
    asked = [*WITHOUT_A_MODEL, *WRONG]
    command = [sys.executable, "-c", PROGRAM, json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    for words, (code, errors, loaded) in zip(asked, json.loads(done.stdout), strict=True):
        assert not loaded, words
        assert code == (2 if words in WRONG else 0), words
        assert re.search(WRONG.get(words, ""), errors, re.DOTALL), errors


# What the package and ``--help`` leave unimported: each of these takes a twentieth of a second or more.
LATE = ("torch", "matplotlib", "scipy.special", "scipy.optimize", "scipy.stats", "sklearn", "dp_accounting")
LATE_TOO = ("pooch", "PIL.Image", "cryptography", "safetensors", "jinja2", "transformers", "pandas")
HELP = "from noisette.cli import app; app(['--help'], standalone_mode=False)"


@pytest.mark.parametrize(
    ("program", "late"),
    [("import noisette", (*LATE, *LATE_TOO, *("numpy", "scipy", "typer", "rich"))), (HELP, (*LATE, *LATE_TOO))],
    ids=["package", "help"],
)
def test_libraries_are_imported_on_first_use(program, late):
    seen = f"{program}\nimport sys; print(*(set({late!r}) & set(sys.modules)), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", seen], capture_output=True, text=True)
    assert (done.returncode, done.stderr.strip()) == (0, "")
