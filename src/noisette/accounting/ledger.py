"""The ledger: an append-only record of all releases, each written before it happens."""

import operator
import os
import secrets
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass, field
from html import escape
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Protocol, Self
from weakref import WeakSet

from noisette.accounting import ledger_file
from noisette.accounting.events import Declaration, Event, StepRelease, check_events, in_whole_rounds
from noisette.accounting.ledger_file import LEDGER_FILE as LEDGER_FILE
from noisette.accounting.ledger_file import End, Entry, Kind, LedgerFile, Series, Tail, check_whole_rounds
from noisette.errors import PrivacyError, count


class Displayed:
    """Shown by its facts in one line, as ``<Ledger: kept in memory>``, and in a notebook as a table."""

    _shown: Callable[[], Mapping[str, object]]  # the facts by their labels

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {', '.join(f'{label} {value}' for label, value in self._shown().items())}>"

    def _repr_html_(self) -> str:
        facts = self._shown().items()
        rows = (f"<tr><th>{escape(label)}</th><td>{escape(str(value))}</td></tr>" for label, value in facts)
        return f"<table><caption>{type(self).__name__}</caption>{''.join(rows)}</table>"


class Tally(NamedTuple):
    """How often one event is recorded in a ledger, by the kinds of lines in their order."""

    reserved: int = 0  # in advance
    committed: int = 0  # reserved ones that happened, as far as is known
    given_back: int = 0  # reserved ones that are known not to have happened
    charged: int = 0  # one by one, before they happened

    @property
    def paid(self) -> int:
        """The number that counts towards the privacy cost: all releases that may have happened."""
        return self.reserved - self.given_back + self.charged

    def with_all(self, other: Self) -> Self:
        return type(self)(*map(operator.add, self, other))

    def after(self, kind: Kind, steps: int) -> Self:
        """The tally after a line of this kind; a ``ValueError`` if more would be committed than were reserved."""
        tally = self.with_all(type(self)(*(steps * (kind is of) for of in Kind)))
        if tally.committed + tally.given_back > tally.reserved:
            done = f"{tally.committed} steps committed and {tally.given_back} given back"
            raise ValueError(f"{done} are more than the {tally.reserved} reserved")
        return tally


@dataclass(eq=False)
class RecordedRun:
    """The name under which one object reserves steps, so that it commits and gives back its own alone.

    The id stands in each line of the run, also after it was resumed elsewhere. For the rest see :class:`Series`.
    """

    id: str = field(default_factory=lambda: secrets.token_hex(8))
    _: KW_ONLY
    planned: int | None = None
    declaration: str = ""

    def series(self, event: Event) -> Series:
        return Series(event, self.id, None, self.planned, self.declaration)


def declared(paid: Iterable[tuple[Series, int]]) -> list[Declaration]:
    """What was declared together, in the order of the first lines: the releases of one name, or of one run."""
    counts: dict[tuple[str, str, Event], tuple[int, int]] = {}
    for series, times in paid:
        key = series.declaration, series.run, series.event
        already, planned = counts.get(key, (0, 0))
        counts[key] = already + times, max(planned, series.planned or 0)
    found: dict[tuple[object, ...], tuple[Counter[Event], Counter[Event]]] = {}
    for (name, run, event), (times, planned) in counts.items():
        events, plan = found.setdefault((name,) if name else (run, event), (Counter(), Counter()))
        events[event] += times
        plan[event] += max(times, planned)
    return [Declaration(name, *both) for name, both in found.items()]


