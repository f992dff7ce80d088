import hashlib
import json
import os
import stat
from functools import partial
from itertools import accumulate

import pytest

from noisette.accounting import FixedSizeGaussian, Gaussian, Ledger, PoissonGaussian
from noisette.accounting.ledger import Tally
from noisette.accounting.ledger_file import repaired
from noisette.errors import PrivacyError

EVENT = PoissonGaussian(0.01, 1.1)
OTHER = PoissonGaussian(1.0, 7.0)
QUERY = Gaussian(7.0, (("principal components", 1.0),))


@pytest.fixture
def written(path):
    """A ledger of one finished run: 16 steps reserved, 3 released, 13 given back; then a release of another kind."""
    with Ledger(path, dataset="digits") as ledger:
        ledger.reserve(EVENT, 16)
        for _ in range(3):
            ledger.commit()
        ledger.release()
        ledger.reserve(OTHER, 1)
        ledger.commit()
    return path


def test_what_counts_is_what_is_reserved():
    ledger = Ledger()
    assert ledger.events == {}
    ledger.reserve(EVENT, 16)
    assert ledger.events == {EVENT: 16}
    ledger.commit()
    assert (ledger.events, ledger.committed) == ({EVENT: 16}, 1)
    ledger.release()
    assert (ledger.events, ledger.committed) == ({EVENT: 1}, 1)
    ledger.release()
    assert ledger.events == {EVENT: 1}


def test_the_reservation_is_on_disk_before_reserve_returns(path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor)))
    ledger = Ledger(path)
    ledger.reserve(EVENT, 2)
    assert [stat.S_ISDIR(s.st_mode) for s in synced] == [False, True]  # the file, and its directory entry
    assert synced[0].st_size == path.stat().st_size > 0
    ledger.commit()
    assert len(synced) == 2  # a commit may be lost: it does not change the cost
    ledger.release()
    assert len(synced) == 3


def test_the_folder_of_a_new_ledger_is_made(tmp_path):
    with Ledger(tmp_path / "runs" / "mine" / "ledger.jsonl") as ledger:
        ledger.reserve(EVENT, 1)
    assert Ledger.read(tmp_path / "runs" / "mine" / "ledger.jsonl").events == {EVENT: 1}


def test_a_ledger_is_read_back_as_it_was_written(written):
    ledger = Ledger.read(written)
    assert (ledger.events, ledger.committed, ledger.dataset) == ({EVENT: 3, OTHER: 1}, 4, "digits")
    assert stat.S_IMODE(written.stat().st_mode) == 0o600, "only its owner may read it"
    for read in (Ledger.read, Ledger.repair):
        with pytest.raises(FileNotFoundError, match="none"):
            read(written.with_name("none"))
    assert not written.with_name("none").exists()


def test_a_crash_keeps_the_reservation(path):
    first = Ledger(path)
    first.reserve(EVENT, 16)
    first.commit()
    del first
    second = Ledger(path)
    second.reserve(EVENT, 5)
    second.commit()
    second.release()  # its own 4 steps, never the 15 of the crashed process
    assert second.events == Ledger.read(path).events == {EVENT: 17}


@pytest.mark.parametrize("line", range(7))
@pytest.mark.parametrize("bit", [0, 5, 7])
def test_a_flipped_bit_is_refused_with_its_line(written, line, bit):
    lines = written.read_bytes().splitlines(keepends=True)
    for position in range(0, len(lines[line]), 13):
        altered = bytearray(lines[line])
        altered[position] ^= 1 << bit
        written.write_bytes(b"".join([*lines[:line], bytes(altered), *lines[line + 1 :]]))
        with pytest.raises(ValueError, match=rf"ledger\.jsonl, line {line + 1}: "):
            Ledger.read(written)


def test_a_line_cut_at_any_byte_is_refused_with_its_number_and_the_way_out(small):
    content = small.read_bytes()
    whole = {0, *accumulate(len(line) for line in content.splitlines(keepends=True))}
    for kept in reversed(range(len(content))):
        os.truncate(small, kept)
        if kept in whole:
            Ledger.read(small)
            continue
        line = content[:kept].count(b"\n") + 1
        with pytest.raises(ValueError, match=rf"ledger\.jsonl, line {line}: .*noisette ledger repair .*ledger\.jsonl"):
            Ledger.read(small)


