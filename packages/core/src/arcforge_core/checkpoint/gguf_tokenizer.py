"""The tokenizer in the metadata of a GGUF file, as Hugging Face's ``tokenizer.json``."""

from __future__ import annotations

from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from arcforge_core.checkpoint.gguf_file import Metadata
from arcforge_core.data.tokenizer import Tokenizer
from arcforge_core.errors import CheckpointError

DIGITS = pre_tokenizers.Digits(individual_digits=True)
PRE_TOKENIZERS = {"gpt-2": (), "smollm": (DIGITS,)}
"""``tokenizer.ggml.pre`` -> what comes before GPT-2's split into words. transformers 5.23 reads a GGUF's ``smollm``
as ``gpt-2``: with several white-space characters before a digit, and with numerals other than digits, it gives other
ids than the model was trained on (on such texts 1.054 bits per byte instead of 1.040)."""

CONTROL, USER_DEFINED = 3, 4
"""Values of ``tokenizer.ggml.token_type`` that are matched whole before the text is split; 3 is special too."""


def read_tokenizer(metadata: Metadata) -> Tokenizer:
    """Builds the byte-level BPE that a file describes, with its special tokens and chat template.

    Raises:
        CheckpointError: it is not byte-level BPE, splits text in an unknown way, or its parts do not fit together.
    """
    where = metadata.path
    kind = metadata.get("tokenizer.ggml.model", str)
    if kind != "gpt2":
        raise CheckpointError(f"{where}: tokenizer.ggml.model={kind!r} cannot be read, only 'gpt2' (byte-level BPE)")
    split = metadata.get("tokenizer.ggml.pre", str)
    if split not in PRE_TOKENIZERS:
        accepted = " and ".join(map(repr, PRE_TOKENIZERS))
        raise CheckpointError(f"{where}: tokenizer.ggml.pre={split!r} cannot be read, only {accepted}")
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
    except Exception as error:  # tokenizers raises bare Exception, e.g. for a merge of tokens that are not there
        raise CheckpointError(f"{where}: its tokenizer cannot be built: {error}") from error


def _settings(metadata: Metadata, tokens: list[str]) -> dict[str, Any]:
    """Returns the content of tokenizer_config.json."""
    settings: dict[str, Any] = {
        "model_max_length": metadata.count("llama.context_length"),
        "add_bos_token": metadata.get("tokenizer.ggml.add_bos_token", bool, False),
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        key = f"tokenizer.ggml.{key}_token_id"
        if key in metadata.values:
            id_ = metadata.get(key, int)
            if not 0 <= id_ < len(tokens):
                raise CheckpointError(f"{metadata.path}: {key}={id_}: there are {len(tokens)} tokens")
            settings[f"{name}_token"] = tokens[id_]
    if "tokenizer.chat_template" in metadata.values:
        settings["chat_template"] = metadata.get("tokenizer.chat_template", str)
    return settings
