"""Ascend's layout: equal to msModelSlim's bytes, exact when unpacked, served, and refused where it has no place."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from arcforge_attention.configs import DsaConfig
from arcforge_core.checkpoint.packed_ascend import encode, pack_rows, unpack_rows
from arcforge_core.checkpoint.pretrained import load_pretrained, save_pretrained
from arcforge_core.checkpoint.sections import DESCRIPTION
from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_core.generation.weights import replace_weights
from arcforge_core.model.adapt.state import state_of
from arcforge_core.model.build import build_model
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.quant import Quantised, pack_int4
from arcforge_core.testing.small_models import small_config
from arcforge_hw.quantization import command
from arcforge_hw.quantization.configs import QuantizeConfig, QuarotConfig
from arcforge_hw.quantization.layouts import LAYOUTS

TOKENS = torch.arange(20)[None] % 37


def source(folder: Path, **sizes: Any) -> CausalLM:
    """Saves a DSA model with MoE and MTP whose norms have random gains."""
    torch.manual_seed(0)
    made = small_config(**{"index_topk": 4, "hidden_size": 32, "moe_intermediate_size": 32, **sizes})
    model = build_model(made, DsaConfig(), Ops(None)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1 and name.endswith("norm.weight"):
                parameter.copy_(torch.rand_like(parameter) + 0.5)
    save_pretrained(model, folder / "source")
    return model


def config(folder: Path, layout: str, **options: Any) -> QuantizeConfig:
    made = QuantizeConfig(QuarotConfig(**options), str(folder / "source"), str(folder / layout))
    return replace(made, layout=layout)


@pytest.mark.parametrize("weights", ["w8a8", "w4a8"])
@torch.no_grad()
def test_both_layouts_are_served_alike(tmp_path: Path, weights: str) -> None:
    model = source(tmp_path)
    served = []
    for layout in LAYOUTS:
        command.run(config(tmp_path, layout, weights=weights))
        served.append(load_pretrained(tmp_path / layout, ops=Ops(None)))
    wanted, found = (made.state_dict() for made in served)
    assert wanted.keys() == found.keys() and all(torch.equal(wanted[name], found[name]) for name in wanted)
    assert torch.equal(served[0](TOKENS).logits, served[1](TOKENS).logits)
    update = {name: x * 1.5 for name, x in state_of(model).items()}
    for made in served:  # an update of the original weights
        replace_weights(made, update, "update")
    updated = [made(TOKENS).logits for made in served]
    assert torch.equal(*updated) and not torch.equal(updated[0], model(TOKENS).logits)
    assert json.loads((tmp_path / "ascend" / "config.json").read_text())["quantization_config"] == {
        "quant_method": "ascend", "description": DESCRIPTION,
        "arcforge": {"quantizer": "quarot", "seed": 1234, "tied": False},
    }  # fmt: skip


def test_the_description_names_every_tensor_and_the_rotation(tmp_path: Path) -> None:
    model = source(tmp_path)
    command.run(config(tmp_path, "ascend"))
    out = tmp_path / "ascend"
    described = json.loads((out / DESCRIPTION).read_text())
    stored = {name: x for file in out.glob("*.safetensors") for name, x in load_file(file).items()}
    assert set(stored) <= described.keys()
    expert = "model.layers.1.mlp.experts.2.down_proj"
    assert described[f"{expert}.weight"] == described[f"{expert}.scale_bias"] == "W4A8_DYNAMIC"
    assert described["model.layers.1.self_attn.o_proj.weight"] == "W8A8_DYNAMIC"
    assert described["lm_head.weight"] == described["rot.weight"] == "FLOAT"
    assert described["is_rot_used"] and described["model_quant_type"] == "W4A8_DYNAMIC"
    turn = load_file(out / described["optional"]["quarot"]["rotation_map"]["global_rotation"])["global_rotation"]
    gain = model.model.norm.weight.detach()
    assert (turn.T @ torch.diag(gain) @ turn - stored["rot.weight"]).abs().max() < 1e-5
    assert stored[f"{expert}.weight"].shape == (16, 32) and stored[f"{expert}.scale_bias"].shape == (32, 16)
    command.run(replace(config(tmp_path, "ascend", rotate=False), output=str(tmp_path / "plain")))
    assert not (tmp_path / "plain" / "rot.safetensors").exists()
    assert json.loads((tmp_path / "plain" / DESCRIPTION).read_text())["is_rot_used"] is False


def test_packed_rows_equal_msmodelslims() -> None:
    known = json.loads((Path(__file__).parent / "msmodelslim.json").read_text(encoding="utf-8"))["ascend"]
    values_NK = torch.tensor(known["values"], dtype=torch.int8)
    quantised = Quantised(pack_int4(values_NK), torch.tensor(known["scale"]))
    for kind in ("up_proj", "down_proj"):
        stored = encode(f"experts.0.{kind}.weight", quantised)
        assert torch.equal(stored[f"experts.0.{kind}.weight"], torch.tensor(known["packed"], dtype=torch.int8))
        wanted = torch.tensor(known[f"scale_bias of {kind}"])
        assert torch.allclose(stored[f"experts.0.{kind}.scale_bias"], wanted, rtol=1e-6, atol=1e-5)


@given(st.integers(0, 2**31), st.integers(1, 4), st.integers(1, 3), st.sampled_from(["up_proj", "down_proj"]))
def test_two_int4_products_and_the_bias_are_the_int8_product(seed: int, pairs: int, parts: int, kind: str) -> None:
    """``x = 16 hi + (lo - 8) + 8`` with hi and lo - 8 in -8..7; scales of powers of two keep floats exact."""
    generator = torch.Generator().manual_seed(seed)
    x_TK = torch.randint(-128, 128, (3, 16 * parts), generator=generator)
    values_NK = torch.randint(-8, 8, (2 * pairs, 16 * parts), generator=generator, dtype=torch.int8)
    scale_N1 = 2.0 ** torch.randint(-4, 5, (2 * pairs, 1), generator=generator)
    stored = encode(f"{kind}.weight", Quantised(pack_int4(values_NK), scale_N1))
    read_NK = unpack_rows(stored[f"{kind}.weight"])
    assert torch.equal(read_NK, values_NK) and torch.equal(pack_rows(read_NK), stored[f"{kind}.weight"])
    high_TK, low_TK = x_TK >> 4, (x_TK & 15) - 8
    assert all(bool(((x >= -8) & (x <= 7)).all()) for x in (high_TK, low_TK))
    wide_KN = read_NK.long().T
    halves_TN = (16 * (high_TK @ wide_KN) + low_TK @ wide_KN) * scale_N1.T
    assert torch.equal(halves_TN + stored[f"{kind}.scale_bias"].sum(1), (x_TK @ wide_KN) * scale_N1.T)


def test_verify_notices_every_stored_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that changes between writing and comparing, in each kind of tensor."""
    source(tmp_path)
    true = command._verify
    for kind in ("weight", "weight_scale", "weight_offset", "scale_bias"):
        name = f"model.layers.1.mlp.experts.0.up_proj.{kind}"

        def spoilt(work: Path, *rest: Any, name: str = name) -> None:
            for file in work.glob("model-*.safetensors"):
                tensors = load_file(file)
                if name in tensors:
                    tensors[name].view(torch.int8)[0, 0] += 1
                    save_file(tensors, file)
            true(work, *rest)

        monkeypatch.setattr(command, "_verify", spoilt)
        with pytest.raises(CheckpointError, match=r"the disk or its file system is at fault|weight_offset must be 0"):
            command.run(replace(config(tmp_path, "ascend"), output=str(tmp_path / kind)))
        assert not (tmp_path / kind).exists()


def test_what_has_no_place_in_the_layout_is_refused_before_work(tmp_path: Path) -> None:
    source(tmp_path, moe_intermediate_size=24)
    with pytest.raises(ConfigError, match=r"layout='ascend'.*16 parts: they have 24 columns"):
        command.run(config(tmp_path, "ascend"))
    source(tmp_path, intermediate_size=64, q_lora_rank=32)
    with pytest.raises(ConfigError, match=r"layout='ascend'.*not for groups of 32"):
        command.run(config(tmp_path, "ascend", weights="int4"))
    with pytest.raises(ConfigError, match=r"layout='awq': must be one of compressed-tensors, ascend"):
        config(tmp_path, "awq")
    assert not list(tmp_path.glob("*ascend*"))
