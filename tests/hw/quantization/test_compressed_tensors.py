"""Exports read by other programs: transformers computes our logits, and compressed-tensors unpacks every expert.

Needs `pip install compressed-tensors`; skipped without it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from arcforge_attention.configs import DsaConfig, GqaConfig
from arcforge_core.checkpoint.pretrained import load_pretrained, save_pretrained
from arcforge_core.checkpoint.smollm2 import smollm2
from arcforge_core.config.schema import MtpConfig
from arcforge_core.model.build import build_model
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.quant import Quantised, dequantise
from arcforge_core.testing.small_models import small_config
from arcforge_hw.quantization import command
from arcforge_hw.quantization.configs import QuantizeConfig, QuarotConfig

pytestmark = pytest.mark.nightly
DENSE = {"first_k_dense_replace": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64}


def source(folder: Path, kind: str) -> Path:
    """Returns a checkpoint: SmolLM2, or a small one like it."""
    if kind == "smollm2":
        return smollm2()
    torch.manual_seed(0)
    config = small_config(**DENSE, intermediate_size=64, qk_rope_head_dim=16, head_dim=16, mtp=MtpConfig(depths=0))
    save_pretrained(build_model(config, GqaConfig(), Ops(None)), folder / "source")
    return folder / "source"


@pytest.mark.parametrize("kind", ["small", "smollm2"])
@torch.no_grad()
def test_transformers_computes_our_logits(tmp_path: Path, kind: str) -> None:
    """With ``int4``; for ``w8a8`` compressed-tensors divides activations by 127.5 where we divide by 127."""
    pytest.importorskip("compressed_tensors")
    from transformers import AutoModelForCausalLM

    out = tmp_path / "out"
    command.run(QuantizeConfig(QuarotConfig(weights="int4"), str(source(tmp_path, kind)), str(out)))
    tokens_BT = torch.arange(24)[None] % 37
    theirs = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    theirs_BTV = theirs(tokens_BT).logits
    ours = load_pretrained(out, torch.float32, Ops(None))
    lost = (theirs_BTV - ours(tokens_BT).logits).abs().max()
    assert lost < 1e-4 * theirs_BTV.abs().max(), lost


@pytest.mark.parametrize("weights", ["w8a8", "w4a8"])
def test_compressed_tensors_unpacks_every_expert(tmp_path: Path, weights: str) -> None:
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32

    torch.manual_seed(0)
    model = build_model(small_config(index_topk=4, hidden_size=32), DsaConfig(), Ops(None))
    save_pretrained(model, tmp_path / "source")
    out = tmp_path / "out"
    command.run(QuantizeConfig(QuarotConfig(weights=weights), str(tmp_path / "source"), str(out)))
    assert json.loads((out / "config.json").read_text())["model_type"] == "glm_moe_dsa"
    stored = {name: x for file in out.glob("*.safetensors") for name, x in load_file(file).items()}
    served = load_pretrained(out, ops=Ops(None)).state_dict()
    experts = "model.layers.1.mlp.experts"
    for kind, rows in (("gate_proj", slice(0, 16)), ("up_proj", slice(16, 32)), ("down_proj", slice(0, 32))):
        ours = f"{experts}.{'down_proj' if kind == 'down_proj' else 'gate_up_proj'}"
        for expert in range(model.config.n_routed_experts):
            stem = f"{experts}.{expert}.{kind}"
            if weights == "w8a8":
                values_NK = stored[f"{stem}.weight"]
            else:
                shape = torch.Size(stored[f"{stem}.weight_shape"].tolist())
                values_NK = unpack_from_int32(stored[f"{stem}.weight_packed"], 4, shape)
            theirs_NK = values_NK.float() * stored[f"{stem}.weight_scale"]
            wanted_NK = dequantise(Quantised(served[ours][expert], served[f"{ours}_scale"][expert]))[rows]
            assert torch.equal(theirs_NK, wanted_NK), stem
