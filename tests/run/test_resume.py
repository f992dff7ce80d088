"""Runs that are saved and resumed: they end as if nothing had been, or sooner, and spend no more than was planned."""

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from model_cases import Forward
from noisette import AdaptiveClip, Ledger, PerExampleClip, PoissonGaussian, PrivacyError, PrivateRun, RdpAccountant
from noisette.accounting import atomic_files
from noisette.core.release import GaussianRelease
from small_loop import start, take_steps

SIZE = 60
X, Y = torch.randn(SIZE, 5, generator=torch.Generator().manual_seed(1)), torch.arange(SIZE) % 3
DECLARED: dict[str, Any] = {"expected_batch_size": 30, "steps": 200, "accountant": RdpAccountant()}
RULES: dict[str, dict[str, Any]] = {"flat": {"max_grad_norm": 0.7}, "adaptive": {"clipping": AdaptiveClip(0.7)}}
SGD, ADAMW = partial(torch.optim.SGD, lr=0.1, momentum=0.9), partial(torch.optim.AdamW, lr=0.01, amsgrad=True)
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {"momentum": SGD, "AdamW": ADAMW}


def small(width: int = 6) -> Any:
    """With a frozen layer, tied weights and a buffer."""
    first, hidden, out = nn.Linear(5, 5).requires_grad_(False), nn.Linear(5, width), nn.Linear(width, 3)
    parts = {"first": first, "hidden": hidden, "out": out, "again": hidden, "scale": torch.tensor(2.0)}
    return Forward(lambda m, x: m.out(torch.tanh(m.scale * m.again(m.first(x)))), **parts)


Pair = tuple[PerExampleClip, torch.optim.Optimizer]


def pair(model: nn.Module | None = None, optimizer: str = "momentum", rule: str = "flat") -> Pair:
    model = model if model is not None else small()
    trained = [p for p in model.parameters() if p.requires_grad]
    return PerExampleClip(model, **copy.deepcopy(RULES[rule])), OPTIMIZERS[optimizer](trained)


def begin(folder: Path, parts: Pair | None = None, ledger: Ledger | None = None, **changes: Any) -> PrivateRun:
    folder.mkdir(parents=True, exist_ok=True)
    clip, optimizer = parts or pair()
    ledger = ledger if ledger is not None else Ledger(folder / "ledger.jsonl", dataset="mine")
    return start(clip.model, (X, Y), optimizer=optimizer, clip=clip, ledger=ledger, **DECLARED | changes)


def go_on(folder: Path, parts: Pair | None = None, dataset: Any = (X, Y), **options: Any) -> PrivateRun:
    return PrivateRun.resume(folder / "saved", *(parts or pair()), dataset, accountant=RdpAccountant(), **options)


def crash(run: PrivateRun) -> None:
    """What the end of a process does: nothing is given back, and the lock is gone."""
    run.ledger.close()
    run.end()


def begun(folder: Path, parts: Pair | None = None, **changes: Any) -> None:
    """A run that was saved after three steps, and closed."""
    run = begin(folder, parts, **changes)
    with run.ledger, run:
        take_steps(run, steps=3)
        run.save(folder / "saved")


def state(parts: Pair) -> list[Tensor]:
    kept = [value.clone() for value in parts[0].model.state_dict().values()]
    for held in parts[1].state_dict()["state"].values():
        kept += [value.clone() for value in held.values() if isinstance(value, Tensor)]
    return [*kept, torch.tensor([*parts[0].state().values()])]


@pytest.mark.parametrize(("optimizer", "rule"), [("momentum", "flat"), ("AdamW", "adaptive")])
@pytest.mark.usefixtures("known_key")
def test_a_resumed_run_ends_where_it_would_have_ended(optimizer, rule, tmp_path):
    """To the last bit, with noise and sampling forced to be those of the run that was not cut."""
    model = small()
    whole, first = (pair(copy.deepcopy(model), optimizer, rule) for _ in range(2))
    with begin(tmp_path / "whole", whole, steps=8) as run:
        take_steps(run)
    run = begin(tmp_path / "cut", first, steps=8)
    with run.ledger, run:
        take_steps(run, steps=3)
        run.save(tmp_path / "cut" / "saved")
    second = pair(small(), optimizer, rule)
    with go_on(tmp_path / "cut", second) as run:
        assert (run.steps_taken, run.steps_lost, run.steps_left) == (3, 0, 5)
        take_steps(run)
    assert all(map(torch.equal, state(whole), state(second)))
    assert run.epsilon(delta=1e-5) == RdpAccountant().compose({run.event: 8}).epsilon(delta=1e-5)


def test_each_process_draws_noise_of_its_own(tmp_path):
    """The step that was lost and the one that takes its place are on the same weights; the same noise would tell."""
    begun(tmp_path, sampling_rate=1e-300)
    released = []
    for _ in range(3):
        run = go_on(tmp_path)
        next(run.batches())
        run.optimizer.step()
        released.append(run.bound.parameters["out.weight"].grad)
        crash(run)
    assert not torch.equal(released[0], released[1])
    assert not torch.equal(released[1], released[2])


