"""Files that cannot be followed or read give one message and exit code 2."""

import pytest

from command_line import noisette, refusal


@pytest.mark.parametrize("command", [("ledger", "show"), ("audit",), ("train", "--resume"), ("train", "--data")])
def test_links_that_lead_to_each_other(tmp_path, command):
    (tmp_path / "one").symlink_to(tmp_path / "two")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    assert refusal(noisette(*command, tmp_path / "one")).stderr.startswith("Error: ")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["one", "two"]


def test_facts_that_are_nested_too_deeply(tmp_path):
    (tmp_path / "run.json").write_text('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}")
    assert refusal(noisette("audit", tmp_path)).stderr.startswith("Error: ")
