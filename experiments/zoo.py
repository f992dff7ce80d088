"""Trains foreign models for one step and says on which the clipped sum is exact.

    python -m experiments.zoo [--library NAME] [--only PART] [--again OUTCOME] [--output FILE]

Each model runs in a process of its own, with a limit of time; results go into a file, from which a run goes on.
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
LIMIT = 90.0  # seconds


def entries(library: str) -> dict[str, Any]:
    """The models of a library, by name; none where it is not installed."""
    try:
        module = importlib.import_module(LIBRARIES[library])
    except ImportError as error:
        print(f"{library}: left out, {error}")
        return {}
    return {entry.name: entry for entry in module.entries()}


def _work(entry: Any, sender: Connection) -> None:
    from experiments.zoo_check import check

    signal.alarm(int(LIMIT))
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    start = time.perf_counter()
    try:
        result = asdict(check(entry))
    except Exception:
        result = {"outcome": "crashed", "message": traceback.format_exc()[-800:]}
    sender.send({"library": entry.library, **result, "seconds": round(time.perf_counter() - start, 1)})


def run(todo: list[Any], output: Path, workers: int) -> None:
    """Check these models, so many at a time."""
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
            late = time.monotonic() - start > LIMIT + 20
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


def _write(output: Path, entry: Any, result: dict[str, Any]) -> None:
    results = json.loads(output.read_text()) if output.exists() else {}
    results[entry.name] = {"library": entry.library, **result}
    text = json.dumps(dict(sorted(results.items())), indent=1)
    output.write_text(text + "\n")
    print(
        f"{entry.name:45} {result['outcome']:9} {result.get('trains')} {result.get('message', '')[:150]!r}", flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", choices=LIBRARIES, action="append")
    parser.add_argument("--only", default="", help="models with this in their name")
    parser.add_argument("--again", default="", help="models with one of these outcomes, such as refused,crashed")
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(options.output.read_text()) if options.output.exists() else {}
    again = set(options.again.split(","))
    for library in options.library or LIBRARIES:
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
    print(Counter(result["outcome"] for result in json.loads(options.output.read_text()).values()))


if __name__ == "__main__":
    main()
