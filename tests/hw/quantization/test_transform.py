"""Folds, rotations and smoothing change no function, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from arcforge_attention.configs import DsaConfig, GqaConfig
from arcforge_core.checkpoint.pretrained import load_pretrained
from arcforge_core.checkpoint.smollm2 import smollm2
from arcforge_core.config.schema import AttentionConfig, MtpConfig
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.errors import ConfigError
from arcforge_core.model.adapt.state import state_of
from arcforge_core.model.build import build_model
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.ops.dispatch import Ops
from arcforge_core.testing.small_models import small_config
from arcforge_hw.quantization import transform
from arcforge_hw.quantization.rotations import random_hadamard, shifted_blocks
from arcforge_hw.quantization.transform import EMBEDDING, HEAD, MTP_HEAD_ROT, Transform

CASES: dict[str, tuple[AttentionConfig, dict[str, Any]]] = {
    "dsa": (DsaConfig(), {"index_topk": 4, "mtp": {"depths": 2}}),
    "dsa, no Hadamard size": (DsaConfig(), {"hidden_size": 36, "v_head_dim": 9, "q_lora_rank": 64}),
    "gqa, tied": (GqaConfig(bias=True, qk_norm=True), {"tie_word_embeddings": True, "num_attention_heads": 4,
        "num_key_value_heads": 2}),
}  # fmt: skip


def model_of(case: str) -> CausalLM:
    """Returns a float64 model whose norms and biases are random."""
    attention, changes = CASES[case]
    mtp = changes.get("mtp", {"depths": 1})
    torch.manual_seed(0)
    config = small_config(**{**changes, "mtp": MtpConfig(**mtp)})
    model = build_model(config, attention, Ops(None)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.copy_(torch.rand_like(parameter) + 0.5)
    return model


def transformed(model: CausalLM, **options: Any) -> CausalLM:
    """Returns a model with the transformed weights."""
    transform = Transform(model.config, model.attention, **options)
    made = build_model(transform.transformed, model.attention, Ops(None)).double().eval()
    made.load_state_dict(dict(transform.of(state_of(model))), strict=not made.config.tie_word_embeddings)
    return made


class Recorded:
    """Replaces a layer's `indexer_topk`: keeps the scores, then selects."""

    def __init__(self, select: Any, found: dict[str, Tensor], name: str) -> None:
        self.select, self.found, self.name = select, found, name

    def __call__(self, q_TID: Tensor, k_SD: Tensor, w_TI: Tensor, *rest: Any) -> Any:
        """See `arcforge_core.ops.reference.indexer_topk`."""
        self.found[self.name] = torch.einsum("tid,sd,ti->ts", q_TID, k_SD, w_TI)
        return self.select(q_TID, k_SD, w_TI, *rest)


@torch.no_grad()
def outputs(model: CausalLM) -> dict[str, Tensor]:
    """Returns logits, router scores, index queries' scores of keys and two depths of drafts."""
    found: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        if name.endswith("mlp.gate"):
            module.register_forward_hook(lambda _m, _i, out, name=name: found.__setitem__(f"{name} router", out[2]))
        if hasattr(module, "indexer_topk"):
            module.indexer_topk = Recorded(module.indexer_topk, found, f"{name} index")
    tokens_T = torch.randint(model.config.vocab_size, (24,), generator=torch.Generator().manual_seed(1))
    batch = SequenceBatch.build([24])
    hidden_TD = model.hidden(tokens_T, batch).hidden_TD
    found["logits"] = model.logits(hidden_TD)
    for depth in range(model.config.mtp.depths):
        hidden_TD = model.mtp_step(tokens_T.roll(-1 - depth), hidden_TD, batch, model.rope(batch)).x_TD
        found[f"draft {depth}"] = model.logits(hidden_TD)
    return found


@pytest.mark.parametrize("case", CASES)
def test_a_rotated_model_computes_the_same(case: str) -> None:
    model = model_of(case)
    wanted, found = outputs(model), outputs(transformed(model))
    assert wanted.keys() == found.keys()
    assert any("router" in name for name in wanted) and "draft 0" in wanted
    assert case != "dsa" or any("index" in name for name in wanted)
    for name, tensor in wanted.items():
        assert (tensor - found[name]).abs().max() < 1e-10, name


