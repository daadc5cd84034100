"""Typed configuration read from a checkpoint's config.json."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from arcforge_core.config.schema import AttentionConfig, ModelConfig
from arcforge_core.config.validate import explain
from arcforge_core.errors import CheckpointError, ConfigError, UnknownComponentError, nearest
from arcforge_core.files.atomic import previous
from arcforge_core.files.find import CONFIG
from arcforge_core.model.build import build_model
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.model.meta import meta_device
from arcforge_core.ops.dispatch import Ops
from arcforge_core.plugins.loader import registry

C = TypeVar("C")
DESCRIPTION = "quant_model_description.json"
"""Names the kind of every tensor in a checkpoint quantised for Ascend."""


def read_json(directory: Path) -> dict[str, Any]:
    """Returns the contents of config.json.

    In a directory that msModelSlim quantised they do not say so: ``quantization_config`` is added.

    Raises:
        CheckpointError: it is missing or not a JSON object.
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
        raise CheckpointError(f"{path} must contain a JSON object")
    if (directory / DESCRIPTION).is_file():
        config.setdefault("quantization_config", {"quant_method": "ascend", "description": DESCRIPTION})
    return config


def typed(schema: type[C], values: object, section: str, where: str) -> C:
    """Builds a config dataclass from plain values; names invalid fields."""
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
    """Builds the config of the attention named in `values`."""
    name = values.get("name") if isinstance(values, dict) else None
    try:
        schema: type[AttentionConfig] = registry().get("attention", str(name)).load_schema()
    except UnknownComponentError as error:
        raise CheckpointError(f"{where}: {error}") from error
    if not isinstance(values, dict) or not isinstance(values.get("kinds"), dict):
        return typed(schema, values, "attention", where)
    # variants inside a pattern have their own classes, which a merge would not know
    kinds = {letter: typed_attention(kind, where) for letter, kind in values["kinds"].items()}
    return typed(schema, {**values, "kinds": kinds}, "attention", where)


def refuse_unknown(values: Mapping[str, Any], known: Iterable[str], prefix: str, where: str) -> None:
    """Raises `CheckpointError` for a field that is not known."""
    known = list(known)
    for name in values:
        if name not in known:
            raise CheckpointError(f"{where}: unknown field {prefix}{name}{nearest(name, known)}")


def meta_model(config: ModelConfig, attention: AttentionConfig, where: str, ops: Ops | None = None) -> CausalLM:
    """Builds the model on the meta device, with reference ops by default; invalid sizes raise `CheckpointError`."""
    try:
        with meta_device():
            return build_model(config, attention, ops or Ops(None))
    except ConfigError as error:
        raise CheckpointError(f"{where}: {error}") from error
