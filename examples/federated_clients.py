"""Federated averaging with a guarantee for clients: nobody can tell whether one client took part, whatever its records.

    python examples/federated_clients.py

The server draws the clients of each round, clips their updates and adds noise to the sum. It keeps the one ledger. With
Flower, name `federated_clients:server_app` and `federated_clients:client_app` in the pyproject.toml of your app.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

import noisette

try:
    from flwr.app import ArrayRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
except ImportError:
    ClientApp = ServerApp = None

CLIENTS = 1000  # public; it need not be exact
FEATURES, CLASSES = 10, 3


def network() -> nn.Module:
    """The model, with the same first weights everywhere."""
    torch.manual_seed(0)
    return nn.Linear(FEATURES, CLASSES)


def records_of(client: int) -> tuple[Tensor, Tensor]:
    """The records of a client. Yours never leave it."""
    x = torch.randn(20, FEATURES, generator=torch.Generator().manual_seed(client))
    return x, x[:, :CLASSES].argmax(1)


def update_of(model: nn.Module, client: int) -> Tensor:
    """The change of all weights after a few steps on the records of a client."""
    x, y = records_of(client)
    local = copy.deepcopy(model)
    optimizer = torch.optim.SGD(local.parameters(), lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(local(x.to(next(local.parameters()))), y).backward()
        optimizer.step()
    return (parameters_to_vector(local.parameters()) - parameters_to_vector(model.parameters())).detach()


def against(model: nn.Module, update: Tensor) -> Tensor:
    """A loss whose gradient is the update of one client with its sign changed: a step of SGD adds the update."""
    return -(update[0] * parameters_to_vector(model.parameters())).sum()


def serve(
    clients: int,
    updates: Callable[[nn.Module, Sequence[int]], Iterable[Tensor | None]],
    *,
    rounds: int = 20,
    ledger: Path | None = None,
) -> tuple[nn.Module, noisette.PrivateRun]:
    """Train by what ``updates`` returns for the drawn clients, of 0, 1, ...: ``None`` if one does not answer."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    run = noisette.privatize(
        noisette.PerExampleClip(model, max_grad_norm=0.5),
        optimizer,
        torch.arange(clients),  # a record is a client
        users=noisette.Users(range(clients), most_records=1, public_users=CLIENTS),
        public_size=CLIENTS,
        expected_batch_size=100,
        steps=rounds,
        epsilon=8.0,
        delta=1e-4,
        ledger=ledger,
    )
    nothing = torch.zeros(sum(p.numel() for p in model.parameters()))
    with run:
        for batch in run.batches():
            for drawn in batch.microbatches(256):
                sent = updates(model, drawn.tolist())
                valid = [update if update is not None and update.shape == nothing.shape else nothing for update in sent]
                run.accumulate(against, torch.stack(valid))
            optimizer.step()
            optimizer.zero_grad()
    return model, run


if ServerApp is not None and ClientApp is not None:
    server_app, client_app = ServerApp(), ClientApp()

    @server_app.main()
    def main_of_server(grid: Grid, context: Context) -> None:
        """Draw among the nodes that are connected when the run begins."""
        nodes = sorted(grid.get_node_ids())

        def updates(model: nn.Module, drawn: Sequence[int]) -> list[Tensor | None]:
            content = RecordDict({"weights": ArrayRecord(model.state_dict())})
            asked = [Message(content, dst_node_id=nodes[client], message_type="train") for client in drawn]
            replies = {reply.metadata.src_node_id: reply for reply in grid.send_and_receive(asked, timeout=60)}
            answered = [replies.get(nodes[client]) for client in drawn]
            return [
                None if reply is None or reply.has_error() else reply.content["update"].to_torch_state_dict()["all"]
                for reply in answered
            ]

        _, run = serve(len(nodes), updates, ledger=Path(str(context.run_config["ledger"])))
        print(f"epsilon {run.epsilon(delta=1e-4):.2f}")

    @client_app.train()
    def train_of_client(message: Message, context: Context) -> Message:
        """One update on the records of this client."""
        model = network()
        model.load_state_dict(message.content["weights"].to_torch_state_dict())
        update = update_of(model, int(context.node_config["partition-id"]))
        return Message(RecordDict({"update": ArrayRecord({"all": update})}), reply_to=message)


def main() -> None:
    """Train on clients of this process, and try the model on the records of others."""
    model, run = serve(CLIENTS, lambda model, drawn: [update_of(model, client) for client in drawn])
    x, y = records_of(CLIENTS)
    accuracy = float((model(x).argmax(1) == y).float().mean())
    print(f"{run.event.relation}: epsilon {run.epsilon(delta=1e-4):.2f}, accuracy {accuracy:.2f}")


if __name__ == "__main__":
    main()
