import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arcforge_core.contracts.attention import CacheEntry, StateEntry
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.model.cache import PagedCache
from arcforge_core.testing.small_models import small_model

SPEC = (CacheEntry("latent", (3,)), CacheEntry("rope", (), torch.float64))


def filled(lengths: list[int], page_size: int = 4) -> PagedCache:
    return PagedCache([SPEC, SPEC], lengths, dtype=torch.float32, page_size=page_size)


def test_sizes_and_dtypes_come_from_the_spec():
    cache = filled([5, 4], page_size=4)
    assert len(cache.layers) == 2
    entries = cache.layers[0].entries
    assert entries["latent"].shape == (12, 3) and entries["latent"].dtype == torch.float32
    assert entries["rope"].shape == (12,) and entries["rope"].dtype == torch.float64


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.integers(1, 5),
    st.data(),
    st.booleans(),
)
def test_reads_return_what_was_written_in_order(num_steps, page_size, data, shuffled):
    """Sequences grow in turns of any size; a shuffled page table reads by gathering, a fresh one by viewing."""
    limit = 14
    cache = filled([limit] * len(num_steps), page_size)
    if shuffled:
        pages = cache.pages_NP.flatten()
        cache.pages_NP = pages[torch.randperm(len(pages))].view_as(cache.pages_NP)
    written: list[list[float]] = [[] for _ in num_steps]
    for step in range(max(num_steps)):
        room = [n for n in range(len(num_steps)) if step < num_steps[n] and len(written[n]) < limit]
        if not room:
            break
        live = data.draw(st.lists(st.sampled_from(room), min_size=1, unique=True))
        query = [data.draw(st.integers(1, min(6, limit - len(written[n])))) for n in live]
        batch = cache.batch(live, query)
        values_T = torch.rand(sum(query), dtype=torch.float64)
        for n, part in zip(live, values_T.split(query), strict=True):
            written[n] += part.tolist()
        layer = cache.layers[0]
        layer.write(batch, latent=values_T[:, None].expand(-1, 3).float(), rope=values_T)
        for group in batch.plan.groups():
            expected = [v for segment in group.segments for v in written[live[segment]]]
            assert layer.read("rope", batch, group).tolist() == expected
            assert layer.read("latent", batch, group).shape == (len(expected), 3)
    assert cache.lengths == [len(values) for values in written]
    assert not cache.layers[1].entries["rope"].any()  # the other layer was not touched


def test_a_read_of_consecutive_pages_is_a_view():
    cache = filled([8, 8], page_size=2)
    batch = cache.batch([1], [5])
    view = cache.layers[0].read("latent", batch, batch.plan.prompt)
    assert view.data_ptr() == cache.layers[0].entries["latent"][8:].data_ptr()


def test_a_sequence_too_long_is_refused_and_counts_nothing():
    cache = filled([8, 3])
    with pytest.raises(ValueError, match=r"sequence 1: 0 \+ 4 tokens exceed its limit of 3"):
        cache.batch([0, 1], [4, 4])
    assert cache.lengths == [0, 0]


def test_unknown_and_missing_entries_are_refused():
    cache = filled([4])
    batch = cache.batch([0], [1])
    with pytest.raises(ValueError, match=r"holds \['latent', 'rope'\], not \['latent'\]"):
        cache.layers[0].write(batch, latent=torch.zeros(1, 3))


def test_a_batch_without_slots_or_pages_is_refused():
    cache, batch = filled([4]), SequenceBatch.build([2])
    with pytest.raises(ValueError, match="no write slots"):
        cache.layers[0].write(batch, latent=torch.zeros(2, 3), rope=torch.zeros(2))
    with pytest.raises(ValueError, match="no page table"):
        cache.layers[0].read("rope", batch, batch.plan.prompt)


