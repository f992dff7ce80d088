"""A warm microbatch reads nothing from the device and copies nothing to it, where that would make a GPU wait."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from captured_models import MODELS, entropy
from noisette.capture import step
from noisette.clipping import engines
from noisette.clipping.engines import BookKeeping, ReweightGP
from noisette.core import clip as norms
from noisette.core.clip import Engine
from noisette.run.per_example import PerExampleClip

READS = {
    *("_local_scalar_dense", "is_nonzero", "equal", "nonzero"),
    *("masked_select", "_unique2", "unique_dim", "lift_fresh"),
}


class HostReads(TorchDispatchMode):
    """Counts what would make a GPU wait: values read, sizes that depend on them, copies of numbers of the host."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if name in READS or (name, func._overloadname) == ("repeat_interleave", "Tensor"):
            self.found[name] += 1
        if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
            masks = [index for index in args[1] if index is not None and index.dtype in (torch.bool, torch.uint8)]
            self.found["a mask as an index"] += bool(masks)
        return func(*args, **(kwargs or {}))


LARGE = pytest.param("VGG, group norm", marks=pytest.mark.slow)
every_model = pytest.mark.parametrize("name", ["LeNet-5", LARGE, "Transformer encoder", "LSTM"])
every_engine = pytest.mark.parametrize("engine", [BookKeeping(), ReweightGP()], ids=lambda e: type(e).__name__)


@pytest.fixture
def never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (norms, step, engines):
        monkeypatch.setattr(module, "may_wait", lambda device: False)
    monkeypatch.setattr(torch, "_assert_async", lambda *arguments: None)  # reads the value, on a processor


@pytest.mark.usefixtures("never_waits")
@pytest.mark.parametrize("capture", ["eager", "graph"])
@every_model
@every_engine
def test_a_warm_microbatch_reads_nothing(name: str, engine: Engine, capture: Any) -> None:
    clip = PerExampleClip(MODELS[name].make(), 0.5, engine=engine, capture=capture)
    batches = [MODELS[name].batch(6) for _ in range(7)]
    for batch in batches[:5]:  # a graph is made, and compared in some of them
        clip.accumulate(entropy, **batch)
    with HostReads() as reads:
        for batch in batches[5:]:
            clip.accumulate(entropy, **batch)
    assert not +reads.found


@pytest.mark.usefixtures("never_waits")
@every_model
@every_engine
@pytest.mark.parametrize("bad", [[1, 4], [0, 1, 2, 3, 4, 5]], ids=str)
@pytest.mark.parametrize("capture", ["eager", "graph"])
def test_an_example_that_is_not_finite_adds_nothing(name: str, engine: Engine, bad: list[int], capture: Any) -> None:
    """Whatever it holds, the sum is the same bit for bit, and that of the others."""
    torch.manual_seed(0)
    model, (x, y) = MODELS[name].make().double(), MODELS[name].batch(6).values()
    x = x.double() if x.is_floating_point() else x
    sums, clip = [], PerExampleClip(model, 0.5, engine=engine, capture=capture)
    for spoiled in (1.0, float("nan"), float("inf")):  # the first time, a graph is made
        factor = torch.ones(6, dtype=torch.float64)
        factor[bad] = spoiled
        for _ in range(2):
            clip.accumulate(lambda model, x, y, f: entropy(model, x, y) * f, x, y, factor)
        sums.append(torch.cat([g.flatten() for g in clip.pop_sums()[0].grads]))
    sums = sums[1:]
    assert torch.equal(*sums)
    good = [k for k in range(6) if k not in bad]
    if not good:
        assert not sums[0].any()
        return
    alone = PerExampleClip(model, 0.5, capture="eager")
    for _ in range(2):
        alone.accumulate(entropy, x[good], y[good])
    torch.testing.assert_close(sums[0], torch.cat([g.flatten() for g in alone.pop_sums()[0].grads]))
