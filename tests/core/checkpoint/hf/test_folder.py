"""Directories in the layouts of releases, MTP, tokenizers, and what is refused by name; without transformers."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from arcforge_core import load_pretrained
from arcforge_core.checkpoint.hf import export_hf
from arcforge_core.checkpoint.hf.folder import default_architecture
from arcforge_core.checkpoint.pretrained import load_weights, load_with_tokenizer, open_checkpoint
from arcforge_core.checkpoint.shards import INDEX, WEIGHTS
from arcforge_core.config.schema import HardwareConfig, MtpConfig
from arcforge_core.configs import ReferenceAttentionConfig
from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_core.model.build import build_model
from arcforge_core.ops.dispatch import Ops
from arcforge_core.ops.hardware import TorchCpu
from arcforge_core.plugins.loader import registry
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_config, small_tokenizer
from support.hf_models import randomise

IDS = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]])
MTP_LAYER = "model.layers.2."
DENSE = {"first_k_dense_replace": 2, "mtp": MtpConfig(depths=0), "qk_rope_head_dim": 16}


def small(form="mla", **sizes):
    model = build_model(small_config(**sizes), ReferenceAttentionConfig(form=form), Ops(None)).eval()
    randomise(model, 0)
    return model


def load(folder):
    return load_pretrained(folder, ops=Ops(None))


def edit(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    config.update(changes)
    (folder / "config.json").write_text(json.dumps({name: v for name, v in config.items() if v != "remove"}))


def edit_tensors(folder, change):
    state = load_file(folder / WEIGHTS)
    change(state)
    save_file(state, folder / WEIGHTS, metadata={"format": "pt"})


def same(left, right):
    before, after = left.state_dict(), right.state_dict()
    return before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


@pytest.fixture
def saved(tmp_path):
    export_hf(small(), tmp_path / "model")
    return tmp_path / "model"


# ---- layouts ---------------------------------------------------------------------------------------------------------


def test_names_are_those_of_releases(saved):
    names = set(load_file(saved / WEIGHTS))
    assert {f"{MTP_LAYER}{n}.weight" for n in ("eh_proj", "enorm", "hnorm", "shared_head.norm")} <= names
    expert = "model.layers.1.mlp.experts.3"
    assert {f"{expert}.gate_proj.weight", f"{expert}.up_proj.weight", f"{expert}.down_proj.weight"} <= names
    assert "model.layers.1.mlp.gate.e_score_correction_bias" in names
    config = json.loads((saved / "config.json").read_text())
    assert config["architectures"] == ["DeepseekV3ForCausalLM"]
    assert config["num_nextn_predict_layers"] == 1 and config["dtype"] == "float32"


def test_mtp_module_and_its_settings_come_back(tmp_path):
    model = small(mtp=MtpConfig(depths=3, fraction=0.5, weight=0.1))
    export_hf(model, tmp_path / "model")
    back = load(tmp_path / "model")
    assert back.config == model.config and same(back, model)
    assert back.mtp is not None and not back.training


def test_a_release_says_one_depth(saved):
    edit(saved, arcforge="remove")
    assert load(saved).config.mtp.depths == 1


def test_a_module_that_was_dropped_is_not_expected(saved):
    edit_tensors(saved, lambda state: [state.pop(name) for name in list(state) if name.startswith(MTP_LAYER)])
    assert load(saved).mtp is None


def test_copies_of_embedding_and_head_in_the_mtp_module(saved):
    def add(state):
        state[f"{MTP_LAYER}embed_tokens.weight"] = state["model.embed_tokens.weight"].clone()
        state[f"{MTP_LAYER}shared_head.head.weight"] = state["lm_head.weight"].clone()

    edit_tensors(saved, add)
    assert same(load(saved), small())
    edit_tensors(saved, lambda state: state[f"{MTP_LAYER}shared_head.head.weight"].add_(1.0))
    with pytest.raises(CheckpointError, match=r"2\.shared_head\.head\.weight differs from lm_head\.weight"):
        load(saved)


@pytest.mark.parametrize("form", ["mla", "gqa"])
def test_tied_head_may_be_stored_or_not(tmp_path, form):
    model = small(form, tie_word_embeddings=True)
    export_hf(model, tmp_path / "model")
    assert "lm_head.weight" not in load_file(tmp_path / "model" / WEIGHTS)
    embedding = model.model.embed_tokens.weight.detach()
    edit_tensors(tmp_path / "model", lambda state: state.update({"lm_head.weight": embedding.clone()}))
    back = load(tmp_path / "model")
    assert same(back, model) and back.lm_head.weight is back.model.embed_tokens.weight


def test_stacked_experts_and_old_rope_buffers_are_read(saved):
    def stack(state):
        stem = "model.layers.1.mlp.experts"
        parts = {
            part: [state.pop(f"{stem}.{e}.{part}_proj.weight") for e in range(4)] for part in ("gate", "up", "down")
        }
        pairs = zip(parts["gate"], parts["up"], strict=True)
        state[f"{stem}.gate_up_proj"] = torch.stack([torch.cat(pair) for pair in pairs])
        state[f"{stem}.down_proj"] = torch.stack(parts["down"])
        state["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(2)

    edit_tensors(saved, stack)
    assert same(load(saved), small())


def test_shards_and_their_index(tmp_path):
    model = small()
    export_hf(model, tmp_path / "model", max_shard_bytes=20_000)
    index = json.loads((tmp_path / "model" / INDEX).read_text())
    files = sorted(path.name for path in (tmp_path / "model").glob("*.safetensors"))
    assert len(files) > 2 and sorted(set(index["weight_map"].values())) == files
    assert all(path.stat().st_size < 25_000 for path in (tmp_path / "model").glob("*.safetensors"))
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in model.state_dict().values())
    assert same(load(tmp_path / "model"), model)


def test_dtype_casts_parameters_and_leaves_the_router_bias(saved):
    model = load_pretrained(saved, dtype=torch.bfloat16)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert {b.dtype for b in model.buffers()} == {torch.float32}


def test_tokenizer_template_and_token_ids(tmp_path):
    tokenizer, model = small_tokenizer(), small(vocab_size=TOKENIZER_SIZE)
    export_hf(model, tmp_path / "first", tokenizer=tokenizer)
    (tmp_path / "first" / "chat_template.jinja").write_text("{{ messages }}")
    export_hf(model, tmp_path / "second", tokenizer=tmp_path / "first")
    assert (tmp_path / "second" / "chat_template.jinja").read_text() == "{{ messages }}"
    for folder in ("first", "second"):
        assert json.loads((tmp_path / folder / "config.json").read_text())["eos_token_id"] == tokenizer.eos_id
    _, back = load_with_tokenizer(tmp_path / "second", TorchCpu(HardwareConfig("torch_cpu")))
    assert back.encode("one two") == tokenizer.encode("one two")


def test_without_a_tokenizer_no_token_ends_a_text(saved):
    config = json.loads((saved / "config.json").read_text())
    assert {config[f"{name}_token_id"] for name in ("bos", "eos", "pad")} == {None}


def test_weights_go_into_a_model_that_is_there(saved):
    model = build_model(small_config(), ReferenceAttentionConfig(), Ops(None))
    load_weights(model, saved)
    assert same(model, small())


def test_without_the_attention_package_the_plain_one_serves(tmp_path, monkeypatch):
    export_hf(small("gqa", **DENSE), tmp_path / "llama")
    edit(tmp_path / "llama", arcforge="remove")
    without = {key: claim for key, claim in registry().claims.items() if key[1] not in ("gqa", "dsa")}
    monkeypatch.setattr(registry(), "claims", without)
    assert load(tmp_path / "llama").attention == ReferenceAttentionConfig(form="gqa")
    export_hf(small(), tmp_path / "glm5")
    sizes = dict.fromkeys(("index_n_heads", "index_head_dim", "index_topk"), 8)
    edit(tmp_path / "glm5", arcforge="remove", model_type="glm_moe_dsa", **sizes)
    with pytest.raises(CheckpointError, match=r"pip install \./packages/attention"):
        load(tmp_path / "glm5")


# ---- the choice of an architecture -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "changes", "chosen"),
    [
        ("mla", {}, "deepseek_v3"),
        ("gqa", {}, "glm4_moe"),
        ("gqa", DENSE, "llama"),
        ("gqa", {**DENSE, "qk_rope_head_dim": 4}, "glm4_moe"),
        ("gqa", {**DENSE, "mtp": MtpConfig(depths=1)}, "glm4_moe"),
    ],
)
def test_default_architecture(form, changes, chosen):
    assert default_architecture(small_config(**changes), ReferenceAttentionConfig(form=form)) == chosen


@pytest.mark.parametrize(
    ("form", "architecture", "changes", "message"),
    [
        ("mla", "lama", {}, "'lama' must be one of .*glm_moe_dsa, llama; did you mean 'llama'"),
        ("mla", "llama", {}, "llama has attention gqa, the model mla; .* deepseek_v3, glm4_moe_lite"),
        ("gqa", "llama", {}, "model.mtp.depths=1: must be 0 for architecture llama"),
        ("gqa", "llama", {**DENSE, "qk_rope_head_dim": 8}, "model.qk_rope_head_dim=8: must be 16"),
        ("gqa", "llama", {**DENSE, "first_k_dense_replace": 1}, "model.first_k_dense_replace=1: must be 2"),
        ("gqa", "llama", {**DENSE, "hidden_size": 33}, "model.hidden_size=33: .* a multiple of num_attention_heads=2"),
        ("mla", None, {"latent_norm_eps": 1e-5}, "model.latent_norm_eps=1e-05: must be 1e-06"),
    ],
)
def test_what_an_architecture_cannot_say_is_refused(tmp_path, form, architecture, changes, message):
    with pytest.raises((CheckpointError, ConfigError), match=message):
        export_hf(small(form, **changes), tmp_path / "model", architecture)
    assert list(tmp_path.iterdir()) == []


# ---- bad directories -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "glm_moe_dsaa"}, "did you mean 'glm_moe_dsa'"),
        ({"model_type": "remove"}, "model_type=None must be one of"),
        ({"hidden_size": "remove"}, "hidden_size=None: required by architecture deepseek_v3"),
        ({"hidden_size": "wide"}, "hidden_size='wide'"),
        ({"q_lora_rank": None}, "q_lora_rank=None"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu': must be 'silu'"),
        ({"attention_bias": True}, "attention_bias=True"),
        ({"norm_topk_prob": False}, "norm_topk_prob=False"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        ({"num_key_value_heads": 1}, "num_key_value_heads=1: must equal num_attention_heads=2 with MLA"),
        ({"n_group": 3}, "model.n_group=3: must divide n_routed_experts=4"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope_type='longrope': must be one of default, llama3, yarn"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5: must be 1"),
        ({"mlp_layer_types": ["sparse", "dense"]}, "mlp_layer_types"),
        ({"num_hidden_layers": "two"}, "does not have the type required by deepseek_v3"),
        ({"rope_parameters": 3}, "does not have the type required by deepseek_v3"),
        ({"arcforge": {"models": {}}}, "unknown field arcforge.models; did you mean 'model'"),
        ({"arcforge": {"model": {"nme": 1}}}, "unknown field arcforge.model.nme; did you mean 'name'"),
        ({"arcforge": {"model": {"hidden_size": 64}}}, "unknown field arcforge.model.hidden_size"),
    ],
)
def test_config_that_we_cannot_hold_is_named(saved, changes, message):
    edit(saved, **changes)
    with pytest.raises(CheckpointError, match=r"config\.json") as caught:
        load(saved)
    assert message in str(caught.value)


def test_missing_surplus_and_misshaped_tensors_are_named_as_in_the_file(saved):
    def spoil(state):
        del state["model.layers.1.mlp.experts.2.up_proj.weight"]
        state["model.layers.7.mlp.gate.weight"] = torch.zeros(4, 32)
        state["model.norm.weight"] = torch.zeros(7)

    edit_tensors(saved, spoil)
    with pytest.raises(CheckpointError) as caught:
        load(saved)
    for part in (
        "model.layers.1.mlp.experts.2.up_proj.weight is missing",
        "model.layers.7.mlp.gate.weight is not part of the model",
        "model.norm.weight is [7], the model's is [32]",
    ):
        assert part in str(caught.value)


def test_missing_and_truncated_shards_are_named(tmp_path):
    export_hf(small(), tmp_path / "model", max_shard_bytes=20_000)
    for spoil, message in ((Path.unlink, "is missing; it holds"), (truncate, "is damaged or incomplete")):
        shutil.copytree(tmp_path / "model", tmp_path / "spoilt")
        second = sorted((tmp_path / "spoilt").glob("*.safetensors"))[1]
        spoil(second)
        with pytest.raises(CheckpointError, match=message) as caught:
            load(tmp_path / "spoilt")
        assert second.name in str(caught.value)
        shutil.rmtree(tmp_path / "spoilt")


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def test_opening_reads_no_tensor(saved, monkeypatch):
    monkeypatch.setattr("arcforge_core.checkpoint.shards.ShardReader.__getitem__", lambda self, name: pytest.fail(name))
    assert len(open_checkpoint(saved).state.shapes) == len(small().state_dict())


def test_a_folder_of_somebody_else_is_not_replaced(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(CheckpointError, match="not replaced"):
        export_hf(small(), tmp_path)
