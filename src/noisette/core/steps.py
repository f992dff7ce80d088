"""DP-SGD, algorithm 1 of Abadi et al. 2016, around the user's own model and optimizer.

1. Take a batch, each record with probability q           ``sampler.indices``        in ``DpSgd.batches``
2. Compute the gradient of each example                   ``trace.record_losses``    in ``DpSgd.accumulate``
3. Clip each to norm C and add them up                    ``clip.clip_and_sum``      by the engine of the clip
4. Add noise of std sigma C, divide by the batch size L   ``release.GaussianRelease``  before ``optimizer.step``
5. Take a step of descent                                 ``optimizer.step``, the user's own

The order of a step: the ledger, the batch, its gradients, the ledger again, the noise. A step is paid for before its
records are drawn, and its release before its noise is.
"""

from __future__ import annotations

import hashlib
import secrets
import sys
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, nullcontext
from typing import Any, NamedTuple, NoReturn, Protocol, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from noisette.core.batches import Batch, Fetch, OtherRankRanOut, Records
from noisette.core.loss import Loss, Microbatch
from noisette.core.noise import SecretKey
from noisette.core.release import GaussianRelease, GradientBound, Processes, digest_of
from noisette.errors import PrivacyError, first_few, warn


class Sampler(Protocol):
    """Draws the batches of a run: indices of the records in a step's batch, ascending; possibly none."""

    def indices(self, *, step: int) -> np.ndarray: ...


class StepAccount(Protocol):
    """Accounts for the steps of a run, as in a ledger: for this one, and perhaps some that follow, before its batch is
    drawn, and for a release before its noise is drawn; from there on it cannot be taken back.
    """

    reserved: int  # steps that are accounted for and not yet released

    def reserve(self, step: int, steps_left: int) -> None: ...
    def commit(self) -> None: ...


class Parts(NamedTuple):
    """What a run is put together from."""

    sampler: Sampler
    records: Records
    new_batch: Callable[..., Batch]  # of the drawn indices that this process loads, and what else a batch is told
    open_fetch: Callable[[int, torch.device | str | None, int | None], Fetch]  # workers, device, microbatches ahead
    release: GaussianRelease
    account: StepAccount
    ranks: Processes
    key: SecretKey
    # Lets hooks of the model draw for a whole batch, from the seed that it is given; what it returns ends that.
    hold_noise: Callable[[Callable[[], int]], Callable[[], None]] | None


class _Opened(NamedTuple):
    """What was true when the first records of a batch were read."""

    versions: list[int]  # of the parameters
    random: RandomStates
    let_go_of_noise: Callable[[], None]


