"""Absorbed decode in C++: the reference's values, whatever chunks, threads and neighbours."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import arcforge_hw.cpu.native.mla_decode as kernel
from arcforge_core.contracts.batch import cumulative
from arcforge_core.ops import reference


def make(queries, keys, heads=3, width=20, latent=13, dtype=torch.float64, seed=0):
    draw = torch.Generator().manual_seed(seed)
    q_THC = torch.randn(sum(queries), heads, width, generator=draw, dtype=dtype)
    kv_SC = torch.randn(sum(keys), width, generator=draw, dtype=dtype)
    return q_THC, kv_SC, cumulative(queries), cumulative(keys), latent, width**-0.5


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(0, 600)), min_size=1, max_size=3),
    st.integers(1, 6),
    st.integers(2, 40),
    st.data(),
)
def test_equals_the_reference(segments, heads, width, data):
    latent = data.draw(st.integers(1, width))
    call = make([q for q, _ in segments], [q + past for q, past in segments], heads, width, latent)
    torch.testing.assert_close(kernel.mla_decode(*call), reference.mla_decode(*call), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("sizes", [(64, 32), (96, 64), (96, 32), (576, 512), (40, 32)])
@pytest.mark.parametrize("keys", [[1, 9, 300], [700]])
def test_bfloat16_is_near_the_reference(sizes, keys):
    """Entries in whole vectors, multiplied as they are, and others."""
    call = make([1] * len(keys), keys, 5, *sizes, dtype=torch.bfloat16)
    wanted = reference.mla_decode(*(x.double() for x in call[:2]), *call[2:])
    torch.testing.assert_close(kernel.mla_decode(*call).double(), wanted, rtol=2**-8, atol=1e-5)


def test_gradients_come_from_the_tiled_kernel():
    q_THC, kv_SC, *rest = make([2, 1], [9, 4])
    leaves = q_THC.requires_grad_(), kv_SC.requires_grad_()
    assert torch.autograd.gradcheck(lambda q, kv: kernel.mla_decode(q, kv, *rest), leaves)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_number_of_threads_changes_no_bit(dtype, monkeypatch):
    call = make([1, 9, 2], [700, 300, 2], dtype=dtype)
    found = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(kernel.torch, "get_num_threads", lambda threads=threads: threads)
        found.append(kernel.mla_decode(*call))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_a_query_does_not_depend_on_its_batch():
    """Alone, among other sequences, or as the last of several tokens: the same bits."""
    q_THC, kv_SC, _, _, *rest = make([6], [600], dtype=torch.float32)
    whole = kernel.mla_decode(q_THC, kv_SC, cumulative([6]), cumulative([600]), *rest)
    alone = kernel.mla_decode(q_THC[5:], kv_SC, cumulative([1]), cumulative([600]), *rest)
    among = (torch.cat((q_THC[:1], q_THC[5:])), torch.cat((kv_SC[:9], kv_SC)), cumulative([1, 1]), cumulative([9, 600]))
    twice = kernel.mla_decode(*among, *rest)
    assert torch.equal(whole[5:], alone) and torch.equal(twice[1:], alone)


def test_more_queries_than_results_fit_in_the_waiting_room():
    """Chunks' results are joined in several turns."""
    call = make([300], [300], heads=32, width=256, latent=256, dtype=torch.float32)
    got, wanted = kernel.mla_decode(*call), reference.mla_decode(*call)
    assert (got - wanted).abs().max() <= 2e-5 * wanted.abs().max()


def test_other_segments_are_never_read():
    q_THC, kv_SC, *rest = make([1, 1], [40, 300], dtype=torch.float32)
    poisoned = kv_SC.clone()
    poisoned[:40] = float("nan")
    first, second = kernel.mla_decode(q_THC, poisoned, *rest)
    assert first.isnan().all() and torch.equal(second, kernel.mla_decode(q_THC, kv_SC, *rest)[1])


def test_segments_beyond_the_keys_are_refused():
    q_THC, kv_SC, *rest = make([1], [9])
    with pytest.raises(ValueError, match="1 tokens, 8 keys"):
        kernel.mla_decode(q_THC, kv_SC[:8], *rest)


def test_opcheck():
    torch.library.opcheck(torch.ops.arcforge_native.mla_decode.default, make([2, 1], [9, 4]))


def test_sizes_that_do_not_fit_together_are_refused():
    q_THC, kv_SC, *rest = make([1], [9])
    with pytest.raises(ValueError, match=r"kv_SC must be \[9, 20\], not \[9, 19\]"):
        kernel.mla_decode(q_THC, kv_SC[:, :19], *rest)
    with pytest.raises(ValueError, match="latent_dim=21: must be from 1 to 20"):
        kernel.mla_decode(q_THC, kv_SC, *rest[:2], 21, rest[3])
