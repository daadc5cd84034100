"""With deterministic ops a sequence's logits are the same bits in every batch, and with a cache as without."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arcforge_attention.configs import DsaConfig, GdnConfig, GqaConfig, MlaConfig, SimpleGdnConfig, SwaConfig
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.errors import ConfigError
from arcforge_core.model.build import build_model
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.hardware import select_hardware
from arcforge_core.plugins.loader import registry
from arcforge_core.testing.small_models import small_config
from support.models import model_configs

VARIANTS = {
    "gqa": GqaConfig(),
    "swa": SwaConfig(window=5),
    "gqa with norms and biases": GqaConfig(qk_norm=True, bias=True),
    "gdn": GdnConfig(pattern="L"),
    "simple_gdn": SimpleGdnConfig(decay="fixed"),
    "mla": MlaConfig(),
    "mla expanded": MlaConfig(form="expanded"),
    "dsa": DsaConfig(),
    "dsa shared": DsaConfig(indexer_types=["full", "shared"]),
}
SIZES = {
    "dense": small_config(first_k_dense_replace=2, max_position_embeddings=256),
    "moe": small_config(first_k_dense_replace=0, max_position_embeddings=256),
}
MODELS = pytest.mark.parametrize("sizes", SIZES)
ATTENTIONS = pytest.mark.parametrize("attention", VARIANTS)
# one tile of queries, a key block and a half, below and above DSA's top-k of 8, tile and block borders
LENGTHS = st.integers(1, 20) | st.integers(1, 140) | st.sampled_from([63, 64, 65, 127, 128, 129])


def build(sizes, attention, deterministic=True, hardware="auto", dtype=None):
    torch.manual_seed(0)
    model = build_model(sizes, attention, Ops(select_hardware(hardware), deterministic)).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms too
            parameter += 0.1 * torch.randn(parameter.shape)
    model.set_compute_dtype(dtype)
    return model


def tokens(length, model, seed=0):
    generator = torch.Generator().manual_seed(1000 * seed + length)
    return torch.randint(model.config.vocab_size, (length,), generator=generator)


def logits_of(model, documents):
    """Returns the logits of each document, all of them packed into one batch."""
    lengths = [len(d) for d in documents]
    with torch.inference_mode():
        return model(torch.cat(documents), SequenceBatch.build(lengths)).logits.split(lengths)


def check_packed(model, lengths):
    documents = [tokens(n, model, seed) for seed, n in enumerate(lengths)]
    for document, packed in zip(documents, logits_of(model, documents), strict=True):
        assert torch.equal(packed, logits_of(model, [document])[0])


def cached_logits(model, document, cuts, neighbours):
    """Returns the document's logits, computed between `cuts` with a cache, with as many tokens of the neighbours."""
    borders = sorted({0, len(document), *(c for c in cuts if c < len(document))})
    cache = model.new_cache([len(document), *(len(n) for n in neighbours)], page_size=16)
    parts = []
    for start, end in pairwise(borders):
        live = {0: document[start:end]}
        live |= {i: n[start:end] for i, n in enumerate(neighbours, 1) if len(n) > start}
        order = sorted(live, reverse=True)  # the document comes last
        batch = cache.batch(order, [len(live[i]) for i in order])
        with torch.inference_mode():
            parts.append(model(torch.cat([live[i] for i in order]), batch, cache).logits[-(end - start) :])
    return torch.cat(parts)


@MODELS
@ATTENTIONS
@settings(max_examples=5)
@given(lengths=st.lists(LENGTHS, min_size=2, max_size=5))
def test_the_batch_changes_nothing(sizes, attention, lengths):
    check_packed(build(SIZES[sizes], VARIANTS[attention]), lengths)


@MODELS
@ATTENTIONS
@settings(max_examples=5)
@given(
    length=LENGTHS,
    cuts=st.lists(st.integers(1, 139), max_size=5),
    decoded=st.integers(0, 5),
    neighbours=st.lists(LENGTHS, max_size=3),
)
def test_a_cache_changes_nothing(sizes, attention, length, cuts, decoded, neighbours):
    model = build(SIZES[sizes], VARIANTS[attention])
    document = tokens(length, model)
    cuts = [*cuts, *range(max(1, length - decoded), length)]  # the last tokens one by one
    others = [tokens(n, model, seed) for seed, n in enumerate(neighbours, 1)]
    assert torch.equal(cached_logits(model, document, cuts, others), logits_of(model, [document])[0])


