"""All that is measured and tested on a GPU, in at most nine minutes: what ``make gpu`` runs.

    python -m benchmarks.gpu [--device cuda] [--minutes 9] [--smoke] [--out benchmarks/results]

Writes ``gpu-NAME.json`` anew after each part, and the figures of ``python -m benchmarks`` in the folder ``gpu-NAME``.
A part that is cut off has as its result what it had written by then. ``--smoke`` takes every part with tiny sizes, also
on a machine without a GPU. The exit code is 0 if every part was run and passed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.steps.methods import METHODS
from benchmarks.steps.report import hardware

ROOT = Path(__file__).resolve().parents[1]
Result = dict[str, Any]
_GRACE = 5.0  # seconds between being asked to stop and being stopped
_LEAST = 3.0  # seconds with which a part is begun
_TAIL = 4000  # characters of the output that are kept
# A line of `pytest -v`: the test and its outcome, and the other way round where several processes run them.
_OUTCOME = re.compile(
    r"^(?:(tests/\S+::.*?) )?(?:\[gw\d+\] \[ *\d+%\] )?(PASSED|FAILED|ERROR|SKIPPED)(?: (tests/\S+::.*?))?"
    r"(?: \(.*\))?\s*(?:\[ *\d+%\])?\s*$",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Place:
    """Where the parts are run, and where their files go."""

    device: str
    is_smoke: bool
    folder: Path

    def command(self, *arguments: str, seconds: float) -> Result:
        """Run a module of Python, for so many seconds at most: its output, and whether it came to its end."""
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
            "PYTHONUNBUFFERED": "1",
        }
        start = time.monotonic()
        log = self.folder / "output.txt"
        with log.open("w", encoding="utf-8") as stream:
            process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                stdout=stream,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env=environment,
                start_new_session=True,
            )
            try:
                code = _ended(process, seconds)
            finally:
                if process.poll() is None:  # this one was interrupted
                    os.killpg(process.pid, signal.SIGKILL)
        output = log.read_text(encoding="utf-8", errors="replace")
        log.unlink()
        return {"command": " ".join(arguments), "ended": code, "wall": time.monotonic() - start, "output": output}


def _ended(process: subprocess.Popen[bytes], seconds: float) -> int | str:
    """The exit code, or that the process was stopped: by Ctrl-C, at which ``noisette`` keeps what it has."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        for signalled, wait in ((signal.SIGINT, _GRACE), (signal.SIGKILL, None)):
            os.killpg(process.pid, signalled)
            try:
                process.wait(wait)
                break
            except subprocess.TimeoutExpired:
                continue
    return "cut off"


@dataclass(frozen=True)
class Part:
    """A part of the whole: its name, the seconds that it gets at most, and what it does with them."""

    name: str
    seconds: float
    run: Callable[[Place, float], Result]


def tests(place: Place, seconds: float) -> Result:
    """The tests marked ``gpu``, by name: passed, failed, or skipped."""
    if find_spec("pytest") is None:
        return {"error": "pytest is not installed"}
    chosen = ["-k", "noise and cpu"] if place.device == "cpu" else ["-m", "gpu"]
    at_once = ["-n", "4", "--dist", "worksteal"] if place.device == "cuda" and find_spec("xdist") else []
    without = ["-p", "no:cacheprovider", "-p", "no:benchmark"]  # which warns beside others, and warnings are errors
    result = place.command("pytest", "tests/gpu", "-v", "--tb=short", *without, *at_once, *chosen, seconds=seconds)
    found = _OUTCOME.findall(result["output"])
    outcomes = {(before or after).strip(): outcome.lower() for before, outcome, after in found if before or after}
    counts = {kind: list(outcomes.values()).count(kind) for kind in ("passed", "failed", "error", "skipped")}
    not_passed = [name for name, outcome in outcomes.items() if outcome != "passed"]
    return _kept(result) | {"counts": counts, "not passed": not_passed}


def noise(place: Place, seconds: float) -> Result:
    """Time of the noise by the number of values."""
    values = "1000,100000" if place.is_smoke else "1000000,100000000,1000000000"
    result = place.command("benchmarks.noise", "--device", place.device, "--values", values, seconds=seconds)
    return _kept(result) | {"measured": _lines_of_json(result["output"])}


def bench(
    experiment: str, methods: Sequence[str], dtype: str = "float32", model: str | None = None
) -> Callable[[Place, float], Result]:
    """An experiment of ``python -m benchmarks`` in this precision, by those of the methods that are installed."""
    there = [name for name in methods if name in METHODS]

    def run(place: Place, seconds: float) -> Result:
        size = ["--rounds", "1", "--batch", "2", "--models", "mlp"] if place.is_smoke else ["--rounds", "5"]
        only = ["--models", model] if model and not place.is_smoke else []
        out = place.folder / "-".join([dtype, *([model] if model else [])])
        result = place.command(
            *("benchmarks", "--device", place.device, "--experiments", experiment, "--dtype", dtype),
            *("--methods", ",".join(there), *only, *size, "--seconds", "1.5", "--out", str(out)),
            seconds=seconds,
        )
        file = out / f"{experiment}.json"
        report = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
        failed = [
            f"{cell['title']}: {name}: {row['error']}"
            for cell in (report["cells"] if report else [])
            for name, row in cell["methods"].items()
            if "error" in row
        ]
        absent = [name for name in methods if name not in METHODS]
        return _kept(result) | {"report": report, "failed methods": failed, "not installed": absent}

    return run


