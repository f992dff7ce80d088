"""Private fits of tables: what they learn, what they state, and what they must not read."""

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator

from noisette import Ledger, PrivateClassifier, PrivateRegressor
from noisette.core.noise import SecretKey
from noisette.integrations.scikit_learn import Knots, PrivateEstimator, UnitNorm, bounds_of_rows, feature_bounds
from noisette.ranks import Alone

RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, size=(1000, 2))
Y = np.where(np.abs(X[:, 0]) > 0.5, "outside", "inside")
DECLARED: dict[str, Any] = {"size": 1000, "bounds": (-1, 1), "epochs": 30.0}
CLASSES = ["outside", "inside"]


def classifier(**more: Any) -> PrivateClassifier:
    return PrivateClassifier(**{"epsilon": 3, "classes": CLASSES, **DECLARED, **more})


def regressor(**more: Any) -> PrivateRegressor:
    return PrivateRegressor(**{"epsilon": 3, "target_bounds": (-1, 2), **DECLARED, **more})


@pytest.fixture(scope="module")
def fitted() -> PrivateClassifier:
    return classifier().fit(X, Y)


def test_a_function_that_is_not_linear_is_learnt(fitted: PrivateClassifier) -> None:
    assert fitted.score(X, Y) > 0.9
    assert regressor().fit(X, np.abs(X[:, 0]) + X[:, 1]).score(X, np.abs(X[:, 0]) + X[:, 1]) > 0.8


def test_probabilities_are_in_the_order_of_the_classes(fitted: PrivateClassifier) -> None:
    assert fitted.classes_.tolist() == ["inside", "outside"]
    p = fitted.predict_proba(X)
    np.testing.assert_allclose(p.sum(1), 1)
    np.testing.assert_allclose(np.exp(fitted.predict_log_proba(X)), p)
    assert (fitted.predict(X) == fitted.classes_[p.argmax(1)]).all()
    assert p[np.flatnonzero(np.abs(X[:, 0]) > 0.9), 1].min() > 0.5


def test_values_count_as_the_nearer_bound(fitted: PrivateClassifier) -> None:
    far = np.array([[7.0, -3.0]])
    np.testing.assert_array_equal(fitted.predict_proba(far), fitted.predict_proba(np.array([[1.0, -1.0]])))
    assert (regressor(learning_rate=1e-9).fit(X, np.full(len(X), 1e9)).predict(far) <= 2).all()


@pytest.mark.parametrize("make", [PrivateClassifier, PrivateRegressor])
def test_everything_undeclared_is_refused_at_once(make: type[PrivateEstimator]) -> None:
    targets = Y if make is PrivateClassifier else X[:, 0]
    with pytest.raises(ValueError, match=r"not declared: (classes|target_bounds), size, bounds") as error:
        make(epsilon=3).fit(X, targets)  # type: ignore[attr-defined]
    assert all(way in str(error.value) for way in ("size=N", "bounds=(low, high)", "undeclared_from_rows=True"))


def test_public_numbers_do_not_depend_on_the_rows(fitted: PrivateClassifier) -> None:
    few = Y == "inside"
    other = classifier().fit(X[few] / 2, Y[few])
    assert fitted.delta_ == 1e-5
    for name in ("noise_multiplier_", "n_iter_", "batch_size_", "learning_rate_", "delta_", "epsilon_", "privacy_"):
        assert getattr(other, name) == getattr(fitted, name), name
    assert other.classes_.tolist() == fitted.classes_.tolist()
    assert other.bounds_.tolist() == fitted.bounds_.tolist()
    assert [p.shape for p in other.model_.parameters()] == [p.shape for p in fitted.model_.parameters()]


def test_a_label_that_is_not_declared_is_refused_without_naming_it() -> None:
    with pytest.raises(ValueError, match="row 5") as error:
        classifier().fit(X, np.where(np.arange(len(Y)) == 5, "secret", Y))
    assert "secret" not in str(error.value)


def test_wrong_numbers_are_listed_together() -> None:
    wrong = {"epsilon": -1, "n_knots": -2, "size": 0, "bounds": (1, 0), "hidden_layer_sizes": (0,), "epochs": 0.0}
    with pytest.raises(ValueError) as error:
        classifier(**wrong).fit(X, Y)
    assert all(name in str(error.value) for name in wrong)
    with pytest.raises(ValueError, match=r"delta=0.01 is not below one over the declared size"):
        classifier(delta=0.01).fit(X, Y)
    for classes, said in ((["a"], "1 class"), (["a", "a", "b"], "different")):
        with pytest.raises(ValueError, match=said):
            classifier(classes=classes).fit(X, np.full(len(X), "a"))