class DpSgd:
    """The steps of DP-SGD around the user's own model and optimizer.

    A ``with`` block, ``close()``, the last step and the end of this object each remove its hooks from the optimizer. Of
    its planned ``steps``, ``steps_taken`` have moved the weights, and ``steps_lost`` were lost when a process crashed.
    """

    def __init__(
        self,
        bound: GradientBound,
        optimizer: Optimizer,
        parts: Parts,
        *,
        sampling_rate: float,
        expected_batch_size: float,
        steps: int,
        steps_taken: int = 0,
        steps_lost: int = 0,
    ) -> None:
        self.bound = bound
        self.optimizer = optimizer
        self.sampling_rate = sampling_rate
        self.expected_batch_size = expected_batch_size
        self.steps = steps
        self.steps_taken = self._first_step = steps_taken
        self.steps_lost = steps_lost
        self._sampler, self._records, self._new_batch, self._open_fetch = parts[:4]
        self._release, self._account, self._ranks, self._key, self._hold_noise = parts[4:]
        self._names = {id(p): name for name, p in bound.parameters.items()}
        frozen = {name: p for name, p in bound.model.named_parameters() if not p.requires_grad}
        self._weights = {**frozen, **bound.parameters}  # those that nobody may write within a batch
        self._batch: Batch | None = None  # drawn and not yet released
        self._opened: _Opened | None = None  # since the first records of this batch were read
        self._seed = 0  # of torch's generators within the batch
        self._secret: RandomStates | None = None  # of these generators, from which the next batch goes on
        self._written: list[str] = []  # parameters that somebody wrote within a batch: no step may follow
        self._detach = weakref.finalize(self, _hooks(self).close)
        self._detach.atexit = False
        _RUNS[optimizer] = weakref.ref(self)

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of the noise in units of the sensitivity."""
        return self._release.noise_multiplier

    @property
    def steps_spent(self) -> int:
        """Number of steps that count towards ``steps``: those taken and those lost."""
        return self.steps_taken + self.steps_lost

    @property
    def steps_left(self) -> int:
        """Number of steps that may follow."""
        return max(0, self.steps - self.steps_spent)

    # Line 1

    def batches(self, workers: int = 0, to: torch.device | str | None = None, ahead: int | None = None) -> Batches:
        """Line 1: the batches that remain, drawn as declared: Poisson batches unless others were.

        Each may be empty, and each needs one step. Of several ranks, each gets a part of each. Their ``len`` is the
        number of steps left, as for a progress bar; a finished run warns that it has none.

        Args:
            workers: processes that load records, for a picklable data set and a script with
                ``if __name__ == "__main__":``; with 0 this process does.
            to: a device that microbatches are copied to, on a stream of its own.
            ahead: microbatches that the thread (of columns alone) or each process loads ahead, also of later steps that
                are in the ledger by then; one by default, and none of rows in memory that are copied at once.

        Guarantee: no batch is drawn before its step is in the ledger, and no process gets the key.

        Raises:
            PrivacyError: a batch was left without ``optimizer.step()``.
            TypeError, ValueError: ``workers`` or ``ahead`` is not a whole number of at least 0.
            RuntimeError: a loading process died; the step is not released.
        """
        return Batches(self, self._batches(workers, to, ahead))

    def _batches(self, workers: int, to: torch.device | str | None, ahead: int | None) -> Generator[Batch, None, None]:
        fetch = self._open_fetch(workers, to, ahead)
        if self.steps_left == 0 and self.steps_taken > self._first_step:  # it has trained, and is looped over again
            lost = f" ({self.steps_lost} lost in a crash)" if self.steps_lost else ""
            warn(
                f"this run is finished: all of its {self.steps} steps{lost} are spent, so there is no batch left and "
                "nothing is trained. To train further, start another run with noisette.privatize() on the same "
                "ledger, which adds the costs of both."
            )
        self.bound.before_first_batch(self._records.columns)
        drawn: dict[int, Batch] = {}  # those ahead, by their steps
        try:
            while self.steps_left:
                self._check_step_taken()
                self._account.reserve(self.steps_taken, self.steps_left)
                step = self.steps_taken
                self._batch = drawn.pop(step, None) or self._drawn(step, fetch, drawn)
                yield self._batch
            self._check_step_taken()
        finally:
            fetch.close()

    def _drawn(self, step: int, fetch: Fetch, drawn: dict[int, Batch]) -> Batch:
        """The batch of a step that is accounted for: the part of it that this process loads."""
        whole = self._sampler.indices(step=step)
        own = whole
        if self._records.own is not None:
            own = self._records.held(whole)
        elif self._ranks.size > 1:
            own = self._ranks.share(whole)
        run = weakref.ref(self)  # a batch that is kept keeps no run alive

        def begin() -> None:
            if (alive := run()) is not None:
                alive._begin_batch()

        def later() -> Iterator[Batch]:
            alive = run()
            if alive is None:
                return
            for following in range(step + 1, alive.steps_taken + min(alive._account.reserved, alive.steps_left)):
                if following not in drawn:
                    drawn[following] = alive._drawn(following, fetch, drawn)
                yield drawn[following]

        return self._new_batch(own, fetch=fetch, begin=begin, later=later, expected=self.expected_batch_size)

    def _begin_batch(self) -> None:
        """The first records of a batch are about to be read: from here to the release nobody writes into the model.

        Torch has a secret seed. By a known one, a record more gives those behind it other masks, which others compute.
        """
        if self._opened is not None:
            return
        if self._written:
            raise _parameters_written(self._written)
        # First: it is drawn into buffers.
        let_go = (lambda: None) if self._hold_noise is None else self._hold_noise(self._seed_of_all_ranks)
        left = self.steps_left / max(1, self.steps_taken - self._first_step)
        self.bound.begin_batch(left, self._seed_of_all_ranks("branches"))
        self._opened = _Opened([p._version for p in self._weights.values()], RandomStates.now(), let_go)
        if self._secret is None:
            self._seed = seed_secretly()
        else:
            self._secret.restore()

    def _end_batch(self) -> None:
        """Put the model and torch's generators back as they were when the first records of the batch were read; refuse
        a buffer that was written since, and a parameter, with which the run cannot go on.
        """
        self._begin_batch()  # of an empty batch that was not read
        versions, buffers = self._close_batch()
        changed = zip(self._weights, [p._version for p in self._weights.values()], versions, strict=True)
        if written := [name for name, now, before in changed if now != before]:
            self._written = written
            raise _parameters_written(written)
        if buffers:
            raise PrivacyError(
                f"{first_few(buffers)}: written between the first record of the batch and its release, so that values "
                "of records would be in the published buffer; it was put back, and the loss has computed without the "
                "write. Write a buffer before batch.microbatches() or after optimizer.step(); for a forward pass that "
                "is only logged, call model.eval() first, or a copy of the model where it writes even then"
            )

    def _close_batch(self) -> tuple[list[int], list[str]]:
        """Put back torch's generators and the buffers; what the parameters' versions were, and the buffers written."""
        opened, self._opened = self._opened, None
        if opened is None:
            return [], []
        opened.let_go_of_noise()
        self._secret = RandomStates.now() if torch.initial_seed() == self._seed else None
        opened.random.restore()
        return opened.versions, self.bound.end_batch()

    def _seed_of_all_ranks(self, name: str = "torch") -> int:
        """For numbers that all records of a batch share, on whichever rank they are."""
        words = np.empty(4, np.uint64)
        self._key.fill(words, purpose="numbers of a batch", name=name, step=self.steps_taken)
        return int.from_bytes(words.tobytes(), "little")

    def _check_step_taken(self) -> None:
        if self._batch is not None:
            raise PrivacyError(
                "optimizer.step() was not called for the last batch. Every batch is released, also an empty one: "
                "whether a step happens must not depend on the data. In the place of gradient accumulation, declare a "
                "larger expected_batch_size and take microbatches. Where the loop was interrupted within a batch, "
                f"close this run and start another with noisette.privatize() for the {self.steps_left} steps that are "
                "left, on the same ledger: the model keeps its weights"
            )

    # Lines 2 and 3

    def accumulate(self, loss: Loss, *batch: Any, public: Iterable[Tensor] = (), **keywords: Any) -> None:
        """Lines 2 and 3: add the bounded gradients of the current microbatch to the sum of the batch.

        Where memory runs out in a microbatch of ``batch.microbatches("auto")``, nothing is added and the same examples
        come again in halves. ``.grad`` is written by ``optimizer.step()`` alone: what else is to happen to the released
        gradient belongs in ``optimizer.register_step_pre_hook``, after :func:`noisette.privatize`.

        Args:
            loss: called as ``loss(model, *batch, **keywords)`` with one example at a time, each tensor with a batch
                axis of length 1; returns a tensor with one value. See :class:`noisette.Loss`.
            batch: the current microbatch; nested values in which each tensor has the examples on its first axis.
            public: other tensors that the loss uses, computed from no record but through released weights.
            keywords: more arguments of the loss, like ``batch``.

        Guarantee: for a loss as :class:`noisette.Loss` says, no example is computed with another one's values.

        Raises:
            PrivacyError: these are not the examples of the current microbatch, or were added before; or by the bound.
            TypeError: the loss is no function.
        """
        if not callable(loss):
            raise TypeError(
                f"expected the loss as a function of the model and one example, got {type(loss).__name__}: write "
                "accumulate(loss, x, y), not accumulate(loss(model, x, y))"
            )
        microbatch = Microbatch(batch, keywords)
        whole = self._current_batch(microbatch.count)
        self.keep_seed_secret()
        try:
            if whole.is_blank:
                self.bound.accumulate_nothing()
            else:
                self.bound.add(loss, microbatch, tuple(public))
        except OtherRankRanOut:
            whole.current = None
        except torch.OutOfMemoryError:
            if not whole.retry_smaller():
                raise
        else:
            whole.bounded += 0 if whole.is_blank else microbatch.count
            whole.current = None

    def keep_seed_secret(self) -> None:
        """Seed torch secretly again where the data set or the loop has seeded it since the batch began."""
        if torch.initial_seed() != self._seed:
            self._seed = seed_secretly()

    def _current_batch(self, count: int) -> Batch:
        """The batch whose microbatch has so many examples, or a PrivacyError."""
        batch = self._batch
        if batch is not None and batch.current is None and batch.bounded:
            raise PrivacyError(
                "the gradients of these examples were added already: add the losses up in one function, and call "
                "accumulate once for each microbatch"
            )
        if batch is None or batch.current is None:
            raise PrivacyError(
                "accumulate needs a microbatch: call it once for each one in `for ... in batch.microbatches(size)`, "
                "within `for batch in run.batches()`. Examples drawn in another way have no guarantee."
            )
        if count != batch.current:
            raise PrivacyError(
                f"the current microbatch has {batch.current} examples, and the tensors given have {count} rows: give "
                "one row for each example"
            )
        return batch

    # Line 4

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Line 4, in a hook before ``optimizer.step()``: what the optimizer finds in ``.grad`` is noised."""
        if any(arg is not None for arg in args[1:]) or kwargs.get("closure") is not None:  # args[0] is the optimizer
            raise PrivacyError("gradients of optimizer.step(closure) are not private; call step() without a closure")
        if hasattr(optimizer, "found_inf") or "grad_scaler" in kwargs:
            refuse_scaler(optimizer)
        batch = self._batch
        if batch is None and _steps_under_way(optimizer) > 1:
            return  # the step of a base class; the release was made by then
        if batch is None:
            raise PrivacyError(
                "optimizer.step() needs a batch of its own: call it once for each batch in `for batch in run.batches()`"
            )
        alone = self._ranks.size == 1
        with nullcontext({}) if alone else self._ranks.unanimous(f"step {self.steps_taken}") as equal:
            self._release.check_no_others(self.bound.parameters)
            batch.check_bounded(len(batch.indices))
            same = held_by(optimizer) == self._names.keys()
            if problems := [] if same else differing_parameters(optimizer, self.bound):
                raise PrivacyError(
                    "the optimizer and the bound have different parameters since the run began:\n  "
                    + "\n  ".join(problems)
                    + "\nEnd this run by noisette.close_run(model), and begin another on its ledger, as by make_private"
                )
            self._end_batch()
            # The accounting comes first: a release that fails half-way counts, and its noise is never drawn again.
            self._account.commit()
            sums = self.bound.pop_sums()
            if not alone:
                equal["bounds, shares and parameters of the release"] = digest_of(sums)
        step, self._batch = self.steps_taken, None
        self.steps_taken += 1
        try:
            self._release(sums, self._names, step=step)
        except BaseException:
            self._ranks.close()  # the others wait for the rest of the release, and learn so that it does not come
            raise

    # Line 5

    def _after_step(self) -> None:
        """A hook after ``optimizer.step()``, and after that of a base class within it."""
        if _steps_under_way(self.optimizer) > 1:
            return
        self.bound.after_step()
        if not self.steps_left:
            self._detach()

    def _refuse_second_optimizer(self, optimizer: Optimizer) -> None:
        """A hook: no optimizer may move the parameters of this run but its own, and those it calls within its step."""
        shared = set() if optimizer is self.optimizer else held_by(optimizer) & self._names.keys()
        if not shared or _steps_under_way(self.optimizer):
            return
        raise PrivacyError(
            f"a second optimizer ({type(optimizer).__name__}) steps {first_few(sorted(self._names[i] for i in shared))}"
            f", which a run trains that has taken {self.steps_taken} of its {self.steps} steps; give it other "
            "parameters, or end that run by run.close() or noisette.close_run(model). Of an optimizer that wraps "
            "another one, give the outer one to privatize"
        )

    def end(self) -> None:
        """Remove the hooks from the optimizer; what a batch that was not released has left is dropped."""
        self._detach()
        self._close_batch()

    def close(self) -> None:
        """Remove every hook from the optimizer, and end the bound."""
        self.end()
        self.bound.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self.close()


