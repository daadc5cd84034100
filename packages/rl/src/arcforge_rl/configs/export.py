"""The schema of ``arcforge-env export``; torch-free."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from arcforge_core.config.schema import EnvironmentConfig
from arcforge_core.errors import ConfigError
from arcforge_rl.configs.others import agent_of

PACKAGE = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
VERSION = re.compile(r"\d+(\.\d+)*((a|b|rc|\.post|\.dev)\d+)?")


@dataclass
class EnvExportConfig:
    """The root of ``arcforge-env export``: an environment as a package for the library ``verifiers``."""

    environment: EnvironmentConfig = MISSING
    to: str = "."
    """Parent of the new folder."""
    package: str = ""
    """Name of the package and of its folder; empty: ``arcforge-`` and the environment's name."""
    version: str = "0.1.0"
    """Of the package."""
    agents: dict[str, Any] = field(default_factory=dict)
    """Agents besides the solver that the environment asks, as ``arcforge-rl``'s; servers only."""

    def __post_init__(self) -> None:
        if self.package and not PACKAGE.fullmatch(self.package):
            accepted = "must be lower-case letters and digits in words joined by -, starting with a letter"
            raise ConfigError("package", self.package, accepted)
        if not VERSION.fullmatch(self.version):
            raise ConfigError("version", self.version, "must be a version such as 0.1.0 or 1.2rc1")
        self.agents = {name: agent_of(fields, name) for name, fields in self.agents.items()}
        for name, agent in self.agents.items():
            if agent.url is None:
                raise ConfigError(f"agents.{name}.engine", agent.engine, "cannot be exported: name url, a server")
