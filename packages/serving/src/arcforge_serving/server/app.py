"""The application: routers, errors, and the engine's life."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp

from arcforge_core import __version__
from arcforge_serving.server import chat, completions, dashboard, info, page
from arcforge_serving.server.access import Access, Record
from arcforge_serving.server.admin import Control, admin_routes
from arcforge_serving.server.dialects import anthropic, responses
from arcforge_serving.server.errors import add_error_handlers
from arcforge_serving.server.metrics import Metrics, metrics_route
from arcforge_serving.server.state import ServerState


def create_app(state: ServerState) -> FastAPI:
    """Returns the application; the engine is started and closed with it.

    Args:
        state: what is served.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        state.engine.start()
        yield
        state.closing = True
        await asyncio.to_thread(state.engine.close)

    app = _App(title="arcforge", version=__version__, lifespan=lifespan)
    app.state.server = state
    add_error_handlers(app)
    metrics = Metrics(state.engine, state.name)
    state.observers.append(metrics)
    control = Control(state.engine, metrics, state.weights_root)
    dialects = (chat.router, completions.router, anthropic.router, responses.router)
    pages = (info.router, page.router, dashboard.router)
    for router in (*dialects, *pages, metrics_route(metrics), admin_routes(control)):
        app.include_router(router)

    def answered(path: str, status: int, seconds: float, record: Record) -> None:
        metrics.answered(path, status)
        if record.usage is not None:
            state.guard.rates.spend(record.holder, record.usage.completion)

    app.answered = answered
    return app


class _App(FastAPI):
    answered: Callable[[str, int, float, Record], None]

    def build_middleware_stack(self) -> ASGIApp:
        """Returns the application with `Access` around all of it, the answers to faults included."""
        return Access(super().build_middleware_stack(), self.answered)

    def openapi(self) -> dict[str, Any]:
        """Returns the document without the status that FastAPI gives wrong requests; here it is 400."""
        document = super().openapi()
        for path in document["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        return document
