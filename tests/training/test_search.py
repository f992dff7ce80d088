"""A search: what it charges and costs, what its rehearsal finds, and what leaves it."""

import math
import warnings
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from torch import nn

from noisette.accounting import Gaussian, Ledger, PoissonGaussian
from noisette.accounting.repeated_runs import NumberOfRuns, shapes_for
from noisette.data import DataSet, Split
from noisette.errors import PrivacyError
from noisette.training import search as search_module
from noisette.training.recipe import Recipe
from noisette.training.search import HeldOutScore, PublicScore, Search
from noisette.training.search_space import SearchSpace

SIZE, STEPS = 400, 5
TABLES = {"data": {"name": "own.npz", "classes": 3, "size": SIZE}, "model": {"name": "linear"}}
TABLES["privacy"] = {"epsilon": 3.0, "delta": 1e-4}
TABLES["training"] = {"epochs": 0.5, "batch_size": 40, "lr": 1.0, "compile": "no"}
RECIPE = Recipe.of(TABLES, "a test")
OVER = "lr=log(0.01,10) max_grad_norm=uniform(0.05,1)"
REAL = 7.0  # in the first place of each record, where a made-up one is below 1


def split_of(records, seed):
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(records, 4)).astype(np.float32)
    inputs[:, 0] = REAL
    return Split(inputs, random.integers(0, 3, records))


def own_data(test=True):
    return DataSet("own", split_of(SIZE, 0), split_of(60, 1) if test else None, 3, SIZE)


def search_of(recipe=RECIPE, over=OVER, score=None, mean=4.0, shape=0.0, data=None):
    space = SearchSpace.read([over], recipe)
    return Search(recipe, space, score or PublicScore(), data or own_data(), mean=mean, shape=shape)


def nothing_shown(number, run):
    pass


def watched(monkeypatch, runs):
    """The ledger of each of so many runs, and the run, once the search is made."""
    monkeypatch.setattr(NumberOfRuns, "draw", lambda self, key: runs)
    made, whole = [], Search._train

    def train(self, recipe, ledger, on_step):
        made.append((ledger, whole(self, recipe, ledger, on_step)))
        return made[-1][1]

    monkeypatch.setattr(Search, "_train", train)
    return made


@pytest.fixture(scope="module")
def public_search():
    return search_of()


@pytest.fixture(scope="module")
def held_out_search():
    return search_of(score=HeldOutScore(0.2, 12.0))


def oracle(event, delta):
    """The epsilon of a search, by the library's own accountant."""
    parts = []
    for release, times in event.run:
        noise = dp_event.GaussianDpEvent(release.noise_multiplier)
        sampled = dp_event.PoissonSampledDpEvent(getattr(release, "sampling_rate", 1.0), noise)
        parts.append(dp_event.SelfComposedDpEvent(sampled, times))
    whole = dp_event.RepeatAndSelectDpEvent(dp_event.ComposedDpEvent(parts), event.mean, event.shape)
    return RdpAccountant().compose(whole).get_epsilon(delta)


def test_the_whole_search_keeps_the_budget_by_an_accountant_of_its_own(held_out_search):
    for search in (held_out_search, search_of(mean=2.0, shape=1.0)):
        priced = oracle(search.event, 1e-4)
        assert priced <= 3.0 * 1.001  # it has fewer orders
        assert priced == pytest.approx(search.epsilon, rel=0.01)
        assert 2.9 < search.epsilon <= 3.0


def test_each_run_releases_its_steps_and_its_score_and_no_more(held_out_search, monkeypatch):
    assert held_out_search.event.run == (
        (PoissonGaussian(40 / 320, held_out_search.noise_multiplier), 4),
        (Gaussian(12.0, parts=(("right answers", 1.0),)), 1),
    )
    made, of_search = watched(monkeypatch, 3), Ledger()
    held_out_search.run(of_search, nothing_shown)
    assert of_search.events == {held_out_search.event: 1}
    assert [ledger.events for ledger, _ in made] == [dict(held_out_search.event.run)] * 3


def test_the_run_with_the_best_score_leaves_with_its_own_settings_and_weights(monkeypatch, public_search):
    ledgers_and_runs = watched(monkeypatch, 5)
    found = public_search.run(Ledger(), nothing_shown)
    made = [run for _, run in ledgers_and_runs]
    assert found is max(made, key=lambda each: each.score)
    settings = {(each.outcome.recipe.training.lr, each.outcome.recipe.privacy.max_grad_norm) for each in made}
    assert [len(set(values)) for values in zip(*settings, strict=True)] == [5, 5]
    assert found.outcome.test.accuracy == found.score
    inputs, targets = found.outcome.data.test.inputs, found.outcome.data.test.targets
    right = found.outcome.model(torch.as_tensor(inputs)).argmax(1).numpy() == targets
    assert right.mean() == pytest.approx(found.score)


def test_warnings_are_those_of_the_rehearsal_and_do_not_count_the_runs(monkeypatch, held_out_search, recwarn):
    monkeypatch.setattr(NumberOfRuns, "draw", lambda self, key: 3)
    whole = Search._train

    def train(self, recipe, ledger, on_step):
        warnings.warn(f"a run with {recipe.training.lr}", stacklevel=1)
        return whole(self, recipe, ledger, on_step)

    monkeypatch.setattr(Search, "_train", train)
    held_out_search.run(Ledger(), nothing_shown)
    assert not [each for each in recwarn if "a run with" in str(each.message)]


