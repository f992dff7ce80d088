from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import noisette
from noisette import data
from noisette.cli import app
from noisette.clipping.registry import CLIPPING_RULES, ENGINES
from noisette.nn import models
from noisette.training.recipe import BATCH_NORMS, accountant_names


def commands(group, before=""):
    """Every command by its full name."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


COMMANDS = dict(commands(typer.main.get_command(app)))
OPTIONS = {
    "search": (
        "--data-dir --delta --epsilon --hold-out --holdout --json --out --over --runs --score-noise --score-on "
        "--shape recipe"
    ),
    "train": (
        "--allow-large-delta --bands --batch-norm --batch-size --batches --class-weights --classes --clipping "
        "--columns --compile "
        "--data --data-dir --decimal --delta --engine --epochs --epsilon --grey --hold-out --holdout --image-size "
        "--json --label --largest-batch --lr --max-grad-norm --model --optimizer --out --public --public-examples "
        "--public-users --records-per-user --resume --seed --size --skip-unlabelled --target --test "
        "--text --tokens --unit --users --views --without-privacy recipe"
    ),
    "predict": "--keep --model --out --text rows run",
    "schema": (
        "--category --classes --date --decimal --encoding --hashed --ignore --label --missing --names --number --out "
        "--size --skip-unlabelled --target --thousands --unit header_of"
    ),
    "doctor": "--bf16 --columns --data --data-dir --examples --input-shape target",
    "audit": ("--data-dir --membership --out --pairs --shadows --steps --whole-run place"),
    "account": (
        "--accountant --bands --batch-size --delta --epochs --epsilon --expected-batch-size --group-size --json "
        "--noise --noise-multiplier --plot --sampling-rate --size --steps"
    ),
    "calibrate": ("--accountant --delta --epsilon --json --noise --noise-multiplier --sampling-rate --steps"),
    "plan": "--batch-sizes --delta --epochs --epsilon --json --noise --size",
    "ledger show": "--json place",
    "ledger charge": (
        "--dataset --delta --discrete-gaussian --epsilon --gaussian --laplace --per --times --tool --zcdp place"
    ),
    "ledger price": "--accountant --delta --group-size --json --records-per-user place",
    "ledger repair": "place",
}


def test_options_are_those_listed_here() -> None:
    assert {name: {o for p in command.params for o in p.opts} for name, command in COMMANDS.items()} == {
        name: set(options.split()) for name, options in OPTIONS.items()
    }


@pytest.mark.parametrize("command", OPTIONS)
def test_every_command_and_every_option_is_explained(command: str) -> None:
    assert COMMANDS[command].help
    assert [parameter.name for parameter in COMMANDS[command].params if not parameter.help] == []
    shown = CliRunner().invoke(app, [*command.split(), "--help"])
    assert shown.exit_code == 0
    assert all(option in shown.output for option in OPTIONS[command].split() if option.startswith("--"))


def test_train_shows_two_examples_and_every_name_there_is() -> None:
    command = COMMANDS["train"]
    assert command.help.count("`noisette train") == 2
    helps = {option: parameter.help for parameter in command.params for option in parameter.opts}
    for option, names in (
        ("--data", data.names()),
        ("--model", [name for name, model in models.REGISTRY.items() if isinstance(model.factory, str)]),
        ("--batch-norm", BATCH_NORMS),
        ("--clipping", CLIPPING_RULES),
        ("--engine", ENGINES),
        ("recipe", accountant_names()),
    ):
        words = re.findall(r"[\w-]+", helps[option])
        assert [name for name in names if name not in words] == []


def test_version() -> None:
    shown = CliRunner().invoke(app, ["--version"])
    assert (shown.exit_code, shown.output.strip()) == (0, noisette.__version__)


PROGRAM = """
import sys
from noisette.cli import main
try:
    main()
finally:
    print(*({"torch", "matplotlib"} & set(sys.modules)), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("arguments", "imported"),
    [
        ("train --help", ""),
        ("account --sampling-rate 0.1 --noise-multiplier 2 --steps 10 --delta 1e-5", ""),
        ("account --sampling-rate 0.1 --noise-multiplier 2 --steps 10 --delta 1e-5 --plot a.html", "matplotlib"),
        ("calibrate --sampling-rate 0.1 --epsilon 2 --steps 10 --delta 1e-5", ""),
        ("plan --size 100 --epsilon 2 --delta 1e-5 --batch-sizes 50 --epochs 1 --noise 1", ""),
        ("ledger charge ledger.jsonl --zcdp 0.1 --dataset census", ""),
    ],
)
def test_commands_without_a_model_do_not_import_torch(arguments: str, imported: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments.split()], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1].strip() == imported


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("train --data nonsense", "there is no data set and no file 'nonsense'"),
        ("train --model nonsense", "no model 'nonsense'"),
        ("train --epsilon 0 --lr -1", "epsilon > 0"),
        ("train --out /dev/null", "is not a run"),
        ("search recipe.toml --over lr=log(0,1) --score-on public-set", "lr: expected two numbers above 0"),
        ("search recipe.toml --over lr=log(1,2) --score-on held-out --runs 0", "expected --runs from 1"),
        ("doctor mlp --data nonsense", "expected --data as one of digits"),
        ("doctor nonsense:model", "there is no nonsense:model"),
        ("train --resume nowhere", "there is no unfinished run"),
    ],
)
def test_wrong_options_are_refused_before_torch_is_imported(arguments: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text("")
    program = (
        "import sys\nfrom noisette.cli import main\nsys.argv[0] = 'noisette'\n"
        "try:\n    main()\nfinally:\n    print('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", program, *arguments.split()]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout.strip()) == (2, "False"), done.stderr
    assert said in done.stderr


# What the package and ``--help`` leave unimported: each of these takes a twentieth of a second or more.
LATE = ("torch", "matplotlib", "scipy.special", "scipy.optimize", "scipy.stats", "sklearn", "dp_accounting")
LATE_TOO = ("pooch", "PIL.Image", "cryptography", "safetensors", "jinja2", "transformers", "pandas")
FOR_COMMANDS = ("numpy", "scipy", "typer", "rich")

HELP = """
import sys
from noisette.cli import main
sys.argv = ["noisette", "--help"]
try:
    main()
except SystemExit:
    pass
"""


@pytest.mark.parametrize(
    ("program", "late"),
    [("import noisette", (*LATE, *LATE_TOO, *FOR_COMMANDS)), (HELP, (*LATE, *LATE_TOO))],
    ids=["package", "help"],
)
def test_libraries_are_imported_on_first_use(program: str, late: tuple[str, ...]) -> None:
    seen = f"{program}\nimport sys; print(*(set({late!r}) & set(sys.modules)), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", seen], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (0, "")
