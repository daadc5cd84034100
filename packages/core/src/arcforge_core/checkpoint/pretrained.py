"""A model as a Hugging Face directory: config.json, model.safetensors, tokenizer.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

import arcforge_core
from arcforge_core.checkpoint.atomic import previous, replacing
from arcforge_core.config.schema import AttentionConfig, ModelConfig
from arcforge_core.config.validate import explain
from arcforge_core.errors import CheckpointError, ConfigError, UnknownComponentError, nearest
from arcforge_core.model.build import build_model
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.model.meta import meta_device
from arcforge_core.ops.dispatch import Ops
from arcforge_core.registry import registry

if TYPE_CHECKING:
    from arcforge_core.contracts.hardware import Hardware
    from arcforge_core.data.tokenizer import Tokenizer

CONFIG, WEIGHTS = "config.json", "model.safetensors"
FIELDS = ("model_type", "architectures", "arcforge_version", "model", "attention")

C = TypeVar("C")


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
    config = {
        "model_type": "arcforge",
        "architectures": [type(model).__name__],
        "arcforge_version": arcforge_core.__version__,
        "model": asdict(model.config),
        "attention": asdict(model.attention),
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    try:
        save_file(state_of(model), folder / WEIGHTS, metadata={"format": "pt"})
    except SafetensorError as error:  # an OSError that lost its type on the way through Rust
        raise OSError(str(error)) from error
    if tokenizer is not None:
        tokenizer.save(folder)


def load_pretrained(directory: str | Path, dtype: torch.dtype | None = None, ops: Ops | None = None) -> CausalLM:
    """Loads a model in eval mode.

    Args:
        directory: what `save_pretrained` wrote.
        dtype: dtype of the parameters; None keeps the stored ones. Buffers (the router bias) always keep theirs.
        ops: where kernels come from; `default_ops()` when None.

    Raises:
        CheckpointError: the folder is missing, damaged, of another model type, or needs a component that is not
            installed (its wheel is named).
    """
    directory = Path(directory)
    config, attention = read_config(directory)
    try:
        with meta_device():
            model = build_model(config, attention, ops)
    except ConfigError as error:
        raise CheckpointError(f"{directory / CONFIG}: {error}") from error
    state = read_weights(model, directory)
    cast_to = {name: dtype for name, _ in model.named_parameters() if dtype is not None}
    # copies, because tensors of the file are mapped, and aligned as the file has them: kernels would round otherwise
    state = {name: t.to(cast_to.get(name, t.dtype), copy=True) for name, t in state.items()}
    model.load_state_dict(state, strict=False, assign=True)  # check_state was stricter; a tied head is absent
    if config.tie_word_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight
    lost = [name for name, buffer in model.named_buffers() if buffer.is_meta]
    if lost:
        raise CheckpointError(f"attention {attention.name!r} keeps {', '.join(lost)} out of its state dict")
    model.bind_ops()
    return model.eval()


def read_weights(model: CausalLM, directory: Path) -> dict[str, Tensor]:
    """Reads the state dict stored in `directory`.

    Raises:
        CheckpointError: the file is missing or damaged, or its tensors do not fit `model`.
    """
    path = directory / WEIGHTS
    if not path.is_file():
        raise CheckpointError(f"{path} is missing")
    try:
        state = load_file(path)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is damaged or incomplete: {error}") from error
    check_state(model, state, str(path))
    return state


def load_weights(model: CausalLM, directory: str | Path) -> None:
    """Copies a checkpoint's weights into a model that exists; its dtypes and devices stay.

    Raises:
        CheckpointError: the weights are missing, damaged or do not fit; the model is as before.
    """
    model.load_state_dict(read_weights(model, Path(directory)), strict=False)  # a tied head is stored once


def find_checkpoint(path: str | Path) -> Path:
    """Returns `path` when it holds a model, else the last checkpoint of the run at `path` (``outputs/latest``).

    Raises:
        CheckpointError: it is neither.
    """
    path = Path(path)
    if (path / CONFIG).is_file():
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


def state_of(model: CausalLM) -> dict[str, Tensor]:
    """Returns the state dict with a tied head stored once, under the embedding's name."""
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del state["lm_head.weight"]
    return state


def check_state(model: CausalLM, state: Mapping[str, Tensor], where: str) -> None:
    """Raises `CheckpointError` that names missing, unknown and mis-shaped tensors; `where` names the source."""
    wanted = state_of(model)
    faults = [f"{name} is missing" for name in wanted.keys() - state.keys()]
    faults += [f"{name} is not part of the model" for name in state.keys() - wanted.keys()]
    for name in wanted.keys() & state.keys():
        if state[name].shape != wanted[name].shape:
            faults.append(f"{name} is {list(state[name].shape)}, the model's is {list(wanted[name].shape)}")
    if faults:
        rest = f"; and {len(faults) - 8} more" if len(faults) > 8 else ""
        raise CheckpointError(f"{where} does not fit the model: {'; '.join(sorted(faults)[:8])}{rest}")


def read_config(directory: Path) -> tuple[ModelConfig, AttentionConfig]:
    """Reads and checks config.json."""
    path = directory / CONFIG
    if not path.is_file():
        old = previous(directory.resolve())
        hint = f"; an interrupted save left the previous checkpoint in {old}" if old.is_dir() else ""
        raise CheckpointError(f"{path} is missing{hint}")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}") from error
    kind = config.get("model_type") if isinstance(config, dict) else None
    if kind != "arcforge":
        raise CheckpointError(f"{path}: model_type={kind!r} cannot be loaded, only 'arcforge'")
    where = f"{path}, written by arcforge {config.get('arcforge_version')}"
    _refuse_unknown(config, FIELDS, "", where)
    attention = config.get("attention")
    name = attention.get("name") if isinstance(attention, dict) else None
    try:
        schema = registry().get("attention", str(name)).load_schema()
    except UnknownComponentError as error:
        raise CheckpointError(f"{where}: {error}") from error
    return _typed(ModelConfig, config.get("model"), "model", where), _typed(schema, attention, "attention", where)


def _typed(schema: type[C], values: object, section: str, where: str) -> C:
    """Makes a config dataclass of plain values; names what does not fit."""
    if not isinstance(values, dict):
        raise CheckpointError(f"{where}: the section {section!r} is missing")
    _refuse_unknown(values, list(OmegaConf.structured(schema)), f"{section}.", where)
    try:
        return cast(C, OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), values)))
    except OmegaConfBaseException as error:
        raise CheckpointError(f"{where}: {section}: {explain(error)}") from error
    except ConfigError as error:
        raise CheckpointError(f"{where}: {error}") from error


def _refuse_unknown(values: Mapping[str, Any], known: Any, prefix: str, where: str) -> None:
    for name in values:
        if name not in known:
            raise CheckpointError(f"{where}: unknown field {prefix}{name}{nearest(name, known)}")
