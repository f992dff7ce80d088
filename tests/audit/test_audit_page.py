"""The page on auditing your own training is correct: its code runs, and its tests pass and can fail."""

import re
import warnings
from typing import Any

import pytest

from noisette.audit import StepAudit, Verdict, audit_step
from page_code import blocks, names_of, text_of
from small_loop import scale_noise

PAGE = "docs/how-to/audit-your-own-training.md"
BLOCKS = blocks(PAGE)
BOUND, STEP, OPACUS, NEIGHBOURS, COST = range(5)


def ran(*numbers: int) -> dict[str, Any]:
    return names_of(*(BLOCKS[number] for number in numbers))


def test_the_test_of_a_bound_passes_and_fails_where_noise_is_missing(monkeypatch):
    test = ran(BOUND)["test_my_clipping_keeps_its_guarantee"]
    test()
    scale_noise(monkeypatch, 0.5)
    with pytest.raises(AssertionError, match="violation: one record moves the release"):
        test()


def test_the_step_by_hand_is_consistent_and_a_wrong_one_is_not():
    names = ran(BOUND, STEP)
    assert isinstance(names["audit"], StepAudit)
    assert names["audit"].certified_mu > 0.5
    unclipped = audit_step(
        lambda records: names["sigma"] * names["bound"] * names["torch"].randn(520) + records.sum(0),
        bound=2.0,
        noise_multiplier=1.0,
    )
    assert unclipped.verdict is Verdict.VIOLATION


def test_the_step_of_opacus_is_consistent():
    pytest.importorskip("opacus")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # opacus's own, about the safety of its noise among others
        ran(BOUND, STEP, OPACUS)


def test_neighbours_keep_the_bound_and_the_cost_is_the_stated_one():
    assert ran(BOUND, STEP, NEIGHBOURS, COST)["neighbours"].verdict is Verdict.CONSISTENT
    assert len(BLOCKS) == 1 + COST


def test_options_on_the_page_exist():
    import typer

    from noisette.cli import app

    known = {option for p in typer.main.get_command(app).commands["audit"].params for option in p.opts}
    assert set(re.findall(r"--[a-z][a-z-]+", text_of(PAGE))) <= known
