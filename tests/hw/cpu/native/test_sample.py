"""The token drawn of each row: the reference's, whatever the dtype, the length, the temperature and the threads."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import arcforge_hw.cpu.native.sample as native
from arcforge_core.ops.reference import noise, sample

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f64": torch.float64}


def rows(count, vocab, dtype, scale=4.0, seed=0):
    g = torch.Generator().manual_seed(seed)
    logits = (scale * torch.randn(count, vocab, generator=g)).to(DTYPES[dtype])
    temperature = torch.tensor([0.3, 1.0, 2.5], dtype=torch.float64).repeat(count)[:count]
    return logits, temperature, torch.arange(count) + 7 * seed, torch.arange(count) % 5


@settings(max_examples=80, deadline=None)
@given(
    st.integers(1, 6),
    st.integers(1, 1100),
    st.sampled_from(list(DTYPES)),
    st.sampled_from([0.0, 0.1, 4.0, 80.0, 1e4]),
    st.integers(0, 2**60),
)
def test_equals_the_reference(count, vocab, dtype, scale, seed):
    """Rows that are even, peaked, and so peaked that weights vanish."""
    given_ = rows(count, vocab, dtype, scale, seed % 1000)
    assert torch.equal(native.sample(*given_), sample(*given_))
    logits, temperature, _, places = given_
    seeds = torch.full((count,), seed)
    assert torch.equal(native.sample(logits, temperature, seeds, places), sample(logits, temperature, seeds, places))


def test_many_draws_equal_the_reference():
    """Each of 20,000 tokens: a bound that is too tight would lose one now and then."""
    g = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(1, 300, generator=g)).expand(20_000, -1)
    temperature = torch.linspace(0.2, 3, 20_000, dtype=torch.float64)
    seeds, places = torch.arange(20_000) // 100, torch.arange(20_000) % 100
    drawn = native.sample(logits, temperature, seeds, places)
    assert torch.equal(drawn, sample(logits, temperature, seeds, places))
    assert len(drawn.unique()) > 200


@pytest.mark.parametrize("draw", [sample, native.sample])
def test_a_near_tie_is_decided_in_double_precision(draw):
    """Weights that are in proportion to the noise: all tokens are equal but for a 1e10th of what they are."""
    for seed in range(5):
        order = torch.randperm(1000, generator=torch.Generator().manual_seed(seed))
        logits = noise(seed, 3, 1000).log() + 1e-10 * order
        drawn = draw(logits[None], torch.ones(1), torch.tensor([seed]), torch.tensor([3]))
        assert drawn.item() == int(order.argmax())


def test_forbidden_tokens_are_never_drawn():
    logits, temperature, seeds, places = rows(200, 600, "f32", 1.0)
    logits[:, 10:] = -float("inf")
    drawn = native.sample(logits, temperature, seeds, places)
    assert drawn.max() < 10
    assert len(drawn.unique()) == 10


@pytest.mark.parametrize("draw", [sample, native.sample])
def test_tiny_temperatures_and_outliers_are_greedy(draw):
    logits = torch.tensor([[1.0, 30.0, 29.0, -1e30]]).repeat(3, 1)
    temperature = torch.tensor([1e-6, 1e-30, 1e-300], dtype=torch.float64)
    assert draw(logits, temperature, torch.arange(3), torch.arange(3)).tolist() == [1, 1, 1]


def test_the_counted_numbers_are_those_of_numpy():
    """Even logits draw the token with the largest number."""
    seed, place, vocab = 2**63 - 1, 2**40, 1000
    bits = np.random.Philox(key=seed, counter=[0, place, 0, 0]).random_raw(vocab) >> np.uint64(11)
    drawn = native.sample(torch.zeros(1, vocab), torch.ones(1), torch.tensor([seed]), torch.tensor([place]))
    assert drawn.item() == int(bits.argmax())


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_the_same_in_any_batch_and_number_of_threads(dtype, monkeypatch):
    given_ = rows(5, 1300, dtype)
    whole = native.sample(*given_)
    alone = [native.sample(*(x[n : n + 1] for x in given_)) for n in range(5)]
    monkeypatch.setattr(native.torch, "get_num_threads", lambda: 3)
    assert torch.equal(native.sample(*given_), whole)
    assert torch.equal(torch.cat(alone), whole)


@pytest.mark.parametrize("draw", [sample, native.sample])
def test_no_rows(draw):
    none = torch.zeros(0, dtype=torch.int64)
    assert draw(torch.zeros(0, 5), torch.zeros(0), none, none).tolist() == []


def test_parameters_of_other_rows_are_refused():
    logits, temperature, seeds, places = rows(3, 10, "f32")
    with pytest.raises(ValueError, match=r"seed_N must be \[3\], not \[2\]"):
        native.sample(logits, temperature, seeds[:2], places)
