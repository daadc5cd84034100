"""Weights of an update, read from a folder."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from arcforge_core.checkpoint.pretrained import find_checkpoint, open_checkpoint
from arcforge_core.errors import CheckpointError
from arcforge_core.model.causal_lm import CausalLM


def state_in(folder: str | Path, model: CausalLM) -> dict[str, Tensor]:
    """Returns the tensors of a checkpoint or run that has the sizes of a model.

    They are read only once: the bytes whose checksum is compared are those that are used, even if the files change.

    Raises:
        CheckpointError: the folder holds another model, or none.
    """
    checkpoint = open_checkpoint(find_checkpoint(folder))
    if (checkpoint.config, checkpoint.attention) != (model.config, model.attention):
        raise CheckpointError(f"{folder} holds a model of other sizes or attention")
    return {name: checkpoint.state[name].clone() for name in checkpoint.state.shapes}