class Ledger(Displayed, AbstractContextManager["Ledger"]):
    """The releases made on one data set, in memory or in an append-only file.

    A run reserves steps before it draws their batches, commits each step before its noise is drawn, and gives back
    unused steps at its end. Reserved steps count towards the privacy cost, so a crash can only increase it. The file
    holds one JSON object per line, chained by SHA-256 digests, and nothing that depends on the data. Several runs may
    share a ledger, also in threads of one process: a run gives back only its own steps.

    A file that was cut between two lines is a valid ledger. To detect that, store its ``head`` elsewhere, as
    checkpoints do, and check it with :meth:`holds`.

    Args:
        path: the file; created with mode 0600, or continued if it exists. It is locked for writing until
            :meth:`close`, the end of a ``with`` block, or the end of the process. ``None`` keeps the ledger in memory.
        dataset: the declared name of the data set. Runs on one data set share a ledger, so that their costs compose.

    Guarantee: when :meth:`reserve` or :meth:`charge` has returned, its line survives a crash of the machine; a crash at
    any moment leaves a file that counts no less than what happened.

    Raises:
        ValueError: a line was cut or altered, the file belongs to another data set, the path is no file's, or an event
            has another neighbouring relation.
        PrivacyError: the file is open for writing elsewhere, cannot be locked, was closed, is read-only or was changed.
        OSError: the file cannot be opened, locked or written. Where a method raises it, nothing was reserved or
            charged, and steps that were to be committed or given back still count.

    >>> from noisette.accounting import PoissonGaussian
    >>> ledger = Ledger()
    >>> ledger.reserve(PoissonGaussian(sampling_rate=0.01, noise_multiplier=1.1), 16)
    >>> ledger.commit()
    >>> ledger.release()
    >>> ledger.events
    {PoissonGaussian(sampling_rate=0.01, noise_multiplier=1.1): 1}
    """

    def __init__(self, path: Path | str | None = None, *, dataset: str = "unnamed") -> None:
        self.lock = threading.RLock()  # held by a thread that reads the ledger and then writes: no other writes between
        self.dataset = dataset
        self._end = End()
        self._heads = {self._end.head}
        self._tail = Tail()
        self._tallies: dict[Series, Tally] = {}
        self.entries = 0  # lines that were read or written, also those of a ledger in memory
        self._unnamed = RecordedRun()  # the run of lines that are written for no other
        self._unused: defaultdict[RecordedRun, Counter[Event]] = defaultdict(Counter)
        self._file = None if path is None else LedgerFile(Path(path))
        self.path = None if self._file is None else self._file.path
        self._owner = os.getpid()
        if self._file is not None:
            try:
                self._replay(self._file.content(), self._file.path)
                self._keep_head()
            except BaseException:
                self._file.close()
                raise
        _LEDGERS.add(self)

    def _shown(self) -> dict[str, object]:
        releases = "; ".join(f"{times} x {event!r}" for event, times in self.events.items()) or "none"
        return {"data set": self.dataset, "releases": releases, "kept": self.path.name if self.path else "in memory"}

    @classmethod
    def read(cls, path: Path | str) -> Self:
        """The ledger in a file, read-only and without a lock; a line that is being written is left out.

        A ``ValueError`` says that a line was cut or altered, or that the path is no file's.
        """
        path = Path(path)
        damage = ValueError(f"{path} cannot be read")
        for content in ledger_file.contents(path):
            try:
                first = next(ledger_file.sealed_entries(content, path), None)
                ledger = cls(dataset=first[0].dataset) if first else cls()
                ledger.path = path
                ledger._replay(content, path)
                return ledger
            except ValueError as error:
                damage = error
        raise damage

    @classmethod
    def mirror(cls, dataset: str, totals: str) -> Self:
        """A ledger in memory with the :attr:`totals` of another one, for a process beside the one that writes."""
        ledger = cls(dataset=dataset)
        ledger._replay(totals.encode(), Path("the ledger of another process"))
        return ledger

    def follow(self, totals: str) -> None:
        """Take over the counts of the ledger that this one mirrors."""
        with self.lock:
            self._tallies = Ledger.mirror(self.dataset, totals)._tallies

    repair = staticmethod(ledger_file.repair)

    @property
    def head(self) -> str:
        """The digest of the last line, which seals all; empty without a line. :meth:`shorten` keeps this line then."""
        with self.lock:
            self._keep_head()
            return self._end.head

    @property
    def events(self) -> dict[Event, int]:
        """The events that count towards the privacy cost: reserved and charged ones, less those given back."""
        return {event: tally.paid for event, tally in self.tallies.items() if tally.paid}

    @property
    def tallies(self) -> Mapping[Event, Tally]:
        """The counts of each event in the ledger, also of one that was given back."""
        tallies: defaultdict[Event, Tally] = defaultdict(Tally)
        with self.lock:
            for series, tally in self._tallies.items():
                tallies[series.event] = tallies[series.event].with_all(tally)
        return dict(tallies)

    @property
    def paid(self) -> Mapping[Series, int]:
        """What counts towards the privacy cost, for each run and event on its own."""
        with self.lock:
            return {series: tally.paid for series, tally in self._tallies.items() if tally.paid}

    @property
    def made(self) -> Mapping[Series, int]:
        """What is :attr:`paid` without the steps that this process has reserved ahead, and would give back."""
        with self.lock:
            made = Counter(self.paid)
            for run, unused in self._unused.items():
                for event, steps in unused.items():
                    made[run.series(event)] -= steps - steps % event.round_length  # as in :meth:`release`
        return +made

    @property
    def declarations(self) -> list[Declaration]:
        """What counts, by what was declared together; each may have been chosen by the results of those before."""
        return declared(self.paid.items())

    @property
    def totals(self) -> str:
        """Lines of a ledger with the same counts of each run and event."""
        tail = Tail()
        with self.lock:
            for series, tally in self._tallies.items():
                for kind, steps in zip(Kind, tally, strict=True):
                    if steps:
                        tail.add(Entry(kind, self.dataset, series, steps), End())
        return tail.shortened(self.dataset)[0].decode()

    @property
    def committed(self) -> int:
        return sum(tally.committed for tally in self.tallies.values())

    def holds(self, head: str) -> bool:
        """Whether this was once the head of the ledger, so that the ledger continues from there."""
        with self.lock:
            return head in self._heads or head in self._tail.heads

    def reserve(self, event: Event, steps: int, *, run: RecordedRun | None = None) -> None:
        """Record, durably, that this many releases may follow. Call it before their batches are drawn.

        Steps with correlated noise are reserved in whole rounds, so that those of several runs add up. Where several
        runs share the ledger, ``run`` says whose steps they are, here and below.
        """
        if type(steps) is not int or steps < 1:
            count(steps=steps)
        run = run or self._unnamed
        with self.lock:
            self._spend(Kind.RESERVE, event, steps, run)
            self._unused[run][event] += steps

    def charge(
        self,
        event: Event,
        times: int = 1,
        *,
        run: RecordedRun | None = None,
        declaration: str = "",
        other_neighbours: bool = False,
    ) -> None:
        """Record, durably, a release that is not a step of a run. Call it before the release; it is never given back.

        Args:
            event: the event of the release.
            times: how many such releases, all declared at once.
            run: whose release it is; one of its own unless given.
            declaration: a name which all releases share that were fixed together before the first, as in ``privatize``.
            other_neighbours: record it also beside releases for another neighbouring relation, which do not compose.
        """
        count(times=times)
        with self.lock:
            self._spend(Kind.CHARGE, event, times, run or RecordedRun(declaration=declaration), other_neighbours)

    def commit(self, event: Event | None = None, *, run: RecordedRun | None = None) -> None:
        """Record that one of the reserved steps is released now. Call it before the noise of that step is drawn.

        Once it has returned, the step is never given back, even if the release is interrupted; where it raises, as for
        a step that was not reserved, nothing may be released. The line is not synced to disk, because the reservation
        is. ``event`` may be left out where only one has reserved steps.
        """
        run = run or self._unnamed
        with self.lock:
            steps = self._unused[run]
            unused = [known for known, left in steps.items() if left and event in (None, known)]
            if len(unused) != 1:
                found = f"reserved steps of {len(unused)} events; name the one that is released: commit(event)"
                none = "no reserved step; call reserve(event, steps) before the batch is drawn"
                raise PrivacyError(f"commit() found {found if unused else none}")
            steps[unused[0]] -= 1  # first: a step whose line fails below must not count as unused
            self._append(Kind.COMMIT, unused[0], 1, run, durable=False)

    def release(self, *, run: RecordedRun | None = None) -> None:
        """Give back, durably, the steps that this process reserved for a run and did not commit; no others."""
        run = run or self._unnamed
        with self.lock:
            unused = self._unused.pop(run, Counter())  # first: a step is given back at most once, also after an error
            for event, steps in unused.items():
                if steps := steps - steps % event.round_length:  # a round that was begun counts as a whole
                    self._append(Kind.RELEASE, event, steps, run, durable=True)

    def shorten(self) -> None:
        """Replace the lines after the last :attr:`head` that was read by a few lines with the same totals, durably.

        Long tails are also replaced automatically. Nothing changes where the disk has no room, and where the file has a
        second name (a hard link), which would keep the old content.
        """
        with self.lock:
            if self._file is not None and self._tail.shrinks:
                lines, tail, end = self._tail.shortened(self.dataset)
                if self._file.replace_end(lines, start=tail.start.size, size=self._end.size):
                    self._tail, self._end = tail, end

    def close(self) -> None:
        """Unlock the file. The ledger can still be read; later writes are refused."""
        with self.lock:
            if self._file is not None:
                self._file.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a ledger cannot be copied: releases recorded in the copy would be missing here; share it")

    def _spend(self, kind: Kind, event: Event, steps: int, run: RecordedRun, other_neighbours: bool = False) -> None:
        if run.series(event) not in self._tallies:
            check_events({event: steps})
            relations = dict.fromkeys(each.relation for each in self.events)
            if relations and event.relation not in relations and not other_neighbours:
                raise ValueError(
                    f"{event!r} has a guarantee to {event.relation}, and the ledger holds releases to "
                    f"{' and to '.join(relations)}: they do not compose. State it for the same, as with "
                    "neighbouring=Neighbouring.ADD_OR_REMOVE_USER (--per user), or take another ledger; a charge is "
                    "recorded as it is with other_neighbours=True (--per record)"
                )
        if steps % event.round_length:
            check_whole_rounds(event, steps)
        if self._file is not None and len(self._tail.heads) >= ledger_file.MOST_LINES:
            self.shorten()
        self._append(kind, event, steps, run, durable=True)

    def _keep_head(self) -> None:
        self._heads.update(self._tail.heads)
        self._tail = Tail(self._end)

    def _append(self, kind: Kind, event: Event, steps: int, run: RecordedRun, *, durable: bool) -> None:
        if os.getpid() != self._owner:
            raise PrivacyError(f"the ledger belongs to process {self._owner}, from which this was forked; use it there")
        entry, end = Entry(kind, self.dataset, run.series(event), steps), self._end
        if self._file is not None:
            line, end = entry.line(end)
            self._file.append(line, size=self._end.size, durable=durable)
        elif self.path is not None:
            read_only = f"{self.path} was opened read-only, so no release can be recorded"
            raise PrivacyError(f"{read_only}; open it for writing with Ledger(path, dataset={self.dataset!r})")
        self._count(entry, end)

    def _count(self, entry: Entry, end: End) -> None:
        self.entries += 1
        self._tallies[entry.series] = self._tallies.get(entry.series, Tally()).after(entry.kind, entry.steps)
        if end.head:
            self._tail.add(entry, end)
        self._end = end

    def _replay(self, content: bytes, path: Path) -> None:
        for entry, end in ledger_file.sealed_entries(content, path):
            if entry.dataset != self.dataset:
                other = f"{path} is the ledger of data set {entry.dataset!r}, not of {self.dataset!r}"
                raise ValueError(f"{other}; choose another path, or give the data set the name that the ledger has")
            try:
                self._count(entry, end)
            except ValueError as error:
                raise ValueError(f"{path}, line {end.lines}: {error}; restore the file from a copy") from None


