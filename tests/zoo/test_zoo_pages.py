"""The page and the list of supported models are those of the committed results, and none is left out."""

from __future__ import annotations

import json
from collections import Counter

from experiments.zoo import RESULTS
from experiments.zoo_pages import LIST, PAGE, REASONS, as_list, as_page, counts, reason_of, rows


def test_page_and_list_are_those_of_the_results() -> None:
    models = rows()
    assert LIST.read_text() == as_list(models), "write it anew: python -m experiments.zoo_pages"
    assert PAGE.read_text() == as_page(PAGE.read_text(), models), "write it anew: python -m experiments.zoo_pages"
    assert as_page(PAGE.read_text(), models[1:]) != PAGE.read_text()


def test_every_model_that_was_tried_is_listed_and_counted() -> None:
    tried = json.loads(RESULTS.read_text())
    listed = json.loads(LIST.read_text())
    assert sorted(f"{row['library']}/{row['name']}" for row in listed) == sorted(tried)
    outcomes = Counter(row["result"].partition(",")[0] for row in listed)
    assert outcomes == Counter(result["outcome"] for result in tried.values())
    assert f"**{len(tried):,} models and layers** were tried" in counts(rows())
    assert f"**{outcomes['not built']} could not be built.**" in counts(rows())


def test_each_reason_is_met() -> None:
    failed = [
        result["message"] for result in json.loads(RESULTS.read_text()).values() if result["outcome"] == "not built"
    ]
    assert set(REASONS) <= {reason_of(message) for message in failed}
    assert reason_of("ImportError: Dinat requires the natten library") == "another library is not installed"
