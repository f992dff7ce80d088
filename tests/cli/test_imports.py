"""What the package and `--help` leave unimported: each of these takes a twentieth of a second or more."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
