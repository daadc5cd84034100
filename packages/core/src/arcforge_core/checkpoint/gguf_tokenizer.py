"""The tokenizer in the metadata of a GGUF file, as Hugging Face's ``tokenizer.json``."""

from __future__ import annotations

from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from arcforge_core.checkpoint.gguf_file import Metadata
from arcforge_core.errors import CheckpointError
from arcforge_core.tokenizer.tokenizer import Tokenizer

DIGITS = pre_tokenizers.Digits(individual_digits=True)
PRE_TOKENIZERS = {"gpt-2": (), "smollm": (DIGITS,)}
"""``tokenizer.ggml.pre`` -> pre-tokenizers that precede GPT-2's split into words. transformers 5.23 reads a GGUF's
``smollm`` as ``gpt-2``: for several white-space characters before a digit, and for numerals other than digits, its ids
differ from those the model was trained on (1.054 instead of 1.040 bits per byte on such texts)."""

CONTROL, USER_DEFINED = 3, 4
"""Values of ``tokenizer.ggml.token_type`` that are matched whole before the text is split; 3 is special too."""


def read_tokenizer(metadata: Metadata) -> Tokenizer:
    """Builds the byte-level BPE of a file, with its special tokens and chat template.

    Raises:
        CheckpointError: it is not byte-level BPE, splits text in an unknown way, or its parts are inconsistent.
    """
    where = metadata.path
    kind = metadata.get("tokenizer.ggml.model", str)
    if kind != "gpt2":
        raise CheckpointError(f"{where}: tokenizer.ggml.model={kind!r} must be 'gpt2' (byte-level BPE)")
    split = metadata.get("tokenizer.ggml.pre", str)
    if split not in PRE_TOKENIZERS:
        accepted = " or ".join(map(repr, PRE_TOKENIZERS))
        raise CheckpointError(f"{where}: tokenizer.ggml.pre={split!r} must be {accepted}")
    tokens, types = metadata.get("tokenizer.ggml.tokens", list), metadata.get("tokenizer.ggml.token_type", list, [])
    merges = metadata.get("tokenizer.ggml.merges", list)
    whole = [
        AddedToken(token, special=type_ == CONTROL, normalized=False)
        for token, type_ in zip(tokens, types, strict=False)  # a file without types has no such tokens
        if type_ in (CONTROL, USER_DEFINED)
    ]
    settings = _settings(metadata, tokens)
    try:
        vocabulary = {token: id_ for id_, token in enumerate(tokens)}
        bpe = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[tuple(pair.split(" ")) for pair in merges]))
        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
        bpe.pre_tokenizer = pre_tokenizers.Sequence([*PRE_TOKENIZERS[split], byte_level])
        bpe.decoder = decoders.ByteLevel()
        bpe.add_tokens(whole)
        return Tokenizer(bpe.to_str(), settings)
    except Exception as error:  # tokenizers raises bare Exception, e.g. for a merge of missing tokens
        raise CheckpointError(f"{where}: its tokenizer cannot be built: {error}") from error


def _settings(metadata: Metadata, tokens: list[str]) -> dict[str, Any]:
    """Returns the contents of tokenizer_config.json."""
    settings: dict[str, Any] = {
        "model_max_length": metadata.count("llama.context_length"),
        "add_bos_token": metadata.get("tokenizer.ggml.add_bos_token", bool, False),
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        key = f"tokenizer.ggml.{key}_token_id"
        if key in metadata.values:
            id_ = metadata.get(key, int)
            if not 0 <= id_ < len(tokens):
                raise CheckpointError(
                    f"{metadata.path}: {key}={id_}: must be below {len(tokens)}, the number of tokens"
                )
            settings[f"{name}_token"] = tokens[id_]
    if "tokenizer.chat_template" in metadata.values:
        settings["chat_template"] = metadata.get("tokenizer.chat_template", str)
    return settings