def train(place: Place, seconds: float) -> Result:
    """A run of ``noisette train`` on CIFAR-10, or on random numbers in its shape where it is not on this machine."""
    data = ["--data", "cifar10"]
    note = "CIFAR-10"
    if place.is_smoke or not _has_cifar10():
        note = "random numbers in the shape of CIFAR-10, which is not on this machine"
        file = place.folder / "random.npz"
        records = 64 if place.is_smoke else 50_000
        generator = np.random.default_rng(0)
        images, labels = generator.integers(0, 256, (records, 3, 32, 32), np.uint8), np.arange(records) % 10
        np.savez(file, x_train=images, y_train=labels, x_test=images[:1000], y_test=labels[:1000])
        data = ["--data", str(file), "--classes", "10", "--size", str(records)]
    size = ["--batch-size", "16", "--epochs", "1"] if place.is_smoke else ["--batch-size", "1024", "--epochs", "2"]
    model = "linear" if place.is_smoke else "resnet-18-mod"
    out = place.folder / "train"
    result = place.command(
        *("noisette", "train", *data, "--model", model, "--epsilon", "8", "--delta", "1e-5", *size, "--out", str(out)),
        *(("--allow-large-delta",) if place.is_smoke else ()),
        seconds=seconds,
    )
    (place.folder / "random.npz").unlink(missing_ok=True)
    written = sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
    return _kept(result) | {"data": note, "files": written}


def _has_cifar10() -> bool:
    from noisette.data import files

    return any(folder.is_dir() and any(folder.iterdir()) for folder in files.folders("cifar10", None))


_LARGE = ("captured", "BookKeeping", "ReweightGP", "Opacus-hooks", "Opacus-ghost")
_PAPER = ("BookKeeping", "ReweightGP", "nxBP")
PARTS = (
    Part("tests", 130, tests),
    Part("noise", 20, noise),
    Part("large", 70, bench("large", _LARGE)),
    Part("large, bfloat16", 70, bench("large", _LARGE, "bfloat16")),
    Part("GPT-2 compiled", 90, bench("large", ("plain-compiled", "compiled"), "bfloat16", "gpt2")),
    Part("train", 50, train),
    Part("memory", 45, bench("memory", _LARGE)),
    *(Part(name, 30, bench(name, _PAPER)) for name in ("fig5", "fig7", "fig8", "fig9", "fig6")),
)
SMOKE = (
    Part("tests", 40, tests),
    Part("noise", 20, noise),
    Part("fig5, bfloat16", 30, bench("fig5", ("BookKeeping", "not-installed"), "bfloat16")),
    Part("train", 30, train),
)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("No GPU: torch finds no CUDA device, so nothing was run.")
    if options.device == "cpu" and not options.smoke:
        sys.exit("On a processor only --smoke is run; `python -m benchmarks --device cpu` measures it.")
    end = time.monotonic() + 60 * options.minutes
    machine = facts(options.device)
    name = re.sub(r"[^a-z0-9]+", "-", f"{machine['device']}".lower()).strip("-")
    place = Place(options.device, options.smoke, options.out.resolve() / f"gpu-{name}")
    place.folder.mkdir(parents=True, exist_ok=True)
    results: Result = {"machine": machine, "parts": {}}
    file = options.out / f"gpu-{name}.json"
    for part in SMOKE if options.smoke else PARTS:
        results["parts"][part.name] = outcome(part, place, end)
        file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        print(f"{part.name}: {summary(results['parts'][part.name])}", flush=True)
    sys.exit(any(not is_passed(result) for result in results["parts"].values()))


def facts(device: str) -> Result:
    """The machine, the versions, and what they can do."""
    found: Result = hardware(torch.get_num_threads(), device) | {"platform": platform.platform()}
    found["versions"] |= {name: version(name) for name in ("transformers", "triton") if find_spec(name)}
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        found |= {
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "capability": f"{properties.major}.{properties.minor}",
            "bytes": properties.total_memory,
            "multiprocessors": properties.multi_processor_count,
            "devices": torch.cuda.device_count(),
        }
    return found


def outcome(part: Part, place: Place, end: float) -> Result:
    """The result of a part, or why there is none."""
    seconds = min(part.seconds, end - time.monotonic() - _GRACE)
    if seconds < _LEAST:
        return {"error": "not run: no time was left"}
    try:
        return part.run(place, seconds)
    except Exception as error:  # the other parts are run all the same
        return {"error": f"{type(error).__name__}: {error}"}


def is_passed(result: Result) -> bool:
    """Whether a part came to its end, and nothing in it failed."""
    return result.get("ended") == 0


def summary(result: Result) -> str:
    """A part in one line."""
    if "error" in result:
        return result["error"]
    code = result["ended"]
    said = "done" if code == 0 else "cut off" if code == "cut off" else f"exit code {code}"
    counts = ", ".join(f"{count} {kind}" for kind, count in result.get("counts", {}).items() if count)
    failed = [f"failed: {line}" for line in result.get("failed methods", [])]
    return "; ".join([f"{said} after {result['wall']:.0f} s", *([counts] if counts else []), *failed])


def _kept(result: Result) -> Result:
    """The result with the end of the output alone."""
    return result | {"output": result["output"][-_TAIL:]}


def _lines_of_json(output: str) -> list[Any]:
    return [json.loads(line) for line in output.splitlines() if line.startswith("{") and line.endswith("}")]


if __name__ == "__main__":
    main()
