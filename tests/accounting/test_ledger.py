import errno
import json
import os
import stat
from collections import Counter

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant

from noisette.accounting import Ledger, MomentsAccountant, PldAccountant, PoissonGaussian, RdpAccountant
from noisette.errors import PrivacyRefusal

EVENT = PoissonGaussian(0.01, 1.1)
OTHER = PoissonGaussian(1.0, 7.0)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


@pytest.fixture
def written(path):
    """A ledger of one finished run: 16 steps reserved, 3 released, 13 given back; then a release of another kind."""
    ledger = Ledger(path, dataset="digits")
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
    assert [stat.S_ISDIR(s.st_mode) for s in synced] == [False, True]  # the file, and the folder that now names it
    assert synced[0].st_size == path.stat().st_size > 0
    ledger.commit()
    assert len(synced) == 2  # a commit may be lost: it does not change the price
    ledger.release()
    assert len(synced) == 3


def test_each_line_is_an_object_that_follows_from_the_one_before(written):
    lines = [json.loads(line) for line in written.read_text().splitlines()]
    assert [line["sequence"] for line in lines] == list(range(7))
    assert [line["kind"] for line in lines] == ["reserve"] + ["commit"] * 3 + ["release", "reserve", "commit"]
    assert [line["steps"] for line in lines] == [16, 1, 1, 1, 13, 1, 1]
    assert {line["dataset"] for line in lines} == {"digits"}
    assert [line["previous"] for line in lines] == ["", *(line["digest"] for line in lines[:-1])]


def test_only_its_owner_may_read_it(written):
    assert stat.S_IMODE(written.stat().st_mode) == 0o600


def test_it_reads_back_what_was_written(written):
    ledger = Ledger.read(written)
    assert (ledger.events, ledger.committed, ledger.dataset) == ({EVENT: 3, OTHER: 1}, 4, "digits")


def test_a_crash_keeps_the_reservation(path):
    first = Ledger(path)
    first.reserve(EVENT, 16)
    first.commit()
    del first
    second = Ledger(path)
    second.reserve(EVENT, 5)
    second.commit()
    second.release()  # its own 4, never the 15 of the process that died
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


@pytest.mark.parametrize("kept", [1, 50, -1])
def test_a_truncated_line_is_refused_with_its_number(written, kept):
    lines = written.read_bytes().splitlines(keepends=True)
    written.write_bytes(b"".join(lines[:4]) + lines[4][:kept])
    with pytest.raises(ValueError, match="line 5: "):
        Ledger.read(written)
    with pytest.raises(ValueError, match="line 5: "):
        Ledger(written, dataset="digits")


def test_a_missing_line_and_swapped_lines_are_refused(written):
    lines = written.read_bytes().splitlines(keepends=True)
    for changed, line in [
        (lines[1:], 1),
        (lines[:2] + lines[3:], 3),
        ([lines[0], lines[2], lines[1], *lines[3:]], 2),
        ([*lines[:3], lines[2], *lines[3:]], 4),
    ]:
        written.write_bytes(b"".join(changed))
        with pytest.raises(ValueError, match=f"line {line}: "):
            Ledger.read(written)


@pytest.mark.parametrize("content", [b"\n", b"[]\n", b"3\n", b"{}\n", b"\xff\xfe\n", b"null\n"])
def test_what_is_no_ledger_is_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(ValueError, match="line 1: "):
        Ledger.read(path)


def test_a_missing_file_is_not_an_empty_ledger(path):
    with pytest.raises(FileNotFoundError):
        Ledger.read(path)


def test_another_data_set_is_refused(written):
    with pytest.raises(ValueError, match="'digits', not of 'mnist'"):
        Ledger(written, dataset="mnist")


def test_a_step_without_a_reservation_is_refused():
    ledger = Ledger()
    with pytest.raises(PrivacyRefusal, match="reserve"):
        ledger.commit()
    ledger.reserve(EVENT, 1)
    ledger.commit()
    with pytest.raises(PrivacyRefusal, match="reserve"):
        ledger.commit()


