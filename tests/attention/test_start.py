"""Conversion of trained models: MLA to DSA, GQA to windows and to linear attention, and back."""

import pytest
import torch

from arcforge_attention.configs import DsaConfig, GdnConfig, GqaConfig, MlaConfig, SwaConfig
from arcforge_core.checkpoint.pretrained import save_pretrained
from arcforge_core.checkpoint.start import start_from
from arcforge_core.errors import ConfigError
from arcforge_core.model.build import build_model
from arcforge_core.testing.small_models import small_config

MODEL = small_config(num_attention_heads=4, num_key_value_heads=2, index_topk=64)
TOKENS = torch.arange(40)[None] % 60


def model_of(attention, seed):
    torch.manual_seed(seed)
    return build_model(MODEL, attention).eval()


@pytest.mark.parametrize(
    ("source", "target", "new"),
    [
        (MlaConfig(), DsaConfig(), "self_attn.indexer.wk.weight"),
        (GqaConfig(), SwaConfig(window=64), ""),
        (SwaConfig(window=64), GqaConfig(), ""),
    ],
    ids=lambda c: getattr(c, "name", c),
)
def test_a_converted_model_computes_the_same(source, target, new, tmp_path):
    """Below top-k and within the window there is nothing to lose."""
    trained, converted = model_of(source, 1), model_of(target, 2)
    save_pretrained(trained, tmp_path / "trained")
    start = start_from(converted, str(tmp_path / "trained"))
    assert (new in str(start)) and start.left == [] and bool(start.new) == bool(new)
    with torch.no_grad():
        torch.testing.assert_close(converted(TOKENS).logits, trained(TOKENS).logits, rtol=1e-5, atol=1e-5)


def test_gated_delta_net_takes_the_projections_over(tmp_path):
    sizes = small_config(num_attention_heads=4, num_key_value_heads=4)
    trained, converted = build_model(sizes, GqaConfig()), build_model(sizes, GdnConfig())
    save_pretrained(trained, tmp_path / "gqa")
    start = start_from(converted, str(tmp_path / "gqa"))
    ours, theirs = converted.model.layers[0].self_attn, trained.model.layers[0].self_attn
    assert torch.equal(ours.v_proj.weight, theirs.v_proj.weight) and torch.equal(
        ours.o_proj.weight, theirs.o_proj.weight
    )
    assert any(name.endswith("conv1d.weight") for name in start.new) and start.left == []


def test_tensors_of_other_shapes_are_new(tmp_path):
    """With grouped keys the two have value projections of different sizes."""
    save_pretrained(model_of(GqaConfig(), 1), tmp_path / "gqa")
    start = start_from(model_of(GdnConfig(), 2), str(tmp_path / "gqa"))
    assert "model.layers.0.self_attn.v_proj.weight" in {*start.new} & {*start.left}
    assert "model.layers.1.self_attn.v_proj.weight" in start.taken


def test_dsa_leaves_its_indexer_behind(tmp_path):
    save_pretrained(model_of(DsaConfig(), 1), tmp_path / "dsa")
    start = start_from(model_of(MlaConfig(), 2), str(tmp_path / "dsa"))
    assert start.left and all(".indexer." in name for name in start.left)


def test_latents_do_not_become_heads(tmp_path):
    save_pretrained(model_of(MlaConfig(), 1), tmp_path / "mla")
    with pytest.raises(ConfigError, match="attention=gqa can start from gqa, swa"):
        start_from(model_of(GqaConfig(), 2), str(tmp_path / "mla"))
