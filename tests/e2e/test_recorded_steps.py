"""Decoding steps that are recorded once and repeated: the same bits as steps that are run, whatever changes between."""

import weakref

import pytest
import torch

from arcforge_attention.configs import DsaConfig, GqaConfig, MlaConfig, SimpleGdnConfig, SwaConfig
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.generation import recorded
from arcforge_core.generation.weights import replace_weights
from arcforge_core.model.adapt.quantised import MODES, quantise_model
from arcforge_core.model.build import build_model
from arcforge_core.model.cache import PagedCache
from arcforge_core.ops.dispatch import Ops
from arcforge_core.testing.small_models import small_config
from arcforge_hw.configs import CpuConfig
from arcforge_hw.cpu.backend import Cpu
from arcforge_hw.cpu.native import library

SIZES = {
    "hidden_size": 32, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8,
    "v_head_dim": 16, "index_head_dim": 16, "index_topk": 12, "moe_intermediate_size": 16, "intermediate_size": 48,
    "head_dim": 8,
}  # fmt: skip
VARIANTS = {
    "mla": MlaConfig(), "dsa": DsaConfig(), "dsa, bf16 keys": DsaConfig(index_cache="bf16"),
    "dsa, int8 keys": DsaConfig(index_cache="int8"), "gqa": GqaConfig(),
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def compiled():
    verdict = library().verdict()
    if not verdict.ok:
        pytest.skip(verdict.reason)


def build(attention=None, deterministic=False):
    torch.manual_seed(0)
    ops = Ops(Cpu(CpuConfig()), deterministic)
    return build_model(small_config(**SIZES), attention or DsaConfig(), ops).eval()


@torch.no_grad()
def filled(model, lengths, capacity=90, page_size=4):
    """Returns the steps on a cache that has read prompts of these lengths into pages all over it."""
    cache = model.new_cache([capacity] * len(lengths), page_size)
    order = torch.randperm(cache.pages_NP.numel(), generator=torch.Generator().manual_seed(2))
    cache.pages_NP = order.view_as(cache.pages_NP)
    tokens_T = torch.randint(64, (sum(lengths),), generator=torch.Generator().manual_seed(1))
    steps = recorded.Recorded(model, cache)
    steps.hidden(tokens_T, cache.batch(range(len(lengths)), lengths))
    return steps


@torch.inference_mode()
def decode(steps, count, queries, first=0, sequences=None):
    """Returns the hidden states of `count` steps, each of `queries` tokens of the sequences, of all by default."""
    outs = []
    for step in range(first, first + count):
        tokens_T = (torch.arange(sum(queries)) * 5 + step * 3) % 64
        batch = steps.cache.batch(sequences or range(len(queries)), queries)
        outs.append(steps.hidden(tokens_T, batch))
    return torch.stack(outs)


@pytest.fixture
def repeated(monkeypatch):
    """Lists the steps that were repeated."""
    steps = []
    original = recorded.Step.run

    def run(self, *args):
        steps.append(self)
        return original(self, *args)

    monkeypatch.setattr(recorded.Step, "run", run)
    return steps


@pytest.fixture
def both(monkeypatch):
    """Returns what a job gives with steps repeated, and with all of them run."""

    def run(job):
        found = job()
        monkeypatch.setattr(recorded.RecordedSteps, "replay", lambda *_: None)
        return found, job()

    return run


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("lengths", "queries"), [([5], [1]), ([9, 2, 30], [1, 1, 1]), ([6, 4], [3, 1])], ids=["one", "three", "drafts"]
)
def test_repeated_steps_give_the_bits_of_steps_that_are_run(variant, lengths, queries, repeated, both):
    """From below top-k to above it, and over borders of pages."""
    model = build(VARIANTS[variant])
    found, wanted = both(lambda: decode(filled(model, lengths), 20, queries))
    assert len(repeated) >= 15
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("variant", VARIANTS)
def test_repeated_drafts_give_the_bits_of_drafts_that_are_run(variant, repeated, monkeypatch):
    """And entries that are written without drafting."""
    model = build(VARIANTS[variant])

    def job():
        cache = PagedCache(model.cache_spec(), [90, 90], dtype=model.dtype, page_size=4, mtp=model.mtp_cache_spec())
        draw = torch.Generator().manual_seed(0)
        steps, outs = recorded.Recorded(model, cache), []
        with torch.inference_mode():
            for queries in ([6, 9], *[[1, 1]] * 8, *[[3, 2]] * 4):
                batch, rows = cache.batch([0, 1], queries), sum(queries)
                tokens_T = torch.randint(64, (rows,), generator=draw)
                hidden_TD = torch.randn(rows, 32, generator=draw)
                steps.write_cache(tokens_T, hidden_TD, batch)
                outs += [entry.clone() for entry in cache.mtp.entries.values()]
                outs.append(steps.draft(tokens_T, hidden_TD, batch))
        return outs

    found = job()
    assert len(repeated) >= 16
    monkeypatch.setattr(recorded.RecordedSteps, "replay", lambda *_: None)
    for ours, wanted in zip(found, job(), strict=True):
        assert torch.equal(ours, wanted)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("lengths", "shapes"),
    [
        ([37, 34, 40, 35], ([1] * 4, [1] * 3, [1], [1] * 2)),
        ([36, 34, 39], ([3, 1, 1], [3, 1])),
        ([35, 37], ([2, 2], [2])),
    ],
    ids=["fewer", "drafts", "drafts repeated"],
)
def test_padded_steps_give_the_bits_of_steps_that_are_run(variant, lengths, shapes, repeated, both):
    """Of sequences with other pages than those that were recorded; the next steps read their entries."""
    model = build(VARIANTS[variant])

    def job():
        steps, outs = filled(model, lengths), []
        for turn in range(2):
            for queries in shapes:
                last = range(len(lengths) - len(queries), len(lengths))
                outs += decode(steps, 3, queries, 7 * turn, list(last) if turn else None).flatten(0, 1)
        assert {shape.queries for shape in steps.steps["layers"].steps} <= {tuple(shapes[0])}
        return torch.stack(outs)

    found, wanted = both(job)
    irregular = len(set(shapes[0])) > 1  # recorded the second time
    assert len(repeated) == 2 * 3 * len(shapes) - 1 - irregular
    assert torch.equal(found, wanted)


