"""Run ``benchmarks.gpu`` with a Python whose torch finds a GPU, and install only what is missing there.

    python3 benchmarks/gpu_environment.py [--wheels DIR] [PYTHON ...]

Needs nothing but the standard library. The first of the given Pythons (``python3``, where none is given) whose torch
finds a CUDA device is used. What of noisette's requirements is missing there goes into ``.venv-gpu``, which sees all
that this Python has: from a folder of wheels if there is one, otherwise from the package index. Nothing that is there
is replaced. What cannot be installed is named; noisette runs without what it does not need.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv-gpu"
MINUTES = 9.0  # of the whole command
_INSTALL_SECONDS = 100  # of all that is missing
_FACTS = """
import importlib.metadata, json, sysconfig, torch
print(json.dumps({
    "cuda": torch.cuda.is_available(),
    "folders": sorted({sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"]}),
    "packages": sorted({d.metadata["Name"] for d in importlib.metadata.distributions() if d.metadata["Name"]}),
    "torch": torch.__version__,
}))
"""
_NOT_ON_A_GPU = {"noisette", "pyright", "ruff"}  # the first is the checkout itself


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("pythons", nargs="*", default=["python3"], help="in the order in which they are tried")
    parser.add_argument("--wheels", type=Path, default=ROOT / "wheels", help="folder of wheels, where there is one")
    options = parser.parse_args()
    started = time.monotonic()
    if (found := python_with_cuda(options.pythons)) is None:
        sys.exit(f"No GPU: torch finds no CUDA device in any of {', '.join(options.pythons)}, so nothing was run.")
    python, facts = found
    if missing := missing_packages(facts["packages"]):
        print(f"torch {facts['torch']} of {python} finds a GPU; missing there: {', '.join(missing)}", flush=True)
        python = with_packages(python, facts["folders"], missing, options.wheels)
    left = MINUTES - (time.monotonic() - started) / 60
    command = [python, "-m", "benchmarks.gpu", "--device", "cuda", "--minutes", f"{left:.2f}"]
    sys.exit(subprocess.run(command, cwd=ROOT, env=environment(), check=False).returncode)


def environment() -> dict[str, str]:
    """The environment in which the checkout is found without being installed."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}


def python_with_cuda(pythons: list[str]) -> tuple[str, dict[str, list[str]]] | None:
    """The first Python whose torch finds a CUDA device, and what it has."""
    for name in pythons:
        if (python := shutil.which(name)) is None:
            continue
        facts = facts_of(python)
        if facts is not None and facts["cuda"]:
            return python, facts
    return None


def facts_of(python: str) -> dict[str, list[str]] | None:
    """What a Python has; none if it has no torch."""
    try:
        done = subprocess.run([python, "-c", _FACTS], capture_output=True, text=True, timeout=120, check=False)
        return json.loads(done.stdout) if done.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired, json.JSONDecodeError):
        return None


def missing_packages(present: list[str]) -> list[str]:
    """The requirements of noisette, its tests and its benchmarks that are not among these packages."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    names = {normal(name) for name in present}
    lines = [*project["dependencies"], *extras["cli"], *extras["test"], *extras["bench"]]
    wanted = {normal(line): line for line in lines}
    return [line for name, line in wanted.items() if name not in names | _NOT_ON_A_GPU]


def normal(requirement: str) -> str:
    """The normalised name of the package that a requirement names."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    return re.sub(r"[-_.]+", "-", match[0]).lower() if match else requirement


def with_packages(python: str, folders: list[str], missing: list[str], wheels: Path) -> str:
    """A Python that has what this one has and as many of the missing packages as can be installed.

    ``--system-site-packages`` alone would not do: where this Python belongs to a virtual environment itself, a new one
    sees the packages of the system's Python and not of this one. So its folders are named in a ``.pth`` file.
    """
    venv = [python, "-m", "venv", "--clear", "--without-pip", "--system-site-packages", str(VENV)]
    if subprocess.run(venv, check=False).returncode != 0:
        print(f"  {python} makes no virtual environment, so nothing was installed", flush=True)
        return python
    own = str(VENV / "bin" / "python")
    asked = [own, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"]
    place = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    (Path(place) / "of_the_other_python.pth").write_text("\n".join(folders) + "\n", encoding="utf-8")
    end = time.monotonic() + _INSTALL_SECONDS
    if given := sorted(map(str, wheels.glob("*.whl"))):
        # All of them, and nothing that they ask for: what is there already may be of another version.
        print(f"  wheels of {wheels}: {pip(own, ['--no-index', '--no-deps', *given], end)}", flush=True)
        facts = facts_of(own)
        missing = missing_packages(facts["packages"]) if facts else missing
    for requirement in missing:  # one at a time, so that what is nowhere to be had keeps nothing else from it
        print(f"  {requirement}: {pip(own, ['--only-binary', ':all:', requirement], end)}", flush=True)
    return own


def pip(python: str, arguments: list[str], end: float) -> str:
    """Install something until this time at the latest, and say what came of it."""
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    limits = ["--timeout", "8", "--retries", "1"]
    try:
        done = subprocess.run(
            [*command, *limits, *arguments],
            capture_output=True,
            text=True,
            timeout=max(end - time.monotonic(), 1),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "not installed, because the time was up"
    if done.returncode == 0:
        return "installed"
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["no message"]
    return f"not installed ({errors[-1]}); it is taken from the folder wheels/ where its wheel lies there"


if __name__ == "__main__":
    main()
