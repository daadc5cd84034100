"""Implements ``arcforge-env serve``: an environment as a task service of other runs."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from arcforge_core.console.progress import say
from arcforge_core.console.result import Result
from arcforge_core.errors import ConfigError
from arcforge_core.plugins.loader import registry
from arcforge_rl.configs.commands import EnvServeConfig
from arcforge_rl.orchestrator.services.program import serve_lines


def run(config: EnvServeConfig) -> Result:
    """Serves until standard input ends, or until Ctrl-C or SIGTERM.

    Raises:
        ConfigError: the port cannot be listened on.
    """
    environment = registry().get("environment", config.environment.name).load()(config.environment)
    if config.port is None:
        asyncio.run(serve_lines(environment))
        return Result(Path.cwd(), {})
    import uvicorn

    from arcforge_rl.orchestrator.services.app import app_of

    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((config.host, config.port))
            listener.listen(2048)  # before the word: a run that connects at once waits, and is not refused
        except OSError as error:
            raise ConfigError("port", config.port, f"cannot be listened on: {error.strerror}") from error
        host = f"[{config.host}]" if ":" in config.host else config.host
        say(f"serving {config.environment.name} at http://{host}:{listener.getsockname()[1]}")
        server = uvicorn.Server(uvicorn.Config(app_of(environment), log_level="warning"))
        server.run(sockets=[listener])
    return Result(Path.cwd(), {})
