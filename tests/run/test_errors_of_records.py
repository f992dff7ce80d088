"""A record whose loss raises: nothing of its batch is released, or it adds nothing and the run goes on."""

import pytest
import torch
from torch import Tensor, nn

from noisette import PerExampleClip
from oracle import clipped_sum
from small_loop import loss, start, take_steps

X = torch.randn(40, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.arange(40) % 3
BAD = [3, 17, 18, 39]


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def choleskys(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Of a matrix that is positive definite where the label is not 9."""
    matrix = torch.eye(3, dtype=x.dtype) * torch.where(y == 9, -1.0, 1.0)
    return (torch.linalg.cholesky(matrix) @ model(x).T).square().sum()


@pytest.mark.parametrize("capture", ["eager", "graph"])
@pytest.mark.parametrize("of", [loss, choleskys])
@pytest.mark.filterwarnings("ignore::noisette.capture.captured.CaptureWarning")
def test_a_record_that_raises_adds_nothing(of, capture):
    labels, good = Y.clone(), [k for k in range(40) if k not in BAD]
    labels[BAD] = 9
    clip = PerExampleClip(model(), 0.1, capture=capture, errors="skip")  # pyright: ignore[reportArgumentType]
    for y in (Y, labels, labels):
        clip.pop_sums()
        clip.accumulate(of, X, y)
    [total] = clip.pop_sums()
    expected = clipped_sum(model(), of, (X[good], labels[good]), 0.1).sums
    torch.testing.assert_close(dict(zip(clip.parameters, total.grads, strict=True)), expected)


def test_a_run_goes_on_where_that_is_asked_for():
    labels = Y.clone()
    labels[BAD] = 9
    for errors, steps in (("raise", 0), ("skip", 3)):
        net = model().float()
        clip = PerExampleClip(net, 1.0, errors=errors)  # pyright: ignore[reportArgumentType]
        run = start(net, (X.float(), labels), clip=clip, sampling_rate=1.0, expected_batch_size=40)
        try:
            take_steps(run)
        except IndexError as error:
            assert "9" not in str(error)  # noqa: PT017 - only one of the two raises
        assert run.steps_taken == steps
        run.close()


def test_a_loss_that_raises_for_all_is_wrong_itself():
    clip = PerExampleClip(model(), 1.0, errors="skip")
    with pytest.raises(IndexError, match="label"):
        clip.accumulate(loss, X, Y + 9)
    with pytest.raises(ValueError, match="errors='ignore' is unknown; choose 'raise' or 'skip'"):
        PerExampleClip(model(), 1.0, errors="ignore")  # pyright: ignore[reportArgumentType]
