"""Critics and reward models on disk: a model's directory with the file ``scalar_head.safetensors``."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from arcforge_core.checkpoint.pretrained import load_pretrained, write_pretrained
from arcforge_core.checkpoint.shards import save_tensors
from arcforge_core.errors import CheckpointError
from arcforge_core.files.atomic import replacing
from arcforge_core.files.find import CONFIG
from arcforge_core.model.scalar import ScalarModel
from arcforge_core.ops.dispatch import Ops
from arcforge_core.tokenizer.tokenizer import Tokenizer

HEAD = "scalar_head.safetensors"


def save_scalar(model: ScalarModel, directory: str | Path, tokenizer: Tokenizer) -> None:
    """Writes the model with its head atomically; see `save_pretrained`."""
    with replacing(directory, marker=CONFIG) as folder:
        write_pretrained(model.model, folder, tokenizer)
        save_tensors({"weight": model.head.weight.data, "bias": model.head.bias.data}, folder / HEAD)


def load_scalar(directory: Path, ops: Ops | None = None) -> ScalarModel:
    """Loads a model in float32; without a head on disk its head is 0, as a new critic's.

    Raises:
        CheckpointError: a file is missing or damaged, or the head is of another width.
    """
    model = ScalarModel(load_pretrained(directory, torch.float32, ops))
    if (directory / HEAD).is_file():
        load_head(model, directory)
    return model


def load_head(model: ScalarModel, directory: Path) -> None:
    """Loads the head of a directory.

    Raises:
        CheckpointError: it is damaged, or of another width.
    """
    try:
        model.head.load_state_dict(load_file(directory / HEAD))
    except (SafetensorError, OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{directory / HEAD} is damaged or of another model: {reason}") from error
