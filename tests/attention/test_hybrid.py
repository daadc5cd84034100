"""Models that mix linear and full layers: training, cache, generation, packed documents."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arcforge_attention.configs import GdnConfig, SimpleGdnConfig
from arcforge_attention.gqa import GQA
from arcforge_attention.simple_gdn import SimpleGatedDeltaNet
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.model.build import build_model
from arcforge_core.testing.attention_suite import close
from arcforge_core.testing.small_models import small_config

MIXED = [
    GdnConfig(),
    GdnConfig(pattern="L"),
    GdnConfig(pattern="FLLF"),
    SimpleGdnConfig(),
    SimpleGdnConfig(pattern="L", decay="fixed"),
    SimpleGdnConfig(pattern="FFLL", beta=0.5, rope=False),
]
VARIANTS = pytest.mark.parametrize("attention", MIXED, ids=lambda a: f"{a.name} {a.pattern}")


def mixed_model(attention):
    torch.manual_seed(0)
    sizes = small_config(num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2)
    return build_model(sizes, attention).double().eval()


def test_layers_are_those_of_the_pattern():
    layers = [layer.self_attn for layer in mixed_model(SimpleGdnConfig(pattern="LFFL")).model.layers]
    assert [type(layer) for layer in layers] == [SimpleGatedDeltaNet, GQA, GQA, SimpleGatedDeltaNet]


@VARIANTS
def test_a_model_generates_as_it_reads(attention):
    model = mixed_model(attention)
    ids = model.generate([[1, 2, 3, 4, 5, 6, 7], [9, 8], [5]], max_new_tokens=12)
    for row, prompt in zip(ids, (7, 2, 1), strict=True):
        row = row[row >= 0][None]
        assert row[0, prompt:].tolist() == model(row).logits.argmax(-1)[0, prompt - 1 : -1].tolist()


@VARIANTS
@settings(max_examples=5)
@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3), min_size=1, max_size=3))
def test_any_way_of_feeding_a_sequence_gives_the_logits_of_the_whole(attention, chunks):
    """Prompts, chunks with a past and single tokens of several sequences share their batches; float64."""
    model = mixed_model(attention)
    documents = [torch.arange(sum(parts)) * 7 % 64 for parts in chunks]
    cache = model.new_cache([len(d) for d in documents], page_size=4)
    done = [[] for _ in chunks]
    with torch.inference_mode():
        for step in range(max(map(len, chunks))):
            live = [n for n, parts in enumerate(chunks) if step < len(parts)][::-1]
            query = [chunks[n][step] for n in live]
            starts = [cache.lengths[n] for n in live]
            tokens_T = torch.cat([documents[n][s : s + q] for n, s, q in zip(live, starts, query, strict=True)])
            logits_TV = model(tokens_T, cache.batch(live, query), cache).logits
            for n, part in zip(live, logits_TV.split(query), strict=True):
                done[n].append(part)
        packed = model(torch.cat(documents), SequenceBatch.build([len(d) for d in documents])).logits
        for document, parts, alone in zip(documents, done, packed.split([len(d) for d in documents]), strict=True):
            wanted = model(document[None]).logits[0]
            torch.testing.assert_close(torch.cat(parts), wanted, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(alone, wanted, rtol=1e-9, atol=1e-9)


@VARIANTS
def test_gradients_of_packed_documents_are_those_of_each(attention):
    model = mixed_model(attention)
    documents = [torch.arange(n) * 5 % 64 for n in (9, 1, 70)]

    def gradients(batches):
        model.zero_grad()
        for docs in batches:
            logits = model(torch.cat(docs), SequenceBatch.build([len(d) for d in docs])).logits
            logits.log_softmax(-1)[:, 3].sum().backward()
        return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    packed, single = gradients([documents]), gradients([[d] for d in documents])
    assert packed.keys() == single.keys() and any("self_attn.q_proj" in name for name in packed)
    for name in packed:
        close(packed[name], single[name], 1e-9)
