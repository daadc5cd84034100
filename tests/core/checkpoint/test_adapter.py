"""Adapters on disk: put on their base again to the same bits, as PEFT reads them, and nothing else is taken for one."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from arcforge_core.checkpoint.adapter import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    links_of,
    load_adapter,
    weights_sha256,
    write_adapter,
)
from arcforge_core.checkpoint.convert import convert
from arcforge_core.checkpoint.hf import export_hf
from arcforge_core.checkpoint.pretrained import find_checkpoint, load_pretrained, open_checkpoint, save_pretrained
from arcforge_core.config.schema import AdapterConfig, MtpConfig
from arcforge_core.errors import CheckpointError
from arcforge_core.model.adapt.lora import Adapter, attach, merged_state, named_adapters
from arcforge_core.model.build import build_model
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.ops.dispatch import Ops
from arcforge_core.plugins.loader import registry
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_config, small_model, small_tokenizer
from support.hf_models import hf_configs, randomise

IDS_BS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])


def on(folder: Path, seed: int = 0, dtype: torch.dtype | None = None, **options: object) -> CausalLM:
    """Returns the model in a folder with adapters that have values."""
    checkpoint = open_checkpoint(folder)
    model = load_pretrained(folder, dtype, Ops(None))
    config = AdapterConfig(name="lora", **{"rank": 3, "alpha": 4.0, **options})
    torch.manual_seed(seed)
    attach(model, Adapter(config, str(folder), weights_sha256(folder), links_of(checkpoint.state)))
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, low in named_adapters(model):
            low.B.copy_(0.3 * torch.randn(low.B.shape, generator=draw))
    return model


def written(model: CausalLM, folder: Path) -> Path:
    folder.mkdir()
    write_adapter(model, folder)
    return folder


def assert_equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []


def assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """As far as products of stacks and of single matrices round alike."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-6, msg=name)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    save_pretrained(small_model(vocab_size=TOKENIZER_SIZE), tmp_path / "base", small_tokenizer())
    return tmp_path / "base"


@pytest.fixture
def adapter(base: Path, tmp_path: Path) -> Path:
    return written(on(base), tmp_path / "adapter")


@pytest.mark.parametrize("architecture", ["llama", "glm4_moe", "deepseek_v3", "glm_moe_dsa"])
def test_an_adapter_comes_back_to_the_same_bits(architecture: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """With rows that are stored in another order, experts one by one, and the MTP module as one more layer."""
    pytest.importorskip("arcforge_attention")

    @settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
    @given(hf_configs(architecture), st.integers(0, 99))
    def check(sizes, seed) -> None:  # type: ignore[no-untyped-def]
        config, attention = sizes
        folder = tmp_path_factory.mktemp("run")
        model = build_model(config, attention, Ops(None)).eval()
        randomise(model, seed)
        export_hf(model, folder / "base", architecture)
        adapted = on(folder / "base", seed)
        files = written(adapted, folder / "adapter")
        assert_close(load_pretrained(files, ops=Ops(None)).state_dict(), merged_state(adapted))
        again = on(folder / "base", seed + 1)
        load_adapter(again, files)
        assert_equal(dict(again.state_dict()), dict(adapted.state_dict()))

    check()


def test_our_own_format_too(base: Path, adapter: Path) -> None:
    expected = merged_state(on(base))
    assert_equal(load_pretrained(adapter, ops=Ops(None)).state_dict(), expected)
    again = on(base, seed=1)
    load_adapter(again, adapter)
    assert_equal(merged_state(again), expected)


def test_it_is_small_and_names_its_base(base: Path, adapter: Path) -> None:
    values = sum(tensor.numel() for tensor in load_file(adapter / ADAPTER_WEIGHTS).values())
    assert values == sum(p.numel() for _, low in named_adapters(on(base)) for p in low.parameters())
    assert json.loads((adapter / ADAPTER_CONFIG).read_text())["base_model_name_or_path"] == str(base)
    assert (adapter / "tokenizer.json").is_file() and not (adapter / "model.safetensors").exists()


@pytest.mark.parametrize(("dtype", "expected"), [(None, torch.bfloat16), (torch.float32, torch.float32)])
def test_merging_rounds_once(tmp_path: Path, dtype: torch.dtype | None, expected: torch.dtype) -> None:
    save_pretrained(small_model().to(torch.bfloat16), tmp_path / "base")
    model = on(tmp_path / "base")
    files = written(model, tmp_path / "adapter")
    merged = load_pretrained(files, dtype, Ops(None))
    for name, low in named_adapters(model):
        wide = model.get_parameter(name).float() + low.scale * (low.B @ low.A)
        assert torch.equal(merged.get_parameter(name), wide.to(expected))


def test_convert_merges(base: Path, adapter: Path, tmp_path: Path) -> None:
    made = convert(adapter, tmp_path / "merged")
    assert made.architecture == "deepseek_v3" and not (tmp_path / "merged" / ADAPTER_CONFIG).exists()
    assert_close(load_pretrained(tmp_path / "merged", ops=Ops(None)).state_dict(), merged_state(on(base)))
    config = json.loads((tmp_path / "merged/config.json").read_text())
    assert config["eos_token_id"] == small_tokenizer().eos_id
    assert (tmp_path / "merged/tokenizer.json").read_text() == (base / "tokenizer.json").read_text()
    again = convert(adapter, tmp_path / "own", to="arcforge", dtype=torch.bfloat16)
    assert again.state["lm_head.weight"].dtype == torch.bfloat16


def test_saving_a_model_with_adapters_saves_it_merged(base: Path, tmp_path: Path) -> None:
    model = on(base)
    save_pretrained(model, tmp_path / "saved")
    export_hf(model, tmp_path / "theirs")
    for folder in ("saved", "theirs"):
        assert_equal(load_pretrained(tmp_path / folder, ops=Ops(None)).state_dict(), merged_state(model))


def test_an_adapter_may_be_the_base_of_another(base: Path, adapter: Path, tmp_path: Path) -> None:
    second = on(adapter, seed=3)
    files = written(second, tmp_path / "second")
    assert_equal(load_pretrained(files, ops=Ops(None)).state_dict(), merged_state(second))


def test_a_base_beside_it_may_be_named_relatively(base: Path, adapter: Path) -> None:
    change(adapter, base_model_name_or_path="../base")
    assert find_checkpoint(adapter) == adapter and open_checkpoint(adapter).config == open_checkpoint(base).config


# ---- PEFT ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow(reason="imports transformers and peft")
@pytest.mark.parametrize("rslora", [False, True])
def test_peft_reads_ours_and_we_read_peft_s(tmp_path: Path, rslora: bool) -> None:
    pytest.importorskip("arcforge_attention")
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    config = small_config(first_k_dense_replace=2, head_dim=16, qk_rope_head_dim=16, mtp=MtpConfig(depths=0))
    model = build_model(config, registry().get("attention", "gqa").load_schema()(), Ops(None)).eval()
    export_hf(model, tmp_path / "base", "llama")
    adapted = on(tmp_path / "base", rslora=rslora)
    files = written(adapted, tmp_path / "adapter")

    def theirs() -> torch.nn.Module:
        return transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")

    put_on = peft.PeftModel.from_pretrained(theirs(), files)
    with torch.no_grad():
        expected = adapted(IDS_BS).logits
        torch.testing.assert_close(put_on(IDS_BS).logits, expected, rtol=1e-4, atol=1e-4)
        assert not torch.allclose(theirs()(IDS_BS).logits, expected, atol=1e-2)
    put_on.save_pretrained(tmp_path / "back")
    assert_close(load_pretrained(tmp_path / "back", ops=Ops(None)).state_dict(), merged_state(adapted))


# ---- refusals --------------------------------------------------------------------------------------------------------


def change(adapter: Path, **fields: object) -> None:
    path = adapter / ADAPTER_CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_a_base_that_changed_or_went_is_told(base: Path, adapter: Path) -> None:
    weights = load_file(base / "model.safetensors")
    weights["lm_head.weight"][0, 0] += 1
    save_file(weights, base / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"adapter was trained on other weights than those in .*base"):
        open_checkpoint(adapter)
    shutil.rmtree(base)
    with pytest.raises(CheckpointError, match=r"its base .*base does not exist: correct base_model_name_or_path in"):
        open_checkpoint(adapter)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type='IA3': must be LORA"),
        ({"use_dora": True}, "use_dora=True is not supported"),
        ({"bias": "all"}, "bias='all' must be 'none'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save=.* is not supported"),
        ({"r": 0}, "is missing or invalid"),
        ({"r": None}, "is missing or invalid"),
    ],
)
def test_what_cannot_be_read_is_refused(adapter: Path, fields: dict[str, object], message: str) -> None:
    change(adapter, **fields)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(adapter)