def test_what_a_dead_process_reserved_is_lost(tmp_path):
    run = begin(tmp_path, steps=40)
    take_steps(run, steps=10)
    run.save(tmp_path / "saved")
    take_steps(run, steps=1)
    reserved = sum(run.ledger.events.values())
    crash(run)
    with go_on(tmp_path) as run:
        assert (run.steps_taken, run.steps_lost, run.steps_left) == (10, reserved - 10, 40 - reserved)
        assert run.steps_spent == sum(run.ledger.events.values()) == reserved > 11
        take_steps(run)
        with pytest.warns(UserWarning, match="this run is finished"):
            assert list(run.batches()) == []
    assert (run.steps_taken, run.steps_lost) == (50 - reserved, reserved - 10)
    assert run.ledger.events == {run.event: 40}


def test_steps_that_were_taken_after_the_run_was_saved_are_lost(tmp_path):
    run = begin(tmp_path, steps=20)
    with run.ledger, run:
        take_steps(run, steps=5)
        run.save(tmp_path / "saved")
        take_steps(run, steps=3)
    with go_on(tmp_path) as run:
        assert (run.steps_taken, run.steps_lost, run.steps_left) == (5, 3, 12)


def test_two_runs_from_one_checkpoint_add_up(tmp_path):
    begun(tmp_path, steps=20)
    with go_on(tmp_path) as run:
        take_steps(run, steps=4)
    with go_on(tmp_path) as run:
        assert (run.steps_taken, run.steps_lost, run.steps_left) == (3, 4, 13)
        take_steps(run)
    assert run.ledger.events == {run.event: 20}


def test_two_runs_at_once_are_refused(tmp_path):
    begun(tmp_path)
    with go_on(tmp_path), pytest.raises(PrivacyError, match="is open for writing elsewhere"):
        go_on(tmp_path)
    go_on(tmp_path).close()


def test_a_budget_is_that_of_everything_in_the_ledger(tmp_path):
    other, ledger = PoissonGaussian(0.4, 2.0), Ledger(tmp_path / "ledger.jsonl", dataset="mine")
    ledger.charge(other, 20)
    with ledger, begin(tmp_path, ledger=ledger, steps=20, noise_multiplier=None, epsilon=8.0, delta=1e-3) as run:
        alone = RdpAccountant().compose({run.event: 20}).epsilon(delta=1e-3)
        take_steps(run, steps=5)
        run.save(tmp_path / "saved")
    with go_on(tmp_path) as run:
        take_steps(run)
        assert 7.8 < run.epsilon(delta=1e-3) <= 8.0
    assert alone < 7


def test_a_release_that_breaks_off_is_paid_for_and_never_repeated(tmp_path, monkeypatch):
    """Its noise may stand in some gradients already; on another sum it would show the difference."""
    run = begin(tmp_path, sampling_rate=1e-300)
    next(run.batches())
    with monkeypatch.context() as patch:
        patch.setattr(GaussianRelease, "__call__", None)
        with pytest.raises(TypeError):
            run.optimizer.step()
    with pytest.raises(PrivacyError, match="needs a batch of its own"):
        run.optimizer.step()
    run.close()
    assert run.ledger.events == {run.event: 1}


def assert_refused(folder: Path, parts: Pair, error: Any, message: str, **options: Any) -> None:
    """Refused, and everything is as before: weights, optimizer, bound, hooks, ledger, lock."""
    before, hooks = state(parts), len(parts[0].model._forward_pre_hooks)
    groups = copy.deepcopy([{**group, "params": 0} for group in parts[1].param_groups])
    ledger = (folder / "ledger.jsonl").read_bytes() if (folder / "ledger.jsonl").exists() else None
    with pytest.raises(error, match=message):
        go_on(folder, parts, **options)
    assert all(map(torch.equal, before, state(parts)))
    assert groups == [{**group, "params": 0} for group in parts[1].param_groups]
    assert len(parts[0].model._forward_pre_hooks) == hooks
    assert not parts[1]._optimizer_step_pre_hooks
    if ledger is not None:
        assert (folder / "ledger.jsonl").read_bytes() == ledger
        Ledger(folder / "ledger.jsonl", dataset="mine").close()


def frozen(model: Any) -> Any:
    model.hidden.requires_grad_(False)
    return model


OTHERS: dict[str, tuple[Callable[[], Pair], str]] = {
    "another width": (lambda: pair(small(7)), r"hidden.weight: \(6, 5\) of torch.float32 in the checkpoint, \(7, 5\)"),
    "another type": (lambda: pair(small().double()), r"float32 in the checkpoint, .* of torch.float64 in the model"),
    "another layer": (lambda: pair(nn.Sequential(nn.Linear(5, 3))), "first.weight: in the checkpoint, but not in"),
    "other frozen parts": (lambda: pair(frozen(small())), "the optimizer held other parameters"),
    "another optimizer": (lambda: pair(optimizer="AdamW"), "the optimizer was SGD, not AdamW"),
    "another rule": (lambda: pair(rule="adaptive"), "another clipping rule"),
}


