"""MLA in steps that only decode, by one op of the chip that writes the cache too."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from arcforge_attention.configs import DsaConfig, MlaConfig
from arcforge_core.contracts.device import GENERAL
from arcforge_core.contracts.hardware import YES, Kernel
from arcforge_core.model.build import build_model
from arcforge_core.ops import Ops, reference
from arcforge_core.testing.attention_suite import build_layer, close, inputs, new_cache, run
from arcforge_core.testing.small_models import small_config

MODEL = small_config(num_attention_heads=3, qk_nope_head_dim=10, qk_rope_head_dim=6, v_head_dim=14, kv_lora_rank=32)


@pytest.fixture
def chip():
    """Ops of a chip that has the whole layer, and the tokens of each call of it."""
    calls = []

    def layer(*args):
        calls.append(len(args[0]))
        return reference.mla_layer(*args)

    kernel = Kernel("mla_layer", "acme.layer", layer, lambda call: YES, rows={torch.float32: 8})
    return SimpleNamespace(
        ops=Ops(SimpleNamespace(name="acme", capabilities=GENERAL, kernels=lambda: [kernel])), calls=calls
    )


def steps(layer, lengths=((9, 4), (1, 1), (3, 1), (30, 1), (1, 1)), grad=False):
    """Returns the outputs of steps of two sequences, and the cache's rows at the end."""
    cache, outs, start = new_cache(layer, [60, 60]), [], 0
    for each in lengths:
        x_TD = inputs(start + sum(each), MODEL)[start:].requires_grad_(grad)
        start += sum(each)
        outs.append(run(layer, x_TD, cache.batch([0, 1], list(each)), MODEL, cache).out_TD)
    return torch.cat(outs), cache.layers[0].entries["latent"]


def test_steps_that_only_decode_are_one_call_and_equal_those_by_parts(chip):
    ours, parts = build_layer(MlaConfig(), MODEL, ops=chip.ops), build_layer(MlaConfig(), MODEL, ops=Ops(None))
    (out_TD, rows_RC), (wanted_TD, wanted_RC) = steps(ours), steps(parts)
    assert chip.calls == [2, 4, 2], "neither the prompt nor the chunk of 30"
    close(out_TD, wanted_TD, 1e-5)
    close(rows_RC, wanted_RC, 1e-5)


@pytest.mark.parametrize(
    "config",
    [MlaConfig(step="parts"), MlaConfig(latent_cache="int8"), MlaConfig(form="expanded"), DsaConfig()],
    ids=["parts", "an int8 cache", "expanded", "an indexer"],
)
def test_other_layers_run_by_their_parts(chip, config):
    layer = build_layer(config, MODEL, ops=chip.ops)
    cache = new_cache(layer, [9])
    for tokens in (7, 1):
        run(layer, inputs(tokens, MODEL), cache.batch([0], [tokens]), MODEL, cache)
    assert chip.calls == []


def test_gradients_hooks_and_caches_of_another_dtype_need_the_parts(chip):
    layer = build_layer(MlaConfig(), MODEL, ops=chip.ops)
    steps(layer, ((9, 4), (1, 1)), grad=True)
    handle = layer.o_proj.register_forward_hook(lambda *_: None)
    steps(layer)
    handle.remove()
    cache = new_cache(layer, [9])
    cache.layers[0].entries["latent"] = cache.layers[0].entries["latent"].bfloat16()
    for tokens in (7, 1):
        run(layer, inputs(tokens, MODEL), cache.batch([0], [tokens]), MODEL, cache)
    assert chip.calls == []
    steps(layer)
    assert len(chip.calls) == 3


def test_a_model_generates_the_same_tokens(chip):
    torch.manual_seed(0)
    ours = build_model(replace(MODEL, num_hidden_layers=2), MlaConfig(), chip.ops).eval()
    theirs = build_model(replace(MODEL, num_hidden_layers=2), MlaConfig(), Ops(None)).eval()
    theirs.load_state_dict(ours.state_dict())
    prompts = [list(range(5, 40)), [3, 4]]
    assert torch.equal(ours.generate(prompts, max_new_tokens=6), theirs.generate(prompts, max_new_tokens=6))
    assert chip.calls and set(chip.calls) <= {1, 2}