def test_a_shape_that_is_padded_often_is_recorded(repeated, both):
    model = build()

    def job():
        steps = filled(model, [37, 34, 40, 35])
        outs = [decode(steps, 2, [1] * 4), *(decode(steps, 1, [1, 1], n) for n in range(20))]
        shapes = [shape.queries for shape in steps.steps["layers"].steps]
        return torch.cat([x.flatten() for x in outs]), shapes

    (found, shapes), (wanted, _) = both(job)
    assert shapes == [(1, 1, 1, 1), (1, 1)]
    assert sum(step.batch.num_segments == 4 for step in repeated) == 1 + recorded.PADDING // 2
    assert torch.equal(found, wanted)


def test_only_a_shape_with_room_is_padded_to():
    def shape(queries, pages=4, branches=("dense",)):
        return recorded.Shape(tuple(queries), pages, branches)

    one = shape([1, 1])
    assert shape([1, 1]).padding_for(one) == 0
    assert shape([1, 1, 1], 8).padding_for(one) == 1
    assert shape([2, 2, 2]).padding_for(shape([2])) == 4
    for other in (shape([1]), shape([1, 1, 2]), shape([2, 1, 1]), shape([1] * 3, 2), shape([1] * 3, 4, ("sparse",))):
        assert other.padding_for(one) is None


def test_a_step_of_other_sequences_reads_their_pages(repeated, both):
    model = build()

    def job():
        steps = filled(model, [20, 9, 33])
        parts = [decode(steps, 3, [1, 1], n, pair) for n, pair in enumerate(([0, 1], [1, 2], [2, 0]))]
        return torch.cat(parts)

    found, wanted = both(job)
    assert len(repeated) >= 6
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("attention", [SwaConfig(window=6), SimpleGdnConfig()], ids=["swa", "simple_gdn"])
def test_variants_that_cannot_be_recorded_are_run(attention, repeated, both):
    model = build(attention)
    found, wanted = both(lambda: decode(filled(model, [5, 9]), 6, [1, 1]))
    assert not repeated
    assert torch.equal(found, wanted)


def test_new_weights_are_seen(repeated, both):
    """Copied into place, put in place of the old ones, after ops were bound again; and a buffer that is another."""
    model = build()
    first = {name: value.clone() for name, value in model.state_dict().items()}

    def job():
        model.load_state_dict(first)
        steps = filled(model, [20])
        parts = [decode(steps, 5, [1])]
        model.load_state_dict({name: value * 1.5 for name, value in first.items()})
        parts.append(decode(steps, 5, [1], 5))
        model.load_state_dict({name: value * 0.7 for name, value in first.items()}, assign=True)
        parts.append(decode(steps, 5, [1], 10))
        model.rebind()
        parts.append(decode(steps, 5, [1], 15))
        router = model.model.layers[-1].mlp.gate
        router.e_score_correction_bias = torch.tensor([5.0, -5.0, 5.0, -5.0])
        parts.append(decode(steps, 5, [1], 20))
        return torch.cat(parts)

    found, wanted = both(job)
    assert len(repeated) >= 12
    assert torch.equal(found, wanted)


def test_a_hook_sees_every_step(repeated):
    model = build()
    steps, seen = filled(model, [20]), []
    decode(steps, 4, [1])
    assert len(repeated) == 3
    handle = model.model.layers[0].mlp.register_forward_hook(lambda *_: seen.append(1))
    decode(steps, 4, [1])
    assert len(seen) == 4 and len(repeated) == 3
    handle.remove()
    decode(steps, 4, [1])
    assert len(seen) == 4 and len(repeated) == 7


def test_what_is_differentiated_or_trained_or_long_is_run(repeated):
    model = build()
    steps = filled(model, [20, 20])
    for _ in range(3):
        steps.hidden(torch.tensor([1, 2]), steps.cache.batch([0, 1], [1, 1]))
    decode(steps, 3, [5, 4])
    model.train()
    decode(steps, 3, [1, 1])
    assert not repeated