class Batches(Iterator[Batch]):
    """The batches that remain. Their length is the number of steps that may follow, which is planned and public."""

    def __init__(self, run: DpSgd, batches: Generator[Batch, None, None]) -> None:
        self._run = run
        self._batches = batches

    def __next__(self) -> Batch:
        return next(self._batches)

    def __len__(self) -> int:
        return self._run.steps_left

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<batches: {len(self)} steps left>"

    def close(self) -> None:
        """End the thread or the processes that load records."""
        self._batches.close()


_RUNS: weakref.WeakKeyDictionary[Optimizer, weakref.ref[DpSgd]] = weakref.WeakKeyDictionary()


def unfinished_runs(of: Optimizer | nn.Module) -> list[DpSgd]:
    """The runs that still step this optimizer, or train a parameter of this model."""
    held = {id(p) for p in of.parameters()} if isinstance(of, nn.Module) else held_by(of)
    runs = [run for reference in list(_RUNS.values()) if (run := reference()) is not None and run._detach.alive]
    return [run for run in runs if held & run._names.keys()]


def close_run(of: Optimizer | nn.Module) -> None:
    """Close the unfinished runs that step this optimizer or train this model, where their handles are lost.

    As after an interrupted cell: the optimizer and the model are plain again, and reserved steps are given back.
    """
    for run in unfinished_runs(of):
        run.close()


