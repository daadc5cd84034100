import json
import os
import shutil

import pytest
import torch
from safetensors.torch import load_file

from arcforge_core import load_pretrained, save_pretrained
from arcforge_core.checkpoint.convert import convert
from arcforge_core.checkpoint.hf import export_hf
from arcforge_core.checkpoint.pretrained import open_checkpoint
from arcforge_core.checkpoint.shards import WEIGHTS, save_tensors
from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_core.ops.dispatch import Ops
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_model, small_tokenizer
from support.gguf_files import LlamaFile


@pytest.fixture
def ours(tmp_path):
    save_pretrained(small_model(vocab_size=TOKENIZER_SIZE), tmp_path / "ours", small_tokenizer())
    (tmp_path / "ours" / "chat_template.jinja").write_text("{{ messages }}")
    return tmp_path / "ours"


def same(left, right):
    states = [load_pretrained(folder, ops=Ops(None)).state_dict() for folder in (left, right)]
    return all(torch.equal(states[0][name], states[1][name]) for name in states[0].keys() | states[1].keys())


def test_there_and_back(ours, tmp_path):
    there = convert(ours, tmp_path / "hf", max_shard_bytes=20_000)
    assert there.architecture == "deepseek_v3" and there.path == tmp_path / "hf"
    assert len(list((tmp_path / "hf").glob("*.safetensors"))) > 3
    back = convert(tmp_path / "hf", tmp_path / "back", to="arcforge")
    assert back.architecture == "arcforge"
    assert json.loads((ours / "config.json").read_text()) == json.loads((tmp_path / "back/config.json").read_text())
    assert same(ours, tmp_path / "hf") and same(ours, tmp_path / "back")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / "back" / name).read_text() == (ours / name).read_text()
    assert sorted(os.listdir(tmp_path)) == ["back", "hf", "ours"]


def test_the_source_keeps_its_architecture_and_token_ids(ours, tmp_path):
    convert(ours, tmp_path / "lite", to="glm4_moe_lite")
    config = json.loads((tmp_path / "lite/config.json").read_text())
    assert config["eos_token_id"] == small_tokenizer().eos_id
    config["eos_token_id"] = [3, 4]
    (tmp_path / "lite/config.json").write_text(json.dumps(config))
    assert convert(tmp_path / "lite", tmp_path / "again").architecture == "glm4_moe_lite"
    assert json.loads((tmp_path / "again/config.json").read_text())["eos_token_id"] == [3, 4]


@pytest.mark.parametrize("to", ["arcforge", "deepseek_v3"])
def test_dtype(ours, tmp_path, to):
    written = convert(ours, tmp_path / "half", to=to, dtype=torch.bfloat16)
    dtypes = {name: written.state[name].dtype for name in written.state.shapes}
    router = {name for name in dtypes if name.endswith("e_score_correction_bias")}
    assert router and {dtypes[name] for name in router} == {torch.float32}
    assert {dtypes[name] for name in dtypes.keys() - router} == {torch.bfloat16}
    config = json.loads((tmp_path / "half/config.json").read_text())
    assert config.get("dtype", "bfloat16") == "bfloat16"
    assert load_pretrained(tmp_path / "half").dtype == torch.bfloat16


def test_the_last_checkpoint_of_a_run(ours, tmp_path):
    shutil.copytree(ours, tmp_path / "run/checkpoints/step-00000001")
    convert(tmp_path / "run", tmp_path / "hf")
    assert same(ours, tmp_path / "hf")


@pytest.mark.parametrize("dtype", [None, torch.float32])
def test_a_gguf_file_is_read_into_a_folder_that_does_not_stay(tmp_path, dtype):
    weights = LlamaFile().write(tmp_path / "llama.gguf")
    written = convert(tmp_path / "llama.gguf", tmp_path / "llama", dtype=dtype)
    assert written.architecture == "llama"
    exact = torch.from_numpy(weights["model.layers.0.mlp.up_proj.weight"])
    state = load_file(tmp_path / "llama" / WEIGHTS)
    assert torch.equal(state["model.layers.0.mlp.up_proj.weight"], exact.to(dtype or torch.bfloat16))
    assert sorted(os.listdir(tmp_path)) == ["llama", "llama.gguf"]


