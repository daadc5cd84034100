"""Small llama models as GGUF files, with random weights and a byte-level tokenizer. Needs `gguf`.

Shapes: N rows of a query or key projection = heads * head size, E hidden size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import pre_tokenizers

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "Ġ t", "Ġt he", "1 2", "Ġ Ġ"]
TOKENS = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES)]

Array = NDArray[np.float32]


@dataclass
class LlamaFile:
    """A llama model in GGUF.

    Attributes:
        kinds: end of a tensor's GGUF name -> its quantisation, e.g. ``{"attn_q.weight": "Q4_1"}``; others are F32.
        metadata: keys that replace or extend the usual ones; None leaves a key out.
        without: GGUF names of tensors that are left out.
        extra: further tensors by GGUF name.
    """

    hidden: int = 96
    heads: int = 3
    kv_heads: int = 1
    head_dim: int = 32
    inner: int = 64
    layers: int = 2
    tied: bool = True
    kinds: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    without: Iterable[str] = ()
    extra: Mapping[str, Array] = field(default_factory=dict)

    def write(self, path: Path, seed: int = 0, big_endian: bool = False) -> dict[str, Array]:
        """Writes the file.

        Returns:
            Hugging Face's name -> fp32 weight, as it is after quantisation.
        """
        import gguf

        endianness = gguf.GGUFEndian.BIG if big_endian else gguf.GGUFEndian.LITTLE
        architecture = self.metadata.get("general.architecture", "llama")
        writer = gguf.GGUFWriter(path, architecture, endianess=endianness)
        for key, value in {**self._usual_metadata(), **self.metadata}.items():
            if value is not None and key != "general.architecture":
                _add(writer, key, value)
        state = {}
        for name, (hf_name, weight) in self._weights(np.random.default_rng(seed)).items():
            kind = next((kind for end, kind in self.kinds.items() if name.endswith(end)), "F32")
            qtype = gguf.GGMLQuantizationType[kind]
            state[hf_name] = gguf.dequantize(gguf.quantize(weight, qtype), qtype)
            heads = {"attn_q.weight": self.heads, "attn_k.weight": self.kv_heads}.get(name.split(".", 2)[-1])
            stored = weight if heads is None else interleave_rope_halves(weight, heads)
            if name not in self.without:
                writer.add_tensor(name, gguf.quantize(stored, qtype), raw_dtype=qtype)
        for name, weight in self.extra.items():
            writer.add_tensor(name, weight)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return state

    def _usual_metadata(self) -> dict[str, Any]:
        return {
            "llama.context_length": 128,
            "llama.embedding_length": self.hidden,
            "llama.block_count": self.layers,
            "llama.feed_forward_length": self.inner,
            "llama.attention.head_count": self.heads,
            "llama.attention.head_count_kv": self.kv_heads,
            "llama.attention.key_length": self.head_dim,
            "llama.attention.value_length": self.head_dim,
            "llama.attention.layer_norm_rms_epsilon": 1e-5,
            "llama.rope.freq_base": 5000.0,
            "llama.rope.dimension_count": self.head_dim,
            "llama.vocab_size": len(TOKENS),
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "smollm",
            "tokenizer.ggml.tokens": TOKENS,
            "tokenizer.ggml.token_type": [3 if token in SPECIAL else 1 for token in TOKENS],
            "tokenizer.ggml.merges": MERGES,
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.padding_token_id": 2,
            "tokenizer.ggml.unknown_token_id": 0,
            "tokenizer.chat_template": "{% for m in messages %}{{ m['role'] + ': ' + m['content'] }}{% endfor %}",
        }

    def _weights(self, random: np.random.Generator) -> dict[str, tuple[str, Array]]:
        """Returns GGUF's name -> Hugging Face's name and the weight in Hugging Face's row order."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim

        def normal(*shape: int) -> Array:
            values: Array = random.standard_normal(shape).astype(np.float32)
            return values / np.float32(shape[-1] ** 0.5)

        def norm() -> Array:
            return 1 + normal(self.hidden)

        weights = {"token_embd.weight": ("model.embed_tokens.weight", normal(len(TOKENS), self.hidden))}
        for i in range(self.layers):
            layer = f"model.layers.{i}"
            weights |= {
                f"blk.{i}.attn_norm.weight": (f"{layer}.input_layernorm.weight", norm()),
                f"blk.{i}.attn_q.weight": (f"{layer}.self_attn.q_proj.weight", normal(queries, self.hidden)),
                f"blk.{i}.attn_k.weight": (f"{layer}.self_attn.k_proj.weight", normal(keys, self.hidden)),
                f"blk.{i}.attn_v.weight": (f"{layer}.self_attn.v_proj.weight", normal(keys, self.hidden)),
                f"blk.{i}.attn_output.weight": (f"{layer}.self_attn.o_proj.weight", normal(self.hidden, queries)),
                f"blk.{i}.ffn_norm.weight": (f"{layer}.post_attention_layernorm.weight", norm()),
                f"blk.{i}.ffn_gate.weight": (f"{layer}.mlp.gate_proj.weight", normal(self.inner, self.hidden)),
                f"blk.{i}.ffn_up.weight": (f"{layer}.mlp.up_proj.weight", normal(self.inner, self.hidden)),
                f"blk.{i}.ffn_down.weight": (f"{layer}.mlp.down_proj.weight", normal(self.hidden, self.inner)),
            }
        weights["output_norm.weight"] = ("model.norm.weight", norm())
        if not self.tied:
            weights["output.weight"] = ("lm_head.weight", normal(len(TOKENS), self.hidden))
        return weights


def interleave_rope_halves(weight_NE: Array, heads: int) -> Array:
    """Returns the rows in GGUF's order: of each head, row i of the first half, then row i of the second."""
    rows = np.split(weight_NE, heads)
    half = len(rows[0]) // 2
    return np.concatenate([head[[i // 2 + (i % 2) * half for i in range(2 * half)]] for head in rows])


def _add(writer: Any, key: str, value: Any) -> None:
    adders = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    adders.get(type(value), writer.add_array)(key, value)
