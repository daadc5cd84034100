"""The RoPE fields of config.json: ``rope_parameters`` (transformers 5), or ``rope_theta`` and ``rope_scaling``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from arcforge_core.config.schema import ModelConfig, RopeScalingConfig
from arcforge_core.errors import ConfigError, nearest

DEFAULT_THETA = 10_000.0

USED = {
    "default": (),
    "llama3": ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
    "yarn": (
        "factor", "original_max_position_embeddings", "beta_slow", "beta_fast", "attention_factor", "mscale",
        "mscale_all_dim",
    ),
}  # fmt: skip
"""Fields of `RopeScalingConfig` that each type reads."""


def parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters from either place.

    Raises:
        ConfigError: they differ between types of layers.
    """
    found = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    nested = [name for name, value in found.items() if isinstance(value, Mapping)]
    if nested:
        raise ConfigError("rope_parameters", nested, "must be the same for all layers")
    return found


def read_rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns ``rope_theta`` and ``rope_scaling`` of the model section.

    Raises:
        ConfigError: an unsupported type of scaling, or option of it.
    """
    found = parameters(config)
    kind = found.get("rope_type", found.get("type", "default"))
    if kind not in USED:
        raise ConfigError("rope_parameters.rope_type", kind, f"must be one of {', '.join(USED)}{nearest(kind, USED)}")
    if kind == "yarn" and not found.get("truncate", True):
        raise ConfigError("rope_parameters.truncate", False, "must be true with yarn")
    scaling = {name: found[name] for name in USED[kind] if found.get(name) is not None}
    if kind != "default":
        scaling.setdefault("original_max_position_embeddings", config.get("max_position_embeddings"))
        scaling.setdefault("factor", config["max_position_embeddings"] / scaling["original_max_position_embeddings"])
    values = {f.name: f.default for f in fields(RopeScalingConfig)} | {"type": kind} | scaling
    theta = found.get("rope_theta") or config.get("rope_theta") or DEFAULT_THETA
    return {"rope_theta": theta, "rope_scaling": values}


def partial_rotary_factor(config: Mapping[str, Any], default: float) -> float:
    """Returns the share of a head that is rotated."""
    factor: float = parameters(config).get("partial_rotary_factor", config.get("partial_rotary_factor", default))
    return factor


def refuse_partial(config: Mapping[str, Any]) -> None:
    """Raises `ConfigError` for an architecture that rotates whole heads, or all of MLA's rotary part."""
    factor = partial_rotary_factor(config, 1.0)
    if factor != 1.0:
        raise ConfigError("partial_rotary_factor", factor, "must be 1 for this architecture")


def write_rope(model: ModelConfig) -> dict[str, Any]:
    """Returns the fields of config.json; ``rope_theta`` is repeated at top level, where older readers expect it."""
    scaling = model.rope_scaling
    used = {name: asdict(scaling)[name] for name in USED[scaling.type]}
    written = {name: value for name, value in used.items() if value is not None}
    found = {"rope_type": scaling.type, "rope_theta": model.rope_theta, **written}
    return {"rope_theta": model.rope_theta, "rope_parameters": found}