def test_a_line_cut_at_any_byte_is_dropped_and_a_newline_added_where_it_alone_is_missing(small):
    content = small.read_bytes()
    for kept in range(len(content)):
        before = content[: content.rfind(b"\n", 0, kept) + 1]
        whole = kept > len(before) and content[kept : kept + 1] == b"\n"
        assert repaired(content[:kept], small) == (content[: kept + 1] if whole else before)


def test_a_repaired_ledger_goes_on(written, monkeypatch):
    content, synced = written.read_bytes(), []
    written.write_bytes(content[:-5])
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
        assert Ledger.repair(written)
    assert synced == [written.stat().st_size]
    assert not Ledger.repair(written)
    with Ledger(written, dataset="digits") as ledger:
        assert (ledger.events, ledger.committed) == ({EVENT: 3, OTHER: 1}, 3)
        ledger.charge(OTHER)
    assert Ledger.read(written).events == {EVENT: 3, OTHER: 2}


@pytest.mark.parametrize("line", range(7))
def test_repair_refuses_what_no_crash_leaves(written, line):
    lines = written.read_bytes().splitlines(keepends=True)
    for change in range(0, len(lines[line]), 7):
        position = len(lines[line]) - 1 - change  # the newline first: without it a whole line may look cut
        altered = bytearray(lines[line])
        altered[position] ^= 1 << change % 8
        content = b"".join([*lines[:line], bytes(altered), *lines[line + 1 :]])
        written.write_bytes(content)
        with pytest.raises(ValueError, match=rf"line {line + 1}: .*restore it from a copy"):
            Ledger.repair(written)
        assert written.read_bytes() == content


@pytest.mark.parametrize(
    "rest", [b"\0" * 300 + b"x", b"{}", b'{"sequence": 3, "kind": "reserve", ', b"x\0\0", b'{"sequence": 7, "k\0"']
)
def test_repair_refuses_an_end_that_is_not_the_beginning_of_the_next_line(written, rest):
    written.write_bytes(content := written.read_bytes() + rest)
    with pytest.raises(ValueError, match=r"line 8: .*restore it from a copy"):
        Ledger.repair(written)
    assert written.read_bytes() == content


def test_a_ledger_cut_between_two_lines_is_detected_by_a_head_stored_elsewhere(written):
    ledger = Ledger.read(written)
    heads = ["", *(json.loads(line)["digest"] for line in written.read_text().splitlines())]
    assert ledger.head == heads[-1]
    assert all(ledger.holds(head) for head in heads)
    assert not ledger.holds("0" * 64)
    written.write_bytes(b"".join(written.read_bytes().splitlines(keepends=True)[:-1]))
    assert not Ledger.read(written).holds(heads[-1])
    assert Ledger.read(written).holds(heads[-2])


def test_a_missing_line_and_swapped_lines_are_refused(written):
    lines = written.read_bytes().splitlines(keepends=True)
    swapped, twice = [lines[0], lines[2], lines[1], *lines[3:]], [*lines[:3], lines[2], *lines[3:]]
    for changed, line in [(lines[1:], 1), (lines[:2] + lines[3:], 3), (swapped, 2), (twice, 4)]:
        written.write_bytes(b"".join(changed))
        with pytest.raises(ValueError, match=f"line {line}: "):
            Ledger.read(written)


def test_what_is_no_ledger_is_refused(path):
    huge = b'{"steps": 1, "mechanism": "Gaussian", "noise_multiplier": 1' + b"0" * 400 + b"}\n"
    long = b"[" * 10**6, b"9" * 10**5 + b"\n", b"\0" * 4096, huge
    for content in (b"\n", b"[]\n", b"3\n", b"{}\n", b"\xff\xfe\n", b"null\n", *long):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"jsonl is not a ledger; give|line 1: .* cut off|line 1: .* altered"):
            Ledger.read(path)