def test_a_second_writer_is_noticed(path):
    first, second = Ledger(path), Ledger(path)
    first.reserve(EVENT, 1)
    with pytest.raises(PrivacyRefusal, match="changed"):
        second.reserve(EVENT, 1)
    assert second.events == {}
    assert Ledger.read(path).events == {EVENT: 1}


def test_a_full_disk_leaves_no_half_line_and_no_reservation(path, monkeypatch):
    ledger = Ledger(path)
    ledger.reserve(EVENT, 4)
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, line: write(descriptor, line[:40]))
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        ledger.reserve(EVENT, 4)
    monkeypatch.undo()
    assert ledger.events == Ledger.read(path).events == {EVENT: 4}
    ledger.commit()
    assert Ledger.read(path).committed == 1


@pytest.mark.parametrize("steps", [0, -1, 1.5, "2", True])
def test_a_number_of_steps_is_a_whole_number(path, steps):
    ledger = Ledger(path)
    with pytest.raises((ValueError, TypeError), match="steps"):
        ledger.reserve(EVENT, steps)
    assert not path.exists()


def reprice(path, delta):
    """Epsilon of a ledger file, by someone who trusts dp-accounting and nothing of noisette."""
    times = Counter()
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        sign = {"reserve": 1, "commit": 0, "release": -1}[entry["kind"]]
        times[entry["sampling_rate"], entry["noise_multiplier"]] += sign * entry["steps"]
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    for (rate, noise), count in times.items():
        accountant.compose(dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise)), count)
    return accountant.get_epsilon(delta)


def test_it_can_be_priced_without_noisette(path):
    ledger = Ledger(path, dataset="mnist")
    ledger.reserve(OTHER, 1)
    ledger.commit()
    ledger.reserve(PoissonGaussian(256 / 60_000, 1.1), 1000)
    for _ in range(700):
        ledger.commit()
    ledger.release()
    ours = PldAccountant().price(Ledger.read(path).events).epsilon(delta=1e-5)
    assert ours == pytest.approx(reprice(path, 1e-5), rel=1e-3)


PARTS = PoissonGaussian(0.01, 1.1, (("gradient", 0.99), ("clipping count", 0.01)))


def test_parts_of_an_event_are_written_down_and_read_back(path):
    ledger = Ledger(path)
    ledger.reserve(PARTS, 3)
    ledger.reserve(EVENT, 1)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0]["parts"] == {"gradient": 0.99, "clipping count": 0.01}
    assert "parts" not in lines[1], "a line without parts is as it ever was"
    assert Ledger.read(path).events == {PARTS: 3, EVENT: 1}
    assert "clipping count" in repr(Ledger.read(path).events)


def test_altered_parts_are_refused(path):
    Ledger(path).reserve(PARTS, 3)
    line = path.read_bytes()
    for change in (
        (b"0.99", b"0.98"),
        (b"clipping count", b"clipping-count"),
        (b'{"gradient": 0.99, "clipping count": 0.01}', b"{}"),
        (b'{"gradient": 0.99, "clipping count": 0.01}', b'["ab"]'),
        (b'{"gradient": 0.99, "clipping count": 0.01}', b"7"),
    ):
        altered = line.replace(*change)
        assert altered != line
        path.write_bytes(altered)
        with pytest.raises(ValueError, match="line 1: "):
            Ledger.read(path)


@pytest.mark.parametrize("accountant", [PldAccountant(), RdpAccountant(), MomentsAccountant()], ids=lambda a: a.name)
def test_parts_change_no_price(accountant):
    assert accountant.price({PARTS: 30}).epsilon(delta=1e-5) == accountant.price({EVENT: 30}).epsilon(delta=1e-5)


@pytest.mark.parametrize("parts", [(("a", 0.5),), (("a", 0.5), ("b", 0.6)), (("a", 0.0), ("b", 1.0)), (("a", "1"),)])
def test_parts_that_are_no_parts_of_one_are_refused(parts):
    with pytest.raises((ValueError, TypeError), match="share"):
        PoissonGaussian(0.01, 1.1, parts)