def test_settings_are_not_drawn_from_seeds(monkeypatch, public_search):
    monkeypatch.setattr(NumberOfRuns, "draw", lambda self, key: 1)
    drawn = set()
    for _ in range(3):
        torch.manual_seed(0)
        np.random.seed(0)
        drawn.add(public_search.run(Ledger(), nothing_shown).outcome.recipe.training.lr)
    assert len(drawn) == 3


def test_an_interrupt_ends_the_search_and_not_the_run_alone(monkeypatch, held_out_search):
    monkeypatch.setattr(NumberOfRuns, "draw", lambda self, key: 3)
    seen = []

    def pressed(number, run):
        seen.append(number)
        if number == 2:
            raise KeyboardInterrupt

    ledger = Ledger()
    with pytest.raises(KeyboardInterrupt):
        held_out_search.run(ledger, pressed)
    assert (max(seen), ledger.events) == (2, {held_out_search.event: 1})


def test_the_rehearsal_reads_no_record(monkeypatch):
    seen, whole = [], search_module.train

    def train(recipe, data, **others):
        seen.append(data)
        return whole(recipe, data, **others)

    monkeypatch.setattr(search_module, "train", train)
    search_of(score=HeldOutScore(0.2, 12.0))
    assert len(seen) == 2
    for data in seen:
        assert not (data.train.inputs == REAL).any()
        assert not (data.test.inputs == REAL).any()
        assert data.declared_size == 320


def test_settings_that_change_what_a_run_releases_are_refused_before_anything_is_charged():
    with pytest.raises(ValueError, match=r"change what a run releases.*clipping count"):
        search_of(over="clipping=choice(flat,adaptive) lr=log(0.1,1)")
    same = search_of(over="clipping=choice(flat,automatic,per-layer)")
    assert same.event.run == ((PoissonGaussian(0.1, same.noise_multiplier), STEPS),)


def test_a_recipe_with_adaptive_clipping_is_searched_with_its_count():
    ((step, _),) = search_of(replace(RECIPE, privacy=replace(RECIPE.privacy, clipping="adaptive"))).event.run
    assert [name for name, _ in step.parts] == ["gradient", "clipping count"]


def test_principal_components_are_found_anew_and_paid_in_each_run(monkeypatch):
    recipe = Recipe.of({**asdict(RECIPE), "projection": {"components": 2, "noise_multiplier": 20.0}}, "a test")
    search = search_of(recipe)
    assert search.event.run[1:] == ((Gaussian(20.0, parts=(("principal components", 1.0),)), 1),)
    monkeypatch.setattr(NumberOfRuns, "draw", lambda self, key: 2)
    assert search.run(Ledger(), nothing_shown) is not None


def test_all_that_is_wrong_with_a_recipe_is_said_at_once_with_the_way_out():
    tables = asdict(RECIPE)
    tables["privacy"] |= {"noise_multiplier": 2.0, "accountant": "moments"}
    tables["data"] |= {"holdout": 0.2, "users": "who", "records_per_user": 2}
    said = ["noise_multiplier = 2 fixes", 'accountant = "moments" has no bound for searches', "not for users"]
    with pytest.raises(ValueError, match=r"(.|\n)*".join([*said, "--score-on held-out", "mean >= 1"])):
        search_of(Recipe.of(tables, "a test"), mean=0.5)
    with pytest.raises(ValueError, match='leave batches = "balls-in-bins" out'):
        search_of(replace(RECIPE, training=replace(RECIPE.training, batches="balls-in-bins")))


def test_a_budget_that_no_noise_keeps_is_refused_with_the_way_out():
    with pytest.raises(ValueError, match="a larger epsilon, more --score-noise or fewer --runs"):
        search_of(score=HeldOutScore(0.2, 0.01))


def test_a_number_of_runs_that_may_be_none_is_not_chosen_by_itself():
    assert max(shapes_for(6.5)) < math.inf
    assert max(shapes_for(7.0)) == math.inf


def test_what_may_enter_a_graph_is_not_compiled():
    compiled = replace(RECIPE, training=replace(RECIPE.training, compile="auto"))
    assert search_of(compiled).recipe.training.compile == "auto"
    assert search_of(compiled, over="model.name=choice(linear,mlp)").recipe.training.compile == "no"


def test_public_examples_that_are_records_are_refused_before_anything_is_charged():
    data = own_data()
    tables = asdict(RECIPE) | {"public": {"data": "public.npz", "examples": 16}}
    tables["model"] |= {"name": f"{__name__}:normed", "batch_norm": "public"}
    recipe = Recipe.of(tables, "a test")
    space = SearchSpace.read([OVER], recipe)
    with pytest.raises(PrivacyError):
        Search(recipe, space, PublicScore(), data, public=data, mean=2.0, shape=0.0)


def normed(shape, classes):
    return nn.Sequential(nn.Linear(*shape, 6), nn.BatchNorm1d(6), nn.Linear(6, classes))


def test_nothing_is_found_where_no_run_is_drawn_or_all_fail(monkeypatch, held_out_search):
    monkeypatch.setattr(NumberOfRuns, "draw", lambda self, key: 0)
    assert held_out_search.run(Ledger(), nothing_shown) is None
    monkeypatch.setattr(NumberOfRuns, "draw", lambda self, key: 2)

    def fails(*args, **kwargs):
        raise RuntimeError("record 7 is odd")

    monkeypatch.setattr(search_module, "train", fails)
    assert held_out_search.run(Ledger(), nothing_shown) is None