@settings(max_examples=15)
@given(
    sizes=model_configs(),
    attention=st.sampled_from([GqaConfig(), MlaConfig(), DsaConfig(), GdnConfig(pattern="L")]),
    lengths=st.lists(st.integers(1, 40), min_size=2, max_size=4),
    cut=st.integers(1, 30),
)
def test_odd_sizes_change_nothing(sizes, attention, lengths, cut):
    try:
        model = build(sizes, attention)
    except ConfigError:
        return  # sizes that this variant refuses
    check_packed(model, lengths)
    document = tokens(lengths[0], model)
    cached = cached_logits(model, document, [cut, cut + 1], [tokens(lengths[1], model, 1)])
    assert torch.equal(cached, logits_of(model, [document])[0])


@pytest.mark.parametrize("hardware", ["cpu", "torch_cpu"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("attention", ["gqa", "swa", "mla expanded", "dsa"])
def test_other_dtypes_and_backends(hardware, dtype, attention):
    model = build(SIZES["moe"], VARIANTS[attention], hardware=hardware, dtype=dtype)
    check_packed(model, [1, 33, 20])
    document = tokens(80, model)
    cuts = [40, *range(58, 80)]
    assert torch.equal(cached_logits(model, document, cuts, []), logits_of(model, [document])[0])


def test_two_threads():
    model, threads = build(SIZES["moe"], DsaConfig()), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        check_packed(model, [1, 130, 7, 64])
        document = tokens(130, model)
        assert torch.equal(cached_logits(model, document, [100, 129], []), logits_of(model, [document])[0])
    finally:
        torch.set_num_threads(threads)


@ATTENTIONS
def test_the_ordinary_ops_depend_on_the_batch(attention):
    """Or the tests above would show nothing."""
    model = build(SIZES["moe"], VARIANTS[attention], deterministic=False)
    document = tokens(65, model)
    assert not torch.equal(cached_logits(model, document, [63, 64], []), logits_of(model, [document])[0])


@MODELS
@ATTENTIONS
def test_a_training_pass_has_the_bits_of_inference(sizes, attention):
    """Kernels without gradients must not serve engines alone: the first ratio of reinforcement learning is 1."""
    model = build(SIZES[sizes], VARIANTS[attention])
    documents = [tokens(n, model, n) for n in (3, 65, 20)]
    wanted = torch.cat(logits_of(model, documents))
    trained = model.train()(torch.cat(documents), SequenceBatch.build([3, 65, 20])).logits
    assert trained.requires_grad and torch.equal(trained.detach(), wanted)


def test_dsa_below_topk_is_mla():
    dsa, mla = build(SIZES["moe"], DsaConfig()), build(SIZES["moe"], MlaConfig())
    mla.load_state_dict({name: v for name, v in dsa.state_dict().items() if "indexer" not in name})
    documents = [tokens(n, mla, n) for n in (1, 8, 5)]
    for ours, theirs in zip(logits_of(dsa, documents), logits_of(mla, documents), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("engine", ["simple", "paged"])
@pytest.mark.parametrize("attention", ["gqa", "mla", "dsa"])
@pytest.mark.parametrize(("temperature", "dtype"), [(1.0, None), (0.6, None), (0.6, torch.float64)])
def test_log_probs_of_an_engine_are_those_of_a_forward_pass(engine, attention, temperature, dtype):
    model = build(SIZES["moe"], VARIANTS[attention], dtype=dtype)
    prompts = [tokens(n, model, n).tolist() for n in (3, 30, 1)]
    component = registry().get("engine", engine)
    params = SamplingParams(24, temperature, prompt_logprobs=True, sampled_logprobs=temperature != 1.0)
    outputs = component.load()(component.load_schema()(), model).generate(prompts, params)
    for prompt, output in zip(prompts, outputs, strict=True):
        whole = torch.tensor(prompt + output.token_ids)
        logits_TV = logits_of(model, [whole])[0][:-1]
        scaled_TV = torch.cat((logits_TV[: len(prompt) - 1], logits_TV[len(prompt) - 1 :] / temperature))
        logprobs = scaled_TV.log_softmax(-1).gather(1, whole[1:, None])[:, 0]
        assert output.prompt_logprobs + output.logprobs == logprobs.tolist()