def _hooks(run: DpSgd) -> ExitStack:
    """Hook a run into its optimizer until this is closed; the hooks do not keep it alive, and are never compiled."""
    reference = weakref.ref(run)

    def hook(method: Callable[..., None]) -> Any:
        def call(*args: Any) -> None:
            if (alive := reference()) is not None:
                method(alive, *args)

        return torch.compiler.disable(call)

    attached = ExitStack()
    for handle in (
        run.optimizer.register_step_pre_hook(hook(lambda run, *args: run._before_step(*args))),
        run.optimizer.register_step_post_hook(hook(lambda run, *_: run._after_step())),
        register_optimizer_step_pre_hook(hook(lambda run, optimizer, *_: run._refuse_second_optimizer(optimizer))),
    ):
        attached.callback(handle.remove)
    # A ``GradScaler`` fails without ``.grad``, and so leaves its skipping to the steps of the optimizer.
    attributes, name = vars(run.optimizer), "_step_supports_amp_scaling"
    before = {name: attributes[name]} if name in attributes else {}
    attributes[name] = True
    attached.callback(attributes.update, before)
    attached.callback(attributes.pop, name)
    return attached


# Torch's random numbers within a batch

_SECRET_BITS = 256
_WORDS_OF_TORCH = slice(3, 3 + 624)  # of the state of the generator on a processor, in words of 64 bits


