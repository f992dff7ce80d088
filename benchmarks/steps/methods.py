"""The measured methods by name: plain training, noisette, one example after another, and peers."""

from __future__ import annotations

from benchmarks.steps import peer_fastdp, peer_opacus, plain, private, whole_run
from benchmarks.steps.sgd import Method
from noisette.clipping import engines

ENGINES = ("BookKeeping", "ReweightGP", "PerExampleLoop", "Vmap")
OURS = ("run", "run-eager", "compiled", "captured", *ENGINES)  # those that clip, and so train any model
PLAIN = ("plain", "plain-compiled")
FASTDP = tuple(peer_fastdp.METHODS)
METHODS: dict[str, Method] = {
    "plain": plain.plain,
    "plain-compiled": plain.plain_compiled,
    "compiled": private.compiled(),
    "captured": private.captured(),
    **{name: private.by_engine(getattr(engines, name)) for name in ENGINES},
    "Clipless": private.clipless,
    "nxBP": plain.nxbp,
    **whole_run.METHODS,
    **peer_opacus.methods(),
    **peer_fastdp.METHODS,
}


def is_peer(name: str) -> bool:
    """Whether a method is of another library."""
    return name.startswith(("Opacus", "fastDP"))
