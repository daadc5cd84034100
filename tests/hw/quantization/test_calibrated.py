"""``quantizer=calibrated``: same function in floats, less error in integers, the same files after any kill."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from arcforge_attention.configs import DsaConfig, GqaConfig
from arcforge_core.checkpoint.pretrained import load_pretrained, open_checkpoint, save_pretrained
from arcforge_core.config.schema import AttentionConfig
from arcforge_core.data.tokens.pipeline import build_data
from arcforge_core.errors import ConfigError, DataError
from arcforge_core.generation.weights import replace_weights
from arcforge_core.model.adapt.quantised import quantise_model
from arcforge_core.model.adapt.state import state_of
from arcforge_core.model.build import build_model
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.ops.dispatch import Ops
from arcforge_hw.quantization import command
from arcforge_hw.quantization.calibrated import FACTORS, Calibrated, Calibration
from arcforge_hw.quantization.configs import CalibratedConfig
from support.calibration import LENGTH, quantise_config, save_source, small_text_model, text_config

TOKENS = torch.arange(60).view(2, 30) * 11 % 250


def calibrated(folder: Path, **options: Any) -> Calibrated:
    """Returns a quantizer that has walked through all layers of ``folder/source``."""
    config = quantise_config(folder, **options)
    assert isinstance(config.quantizer, CalibratedConfig)
    made = Calibrated.build(config.quantizer, open_checkpoint(folder / "source"))
    assert isinstance(made, Calibrated)
    (folder / "work").mkdir()
    walked: Calibration = made.calibration(config.data, folder / "source", folder / "work")
    for layer in range(made.model.num_hidden_layers):
        walked.enter(f"model.layers.{layer}.any")
    return made


@torch.no_grad()
def logits(model: CausalLM) -> torch.Tensor:
    return model(TOKENS).logits


@pytest.mark.parametrize("rotate", [True, False])
@pytest.mark.parametrize("attention", [DsaConfig(), GqaConfig(bias=True)], ids=["dsa", "gqa"])
def test_factors_keep_the_function(attention: AttentionConfig, rotate: bool, tmp_path: Path) -> None:
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2} if attention.name == "gqa" else {}
    model = small_text_model(attention, outliers=16.0, **heads).double()
    save_source(model, tmp_path)
    made = calibrated(tmp_path, rotate=rotate, weights="w8a8")
    changed = build_model(made.model, attention, Ops(None)).double().eval()
    changed.load_state_dict(dict(made.state))
    assert (logits(changed) - logits(model)).abs().max() < 1e-10
    fitted = made.state.transform.factors
    places = {name.removeprefix("model.layers.1.") for name in fitted if name.startswith("model.layers.1.")}
    first = {"dsa": "self_attn.q_a_layernorm", "gqa": "input_layernorm"}[attention.name]
    assert places == {
        first, "self_attn.value", "post_attention_layernorm", "mlp.shared_experts.up", "mlp.experts.up",
    }  # fmt: skip
    assert all(bool((x != 1).any()) for name, x in fitted.items() if "value" not in name)


def lost(folder: Path, model: CausalLM, out: str) -> float:
    """Returns the mean square error of a quantised checkpoint's logits."""
    return float((logits(load_pretrained(folder / out, ops=Ops(None))) - logits(model)).square().mean())


@pytest.mark.parametrize("weights", ["w8a8", "w4a8", "int4"])
def test_an_outlier_twin_loses_less_than_to_the_nearest_and_less_than_with_rotations(
    weights: str, tmp_path: Path
) -> None:
    model = small_text_model(outliers=64.0, intermediate_size=64, moe_intermediate_size=32, q_lora_rank=32)
    save_source(model, tmp_path)
    rest = {"weights": weights, "rounding": "nearest"}
    command.run(quantise_config(tmp_path, "plain", quarot=True, rotate=False, **rest))
    command.run(quantise_config(tmp_path, "turned", quarot=True, **rest))
    command.run(quantise_config(tmp_path, "awq", rotate=False, **rest))
    command.run(quantise_config(tmp_path, "both", **rest))
    found = {out: lost(tmp_path, model, out) for out in ("plain", "turned", "awq", "both")}
    assert found["awq"] < 0.8 * found["plain"] and found["both"] < 0.8 * found["turned"], found


