"""The site is built strictly, names every public name and every refusal, and asks no other server for anything."""

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import noisette
from noisette.training.recipe import DataSection, ModelSection, PrivacySection, TrainingSection

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for package in ("material", "mkdocstrings"):
        pytest.importorskip(package, reason="the extra `docs` is not installed", exc_type=ImportError)
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.slow
def test_public_names_commands_keys_and_refusals_are_those_of_the_source(site):
    page = (site / "reference/api.html").read_text()
    assert [name for name in noisette.__all__ if f'id="noisette.{name}"' not in page] == []
    assert "ledger price" in (site / "reference/commands.html").read_text()
    keys = (site / "reference/recipe-keys.html").read_text()
    sections = (DataSection, ModelSection, PrivacySection, TrainingSection)
    assert [field.name for section in sections for field in fields(section) if field.name not in keys] == []
    assert "other records than rank 0" in (site / "reference/refusals.html").read_text()


@pytest.mark.slow
def test_no_page_loads_anything_from_elsewhere(site):
    loads = re.compile(
        r"""(?:<(?:script|img|iframe)[^>]*\ssrc|<link[^>]*rel="?(?:stylesheet|preconnect|icon)"?[^>]*href)="?https?:"""
    )
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    assert [page.name for page in pages if loads.search(page.read_text())] == []
