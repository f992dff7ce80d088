"""The page and the list of supported models are those of the committed results, and none is left out."""

import json
from collections import Counter

from experiments.zoo import measured
from experiments.zoo_pages import LIST, PAGE, REASONS, as_list, as_page, counts, four, in_readme, reason_of, rows


def test_page_and_list_are_those_of_the_results() -> None:
    models = rows()
    assert LIST.read_text() == as_list(models), "write it anew: python -m experiments.zoo_pages"
    assert PAGE.read_text() == as_page(PAGE.read_text(), models), "write it anew: python -m experiments.zoo_pages"
    assert as_page(PAGE.read_text(), models[1:]) != PAGE.read_text()


def test_every_model_that_was_tried_is_listed_and_counted() -> None:
    tried, listed = measured(), json.loads(LIST.read_text())
    assert sorted(f"{row['library']}/{row['name']}" for row in listed) == sorted(tried)
    outcomes = Counter(row["result"].partition(",")[0] for row in listed)
    assert outcomes == Counter(result["outcome"] for result in tried.values())
    assert sum(four(rows())) + outcomes["wrong"] + outcomes["random"] + outcomes["crashed"] == len(tried)
    assert f"**{len(tried):,} models and layers** were tried" in counts(rows())


def test_the_readme_has_the_four_numbers() -> None:
    assert in_readme(rows()) in " ".join((PAGE.parents[1] / "README.md").read_text().split())


def test_each_reason_is_met() -> None:
    failed = [result["message"] for result in measured().values() if result["outcome"] == "not built"]
    assert set(REASONS) == {reason_of(message) for message in failed}
    assert reason_of("ImportError: Dinat requires the natten library") == "another library is not installed"
