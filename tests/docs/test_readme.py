"""The Python code of the README and of the pages beside it runs, and prints what its comments state."""

import json
import re
import statistics
from pathlib import Path

import pytest

from benchmarks.steps.methods import is_peer

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
NAMES = ("index", "models-and-clipping", "privacy-accounting", "how-to/compile-the-step")
PAGES = (README, *(ROOT / "docs" / f"{name}.md" for name in NAMES))
BLOCKS = [
    (page.stem, number, block)
    for page in PAGES
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
]


def promised(block: str) -> list[str]:
    """The output that the comments behind ``print`` state, up to an ellipsis."""
    return [said.strip().rstrip(".") for said in re.findall(r"^\s*print\(.*\)  # (.*)$", block, re.MULTILINE)]


@pytest.mark.parametrize("block", [pytest.param(block, id=f"{page}-{number}") for page, number, block in BLOCKS])
def test_a_block_prints_what_its_comments_state(block, capsys):
    exec(compile(block, "a block of the documentation", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert promised(block)
    for line, said in zip(printed, promised(block), strict=True):
        assert line.startswith(said)


def test_every_page_has_a_block():
    assert {page for page, _, _ in BLOCKS} == {page.stem for page in PAGES}


def test_links_lead_to_files_and_headings():
    pages = [*ROOT.glob("*.md"), *(page for folder in ("docs", "papers") for page in (ROOT / folder).rglob("*.md"))]
    broken = []
    for page in pages:
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            path, _, heading = link.partition("#")
            target = page.parent / path if path else page
            if not link.startswith("http") and not (target.exists() and (not heading or heading in headings(target))):
                broken.append(f"{page.relative_to(ROOT)}: {link}")
    assert broken == []


def headings(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_numbers_of_the_readme_stand_in_the_committed_results():
    text = " ".join(README.read_text(encoding="utf-8").split())
    steps = {cell["model"]: cell["methods"] for cell in read("benchmarks/results/targets.json")["cells"]}
    for model, title in (("resnet18-cifar", "ResNet-18"), ("lstm", "LSTM")):
        peers = min(row["ratio"] for name, row in steps[model].items() if is_peer(name) and "ratio" in row)
        assert title in text
        assert f"{steps[model]['compiled']['ratio']:.2f} times" in text
        assert f"{peers:.2f}" in text
    assurance = read("docs/assurance/results.json")
    caught, audits = assurance["mutants"]["caught"], assurance["audits"]["ways"]
    assert f"{sum(caught.values())} of {len(caught)} planted faults" in text
    consistent = [audit for audit in audits if audit["verdict"] == "consistent"]
    assert f"{len(consistent)} of {len(audits)} audits" in text
    runs = [json.loads(line) for line in (ROOT / "experiments/results/mnist.jsonl").read_text().splitlines()]
    assert f"{statistics.median(run['test_accuracy'] for run in runs):.1%} on MNIST at epsilon 3" in text
    assert f"{statistics.median(run['seconds'] for run in runs):.0f} seconds" in text


def read(path: str) -> dict:
    return json.loads((ROOT / path).read_text(encoding="utf-8"))
