"""Recording calls of C: what is repeated, what cannot be, and that nothing else is affected."""

import threading

import pytest
import torch

from arcforge_core.contracts.hardware import Recorder
from arcforge_core.ops import reference
from arcforge_hw.configs import CpuConfig
from arcforge_hw.cpu.backend import Cpu
from arcforge_hw.cpu.native.linear import linear
from arcforge_hw.cpu.native.record import record
from arcforge_hw.cpu.native.rms_norm import rms_norm

WEIGHT = torch.linspace(0.5, 1.5, 16)


def norm_twice(x):
    return lambda: rms_norm(rms_norm(x, WEIGHT, 1e-5) + x, WEIGHT, 1e-5)


def test_the_cpu_backend_is_a_recorder():
    assert isinstance(Cpu(CpuConfig()), Recorder)


def test_a_recorded_step_reads_its_inputs_anew():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(3, 16, generator=draw)
    again = record(norm_twice(x))
    for _ in range(3):
        x.copy_(torch.randn(3, 16, generator=draw))
        wanted = reference.rms_norm(reference.rms_norm(x, WEIGHT, 1e-5) + x, WEIGHT, 1e-5)
        torch.testing.assert_close(again(), wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_sums_stores_and_casts_are_repeated(dtype):
    x, store, narrow = torch.zeros(2, 3, dtype=dtype), torch.zeros(5, 3, dtype=dtype), torch.zeros(5, 3).bfloat16()
    slots, plain = torch.tensor([4, 1]), torch.zeros(2, 3)

    def step():
        doubled = x + x
        store.index_copy_(0, slots, doubled)
        narrow.index_copy_(0, slots, plain.to(torch.bfloat16))
        return doubled

    again = record(step)
    x.copy_(torch.arange(6).view(2, 3))
    plain.copy_(torch.tensor([[1.00390625, 3.0, float("nan")], [-2.5, 1e30, 0.1]]))
    slots.copy_(torch.tensor([0, 2]))
    assert torch.equal(again(), 2 * x)
    assert torch.equal(store[[0, 2]], 2 * x) and not store[[1, 3, 4]].any()
    torch.testing.assert_close(narrow[[0, 2]], plain.bfloat16(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_that_are_joined_are_joined_again(dtype):
    parts = [torch.zeros(3, 4, dtype=dtype) for _ in range(3)]
    again = record(lambda: torch.cat(parts, dim=-1))
    for number, part in enumerate(parts):
        part.copy_(torch.arange(12).view(3, 4) + 100 * number)
    assert torch.equal(again(), torch.cat(parts, -1))


UNRECORDABLE = {
    "another operator": lambda x: x.softmax(-1),
    "a value on the host": lambda x: x + float(x.max()),
    "a sum of two shapes": lambda x: x + x[:1],
    "a sum with a factor": lambda x: torch.add(x, x, alpha=2),
    "a reshape that copies": lambda x: x.t().reshape(2, 16) + x,
    "parts of two widths joined": lambda x: torch.cat((x, x[:, :3].contiguous()), -1),
    "rows below one another": lambda x: torch.cat((x, x)),
    "another cast": lambda x: x.double(),
    "C without a recorded form": lambda x: linear(x, torch.zeros(4, 16)),
}


@pytest.mark.parametrize("step", UNRECORDABLE.values(), ids=UNRECORDABLE)
def test_a_step_with_more_than_c_is_not_recorded(step):
    x = torch.ones(2, 16)
    assert record(lambda: step(x)) is None
    assert torch.equal(rms_norm(x, torch.ones(16), 0.0), x)  # later calls work as before


def test_an_error_of_the_step_is_the_callers_and_ends_the_recording():
    def step():
        raise KeyError("own")

    with pytest.raises(KeyError, match="own"):
        record(step)
    x = torch.ones(2, 16)
    with pytest.raises(ValueError, match="weight must be"):  # checks are made again
        rms_norm(x, torch.ones(15), 0.0)


def test_calls_of_other_threads_are_not_recorded():
    x, other = torch.ones(2, 16), torch.ones(1, 16)
    calls = []

    def step():
        thread = threading.Thread(target=lambda: calls.append(rms_norm(other, WEIGHT, 1e-5)))
        thread.start()
        thread.join()
        return rms_norm(x, WEIGHT, 1e-5)

    again = record(step)
    kept = calls[0].clone()
    other.zero_()
    again()
    assert torch.equal(calls[0], kept)
