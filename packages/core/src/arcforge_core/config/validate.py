"""Converts a composed configuration to dataclasses, with the checks that OmegaConf lacks.

`OmegaConf.to_object` keeps a key that was added with ``+`` as an attribute that no code reads, and
``attention.name=dsa`` renames a component without changing its class; both are refused here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Any, cast, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, MissingMandatoryValue, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException, ValidationError

from arcforge_core.config.foreign import meant_by
from arcforge_core.config.renamed import renamed
from arcforge_core.config.schema import ComponentConfig
from arcforge_core.config.search_path import options
from arcforge_core.errors import ArcforgeError, ConfigError, nearest

Owners = dict[type[Any], list[tuple[str, str]]]
"""Schema class -> the (kind, name) pairs of the components that use it."""


def to_dataclass(config: DictConfig, owners: Owners) -> Any:
    """Converts and checks.

    Raises:
        ConfigError: an unknown field, a missing value, a `name` that does not belong to its class, or
            a value that a dataclass refuses in ``__post_init__``; names the full path of the field.
    """
    try:
        built = OmegaConf.to_object(config)
    except ConfigError as error:
        raise ConfigError(_full_path(config, error), error.value, error.accepted) from error
    except OmegaConfBaseException as error:
        raise explain(error) from error
    for path, node in walk(built):
        _refuse_strays(path, node)
        if isinstance(node, ComponentConfig):
            _check_name(path, node, owners)
    return built


def walk(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields every dataclass inside `value` with its dotted path, outermost first."""
    if dataclasses.is_dataclass(value):
        yield path, value
        children = vars(value).items()
    elif isinstance(value, dict):
        children = value.items()
    else:
        return
    for key, child in children:
        yield from walk(child, f"{path}.{key!s}".lstrip("."))


def _refuse_strays(path: str, node: Any) -> None:
    for name in vars(node):
        if name not in _names(node):
            raise UnknownFieldError(f"{path}.{name}".lstrip("."), type(node))


def _names(schema: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(schema)]


class UnknownFieldError(ConfigError):
    """A key that the section's dataclass does not have, with its new name or the nearest one."""

    def __init__(self, path: str, schema: type[Any]) -> None:
        known = _names(schema)
        name = path.rsplit(".", 1)[-1]
        section = path.rpartition(".")[0].rpartition(".")[2]
        meant = (meant_by(name, {f"{section}.{field}".lstrip(".") for field in known}) or "").rpartition(".")[2]
        hint = f"; did you mean {meant!r}?" if meant else nearest(name, known) or f"; it has {', '.join(known)}"
        advice = renamed(path) or f"{schema.__name__} has no {name!r}{hint}"
        ArcforgeError.__init__(self, f"unknown field {path}: {advice}")
        self.field, self.value, self.accepted = path, None, ", ".join(known)


def _check_name(path: str, node: ComponentConfig, owners: Owners) -> None:
    """Refuses a component's name that does not belong to its dataclass."""
    claims = owners.get(type(node), [])
    if node.name in [name for _, name in claims]:
        return
    group = path.split(".", 1)[0]
    if not claims:
        raise ConfigError(path, node.name, f"choose one with {group}=NAME, of {', '.join(options(group))}")
    kind, own = claims[0]
    raise ConfigError(
        f"{path}.name", node.name, f"this is the {kind} {own!r}; write {kind}={node.name} to choose another"
    )


def _full_path(config: DictConfig, error: ConfigError) -> str:
    """Returns the full path of a value that a dataclass refused.

    A dataclass knows only its usual path (``data.heldout``), not that it is ``data.sources.code`` here.
    """
    for path, node in reversed(list(_nodes(config))):  # innermost first
        try:
            OmegaConf.to_object(node)
        except ConfigError as found:
            if (found.field, found.accepted) != (error.field, error.accepted):
                continue  # a fault of its own, which is reported once this one is mended
            inside = not path or error.field.startswith(f"{path}.")
            return error.field if inside else f"{path}.{error.field.rsplit('.', 1)[-1]}"
        except OmegaConfBaseException:
            continue
    return error.field


def _nodes(config: DictConfig, path: str = "") -> Iterator[tuple[str, DictConfig]]:
    yield path, config
    if config._is_missing() or config._is_none():
        return
    for key in config:
        child = config._get_node(key)
        if isinstance(child, DictConfig):
            yield from _nodes(child, f"{path}.{key!s}".lstrip("."))


def explain(error: OmegaConfBaseException, context: str = "") -> ArcforgeError:
    """Returns the error of ours for one of OmegaConf's: the field, the value and the accepted values.

    `context` describes the operation, for errors in which OmegaConf names no field.
    """
    path, owner = error.full_key or "", error.object_type
    if isinstance(error, ConfigAttributeError | ConfigKeyError):
        if dataclasses.is_dataclass(owner):
            return UnknownFieldError(path, cast(type[Any], owner))
        return ArcforgeError(f"{path}: a new key here is written +{path}=VALUE")
    if isinstance(error, MissingMandatoryValue):
        return ArcforgeError(f"{path}: a value must be given, as {path}=VALUE")
    if isinstance(error, ValidationError) and owner is not None:
        hint = _hint_of(error)
        if dataclasses.is_dataclass(hint):
            return ConfigError(
                path, error.value, f"this is a section; set its fields, as {path}.{_names(hint)[0]}=VALUE"
            )
        return ConfigError(path, error.value, f"must be {type_words(hint)}")
    return ArcforgeError(f"{context or path}: {str(error).splitlines()[0]}".lstrip(": "))


def _hint_of(error: ValidationError) -> Any:
    """Returns the type that the refused value should have had."""
    if dataclasses.is_dataclass(error.object_type):
        return get_type_hints(error.object_type)[error.key]
    return (get_args(error.ref_type) or (error.ref_type,))[-1]  # the values of a dict, the items of a list


def type_words(hint: Any) -> str:
    """Returns a type hint in a user's words, e.g. ``int or null`` and ``dict[str, float]``."""
    if get_origin(hint) is UnionType:
        return " or ".join(type_words(part) for part in get_args(hint))
    if get_args(hint):
        return f"{get_origin(hint).__name__}[{', '.join(type_words(part) for part in get_args(hint))}]"
    return {NoneType: "null", Any: "anything"}.get(hint) or str(hint.__name__)
