"""The training loop of a recipe: what it publishes, what it spends, and how it stops."""

import gc
import weakref
from dataclasses import replace

import pytest
import torch

from noisette.accounting import Gaussian, MomentsAccountant, PldAccountant, PoissonGaussian
from noisette.core.release import shares_of
from noisette.data import DataSet, load
from noisette.errors import PrivacyError
from noisette.nn import models
from noisette.training.loop import Outcome, train, train_without_privacy
from noisette.training.recipe import ProjectionSection, Recipe


def quick(accountant: str = "rdp", **training: object) -> Recipe:
    """Six epochs of a linear model, with the accountant that answers soonest."""
    tables = {"data": {"name": "digits"}, "model": {"name": "linear"}}
    tables["privacy"] = {"epsilon": 8.0, "delta": 1e-4, "accountant": accountant}
    tables["training"] = {"epochs": 6, "batch_size": 200, "lr": 4.0, "averaging": 0.9} | training
    return Recipe.of(tables, "a test")


def run(recipe: Recipe, data: DataSet | None = None) -> Outcome:
    return train(recipe, data or load("digits"), ledger_path=None, on_step=lambda run, point: None)


@pytest.fixture(scope="module")
def learned():
    return run(quick("pld"))


def test_learns_within_its_budget(learned):
    outcome, last = learned, learned.points[-1]
    assert (last.test_accuracy or 0) > 0.8
    event = PoissonGaussian(200 / 1437, outcome.run.noise_multiplier)
    assert outcome.run.event == event
    again = PldAccountant().compose({event: outcome.run.steps}).epsilon(delta=1e-4)
    assert again == pytest.approx(outcome.epsilon, rel=1e-3)
    assert outcome.epsilon <= 8.0
    assert last.step == outcome.run.steps == round(6 * 1437 / 200)
    assert [p.epsilon for p in outcome.points] == sorted(p.epsilon for p in outcome.points)


def test_the_published_model_is_the_one_that_was_tested(learned):
    test = load("digits").test
    right = learned.model(torch.as_tensor(test.inputs)).argmax(1).numpy() == test.targets
    assert right.mean() == learned.points[-1].test_accuracy
    assert not learned.model.training


def test_records_leave_the_memory_with_the_last_reference_to_their_run():
    data = load("digits")
    outcome = run(quick(epochs=0.5), data)
    inputs = weakref.ref(data.train.inputs), weakref.ref(outcome.run._records.columns[0])
    gc.disable()
    try:
        del outcome, data
        assert [array() for array in inputs] == [None, None]
    finally:
        gc.enable()


def study(noise_multiplier: float, *, epochs: float = 3.0, **privacy: object) -> Recipe:
    """The shape of the MNIST study of Abadi et al. 2016, on digits."""
    tables = {"data": {"name": "digits"}, "model": {"name": "mlp"}}
    tables["privacy"] = {"epsilon": 8.0, "delta": 1e-4, "noise_multiplier": noise_multiplier} | privacy
    tables["training"] = {"epochs": epochs, "batch_size": 200, "lr": 0.5, "lr_end": 0.1, "lr_epochs": 1.0}
    return Recipe.of(tables | {"projection": {"components": 12, "noise_multiplier": 20.0}}, "a test")


def test_the_projection_is_part_of_the_price_and_of_the_model():
    outcome = run(study(2.0))
    ledger = outcome.run.ledger.events
    (projection,) = [event for event in ledger if isinstance(event, Gaussian)]
    assert ledger == {projection: 1, outcome.run.event: outcome.run.steps}
    assert projection.noise_multiplier == 20.0
    assert outcome.epsilon >= PldAccountant().compose(ledger).epsilon(delta=1e-4)
    assert outcome.points[-1].epsilon == pytest.approx(outcome.epsilon, rel=5e-3)
    components = outcome.model.features[1].weight
    assert torch.allclose(components @ components.T, torch.eye(12), atol=1e-5)
    again = models.projected("mlp", (1, 8, 8), 10, 12)
    again.load_state_dict(outcome.model.state_dict())
    images = torch.as_tensor(load("digits").train.inputs[:5])
    assert torch.equal(again(images), outcome.model(images))


def test_given_noise_ends_the_run_with_the_budget():
    outcome = run(study(1.0, epochs=1e4))
    step = outcome.run.event
    affordable = {**outcome.run.ledger.events, step: outcome.run.steps}
    assert 7.9 < outcome.epsilon <= 8.0
    assert PldAccountant().compose({**affordable, step: outcome.run.steps + 1}).epsilon(delta=0.99e-4) > 8.0


def test_a_budget_that_pays_for_no_step_is_refused():
    with pytest.raises(PrivacyError, match="beyond the budget of 8"):
        run(study(0.3))


def test_layers_have_the_noise_and_the_bound_of_the_recipe_each():
    of = study(2.0, clipping="per-layer", max_grad_norm=0.7, accountant="moments")
    outcome = run(replace(of, projection=ProjectionSection()))
    assert outcome.epsilon >= MomentsAccountant().compose(outcome.run.ledger.events).epsilon(delta=1e-4)
    assert outcome.run.noise_multiplier == pytest.approx(2.0 / 3**0.5)
    sums = outcome.run.bound.pop_sums()
    assert [part.bound for part in sums] == pytest.approx([0.7] * 3)
    shares = zip(sums, shares_of(sums), strict=True)
    noise = [outcome.run.noise_multiplier * part.bound / share**0.5 for part, share in shares]
    assert noise == pytest.approx([2.0 * 0.7] * 3)


def plain(recipe: Recipe, data: DataSet | None = None) -> Outcome:
    return train_without_privacy(recipe, data or load("digits"), on_step=lambda run, point: None)


def test_a_run_without_privacy_takes_the_mean_gradient_of_each_batch_as_it_is():
    """A batch of all records, against steps of gradient descent by hand."""
    data = load("digits")
    recipe = quick(epochs=3, batch_size=1437, lr=0.5, averaging=0.0, cosine=False)
    x, y = (torch.as_tensor(array) for array in (data.train.inputs, data.train.targets))
    torch.manual_seed(recipe.training.seed)
    model = models.build("linear", (1, 8, 8), 10)
    for _ in range(3):
        gradients = torch.autograd.grad(torch.nn.functional.cross_entropy(model(x), y), list(model.parameters()))
        with torch.no_grad():
            for p, gradient in zip(model.parameters(), gradients, strict=True):
                p -= 0.5 * gradient
    for p, expected in zip(plain(recipe, data).model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(p, expected, rtol=1e-4, atol=1e-5)


def test_a_run_without_privacy_is_no_worse_than_a_private_one_and_refuses_other_batches():
    assert (plain(quick(lr=None)).points[-1].test_accuracy or 0) > 0.9
    with pytest.raises(ValueError, match="leave out batches"):
        plain(quick(batches="balls-in-bins"))
