"""The server's application with sessions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from fastapi import FastAPI

from arcforge_serving.configs import GatewayConfig
from arcforge_serving.gateway.metrics import SessionCollector
from arcforge_serving.gateway.paths import SessionPaths
from arcforge_serving.gateway.routes import router
from arcforge_serving.gateway.sessions import Sessions
from arcforge_serving.server.app import create_app
from arcforge_serving.server.openai.messages import template_of
from arcforge_serving.server.shared.state import ServerState


def gateway_app(state: ServerState, config: GatewayConfig) -> FastAPI:
    """Returns the application of a server, with the routes of sessions.

    Raises:
        ConfigError: the model has no chat template, an option does not fit it, or the log is another model's.
    """
    sessions = Sessions(template_of(state), config, state.name, getattr(state.engine, "records_experts", False))
    app = create_app(state, [router], partial(SessionPaths, sessions=sessions, limits=lambda: state.guard.limits))
    app.state.sessions = sessions
    state.metrics.registry.register(SessionCollector(sessions, state.name))
    whole = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with whole(app):
            yield
        sessions.end()

    app.router.lifespan_context = lifespan
    return app
