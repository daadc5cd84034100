"""Converts a llama GGUF file to a Hugging Face directory.

The `gguf` library reads the file and dequantises it; names, head layout, configuration and tokenizer are converted
here. GGUF interleaves the two RoPE halves of a query or key head, row by row; Hugging Face stores one half after the
other.

Shapes: V vocabulary, E hidden size, Q and K rows of the query and the key projection (heads times head size),
I size of the feed-forward layer; N rows of any projection.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from arcforge_core.checkpoint.gguf_file import Metadata, open_gguf
from arcforge_core.checkpoint.gguf_tokenizer import read_tokenizer
from arcforge_core.checkpoint.shards import ShardWriter
from arcforge_core.console.progress import track
from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_core.files.atomic import replacing

if TYPE_CHECKING:
    from gguf import ReaderTensor

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

TENSORS = {
    "token_embd": ("model.embed_tokens", "VE"),
    "output_norm": ("model.norm", "E"),
    "output": ("lm_head", "VE"),
}
"""GGUF name -> Hugging Face name and shape."""
LAYER_TENSORS = {
    "attn_norm": ("input_layernorm", "E"),
    "attn_q": ("self_attn.q_proj", "QE"),
    "attn_k": ("self_attn.k_proj", "KE"),
    "attn_v": ("self_attn.v_proj", "KE"),
    "attn_output": ("self_attn.o_proj", "EQ"),
    "ffn_norm": ("post_attention_layernorm", "E"),
    "ffn_gate": ("mlp.gate_proj", "IE"),
    "ffn_up": ("mlp.up_proj", "IE"),
    "ffn_down": ("mlp.down_proj", "EI"),
}
"""The same, below ``blk.<layer>.`` and ``model.layers.<layer>.``."""

CHANGES_TO_LLAMA = ("expert_count", "rope.scaling.type", "attention.sliding_window")
"""Keys that, unless 0 or none, make the model differ from the plain llama."""


def convert_gguf(path: str | Path, directory: str | Path, dtype: str = "bfloat16") -> Path:
    """Writes config.json, generation_config.json, safetensors and the tokenizer's files, atomically.

    Args:
        path: a GGUF file of architecture ``llama``, in any quantisation that `gguf` can undo.
        directory: the directory to create, or to replace if it contains a checkpoint.
        dtype: dtype of the stored weights: float32, bfloat16 or float16.

    Returns:
        `directory`, which transformers reads as ``LlamaForCausalLM``.

    Raises:
        ConfigError: `dtype` is not one of the three.
        CheckpointError: `gguf` is not installed; the file is missing, truncated, of another architecture or has a
            tokenizer that is not byte-level BPE; a tensor is missing, unknown or mis-shaped; the directory contains
            something else or cannot be written.
    """
    if dtype not in DTYPES:
        raise ConfigError("dtype", dtype, f"must be one of {', '.join(DTYPES)}")
    path = Path(path)
    reader = open_gguf(path)
    metadata = Metadata.of(reader, path)
    config = llama_config(metadata, tied=all(tensor.name != "output.weight" for tensor in reader.tensors))
    names = _check_tensors(reader.tensors, config, path)
    tokenizer = read_tokenizer(metadata)
    with replacing(directory, marker="config.json") as folder:
        writer = ShardWriter(folder)
        for tensor in track(reader.tensors, f"converting the tensors of {path.name}"):
            writer.add(names[tensor.name], _dequantise(tensor, config, path).to(DTYPES[dtype]))
        writer.close()
        _write_json(folder / "config.json", {**config, "dtype": dtype})
        _write_json(folder / "generation_config.json", {k: v for k, v in config.items() if k.endswith("_token_id")})
        tokenizer.save(folder)
    return Path(directory)


def llama_config(metadata: Metadata, tied: bool) -> dict[str, Any]:
    """Returns the contents of config.json.

    Args:
        metadata: the file's metadata.
        tied: whether the output projection is the embedding.

    Raises:
        CheckpointError: another architecture, a variation that the plain llama does not have, or inconsistent
            sizes.
    """
    where = metadata.path
    architecture = metadata.get("general.architecture", str)
    if architecture != "llama":
        raise CheckpointError(f"{where}: general.architecture={architecture!r} must be 'llama'")
    for key in CHANGES_TO_LLAMA:
        if metadata.values.get(f"llama.{key}") not in (None, 0, "none"):
            raise CheckpointError(f"{where}: llama.{key}={metadata.values[f'llama.{key}']!r} is not supported")
    hidden, heads = metadata.count("llama.embedding_length"), metadata.count("llama.attention.head_count")
    kv_heads = metadata.count("llama.attention.head_count_kv", heads)
    head_dim = metadata.count("llama.attention.key_length", hidden // heads)
    for key in ("llama.attention.value_length", "llama.rope.dimension_count"):
        if metadata.count(key, head_dim) != head_dim:
            raise CheckpointError(f"{where}: {key}={metadata.values[key]}: must equal the head size {head_dim}")
    if head_dim % 2 or heads % kv_heads:
        raise CheckpointError(
            f"{where}: the head size {head_dim} must be even, and {heads} heads a multiple of {kv_heads} kv heads"
        )
    tokens = len(metadata.get("tokenizer.ggml.tokens", list))
    vocab_size = metadata.count("llama.vocab_size", tokens)
    if tokens > vocab_size:
        raise CheckpointError(f"{where}: tokenizer.ggml.tokens: {tokens} tokens, llama.vocab_size={vocab_size}")
    theta = _shortest(metadata.get("llama.rope.freq_base", float, 10000.0))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "intermediate_size": metadata.count("llama.feed_forward_length"),
        "num_hidden_layers": metadata.count("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "max_position_embeddings": metadata.count("llama.context_length"),
        "rms_norm_eps": _shortest(metadata.get("llama.attention.layer_norm_rms_epsilon", float)),
        "rope_theta": theta,  # read by transformers 4
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},  # read by transformers 5
        "tie_word_embeddings": tied,
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        if f"tokenizer.ggml.{key}_token_id" in metadata.values:
            config[f"{name}_token_id"] = metadata.get(f"tokenizer.ggml.{key}_token_id", int)
    return config


def _check_tensors(tensors: Iterable[ReaderTensor], config: Mapping[str, Any], path: Path) -> dict[str, str]:
    """Returns GGUF name -> Hugging Face name; raises `CheckpointError` that names mismatches with `config`."""
    sizes = {
        "V": config["vocab_size"],
        "E": config["hidden_size"],
        "Q": config["num_attention_heads"] * config["head_dim"],
        "K": config["num_key_value_heads"] * config["head_dim"],
        "I": config["intermediate_size"],
    }
    wanted = {f"{name}.weight": entry for name, entry in TENSORS.items()}
    if config["tie_word_embeddings"]:
        del wanted["output.weight"]
    for layer in range(config["num_hidden_layers"]):
        for name, (hf_name, shape) in LAYER_TENSORS.items():
            wanted[f"blk.{layer}.{name}.weight"] = (f"model.layers.{layer}.{hf_name}", shape)
    stored = {tensor.name: list(reversed(tensor.shape.tolist())) for tensor in tensors}
    faults = [f"{name} is not part of a plain llama model" for name in stored.keys() - wanted.keys()]
    faults += [f"{name} is missing" for name in wanted.keys() - stored.keys()]
    for name in wanted.keys() & stored.keys():
        shape_wanted = [sizes[letter] for letter in wanted[name][1]]
        if stored[name] != shape_wanted:
            faults.append(f"{name} is {stored[name]}, but the file's metadata require {shape_wanted}")
    if faults:
        rest = f"; and {len(faults) - 8} more" if len(faults) > 8 else ""
        raise CheckpointError(f"{path} does not match its own metadata: {'; '.join(sorted(faults)[:8])}{rest}")
    return {name: f"{hf_name}.weight" for name, (hf_name, _) in wanted.items()}


def _dequantise(tensor: ReaderTensor, config: Mapping[str, Any], path: Path) -> Tensor:
    """Returns a tensor in fp32 and in Hugging Face's row order."""
    import gguf

    try:
        weight = torch.from_numpy(np.array(gguf.dequantize(tensor.data, tensor.tensor_type)))
    except NotImplementedError as error:
        raise CheckpointError(f"{path}: tensor {tensor.name}: {error}") from error
    if tensor.name.endswith("attn_q.weight"):
        return split_rope_halves(weight, config["num_attention_heads"])
    if tensor.name.endswith("attn_k.weight"):
        return split_rope_halves(weight, config["num_key_value_heads"])
    return weight


def split_rope_halves(weight_NE: Tensor, heads: int) -> Tensor:
    """Returns the rows of each head in Hugging Face's order: GGUF's even ones, then its odd ones."""
    rows, width = weight_NE.shape
    return weight_NE.view(heads, rows // heads // 2, 2, width).transpose(1, 2).reshape(rows, width)


def _shortest(value: float) -> float:
    """Returns the original decimal: GGUF stores fp32, so 1e-05 is read as 9.99999975e-06."""
    return float(str(np.float32(value)))


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