@pytest.mark.parametrize("damage", ["truncated", "absent", "no json"])
def test_damage_is_named(adapter: Path, damage: str) -> None:
    if damage == "no json":
        (adapter / ADAPTER_CONFIG).write_text("{")
    elif damage == "absent":
        (adapter / ADAPTER_WEIGHTS).unlink()
    else:
        os.truncate(adapter / ADAPTER_WEIGHTS, 500)
    with pytest.raises(CheckpointError, match="is missing or damaged"):
        open_checkpoint(adapter)


def test_tensors_that_do_not_fit_are_named(adapter: Path) -> None:
    tensors = load_file(adapter / ADAPTER_WEIGHTS)
    stem = "base_model.model.model.layers.0.self_attn.o_proj"

    def refused(changes: dict[str, torch.Tensor | None], message: str) -> None:
        changed = {name: t for name, t in (tensors | changes).items() if t is not None}
        save_file(changed, adapter / ADAPTER_WEIGHTS)
        with pytest.raises(CheckpointError, match=message):
            open_checkpoint(adapter)

    refused({f"{stem}.lora_B.weight": None}, r"layers\.0\.self_attn\.o_proj is not a pair of LoRA matrices")
    refused({f"{stem}.lora_B.weight": torch.zeros(5, 3)}, r"o_proj is \[5, 3\] x \[3, 32\], the base's \[32, 32\]")
    extra = {f"base_model.model.nowhere.lora_{x}.weight": torch.zeros(3, 3) for x in "AB"}
    refused(extra, r"adapts nowhere, which .*base does not have")


def test_another_rank_or_base_is_not_resumed(base: Path, adapter: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has rank 3, the model's adapter 5"):
        load_adapter(on(base, rank=5), adapter)
    with pytest.raises(CheckpointError, match=r"has no adapter for model\.layers\.0\.mlp"):
        load_adapter(on(base), written(on(base, targets=["self_attn"]), tmp_path / "few"))
    with pytest.raises(CheckpointError, match="which has no adapter in the model"):
        load_adapter(on(base, targets=["self_attn"]), adapter)
    save_pretrained(small_model(seed=1, vocab_size=TOKENIZER_SIZE), tmp_path / "other")
    with pytest.raises(CheckpointError, match=r"which has other weights than .*other"):
        load_adapter(on(tmp_path / "other"), adapter)
    with pytest.raises(CheckpointError, match="contains no adapter"):
        load_adapter(on(base), base)
