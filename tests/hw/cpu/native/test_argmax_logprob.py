"""The argmax of each row: the reference's, whatever the dtype, the length and the threads."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import arcforge_hw.cpu.native.argmax_logprob as native
from arcforge_core.ops.reference import argmax_logprob

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f64": torch.float64}


def logits(rows, vocab, dtype, scale=8.0, seed=0):
    return (scale * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))).to(DTYPES[dtype])


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(1, 1600), st.sampled_from(list(DTYPES)), st.sampled_from([0.0, 0.1, 8.0, 80.0]))
def test_equals_the_reference(rows, vocab, dtype, scale):
    """Many equal maxima too: bfloat16 has few values, and scale 0 gives one."""
    x = logits(rows, vocab, dtype, scale)
    (best, rest), (wanted_best, wanted_rest) = native.argmax_logprob(x), argmax_logprob(x)
    assert torch.equal(best, wanted_best)
    torch.testing.assert_close(rest, wanted_rest, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("place", [0, 511, 512, 1299])
def test_rows_with_a_value_that_is_not_finite_are_marked(dtype, place):
    x = logits(4, 1300, dtype)
    for row, value in enumerate((float("nan"), float("inf"), -float("inf"))):
        x[row, place] = value
    for best, rest in (native.argmax_logprob(x), argmax_logprob(x)):
        assert rest.isnan().tolist() == [True, True, True, False]
        assert ((best >= 0) & (best < 1300)).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_the_same_in_any_batch_and_number_of_threads(dtype, monkeypatch):
    x = logits(5, 1300, dtype)
    whole = native.argmax_logprob(x)
    monkeypatch.setattr(native.torch, "get_num_threads", lambda: 3)
    for other in (
        native.argmax_logprob(x),
        [torch.cat(parts) for parts in zip(*map(native.argmax_logprob, x.split(1)), strict=True)],
    ):
        assert all(torch.equal(a, b) for a, b in zip(whole, other, strict=True))


def test_logits_of_a_part_of_the_vocabulary():
    x = logits(3, 900, "f32")[:, 100:400]
    assert torch.equal(native.argmax_logprob(x)[0], x.argmax(-1))


def test_no_rows():
    assert [len(part) for part in native.argmax_logprob(torch.zeros(0, 5))] == [0, 0]
