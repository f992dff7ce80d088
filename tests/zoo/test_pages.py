"""The pages of supported models and layers are those of the committed results."""

from __future__ import annotations

import pytest

from experiments.zoo_pages import DOCS, PAGES, page


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_that_of_the_results(name: str) -> None:
    assert (DOCS / name).read_text() == page(name), "write it anew: python -m experiments.zoo_pages"
