"""The process that compiles one graph: it reads a request from its parent, and writes a file.

python -m noisette.capture.compile_worker FILE
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # loads parts of torch that graphs need
from torch._inductor import config, standalone_compile

from noisette.capture.request import Request


def compile_to(request: Request, file: Path) -> None:
    """Compile the graph and write it to a file, which is there as a whole or not at all."""
    module, inputs = request.read()
    settings: Any = config
    examples: Any = inputs
    # Random numbers are drawn by the same generator, in the same order, as without compiling. Inductor's choice of
    # layouts would copy every factor of a convolution to channels-last and back.
    with torch.no_grad(), settings.patch(fallback_random=True, layout_optimization=False):
        artifact = standalone_compile(module, examples)
        unfinished = file.with_suffix(f".{os.getpid()}")
        artifact.save(path=str(unfinished), format="binary")
    unfinished.replace(file)


if __name__ == "__main__":
    compile_to(Request(sys.stdin.read()), Path(sys.argv[1]))
