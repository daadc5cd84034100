"""Outlier twins compute the same as their model and lose much more to plain integers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from arcforge_attention.configs import DsaConfig, GqaConfig
from arcforge_core.config.schema import AttentionConfig, MtpConfig
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.contracts.data import TrainBatch
from arcforge_core.model.adapt.quantised import quantise_model
from arcforge_core.model.build import build_model
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.ops.dispatch import Ops
from support.calibration import small_text_model

GQA = GqaConfig(bias=True)
GROUPED = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}
DSA = {"mtp": MtpConfig(depths=1), "q_lora_rank": 32, "kv_lora_rank": 32}


def batch(model: CausalLM) -> TrainBatch:
    tokens_T = torch.randint(model.config.vocab_size, (48,), generator=torch.Generator().manual_seed(1))
    return TrainBatch(tokens_T, tokens_T.roll(-1), torch.ones(48), SequenceBatch.build([48]), 0, 48)


@torch.no_grad()
def log_probs(model: CausalLM, read: TrainBatch) -> torch.Tensor:
    return model.logits(model.hidden(read.tokens_T, read.batch).hidden_TD).log_softmax(-1)


def kl(wanted: torch.Tensor, found: torch.Tensor) -> float:
    return float((wanted.exp() * (wanted - found)).sum(-1).mean())


@pytest.mark.parametrize("attention, sizes", [(DsaConfig(), DSA), (GQA, GROUPED)], ids=["dsa", "gqa"])
def test_a_twin_keeps_the_function_and_has_outliers(attention: AttentionConfig, sizes: dict[str, Any]) -> None:
    from _outliers import principal_axes, twin_of

    model = small_text_model(attention, intermediate_size=64, moe_intermediate_size=32, **sizes).double()
    read = batch(model)
    axes_DD = principal_axes(model, [read])
    assert (axes_DD @ axes_DD.T - torch.eye(len(axes_DD), dtype=torch.float64)).abs().max() < 1e-10
    twin = twin_of(model, axes_DD, 0)
    wanted = log_probs(model, read)
    assert (log_probs(twin, read) - wanted).abs().max() < 1e-9
    again = twin_of(model, axes_DD, 1)
    downs = [m.model.layers[0].mlp.down_proj.weight for m in (twin, again)]  # type: ignore[union-attr]
    assert not torch.equal(*downs)  # the seed draws other channels
    losses = []
    for made in (model, twin):
        copy = build_model(made.config, made.attention, Ops(None)).double().eval()
        copy.load_state_dict(made.state_dict())
        quantise_model(copy, "w8a8")
        losses.append(kl(wanted, log_probs(copy, read)))
    assert losses[1] > 3 * losses[0], losses
