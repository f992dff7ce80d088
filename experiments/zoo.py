"""Trains foreign models for one step and says on which the clipped sum is exact.

    python -m experiments.zoo [--library NAME] [--only PART] [--again OUTCOME] [--output FILE] [--times]

Each model runs in a process of its own, with a limit of processor time; results go into a file, from which a run goes
on. Classes that are no trainable model are listed there too, with the reason, and are not counted. With --times the
models that go one by one are timed instead, one after the other.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import signal
import time
import traceback
import warnings
from collections import Counter
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results" / "zoo.json"
LIBRARIES = {
    "torch": "experiments.zoo_torch",
    "transformers": "experiments.zoo_transformers",
    "peft": "experiments.zoo_adapters",
    "timm": "experiments.zoo_images",
}
LIMIT = 120.0  # seconds of a processor: how busy the machine is changes no result


def measured(path: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """What became of each model."""
    return json.loads(path.read_text())["models"]


def entries(library: str) -> dict[str, Any]:
    """The models of a library, by name; none where it is not installed."""
    try:
        module = importlib.import_module(LIBRARIES[library])
    except ImportError as error:
        print(f"{library}: not installed, {error}")
        return {}
    return {entry.name: entry for entry in module.entries()}


def left_out(library: str) -> dict[str, str]:
    """Classes of a library that are no trainable model, with the reason; none where it is not installed."""
    try:
        return importlib.import_module(LIBRARIES[library]).LEFT_OUT
    except ImportError:
        return {}


def _work(entry: Any, sender: Connection) -> None:
    from experiments.zoo_check import check

    signal.setitimer(signal.ITIMER_PROF, LIMIT)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    start = time.process_time()
    try:
        result = asdict(check(entry))
    except Exception:
        result = {"outcome": "crashed", "message": traceback.format_exc()[-800:]}
    sender.send({"library": entry.library, **result, "seconds": round(time.process_time() - start, 1)})


def run(todo: list[Any], output: Path, workers: int) -> None:
    """Check these models, so many at a time."""
    from experiments.zoo_check import check
    from experiments.zoo_torch import entries

    check(entries()[0])  # imports what a run needs, once for all processes
    context = multiprocessing.get_context("fork")
    running: dict[Any, tuple[Any, Connection, float]] = {}
    todo = list(todo)
    while todo or running:
        while todo and len(running) < workers:
            entry = todo.pop(0)
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(entry, sender), daemon=True)
            process.start()
            sender.close()
            running[process] = entry, receiver, time.monotonic()
        for process, (entry, receiver, start) in list(running.items()):
            late = time.monotonic() - start > 10 * LIMIT
            if process.is_alive() and not receiver.poll(0.05) and not late:
                continue
            try:
                result = receiver.recv() if receiver.poll() else {"outcome": "crashed", "message": "no result in time"}
            except EOFError:
                result = {"outcome": "crashed", "message": "the process ended, or no result in time"}
            if process.is_alive() and late:
                process.kill()
            process.join()
            del running[process]
            _write(output, entry, result)


def measure(todo: list[Any], output: Path) -> None:
    """How long each of these models takes, against a plain step of the same batch."""
    from experiments.zoo_check import times

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for entry in todo:
        found, held = times(entry), _read(output)
        held["models"][entry.name]["times a plain step"] = found
        _save(output, held)
        print(f"{entry.name:50}", *found.values(), flush=True)


def _write(output: Path, entry: Any, result: dict[str, Any]) -> None:
    held = _read(output)
    held["models"][entry.name] = {"library": entry.library, **result}
    _save(output, held)
    print(
        f"{entry.name:45} {result['outcome']:9} {result.get('trains')} {result.get('message', '')[:150]!r}", flush=True
    )


def _read(output: Path) -> dict[str, Any]:
    return json.loads(output.read_text()) if output.exists() else {"models": {}, "left out": {}}


def _save(output: Path, held: dict[str, Any]) -> None:
    """Write it; what is left out is no model."""
    models = {name: result for name, result in held["models"].items() if name not in held["left out"]}
    sorted_parts = {"models": dict(sorted(models.items())), "left out": dict(sorted(held["left out"].items()))}
    output.write_text(json.dumps(sorted_parts, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", choices=LIBRARIES, action="append")
    parser.add_argument("--only", default="", help="models with this in their name")
    parser.add_argument("--again", default="", help="models with one of these outcomes, such as refused,crashed")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--times", action="store_true", help="time the models that go one by one")
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    held = _read(options.output)
    known = held["models"]
    again = set(options.again.split(","))
    libraries = options.library or list(LIBRARIES)
    for library in libraries:
        held["left out"] |= left_out(library)
    _save(options.output, held)
    for library in libraries:
        if options.times:
            slow = {
                name for name, result in known.items() if options.only in name and result.get("way") == "one by one"
            }
            measure([entry for name, entry in entries(library).items() if name in slow], options.output)
            continue
        found = [
            entry
            for name, entry in entries(library).items()
            if options.only in name
            and (
                options.only
                or name not in known
                or known[name]["outcome"] in again
                or ("untrained" in again and known[name].get("trains") is False)
            )
        ]
        run(found, options.output, options.workers)
    print(Counter((result["outcome"], result.get("way", "")) for result in measured(options.output).values()))


if __name__ == "__main__":
    main()