def test_references_and_deterministic_ops_are_run(repeated, monkeypatch):
    deterministic = build(deterministic=True)
    monkeypatch.setenv("ARCFORGE_DISPATCH", "reference")
    for model in (deterministic, build()):
        decode(filled(model, [20]), 4, [1])
    assert not repeated


def test_a_page_that_the_cache_does_not_have_is_refused():
    model = build()
    steps = filled(model, [20], capacity=60)
    decode(steps, 3, [1])
    steps.cache.pages_NP[0, -1] = 15
    with pytest.raises(ValueError, match="names page 15, the cache has 60 rows"):
        decode(steps, 1, [1])


@pytest.mark.parametrize(
    ("slot", "pages", "message"),
    [(60, 15, "go to rows 60 to 60, the cache has 60"), (-1, 15, "rows -1 to -1"), (5, 5, "21 keys do not fit into 5")],
)
def test_rows_that_the_cache_does_not_have_are_refused_from_the_first_step_on(slot, pages, message):
    steps = filled(build(), [20], capacity=60)
    batch = steps.cache.batch([0], [1])
    other = SequenceBatch.build(
        [1], [20], write_slots_T=torch.tensor([slot]), pages_NP=batch.pages_NP.expand(1, -1)[:, :pages]
    )
    with pytest.raises(ValueError, match=message), torch.inference_mode():
        steps.hidden(torch.tensor([1]), other)


def test_sequences_with_unequal_tokens_are_recorded_the_second_time(repeated):
    steps = filled(build(), [37, 34])
    for count, recordings in ((1, 0), (1, 1), (1, 1)):
        decode(steps, count, [2, 1])
        assert len(steps.steps["layers"].steps) == recordings
    assert len(repeated) == 1


def test_a_sequence_with_many_keys_is_not_repeated(repeated, monkeypatch):
    monkeypatch.setattr(recorded, "PADDING_KEYS", 90)
    steps = filled(build(), [37, 38, 39, 36])
    decode(steps, 2, [1] * 4)
    decode(steps, 1, [1] * 2)
    assert [shape.queries for shape in steps.steps["layers"].steps] == [(1,) * 4]  # two of 40 keys
    decode(steps, 1, [1])
    assert [shape.queries for shape in steps.steps["layers"].steps] == [(1,) * 4, (1,)]


def test_a_model_that_cannot_be_recorded_is_not_tried_for_ever(monkeypatch):
    tried = []
    monkeypatch.setattr(recorded.RecordedSteps, "_record", lambda *_: tried.append(1) or (None, None))
    steps = filled(build(), [37, 34, 40, 35, 39])
    for sequences in (1, 2, 3, 4, 5, 1):
        decode(steps, 1, [1] * sequences)
    assert len(tried) == recorded.TRIES


def test_inference_mode_or_none_is_the_same(both):
    model = build()

    def job():
        steps = filled(model, [20])
        parts = [decode(steps, 3, [1])]
        with torch.no_grad():
            parts.append(decode.__wrapped__(steps, 3, [1], 3))
        parts.append(decode(steps, 3, [1], 6))
        return torch.cat(parts)

    found, wanted = both(job)
    assert torch.equal(found, wanted)


def test_recordings_make_room_for_others(repeated, monkeypatch):
    monkeypatch.setattr(recorded, "STEPS", 2)
    model = build()
    steps = filled(model, [20] * 3)
    for sequences in (1, 2, 3, 1):
        decode(steps, 4, [1] * sequences)
    assert len(steps.steps["layers"].steps) == 2
    assert len(repeated) == 3 + 3 + 3 + 4


def test_recordings_end_with_their_cache():
    model = build()
    steps = filled(model, [20])
    decode(steps, 3, [1])
    cache = weakref.ref(steps.cache)
    del steps
    assert cache() is None


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("variant", ["gqa", "mla", "dsa", "dsa, int8 keys"])
@pytest.mark.parametrize("queries", [[1], [1, 3, 1]])
def test_steps_of_quantised_weights_are_repeated(mode, variant, queries, repeated, both):
    """From below top-k to above it, with a mixture of experts, and after an update, which leaves weights in place."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "head_dim": 32, "qk_rope_head_dim": 32, "intermediate_size": 96}
    sizes |= {"q_lora_rank": 32, "index_head_dim": 32, "moe_intermediate_size": 32}
    config = small_config(**{**SIZES, **sizes, "first_k_dense_replace": 2 if variant == "gqa" else 1})
    model = build_model(config, VARIANTS[variant], Ops(Cpu(CpuConfig()))).eval()
    old = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    new = {name: 1.1 * tensor for name, tensor in old.items()}
    quantise_model(model, mode)

    def job():
        replace_weights(model, old, "the first")
        steps = filled(model, [6] * len(queries))
        first = decode(steps, 5, queries)
        replace_weights(model, new, "the update")
        return torch.cat((first, decode(steps, 6, queries, first=5)))

    again, ran = both(job)
    assert len(repeated) >= 7
    assert torch.equal(again, ran)