@pytest.mark.parametrize(("other", "message"), OTHERS.values(), ids=OTHERS)
def test_another_model_or_optimizer_or_bound_is_refused(other, message, tmp_path):
    begun(tmp_path)
    assert_refused(tmp_path, other(), ValueError, message)


@pytest.mark.parametrize("other", [(X + 1, Y), (X, Y.flip(0)), (X[1:], Y[1:]), X], ids=["x", "y", "fewer", "x alone"])
def test_other_records_are_refused(other, tmp_path):
    begun(tmp_path)
    assert_refused(tmp_path, pair(), ValueError, "not the one that the run began with", dataset=other)


def test_a_ledger_that_was_put_back_is_refused(tmp_path):
    """An older copy would have the steps since then for nothing."""
    run = begin(tmp_path)
    with run.ledger, run:
        take_steps(run, steps=5)
        older = (tmp_path / "ledger.jsonl").read_bytes()
        take_steps(run, steps=5)
        run.save(tmp_path / "saved")
    (tmp_path / "ledger.jsonl").write_bytes(older)
    assert_refused(tmp_path, pair(), PrivacyError, "is an older copy that misses steps")


def test_another_runs_ledger_is_refused(tmp_path):
    begun(tmp_path / "a")
    begun(tmp_path / "b", noise_multiplier=1.5)
    (tmp_path / "a" / "ledger.jsonl").write_bytes((tmp_path / "b" / "ledger.jsonl").read_bytes())
    assert_refused(tmp_path / "a", pair(), PrivacyError, "belongs to another run")


def test_a_checkpoint_does_not_choose_a_file_elsewhere_to_write_to(tmp_path):
    begun(tmp_path / "run")
    (tmp_path / "other").mkdir()
    (tmp_path / "run" / "ledger.jsonl").rename(tmp_path / "other" / "ledger.jsonl")
    (tmp_path / "run" / "ledger.jsonl").symlink_to(tmp_path / "other" / "ledger.jsonl")
    with pytest.raises(ValueError, match=r"names a ledger in another folder, .*other/ledger\.jsonl"):
        go_on(tmp_path / "run")
    with go_on(tmp_path / "run", ledger=tmp_path / "other" / "ledger.jsonl") as run:
        assert run.steps_taken == 3


def test_a_ledger_in_memory_cannot_be_gone_on_with(tmp_path):
    with begin(tmp_path, ledger=Ledger()) as run, pytest.raises(ValueError, match=r"PrivacyEngine, ledger=PATH"):
        run.save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    from noisette.run import checkpoint as checkpoint_file

    begun(tmp_path)
    kept = checkpoint_file.read(tmp_path / "saved")
    for wrong in ({"a": 1}, kept | {"steps_taken": -1}, kept | {"steps_taken": "3"}, kept | {"more": 1}):
        checkpoint_file.write(tmp_path / "saved", wrong)
        assert_refused(tmp_path, pair(), ValueError, "holds no checkpoint of a run")
    for name, value in (("steps", 0), ("run", ""), ("expected_batch_size", 0), ("event", {"mechanism": "?"})):
        checkpoint_file.write(tmp_path / "saved", kept | {"terms": kept["terms"] | {name: value}})
        assert_refused(tmp_path, pair(), ValueError, "holds no checkpoint of a run")
    beyond = kept["learned"] | {"state": kept["learned"]["state"] | {"state": {99: {"momentum_buffer": None}}}}
    for changed in ({"learned": {}}, {"learned": [1]}, {"learned": beyond}, {"ledger": 5}, {"bound": 1}):
        checkpoint_file.write(tmp_path / "saved", kept | changed)
        assert_refused(tmp_path, pair(), ValueError, "the checkpoint is altered")


def test_no_secret_and_no_record_is_written(tmp_path, known_key):
    begun(tmp_path)
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert known_key not in written
    assert known_key.hex().encode() not in written
    assert X[0].numpy().tobytes() not in written
    assert [path.stat().st_mode & 0o777 for path in tmp_path.rglob("*.*")] == [0o600] * 3


def test_the_ledger_is_on_the_disk_before_the_checkpoint_that_names_its_last_line(tmp_path, monkeypatch):
    run = begin(tmp_path)
    take_steps(run, steps=2)
    synced, sync = [], atomic_files.sync
    monkeypatch.setattr(atomic_files, "sync", lambda path: synced.append(path.name) or sync(path))
    run.save(tmp_path / "saved")
    assert synced.index("ledger.jsonl") < synced.index("checkpoint.safetensors.unfinished")
    run.close()