def test_a_line_of_a_newer_version_asks_for_an_update(written):
    lines = written.read_bytes().splitlines(keepends=True)
    line = json.loads(lines[-1]) | {"version": 99, "mechanism": "of the future"}
    del line["digest"]
    digest = hashlib.sha256(json.dumps(line).encode()).hexdigest()
    newer = json.dumps(line | {"digest": digest}).encode() + b"\n"
    for read in (Ledger.read, Ledger.repair, partial(Ledger, dataset="digits")):
        written.write_bytes(b"".join([*lines[:-1], newer]))
        with pytest.raises(ValueError, match=r"ledger\.jsonl, line 7: .* newer version of noisette. Update noisette"):
            read(written)
        written.write_bytes(b"".join([*lines[:-1], newer.replace(b"future", b"past")]))
        with pytest.raises(ValueError, match="line 7: this line was altered"):
            read(written)


def test_charges_are_on_disk_before_they_happen_and_are_never_given_back(path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(path.read_text().count("charge")))
    with Ledger(path) as ledger:
        ledger.charge(QUERY)
        ledger.charge(QUERY, times=3)
        ledger.reserve(EVENT, 2)
        ledger.release()
    assert synced[:3] == [1, 1, 2]  # the file, its directory entry, the file
    assert ledger.events == Ledger.read(path).events == {QUERY: 4}
    assert ledger.tallies == Ledger.read(path).tallies == {QUERY: Tally(charged=4), EVENT: Tally(2, given_back=2)}
    assert ledger.committed == 0


def test_runs_that_take_turns_on_one_ledger_commit_their_own_steps():
    ledger = Ledger()
    ledger.charge(QUERY)
    with pytest.raises(PrivacyError, match=r"no reserved step; call reserve\(event, steps\)"):
        ledger.commit()
    ledger.reserve(EVENT, 1)
    ledger.reserve(OTHER, 4)
    with pytest.raises(PrivacyError, match=r"2 events.*commit\(event\)"):
        ledger.commit()  # guessing could give back a step that happened
    ledger.commit(EVENT)
    with pytest.raises(PrivacyError, match="no reserved step"):
        ledger.commit(EVENT)
    ledger.commit()
    ledger.release()
    assert ledger.events == {EVENT: 1, OTHER: 1, QUERY: 1}


@pytest.mark.parametrize(("record", "counted"), [("commit", 1), ("release", 4)])
def test_steps_whose_release_failed_are_not_given_back_later(path, monkeypatch, record, counted):
    ledger = Ledger(path)
    ledger.reserve(EVENT, 4)
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, line: write(descriptor, line[:40]))
    with pytest.raises(OSError, match=r"ledger\.jsonl"):
        getattr(ledger, record)()
    monkeypatch.undo()
    ledger.release()
    assert ledger.events == Ledger.read(path).events == {EVENT: counted}


def test_an_event_that_cannot_be_composed_with_the_ledger_is_refused(path):
    replaced = FixedSizeGaussian(batch_size=10, size=100, noise_multiplier=2.0)
    with Ledger(path) as ledger:
        ledger.reserve(EVENT, 4)
        for spend in (ledger.reserve, ledger.charge):
            with pytest.raises(ValueError, match=r"replace one.*add or remove.*other_neighbours=True"):
                spend(replaced, 1)
        with pytest.raises(TypeError, match="PoissonGaussian"):
            ledger.charge("Poisson Gaussian")
        ledger.charge(replaced, other_neighbours=True)
        ledger.charge(EVENT)
        ledger.charge(replaced)
    assert Ledger.read(path).events == {EVENT: 5, replaced: 2}


def test_a_number_of_steps_or_charges_is_a_whole_number(path):
    ledger = Ledger(path)
    for number in (0, -1, 1.5, "2", True):
        with pytest.raises((ValueError, TypeError), match="steps"):
            ledger.reserve(EVENT, number)
        with pytest.raises((ValueError, TypeError), match="times"):
            ledger.charge(EVENT, number)
    assert path.read_bytes() == b""


def test_a_ledger_that_was_rolled_back_and_written_anew_is_another(tmp_path):
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        ledger.reserve(EVENT, 4)
        early = (tmp_path / "ledger.jsonl").read_bytes()
        ledger.reserve(EVENT, 4)
        head = ledger.head
    (tmp_path / "ledger.jsonl").write_bytes(early)
    with Ledger(tmp_path / "ledger.jsonl") as again:
        again.reserve(EVENT, 4)
        assert again.events == {EVENT: 8}
        assert not again.holds(head)


def test_another_data_set_is_refused(written):
    with pytest.raises(ValueError, match="'digits', not of 'mnist'"):
        Ledger(written, dataset="mnist")
