"""Conformance suites for plugin authors, imported on first use; they need the extra ``arcforge-core[test]``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from arcforge_core.testing.algorithm_suite import AlgorithmSuite
    from arcforge_core.testing.attention_suite import AttentionSuite
    from arcforge_core.testing.chat_suite import ChatTemplateSuite, ParserSuite
    from arcforge_core.testing.cheats import CheatSuite
    from arcforge_core.testing.checker_suite import CheckerSuite
    from arcforge_core.testing.correction_suite import CorrectionSuite
    from arcforge_core.testing.data_suite import DataSuite
    from arcforge_core.testing.engine_suite import EngineSuite
    from arcforge_core.testing.environment_suite import EnvironmentSuite
    from arcforge_core.testing.hardware_suite import HardwareBackendSuite
    from arcforge_core.testing.optimizer_suite import OptimizerSuite
    from arcforge_core.testing.sandbox_suite import SandboxSuite
    from arcforge_core.testing.schedule_suite import ScheduleSuite
    from arcforge_core.testing.serving_engine_suite import ServingEngineSuite

SUITES = {
    "AlgorithmSuite": "algorithm_suite",
    "AttentionSuite": "attention_suite",
    "ChatTemplateSuite": "chat_suite",
    "CheatSuite": "cheats",
    "CheckerSuite": "checker_suite",
    "CorrectionSuite": "correction_suite",
    "DataSuite": "data_suite",
    "EngineSuite": "engine_suite",
    "EnvironmentSuite": "environment_suite",
    "HardwareBackendSuite": "hardware_suite",
    "OptimizerSuite": "optimizer_suite",
    "ParserSuite": "chat_suite",
    "SandboxSuite": "sandbox_suite",
    "ScheduleSuite": "schedule_suite",
    "ServingEngineSuite": "serving_engine_suite",
}

__all__ = [
    "AlgorithmSuite",
    "AttentionSuite",
    "ChatTemplateSuite",
    "CheatSuite",
    "CheckerSuite",
    "CorrectionSuite",
    "DataSuite",
    "EngineSuite",
    "EnvironmentSuite",
    "HardwareBackendSuite",
    "OptimizerSuite",
    "ParserSuite",
    "SandboxSuite",
    "ScheduleSuite",
    "ServingEngineSuite",
]


def __getattr__(name: str) -> Any:
    if name in SUITES:
        return getattr(import_module(f"{__name__}.{SUITES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
