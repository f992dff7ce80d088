"""Data sets are checked and held out by a secret key; files are found or downloaded; words are numbered by a hash."""

import math
from pathlib import Path

import numpy as np
import pooch
import pytest

from noisette.data import DataError, DataSet, Split, files, load
from noisette.data.dataset import Target, hold_out, refuse
from noisette.data.words import PADDING, Numbering, frequent_words, number_of, split

KEY, OTHER = b"k" * 32, b"o" * 32
N = 4000


def of_labels(*targets: int, width: int = 2) -> Split:
    return Split(np.zeros((3, width), np.float32), np.array(targets, np.int64))


def texts(*numbers: int, kind: type = np.int64) -> Split:
    return Split(np.array([numbers] * 2, kind), np.array([0, 1], np.int64))


def refusal(train: Split, test: Split | None = None, **facts) -> str:
    with pytest.raises(DataError) as caught:
        DataSet("toy", train, test, **{"classes": 2, "declared_size": 2} | facts)
    return str(caught.value)


def test_one_problem_is_one_line_and_of_many_the_rest_is_counted() -> None:
    with pytest.raises(DataError, match=r"^a.csv: it is blue$"):
        refuse("a.csv", ["it is blue"])
    with pytest.raises(DataError) as caught:
        refuse("a.csv", [f"problem {number}" for number in range(13)])
    first, *lines = str(caught.value).splitlines()
    assert first == "a.csv: 13 problems"
    assert [line.strip() for line in lines] == [f"problem {number}" for number in range(10)] + ["and 3 more"]


def test_everything_that_does_not_fit_is_listed() -> None:
    message = refusal(of_labels(0, -1, 7), of_labels(0, 0, width=3), classes=7)
    assert "3 problems" in message
    assert "train has 2 labels outside 0..6, the first at index 1" in message
    assert "test has 3 inputs but 2 labels" in message
    assert "shape (2,), those of test (3,)" in message


def test_words_must_have_their_numbers() -> None:
    assert DataSet("toy", texts(0, 4), None, classes=2, declared_size=2, words=5).words == 5
    message = refusal(texts(0, 5), texts(-1, 0), words=5)
    assert "train has 2 texts with words outside 0..4, the first at index 0" in message
    assert "test has 2 texts with words outside 0..4" in message
    message = refusal(texts(0, 1, kind=np.float32), words=5)
    assert "train has inputs of float32, shape (2, 2)" in message


def test_targets_are_clipped_scaled_and_come_back_in_the_unit() -> None:
    for bounds in ((1, 1), (2, 1), (0, math.inf), (math.nan, 1)):
        with pytest.raises(DataError, match="expected finite low < high"):
            Target(*bounds)
    target, values = Target(-40, 60), np.linspace(-40, 60, 23)
    np.testing.assert_allclose(target.unscaled(target.scaled(values)), values, atol=1e-4)
    assert target.scaled(np.array([-99.0, 1e9])).tolist() == [-1, 1]
    regression = Split(np.zeros((2, 1), np.float32), np.array([0, 1.5], np.float32))
    assert "train has 1 targets outside -1..1" in refusal(regression, classes=1, target=target)


def records(n: int = N, users: list[str] | None = None) -> DataSet:
    inputs = np.arange(n, dtype=np.float32)[:, None]
    return DataSet("table", Split(inputs, np.zeros(n, np.int64), users), None, classes=2, declared_size=5000)


def held(data: DataSet) -> set[float]:
    return set(data.test.inputs[:, 0].tolist())


def test_each_record_is_on_one_side_by_the_key() -> None:
    found = hold_out(records(), 0.2, KEY)
    assert held(found) | set(found.train.inputs[:, 0].tolist()) == set(range(N))
    assert abs(len(held(found)) - 0.2 * N) < 4 * np.sqrt(0.2 * 0.8 * N)
    assert found.declared_size == 4000
    assert held(hold_out(records(), 0.2, KEY)) == held(found) != held(hold_out(records(), 0.2, OTHER))
    assert held(hold_out(records(N - 1), 0.2, KEY)) == held(found) - {N - 1}, "later records do not matter"
    assert sorted(held(found))[:6] == [7, 11, 19, 22, 38, 40], "the same in every version"


def test_all_records_of_a_user_are_on_one_side() -> None:
    users = [f"user {index % 97}" for index in range(N)]
    found = hold_out(records(users=users), 0.3, KEY)
    assert not set(found.train.users) & set(found.test.users)
    assert [users[int(place)] for place in found.test.inputs[:, 0]] == list(found.test.users)


def test_what_cannot_be_held_out() -> None:
    for share in (0.0, 1.0, -0.1, math.nan):
        with pytest.raises(DataError, match="expected 0 < holdout < 1"):
            hold_out(records(), share, KEY)
    with pytest.raises(DataError, match="has test examples already"):
        hold_out(hold_out(records(), 0.5, KEY), 0.5, KEY)
    with pytest.raises(DataError, match="one part is empty"):
        hold_out(records(1), 0.5, KEY)


def reader(folder: Path) -> DataSet:
    split = Split(np.frombuffer((folder / "whole").read_bytes(), np.uint8)[:, None], np.zeros(4, np.int64))
    return DataSet(name="toy", train=split, test=None, classes=2, declared_size=4)


