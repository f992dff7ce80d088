"""Davody et al. 2020: batch norm with public examples, cells and tables, and training under weight noise."""

import copy
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from engine_check import every_engine
from finished_runs import drawn, quiet
from model_cases import squares as losses
from noisette import PerExampleClip, PrivacyError
from noisette.core.batches import PoissonSampler
from noisette.core.clip import Engine
from noisette.core.noise import GaussianNoise, SecretKey
from noisette.data import DataSet, Split, load
from noisette.nn import FrozenBatchNorm, PerExampleBatchNorm, PublicBatchNorm, convert_batch_norm, models
from noisette.run.private import check_no_batch_norm
from norm_models import NETWORKS, network
from papers.davody_2020 import distortion, norms, table_2, table_4, table_5, table_6, table_7, weight_noise
from papers.davody_2020.mixture_batch_norm import ExactPerExampleBatchNorm, MixtureBatchNorm
from papers.davody_2020.non_private import noised_gradients
from papers.davody_2020.private import Private
from papers.davody_2020.runs import Cell, Run, Setting, mean_of
from papers.davody_2020.setting import NoisyWeights
from papers.davody_2020.weight_noise import Examples, train, with_fresh_statistics
from papers.paper import Asked

C = 0.5
SOUND = [PublicBatchNorm, PerExampleBatchNorm, ExactPerExampleBatchNorm, FrozenBatchNorm]


def total(model: nn.Module, values: Tensor, engine: Engine) -> Tensor:
    clip = PerExampleClip(model, C, engine=engine)
    try:
        clip.accumulate(losses, values)
        return torch.cat([g.flatten() for part in clip.pop_sums() for g in part.grads])
    finally:
        clip.close()


@every_engine
@pytest.mark.parametrize("to", SOUND)
@pytest.mark.parametrize("name", ["linear", "images"])
def test_adversarial_neighbours_move_the_sum_by_no_more_than_the_bound(name, to, engine):
    model, public, x = network(name)
    convert_batch_norm(model, to=to, public=public)
    smallest = total(model, x[1:], engine)
    for record in (x[:1], 1e4 * x[:1], torch.full_like(x[:1], -300.0), torch.zeros_like(x[:1])):
        assert float((total(model, torch.cat([record, x[1:]]), engine) - smallest).norm()) <= C * (1 + 1e-6)


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "volumes"])
@every_engine
def test_the_exact_form_gives_each_example_what_a_pass_of_its_own_would(name, engine):
    model, public, x = network(name)
    alone = [model(torch.cat([x[i : i + 1], public]))[:1] for i in range(len(x))]
    losses, unused = [(y - 0.3).square().sum() for y in alone], {"allow_unused": True, "materialize_grads": True}
    rows = [torch.autograd.grad(loss, list(model.parameters()), **unused) for loss in losses]
    truth = torch.stack([torch.cat([g.flatten() for g in row]) for row in rows])
    convert_batch_norm(model, to=ExactPerExampleBatchNorm, public=public)
    torch.testing.assert_close(model(x), torch.cat(alone), rtol=1e-8, atol=1e-10)
    expected = (truth * (C / truth.norm(dim=1, keepdim=True)).clamp(max=1)).sum(0)
    torch.testing.assert_close(total(model, x, engine), expected, rtol=1e-7, atol=1e-9)


SECRET = bytes(range(32))
X = torch.randn(40, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
Y = torch.arange(40) % 3
DECLARED: dict[str, Any] = {"sampling_rate": 0.5, "noise_multiplier": 0.8}
ROUNDING = 1 + 2**-13  # by which noise is larger
BOUND = 5.0  # between the norms of the examples


def coupled() -> nn.Module:
    torch.manual_seed(0)
    behind = nn.Tanh(), nn.Flatten(), nn.Linear(8, 3), nn.BatchNorm1d(3)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), *behind).double()


def entropies(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x), y, reduction="none")


