"""The sdist and the wheel build without a network, hold every file of the package, and the wheel runs by itself."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def done(*command: str | Path, folder: Path) -> str:
    ran = subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel that is built from the sdist."""
    for package in ("build", "hatchling"):
        pytest.importorskip(package, reason=f"{package} makes the wheel, and is not installed", exc_type=ImportError)
    folder = tmp_path_factory.mktemp("dist")
    done(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, folder=folder)
    [sdist], [wheel] = folder.glob("noisette-*.tar.gz"), folder.glob("noisette-*.whl")
    assert sdist.stat().st_size < 10e6
    with tarfile.open(sdist) as packed:
        assert not [name for name in packed.getnames() if name.split("/")[1] == ".ci"]
    return wheel


def test_wheel_holds_every_file_of_the_package(wheel):
    source = ROOT / "src"
    files = {path.relative_to(source).as_posix() for path in (source / "noisette").rglob("*") if path.is_file()}
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("noisette/")}
    assert packed == {name for name in files if "__pycache__" not in name}


def test_wheel_runs_in_a_fresh_environment(wheel, tmp_path):
    """Its dependencies are those of this Python; its own files are those of the wheel."""
    done(sys.executable, "-m", "venv", "--without-pip", tmp_path / "fresh", folder=tmp_path)
    python = tmp_path / "fresh" / "bin" / "python"
    install = ("install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check")
    done(sys.executable, "-m", "pip", "--python", python, *install, wheel, folder=tmp_path)
    [packages] = (tmp_path / "fresh").glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    assert "Start with: noisette train" in done(python.with_name("noisette"), "--help", folder=tmp_path)
    place = done(python, "-c", "import noisette; print(noisette.__file__)", folder=tmp_path)
    assert Path(place.strip()).is_relative_to(tmp_path)
