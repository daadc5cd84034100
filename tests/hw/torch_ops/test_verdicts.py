"""Answers that backends share: the first no, grouped products, Gram matrices."""

import pytest
import torch

from arcforge_core.contracts.hardware import YES, OpCall, Verdict
from arcforge_hw.torch_ops.verdicts import fewer_on_gram, first_no, grouped_mm


def call(op="moe_experts", dtype=torch.float32, **sizes):
    return OpCall(op, "cpu", dtype, sizes=sizes)


def test_the_first_no_is_given():
    answers = [lambda _: YES, lambda _: Verdict(False, "first"), lambda _: Verdict(False, "second")]
    assert first_no(*answers)(call()).reason == "first"
    assert first_no(answers[0])(call()).ok
    assert first_no()(call()).ok


@pytest.mark.parametrize(
    ("dtype", "width", "reason"),
    [
        (torch.float64, 16, "does not support float64"),
        (torch.bfloat16, 20, "width=20"),
        (torch.float32, 20, ""),
        (torch.bfloat16, 24, ""),
    ],
)
def test_grouped_products_take_rows_of_whole_16_bytes(dtype, width, reason):
    verdict = grouped_mm(call(dtype=dtype, hidden=16, width=width))
    assert verdict.ok == (not reason)
    assert reason in verdict.reason


@pytest.mark.parametrize(
    ("shape", "dtype", "reason"),
    [
        ((64, 256), torch.float32, ""),
        ((256, 64), torch.float32, ""),
        ((64, 64), torch.float32, "64 x 64"),
        ((64, 256), torch.bfloat16, "bfloat16"),
    ],
)
def test_gram_matrices_where_they_are_fewer_operations(shape, dtype, reason):
    verdict = fewer_on_gram(call("newton_schulz", dtype, rows=shape[0], columns=shape[1]))
    assert verdict.ok == (not reason)
    assert reason in verdict.reason
