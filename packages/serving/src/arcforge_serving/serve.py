"""The job ``serve``: one server, or a router before several."""

from __future__ import annotations

from arcforge_serving.configs import ServeConfig


def serve(config: ServeConfig) -> None:
    """Serves until it is stopped; a fleet with ``dp`` over 1 or with prefill engines."""
    if config.dp > 1 or config.prefill:
        from arcforge_serving.router.serve import serve_fleet

        serve_fleet(config)
        return
    from arcforge_serving.server.serve import serve

    if config.gateway.sessions:
        from arcforge_serving.gateway.app import gateway_app

        serve(config, lambda state: gateway_app(state, config.gateway))
        return
    serve(config)
