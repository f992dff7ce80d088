"""Figures and tables of the speed of private steps, made from invented measurements."""

import pytest
import torch

from papers.lee_kifer_2020.figures import FIGURES
from papers.lee_kifer_2020.parts import PAPER
from papers.lee_kifer_2020.runs import Job, Run, Setting, captured_gain, read
from papers.run_file import RUNS

MLP = {"plain": 0.001, "nxBP": 0.1, "MultiLoss": 0.05, "ReweightGP": 0.004, "captured": 0.0025, "compiled": 0.002}


def test_gains_are_of_reweighting_and_of_the_quicker_of_captured_and_compiled():
    setting = Setting("fig7", "mlp", 128, None, tuple(MLP), threads=2)
    rows = {name: {"seconds": seconds, "each": [seconds] * 3} for name, seconds in MLP.items()}
    named = {"model": "mlp", "title": setting.cell.title, "batch": 128, "image": None, "target": None}
    run = Run(setting, named | {"methods": rows}, "A processor")
    assert captured_gain(run.measured) == pytest.approx(50)
    summary = PAPER.parts["table-summary"].section([run])
    [row] = [row for row in summary.rows if row[1] == "time of nxBP to ours, 2 hidden layers"]
    assert row[3:6] == ("25.0", "50.0", "3, 1 of 4 networks and sizes")
    [line] = [row for row in FIGURES[2].section([run]).rows if row[0] == "MLP"]
    assert line[3:] == ("1 ms", "100 ms", "50 ms", "4 ms", "", "2.5 ms", "2 ms", "94", "25.0", "50.0")


def test_a_cell_is_measured_by_the_benchmark_and_read_again(tmp_path):
    threads = torch.get_num_threads()
    setting = Setting("fig7", "mlp", 2, None, ("plain", "nxBP", "ReweightGP", "captured"), threads, rounds=1, limit=0.1)
    shares: list[float] = []
    Job(setting, 1.0).make({}, tmp_path / RUNS, lambda share, accuracy: shares.append(share))
    [run] = read(tmp_path / RUNS)
    assert run.setting == setting
    assert run.machine
    assert (shares, shares[-1]) == (sorted(shares), pytest.approx(1))
    assert all(row["seconds"] > 0 for row in run.measured["methods"].values())
    assert captured_gain(run.measured)
