"""Pages in a real browser: no message on the console, no request to another server, nothing wider than the window."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.steps import results

sync_api = pytest.importorskip("playwright.sync_api", reason="the extra `browser` is not installed")

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium")
SWITCHES = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WINDOWS = [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]
PAGES = ["index.html", "reference/api.html", "reference/commands.html", "reference/refusals.html", "assurance.html"]
PAGES += ["reference/recipe-keys.html", "tutorials/1_first_network.html", "benchmarks.html"]

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium"),
    pytest.mark.filterwarnings("default"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[sync_api.Browser]:
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        yield opened
        opened.close()


def problems_of(browser: sync_api.Browser, address: str, width: int, scheme: str) -> list[str]:
    """What is wrong with a page in a window of this width and colour scheme.

    A screenshot is kept where ``NOISETTE_SCREENSHOTS`` names a folder.
    """
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    found: list[str] = []
    page.on("console", lambda message: found.append(f"console: {message.text}") if message.type == "error" else None)
    page.on("pageerror", lambda error: found.append(f"error: {error}"))
    page.on("request", lambda request: found.append(f"request: {request.url}") if is_remote(request.url) else None)
    page.goto(address, wait_until="load")
    inner = page.evaluate("document.documentElement.scrollWidth")
    if inner > width:
        found.append(f"{inner} pixels in a window of {width}: {page.evaluate(WIDEST)}")
    if folder := os.environ.get("NOISETTE_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{Path(address).stem}-{width}-{scheme}.png")
    page.close()
    return found


WIDEST = """[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1)
    .slice(0, 3).map(e => e.tagName + '.' + e.className + ' ' + e.textContent.slice(0, 60)).join('; ')"""


def is_remote(url: str) -> bool:
    return not url.startswith(("file:", "data:", "blob:", "about:"))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    command = [sys.executable, "-m", "noisette", "train", "--data", "digits", "--epochs", "1", "--out", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "report.html"


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("papers")
    command = [sys.executable, "-m", "papers", "abadi-2016", "--figure", "2", "--out", str(folder)]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    return folder / "abadi-2016.html"


def test_a_report_is_in_order(browser: sync_api.Browser, report: Path) -> None:
    assert [problem for window in WINDOWS for problem in problems_of(browser, report.as_uri(), *window)] == []


def test_the_page_of_a_paper_is_in_order(browser: sync_api.Browser, figures: Path) -> None:
    assert [problem for window in WINDOWS for problem in problems_of(browser, figures.as_uri(), *window)] == []


def test_the_page_of_measurements_is_in_order(browser: sync_api.Browser, tmp_path: Path) -> None:
    measured = tmp_path / "bench.html"
    measured.write_text(results.page(results.read(ROOT / "benchmarks" / "results")))
    assert [problem for window in WINDOWS for problem in problems_of(browser, measured.as_uri(), *window)] == []


def test_problems_are_found(browser: sync_api.Browser, tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<p style='width: 3000px'>wide</p><img src='http://localhost:9/x.png'><script>console.error('no')</script>"
    )
    found = " ".join(problems_of(browser, bad.as_uri(), 390, "light"))
    assert all(part in found for part in ("console: no", "request: http://localhost:9/x.png", "in a window of 390"))


@pytest.mark.slow
def test_the_site_is_in_order(browser: sync_api.Browser, tmp_path: Path) -> None:
    for package in ("material", "mkdocstrings", "jupytext"):
        pytest.importorskip(package, reason="the extra `docs` is not installed", exc_type=ImportError)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=True)
    found = {}
    for place in PAGES:
        for width, scheme in WINDOWS:
            problems = problems_of(browser, (tmp_path / place).as_uri(), width, scheme)
            if problems:
                found[place, width, scheme] = problems
    assert found == {}
