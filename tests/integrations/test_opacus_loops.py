"""Loops written for Opacus: the sums of single examples, one release a step, and what is refused."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from noisette import PaddedBuckets, PrivacyError, close_run
from noisette.integrations.opacus import DPLSTM, BatchMemoryManager, PrivacyEngine
from oracle import clipped_sum

B, C = 6, 0.5


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def data(n: int = B) -> TensorDataset:
    return TensorDataset(torch.randn(n, 5), torch.randint(0, 3, (n,)))


def private(model: nn.Module, records: TensorDataset, **changed: Any) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given: dict[str, Any] = {"noise_multiplier": 1.0, "max_grad_norm": C, "public_size": len(records)}
    given["data_loader"] = DataLoader(records, batch_size=changed.pop("batch_size", len(records)), shuffle=True)
    engine = changed.pop("engine", None) or PrivacyEngine()
    return engine, *engine.make_private(module=model, optimizer=optimizer, **given | changed)


Loop = Callable[[Any, Tensor, Tensor], Tensor]


def two_calls(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y) + 0.1 * model(x.flip(1)).square().mean()


def assert_mean(model: nn.Module, records: TensorDataset, loop: Loop) -> None:
    truth = clipped_sum(net(), loop, records.tensors, C)
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.grad.double(), truth.sums[name] / len(records), rtol=1e-4, atol=1e-6)


mean: Loop = lambda m, x, y: nn.CrossEntropyLoss()(m(x), y)  # noqa: E731
added: Loop = lambda m, x, y: F.cross_entropy(m(x), y, reduction="sum")  # noqa: E731


@pytest.mark.parametrize(("loop", "reduction"), [(mean, "mean"), (two_calls, "mean"), (added, "sum")])
@pytest.mark.usefixtures("little_noise")
def test_gradients_are_those_of_single_examples(loop: Loop, reduction: str) -> None:
    records, model = data(), net()
    engine, wrapped, optimizer, loader = private(model, records, loss_reduction=reduction)
    for batch_x, batch_y in loader:
        optimizer.zero_grad()
        loss = loop(wrapped, batch_x, batch_y)
        assert isinstance(loss.item(), float)
        loss.backward()
        optimizer.step()
    assert_mean(model, records, loop)
    assert engine.get_epsilon(1e-2) > 0


def test_a_whole_training_and_its_price() -> None:
    torch.manual_seed(0)
    model, records = net(), data(40)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = PrivacyEngine(accountant="rdp")
    budget = {"target_epsilon": 4.0, "target_delta": 1e-2, "epochs": 3, "max_grad_norm": 1.0, "public_size": 40}
    wrapped, optimizer, loader = engine.make_private_with_epsilon(
        module=model, optimizer=optimizer, data_loader=DataLoader(records, batch_size=4), **budget
    )
    assert len(loader) == 10
    for _ in range(3):
        for x, y in loader:
            wrapped.zero_grad()
            output = wrapped(x)
            assert (output.argmax(1).shape, output.detach().numpy().shape) == (y.shape, (len(x), 3))
            F.cross_entropy(output, y).backward()
            optimizer.step()
    assert engine._run.steps_taken == 30, "empty batches are released by the loader"
    assert 3.5 < engine.get_epsilon(1e-2) <= 4.0
    F.cross_entropy(wrapped(records.tensors[0]), records.tensors[1]).backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters()), "the model is itself again"
    with pytest.warns(UserWarning, match="all steps of the run were taken"):
        assert list(loader) == []
    assert type(wrapped.eval()(records.tensors[0])) is Tensor
    assert set(wrapped.state_dict()) == {f"_module.{name}" for name in model.state_dict()}
    private(net(), records, engine=engine)
    assert engine.get_epsilon(1e-2) > 3.5, "runs of one engine add up"


def test_a_skipped_batch_is_refused() -> None:
    loader = private(net(), data())[-1]
    next(iter(loader))
    with pytest.raises(PrivacyError, match="not called for the last batch"):
        next(iter(loader))


def test_masks_are_secret() -> None:
    masks = []
    for _ in range(2):
        _, wrapped, _, loader = private(nn.Sequential(nn.Linear(5, 64), nn.Dropout(0.5)), data())
        x, _ = next(iter(loader))
        torch.manual_seed(0)
        masks.append(wrapped(x) == 0)
    assert not torch.equal(*masks)


def test_all_problems_at_once() -> None:
    wrong: dict[str, Any] = {"public_size": None, "batch_first": False, "loss_reduction": "none", "clipping": "none"}
    wrong |= {"poisson_sampling": False, "noise_generator": torch.Generator()}
    with pytest.raises(ValueError) as raised:
        private(net(), data(), **wrong)
    assert all(name in str(raised.value) for name in wrong)
    with pytest.raises(ValueError, match="without a WeightedRandomSampler"):
        private(net(), data(), data_loader=DataLoader(data(), 4, sampler=WeightedRandomSampler([1.0], 4)))
    with pytest.raises(ValueError, match="accountant"):
        PrivacyEngine(accountant="none")
    with pytest.raises(PrivacyError, match="make_private first"):
        PrivacyEngine().get_epsilon(1e-5)


class MeanOfWords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(30, 4), nn.Linear(4, 2)

    def forward(self, ids: Tensor, told: Tensor) -> Tensor:  # lengths, or a mask
        mask = told if told.dim() == 2 else torch.arange(ids.shape[1]) < told[:, None]
        return self.out((self.words(ids) * mask.unsqueeze(2)).sum(1) / mask.sum(1, keepdim=True))


def padded_to_the_longest(batch: list[Any]) -> list[Tensor]:
    columns = [list(column) for column in zip(*batch, strict=True)]
    return [nn.utils.rnn.pad_sequence(c, batch_first=True) if c[0].dim() else torch.stack(c) for c in columns]


@pytest.mark.parametrize("edges", [(4, 9), (9,)])
@pytest.mark.parametrize(
    ("most", "told", "pad"), [(100, lambda ids: torch.tensor(len(ids)), 0), (2, torch.ones_like, {0: 0, 1: 0})]
)
@pytest.mark.usefixtures("little_noise")
def test_texts_that_are_padded_to_the_longest_in_whole_batches_and_in_pieces(
    edges: Any, most: int, told: Any, pad: Any
) -> None:
    texts: Any = [(torch.randint(1, 30, (length,)), torch.tensor(length % 2)) for length in (3, 9, 2, 5, 4, 7)]
    given: Any = [(ids, told(ids), label) for ids, label in texts]
    model, loop = MeanOfWords(), lambda m, ids, told, y: F.cross_entropy(m(ids, told), y)
    alone = [clipped_sum(model, loop, padded_to_the_longest([record]), C).vector for record in given]

    def made(records: Any, collate: Any = padded_to_the_longest) -> Any:
        return private(model, texts, data_loader=DataLoader(records, len(texts), collate_fn=collate))

    with pytest.raises(ValueError, match=r"noisette\.PaddedBuckets\(dataset.*Opacus loop.*max_physical_batch_size=1"):
        next(iter(made(given)[-1]))
    close_run(model)
    for late in (lambda b: padded_to_the_longest([(x, told(x), y) for x, y in b]), lambda b: [len(x) for x, _ in b]):
        with pytest.raises(ValueError, match=r"length of a record that PaddedBuckets has padded from 3 to .: let the"):
            made(PaddedBuckets(texts, edges), late)
    engine, wrapped, optimizer, loader = made(PaddedBuckets(given, edges, pad=pad))
    widths = []
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=most, optimizer=optimizer) as in_pieces:
        for ids, *others in in_pieces if most < 100 else loader:
            optimizer.zero_grad()
            loop(wrapped, ids, *others).backward()
            optimizer.step()
            widths.append(ids.shape[1])
    assert widths == ([*edges] if most == 100 else [9] * 3 if len(edges) == 1 else [4, 4, 9, 9])
    assert (engine._run.steps_taken, len(in_pieces), "step" in vars(optimizer)) == (1, 1, False)
    found = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(found.double(), sum(alone) / len(texts), rtol=1e-4, atol=1e-6)


def test_a_learning_rate_that_follows_the_number_of_pieces_is_refused() -> None:
    _, wrapped, optimizer, loader = private(net(), data())
    pieces, loader.most = iter(loader), 4
    mean(wrapped, *next(pieces)).backward()
    optimizer.step()
    optimizer.param_groups[0]["lr"] /= 2  # as a scheduler does
    with pytest.raises(PrivacyError, match="changed between two pieces"):
        next(pieces)


def test_a_loss_beside_that_of_the_whole_model_is_refused_at_the_step() -> None:
    a_part: Any = lambda model, x: model[0](x).square().mean()  # noqa: E731
    a_penalty: Any = lambda model, _: 1e-3 * sum(p.pow(2).sum() for p in model.parameters())  # noqa: E731
    for beside in (a_part, a_penalty):
        _, wrapped, optimizer, loader = private(model := net(), data())
        x, y = next(iter(loader))
        (mean(wrapped, x, y) + beside(model, x)).backward()
        with pytest.raises(PrivacyError, match=r"not private.*outputs of the whole model alone.*weight_decay"):
            optimizer.step()


def test_layers_that_are_unfrozen_are_trained_by_another_run() -> None:
    model, engine = net(), PrivacyEngine()
    for trains in (False, True):
        model[0].requires_grad_(trains)
        _, wrapped, optimizer, loader = private(model, data(), engine=engine)
        mean(wrapped, *next(iter(loader))).backward()
        model[0].requires_grad_(True)
        with nullcontext() if trains else pytest.raises(PrivacyError, match=r"close_run\(model\).*make_private"):
            optimizer.step()
        close_run(model)
    assert model[0].weight.grad is not None


def test_the_names_that_scripts_read(tmp_path: Any) -> None:
    records, model, criterion = data(40), net(), nn.CrossEntropyLoss()
    given: dict[str, Any] = {"engine": PrivacyEngine(ledger=tmp_path / "ledger.jsonl"), "batch_size": 4}
    given |= {"noise_multiplier": 1.5, "criterion": criterion, "grad_sample_mode": "ghost"}
    engine, wrapped, same, returned, loader = private(model, records, **given)
    assert (returned, loader.dataset, loader.batch_size, loader.sample_rate) == (criterion, records, 4, 0.1)
    assert (same.noise_multiplier, same.max_grad_norm, same.expected_batch_size, len(loader)) == (1.5, C, 4, 10)
    for x, y in loader:
        returned(wrapped(x), y).backward()
        same.step()
    engine.save_checkpoint(path=tmp_path / "run", module=wrapped, optimizer=same)
    assert engine.accountant.get_epsilon(delta=1e-3) == engine.get_epsilon(1e-3)
    engine._begun.close()
    again, other = net(), PrivacyEngine(ledger=tmp_path / "ledger.jsonl")
    other.load_checkpoint(path=tmp_path / "run", module=again)
    own = {"noise_multiplier": None, "epochs": 8, "epsilon": 3.0, "delta": 1e-3}
    _, wrapped_again, optimizer, loader = private(again, records, engine=other, batch_size=4, **own)
    assert (other._begun.steps_taken, optimizer.noise_multiplier) == (10, 1.5)
    assert all(torch.equal(p, q) for p, q in zip(again.parameters(), model.parameters(), strict=True))
    for x, y in loader:
        F.cross_entropy(wrapped_again(x), y).backward()
        optimizer.step()
    assert (other._begun.steps_taken, other.get_epsilon(1e-3) > engine.get_epsilon(1e-3)) == (20, True)
    with pytest.raises(PrivacyError, match=r"after make_private.*call it before, on a new PrivacyEngine"):
        other.load_checkpoint(path=tmp_path / "run")
    with pytest.raises(ValueError, match=r"ledger is in memory.*PrivacyEngine, ledger=PATH"):
        private(net(), records)[0].save_checkpoint(path=tmp_path / "other")
    assert isinstance(DPLSTM(2, 3), nn.LSTM)
    with pytest.raises(TypeError, match=r"torch\.save\(model\.state_dict\(\)"):
        torch.save(wrapped, tmp_path / "model.pt")
