"""Every engine gives the clipped sum of single examples in double precision, also on a GPU."""

from __future__ import annotations

import pytest
import torch

from device_check import check_on
from engine_check import ENGINES
from model_cases import CASES, Case

# Their forward passes make tensors on the processor.
ON_PROCESSOR = {"python-loop recurrent", "attention", "weight put together"}
every_case = pytest.mark.parametrize(
    "case", [case for case in CASES if case.name not in ON_PROCESSOR], ids=lambda case: case.name.replace(" ", "-")
)


@every_case
def test_double_precision(any_device: torch.device, case: Case) -> None:
    check_on(any_device, case, ENGINES, torch.float64)


@every_case
def test_single_precision(gpu: torch.device, case: Case) -> None:
    check_on(gpu, case, ENGINES, torch.float32)
