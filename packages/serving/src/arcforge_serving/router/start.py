"""What an engine's process is asked to run; imports torch in that process only."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

from arcforge_serving.configs import ServeConfig


def run_engine(config: ServeConfig, path: str, key: str, router: Connection, *further: Any) -> None:
    """See `arcforge_serving.router.engine`."""
    from arcforge_serving.router.engine import run_engine

    run_engine(config, path, key, router, *further)
