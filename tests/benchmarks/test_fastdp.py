from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from benchmarks.steps import memory, peer_fastdp, sgd
from benchmarks.steps.cell import Cell, Settings
from benchmarks.steps.experiments import EXPERIMENTS
from benchmarks.steps.methods import FASTDP, METHODS


@pytest.mark.parametrize("name", FASTDP)
def test_it_is_imported_from_the_path_and_its_optimizer_takes_the_step(
    name: str, fastdp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not peer_fastdp.is_found()
    peer_fastdp.look_in(fastdp)
    assert peer_fastdp.is_found()
    cell = Cell("mlp", batch=4)
    model = cell.model("cpu")
    before = [p.detach().clone() for p in model.parameters()]
    step = METHODS[name](model, *cell.data("cpu"))
    step()
    step()
    moved = 2 * sgd.LEARNING_RATE * sgd.MAX_GRAD_NORM * sgd.NOISE_MULTIPLIER / 4
    for p, start in zip(model.parameters(), before, strict=True):
        torch.testing.assert_close(start - p.detach(), torch.full_like(p, moved), rtol=1e-3, atol=1e-6)
    assert sys.modules["fastDP"].__file__ == str(fastdp / "fastDP" / "__init__.py")
    assert capsys.readouterr().out == ""


def test_a_model_that_it_trains_in_part_is_an_error(fastdp: Path) -> None:
    peer_fastdp.look_in(fastdp)
    cell = Cell("rnn", batch=2)
    step = METHODS["fastDP-MixOpt"](cell.model("cpu"), *cell.data("cpu"))
    with pytest.raises(NotImplementedError, match=r"does not train recurrent\.weight_ih_l0, recurrent\.weight_hh_l0"):
        step()


def test_a_folder_without_it_is_refused_and_not_searched(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no folder fastDP in .* a checkout of fast-differential-privacy"):
        peer_fastdp.look_in(tmp_path)
    assert str(tmp_path) not in sys.path


def test_nothing_else_in_the_checkout_is_found_before_what_is_installed(fastdp: Path) -> None:
    (fastdp / "numpy.py").write_text("raise ImportError")
    peer_fastdp.look_in(fastdp)
    peer_fastdp.look_in(fastdp)
    assert sys.path[-1] == str(fastdp)
    assert sys.path.count(str(fastdp)) == 1


def test_experiments_that_compare_everything_take_it_in() -> None:
    assert set(FASTDP) <= set(EXPERIMENTS["targets"].with_fastdp().methods)
    assert set(FASTDP) <= set(EXPERIMENTS["memory"].with_fastdp().methods)
    assert EXPERIMENTS["fig6"].with_fastdp() == EXPERIMENTS["fig6"]
    assert not set(FASTDP) & set(EXPERIMENTS["targets"].methods)


@pytest.mark.slow
def test_a_fresh_process_finds_it_too(fastdp: Path) -> None:
    settings = Settings(rounds=1, threads=1, device="cpu", fastdp=fastdp)
    rows = memory.peak_memory(Cell("mlp", batch=8), ["fastDP-MixOpt"], settings, lambda part: None)
    assert set(rows["fastDP-MixOpt"]) == {"bytes"}
