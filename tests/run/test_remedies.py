"""What a message of a run says to do is done, and the run goes on."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noisette import Loss, PerExampleClip, PrivacyError, PrivateRun
from small_loop import loss, start, take_steps

X, Y = torch.randn(40, 3, 6, 6, generator=torch.Generator().manual_seed(1)), torch.arange(40) % 3


def run_of(model: nn.Module, rows: Tensor = X) -> PrivateRun:
    return start(model, (rows, Y), clip={"max_grad_norm": 1.0}, sampling_rate=0.25, expected_batch_size=10)


def network(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.Flatten(), nn.Linear(128, 3))


def train(model: nn.Module, loss: Loss = loss, rows: Tensor = X) -> None:
    with run_of(model, rows) as run:
        take_steps(run, loss)


def test_a_loss_that_was_computed_already_is_given_as_a_function():
    with run_of(network(nn.GroupNorm(2, 8)), X) as run:
        for batch in run.batches():
            for x, y in batch.microbatches(64):
                with pytest.raises(TypeError, match=r"got Tensor: write accumulate\(loss, x, y\), not"):
                    run.accumulate(loss(run.bound.model, x, y), x, y)
                run.accumulate(loss, x, y)
            run.optimizer.step()


VIEWS = {"all": lambda x: x, "some": lambda x: x[:5], "in another shape": lambda x: x.flatten(1)}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_a_loss_that_reads_the_data_set_itself_centres_by_public_data(view):
    def centred_by(others: Tensor) -> Loss:
        return lambda model, x, y: F.cross_entropy(model(x - others.mean()), y)

    model, rows = network(nn.GroupNorm(2, 8)), X.clone()
    with pytest.raises(PrivacyError, match=r"holds records of the data set.* from public data"):
        train(model, centred_by(view(rows)), rows)
    train(model, centred_by(torch.zeros(50)), rows)
    both = torch.cat([X, X])
    train(model, centred_by(view(both[40:])), both[:40])  # in the same memory, behind the records


def test_class_weights_have_an_effect_on_sums():
    def step(**reduction: str) -> Tensor:
        torch.manual_seed(0)
        clip = PerExampleClip(nn.Sequential(nn.Flatten(), nn.Linear(108, 3)), 100.0)
        weights = torch.tensor([1.0, 2.0, 3.0])
        clip.accumulate(lambda m, x, y: F.cross_entropy(m(x), y, weight=weights, **reduction), X, Y)
        return clip.pop_sums()[0].grads[0]

    with pytest.warns(UserWarning, match=r'class weights have no effect in cross_entropy.*give reduction="sum"'):
        without = step()
    assert not torch.allclose(step(reduction="sum"), without)


def test_a_loss_over_a_batch_is_refused_before_a_release_and_one_of_each_example_trains():
    times = torch.arange(40.0).unsqueeze(1) / 40

    def partial_likelihood(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        scores = model(x)[:, 0]
        return (torch.logcumsumexp(scores, 0) - scores).sum()

    def discrete_time(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        hazards = model(x)
        return F.binary_cross_entropy_with_logits(hazards, F.one_hot(y, 3).to(hazards))

    def right_already(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return (model(x).square().sum() * 0).relu()

    model = nn.Linear(1, 3)
    model.register_buffer("centre", torch.zeros(1))
    with run_of(model, times) as run:
        with pytest.raises(PrivacyError, match=r"noise alone.*discrete-time survival"):
            take_steps(run, partial_likelihood)
        assert run.steps_taken == 0
    train(nn.Linear(1, 3), discrete_time, times)
    train(nn.Linear(1, 3), right_already, times)


def test_instance_norm_is_built_without_statistics_as_the_message_says():
    model = network(nn.InstanceNorm2d(8, affine=True, track_running_stats=True))
    with pytest.raises(PrivacyError, match="build it with track_running_stats=False"):
        run_of(model)
    model[1].track_running_stats = False  # torch would still write the statistics that exist
    with pytest.raises(PrivacyError, match="build it with track_running_stats=False"):
        run_of(model)
    train(network(nn.InstanceNorm2d(8, affine=True, track_running_stats=False)))
    train(network(nn.InstanceNorm2d(8, affine=True, track_running_stats=True)).eval())


def test_a_teacher_that_follows_the_weights_is_declared():
    model = network(nn.GroupNorm(2, 8))
    teacher = copy.deepcopy(model).eval()

    def distilled(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            aim = teacher(x)
        return loss(model, x, y) + F.mse_loss(model(x), aim)

    def step(run: PrivateRun, public: tuple[Tensor, ...]) -> None:
        for batch in run.batches():
            for x, y in batch.microbatches(8):
                run.accumulate(distilled, x, y, public=public)
            run.optimizer.step()
            run.optimizer.zero_grad()
            with torch.no_grad():
                for mean, weight in zip(teacher.parameters(), model.parameters(), strict=True):
                    mean.lerp_(weight, 0.1)

    with run_of(model) as run, pytest.raises(PrivacyError, match="as those of a teacher are, declare it"):
        step(run, ())
    model.zero_grad()
    with run_of(model) as run:
        step(run, tuple(teacher.parameters()))
