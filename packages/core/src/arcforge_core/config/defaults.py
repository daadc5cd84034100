"""Core's own component of each group, for commands that need a whole configuration but use part of it."""

from __future__ import annotations

CORE_OPTIONS = {"attention": "reference", "optimizer": "torch_adamw", "schedule": "constant"}


def with_core_options(overrides: list[str], *groups: str) -> list[str]:
    """Returns the overrides, with core's own option for each of `groups` that they do not choose.

    Without it, a command that only looks at the hardware would ask for the wheel of the default optimizer.
    """
    chosen = {override.partition("=")[0] for override in overrides}
    return [*(f"{group}={CORE_OPTIONS[group]}" for group in groups if group not in chosen), *overrides]
