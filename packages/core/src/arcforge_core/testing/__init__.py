"""Conformance suites for plugin authors, imported on first use; they need the extra ``arcforge-core[test]``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from arcforge_core.testing.attention_suite import AttentionSuite
    from arcforge_core.testing.hardware_suite import HardwareBackendSuite

SUITES = {"AttentionSuite": "attention_suite", "HardwareBackendSuite": "hardware_suite"}

__all__ = ["AttentionSuite", "HardwareBackendSuite"]


def __getattr__(name: str) -> Any:
    if name in SUITES:
        return getattr(import_module(f"{__name__}.{SUITES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
