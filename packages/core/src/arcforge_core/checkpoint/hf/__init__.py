"""Imports and exports Hugging Face checkpoints: architectures of transformers, with equal logits (spec 1.7)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from arcforge_core.checkpoint.hf.folder import ARCHITECTURES, write_hf
from arcforge_core.checkpoint.shards import SHARD_BYTES
from arcforge_core.files.atomic import replacing
from arcforge_core.files.find import CONFIG
from arcforge_core.model.adapt.state import state_of
from arcforge_core.model.causal_lm import CausalLM

if TYPE_CHECKING:
    from arcforge_core.tokenizer.tokenizer import Tokenizer

__all__ = ["ARCHITECTURES", "export_hf", "import_hf"]


def export_hf(
    model: CausalLM,
    directory: str | Path,
    architecture: str | None = None,
    tokenizer: Tokenizer | Path | None = None,
    max_shard_bytes: int = SHARD_BYTES,
) -> None:
    """Writes a directory that transformers opens, atomically.

    MTP tensors are written as layer ``num_hidden_layers``, as releases do; transformers skips them.

    Args:
        model: any dtype.
        directory: target; an existing checkpoint is replaced.
        architecture: a name in `ARCHITECTURES`; chosen from the attention when None.
        tokenizer: a tokenizer, or a directory whose tokenizer files and chat template are copied.
        max_shard_bytes: maximum size of a file.

    Raises:
        CheckpointError: an unknown architecture, one for another attention, or a directory that cannot be written.
        ConfigError: a field that the architecture cannot express.
    """
    with replacing(directory, marker=CONFIG) as folder:
        write_hf(
            folder, model.config, model.attention, state_of(model),
            architecture=architecture, tokenizer=tokenizer, max_shard_bytes=max_shard_bytes,
        )  # fmt: skip


def import_hf(directory: str | Path, dtype: torch.dtype | None = None) -> CausalLM:
    """Loads, in eval mode, a directory of a released model or one written by transformers' ``save_pretrained``.

    Same as `load_pretrained`.
    """
    from arcforge_core.checkpoint.pretrained import load_pretrained

    return load_pretrained(directory, dtype)