@pytest.mark.parametrize("weights", ["w4a8", "int4"])
def test_gptq_loses_less_than_scales_alone(weights: str, tmp_path: Path) -> None:
    """On text of the same kind, with every kind of matrix: stacked experts, and with int4 the head."""
    model = small_text_model(intermediate_size=64, moe_intermediate_size=32, q_lora_rank=32)
    save_source(model, tmp_path)
    rest = {"weights": weights, "rotate": False, "rows": 64, "smoothing": "none"}
    for rounding in ("ssz", "gptq"):
        command.run(quantise_config(tmp_path, rounding, rounding=rounding, **rest))
    config = text_config(tmp_path)
    plain = dataclasses.replace(config, tokenizer=dataclasses.replace(config.tokenizer, path=str(tmp_path / "source")))
    (batch,) = build_data(plain, model_vocab_size=model.config.vocab_size).heldout_batches(64, 512, 512)

    def kl(out: str) -> float:
        found, wanted = (
            m.logits(m.hidden(batch.tokens_T, batch.batch).hidden_TD).log_softmax(-1)
            for m in (load_pretrained(tmp_path / out, ops=Ops(None)), model)
        )
        return float((wanted.exp() * (wanted - found)).sum(-1).mean())

    with torch.no_grad():
        assert kl("gptq") < 0.85 * kl("ssz")
    integers = [load_pretrained(tmp_path / out, ops=Ops(None)).state_dict() for out in ("ssz", "gptq")]
    changed = {
        n for n, x in integers[0].items() if x.dtype in (torch.int8, torch.uint8) and (x != integers[1][n]).any()
    }
    assert {"model.layers.1.mlp.experts.gate_up_proj", "model.layers.1.mlp.experts.down_proj"} <= changed
    assert ("lm_head.weight" in changed) == (weights == "int4")


def test_quarot_has_no_text_for_gptq(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"quantizer\.rounding='gptq': must be one of nearest, ssz"):
        quantise_config(tmp_path, quarot=True, rounding="gptq")


def test_none_smooths_nothing(tmp_path: Path) -> None:
    save_source(small_text_model(), tmp_path)
    command.run(quantise_config(tmp_path, smoothing="none"))
    command.run(quantise_config(tmp_path, "turned", quarot=True))
    for file in (tmp_path / "turned").glob("*.safetensors"):
        assert file.read_bytes() == (tmp_path / "out" / file.name).read_bytes()
    assert not (tmp_path / "out" / FACTORS).exists()


def test_an_update_passes_rotations_and_factors_on_arrival(tmp_path: Path) -> None:
    save_source(small_text_model(outliers=16.0), tmp_path)
    command.run(quantise_config(tmp_path, rounding="nearest"))
    served = load_pretrained(tmp_path / "out", ops=Ops(None))
    wanted = logits(served)
    update = small_text_model(outliers=16.0)
    replace_weights(served, state_of(update), "update")
    assert torch.equal(logits(served), wanted)  # the same weights again
    with torch.no_grad():
        update.model.layers[0].mlp.down_proj.weight.mul_(3.0)  # type: ignore[union-attr, operator]
    replace_weights(served, state_of(update), "update")
    made = calibrated(tmp_path, rounding="nearest")
    changed = build_model(made.model, made.state.transform.attention, Ops(None)).eval()
    changed.load_state_dict(dict(made.state.transform.of(state_of(update))))
    quantise_model(changed, "w4a8")
    assert torch.equal(logits(served), logits(changed))