_LEDGERS: WeakSet[Ledger] = WeakSet()


class Exchange(Protocol):
    """What the processes of a run tell each other about its ledger: errors, numbers, what the first computes."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def unanimous(self, phase: str) -> AbstractContextManager[Any]: ...
    def of_all(self, phase: str, numbers: Mapping[str, float]) -> list[Mapping[str, float]]: ...
    def from_first(self, what: str, compute: Callable[[], Any]) -> Any: ...


# Steps reserved at once in a ledger on disk: one fsync for so many steps; after a crash as many may count too much. It
# depends on the planned number of steps alone, which is public, as the duration of a step is not.
_MOST_AT_ONCE, _FEWEST_LEASES = 64, 20


@dataclass(eq=False, repr=False)
class LedgerAccount:
    """Accounts for the ``steps`` of a run in its ledger, several of them at once, within the budget.

    Of all ranks the ledger of the first is the one that counts. ``check_budget`` raises where so many further steps do
    not fit, and ``steps_spent`` are those of an earlier process of this run.
    """

    ledger: Ledger
    _event: StepRelease
    _recorded: RecordedRun
    _check_budget: Callable[[int], None]
    _ranks: Exchange
    _: KW_ONLY
    steps: int
    steps_spent: int

    def __post_init__(self) -> None:
        lease = max(1, min(_MOST_AT_ONCE, self.steps // _FEWEST_LEASES)) if self.ledger.path else 1
        self.lease = in_whole_rounds(self._event, lease)
        self._spent = self.steps_spent
        self.reserved = self._own_lines = 0
        self._other_lines = self.ledger.entries  # that this object did not write
        self._known_of_first = -1.0  # the other lines of rank 0 that this rank knows of
        self._checked = self._other_releases()  # what the budget was computed with

    def reserve(self, step: int, steps_left: int) -> None:
        """Write steps to the ledger before the batch of the first is drawn: no crash can hide what was spent."""
        if self.reserved:
            return
        with (
            nullcontext() if self._ranks.size == 1 else self._ranks.unanimous(f"the reservation of step {step}"),
            self.ledger.lock,  # nothing else is reserved between the check and the reservation
        ):
            others = self.ledger.entries - self._own_lines
            if others != self._other_lines and self._other_releases() != self._checked:
                self.check_budget(steps_left)
            self._other_lines = others
            lease = self.lease if self.lease <= steps_left else in_whole_rounds(self._event, steps_left)
            self.ledger.reserve(self._event, lease, run=self._recorded)
        self.reserved = lease
        self._own_lines += 1
        self._follow_first_rank(others)

    def commit(self) -> None:
        """Write the release of a step to the ledger before its noise is drawn."""
        self.ledger.commit(self._event, run=self._recorded)
        self._own_lines += 1
        self.reserved -= 1
        self._spent += 1

    def give_back(self) -> None:
        self.ledger.release(run=self._recorded)

    def still_to_come(self) -> float:
        """How many times the steps of this process so far are still to come."""
        return (self.steps - self._spent) / max(1, self._spent - self.steps_spent)

    def check_budget(self, steps_left: int) -> None:
        """Check that the remaining steps fit in the budget, together with everything in the ledger."""
        with self.ledger.lock:
            self._check_budget(steps_left)
            self._checked = self._other_releases()

    def _other_releases(self) -> Mapping[Event, int]:
        """What the ledger holds beside the steps of this object; a copy of the run may have made some of it."""
        others = Counter(self.ledger.events)
        others[self._event] -= self._spent + self.reserved
        return others

    def _follow_first_rank(self, others: int) -> None:
        """Where something else was released on rank 0, the other ranks learn of it."""
        if self._ranks.size == 1:
            return
        told = self._ranks.of_all("the ledger", {"others": others, "known": self._known_of_first})
        if told[0]["others"] != self._known_of_first:
            totals = self._ranks.from_first("the ledger", lambda: self.ledger.totals)
            self._known_of_first = told[0]["others"]
            if self._ranks.rank:
                self.ledger.follow(totals)


def _unlock_in_child() -> None:
    """A forked process has one thread, and would wait for ever for a lock that another thread held."""
    for ledger in _LEDGERS:
        ledger.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock_in_child)