@pytest.mark.nightly(reason="135M parameters in float64, twice")
def test_a_rotated_smollm2_computes_the_same() -> None:
    model = load_pretrained(smollm2(), torch.float64, Ops(None))
    wanted, found = outputs(model)["logits"], outputs(transformed(model))["logits"]
    assert wanted.std() > 1 and (wanted - found).abs().max() < 1e-10


def test_every_weight_of_the_decoder_is_turned() -> None:
    """A rule that forgot a projection and its reader would keep the function too."""
    model = model_of("dsa")
    before, after = state_of(model), state_of(transformed(model))
    kept = {n for n in before if torch.equal(before[n], after[n])}
    assert all("wq_b.bias" in n or "k_norm" in n or "e_score" in n for n in kept), kept


@pytest.mark.parametrize("case", ["dsa", "gqa, tied"])
@pytest.mark.parametrize("seed", [None, 7])
def test_smoothing_keeps_the_function_and_changes_the_weights(case: str, seed: int | None) -> None:
    model = model_of(case)
    config, factors = model.config, {}
    values = config.num_attention_heads * config.v_head_dim if case == "dsa" else 2 * config.head_dim
    generator = torch.Generator().manual_seed(3)

    def draw(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64) + 0.5

    for layer in ("model.layers.0", "model.layers.1"):
        factors |= {
            f"{layer}.input_layernorm": draw(config.hidden_size),
            f"{layer}.post_attention_layernorm": draw(config.hidden_size),
            f"{layer}.self_attn.value": draw(values),
        }
    factors |= {
        "model.layers.0.mlp.up": draw(config.intermediate_size),
        "model.layers.1.mlp.experts.up": draw(config.n_routed_experts, config.moe_intermediate_size),
        "model.layers.1.mlp.shared_experts.up": draw(config.moe_intermediate_size),
    }
    smooth = transformed(model, seed=seed, factors=factors)
    rough = transformed(model, seed=seed)
    wanted, found = outputs(model), outputs(smooth)
    for name, tensor in wanted.items():
        assert (tensor - found[name]).abs().max() < 1e-10, name
    differ = {n for n, x in state_of(rough).items() if not torch.equal(x, state_of(smooth)[n])}
    assert {"model.layers.0.mlp.up_proj.weight", "model.layers.1.mlp.experts.down_proj"} <= differ
    assert any("o_proj" in n for n in differ) and "model.layers.0.input_layernorm.weight" in differ


def test_pieces_of_the_embedding_and_of_the_head_are_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("dsa")
    state = Transform(model.config, model.attention).of(state_of(model))
    whole = {name: state[name] for name in (EMBEDDING, HEAD)}
    monkeypatch.setattr(transform, "PIECE", 5 * model.config.hidden_size + 1)
    for name, wanted in whole.items():
        assert len(list(transform._pieces(name, wanted))) == 13  # 64 rows, five at a time
        assert torch.allclose(state[name], wanted, rtol=0, atol=1e-14)


def test_rotations_are_orthogonal_and_blocks_reach_their_neighbours() -> None:
    for matrix in (random_hadamard(48, 1), random_hadamard(36, 1), shifted_blocks(96, 1), shifted_blocks(20, 1)):
        assert (matrix @ matrix.T - torch.eye(len(matrix), dtype=torch.float64)).abs().max() < 1e-12
    assert int((shifted_blocks(96, 1)[0] != 0).sum()) == 64
    assert torch.allclose(random_hadamard(48, 1).abs(), torch.tensor(48**-0.5, dtype=torch.float64))
    assert random_hadamard(6144 // 128, 2).shape == (48, 48)


def test_a_final_norm_with_a_zero_gain_has_no_mtp_rotation() -> None:
    model = model_of("dsa")
    with torch.no_grad():
        model.model.norm.weight[3] = 0.0
    with pytest.raises(ConfigError, match="gain of 0"):
        Transform(model.config, model.attention).of(state_of(model))[MTP_HEAD_ROT]
