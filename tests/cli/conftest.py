import pytest


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    """Every test is called in an empty folder of its own."""
    monkeypatch.chdir(tmp_path)
