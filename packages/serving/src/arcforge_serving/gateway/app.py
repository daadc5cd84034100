"""The server's application with sessions."""

from __future__ import annotations

from functools import partial

from fastapi import FastAPI

from arcforge_serving.configs import GatewayConfig
from arcforge_serving.gateway.paths import SessionPaths
from arcforge_serving.gateway.routes import router
from arcforge_serving.gateway.sessions import Sessions
from arcforge_serving.server.app import create_app
from arcforge_serving.server.openai.messages import template_of
from arcforge_serving.server.shared.state import ServerState


def gateway_app(state: ServerState, config: GatewayConfig) -> FastAPI:
    """Returns the application of a server, with the routes of sessions.

    Raises:
        ConfigError: the model has no chat template, or an option does not fit it.
    """
    sessions = Sessions(template_of(state), config)
    app = create_app(state, [router], partial(SessionPaths, sessions=sessions, limits=lambda: state.guard.limits))
    app.state.sessions = sessions
    return app
