"""A model as a Hugging Face directory: config.json, safetensors, tokenizer.

`save_pretrained` writes our own words, which hold every setting of training too; `export_hf` in
`arcforge_core.checkpoint.hf` writes the architectures of transformers. `load_pretrained` reads both.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

import arcforge_core
from arcforge_core.checkpoint.adapter import adapted, check_base, is_adapter, load_adapter, read_adapter
from arcforge_core.checkpoint.atomic import replacing
from arcforge_core.checkpoint.hf.folder import OWN, open_hf
from arcforge_core.checkpoint.sections import (
    CONFIG,
    check_shapes,
    check_state,
    meta_model,
    read_json,
    refuse_unknown,
    state_of,
    typed,
    typed_attention,
)
from arcforge_core.checkpoint.shards import WEIGHTS, LazyState, ShardReader, save_tensors
from arcforge_core.config.schema import AttentionConfig, ModelConfig
from arcforge_core.errors import CheckpointError
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.ops.dispatch import Ops, default_ops

if TYPE_CHECKING:
    from arcforge_core.contracts.hardware import Hardware
    from arcforge_core.data.tokenizer import Tokenizer

__all__ = [
    "CONFIG", "WEIGHTS", "Checkpoint", "check_state", "find_checkpoint", "load_pretrained", "load_weights",
    "load_with_tokenizer", "open_checkpoint", "own_config", "save_pretrained", "state_of", "write_pretrained",
]  # fmt: skip

FIELDS = ("model_type", "architectures", "arcforge_version", "model", "attention")


@dataclass(frozen=True)
class Checkpoint:
    """A directory that was opened.

    Attributes:
        path: the directory.
        architecture: its ``model_type``; `OWN` for what `save_pretrained` wrote.
        config, attention: what it says the model is.
        state: its tensors, checked by name and shape.
    """

    path: Path
    architecture: str
    config: ModelConfig
    attention: AttentionConfig
    state: LazyState


def save_pretrained(model: CausalLM, directory: str | Path, tokenizer: Tokenizer | None = None) -> None:
    """Writes the model, all or nothing; a checkpoint that was there before stays until the new one is on disk.

    Raises:
        CheckpointError: the folder holds something else, or cannot be written (full disk, permissions).
    """
    with replacing(directory, marker=CONFIG) as folder:
        write_pretrained(model, folder, tokenizer)


def write_pretrained(model: CausalLM, folder: Path, tokenizer: Tokenizer | None = None) -> None:
    """Writes the model's files into a folder that exists, for callers that add files of their own to it.

    Raises:
        OSError: a file cannot be written; `replacing` turns it into a `CheckpointError`.
    """
    config = own_config(model.config, model.attention)
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_tensors(state_of(model), folder / WEIGHTS)
    if tokenizer is not None:
        tokenizer.save(folder)


def own_config(config: ModelConfig, attention: AttentionConfig) -> dict[str, object]:
    """Returns config.json in our own words."""
    return {
        "model_type": OWN,
        "architectures": [CausalLM.__name__],
        "arcforge_version": arcforge_core.__version__,
        "model": asdict(config),
        "attention": asdict(attention),
    }


def open_checkpoint(directory: str | Path, dtype: torch.dtype | None = None) -> Checkpoint:
    """Reads the configuration and checks the tensors' names and shapes; no tensor of a model is read yet.

    Args:
        directory: a model, or an adapter, which is its base with the adapter merged into it when read.
        dtype: that merged tensors are rounded to; None means the base's.

    Raises:
        CheckpointError: the folder is missing, damaged, of another model type, or needs a component that is not
            installed (its wheel is named); an adapter's base is not there or is another one.
    """
    directory = Path(directory)
    if is_adapter(directory):
        adapter = read_adapter(directory)
        check_base(adapter)
        base = open_checkpoint(adapter.base)
        return replace(base, path=directory, state=adapted(base.state, adapter, dtype))
    json_config = read_json(directory)
    if json_config.get("model_type") != OWN:
        return Checkpoint(directory, str(json_config.get("model_type")), *open_hf(directory, json_config))
    where = f"{directory / CONFIG}, written by arcforge {json_config.get('arcforge_version')}"
    refuse_unknown(json_config, FIELDS, "", where)
    config = typed(ModelConfig, json_config.get("model"), "model", where)
    attention = typed_attention(json_config.get("attention"), where)
    model, shards = meta_model(config, attention, str(directory / CONFIG)), ShardReader(directory)
    check_shapes({name: t.shape for name, t in state_of(model).items()}, shards.shapes, str(directory))
    return Checkpoint(directory, OWN, config, attention, shards)


def load_pretrained(directory: str | Path, dtype: torch.dtype | None = None, ops: Ops | None = None) -> CausalLM:
    """Loads a model in eval mode.

    Args:
        directory: what `save_pretrained` or `export_hf` wrote, or a directory of transformers, of an architecture in
            `arcforge_core.checkpoint.hf.ARCHITECTURES`.
        dtype: dtype of the parameters; None keeps the stored ones. Buffers (the router bias) stay float32.
        ops: where kernels come from; `default_ops()` when None.

    Raises:
        CheckpointError: as `open_checkpoint`.
    """
    checkpoint = open_checkpoint(directory, dtype)
    model = meta_model(checkpoint.config, checkpoint.attention, str(checkpoint.path / CONFIG), ops or default_ops())
    wanted = {name: buffer.dtype for name, buffer in model.named_buffers()}
    if dtype is not None:
        wanted |= {name: dtype for name, _ in model.named_parameters()}
    state = {}
    for name in checkpoint.state.shapes:
        tensor = checkpoint.state[name]
        # a copy, because a mapped tensor is aligned as the file has it, and kernels would round otherwise
        state[name] = tensor.to(wanted.get(name, tensor.dtype), copy=True)
    model.load_state_dict(state, strict=False, assign=True)  # open_checkpoint was stricter; a tied head is absent
    if model.config.tie_word_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight
    lost = [name for name, buffer in model.named_buffers() if buffer.is_meta]
    if lost:
        raise CheckpointError(f"attention {model.attention.name!r} keeps {', '.join(lost)} out of its state dict")
    model.bind_ops()
    return model.eval()


def load_weights(model: CausalLM, directory: str | Path) -> None:
    """Copies a checkpoint's weights into a model that exists; its dtypes and devices stay.

    A model with adapters takes those of a folder that `write_adapter` wrote; its frozen weights stay too.

    Raises:
        CheckpointError: the weights are missing, damaged or do not fit; the model is as before.
    """
    if model.adapter is not None:
        load_adapter(model, Path(directory))
        return
    state = open_checkpoint(directory).state
    check_shapes({name: t.shape for name, t in state_of(model).items()}, state.shapes, str(directory))
    loaded = {name: state[name] for name in state.shapes}
    model.load_state_dict(loaded, strict=False)  # a tied head is stored once


def find_checkpoint(path: str | Path) -> Path:
    """Returns `path` when it holds a model, else the last checkpoint of the run at `path` (``outputs/latest``).

    Raises:
        CheckpointError: it is neither.
    """
    path = Path(path)
    if (path / CONFIG).is_file() or is_adapter(path):
        return path
    found = sorted((path / "checkpoints").glob("step-*"))
    if not found:
        raise CheckpointError(f"checkpoint={path}: neither a model ({CONFIG}) nor a run with checkpoints")
    return found[-1]


def load_with_tokenizer(checkpoint: str | Path, hardware: Hardware) -> tuple[CausalLM, Tokenizer]:
    """Loads a model onto its device, and the tokenizer beside it.

    Args:
        checkpoint: see `find_checkpoint`.
        hardware: brings the kernels and the device.

    Raises:
        CheckpointError: as `load_pretrained`, or there is no tokenizer, or its ids exceed the model's vocabulary.
    """
    from arcforge_core.data.tokenizer import Tokenizer

    folder = find_checkpoint(checkpoint)
    if not (folder / "tokenizer.json").is_file():
        raise CheckpointError(f"{folder} has no tokenizer.json; save_pretrained(model, folder, tokenizer) writes it")
    tokenizer = Tokenizer.load(folder)
    model = load_pretrained(folder, ops=Ops(hardware)).to(hardware.device_type)
    if tokenizer.vocab_size > model.config.vocab_size:
        raise CheckpointError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} ids, the model {model.config.vocab_size}"
        )
    return model, tokenizer
