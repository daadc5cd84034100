"""Typed configuration out of a checkpoint's config.json, and what its tensors must look like."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor

from arcforge_core.checkpoint.atomic import previous
from arcforge_core.config.schema import AttentionConfig, ModelConfig
from arcforge_core.config.validate import explain
from arcforge_core.errors import CheckpointError, ConfigError, UnknownComponentError, nearest
from arcforge_core.model.build import build_model
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.model.lora import merged_state
from arcforge_core.model.meta import meta_device
from arcforge_core.ops.dispatch import Ops
from arcforge_core.registry import registry

CONFIG = "config.json"

C = TypeVar("C")


def read_json(directory: Path) -> dict[str, Any]:
    """Returns the content of config.json.

    Raises:
        CheckpointError: it is missing or no JSON object.
    """
    path = directory / CONFIG
    if not path.is_file():
        old = previous(directory.resolve())
        hint = f"; an interrupted save left the previous checkpoint in {old}" if old.is_dir() else ""
        raise CheckpointError(f"{path} is missing{hint}")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} does not hold a JSON object")
    return config


def typed(schema: type[C], values: object, section: str, where: str) -> C:
    """Makes a config dataclass of plain values; names what does not fit."""
    if not isinstance(values, dict):
        raise CheckpointError(f"{where}: the section {section!r} is missing")
    refuse_unknown(values, list(OmegaConf.structured(schema)), f"{section}.", where)
    try:
        return cast(C, OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), values)))
    except OmegaConfBaseException as error:
        raise CheckpointError(f"{where}: {section}: {explain(error)}") from error
    except ConfigError as error:
        raise CheckpointError(f"{where}: {error}") from error


def typed_attention(values: object, where: str) -> AttentionConfig:
    """Makes the config of the attention that `values` names."""
    name = values.get("name") if isinstance(values, dict) else None
    try:
        schema: type[AttentionConfig] = registry().get("attention", str(name)).load_schema()
    except UnknownComponentError as error:
        raise CheckpointError(f"{where}: {error}") from error
    if not isinstance(values, dict) or not isinstance(values.get("kinds"), dict):
        return typed(schema, values, "attention", where)
    # variants inside a pattern have classes of their own, which a merge would not know
    kinds = {letter: typed_attention(kind, where) for letter, kind in values["kinds"].items()}
    return typed(schema, {**values, "kinds": kinds}, "attention", where)


def refuse_unknown(values: Mapping[str, Any], known: Iterable[str], prefix: str, where: str) -> None:
    """Raises `CheckpointError` for a field that is not among the known ones."""
    known = list(known)
    for name in values:
        if name not in known:
            raise CheckpointError(f"{where}: unknown field {prefix}{name}{nearest(name, known)}")


def meta_model(config: ModelConfig, attention: AttentionConfig, where: str, ops: Ops | None = None) -> CausalLM:
    """Builds the model without memory, with the reference ops or others; a bad size is the checkpoint's fault."""
    try:
        with meta_device():
            return build_model(config, attention, ops or Ops(None))
    except ConfigError as error:
        raise CheckpointError(f"{where}: {error}") from error


def state_of(model: CausalLM) -> dict[str, Tensor]:
    """Returns the state dict with a tied head stored once, under the embedding's name, and adapters merged.

    Raises:
        CheckpointError: the model's weights were quantised: what they were is gone.
    """
    if model.quantised is not None:
        raise CheckpointError(f"a model with weights in {model.quantised.mode} cannot be saved: save the one it was")
    found = model.state_dict() if model.adapter is None else merged_state(model)
    state = {name: tensor.contiguous() for name, tensor in found.items()}
    if model.config.tie_word_embeddings:
        del state["lm_head.weight"]
    return state


def check_state(model: CausalLM, state: Mapping[str, Tensor], where: str) -> None:
    """Raises `CheckpointError` that names missing, unknown and mis-shaped tensors; `where` names the source."""
    if model.adapter is not None:
        raise CheckpointError(f"{where}: the model has adapters; its weights are replaced in one without")
    check_shapes(ordinary_shapes(model), {name: tensor.shape for name, tensor in state.items()}, where)


def ordinary_shapes(model: CausalLM) -> dict[str, torch.Size]:
    """Returns the shapes of a state dict that updates the model, whether it was quantised or not."""
    if model.quantised is not None:
        return dict(model.quantised.shapes)
    return {name: tensor.shape for name, tensor in state_of(model).items()}


def check_shapes(wanted: Mapping[str, torch.Size], found: Mapping[str, torch.Size], where: str) -> None:
    """As `check_state`, from the shapes alone."""
    faults = [f"{name} is missing" for name in wanted.keys() - found.keys()]
    faults += [f"{name} is not part of the model" for name in found.keys() - wanted.keys()]
    for name in wanted.keys() & found.keys():
        if found[name] != wanted[name]:
            faults.append(f"{name} is {list(found[name])}, the model's is {list(wanted[name])}")
    if faults:
        rest = f"; and {len(faults) - 8} more" if len(faults) > 8 else ""
        raise CheckpointError(f"{where} does not fit the model: {'; '.join(sorted(faults)[:8])}{rest}")
