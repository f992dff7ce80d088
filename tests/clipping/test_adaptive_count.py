"""Each released count moves the bound once: also where a step fails, and where sums are popped without a release."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from noisette import AdaptiveClip, PerExampleClip, privatize

X = torch.randn(40, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, 3, (40,), generator=torch.Generator().manual_seed(2))


class FailsOnce(torch.optim.SGD):
    failed = False

    def step(self, closure=None):
        if not self.failed:
            self.failed = True
            raise RuntimeError("the step fails after the release")
        return super().step(closure)


def test_a_count_released_before_a_step_that_fails_moves_the_bound() -> None:
    model, rule = nn.Linear(6, 3).double(), AdaptiveClip(0.5)
    optimizer = FailsOnce(model.parameters(), lr=0.1)
    run = privatize(
        PerExampleClip(model, clipping=rule),
        optimizer,
        (X, Y),
        expected_batch_size=40,
        sampling_rate=1.0,
        steps=3,
        noise_multiplier=1e-3,
    )
    with run:
        batches = run.batches()
        for k in range(2):
            for x, y in next(batches).microbatches(40):
                run.accumulate(lambda model, x, y: nn.functional.cross_entropy(model(x), y), x, y)
            if k == 0:
                with pytest.raises(RuntimeError):
                    optimizer.step()
                assert run.steps_taken == 1  # it was released and paid for
    [group] = rule.groups(["w"])
    assert group.bound != 0.5


def test_sums_popped_without_a_release_do_not_repeat_the_last_count() -> None:
    model, rule = nn.Linear(6, 3).double(), AdaptiveClip(0.5)
    clip = PerExampleClip(model, clipping=rule)
    *_, count = clip.pop_sums()
    count.params[0].grad = torch.tensor(0.3, dtype=torch.float64)
    clip.after_step()
    released = rule.max_grad_norm
    clip.pop_sums()
    clip.after_step()
    assert rule.max_grad_norm == released
