"""The programs of the page on other kinds of models run, one after the other, and each learns something."""

from typing import Any

import pytest
import torch

from page_code import blocks, names_of

FIRST, *PROGRAMS = blocks("docs/how-to/other-kinds-of-models.md")


def generates(names: dict[str, Any]) -> bool:
    return float((names["made"].mean(0) - torch.tensor([2.0, -1.0])).norm()) < 1


def classifies_graphs(names: dict[str, Any]) -> bool:
    found = names["graphs"](names["adjacency"], names["nodes"]).argmax(1)
    return float((found == names["dense"]).float().mean()) > 0.75


def predicts_survival(names: dict[str, Any]) -> bool:
    """Also against the definition: the mean of the loss, computed record by record."""
    after_one = names["survival"][:, 3]
    logits, total = names["hazards"](names["risk"]).double(), 0.0
    for row, last, seen in zip(logits[:20], names["interval"], names["observed"], strict=False):
        survived = (1 - row.sigmoid()).log()
        total -= float(survived[: int(last)].sum() + (row[last].sigmoid().log() if seen else survived[last]))
    columns = names["risk"][:20], names["interval"][:20], names["observed"][:20]
    assert float(names["loss"](names["hazards"], *columns)) == pytest.approx(total, rel=1e-5)
    is_calibrated = abs(float(after_one.mean() - (names["times"] > 1).float().mean())) < 0.1
    return is_calibrated and float(torch.corrcoef(torch.stack([names["risk"][:, 0], after_one]))[0, 1]) < -0.7


def orders_pairs(names: dict[str, Any]) -> bool:
    return float((names["reward"](names["better"]) > names["reward"](names["worse"])).float().mean()) > 0.8


def finds_answers(names: dict[str, Any]) -> bool:
    """A guess is right once in a thousand."""
    found = (names["encoder"](names["questions"]) @ names["answers"].T).argmax(1)
    return float((found == torch.arange(1000)).float().mean()) > 0.03


def predicts_rents(names: dict[str, Any]) -> bool:
    """The worse of the two is the spread of the rents."""
    return float((names["predicted"] - names["rent"]).square().mean().sqrt()) < float(names["rent"].std())


LEARNED = (generates, classifies_graphs, predicts_survival, orders_pairs, finds_answers, predicts_rents)


@pytest.mark.parametrize(("program", "learned"), [*zip(PROGRAMS, LEARNED, strict=True)])
def test_a_program_learns(program, learned):
    torch.manual_seed(0)
    names = names_of(FIRST, program)
    with torch.no_grad():
        assert learned(names)