@settings(max_examples=12)
@given(st.lists(st.lists(st.integers(1, 7), min_size=1, max_size=3), min_size=1, max_size=3), st.integers(1, 4))
def test_any_way_of_feeding_a_sequence_gives_the_logits_of_the_whole(chunks, page_size):
    """Prompts, chunks with a past and single tokens of several sequences share their batches."""
    model = small_model().double()
    totals = [sum(parts) for parts in chunks]
    documents = [torch.randint(64, (n,)) for n in totals]
    cache = model.new_cache(totals, page_size=page_size)
    done: list[list[torch.Tensor]] = [[] for _ in chunks]
    for step in range(max(map(len, chunks))):
        live = [n for n, parts in enumerate(chunks) if step < len(parts)]
        query = [chunks[n][step] for n in live]
        starts = [cache.lengths[n] for n in live]
        tokens_T = torch.cat([documents[n][s : s + q] for n, s, q in zip(live, starts, query, strict=True)])
        logits_TV = model(tokens_T, cache.batch(live, query), cache).logits
        for n, part in zip(live, logits_TV.split(query), strict=True):
            done[n].append(part)
    for document, parts in zip(documents, done, strict=True):
        torch.testing.assert_close(torch.cat(parts), model(document[None]).logits[0], rtol=1e-9, atol=1e-9)


def test_a_window_is_the_end_of_the_past_and_what_is_new():
    cache = PagedCache([SPEC], [11, 9], dtype=torch.float32, page_size=2)
    layer, values = cache.layers[0], torch.arange(20, dtype=torch.float64)
    for query, start in (([7, 6], 0), ([3, 1], 13)):
        batch = cache.batch([0, 1], query)
        part = values[start : start + sum(query)]
        layer.write(batch, latent=part[:, None].expand(-1, 3).float(), rope=part)
    (group,) = batch.plan.groups()
    assert layer.read("rope", batch, group).tolist() == [*range(7), 13, 14, 15, *range(7, 13), 16]
    assert layer.read("rope", batch, group, window=4).tolist() == [4, 5, 6, 13, 14, 15, 10, 11, 12, 16]
    assert layer.read("rope", batch, group, window=1).tolist() == [13, 14, 15, 16]
    assert layer.read("rope", batch, group, window=99).tolist() == layer.read("rope", batch, group).tolist()


def test_scattered_pages_give_the_same_window():
    cache = PagedCache([SPEC], [8], dtype=torch.float32, page_size=2)
    cache.pages_NP = torch.tensor([[2, 0, 3, 1]])
    batch = cache.batch([0], [7])
    values_T = torch.arange(7, dtype=torch.float64)
    cache.layers[0].write(batch, latent=torch.zeros(7, 3), rope=values_T)
    batch = cache.batch([0], [1])
    cache.layers[0].write(batch, latent=torch.zeros(1, 3), rope=torch.tensor([7.0], dtype=torch.float64))
    assert cache.layers[0].read("rope", batch, batch.plan.decode, window=4).tolist() == [4, 5, 6, 7]


def test_a_state_belongs_to_its_sequence_and_starts_at_zero():
    cache = PagedCache([(StateEntry("state", (2,), torch.float64),)], [8, 8, 8], dtype=torch.float32, page_size=2)
    layer = cache.layers[0]
    layer.states["state"].fill_(9.0)  # left by a sequence before
    first = cache.batch([2, 0], [3, 2])
    (group,) = first.plan.groups()
    assert not layer.read_state("state", first, group).any()
    layer.write_state("state", first, group, torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64))
    mixed = cache.batch([0, 1, 2], [1, 2, 1])
    assert layer.read_state("state", mixed, mixed.plan.decode).tolist() == [[3.0, 4.0], [1.0, 2.0]]
    assert layer.read_state("state", mixed, mixed.plan.prompt).tolist() == [[0.0, 0.0]]
    with pytest.raises(ValueError, match="no state slots"):
        layer.read_state("state", SequenceBatch.build([2]), SequenceBatch.build([2]).plan.prompt)


def test_bytes_of_windows_and_states_stop_growing():
    entries = CacheEntry("key", (2, 4)), CacheEntry("key", (2, 4), window=16), StateEntry("state", (5,), torch.float32)
    assert [[e.num_bytes(torch.bfloat16, tokens) for e in entries] for tokens in (1, 16, 64)] == [
        [16, 16, 20],
        [256, 256, 20],
        [1024, 256, 20],
    ]
