"""The federated examples: sums are those of a loop, and each ledger has the privacy cost of Poisson-sampled noise."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from noisette import GaussianRelease, Ledger, PldAccountant, PoissonGaussian, UserLevel


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, (Path(__file__).parents[2] / "examples") / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def sums(monkeypatch):
    """The sum of each round before its noise, as one vector."""
    found: list[Tensor] = []
    whole = GaussianRelease.__call__

    def call(self: GaussianRelease, parts: Any, names: Any, *, step: int) -> None:
        found.append(torch.cat([g.flatten() for part in parts for g in part.grads]).clone())
        whole(self, parts, names, step=step)

    monkeypatch.setattr(GaussianRelease, "__call__", call)
    return found


def test_the_sum_of_a_round_of_clients_is_that_of_a_loop_in_double_precision(sums, tmp_path):
    module, rounds = example("federated_clients"), []

    def updates(model: nn.Module, drawn: list[int]) -> list[Tensor | None]:
        """Of clients of which every seventh does not answer, and others send what is not an update."""
        rounds.append(drawn)
        invalid = {0: None, 1: torch.ones(3), 2: torch.full((33,), torch.nan)}
        return [invalid[c % 7] if c % 7 in invalid else (0.2 + c % 3) * module.update_of(model, c) for c in drawn]

    _, run = module.serve(module.CLIENTS, updates, rounds=1, ledger=tmp_path / "ledger.jsonl")
    start, truth, norms = module.network().double(), torch.zeros(33, dtype=torch.float64), []
    for client in rounds[0]:
        if client % 7 > 2:
            update = (0.2 + client % 3) * module.update_of(start, client)
            norms.append(float(update.norm()))
            truth -= update * min(1.0, 0.5 / norms[-1])
    assert min(norms) < 0.5 < max(norms)
    torch.testing.assert_close(sums[0].double(), truth, rtol=1e-5, atol=1e-5)
    noise = run.noise_multiplier
    alone = PldAccountant().compose({PoissonGaussian(0.1, noise): 1}).epsilon(delta=1e-4)
    assert Ledger.read(tmp_path / "ledger.jsonl").events == {UserLevel(PoissonGaussian(0.1, noise), records=1): 1}
    assert run.epsilon(delta=1e-4) == pytest.approx(alone, rel=1e-9)
    assert run.event.relation == "add or remove all records of one user"


def test_clients_learn_within_the_budget(capsys):
    example("federated_clients").main()
    said, _, accuracy = capsys.readouterr().out.strip().rpartition(" ")
    assert "epsilon 8.00" in said or "epsilon 7.9" in said
    assert float(accuracy) > 0.6


def test_each_site_pays_for_its_own_records(sums, tmp_path):
    module = example("federated_sites")
    model, sites = module.train(tmp_path)
    for number, site in enumerate(sites):
        release = PoissonGaussian(0.1, site.run.noise_multiplier)
        assert Ledger.read(tmp_path / f"site-{number}.jsonl").events == {release: module.ROUNDS * module.STEPS}
        cost = PldAccountant().compose({release: module.ROUNDS * module.STEPS}).epsilon(delta=1e-4)
        assert site.run.epsilon(delta=1e-4) == pytest.approx(cost, rel=1e-9)
        assert 2.9 < cost <= 3
    assert len(sums) == len(sites) * module.ROUNDS * module.STEPS
    x, y = module.records_of(7, 1000)
    assert float((model(x).argmax(1) == y).float().mean()) > 0.85


def test_a_round_of_sites_is_the_average_of_their_released_weights(tmp_path, monkeypatch):
    module = example("federated_sites")
    monkeypatch.setattr(module, "ROUNDS", 1)
    model, sites = module.train(tmp_path)
    averaged = sum(size / sum(module.SIZES) * site.model.weight for size, site in zip(module.SIZES, sites, strict=True))
    torch.testing.assert_close(model.weight, averaged)


def test_flower_asks_the_drawn_clients_alone(tmp_path, capsys):
    pytest.importorskip("flwr", reason="Flower is not installed", exc_type=ImportError)
    from flwr.app import Context, Error, Message, RecordDict
    from flwr.serverapp import Grid
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 0
    module = example("federated_clients")
    asked: list[int] = []

    class InThisProcess(Grid):
        """Of the clients every tenth does not answer, and another tenth answers with an error."""

        run = None

        def get_node_ids(self) -> list[int]:
            return [100 + 7 * client for client in range(module.CLIENTS)]

        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Any]:
            replies = []
            for message in messages:
                client = (message.metadata.dst_node_id - 100) // 7
                asked.append(client)
                if client % 10 == 1:
                    replies.append(Message(Error(code=1), reply_to=message))
                elif client % 10:
                    context = Context(1, client, {"partition-id": client}, RecordDict(), {})
                    replies.append(module.client_app(message, context))
            return replies

        set_run = create_message = push_messages = pull_messages = None

    ledger = tmp_path / "ledger.jsonl"
    module.server_app(InThisProcess(), Context(1, 0, {}, RecordDict(), {"ledger": str(ledger)}))
    assert capsys.readouterr().out.startswith("epsilon ")
    [(event, rounds)] = Ledger.read(ledger).events.items()
    assert (type(event), rounds) == (UserLevel, 20)
    assert 20 * 60 < len(asked) < 20 * 140
