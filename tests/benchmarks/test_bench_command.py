import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from benchmarks.__main__ import app
from command_line import refusal, succeeded

SMALL = ["--rounds", "1", "--threads", "1", "--batch", "4", "--models", "mlp", "--methods", "BookKeeping,nxBP"]


def bench(*arguments: str, out: Path) -> Result:
    return CliRunner().invoke(app, [*arguments, "--device", "cpu", "--out", str(out)])


def test_bench_writes_results_figures_and_page(tmp_path):
    done = succeeded(bench("--experiments", "targets,fig7,memory", *SMALL, out=tmp_path / "a" / "b"))
    drawn = {f"{name}.{suffix}" for name in ("targets", "fig7") for suffix in ("json", "svg")}
    assert {file.name for file in (tmp_path / "a" / "b").iterdir()} == drawn | {"bench.html"}
    [cell] = json.loads((tmp_path / "a" / "b" / "targets.json").read_text())["cells"]
    assert set(cell["methods"]) == {"plain", "BookKeeping", "nxBP"}
    assert "MLP, batch 4" in done.output
    assert "BookKeeping" in done.output


def test_all_unknown_names_are_listed_with_the_valid_ones(tmp_path):
    done = bench("--experiments", "fig4", "--models", "mlp,alexnet", "--methods", "magic", out=tmp_path / "out")
    refusal(done, "'fig4'", "fig5", "'alexnet'", "vgg11", "'magic'", "nxBP")
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch", "0"], "--batch as whole numbers from 1, such as 32,64, got '0'"),
        (["--rounds", "0"], "rounds >= 1, got rounds=0"),
        (["--fastdp", "nowhere"], "no folder fastDP in 'nowhere'; give --fastdp the folder of a checkout"),
        (["--methods", "fastDP-ghost"], "fastDP-ghost needs fastDP: give --fastdp the folder of a checkout"),
    ],
)
def test_wrong_numbers_are_errors(arguments, message, tmp_path):
    assert len(refusal(bench(*arguments, out=tmp_path / "out"), message).stderr.strip().splitlines()) == 1
