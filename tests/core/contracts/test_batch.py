import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arcforge_core.contracts.batch import FEW_TOKENS, SequenceBatch, cumulative

SEGMENTS = st.lists(st.tuples(st.integers(1, 9), st.sampled_from([0, 0, 1, 5, 70])), min_size=1, max_size=6)


def build(segments: list[tuple[int, int]], device: str = "cpu") -> SequenceBatch:
    query, past = [q for q, _ in segments], [p for _, p in segments]
    pages_NP = torch.zeros(len(segments), 3, dtype=torch.int64)
    slots_T = torch.arange(sum(query)) + 100
    return SequenceBatch.build(query, past, write_slots_T=slots_T, pages_NP=pages_NP, device=device)


@given(SEGMENTS)
def test_groups_partition_tokens_and_segments(segments):
    batch = build(segments)
    rows, numbers = [], []
    for group in batch.plan.groups():
        rows += (torch.arange(batch.num_tokens) if group.rows_T is None else group.rows_T).tolist()
        numbers += group.segments
    assert sorted(rows) == list(range(sum(q for q, _ in segments)))
    assert sorted(numbers) == list(range(len(segments)))


@given(SEGMENTS)
def test_each_segment_is_in_the_group_of_its_kind(segments):
    plan = build(segments).plan
    kinds = {
        "prompt": [n for n, (_, p) in enumerate(segments) if p == 0],
        "decode": [n for n, (q, p) in enumerate(segments) if p and q <= FEW_TOKENS],
        "chunk": [n for n, (q, p) in enumerate(segments) if p and q > FEW_TOKENS],
    }
    for name, expected in kinds.items():
        group = getattr(plan, name)
        assert (group is None) == (not expected)
        assert group is None or list(group.segments) == expected


@given(SEGMENTS)
def test_positions_lengths_and_visible_keys(segments):
    batch = build(segments)
    assert batch.positions_T.tolist() == [p + j for q, p in segments for j in range(q)]
    assert batch.query_lengths() == [q for q, _ in segments]
    assert batch.cu_query.dtype == torch.int32 and batch.past.tolist() == [p for _, p in segments]
    assert batch.num_segments == len(segments) and batch.num_tokens == sum(q for q, _ in segments)
    for group in batch.plan.groups():
        taken = [segments[n] for n in group.segments]
        assert group.cu_query.diff().tolist() == [q for q, _ in taken]
        assert group.cu_key.diff().tolist() == [q + p for q, p in taken]
        assert group.cu_query[0] == group.cu_key[0] == 0
        # bottom-right: the last token of a segment sees every key, so its position is the number of keys - 1
        last_T = group.take(batch.positions_T)[group.cu_query[1:].long() - 1]
        assert (last_T + 1).tolist() == group.cu_key.diff().tolist()


@given(SEGMENTS)
def test_put_restores_what_take_took_apart(segments):
    batch = build(segments)
    x_TD = torch.randn(batch.num_tokens, 2)
    out_TD = None
    for group in batch.plan.groups():
        out_TD = group.put(out_TD, group.take(x_TD), batch.num_tokens)
    assert torch.equal(out_TD, x_TD)


def test_put_differentiates_into_every_group():
    batch = build([(2, 0), (1, 5)])
    x_TD = torch.randn(3, 2, requires_grad=True)
    out_TD = None
    for group in batch.plan.groups():
        out_TD = group.put(out_TD, group.take(x_TD) * 2, 3)
    out_TD.sum().backward()
    assert torch.equal(x_TD.grad, torch.full((3, 2), 2.0))


def test_a_single_kind_takes_the_rows_as_they_are():
    batch = SequenceBatch.build([3, 4])
    x_T = torch.arange(7)
    assert batch.plan.prompt.take(x_T) is x_T
    assert batch.plan.prompt.put(None, x_T, 7) is x_T
    assert batch.plan.decode is None and batch.plan.chunk is None


@given(SEGMENTS)
def test_to_moves_per_token_tensors_and_leaves_host_tensors(segments):
    batch = build(segments)
    assert batch.to("cpu") is batch
    moved = batch.to("meta")
    assert moved.positions_T.is_meta and moved.write_slots_T.is_meta
    assert moved.cu_query is batch.cu_query and moved.past is batch.past and moved.pages_NP is batch.pages_NP
    for group, before in zip(moved.plan.groups(), batch.plan.groups(), strict=True):
        assert (group.rows_T is None) == (before.rows_T is None)
        assert group.rows_T is None or group.rows_T.is_meta
        assert group.cu_key is before.cu_key and group.cu_query is before.cu_query
        assert group.segments == before.segments


def test_build_places_per_token_tensors_on_the_device():
    batch = build([(2, 0), (1, 3)], device="meta")
    assert batch.positions_T.is_meta and batch.write_slots_T.is_meta and batch.plan.prompt.rows_T.is_meta
    assert not batch.cu_query.is_meta and not batch.pages_NP.is_meta


@pytest.mark.parametrize(
    ("query", "past"),
    [([], None), ([2, 0], None), ([2, -1], None), ([2], [0, 0]), ([2], [-1])],
)
def test_bad_lengths_are_refused(query, past):
    with pytest.raises(ValueError, match="bad segment lengths"):
        SequenceBatch.build(query, past)


def test_a_past_needs_a_cache_and_page_table_and_slots_come_together():
    with pytest.raises(ValueError, match="need pages_NP and write_slots_T"):
        SequenceBatch.build([1], [3])
    with pytest.raises(ValueError, match="together"):
        SequenceBatch.build([1], write_slots_T=torch.zeros(1, dtype=torch.int64))
    with pytest.raises(ValueError, match="together"):
        SequenceBatch.build([1], [3], pages_NP=torch.zeros(1, 1, dtype=torch.int64))


@given(st.lists(st.integers(0, 1000)))
def test_cumulative_starts_at_zero(lengths):
    assert cumulative(lengths).tolist() == [sum(lengths[:n]) for n in range(len(lengths) + 1)]
    assert cumulative(lengths).dtype == torch.int32


def test_a_group_knows_the_pages_of_its_own_segments():
    pages_NP = torch.tensor([[7, 2, 0], [4, 9, 1], [3, 5, 6]])
    batch = SequenceBatch.build([1, 9, 2], [9, 0, 3], write_slots_T=torch.arange(12), pages_NP=pages_NP)
    pages = batch.plan.decode.pages(4)
    assert pages.table_NP.tolist() == [[7, 2, 0], [3, 5, 6]] and (pages.size, pages.rows) == (4, 32)
    rows = [28, 29, 30, 31, 8, 9, 10, 11, 0, 1, 12, 13, 14, 15, 20]
    assert pages.key_rows(batch.plan.decode.cu_key).tolist() == rows
    assert batch.plan.prompt.pages(4).rows == 40


def test_pages_need_a_table_of_pages():
    with pytest.raises(ValueError, match="no page table"):
        SequenceBatch.build([3]).plan.prompt.pages(4)
    batch = SequenceBatch.build([3], write_slots_T=torch.arange(3), pages_NP=torch.tensor([[-1]]))
    with pytest.raises(ValueError, match="holds -1"):
        batch.plan.prompt.pages(4)
