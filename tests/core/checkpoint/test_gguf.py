"""GGUF llama files become Hugging Face directories with the same weights; anything else is refused by name."""

import json
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from arcforge_core.checkpoint.gguf import convert_gguf, split_rope_halves
from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_core.tokenizer.tokenizer import Tokenizer
from support.gguf_files import MERGES, SPECIAL, TOKENS, LlamaFile, interleave_rope_halves

gguf = pytest.importorskip("gguf")

MIXED = {"attn_q.weight": "Q4_1", "attn_k.weight": "Q8_0", "ffn_up.weight": "F16", "token_embd.weight": "Q8_0"}
MODELS = {
    "f32": LlamaFile(),
    "mixed": LlamaFile(kinds=MIXED),
    "untied, no GQA, own head size": LlamaFile(hidden=60, heads=5, kv_heads=5, head_dim=6, inner=32, tied=False),
    "five heads on one": LlamaFile(
        hidden=160, heads=5, head_dim=18, layers=1, kinds={"attn_v.weight": "Q5_0", "output": "BF16"}
    ),
}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_weights_are_the_file_s(tmp_path, model, dtype):
    expected = model.write(tmp_path / "a.gguf")
    assert convert_gguf(tmp_path / "a.gguf", tmp_path / "out", dtype) == tmp_path / "out"
    state = load_file(tmp_path / "out" / "model.safetensors")
    assert state.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(state[name], torch.tensor(weight).to(getattr(torch, dtype)), rtol=0, atol=0)


@settings(max_examples=20, deadline=None)
@given(heads=st.integers(1, 5), half=st.integers(1, 5), width=st.integers(1, 3))
def test_rope_halves_come_apart_again(heads, half, width):
    weight = np.random.default_rng(0).standard_normal((heads * 2 * half, width)).astype(np.float32)
    assert torch.equal(
        split_rope_halves(torch.tensor(interleave_rope_halves(weight, heads)), heads), torch.tensor(weight)
    )


def test_config(tmp_path):
    LlamaFile(hidden=64, heads=5, kv_heads=1, head_dim=6, tied=False).write(tmp_path / "a.gguf")
    config = json.loads((convert_gguf(tmp_path / "a.gguf", tmp_path / "out") / "config.json").read_text())
    assert config == {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(TOKENS),
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 5,
        "num_key_value_heads": 1,
        "head_dim": 6,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 5000.0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        "dtype": "bfloat16",
    }
    generation = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}


def test_what_a_file_may_leave_out(tmp_path):
    optional = ["head_count_kv", "key_length", "value_length"]
    absent = {f"llama.attention.{key}": None for key in optional} | {
        "llama.rope.freq_base": None,
        "llama.rope.dimension_count": None,
        "llama.vocab_size": None,
        "tokenizer.ggml.bos_token_id": None,
        "tokenizer.ggml.padding_token_id": None,
        "tokenizer.chat_template": None,
    }
    LlamaFile(kv_heads=3, metadata=absent).write(tmp_path / "a.gguf")
    config = json.loads((convert_gguf(tmp_path / "a.gguf", tmp_path / "out") / "config.json").read_text())
    assert (config["num_key_value_heads"], config["head_dim"], config["rope_theta"]) == (3, 32, 10000.0)
    assert config["vocab_size"] == len(TOKENS) and "bos_token_id" not in config
    assert "chat_template" not in json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"general.architecture": "qwen2"}, "general.architecture='qwen2' must be 'llama'"),
        ({"llama.expert_count": 8}, "llama.expert_count=8 is not supported"),
        ({"llama.rope.scaling.type": "yarn"}, "llama.rope.scaling.type='yarn' is not supported"),
        ({"llama.rope.dimension_count": 16}, "llama.rope.dimension_count=16: must equal the head size 32"),
        ({"llama.attention.value_length": 8}, "llama.attention.value_length=8: must equal the head size 32"),
        ({"llama.attention.head_count_kv": 2}, "3 heads a multiple of 2 kv heads"),
        ({"llama.attention.head_count": [3, 3]}, "llama.attention.head_count=.3, 3.: must be of type int"),
        ({"llama.block_count": 0}, "llama.block_count=0: must be at least 1"),
        ({"llama.feed_forward_length": None}, "llama.feed_forward_length is missing"),
        (
            {"llama.feed_forward_length": 65},
            r"blk.0.ffn_down.weight is \[96, 64\], but the file's metadata require \[96, 65\]",
        ),
        ({"llama.block_count": 3}, "blk.2.attn_k.weight is missing.*and 1 more"),
        ({"llama.block_count": 1}, "blk.1.attn_k.weight is not part of a plain llama model"),
        ({"tokenizer.ggml.model": "llama"}, "tokenizer.ggml.model='llama' must be 'gpt2'"),
        ({"tokenizer.ggml.pre": "tekken"}, "tokenizer.ggml.pre='tekken' must be 'gpt-2' or 'smollm'"),
        ({"tokenizer.ggml.merges": ["he y"]}, "tokenizer cannot be built: .*he"),
        ({"tokenizer.ggml.tokens": [*TOKENS, "x"]}, "tokenizer.ggml.tokens: 265 tokens, llama.vocab_size=264"),
        ({"tokenizer.ggml.eos_token_id": 5000}, "tokenizer.ggml.eos_token_id=5000: must be below 264"),
    ],
)
def test_other_models_are_refused(tmp_path, metadata, message):
    LlamaFile(metadata=metadata).write(tmp_path / "a.gguf")
    with pytest.raises(CheckpointError, match=message):
        convert_gguf(tmp_path / "a.gguf", tmp_path / "out")
    assert [file.name for file in tmp_path.iterdir()] == ["a.gguf"]