def files(folder: Path) -> dict[str, bytes]:
    """Returns the contents of a checkpoint."""
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def killed_at(folder: Path, rename: int, before: bool) -> int:
    """Runs the command in a process that is killed before or after a rename; returns its exit code."""

    def run() -> None:
        renames, true = [0], os.rename

        def killing(*args: Any, **kwargs: Any) -> None:
            renames[0] += 1
            if before and renames[0] == rename:
                os.kill(os.getpid(), signal.SIGKILL)
            true(*args, **kwargs)
            if renames[0] == rename:
                os.kill(os.getpid(), signal.SIGKILL)

        os.rename = killing  # type: ignore[assignment]
        command.run(quantise_config(folder, rounding="gptq"))

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def test_a_killed_command_resumes_to_the_same_files(tmp_path: Path) -> None:
    """Killed around the renames of layers and of the result, each time resumed from where the last kill left it."""
    save_source(small_text_model(), tmp_path)
    command.run(quantise_config(tmp_path, rounding="gptq"))
    wanted = files(tmp_path / "out")
    shutil.move(tmp_path / "out", tmp_path / "whole")
    for rename, before in ((3, True), (3, False), (2, False), (4, True), (4, False), (3, True)):
        assert killed_at(tmp_path, rename, before) == -signal.SIGKILL
        assert not (tmp_path / "out").exists()
    command.run(quantise_config(tmp_path, rounding="gptq"))
    assert files(tmp_path / "out") == wanted
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cache", "out", "source", "texts", "whole"]
    assert not [name for name in wanted if "hidden" in name or "partial" in name or "factors-" in name]


def test_an_expert_that_no_token_reached_is_named_and_rounded_without_factors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = small_text_model()
    with torch.no_grad():
        model.model.layers[1].mlp.gate.e_score_correction_bias[2] = -100.0  # type: ignore[union-attr, index]
    save_source(model, tmp_path)
    made = calibrated(tmp_path)
    factors_EF = made.state.transform.factors["model.layers.1.mlp.experts.up"]
    assert bool((factors_EF[2] == 1).all()) and not bool((factors_EF[0] == 1).all())
    said = capsys.readouterr().err
    assert "model.layers.1: 1 of 4 experts were chosen by no token of the text" in said


def test_bad_input_is_one_line_before_any_work(tmp_path: Path) -> None:
    save_source(small_text_model(), tmp_path)

    def refused(message: str, kind: type[Exception] = ConfigError, data: dict[str, Any] | None = None, **options: Any):
        config = quantise_config(tmp_path, **options)
        with pytest.raises(kind, match=message):
            command.run(dataclasses.replace(config, data=dataclasses.replace(config.data, **(data or {}))))
        assert not list(tmp_path.glob("*out*")) and not list(tmp_path.glob(".out*"))

    refused(r"quantizer\.sequence_length=129: the model allows at most 128 positions", sequence_length=129)
    short = tmp_path / "short.txt"
    short.write_text("def f(): pass")
    with pytest.raises(ConfigError, match="rows=0"):
        quantise_config(tmp_path, rows=0)
    with pytest.raises(ConfigError, match=r"smoothing=.* must be one of none, migrate, awq"):
        quantise_config(tmp_path, smoothing="akq")
    refused(
        r"quantizer\.sequence_length=64: must be at most \d+, all that the calibration text has",
        data={"paths": [str(short)], "heldout": 0.0}, sequence_length=64,
    )  # fmt: skip
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "whole"}\n{"text": "cut\n')
    refused(r"bad\.jsonl:2: not JSON", DataError, data={"paths": [str(bad)]})
    shutil.rmtree(tmp_path / "source")
    save_pretrained(small_text_model(), tmp_path / "source")
    refused(r"checkpoint=.*source.*must have a tokenizer\.json")


def test_fewer_rows_than_wanted_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_source(small_text_model(), tmp_path)
    calibrated(tmp_path, rows=100_000, smoothing="none")
    assert f"rows of {LENGTH} tokens, fewer than quantizer.rows=100000" in capsys.readouterr().err


def test_the_command_names_its_factors(tmp_path: Path) -> None:
    save_source(small_text_model(), tmp_path)
    command.run(quantise_config(tmp_path))
    section = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]["arcforge"]
    assert section["factors"] == FACTORS and (tmp_path / "out" / FACTORS).is_file()
