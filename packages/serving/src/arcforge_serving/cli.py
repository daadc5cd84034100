"""``arcforge-serve``: serves a checkpoint."""

from __future__ import annotations

from arcforge_core.cli.errors import run_main
from arcforge_core.config.compose import run_app
from arcforge_serving.configs import ServeConfig


def serve(config: ServeConfig) -> None:
    """Serves; torch and fastapi are imported here, so that ``--help`` and Tab completion do without."""
    if config.dp > 1 or config.prefill:
        from arcforge_serving.router.run import serve_fleet

        serve_fleet(config)
        return
    from arcforge_serving.server.run import serve

    serve(config)


@run_main
def main() -> int:
    """Runs the command line."""
    return run_app("serve", ServeConfig, serve)
