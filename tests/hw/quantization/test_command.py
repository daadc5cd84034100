"""``arcforge-quantize``: its checkpoints are served, resumed and refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from arcforge_attention.configs import DsaConfig
from arcforge_core.checkpoint.packed import pack_words, unpack_words
from arcforge_core.checkpoint.pretrained import load_pretrained, save_pretrained
from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_core.generation.weights import replace_weights
from arcforge_core.model.adapt.quantised import quantise_model, quantised_state
from arcforge_core.model.adapt.state import state_of
from arcforge_core.model.build import build_model
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.quant import INT4, INT4_GROUP_32, INT8, Format, dequantise, pack_int4, quantise, unpack_int4
from arcforge_core.testing.small_models import small_config
from arcforge_hw.quantization import command, quarot
from arcforge_hw.quantization.configs import QuantizeConfig, QuarotConfig
from arcforge_hw.quantization.quarot import Quarot
from arcforge_hw.quantization.rounding import ssz
from arcforge_hw.quantization.transform import Transform

TOKENS = torch.arange(20)[None] % 37


def small_dsa(seed: int = 0) -> CausalLM:
    """Returns a float32 model whose norms have random gains."""
    torch.manual_seed(seed)
    model = build_model(small_config(index_topk=4, hidden_size=32), DsaConfig(), Ops(None)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1 and name.endswith("norm.weight"):
                parameter.copy_(torch.rand_like(parameter) + 0.5)
    return model


def quantised(tmp_path: Path, model: CausalLM | None = None, **options: Any) -> Path:
    """Runs the command on a model."""
    save_pretrained(model or small_dsa(), tmp_path / "source")
    command.run(config(tmp_path, **options))
    return tmp_path / "out"


def config(tmp_path: Path, **options: Any) -> QuantizeConfig:
    """Returns the command's configuration."""
    return QuantizeConfig(QuarotConfig(**options), str(tmp_path / "source"), str(tmp_path / "out"))


def in_memory(model: CausalLM, weights: str, seed: int | None = 1234) -> CausalLM:
    """Returns the model rotated and quantised without files."""
    transform = Transform(model.config, model.attention, seed)
    made = build_model(transform.transformed, model.attention, Ops(None)).eval()
    made.load_state_dict(dict(transform.of(state_of(model))))
    quantise_model(made, weights)
    return made


@pytest.mark.parametrize("weights", ["w8a8", "w4a8"])
def test_files_are_served_as_the_model_that_was_rounded(tmp_path: Path, weights: str) -> None:
    model = small_dsa()
    served = load_pretrained(quantised(tmp_path, model, weights=weights, rounding="nearest"), ops=Ops(None))
    wanted = in_memory(model, weights)
    assert quantised_state(served) is not None
    found = served.state_dict()
    for name, tensor in wanted.state_dict().items():
        assert torch.equal(tensor, found[name]), name
    with torch.no_grad():
        assert torch.equal(served(TOKENS).logits, wanted(TOKENS).logits)
    quantise_model(served, "none")  # what an engine without weights=... does


def test_an_update_passes_the_rotations_on_arrival(tmp_path: Path) -> None:
    served = load_pretrained(quantised(tmp_path, rounding="nearest"), ops=Ops(None))
    update = small_dsa(seed=5)
    replace_weights(served, state_of(update), "update")
    with torch.no_grad():
        assert torch.equal(served(TOKENS).logits, in_memory(update, "w4a8")(TOKENS).logits)


def test_a_killed_command_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = quantised(tmp_path)
    (tmp_path / "again").mkdir()
    save_pretrained(small_dsa(), tmp_path / "again" / "source")
    calls: list[int] = []
    true = command._quantised

    def killed(made: Any, layout: Any, stage: Any, rounded: Any) -> Any:
        calls.append(len(stage))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return true(made, layout, stage, rounded)

    monkeypatch.setattr(command, "_quantised", killed)
    with pytest.raises(KeyboardInterrupt):
        command.run(config(tmp_path / "again"))
    assert not (tmp_path / "again" / "out").exists()
    with pytest.raises(CheckpointError, match="other settings"):
        command.run(config(tmp_path / "again", steps=3))
    command.run(config(tmp_path / "again"))
    assert len(calls) == 6  # embedding, killed; then two layers, the MTP module, norm and head
    for file in sorted(whole.glob("*.safetensors")):
        assert file.read_bytes() == (tmp_path / "again" / "out" / file.name).read_bytes()


def test_what_is_refused(tmp_path: Path) -> None:
    out = quantised(tmp_path)
    twice = replace(config(tmp_path), checkpoint=str(out), output=str(tmp_path / "twice"))
    with pytest.raises(CheckpointError, match="quantised already"):
        command.run(twice)
    with pytest.raises(CheckpointError, match="exists"):
        command.run(config(tmp_path))
    fresh = replace(config(tmp_path, keep=["model.layers.9.*"]), output=str(tmp_path / "new"))
    with pytest.raises(ConfigError, match=r"model\.layers\.9.*matches none"):
        command.run(fresh)
    with pytest.raises(ConfigError, match="both or no weights"):
        command.run(replace(config(tmp_path, keep=["*experts.down_proj"]), output=str(tmp_path / "new")))
    assert not (tmp_path / "new").exists()


def test_kept_weights_stay_floats_and_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = quantised(tmp_path, keep=["model.layers.0.*"])
    ignored = json.loads((out / "config.json").read_text())["quantization_config"]["ignore"]
    assert "model.layers.0.mlp.down_proj" in ignored and "lm_head" in ignored
    served = load_pretrained(out, ops=Ops(None))
    assert type(served.model.layers[0].mlp.down_proj).__name__ == "Linear"  # type: ignore[union-attr]

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(command, "save_tensors", full)
    with pytest.raises(CheckpointError, match=r"cannot write .*/third: No space left on device"):
        command.run(replace(config(tmp_path), output=str(tmp_path / "third")))


def test_ssz_loses_less_than_nearest() -> None:
    weight = torch.randn(16, 64, generator=torch.Generator().manual_seed(0)) ** 3
    lost = [(dequantise(q) - weight).square().mean(-1) for q in (quantise(weight, INT4), ssz(weight, INT4, 10))]
    assert (lost[1] <= lost[0]).all() and lost[1].sum() < 0.96 * lost[0].sum()


@pytest.mark.parametrize("form", [INT8, INT4, INT4_GROUP_32])
def test_pieces_of_a_matrix_are_rounded_as_the_whole(form: Format, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(3, 10, 64, generator=torch.Generator().manual_seed(0)) ** 3
    state = Transform(small_config(), DsaConfig()).of({})
    made = Quarot(QuarotConfig(), state, small_config(), {"w": form}, True, {})
    whole = made.round("w", weight)
    monkeypatch.setattr(quarot, "PIECE", 4 * 64)
    for found, wanted in zip(made.round("w", weight), whole, strict=True):
        assert found.shape == wanted.shape and torch.equal(found, wanted)


def test_words_of_int4_hold_every_value_in_order() -> None:
    values = torch.arange(-8, 8, dtype=torch.int8).repeat(3, 1)[:, :14]
    words = pack_words(pack_int4(values))
    assert words.dtype == torch.int32 and words.shape == (3, 2)
    assert [int(word) & 0xFFFFFFFF for word in words[0]] == [0x76543210, 0x00DCBA98]
    assert torch.equal(unpack_int4(unpack_words(words, 14)), values)
    with pytest.raises(ValueError, match="must be even, not 13"):
        unpack_words(words, 13)
