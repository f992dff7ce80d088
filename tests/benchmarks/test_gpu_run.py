"""``make gpu`` takes every part, also on a processor with tiny sizes; what ends it is a result like any other."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import gpu, gpu_environment
from benchmarks.__main__ import _experiments
from benchmarks.gpu import PARTS, Part, Place, outcome, summary
from benchmarks.steps.precision import PRECISIONS


@pytest.mark.slow
def test_every_part_is_taken_on_a_processor(tmp_path):
    with pytest.raises(SystemExit) as ended:
        gpu.main(["--device", "cpu", "--smoke", "--out", str(tmp_path)])
    written = json.loads((tmp_path / "gpu-cpu.json").read_text())
    assert ended.value.code is False, written
    parts = written["parts"]
    assert list(parts) == ["tests", "noise", "fig5, bfloat16", "train"]
    assert parts["tests"]["counts"]["passed"] >= 5
    assert parts["tests"]["not passed"] == []
    assert parts["noise"]["measured"][0] == {"bits are those of the processor": True}
    assert [row["values"] for row in parts["noise"]["measured"][1:]] == [1000, 100_000]
    assert parts["fig5, bfloat16"]["report"]["dtype"] == "bfloat16"
    assert parts["fig5, bfloat16"]["failed methods"] == []
    assert parts["fig5, bfloat16"]["not installed"] == ["not-installed"]
    assert set(parts["fig5, bfloat16"]["report"]["cells"][0]["methods"]) == {"plain", "BookKeeping"}
    assert "model.safetensors" in parts["train"]["files"]
    assert (tmp_path / "gpu-cpu" / "bfloat16" / "fig5.svg").exists()


def test_without_a_gpu_one_sentence_and_an_error(capsys):
    if gpu.torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(SystemExit, match=r"^No GPU: torch finds no CUDA device, so nothing was run\.$"):
        gpu.main([])
    script = Path(gpu_environment.__file__)
    done = subprocess.run([sys.executable, script, sys.executable], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == f"No GPU: torch finds no CUDA device in any of {sys.executable}, so nothing was run.\n"


def test_a_part_that_takes_too_long_is_cut_off_and_keeps_what_it_wrote(tmp_path):
    (tmp_path / "slow.py").write_text("import time\nprint('{\"a\": 1}', flush=True)\ntime.sleep(60)\n")

    def run(where: Place, seconds: float) -> gpu.Result:
        return where.command("slow", seconds=seconds)

    start = time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "ROOT", tmp_path)
        result = outcome(Part("slow", 3.0, run), Place("cpu", True, tmp_path), time.monotonic() + 60)
    assert time.monotonic() - start < 20
    assert (result["ended"], gpu._lines_of_json(result["output"])) == ("cut off", [{"a": 1}])
    assert not gpu.is_passed(result)
    assert summary(result).startswith("cut off after 3 s")


def test_the_commands_of_all_parts_are_understood(tmp_path, monkeypatch):
    """Those that measure: each experiment has the model, and each method that is there is known."""
    given: list[tuple[str, ...]] = []

    def command(where: Place, *arguments: str, seconds: float) -> gpu.Result:
        given.append(arguments)
        return {"ended": 0, "wall": 0.0, "output": ""}

    monkeypatch.setattr(Place, "command", command)
    for part in PARTS:
        part.run(Place("cuda", False, tmp_path), part.seconds)
    for arguments in [each for each in given if each[0] == "benchmarks"]:
        options = dict(zip(arguments[1::2], arguments[2::2], strict=True))
        chosen = _experiments(
            options["--experiments"], options.get("--models"), options["--methods"], None, None, fastdp=False
        )
        assert all(experiment.cells for experiment in chosen.values())
        assert options["--dtype"] in PRECISIONS
    assert len(given) == len(PARTS)
    assert not (tmp_path / "random.npz").exists()


def test_missing_packages_are_the_requirements_that_are_not_there():
    everything = gpu_environment.missing_packages([])
    assert {"cryptography", "typer", "opacus", "hypothesis"} <= set(map(gpu_environment.normal, everything))
    assert not any(line.startswith(("noisette", "ruff", "pyright")) for line in everything)
    assert gpu_environment.missing_packages([gpu_environment.normal(line) for line in everything]) == []
    assert gpu_environment.missing_packages(["Dp_Accounting", "torch"]) == [
        line for line in everything if not line.startswith(("dp-accounting", "torch"))
    ]