def test_the_statement_says_what_was_read_from_the_rows() -> None:
    model = PrivateClassifier(epsilon=3, epochs=2.0, undeclared_from_rows=True, bounds=(-1, 1)).fit(X, Y)
    assert model.read_from_rows_ == ("classes", "size")
    assert model.privacy_.startswith("Read from the rows and NOT covered by epsilon: classes, size")
    assert "NOT covered" not in classifier(epochs=2.0).fit(X, Y).privacy_


def test_fits_with_one_ledger_share_its_budget(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    model = classifier(epsilon=1.0, epochs=3.0, ledger=path)
    assert model.fit(X, Y).epsilon_ <= 1.0
    assert path.exists()
    second = clone(model).set_params(epsilon=1.5).fit(X, Y)
    alone = clone(model).set_params(epsilon=1.5, ledger=None).fit(X, Y)
    assert second.noise_multiplier_ > 1.1 * alone.noise_multiplier_
    assert 1.0 < second.epsilon_ <= 1.5


def test_clones_write_to_the_same_ledger() -> None:
    ledger = Ledger()
    model = classifier(ledger=ledger, epochs=2.0)
    assert clone(make_pipeline(FunctionTransformer(), model))[-1].ledger is ledger
    assert clone(model).get_params() == model.get_params()


def test_a_number_of_few_rows_is_predicted_better_than_by_a_constant_or_warned_of() -> None:
    rows, numbers = load_diabetes(return_X_y=True)
    public: dict[str, Any] = {"size": 442, "bounds": (-0.2, 0.2), "target_bounds": (0, 350)}
    scores = [PrivateRegressor(epsilon=1, **public).fit(rows, numbers).score(rows, numbers) for _ in range(3)]
    assert np.median(scores) > 0.1
    with pytest.warns(UserWarning, match="use more rows, a larger epsilon"):
        PrivateRegressor(epsilon=0.3, **public).fit(rows, numbers)
    with pytest.warns(UserWarning, match="noise hides what there is to learn.*noisette plan"):
        classifier(epsilon=1e-3, epochs=0.6).fit(X, Y)


def test_a_network_has_its_first_weights_from_random_state() -> None:
    settings = {"hidden_layer_sizes": (4,), "learning_rate": 1e-12, "epochs": 0.3}
    one, same, other = (classifier(**settings, random_state=s).fit(X, Y).model_[1][0].weight for s in (0, 0, 1))
    np.testing.assert_allclose(one.detach(), same.detach(), atol=1e-8)
    assert (one - other).abs().max() > 0.01


def test_few_rows_are_no_error() -> None:
    """The number of rows is private: a data set with one row trains like any other."""
    assert classifier(epochs=2.0).fit(X[:1], Y[:1]).predict(X).shape == (1000,)


def people(n: int) -> Any:
    pandas = pytest.importorskip("pandas", reason="frames of pandas")
    age, job = RNG.uniform(0, 120, n), RNG.choice(["cook", "smith", None], n)
    return pandas.DataFrame({"age": age, "job": job, "secret": RNG.uniform(size=n)})


COLUMNS = """
[columns.age]
kind = "number"
low = 0
high = 100
[columns.job]
kind = "category"
categories = ["cook", "smith"]
missing = "own category"
"""


def test_declared_columns_of_a_frame(tmp_path: Path) -> None:
    path = tmp_path / "schema.toml"
    path.write_text(COLUMNS)
    frame = people(2000)
    rent = 300 + 5 * frame["age"].clip(0, 100) + 200 * (frame["job"] == "cook")
    model = regressor(bounds=None, columns=path, target_bounds=(0, 1500), epochs=60.0).fit(frame, rent)
    assert model.score(frame, rent) > 0.8
    assert model.bounds_.tolist() == [[-1, 0, 0, 0], [1, 1, 1, 1]]
    as_lists = {"job": list(frame["job"]), "age": list(frame["age"])}
    np.testing.assert_array_equal(model.predict(as_lists), model.predict(frame))
    assert clone(model).set_params(epochs=1.0).fit(as_lists, rent).n_features_in_ == 2
    np.testing.assert_array_equal(model.predict(frame.assign(age=1e6)), model.predict(frame.assign(age=100.0)))
    tables = tomllib.loads(COLUMNS)["columns"]
    high = classifier(bounds=None, columns=tables, classes=2).fit(frame, (frame["age"] > 50).astype(int))
    assert high.score(frame, (frame["age"] > 50).astype(int)) > 0.9


def test_wrong_columns_are_refused(tmp_path: Path) -> None:
    frame, path = people(20), tmp_path / "schema.toml"
    path.write_text(COLUMNS)
    with pytest.raises(ValueError, match="bounds or columns"):
        classifier(columns=path).fit(frame, Y[:20])
    with pytest.raises(ValueError, match="none of its declared categories") as error:
        classifier(bounds=None, columns=path).fit(frame.assign(job="spy"), Y[:20])
    assert "spy" not in str(error.value)
    path.write_text('[columns.age]\nkind = "number"\n')
    with pytest.raises(ValueError, match="'age': declare low and high"):
        classifier(bounds=None, columns=path).fit(frame, Y[:20])
    with pytest.raises(ValueError, match="X holds texts") as error:
        classifier().fit(frame.assign(job="spy"), Y[:20])
    assert "spy" not in str(error.value)


def test_a_fit_that_fails_leaves_the_last_one() -> None:
    model = classifier(epochs=1.0).fit(X, Y)
    before, predicted = {name: value for name, value in vars(model).items() if name.endswith("_")}, model.predict(X)
    for changed in ({"classes": ["a", "b"]}, {"bounds": (-2, 2), "batch_size": 10**7}):
        with pytest.raises(ValueError):
            model.set_params(**changed).fit(X, Y)
        assert {name: value for name, value in vars(model).items() if name.endswith("_")} == before
    assert (model.predict(X) == predicted).all()


@pytest.mark.parametrize("make", [classifier, regressor])
def test_errors_about_the_form_of_rows_contain_no_value(make: Any) -> None:
    y = Y if make is classifier else X[:, 0]
    for rows, said in [
        (X[:, 0], "Expected 2D array.*reshape"),
        (X + 1j, "Complex data not supported"),
        (np.full((1000, 2), "secret"), "X holds texts"),
        (np.array(0.123), "Expected 2D array"),
    ]:
        with pytest.raises(ValueError, match=said) as raised:
            make().fit(rows, y)
        assert not any(words in str(raised.value) for words in ("0.", "array=", "secret"))
    with pytest.raises(ValueError, match="Complex data not supported"):
        regressor().fit(X, X[:, 0] + 1j)
    for texts in (np.array(["secret"] * 1000, dtype=object), X[:, 0].astype(str).tolist()):
        with pytest.raises(ValueError, match=r"^y holds texts.*y\.astype\(float\)"):
            regressor().fit(X, texts)
    model = make(epochs=1.0).fit(X, y)
    with pytest.raises(ValueError, match="Expected 2D array") as raised:
        model.predict(X[0])
    assert "0." not in str(raised.value)


@pytest.mark.parametrize("bounds", [(0, 1), ([0, 0], np.ones(2)), {"a": (0, 1), "b": (0, 1)}])
def test_forms_of_bounds(bounds: Any) -> None:
    assert feature_bounds(bounds, ["a", "b"], 2).tolist() == [[0, 0], [1, 1]]


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ((0, 0), "each low one below its high one"),
        ((0, np.inf), "finite"),
        ((0, [1, 2, 3]), "each a number or 2 numbers"),
        (5, "as \\(low, high\\)"),
        ({"a": (0, 1), "c": (0, 1)}, "'b' has no bounds; there is no column 'c'"),
    ],
)
def test_wrong_bounds_are_refused(bounds: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        feature_bounds(bounds, ["a", "b"], 2)  # type: ignore[arg-type]


def test_bounds_of_constant_columns_are_apart() -> None:
    low, high = bounds_of_rows(np.array([[1.0, 1e20], [3.0, 1e20]]))
    assert (low < high).all()


def test_triangles_interpolate_on_the_grid_of_tops() -> None:
    x = torch.rand(50, 3, dtype=torch.float64)
    heights = 2 * Knots(5)(x)[:, 3:].view(50, 3, 5)
    for knot in range(5):
        expected = np.interp(x.numpy(), np.linspace(0, 1, 6), np.eye(6)[knot + 1])
        np.testing.assert_allclose(heights[..., knot].numpy(), expected, atol=1e-12)
    # An indicator takes part only where it is one.
    assert Knots(8)(torch.zeros(1, 4)).eq(0).all()
    assert Knots(8)(torch.tensor([[1.0, 0.0]])).nonzero()[:, 1].tolist() == [0, 2 + 7]


def test_a_row_does_not_depend_on_the_others() -> None:
    fixed, rows = torch.nn.Sequential(Knots(3), UnitNorm()), torch.rand(7, 4, dtype=torch.float64)
    rows[3] *= 1e6
    together = fixed(rows)
    assert torch.equal(together, torch.cat([fixed(row[None]) for row in rows]))
    torch.testing.assert_close(together.norm(dim=1), torch.ones(7, dtype=torch.float64))
    assert UnitNorm()(torch.zeros(2, 3)).eq(0).all()


# The checks declare nothing, so it is read from the rows. They have 20 to 300 rows, which need a large epsilon.
AS_CHECKED: dict[str, Any] = {"undeclared_from_rows": True, "epochs": 6.0, "epsilon": 60.0, "n_knots": 8}
SKIPPED = {  # of estimators that are tagged as non-deterministic, and where pandas is not installed
    *("check_pipeline_consistency", "check_array_api_input"),
    *("check_classifier_data_not_an_array", "check_regressor_data_not_an_array"),
}

REFUSED = dict.fromkeys(
    [f"check_sample_weight{what}" for what in ("s_list", "s_not_overwritten", "_equivalence_on_dense_data")]
    + ["check_classifiers_one_label_sample_weights"],
    "weights of zero and above 1 are refused",
)


@pytest.mark.parametrize("kind", [PrivateClassifier, pytest.param(PrivateRegressor, marks=pytest.mark.slow)])
def test_every_check_passes_but_for_the_randomness(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one key for all fits they are equal, so that every check can pass, and all of them do."""
    monkeypatch.setattr(Alone, "key", lambda self: SecretKey(bytes(32)))
    results = check_estimator(kind(**AS_CHECKED), expected_failed_checks=REFUSED, on_fail=None, on_skip=None)
    assert {r["check_name"] for r in results if r["status"] != "passed"} <= SKIPPED | REFUSED.keys()
    assert not [r["check_name"] for r in results if r["status"] == "failed"]
    assert len({r["check_name"] for r in results if r["status"] == "passed"}) >= 40


def test_a_rare_class_is_not_stated_too_rare_where_there_is_signal(fitted: PrivateClassifier) -> None:
    rng = np.random.default_rng(0)
    rows = rng.uniform(-1, 1, size=(8000, 2))
    ill = rng.uniform(size=8000) < 0.3 * (rows[:, 0] > 0.5)
    model = PrivateClassifier(epsilon=3, size=8000, bounds=(-1, 1), classes=2).fit(rows, ill.astype(int))
    assert model.predict_proba(rows)[:, 1].mean() == pytest.approx(ill.mean(), rel=0.1)
    assert "a Euclidean norm of at most 2, so" in " ".join(model.privacy_.split())
    assert f"standard deviation {model.noise_multiplier_:.6g} times 2 (" in " ".join(model.privacy_.split())
    assert "a Euclidean norm of at most 1, so" in " ".join(fitted.privacy_.split())


def test_declared_weights_of_classes_move_the_border() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(1000, 1))
    y = np.where(rng.uniform(size=1000) < (X[:, 0] + 1) / 2, "ill", "well")
    given: dict[str, Any] = {**DECLARED, "epsilon": 8, "classes": ["ill", "well"], "epochs": 15.0}
    share = {}
    for weight in (None, {"ill": 4.0}, {"well": 4.0}):
        model = PrivateClassifier(**given, class_weight=weight).fit(X, y)
        share[str(weight)] = float((model.predict(X) == "ill").mean())
    assert share["{'well': 4.0}"] + 0.1 < share["None"] < share["{'ill': 4.0}"] - 0.1
    wrongs: list[Any] = [("balanced", "count private labels"), ({"sick": 2}, "declared classes"), ({"ill": 0}, "> 0")]
    for wrong, says in wrongs:
        with pytest.raises(ValueError, match=says):
            PrivateClassifier(**given, class_weight=wrong).fit(X, y)


def test_weights_of_rows_count_before_clipping_and_are_passed_on_by_scikit_learn() -> None:
    """Rows that count little do not decide; those of each fold get their own weights."""
    one_side = np.where(X[:, 0] > 0, 1.0, 0.001)
    mixed = np.where(X[:, 0] > 0, X[:, 1] > 0, X[:, 1] < 0).astype(int)
    model = PrivateClassifier(epsilon=8, **DECLARED, classes=2, n_knots=0)
    trained = clone(model).fit(X, mixed, sample_weight=one_side)
    assert trained.score(X, mixed, sample_weight=one_side) > 0.9
    assert trained.score(X[X[:, 0] < 0], mixed[X[:, 0] < 0]) < 0.5
    with config_context(enable_metadata_routing=True):
        model.set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        scores = cross_val_score(model, X, mixed, params={"sample_weight": one_side})
    assert scores.min() > 0.85
    even = np.where(X[:, 0] > 0, 1, -1.0)
    assert regressor(bounds=(-1, 1), n_knots=0, epochs=5.0).fit(0 * X, even, one_side).predict([[0, 0]])[0] > 0.5
    for wrong in (one_side * 1.01, one_side * 0, one_side * np.nan, one_side[1:], np.ones((len(X), 2))):
        with pytest.raises(ValueError, match=r"at most 1: divide it|inconsistent|1d array"):
            regressor().fit(X, even, sample_weight=wrong)