def test_download_into_the_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def retrieve(url: str, *, known_hash: str, fname: str, path: Path) -> None:
        assert (url, known_hash) == ("https://there/whole", "sha256:00")
        path.mkdir(parents=True)
        (path / fname).write_bytes(bytes(range(4)))

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    found = files.read("toy", files.Source("https://there/", {"whole": "sha256:00"}), reader, data_dir=None)
    assert found.train.inputs.ravel().tolist() == [0, 1, 2, 3]
    assert [path.name for path in (cache / "toy").iterdir()] == ["whole"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [(ValueError("hash"), "the checksum differs"), (OSError(28, "No space left on device"), "No space left on device")],
)
def test_a_failed_download_says_why(error: Exception, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def retrieve(url: str, **settings: object) -> str:
        raise error

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    with pytest.raises(DataError, match=rf"toy is not on this machine and could not be downloaded \({reason}.*: put"):
        files.read("toy", files.Source("https://there/", {"whole": "sha256:00"}), reader, data_dir=None)


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_the_error_without_a_network_says_which_files_to_put_where(name: str, tmp_path: Path, cache: Path) -> None:
    with pytest.raises(DataError) as caught:
        load(name, data_dir=tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    assert "could not be downloaded (ConnectionError)" in message
    assert message.endswith(f" into {tmp_path / name}")
    assert "http" in message
    assert not cache.exists()
    with pytest.raises(DataError, match=f"into {cache / name}$"):
        load(name)


def test_folders_are_searched_in_order(tmp_path, cache, monkeypatch, write_idx_set, idx_of) -> None:
    given, environment = tmp_path / "given", tmp_path / "environment"
    for mark, parent in enumerate((given, environment, cache)):
        write_idx_set(parent / "mnist")
        (parent / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(idx_of(np.full(5, mark)))
    monkeypatch.setenv("NOISETTE_DATA", str(environment))

    def mark_of(data_dir: Path | None) -> int:
        return load("mnist", data_dir=data_dir).test.targets[0]

    assert mark_of(given) == 0
    (given / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()  # three of four files are not the data set
    assert (mark_of(given), mark_of(None)) == (1, 1)
    monkeypatch.delenv("NOISETTE_DATA")
    assert mark_of(None) == 2


FEW = Numbering(tokens=3, words=50)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("  \t\n", []),
        ("the U.S. and the U.N.'s envoy", ["the", "u.s.", "and", "the", "u.n.", "'s", "envoy"]),
        ("up 1,000.50, or 3.5%.", ["up", "1,000.50", ",", "or", "3.5", "%", "."]),
        ("the 4th of the 1980s", ["the", "4th", "of", "the", "1980s"]),
        ("They're sure it isn't, can't", ["they", "'re", "sure", "it", "is", "n't", ",", "ca", "n't"]),
        ("traders’ ultra-cynics -- or...", ["traders", "'", "ultra", "-", "cynics", "--", "or", "..."]),
        ("snake_case a1b2", ["snake", "_", "case", "a", "1", "b", "2"]),
        ("Zürich ÉTÉ 東京", ["zürich", "été", "東京"]),
        # Remains of markup are decoded or removed.
        ("the company #39;s  #36;10", ["the", "company", "'s", "$", "10"]),
        ("said  quot;yes, quot; AT amp;T", ["said", '"', "yes", ",", '"', "at", "&", "t"]),
        ("fell \\$36bn\\band", ["fell", "$", "36", "bn", "band"]),
        ('&lt;A HREF="http://www.x.com/a"&gt;DELL.O&lt;/A&gt;', ["dell", ".", "o"]),
        ("1 &lt; 2 &amp; 3; team #1", ["1", "<", "2", "&", "3", ";", "team", "#", "1"]),
    ],
)
def test_words_numbers_and_punctuation_are_separated(text: str, words: list[str]) -> None:
    assert split(text) == words


def test_long_texts_are_truncated_and_short_ones_padded_at_the_end() -> None:
    hashed = FEW.number(["", "one", "One two three four"])
    assert hashed[:2].tolist() == [[PADDING] * 3, [hashed[2, 0], PADDING, PADDING]]
    assert (hashed[2] > PADDING).all()
    assert hashed.max() < FEW.size


def test_the_number_of_a_word_depends_on_no_other_text() -> None:
    texts = ["a good film", "zyzzyva " * 50, "the oil is dull", "oil"]
    for row, text in zip(FEW.number(texts), texts, strict=True):
        assert np.array_equal(FEW.number([text])[0], row)


def test_hashed_numbers_are_always_the_same_and_spread_evenly() -> None:
    assert [number_of(word, 100) for word in ("oil", "rose")] == [29, 4]
    numbers = Numbering(tokens=1, words=101).number(["".join(chr(97 + int(d)) for d in str(n)) for n in range(5000)])
    counts = np.bincount(numbers[:, 0], minlength=101)[1:]
    assert counts.min() > 50 - 5 * 7
    assert counts.max() < 50 + 5 * 7


def test_common_words_are_all_different_and_have_numbers_from_1_on() -> None:
    words = frequent_words()
    assert len(words) == len(set(words)) == 1000
    assert words[:4] == ["the", ",", ".", "of"]
    assert all(word == word.lower() for word in words)
    numbers = [number_of(word, 50) for word in words]
    assert (min(numbers), max(numbers)) == (1, 49)


def test_what_cannot_number_words(tmp_path: Path) -> None:
    for settings in ({"tokens": 0}, {"words": 1}):
        with pytest.raises(DataError, match="expected tokens >= 1 and words >= 2"):
            Numbering(**settings)
    with pytest.raises(DataError, match="holds no tokenizer that can be loaded"):
        Numbering(folder=tmp_path).number(["a"])
