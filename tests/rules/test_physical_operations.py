"""Operations that leave ``vmap``: equal to single examples, and no value of one example reaches another."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from forward_pass import recorded_losses
from noisette.core.backward import per_example_gradients
from noisette.core.forms import PHYSICAL, Operation
from noisette.core.vmap import is_wrapped
from noisette.errors import PrivacyError
from noisette.rules import rule_check
from noisette.rules.normalization import normalise_channels

F = torch.nn.functional
B = 3  # examples
Call = Callable[..., Any]  # (weights, *inputs of one example) -> the output, a tensor or nested tensors


@dataclass(frozen=True)
class Form:
    name: str
    operation: Operation
    call: Call  # the inputs of one example have no axis of length 1 in front
    weights: tuple[tuple[int, ...], ...]  # shapes
    inputs: tuple[tuple[int, ...] | Callable[[int], Tensor], ...]  # of one example; or made of so many examples
    leaves: bool = True  # ``vmap``, in this form
    frozen: tuple[int, ...] = ()  # numbers of the weights that do not train


class Weights(nn.Module):
    def __init__(self, form: Form) -> None:
        super().__init__()
        self.list = nn.ParameterList(torch.randn(shape, dtype=torch.float64) for shape in form.weights)
        for k in form.frozen:
            self.list[k].requires_grad_(False)


@dataclass(frozen=True)
class Result:
    outputs: list[Tensor]
    of_inputs: list[Tensor]
    of_weights: dict[str, Tensor]

    @property
    def rows(self) -> list[Tensor]:
        return [*self.outputs, *self.of_inputs, *self.of_weights.values()]


def flat(output: Any) -> list[Tensor]:
    return [output] if isinstance(output, Tensor) else [tensor for part in output for tensor in flat(part)]


def projection(call: Call, count: int, model: Weights, *tensors: Tensor) -> Tensor:
    """A loss of all outputs of a call: their products with cotangents, the last tensors among the arguments."""
    tensors = tuple([tensor[0] for tensor in tensors])
    outputs = flat(call(list(model.list), *tensors[:count]))
    return sum([(y * c).sum() for y, c in zip(outputs, tensors[count:], strict=True)], torch.zeros(()))


def alone(form: Form, model: Weights, inputs: Sequence[Tensor], cotangents: Sequence[Tensor]) -> Result:
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    results = []
    for i in range(B):
        own = [x[i].clone().requires_grad_(x.is_floating_point()) for x in inputs]
        outputs = flat(form.call(list(model.list), *own))
        loss = sum([(y * c[i]).sum() for y, c in zip(outputs, cotangents, strict=True)], torch.zeros(()))
        wanted = [x for x in own if x.is_floating_point()] + list(named.values())
        grads = torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True) if wanted else ()
        split = len(wanted) - len(named)
        results.append(([y.detach() for y in outputs], grads[:split], grads[split:]))
    columns = [[torch.stack(column) for column in zip(*part, strict=True)] for part in zip(*results, strict=True)]
    return Result(columns[0], columns[1], dict(zip(named, columns[2], strict=True)))


def vectorized(form: Form, model: Weights, inputs: Sequence[Tensor], cotangents: Sequence[Tensor]) -> Result:
    """All examples at once, weights by the rules; an output is the gradient at the cotangent that multiplies it."""
    inputs = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
    cotangents = [c.clone().requires_grad_() for c in cotangents]
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    found = recorded_losses(model, partial(projection, form.call, len(inputs)), *inputs, *cotangents)
    floats = [x for x in inputs if x.is_floating_point()]
    grads = torch.autograd.grad(
        found.losses.sum(), [*cotangents, *floats], retain_graph=True, allow_unused=True, materialize_grads=True
    )
    explicit = per_example_gradients(
        found, parameters, lambda forms: {name: form.explicit() for name, form in forms.items()}
    )
    of_weights = {name: explicit[name].view(B, *parameters[name].shape) for name in parameters}
    split = len(cotangents)
    return Result(list(grads[:split]), list(grads[split:]), of_weights)


def made(form: Form) -> tuple[Weights, list[Tensor], list[Tensor]]:
    inputs = [make(B) if callable(make) else torch.randn(B, *make, dtype=torch.float64) for make in form.inputs]
    model = Weights(form)
    outputs = flat(form.call(list(model.list), *[x[0] for x in inputs]))
    return model, inputs, [torch.randn(B, *y.shape, dtype=torch.float64) for y in outputs]


def watch(monkeypatch: pytest.MonkeyPatch, operation: Operation) -> list[bool]:
    leave, left = PHYSICAL[operation], []

    def watched(*arguments: Any) -> Any:
        output = leave(*arguments)
        left.append(output is not NotImplemented)
        return output

    monkeypatch.setitem(PHYSICAL, operation, watched)
    return left


def ids(*shape: int, below: int = 5) -> Callable[[int], Tensor]:
    return lambda b: torch.randint(0, below, (b, *shape))


def flags(*shape: int) -> Callable[[int], Tensor]:
    return lambda b: (torch.rand(b, *shape) > 0.4).index_fill(-1, torch.tensor([0]), True)


def probabilities(*shape: int) -> Callable[[int], Tensor]:
    return lambda b: torch.randn(b, *shape, dtype=torch.float64).softmax(-1)


def with_ignored(*shape: int) -> Callable[[int], Tensor]:
    return lambda b: torch.randint(0, 4, (b, *shape)).index_fill(-1, torch.tensor([0]), -100)


_mean, _var = torch.randn(4, dtype=torch.float64), torch.rand(4, dtype=torch.float64) + 0.5
_SHAPES = {"mask": (5, 6), "mask of rows": (2, 1, 5, 6), "h": (1, 2, 4), "x": (2, 5, 3)}
_constant = {name: torch.randn(shape, dtype=torch.float64) for name, shape in _SHAPES.items()}
_graph = torch.randn(5, 5, dtype=torch.float64).relu().to_sparse()
_ends = torch.tensor([[2, 5, 7], [0, 7, 7], [3, 3, 7]])  # of three experts among seven rows


def linear_forms() -> list[Form]:
    w, b = (4, 6), (4,)
    linear, matmul, addmm, einsum = F.linear, torch.matmul, torch.addmm, torch.einsum
    products, grouped = [matmul, torch.mm, Tensor.matmul, Tensor.mm], torch._grouped_mm  # pyright: ignore

    def by_expert(p: Any, x: Tensor, ends: Tensor) -> Tensor:
        if is_wrapped(x):
            return F.grouped_mm(x, p[0], offs=ends)
        return torch.cat([part @ w for part, w in zip(x.tensor_split(ends[:-1].tolist()), p[0], strict=True)])

    shapes = {"": (1, 6), "one vector": (6,), "n=2": (2, 6), "four axes": (2, 5, 3, 6)}
    return [
        *(Form(f"linear, {name}", linear, lambda p, x: linear(x, *p), (w, b), (x,)) for name, x in shapes.items()),
        Form("linear, by name", linear, lambda p, x: linear(weight=p[0], bias=None, input=x), (w,), ((1, 6),)),
        Form("linear, frozen weight", linear, lambda p, x: linear(x, *p), (w, b), ((1, 6),), frozen=(0,)),
        Form("linear, weight as data", linear, lambda p, x: linear(p[0], x), ((3, 6),), ((4, 6),), False),
        Form("linear, weights of each example", linear, lambda p, x, v: linear(x, v, *p), (b,), ((2, 6), w), False),
        *[
            Form(f"{k} {op.__name__}", op, lambda p, x, op=op: op(x, p[0]), ((6, 4),), ((2, 6),))
            for k, op in enumerate(products)
        ],
        Form("mv", torch.mv, lambda p, x: torch.mv(x, p[0]), ((6,),), ((2, 6),)),
        Form("Tensor.mv", Tensor.mv, lambda p, x: x.mv(p[0]), ((6,),), ((1, 6),)),
        Form("matmul, vector by matrix", matmul, lambda p, x: matmul(x, p[0]), ((6, 4),), ((6,),)),
        Form("matmul, four axes", Tensor.matmul, lambda p, x: x @ p[0], ((6, 4),), ((2, 5, 3, 6),)),
        Form("matmul, weight on the left", matmul, lambda p, x: matmul(p[0], x), (w,), ((6, 2),), False),
        Form("matmul, stack", matmul, lambda p, x: matmul(x, p[0]), ((5, 6, 4),), ((5, 2, 6),), False),
        Form("sparse matrix", torch.sparse.mm, lambda p, x: torch.sparse.mm(_graph, x @ p[0]), ((6, 4),), ((5, 6),)),
        Form("experts", grouped, by_expert, ((3, 6, 4),), ((7, 6), lambda b: _ends)),
        Form("addmm", matmul, lambda p, x: addmm(p[0], x, p[1]), (b, (6, 4)), ((2, 6),)),
        Form("Tensor.addmm", matmul, lambda p, x: p[0].addmm(x, mat2=p[1]), (b, (6, 4)), ((1, 6),)),
        Form("einsum", einsum, lambda p, x: einsum("ni,oi->no", x, p[0]), (w,), ((2, 6),)),
        Form("einsum, diagonal", einsum, lambda p, x: einsum("ii,i->i", x, p[0]), ((4,),), ((4, 4),)),
        Form("einsum, no arrow", einsum, lambda p, x: einsum("ni,oi", x, p[0]), (w,), ((2, 6),), False),
    ]


def norm_forms() -> list[Form]:
    c = ((4,), (4,))
    instance, batch, table, look_up = F.instance_norm, F.batch_norm, ((5, 3),), F.embedding
    fixed = {"running_mean": _mean, "running_var": _var}
    public = lambda p, x: normalise_channels(x, [p[0], p[1].square() + 1], 1e-3)  # noqa: E731
    by_frequency = lambda p, x: look_up(x, *p, scale_grad_by_freq=True)  # noqa: E731
    with_fixed = lambda p, x: instance(x, weight=p[0], bias=p[1], use_input_stats=False, **fixed)  # noqa: E731
    with_padding = lambda p, x: look_up(weight=p[0], input=x, padding_idx=1)  # noqa: E731
    images = ((2, 4, 5),)
    return [
        Form("layer norm", F.layer_norm, lambda p, x: F.layer_norm(x, (4,), *p), c, ((2, 5, 4),)),
        Form("layer norm, 2 axes", F.layer_norm, lambda p, x: F.layer_norm(x, (5, 4), *p), ((5, 4),) * 2, ((1, 5, 4),)),
        Form("rms norm", F.rms_norm, lambda p, x: F.rms_norm(x, (4,), *p), c[:1], ((2, 5, 4),)),
        Form("group norm", F.group_norm, lambda p, x: F.group_norm(x, 2, *p), c, ((1, 4, 3, 2),)),
        Form("group norm, n=2", F.group_norm, lambda p, x: F.group_norm(x, 2, *p), c, ((2, 4, 3),)),
        Form("instance norm", instance, lambda p, x: instance(x, weight=p[0], bias=p[1]), c, images),
        Form("instance norm, fixed", instance, with_fixed, c, images, False),
        Form("batch norm", batch, lambda p, x: batch(x, _mean, _var, *p), c, images),
        Form("batch norm, of one example", batch, lambda p, x: batch(x, None, None, *p, True), c, images, False),
        Form("public statistics", normalise_channels, public, c, ((2, 4, 3),)),
        Form("embedding", look_up, lambda p, x: look_up(x, *p), table, (ids(1, 6),)),
        Form("embedding, padding", look_up, with_padding, table, (ids(2, 6),)),
        Form("embedding, frequencies", look_up, by_frequency, table, (ids(1, 6),), False),
    ]


def convolution_forms() -> list[Form]:
    """Each axis with values of its own."""
    forms = []
    for d, (conv, transposed) in enumerate(
        [(F.conv1d, F.conv_transpose1d), (F.conv2d, F.conv_transpose2d), (F.conv3d, F.conv_transpose3d)], start=1
    ):
        size, kernel, stride, padding = ((7, 6, 5)[:d], (3, 2, 2)[:d], (2, 1, 2)[:d], (1, 2, 0)[:d])
        for n in ((), (1,), (2,)):
            name, inputs = f"{d} axes, n={n}", ((*n, 4, *size),)
            more = {"stride": stride, "padding": padding, "groups": 2}
            leaves = d < 3 or n != (2,)
            for op, shapes in [(conv, ((6, 2, *kernel), (6,))), (transposed, ((4, 3, *kernel), (6,)))]:
                call = partial(lambda op, more, p, x: op(x, *p, **more), op, more)
                forms.append(Form(f"{op.__name__}, {name}", op, call, shapes, inputs, leaves))
    same = lambda p, x: F.conv2d(x, p[0], padding="same", dilation=(1, 2))  # noqa: E731
    return [
        *forms,
        Form("conv, same", F.conv2d, same, ((3, 4, 2, 3),), ((1, 4, 6, 5),)),
        Form("conv, image is a weight", F.conv1d, lambda p, k: F.conv1d(p[0], k), ((1, 4, 6),), ((3, 4, 2),), False),
    ]


def attention_forms() -> list[Form]:
    """Queries (n, heads, 5, 4); keys and values (n, heads, 6, 4)."""
    attend = F.scaled_dot_product_attention
    q, kv = (2, 3, 5, 4), (2, 3, 6, 4)
    forms = [
        Form(f"attention, {name}", attend, lambda p, q, k, v: attend(q, k, v), (), (q, kv, kv))
        for name, q, kv in [("n=2", q, kv), ("n=1", (1, *q[1:]), (1, *kv[1:])), ("heads", q[1:], kv[1:])]
    ]
    for kind, mask_of in {"float": lambda *shape: shape, "bool": flags}.items():
        for shape in [(5, 6), (1, 1, 6), (1, 1, 5, 6), (2, 3, 5, 6)]:
            masked = lambda p, q, k, v, m: attend(q, k, v, m)  # noqa: E731
            forms.append(Form(f"attention, {kind} mask {shape}", attend, masked, (), (q, kv, kv, mask_of(*shape))))
        for shape in [(5, 6), (3, 5, 6)]:
            masked = lambda p, q, k, v, m: attend(q, k, v, attn_mask=m)  # noqa: E731
            inputs = (q[1:], kv[1:], kv[1:], mask_of(*shape))
            forms.append(Form(f"attention, heads, {kind} mask {shape}", attend, masked, (), inputs))
    groups, wider = ((2, 4, 5, 4), (2, 2, 6, 4), (2, 2, 6, 4)), (q, kv, (2, 3, 6, 7))
    calls: dict[str, tuple[Call, tuple[Any, ...], tuple[Any, ...]]] = {
        "constant mask": (lambda p, q, k, v: attend(q, k, v, _constant["mask"]), (), (q, kv, kv)),
        "mask of rows": (lambda p, q, k, v: attend(q, k, v, _constant["mask of rows"]), (), (q, kv, kv)),
        "causal": (lambda p, q, k, v: attend(q, k, v, is_causal=True), (), (q, q, q)),
        "groups": (lambda p, q, k, v: attend(q, k, v, enable_gqa=True), (), groups),
        "learned query": (lambda p, k, v: attend(p[0], k, v), (q,), (kv, kv)),
        "learned mask": (lambda p, q, k, v: attend(q, k, v, p[0]), ((3, 5, 6),), (q, kv, kv)),
        "values of another width": (lambda p, q, k, v: attend(q, k, v), (), wider),
    }
    return forms + [Form(f"attention, {name}", attend, *made) for name, made in calls.items()]


def recurrence_forms() -> list[Form]:
    """Two layers in two directions of width 4, one of width 4, with and without biases, states, axes of time first."""
    forms = []
    for op, gates in [(torch.rnn_tanh, 1), (torch.rnn_relu, 1), (torch.gru, 3), (torch.lstm, 4)]:
        wide = 4 * gates
        for layers, two_ways, biased, batch_first, n in [(1, 0, 1, 1, 1), (1, 0, 0, 0, 2), (2, 1, 1, 0, 1)]:
            ways = 1 + two_ways
            shapes: list[tuple[int, ...]] = []
            for layer in range(layers):
                shapes += [(wide, 4 * ways if layer else 3), (wide, 4), *[(wide,)] * (2 * biased)] * ways
            state, x = (layers * ways, n, 4), (n, 5, 3) if batch_first else (5, n, 3)
            settings = (bool(biased), layers, 0.0, False, bool(two_ways), bool(batch_first))

            def call(p: Any, x: Tensor, *states: Tensor, op: Any = op, settings: Any = settings) -> Any:
                return op(x, list(states) if op is torch.lstm else states[0], p, *settings)

            states = (state,) * (2 if op is torch.lstm else 1)
            name = f"{op.__name__}, layers {layers}, ways {ways}, batch first {batch_first}, n={n}"
            forms.append(Form(name, op, call, tuple(shapes), (x, *states)))
    gru, some = ((12, 3), (12, 4), (12,), (12,)), (True, 1, 0.0, False, False, True)
    state, learned = (1, 2, 4), lambda p, x: torch.gru(x, p[-1], p[:-1], *some)
    return [
        *forms,
        Form("gru, constant state", torch.gru, lambda p, x: torch.gru(x, _constant["h"], p, *some), gru, ((2, 5, 3),)),
        Form("gru, learned state", torch.gru, learned, (*gru, state), ((2, 5, 3),)),
        Form("gru, constant input", torch.gru, lambda p, h: torch.gru(_constant["x"], h, p, *some), gru, (state,)),
    ]


def loss_forms() -> list[Form]:
    cross, forms = F.cross_entropy, []

    def form(name: str, target: Any, n: int = 3, operation: Any = cross, leaves: bool = True, **more: Any) -> Form:
        return Form(name, operation, lambda p, x, y: operation(x, y, **more), (), ((n, 4), target), leaves)

    for n in (1, 3):
        for reduction in ("mean", "sum", "none"):
            more: dict[str, Any] = {"n": n, "reduction": reduction}
            # A mean over no label is not a number.
            to_ignore = (ids(n, below=3), 3) if reduction == "mean" else (ids(n, below=4), 2)
            name = f"n={n}, {reduction}"
            forms += [
                form(f"cross entropy, {name}, labels", ids(n, below=4), **more),
                form(f"cross entropy, {name}, a class ignored", to_ignore[0], ignore_index=to_ignore[1], **more),
                form(f"cross entropy, {name}, probabilities", probabilities(n, 4), label_smoothing=0.2, **more),
                form(f"nll, {name}", ids(n, below=4), operation=F.nll_loss, **more),
            ]
            if n > 1:
                forms.append(form(f"cross entropy, {name}, ignored", with_ignored(n), label_smoothing=0.1, **more))
    constant = lambda p, x: cross(x, torch.tensor([1, 2]))  # noqa: E731
    return [
        *forms,
        form("cross entropy, class weights", ids(3, below=4), weight=_var),
        form("cross entropy, old names", ids(3, below=4), size_average=False, leaves=False),
        Form("cross entropy, constant label", cross, constant, (), ((2, 4),), False),
        Form("rrelu, off", F.rrelu, lambda p, x: F.rrelu(x, 0.1, 0.3), (), ((2, 4),)),
        Form("dropout, off", F.dropout, lambda p, x: F.dropout(x, 0.5, False), (), ((2, 4),)),
        Form("dropout, in place", F.dropout, lambda p, x: F.dropout(x * 1, 0.0, inplace=True), (), ((2, 4),), False),
    ]


FORMS = [*linear_forms(), *norm_forms(), *convolution_forms(), *attention_forms(), *recurrence_forms(), *loss_forms()]


def test_every_operation_of_the_list_has_forms() -> None:
    built_in = {operation for operation, leave in PHYSICAL.items() if leave is not rule_check._for_all_examples}
    built_in -= {"transformers::grouped_mm_fallback"}  # as F.grouped_mm
    assert {form.operation for form in FORMS if form.leaves} == built_in, "others are of rules that tests have made"
    assert len({form.name for form in FORMS}) == len(FORMS)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_equal_to_single_examples_and_separate(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs, cotangents = made(form)
    left = watch(monkeypatch, form.operation)
    truth, found = alone(form, model, inputs, cotangents), vectorized(form, model, inputs, cotangents)
    assert any(left) is form.leaves
    assert found.of_weights.keys() == truth.of_weights.keys()
    for got, expected in zip(found.rows, truth.rows, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)

    for k, changed in enumerate(inputs):
        values = (torch.nan, 1e30) if changed.is_floating_point() else (0,)
        for value in values:
            others = [*inputs]
            others[k] = changed.clone()
            others[k][1] = value
            for got, expected in zip(vectorized(form, model, others, cotangents).rows, found.rows, strict=True):
                assert torch.equal(got[[0, 2]], expected[[0, 2]]), (k, value)


@pytest.mark.parametrize("training_of", ["dropout", "attention", "recurrence"])
def test_dropped_positions_are_fresh_and_their_gradient_is_their_own(training_of: str) -> None:
    """With one and the same input in each example, the outputs differ; nothing moves with another example's values."""
    if training_of == "dropout":
        form = Form("", F.dropout, lambda p, x: F.dropout(x, 0.5), (), ((2, 40),))
    elif training_of == "attention":
        attend = F.scaled_dot_product_attention
        form = Form("", attend, lambda p, q, k, v: attend(q, k, v, dropout_p=0.5), (), ((2, 3, 8, 4),) * 3)
    else:
        shapes = ((12, 3), (12, 4), (12, 4), (12, 4))
        form = Form(
            *("", torch.gru, lambda p, x, h: torch.gru(x, h, p, False, 2, 0.5, True, False, True)),
            *(shapes, ((1, 8, 3), (2, 1, 4)), True, (0, 1, 2, 3)),
        )
    model, inputs, cotangents = made(form)
    equal = [x[:1].expand_as(x).clone() for x in inputs]
    torch.manual_seed(0)
    found = vectorized(form, model, equal, cotangents)
    assert not torch.equal(found.outputs[0][0], found.outputs[0][1])
    if training_of == "dropout":
        masks = found.outputs[0] / equal[0]
        torch.testing.assert_close(found.of_inputs[0], masks * cotangents[0])
        assert {round(value, 6) for value in masks.unique().tolist()} == {0.0, 2.0}
    equal[0] = equal[0].clone()
    equal[0][1] = torch.nan
    torch.manual_seed(0)
    for got, expected in zip(vectorized(form, model, equal, cotangents).rows, found.rows, strict=True):
        assert torch.equal(got[[0, 2]], expected[[0, 2]])


def test_a_table_that_is_rescaled_by_what_was_looked_up_is_refused() -> None:
    form = Form("", F.embedding, lambda p, x: F.embedding(x, *p, max_norm=0.1), ((5, 3),), (ids(1, 6),))
    model, inputs, cotangents = made(form)
    with torch.no_grad():
        model.list[0].fill_(1.0)
    with pytest.raises(PrivacyError, match="max_norm"):
        vectorized(form, model, inputs, cotangents)
    assert bool((model.list[0] == 1).all())


def test_a_bias_whose_rows_would_meet_the_examples_does_not() -> None:
    """With as many rows in the bias as examples, a joint operation would give each example another row."""
    form = Form("", F.linear, lambda p, x: F.linear(x, *p), ((4, 6), (B, 4)), ((1, 6),))
    x = torch.randn(B, 1, 6, dtype=torch.float64)
    with pytest.raises(PrivacyError, match=r"one value, got shape \(3,\)"):
        recorded_losses(Weights(form), lambda m, x: F.linear(x[0], *m.list).sum(1), x)