def clipped_sum_through_the_batch(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    """The whole batch is run again for each example, and that example's loss alone is differentiated."""
    total = [torch.zeros_like(p) for p in model.parameters()]
    for i in range(len(x)):
        gradients = torch.autograd.grad(entropies(model, x, y)[i], list(model.parameters()))
        norm = torch.cat([g.flatten() for g in gradients]).norm()
        for kept, g in zip(total, gradients, strict=True):
            kept += g * min(1.0, BOUND / norm)
    return total


def test_the_gradients_are_the_clipped_ones_of_each_loss_through_the_shared_statistics():
    model = coupled()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    released = noised_gradients(model, X, Y, max_grad_norm=BOUND, lot=20, key=SecretKey(SECRET), **DECLARED)
    for step in range(3):
        drawn = PoissonSampler(size=40, sampling_rate=0.5, key=SecretKey(SECRET)).indices(step=step)
        truth = clipped_sum_through_the_batch(model, X[drawn], Y[drawn])
        noise = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
        GaussianNoise(SecretKey(SECRET)).add_(noise, step=step, std=0.8 * BOUND / 20 * ROUNDING)
        next(released)
        for p, expected, z in zip(model.parameters(), truth, noise.values(), strict=True):
            torch.testing.assert_close(p.grad, expected / 20 + z, rtol=1e-5, atol=1e-9)
        sgd.step()
        sgd.zero_grad()


def test_the_mixture_is_batch_norm_over_private_and_public_examples_and_exact_in_evaluation():
    model, public, x = network("images")
    truth = model(torch.cat([x, public]))[: len(x)]
    alone = [model(torch.cat([x[i : i + 1], public]))[:1] for i in range(len(x))]
    convert_batch_norm(model, to=MixtureBatchNorm, public=public)
    torch.testing.assert_close(model(x), truth, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(model.eval()(x), torch.cat(alone), rtol=1e-8, atol=1e-10)


def test_the_mixture_is_refused_by_name_where_there_is_a_guarantee():
    model, public, _ = network("images")
    convert_batch_norm(model, to=MixtureBatchNorm, public=public)
    with pytest.raises(PrivacyError, match="bn1  MixtureBatchNorm mixes examples in its statistics, as published"):
        check_no_batch_norm(model)
    check_no_batch_norm(model.eval())


def two_steps(setting: Private) -> Private:
    return replace(setting, lot=10, epochs=0.02, public_examples=8)


def made(setting: Private, data: list[DataSet], folder: Path, weights: str | None = None) -> dict[str, Any]:
    path = folder / "runs.jsonl"
    Cell(setting, 0, 1.0, weights).make({one.name: one for one in data}, path, quiet)
    return json.loads(path.read_text().splitlines()[-1])


@pytest.fixture
def both_sets():
    return [drawn("mnist", (1, 28, 28), 0), drawn("kmnist", (1, 28, 28), 1)]


def test_the_mixture_has_the_noise_of_the_others_and_no_epsilon(both_sets, tmp_path):
    settings = [norm.setting(1.0) for norm in (norms.PUBLIC_BATCH, norms.MIXTURE)]
    public, mixture = (made(two_steps(setting), both_sets, tmp_path) for setting in settings if setting)
    assert public["noise_multiplier"] == mixture["noise_multiplier"]
    assert public["steps"] == mixture["steps"] == 2
    assert 0.9 < public["epsilon"] <= 1.0
    assert mixture["epsilon"] is None


def test_the_head_of_a_pretrained_network_is_trained(tmp_path):
    data, setting = drawn("cifar10", (3, 32, 32), 0), table_6.GRID.rows[2].whole(8.0)
    assert isinstance(setting, Private)
    weights = tmp_path / "public.safetensors"
    state = models.build(setting.model, (3, 32, 32), 10).state_dict()
    save_file({name: value for name, value in state.items() if name.startswith("features")}, weights)
    line = made(two_steps(setting), [data], tmp_path, str(weights))
    assert line["steps"] == 2
    assert line["made_with"]["public_weights"] is not None


def articles() -> DataSet:
    rng = np.random.default_rng(0)
    split = Split(rng.normal(size=(40, 6, 8)).astype(np.float32), rng.integers(0, 4, 40))
    return DataSet("ag-news", split, split, 4, 1000)


@pytest.mark.parametrize("row", table_7.GRID.rows, ids=lambda row: row.name)
def test_a_cell_of_table_7_runs(row, tmp_path):
    line = made(two_steps(row.whole(1.0)), [articles()], tmp_path)
    assert line["epsilon"] <= 1.0
    assert line["records"] == 1000


def finished(setting: Setting, seed: int = 0, accuracy: float = 0.9, points: tuple[float, ...] = (0.5, 0.9)) -> Run:
    return Run(setting, seed, 1.0, accuracy, tuple(enumerate(points, 1)), None, 0.8)


def test_mean_and_standard_error_are_those_of_the_seeds():
    setting = table_2.setting("lenet-5", 0.0)
    runs = [finished(setting, seed, accuracy) for seed, accuracy in enumerate((0.90, 0.92, 0.97))]
    mean = mean_of([*runs, finished(table_2.setting("lenet-5", 1.0))], setting)
    assert mean.mean == pytest.approx(93.0)
    assert mean.error == pytest.approx(math.sqrt((9 + 1 + 16) / 2) / math.sqrt(3))
    assert (str(mean), str(mean_of(runs[:1], setting))) == ("93.00 ± 2.08 (3 seeds)", "90.00 (1 seed)")
    assert mean_of([], setting) is None


def test_only_the_rows_asked_for_are_run_and_the_expensive_ones_only_if_asked_for():
    def models(asked: Asked) -> set[str]:
        return {cell.setting.model for cell in table_2.GRID.cells(asked)}

    def couples(asked: Asked) -> bool:
        return any(getattr(cell.setting, "batch_norm", None) == "mixture" for cell in table_5.GRID.cells(asked))

    assert models(Asked((0,), rows=("lenet-5", "bn-lenet-5"))) == {"lenet-5", "bn-lenet-5"}
    assert not couples(Asked((0,)))
    assert couples(Asked((0,), full=True))
    assert couples(Asked((0,), rows=("mixture-bn-lenet-5",)))


DIGITS = NoisyWeights("digits", "bn-lenet-300-100", sigma=1.0, epochs=8, batch_size=64, lr=0.5, lr_norms=0.003)


@pytest.fixture(scope="module")
def digits():
    return load("digits")


def test_a_normalised_network_learns_under_noise_as_large_as_its_weights(digits):
    told: list[tuple[float, float | None]] = []
    facts = train(DIGITS, 0, digits, lambda share, accuracy: told.append((share, accuracy)))
    assert facts["test_accuracy"] > 0.85
    assert [epoch for epoch, _ in facts["points"]] == list(range(1, 9))
    assert told == [(epoch / 8, accuracy) for epoch, accuracy in facts["points"]]


@pytest.mark.parametrize(("accuracy", "patience", "epochs"), [(0.14, 4, 4), (0.16, 4, 6), (0.14, None, 6)])
def test_a_network_that_is_no_better_than_chance_is_given_up_unless_it_has_patience(
    accuracy, patience, epochs, digits, monkeypatch
):
    monkeypatch.setattr(weight_noise, "accuracy_under_noise", lambda *arguments, draws: accuracy)
    setting = replace(DIGITS, epochs=6, batch_size=1000, patience=patience)
    assert train(setting, 0, digits, quiet)["points"] == [(epoch, accuracy) for epoch in range(1, epochs + 1)]


def test_every_sixth_record_is_held_out_and_always_the_same_ones():
    examples = Examples(torch.arange(60.0), torch.arange(60))
    kept, held_out = examples.divided()
    assert (len(kept), len(held_out)) == (50, 10)
    assert sorted([*kept.targets.tolist(), *held_out.targets.tolist()]) == list(range(60))
    torch.manual_seed(1)
    assert torch.equal(examples.divided()[1].targets, held_out.targets)
    assert torch.equal(kept.inputs.long(), kept.targets)


def test_images_are_shifted_by_up_to_four_pixels_and_mirrored():
    image = 1 + np.arange(3 * 6 * 6).reshape(3, 6, 6)
    framed = np.pad(image, ((0, 0), (4, 4), (4, 4)))
    cuts = [framed[:, top : top + 6, left : left + 6] for top in range(9) for left in range(9)]
    known = {cut.tobytes() for straight in cuts for cut in (straight, straight[:, :, ::-1])}
    torch.manual_seed(0)
    seen = distortion.shifted_and_mirrored(torch.as_tensor(image).expand(4000, 3, 6, 6)).contiguous().numpy()
    assert {cut.tobytes() for cut in seen} == known


@pytest.mark.parametrize("model", ["bilstm-dl", "ln-bilstm-dl"])
def test_a_cell_of_table_4_runs(model):
    facts = train(replace(table_4.setting(model, 0.1), epochs=1, batch_size=10), 0, articles(), quiet)
    assert len(facts["points"]) == 1


@pytest.mark.parametrize(("name", "shape"), [("bn-lenet-5", (1, 28, 28)), ("bilstm-dl", (6, 8))])
def test_a_pass_uses_the_means_plus_noise_that_all_examples_share(name, shape):
    torch.manual_seed(0)
    plain = with_fresh_statistics(models.build(name, shape, 4)).eval()
    model, x = weight_noise.NoisyWeights(plain, 0.3), torch.rand(3, *shape)
    noisy = copy.deepcopy(plain)
    torch.manual_seed(1)
    for layer in noisy.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d | nn.LSTM):
            for mean in layer.parameters():
                mean.data += torch.empty_like(mean).normal_(0.0, 0.3)
    torch.manual_seed(1)
    scores = model(x)
    torch.testing.assert_close(scores, noisy(x))
    scores.square().sum().backward()
    noisy(x).square().sum().backward()
    for p, expected in zip(plain.parameters(), noisy.parameters(), strict=True):
        torch.testing.assert_close(p.grad, expected.grad)
    assert not torch.equal(model(x), model(x))
