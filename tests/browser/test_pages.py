"""Pages in a real browser: no message on the console, no request to another server, nothing wider than the window."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.steps import results

sync_api = pytest.importorskip("playwright.sync_api", reason="the extra `browser` is not installed")

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium")
OFF = ("gpu", "background-networking", "component-update", "sync")
SWITCHES = ["--no-sandbox", *(f"--disable-{part}" for part in OFF)]
WINDOWS = [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]
PAGES = ["index.html", "reference/api.html", "reference/commands.html", "reference/refusals.html", "assurance.html"]
PAGES += ["reference/recipe-keys.html", "tutorials/1_first_network.html", "benchmarks.html"]

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium"),
    pytest.mark.filterwarnings("default"),
]


@pytest.fixture(scope="module")
def browser():
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


MADE_BY = {
    "report.html": "noisette train --data digits --epochs 1",
    "abadi-2016.html": "papers abadi-2016 --figure 2",
    "bench.html": "",
}


@pytest.mark.parametrize("name", MADE_BY)
def test_a_page_is_in_order(browser, name, tmp_path):
    """The report of a run, the page of a paper, and that of measurements."""
    page = tmp_path / "out" / name
    if command := MADE_BY[name].split():
        made = [sys.executable, "-m", *command, "--out", str(page.parent)]
        subprocess.run(made, check=True, capture_output=True, cwd=ROOT)
    else:
        page.parent.mkdir()
        page.write_text(results.page(results.read(ROOT / "benchmarks" / "results")))
    assert [problem for window in WINDOWS for problem in problems_of(browser, page.as_uri(), *window)] == []


def test_problems_are_found(browser, tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<p style='width: 3000px'>wide</p><img src='http://localhost:9/x.png'><script>console.error('no')</script>"
    )
    found = " ".join(problems_of(browser, bad.as_uri(), 390, "light"))
    assert all(part in found for part in ("console: no", "request: http://localhost:9/x.png", "in a window of 390"))


@pytest.mark.slow
def test_the_site_is_in_order(browser, tmp_path):
    for package in ("material", "mkdocstrings", "jupytext"):
        pytest.importorskip(package, reason="the extra `docs` is not installed", exc_type=ImportError)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=True)
    found = {(p, *window): problems_of(browser, (tmp_path / p).as_uri(), *window) for p in PAGES for window in WINDOWS}
    assert {place: problems for place, problems in found.items() if problems} == {}
