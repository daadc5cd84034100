"""arcforge optim: Muon, Muon Split, AdamW and schedules, built from parameter roles.

Importing this package stays cheap; torch is imported when an optimizer is built.
"""

from __future__ import annotations

from dataclasses import fields as dataclass_fields
from typing import TYPE_CHECKING, Any

from arcforge_core import __version__

if TYPE_CHECKING:
    from torch import nn, optim

__all__ = ["__version__", "build_optimizer"]


def build_optimizer(name: str, model: nn.Module, **fields: Any) -> optim.Optimizer:
    """Builds a registered optimizer for a model, by the roles of its parameters.

    Args:
        name: an optimizer component, e.g. ``muon_split``.
        model: its parameters' roles come from `arcforge_core.contracts.optimizer.collect_roles`.
        **fields: fields of the component's config, e.g. ``lr=2e-3``.

    Raises:
        UnknownComponentError: no installed package provides the optimizer.
        ConfigError: an unknown field, or an invalid value.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import ValidationError

    from arcforge_core.contracts.optimizer import collect_roles
    from arcforge_core.errors import ConfigError, nearest
    from arcforge_core.plugins.loader import registry

    component = registry().get("optimizer", name)
    schema = component.load_schema()
    known = [field.name for field in dataclass_fields(schema) if field.name != "name"]
    for field in fields.keys() - set(known):
        accepted = f"must be a field of {name}: {', '.join(known)}{nearest(field, known)}"
        raise ConfigError(f"optimizer.{field}", fields[field], accepted)
    try:
        config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), fields))
    except ValidationError as error:
        field = str(error.full_key)
        raise ConfigError(f"optimizer.{field}", fields.get(field), str(error.msg)) from error
    optimizer: optim.Optimizer = component.load()(config, collect_roles(model))
    return optimizer
