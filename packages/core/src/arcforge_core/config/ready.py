"""Checks of a run's surroundings before torch is imported: packages of its loggers, folders to write to."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from arcforge_core.config.schema import RunConfig
from arcforge_core.errors import ConfigError
from arcforge_core.files.rundir import check_new, check_writable


def check_packages(config: RunConfig) -> None:
    """Raises `ConfigError` if a logger needs a package that is not installed."""
    for name, logger in config.logger.items():
        if logger.requires and find_spec(logger.requires) is None:
            accepted = f"needs {logger.requires}: pip install 'arcforge-core[{logger.requires}]'"
            raise ConfigError("logger", name, accepted)


def check_folders(config: RunConfig) -> None:
    """Looks, in the first process of a new run, where the run will be written.

    Raises:
        ConfigError: ``output_dir`` or ``folder`` cannot be written, or ``folder`` exists.
    """
    if int(os.environ.get("RANK", 0)) or config.resume is not None:
        return
    check_writable("output_dir", Path(config.output_dir))
    check_writable("folder", Path(config.folder or config.output_dir))
    if config.folder is not None:
        check_new("folder", Path(config.folder))
