"""Checks of fields, for ``__post_init__`` of schemas; each error names the field, the value and the accepted values."""

from __future__ import annotations

import re

from arcforge_core.errors import ConfigError, nearest


def check_choice(field_name: str, value: str, accepted: tuple[str, ...]) -> None:
    """Raises `ConfigError` unless `value` is one of `accepted`."""
    if value not in accepted:
        raise ConfigError(field_name, value, f"must be one of {', '.join(accepted)}{nearest(value, accepted)}")


WEIGHTS = ("none", "w8a8", "w4a8", "int4")
"""Number formats of an engine's weights; see `arcforge_core.model.adapt.quantised`."""


def check_weights(field_name: str, value: str) -> None:
    """Raises `ConfigError` unless `value` is one of `WEIGHTS`."""
    check_choice(field_name, value, WEIGHTS)


INFERENCE_DTYPES = ("auto", "stored", "float32", "bfloat16")
"""Dtypes that a checkpoint is computed in; see `arcforge_core.checkpoint.pretrained.load_with_tokenizer`."""


def check_at_least(field_name: str, value: float | None, minimum: float) -> None:
    """Raises `ConfigError` unless `value` is None or at least `minimum`."""
    if value is not None and not value >= minimum:  # `not >=` also refuses NaN
        raise ConfigError(field_name, value, f"must be at least {minimum:g}")


def check_minimums(config: object, group: str, **minimums: float) -> None:
    """Raises `ConfigError` unless each named field of a dataclass is None or at least its minimum.

    Args:
        config: the dataclass.
        group: where the user writes its fields, e.g. ``trainer``; empty for the root.
        minimums: by field.
    """
    for name, minimum in minimums.items():
        check_at_least(f"{group}.{name}" if group else name, getattr(config, name), minimum)


def check_between(field_name: str, value: float, low: float, high: float) -> None:
    """Raises `ConfigError` unless low <= value <= high."""
    if not low <= value <= high:
        raise ConfigError(field_name, value, f"must be between {low:g} and {high:g}")


def check_multiple(field_name: str, value: int, other_name: str, other: int) -> None:
    """Raises `ConfigError` unless `value` is a multiple of `other`."""
    if value % other:
        raise ConfigError(field_name, value, f"must be a multiple of {other_name}={other}")


def check_text(field_name: str, value: object) -> None:
    """Raises `ConfigError` unless `value` is a string; for dataclasses that are filled from data, not by Hydra."""
    if not isinstance(value, str):
        raise ConfigError(field_name, value, "must be a text")


def check_expressions(field_name: str, patterns: list[str]) -> None:
    """Raises `ConfigError` unless all are regular expressions."""
    for index, pattern in enumerate(patterns):
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"{field_name}[{index}]", pattern, f"must be a regular expression: {error}") from error
