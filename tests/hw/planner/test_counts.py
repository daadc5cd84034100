"""Products, bytes and cache of a model."""

import pytest
import torch

from arcforge_core.config.compose import compose
from arcforge_core.model.build import build_model
from arcforge_core.model.params import count_parameters, training_flops_per_token
from arcforge_core.ops.dispatch import Ops
from arcforge_hw.planner.counts import count_model


def counted(*overrides, weights="none", dtype=torch.bfloat16):
    config = compose(list(overrides))
    return count_model(config.model, config.attention, weights, dtype)


@pytest.mark.nightly
def test_glm5_has_the_numbers_of_its_release():
    count = counted("model=glm5")
    assert count.values == (753_864_139_008, 743_911_218_432)
    # a latent of 512, a rotary key of 64 and an index key of 128, in bf16 in 78 layers
    assert count.cache(1000) == 1000 * 78 * (512 + 64 + 128) * 2
    experts = sum(layer.expert.values * 256 for layer in count.layers if layer.expert)
    assert experts == 75 * 256 * 3 * 2048 * 6144
    core = count.layers[-1].core
    # spec 1.4: 64 heads x (576 + 512) of 2048 latents, and 32 index heads of 128 over all keys, a weight for each score
    assert core.decode(131072) == 64 * (576 + 512) * 2 * 2048 + 2 * 32 * (128 + 1) * 131072
    assert core.decode(2048) == 64 * (576 + 512) * 2 * 2048


@pytest.mark.parametrize("attention", ["dsa", "mla", "gqa", "swa", "gdn"])
def test_values_bytes_and_flops_agree_with_the_model(attention):
    config = compose(["model=tiny", "model.num_hidden_layers=4", f"attention={attention}"])
    count, model = count_model(config.model, config.attention), build_model(config.model, config.attention, Ops(None))
    known = count_parameters(config.model, config.attention)
    assert count.values == (known.total_with_mtp, known.total_without_mtp)
    state = model.to(torch.bfloat16).state_dict()
    assert count.bytes == sum(x.nbytes for x in state.values())
    assert count.training(10.0) == training_flops_per_token(model, 10.0)
    # a third of the training FLOPs of the main model are forward; the indexer is forward only, and counted by itself
    if attention != "dsa":
        forward = sum(sum(part.flops.values()) for layer in count.layers for part in (layer.attention, layer.mlp))
        forward += sum(
            count.config.num_experts_per_tok * sum(x.expert.flops.values()) for x in count.layers if x.expert
        )
        forward += sum(count.head.flops.values()) + sum(layer.core.prompt(10.0) for layer in count.layers)
        assert forward == pytest.approx(count.training(10.0).main / 3)


@pytest.mark.parametrize(("weights", "form"), [("w8a8", "int8"), ("w4a8", "int8"), ("int4", "bf16")])
def test_quantised_weights_are_smaller_and_multiply_in_their_format(weights, form):
    plain, count = counted("model=tiny"), counted("model=tiny", weights=weights)
    assert count.bytes < plain.bytes
    assert count.values == plain.values
    expert = next(layer.expert for layer in count.layers if layer.expert)
    assert set(expert.flops) == {form}
    assert sum(expert.flops.values()) == 2 * expert.values


def test_equal_layers_are_one_object():
    layers = counted("model=small").layers
    assert len(set(layers)) == 2  # one dense, five mixtures
