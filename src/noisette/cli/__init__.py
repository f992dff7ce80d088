"""The command ``noisette``. Only the commands that use a model import torch."""

import io
import sys
from pathlib import Path
from typing import Annotated

import typer

import noisette
from noisette.cli.account import account, plan
from noisette.cli.audit import audit
from noisette.cli.doctor import doctor
from noisette.cli.ledger import ledger
from noisette.cli.search import search
from noisette.cli.tables import predict, schema
from noisette.cli.train import curve, train

app = typer.Typer(
    name="noisette",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
for command in (train, search, predict, schema, doctor, account, plan, audit):
    app.command()(command)
app.command("calibrate")(account)
# Its other options are those of train.
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(curve)
app.add_typer(ledger)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(noisette.__version__)
        raise typer.Exit


_VERSION = typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)


@app.callback()
def _options(version: Annotated[bool, _VERSION] = False) -> None:
    """Train PyTorch models with differential privacy.

    Start with: noisette train
    """
    for stream in (sys.stdout, sys.stderr):  # a path need not be UTF-8
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def main() -> None:
    """Run the command. Models given as package.module:callable are also found in the current folder.

    Not in the folder of a run, or inside it: its files are data, which others may have written.
    """
    of_runs = "run.json", "checkpoint/settings.json"
    here = Path.cwd()
    sys.path[:] = [place for place in sys.path if Path(place or ".").resolve() != here]  # python -m begins with it
    if not any((folder / name).exists() for folder in (here, *here.parents) for name in of_runs):
        sys.path.append(str(here))
    app()