class RandomStates(NamedTuple):
    """The states of torch's global generators on the processor and on the GPUs."""

    cpu: Tensor
    cuda: list[Tensor]

    @classmethod
    def now(cls) -> RandomStates:
        return cls(torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [])

    def restore(self) -> None:
        torch.set_rng_state(self.cpu)
        torch.cuda.set_rng_state_all(self.cuda)


def seed_secretly() -> int:
    """Give torch's global generators a seed from the operating system; the number by which a later seed is noticed.

    It has 256 bits, and 63 on accelerators: the 32 that ``torch.manual_seed`` uses on a processor can all be tried.
    """
    seed_torch(secrets.randbits(_SECRET_BITS))
    return torch.initial_seed()


def seed_torch(seed: int, generator: torch.Generator = torch.default_generator) -> None:
    """Seed a generator of torch; through the global one, those of accelerators too.

    On the processor torch uses the lower 32 bits of a seed alone; of a longer one all is brought into the state.
    Without an accelerator ``torch.manual_seed`` would note each call with its traceback, in up to a millisecond.
    """
    short = seed % 2**63
    if generator is torch.default_generator and torch.accelerator.is_available():
        torch.manual_seed(short)
    if generator.device.type != "cpu":
        generator.manual_seed(short)
        return
    state = torch.Generator().manual_seed(short).get_state()
    if seed != short:
        words = state.numpy().view(np.int64)[_WORDS_OF_TORCH]
        if int(words[0]) != short % 2**32:
            raise RuntimeError("this version of torch keeps the state of a generator in a form that is not known here")
        longer = hashlib.shake_256(seed.to_bytes(seed.bit_length() // 8 + 1, "little")).digest(4 * len(words))
        words[:] = np.frombuffer(longer, np.uint32)
    generator.set_state(state)


def generator_apart() -> torch.Generator:
    """A generator with a secret seed, which leaves torch's global one alone."""
    generator = torch.Generator()
    seed_torch(secrets.randbits(_SECRET_BITS), generator)
    return generator


def _parameters_written(names: list[str]) -> PrivacyError:
    return PrivacyError(
        f"{first_few(names)}: written between the first record of a batch and its release. Parameters change by "
        "optimizer steps alone, so this run cannot go on: its weights may hold values of records. Write parameters "
        "after optimizer.step(), start from the last checkpoint, and compute what the loss needs without writing"
    )


def held_by(optimizer: Optimizer) -> set[int]:
    """The ``id`` of every parameter of the optimizer."""
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


def differing_parameters(optimizer: Optimizer, bound: GradientBound) -> list[str]:
    """One line for what trains and only one of the two has; what is frozen and has no gradient does not count."""
    held, own = held_by(optimizer), set(map(id, bound.parameters.values()))
    left = [name for name, p in bound.parameters.items() if id(p) not in held and p.requires_grad]
    problems = [f"{name}: trainable, but not in the optimizer" for name in left]
    others = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in own]
    if others := sum(p.requires_grad or p.grad is not None for p in others):
        problems.append(f"{others} trainable parameters of the optimizer are not in the model of the bound")
    return problems


_STEP = Optimizer.profile_hook_step(lambda optimizer: None).__code__  # of torch's function around each step


def _steps_under_way(optimizer: Optimizer) -> int:
    """The number of this optimizer's steps that have led to this call: a class may call the step of its base."""
    frame, count = sys._getframe(1), 0
    while frame is not None:
        count += frame.f_code is _STEP and frame.f_locals["args"][0] is optimizer
        frame = frame.f_back
    return count


def refuse_scaler(optimizer: Optimizer) -> NoReturn:
    """Refuse the step of a ``GradScaler``."""
    for name in ("found_inf", "grad_scale"):  # what the scaler has left there
        vars(optimizer).pop(name, None)
    raise PrivacyError(
        "a GradScaler scales the losses by a factor that follows the records, and skips steps where one gradient "
        "overflows: whether a step happens must not depend on the data. Train in bfloat16 or float32, and call "
        "optimizer.step() without a scaler"
    )
