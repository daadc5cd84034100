"""The walk of calibration text through the layers computes what the model does, and resumes at any layer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from arcforge_attention.configs import DsaConfig, GqaConfig
from arcforge_core.config.schema import AttentionConfig
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.model.adapt.state import state_of
from arcforge_core.model.causal_lm import CausalLM
from arcforge_hw.quantization.transform import Transform
from arcforge_hw.quantization.walk import EXPERTS, Walk
from support.calibration import small_text_model

ROWS = [(torch.arange(20) * 7 % 37, [12, 8]), (torch.arange(16) * 5 % 41, [16])]
LAYERS = 3


def walk_of(model: CausalLM, folder: Path, seed: int | None = None) -> Walk:
    transform = Transform(model.config, model.attention, seed)
    return Walk(transform.of(state_of(model)), transform.transformed, model.attention, folder, ROWS)


@pytest.mark.parametrize(
    "attention", [DsaConfig(indexer_types=["full", "shared", "full"]), GqaConfig(qk_norm=True)], ids=["dsa", "gqa"]
)
@torch.no_grad()
def test_hidden_states_equal_the_models(attention: AttentionConfig, tmp_path: Path) -> None:
    model = small_text_model(attention, num_hidden_layers=LAYERS)
    walk = walk_of(model, tmp_path)
    for layer in range(LAYERS):
        walk.layer(layer)
    for (tokens_T, lengths), record in zip(ROWS, walk.before(LAYERS), strict=True):
        wanted = model.hidden(tokens_T, SequenceBatch.build(lengths)).hidden_TD
        assert (model.model.norm(record["x_TD"]) - wanted).abs().max() < 1e-5


@torch.no_grad()
def test_rotated_hidden_states_are_rotated(tmp_path: Path) -> None:
    model = small_text_model()
    plain, turned = walk_of(model, tmp_path / "a"), walk_of(model, tmp_path / "b", seed=7)
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    assert turned.state.rotations is not None
    for layer in range(2):
        plain.layer(layer), turned.layer(layer)
    for one, two in zip(plain.before(2), turned.before(2), strict=True):
        assert (one["x_TD"] @ turned.state.rotations.hidden.float() - two["x_TD"]).abs().max() < 1e-4


@torch.no_grad()
def test_inputs_are_those_of_every_projection(tmp_path: Path) -> None:
    model = small_text_model()
    walk = walk_of(model, tmp_path)
    dense, mixed = walk.layer(0), walk.layer(1)
    assert {"self_attn.q_b_proj", "self_attn.indexer.wq_b", "self_attn.o_proj", "mlp.down_proj"} <= dense.linear.keys()
    assert "self_attn.kv_b_proj" not in dense.linear and dense.chosen_NC is None
    assert mixed.chosen_NC is not None and mixed.chosen_NC.shape == (36, 2)
    assert mixed.linear[EXPERTS].shape == (36, 32) and mixed.linear["self_attn.o_proj"].shape == (36, 32)
    down = walk.state["model.layers.0.mlp.down_proj.weight"]
    before, after = (torch.cat([r["x_TD"] for r in walk.before(n)]) for n in (0, 1))
    attended = dense.linear["self_attn.o_proj"] @ walk.state["model.layers.0.self_attn.o_proj.weight"].T
    assert (before + attended + dense.linear["mlp.down_proj"] @ down.T - after).abs().max() < 1e-5


def test_missing_hidden_states_are_computed_again(tmp_path: Path) -> None:
    walk = walk_of(small_text_model(), tmp_path)
    walk.layer(0)
    wanted = walk.layer(1)
    for file in tmp_path.iterdir():
        file.unlink()
    found = walk.layer(1)
    assert all(torch.equal(found.linear[name], x) for name, x in wanted.linear.items())
    walk.leave(2)
    assert not list(tmp_path.iterdir())