def test_missing_and_unknown_tensors_are_named(tmp_path):
    extra = {"rope_freqs.weight": np.ones(16, np.float32), "blk.1.attn_q.bias": np.ones(96, np.float32)}
    LlamaFile(without=["blk.1.ffn_gate.weight"], extra=extra).write(tmp_path / "a.gguf")
    with pytest.raises(CheckpointError) as caught:
        convert_gguf(tmp_path / "a.gguf", tmp_path / "out")
    for fault in (
        "blk.1.ffn_gate.weight is missing",
        "rope_freqs.weight is not part of a plain llama model",
        "blk.1.attn_q.bias is not part of a plain llama model",
    ):
        assert fault in str(caught.value)


def test_a_quantisation_that_cannot_be_undone_is_refused_with_the_tensor(tmp_path, monkeypatch):
    LlamaFile(kinds={"ffn_up.weight": "Q8_0"}).write(tmp_path / "a.gguf")
    monkeypatch.delitem(gguf.quants._type_traits, gguf.GGMLQuantizationType.Q8_0)
    with pytest.raises(CheckpointError, match=r"tensor blk.0.ffn_up.weight: .*Q8_0"):
        convert_gguf(tmp_path / "a.gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_that_ends_early_is_refused_with_the_tensor(tmp_path):
    LlamaFile().write(tmp_path / "a.gguf")
    content = (tmp_path / "a.gguf").read_bytes()
    (tmp_path / "a.gguf").write_bytes(content[:-200])  # 96 fp32 of output_norm and its padding
    with pytest.raises(CheckpointError, match=r"is truncated: tensor output_norm\.weight ends at byte"):
        convert_gguf(tmp_path / "a.gguf", tmp_path / "out")


def test_a_file_cut_anywhere_is_refused(tmp_path):
    LlamaFile(hidden=32, heads=1, head_dim=32, inner=32, layers=1).write(tmp_path / "a.gguf")
    content = (tmp_path / "a.gguf").read_bytes()
    for length in [*range(0, 64), *range(64, len(content), 2999), len(content) - 1]:
        (tmp_path / "cut.gguf").write_bytes(content[:length])
        with pytest.raises(CheckpointError, match=r"cut\.gguf is (damaged, )?truncated"):
            convert_gguf(tmp_path / "cut.gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_no_gguf_file_is_refused(tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"PK" + bytes(range(250)))
    with pytest.raises(CheckpointError, match="not a GGUF file: GGUF magic invalid"):
        convert_gguf(tmp_path / "a.gguf", tmp_path / "out")
    with pytest.raises(CheckpointError, match="is missing"):
        convert_gguf(tmp_path / "b.gguf", tmp_path / "out")
    LlamaFile().write(tmp_path / "c.gguf", big_endian=True)
    with pytest.raises(CheckpointError, match="other byte order"):
        convert_gguf(tmp_path / "c.gguf", tmp_path / "out")


def test_bad_arguments(tmp_path):
    LlamaFile().write(tmp_path / "a.gguf")
    with pytest.raises(ConfigError, match="dtype='int8': must be one of float32, bfloat16, float16"):
        convert_gguf(tmp_path / "a.gguf", tmp_path / "out", dtype="int8")
    with pytest.raises(CheckpointError, match=r"without config\.json"):
        convert_gguf(tmp_path / "a.gguf", tmp_path)


def test_without_the_library_the_extra_is_named(tmp_path, monkeypatch):
    LlamaFile().write(tmp_path / "a.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(CheckpointError, match=r"pip install 'arcforge-core\[gguf\]'"):
        convert_gguf(tmp_path / "a.gguf", tmp_path / "out")


@pytest.mark.parametrize(("split", "number"), [("smollm", ["1", "2"]), ("gpt-2", ["12"])])
def test_tokenizer(tmp_path, split, number):
    LlamaFile(metadata={"tokenizer.ggml.pre": split}).write(tmp_path / "a.gguf")
    tokenizer = Tokenizer.load(convert_gguf(tmp_path / "a.gguf", tmp_path / "out"))
    ids = tokenizer.encode("<|im_start|>the the12é", allow_special=True)
    assert [TOKENS[i] for i in ids] == ["<|im_start|>", "t", "he", "Ġthe", *number, "Ã", "©"]
    assert tokenizer.decode(ids) == "<|im_start|>the the12é"
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.vocab_size) == (1, 2, len(TOKENS))
    assert tokenizer.special == {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2}


def test_user_defined_tokens_are_whole_but_not_special(tmp_path):
    tokens = [*TOKENS[:-1], "<tool_call>"]
    types = [3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL) - 1) + [4]
    metadata = {"tokens": tokens, "token_type": types, "merges": MERGES[:-1]}
    LlamaFile(metadata={f"tokenizer.ggml.{key}": value for key, value in metadata.items()}).write(tmp_path / "a.gguf")
    out = convert_gguf(tmp_path / "a.gguf", tmp_path / "out")
    assert Tokenizer.load(out).encode("he<tool_call>", allow_special=True) == [TOKENS.index("he"), 263]
    added = {t["content"]: t["special"] for t in json.loads((out / "tokenizer.json").read_text())["added_tokens"]}
    assert added["<tool_call>"] is False and added["<|im_end|>"] is True


@pytest.mark.slow(reason="imports transformers")
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_transformers_computes_the_same(tmp_path, model):
    """The converted folder against a model that is filled with the weights before they were permuted."""
    transformers = pytest.importorskip("transformers")
    expected = {name: torch.tensor(weight) for name, weight in model.write(tmp_path / "a.gguf").items()}
    folder = convert_gguf(tmp_path / "a.gguf", tmp_path / "out", dtype="float32")
    loaded, info = transformers.LlamaForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values())
    config = transformers.LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=model.hidden,
        intermediate_size=model.inner,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.kv_heads,
        head_dim=model.head_dim,
        max_position_embeddings=128,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
        tie_word_embeddings=model.tied,
    )
    reference = transformers.LlamaForCausalLM(config).eval()
    reference.load_state_dict(expected, strict=False)
    reference.tie_weights()
    ids_BS = torch.randint(len(TOKENS), (2, 40))
    with torch.no_grad():
        torch.testing.assert_close(loaded.eval()(ids_BS).logits, reference(ids_BS).logits, rtol=0, atol=1e-6)


@pytest.mark.slow(reason="imports transformers")
def test_transformers_reads_the_same_tokenizer(tmp_path):
    transformers = pytest.importorskip("transformers")
    LlamaFile().write(tmp_path / "a.gguf")
    ours = convert_gguf(tmp_path / "a.gguf", tmp_path / "out")
    loaded = transformers.AutoTokenizer.from_pretrained(ours)
    text = "<|im_start|>the the 12  a\n\n  the é<|im_end|>"
    assert loaded(text).input_ids == Tokenizer.load(ours).encode(text, allow_special=True)
    assert loaded.apply_chat_template([{"role": "user", "content": "the"}], tokenize=False) == "user: the"
    assert (loaded.bos_token, loaded.eos_token, loaded.pad_token, loaded.unk_token) == (
        "<|im_start|>",
        "<|im_end|>",
        "<|im_end|>",
        "<|endoftext|>",
    )
    assert loaded.model_max_length == 128