def test_targets_that_are_taken(ours, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years of work")
    export_hf(small_model(seed=1), tmp_path / "old")
    for target in ("mine", "old"):
        with pytest.raises(CheckpointError, match=f"{target} exists; choose another"):
            convert(ours, tmp_path / target)
    with pytest.raises(CheckpointError, match=r"without config\.json and is not replaced"):
        convert(ours, tmp_path / "mine", overwrite=True)
    with pytest.raises(CheckpointError, match="is the source itself"):
        convert(ours, ours, overwrite=True)
    convert(ours, tmp_path / "old", overwrite=True)
    assert same(ours, tmp_path / "old")


def test_a_failure_leaves_nothing_behind(ours, tmp_path):
    for source, to in ((ours, "llama"), (tmp_path / "nowhere", None), (tmp_path / "lost.gguf", None)):
        with pytest.raises(CheckpointError):
            convert(source, tmp_path / "target", to=to)
    assert os.listdir(tmp_path) == ["ours"]


def test_bits_that_change_on_the_way_are_found(ours, tmp_path, monkeypatch):
    from arcforge_core.checkpoint import shards

    write = shards.save_tensors

    def spoil(tensors, path):
        tensors["model.norm.weight"][3] += 2**-20
        write(tensors, path)

    monkeypatch.setattr(shards, "save_tensors", spoil)
    monkeypatch.setattr(shards.ShardWriter, "add", lambda self, name, t: self._pending.update({name: t.clone()}))
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight differs after writing"):
        convert(ours, tmp_path / "target")
    assert os.listdir(tmp_path) == ["ours"]


def test_one_tensor_at_a_time_is_read(ours, tmp_path, monkeypatch):
    """No model is built with its weights: 744B parameters need not fit into memory."""
    monkeypatch.setattr("arcforge_core.model.causal_lm.init_weights", lambda *args: pytest.fail("weights were made"))
    assert len(convert(ours, tmp_path / "hf").state.shapes) == len(open_checkpoint(ours).state.shapes)


def test_int8_is_a_quarter_of_float32_and_reads_back_as_rounded(ours, tmp_path):
    small = convert(ours, tmp_path / "small", dtype=torch.int8)
    assert small.architecture == "arcforge"
    before, after = load_pretrained(ours), load_pretrained(tmp_path / "small")
    for (name, old), new in zip(before.named_parameters(), after.parameters(), strict=True):
        assert new.dtype == torch.bfloat16
        # half a step of the row's scale, and half a unit of bfloat16
        bound = old.abs().amax(-1, keepdim=True) / 127 / 2 * 1.01 + old.abs() / 256 if old.ndim > 1 else old.abs() / 128
        assert ((new.float() - old.float()).abs() <= bound).all(), name
    for (name, old), new in zip(before.named_buffers(), after.buffers(), strict=True):
        assert torch.equal(old, new), name
    wide = sum(value.numel() for value in before.state_dict().values()) * 4
    assert (tmp_path / "small" / WEIGHTS).stat().st_size < 0.35 * wide
    again = convert(tmp_path / "small", tmp_path / "again", dtype=torch.bfloat16, to="arcforge")
    assert again.state.shapes == small.state.shapes and same(tmp_path / "small", tmp_path / "again")


def test_int8_of_other_architectures_and_damaged_scales_are_refused(ours, tmp_path):
    with pytest.raises(ConfigError, match="dtype='int8': is written in arcforge's own format only, not as deepseek_v3"):
        convert(ours, tmp_path / "hf", to="deepseek_v3", dtype=torch.int8)
    convert(ours, tmp_path / "small", dtype=torch.int8)
    tensors = load_file(tmp_path / "small" / WEIGHTS)
    del tensors["model.embed_tokens.weight"]
    save_tensors(tensors, tmp_path / "small" / WEIGHTS)
    with pytest.raises(CheckpointError, match=r"embed_tokens.weight.int8_scale has the shape"):
        open_checkpoint(tmp_path / "small")
