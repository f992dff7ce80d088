"""Fused recurrent layers and cells, every option, against single examples."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from engine_check import ENGINES, check
from forward_pass import recorded
from model_cases import Case, Forward, floats, parameter, squares
from noisette.clipping.engines import BookKeeping, Vmap
from noisette.run.per_example import PerExampleClip

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")

# torch.func cannot repeat fused recurrences
OTHER_ENGINES = [engine for engine in ENGINES if not isinstance(engine, BookKeeping | Vmap)]
T, FEATURES, UNITS = 4, 3, 4
KINDS: dict[str, Callable[..., nn.RNNBase]] = {
    "tanh": nn.RNN,
    "relu": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
    "lstm": nn.LSTM,
    "projected": lambda *sizes, **options: nn.LSTM(*sizes, proj_size=2, **options),
    "gru": nn.GRU,
}
CELLS = {
    "tanh": nn.RNNCell,
    "relu": lambda *sizes, **options: nn.RNNCell(*sizes, nonlinearity="relu", **options),
    "lstm": nn.LSTMCell,
    "gru": nn.GRUCell,
}
every_kind = pytest.mark.parametrize("kind", KINDS)
each_recurrence = pytest.mark.parametrize("kind", ["tanh", "projected", "gru"])


def layer(kind: str, **options: object) -> nn.RNNBase:
    return KINDS[kind](FEATURES, UNITS, **options)


def everything(returned: tuple) -> Tensor:
    output, state = returned
    states = state if isinstance(state, tuple) else (state,)
    rows = [output.flatten(1), *(s.transpose(0, 1).flatten(1) for s in states)]
    return torch.cat([k * row * torch.linspace(0.5, 2, row.shape[1]).to(row) for k, row in enumerate(rows, 1)], 1)


def of(forward: Callable[..., Tensor], **parts: nn.Module | Tensor) -> Callable[[], nn.Module]:
    return lambda: Forward(forward, **parts)


def check_sizes(case: Case) -> None:
    for b in (7, T, 1):  # as many examples as steps, so that shapes are ambiguous
        check(case, BookKeeping(), b=b, dtype=torch.float64)
    check(case, BookKeeping(), b=2, dtype=torch.float32)


def check_engines(case: Case) -> None:
    check_sizes(case)
    check(case, *OTHER_ENGINES, b=2, dtype=torch.float64)


@every_kind
def test_stack_in_both_directions(kind: str) -> None:
    rnn = layer(kind, num_layers=2, bidirectional=True, batch_first=True)
    check_engines(Case(kind, of(lambda m, x: everything(m.rnn(x)), rnn=rnn), floats(T, FEATURES)))


@every_kind
@pytest.mark.parametrize("part", ["last output", "h_n", "c_n"])
def test_loss_of_one_part_alone(kind: str, part: str) -> None:
    """The gradient must pass through all steps, also if only the last has a loss."""

    def forward(m: Forward, x: Tensor) -> Tensor:
        output, state = m.rnn(x)
        if part == "last output":
            return output[:, -1]
        return state[0] if not isinstance(state, tuple) else state[part == "c_n"][0]

    case = Case(kind, lambda: Forward(forward, rnn=layer(kind, batch_first=True)), floats(T, FEATURES))
    check(case, BookKeeping(), b=3, dtype=torch.float64)


def both(kind: str, h: Tensor, c: Tensor) -> Tensor | tuple[Tensor, Tensor]:
    return (h, c) if kind in ("lstm", "projected") else h


@each_recurrence
def test_states_from_data_and_from_parameters(kind: str) -> None:
    width = 2 if kind == "projected" else UNITS

    def of_data(m: Forward, x: Tensor, h: Tensor, c: Tensor) -> Tensor:
        h, c = m.start(h).unflatten(1, (4, width)), m.start_c(c).unflatten(1, (4, UNITS))
        return everything(m.rnn(x, both(kind, h.transpose(0, 1).contiguous(), c.transpose(0, 1).contiguous())))

    def of_parameters(m: Forward, x: Tensor) -> Tensor:
        h, c = (p.expand(-1, len(x), -1) for p in (m.h, m.c))
        return everything(m.rnn(x, both(kind, h, c.contiguous())))

    options = {"num_layers": 2, "bidirectional": True, "batch_first": True}
    parts = {"start": nn.Linear(2, 4 * width), "start_c": nn.Linear(2, 4 * UNITS)}
    inputs = lambda b: (torch.randn(b, T, FEATURES), torch.randn(b, 2), torch.randn(b, 2))  # noqa: E731
    check_sizes(Case(kind, lambda: Forward(of_data, rnn=layer(kind, **options), **parts), inputs))
    trained = {"h": parameter(4, 1, width), "c": parameter(4, 1, UNITS)}
    check_sizes(Case(kind, of(of_parameters, rnn=layer(kind, **options), **trained), floats(T, FEATURES)))


@pytest.mark.parametrize("bias", [True, False], ids=["biases", "no bias"])
@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
def test_cells_in_a_loop(cell: Callable[..., nn.Module], bias: bool) -> None:
    def forward(m: Forward, x: Tensor) -> Tensor:
        state = None
        for t in range(x.shape[1]):
            state = m.cell(x[:, t], state)
        return torch.cat(state, 1) if isinstance(state, tuple) else state

    check_engines(Case("cell", of(forward, cell=cell(FEATURES, UNITS, bias=bias)), floats(T, FEATURES)))


@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
def test_cells_that_begin_with_a_parameter(cell: Callable[..., nn.Module]) -> None:
    def forward(m: Forward, x: Tensor) -> Tensor:
        state = tuple(p.expand(len(x), -1) for p in m.states)
        state = m.cell(x[:, 0], state if cell is nn.LSTMCell else state[0])
        state = m.cell(x[:, 1], state)
        return torch.cat(state, 1) if isinstance(state, tuple) else state

    states = nn.ParameterList(parameter(UNITS) for _ in range(1 + (cell is nn.LSTMCell)))
    check_sizes(Case("cell", of(forward, cell=cell(FEATURES, UNITS), states=states), floats(2, FEATURES)))


@each_recurrence
def test_layer_called_twice_with_a_part_frozen(kind: str) -> None:
    rnn = layer(kind, num_layers=2, batch_first=True)
    rnn.weight_hh_l0.requires_grad_(False)
    rnn.bias_ih_l1.requires_grad_(False)

    def forward(m: Forward, x: Tensor) -> Tensor:
        return everything(m.rnn(m.between(torch.relu_(m.rnn(x)[0]))))

    width = 2 if kind == "projected" else UNITS
    check_sizes(Case(kind, of(forward, rnn=rnn, between=nn.Linear(width, FEATURES)), floats(T, FEATURES)))


def test_second_order_gradients_are_refused() -> None:
    model = Forward(lambda m, x: m.rnn(x)[0], rnn=layer("gru", batch_first=True))
    forward, parameters = recorded(model, squares, torch.randn(2, T, FEATURES))
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(forward.losses.sum(), list(parameters.values()), create_graph=True)


@every_kind
def test_weights_changed_before_the_backward_pass_are_noticed(kind: str) -> None:
    rnn = layer(kind, batch_first=True)

    def loss(m: nn.Module, x: Tensor) -> Tensor:
        value = m(x)[0].square().sum()
        with torch.no_grad():
            rnn.weight_hh_l0.add_(1)
        return value

    clip = PerExampleClip(rnn, 1.0, capture="eager")
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        clip.accumulate(loss, torch.randn(2, T, FEATURES))


@pytest.mark.parametrize(
    ("bias", "batch_first"), [(True, True), (False, False)], ids=["batch first", "no bias, time first"]
)
@every_kind
def test_every_number_of_layers_and_directions(kind: str, bias: bool, batch_first: bool) -> None:
    def forward(m: Forward, x: Tensor) -> Tensor:
        output, state = m.rnn(x if batch_first else x.transpose(0, 1))
        return everything((output if batch_first else output.transpose(0, 1), state))

    for num_layers, bidirectional in ((1, False), (1, True), (3, False)):
        options = {"num_layers": num_layers, "bidirectional": bidirectional, "bias": bias, "batch_first": batch_first}
        case = Case(kind, of(forward, rnn=layer(kind, **options)), floats(T, FEATURES))
        check(case, BookKeeping(), b=T, dtype=torch.float64)  # as many examples as steps, so that shapes are ambiguous
