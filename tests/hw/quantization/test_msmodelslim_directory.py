"""Directories that msModelSlim wrote are read: a recording of its saver's files, and changed copies of it."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from arcforge_core.checkpoint.pretrained import load_pretrained, open_checkpoint
from arcforge_core.checkpoint.sections import DESCRIPTION
from arcforge_core.errors import CheckpointError
from arcforge_core.generation.weights import replace_weights
from arcforge_core.model.adapt.quantised import QuantExperts, QuantLinear
from arcforge_core.ops.dispatch import Ops
from arcforge_hw.quantization import command
from arcforge_hw.quantization.configs import QuantizeConfig, QuarotConfig

RECORDED = Path(__file__).parent / "msmodelslim_glm"
FIXED, EXPERT = "model.layers.0.self_attn.o_proj", "model.layers.1.mlp.experts.2.down_proj"


def test_integers_are_those_that_were_written_and_the_model_is_served() -> None:
    opened = open_checkpoint(RECORDED)
    for stem, wanted in load_file(RECORDED / "expected.safetensors").items():
        path, _, kind = stem.rpartition(".")
        if ".experts." in stem:
            path, _, expert = path.rpartition(".")
            stack = opened.state[f"{path}.{'down_proj' if kind == 'down_proj' else 'gate_up_proj'}"]
            found = stack[int(expert)] if kind == "down_proj" else stack[int(expert)].chunk(2)[kind == "up_proj"]
        else:
            found = opened.state[f"{stem}.weight"]
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-7)
    model = load_pretrained(RECORDED, ops=Ops(None))
    attention, mlp = model.model.layers[0].self_attn, model.model.layers[1].mlp
    assert isinstance(attention.q_a_proj, QuantLinear) and isinstance(attention.indexer.wq_b, QuantLinear)
    assert isinstance(mlp.experts, QuantExperts) and mlp.experts.form.bits == 4
    assert not isinstance(attention.kv_b_proj, QuantLinear)
    with torch.no_grad():
        logits = model(torch.arange(20)[None]).logits
    assert bool(logits.isfinite().all()) and float(logits.std()) > 0


def test_updates_are_refused_and_it_is_not_quantised_a_second_time(tmp_path: Path) -> None:
    model = load_pretrained(RECORDED, ops=Ops(None))
    with pytest.raises(CheckpointError, match="was quantised by another program, so it takes no updates"):
        replace_weights(model, dict(open_checkpoint(RECORDED).state), "update")
    with pytest.raises(CheckpointError, match="is quantised already"):
        command.run(QuantizeConfig(QuarotConfig(), str(RECORDED), str(tmp_path / "again")))


def changed(folder: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> Path:
    """Returns a copy with other tensors or another description."""
    target = folder / "changed"
    shutil.copytree(RECORDED, target)
    (path,) = target.glob("quant_model_weights-*.safetensors")
    tensors, kinds = load_file(path), json.loads((target / DESCRIPTION).read_text())
    change(tensors, kinds)
    save_file(tensors, path)
    (target / DESCRIPTION).write_text(json.dumps(kinds))
    listing = {"weight_map": dict.fromkeys(tensors, path.name)}
    (target / "quant_model_weights.safetensors.index.json").write_text(json.dumps(listing))
    return target


def test_fixed_scales_as_floats_are_the_same_as_their_bits_in_int64(tmp_path: Path) -> None:
    """The saver stores floats for models in bfloat16, and bits for all others, as in the recording."""

    def change(tensors: dict[str, Any], kinds: dict[str, Any]) -> None:
        bits = tensors[f"{FIXED}.deq_scale"]
        assert bits.dtype == torch.int64
        tensors[f"{FIXED}.deq_scale"] = bits.to(torch.int32).view(torch.float32)

    wanted = open_checkpoint(RECORDED).state[f"{FIXED}.weight"]
    assert torch.equal(open_checkpoint(changed(tmp_path, change)).state[f"{FIXED}.weight"], wanted)


def test_scales_fixed_while_decoding_alone_are_read_as_stored(tmp_path: Path) -> None:
    """Of kind ``W8A8_MIX`` the scales of the rows are stored beside their products."""
    scale = torch.full((32, 1), 0.25)

    def change(tensors: dict[str, Any], kinds: dict[str, Any]) -> None:
        tensors[f"{FIXED}.weight_scale"], tensors[f"{FIXED}.weight_offset"] = scale, torch.zeros(32, 1)
        kinds |= {name: "W8A8_MIX" for name in tensors if name.startswith(f"{FIXED}.")}

    folder = changed(tmp_path, change)
    (path,) = folder.glob("quant_model_weights-*.safetensors")
    found, integers = open_checkpoint(folder).state[f"{FIXED}.weight"], load_file(path)[f"{FIXED}.weight"]
    assert torch.equal(found, integers.float() * scale)


def test_an_mtp_module_in_another_basis_is_left_out_and_an_own_head_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def change(tensors: dict[str, Any], kinds: dict[str, Any]) -> None:
        tensors["rot.weight"] = torch.eye(32)
        tensors["model.layers.2.shared_head.head.weight"] = torch.zeros(64, 32)

    target = changed(tmp_path, change)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    with caplog.at_level(logging.WARNING):
        opened = open_checkpoint(target)
    assert (
        opened.config.mtp.depths == 0 and "the MTP module of a model rotated by msModelSlim is left out" in caplog.text
    )
    assert not opened.config.tie_word_embeddings
    assert torch.equal(opened.state["lm_head.weight"], open_checkpoint(RECORDED).state["lm_head.weight"])


@pytest.mark.parametrize(
    ("name", "value", "kind", "message"),
    [
        (
            f"{FIXED}.weight",
            None,
            "W8A16",
            r"o_proj\.weight is of kind W8A16: must be FLOAT, W8A8_DYNAMIC, W4A8_DYNAMIC",
        ),
        (f"{EXPERT}.weight_offset", torch.ones(32, 1), None, r"down_proj\.weight_offset must be 0"),
        (f"{EXPERT}.weight_scale", torch.ones(16, 1), None, r"down_proj\.weight_scale must be \(32, 1\)"),
        (f"{FIXED}.deq_scale", torch.ones(31), None, r"o_proj\.deq_scale must be \(32,\)"),
    ],
)
def test_what_cannot_be_served_is_named(
    tmp_path: Path, name: str, value: torch.Tensor | None, kind: str | None, message: str
) -> None:
    def change(tensors: dict[str, Any], kinds: dict[str, Any]) -> None:
        if value is not None:
            tensors[name] = value
        if kind is not None:
            kinds[name] = kind

    with pytest.raises(CheckpointError, match=message):
        load_pretrained(changed(tmp_path, change), ops=Ops(None))


def test_a_damaged_description_is_one_line(tmp_path: Path) -> None:
    target = changed(tmp_path, lambda tensors, kinds: None)
    for text, message in (("{", "cannot be read"), ("[]", "must be a JSON object")):
        (target / DESCRIPTION).write_text(text)
        with pytest.raises(CheckpointError, match=rf"quant_model_description\.json {message}"):
            open_checkpoint(target)
