"""The application: routers, errors, and the engine's life."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from arcforge_core import __version__
from arcforge_serving.server import info, metrics, pooling, tokens
from arcforge_serving.server.admin import Control, admin_routes
from arcforge_serving.server.anthropic import routes as anthropic
from arcforge_serving.server.gate.access import Access
from arcforge_serving.server.gate.hosts import Hosted
from arcforge_serving.server.gate.record import RequestRecord
from arcforge_serving.server.openai import chat, completions
from arcforge_serving.server.pages import lesson, page
from arcforge_serving.server.responses import routes as responses
from arcforge_serving.server.shared.errors import add_error_handlers, answer_at
from arcforge_serving.server.shared.state import ServerState


def create_app(
    state: ServerState, routers: Sequence[APIRouter] = (), inner: Callable[[ASGIApp], ASGIApp] = lambda app: app
) -> FastAPI:
    """Returns the application; the engine is started and closed with it.

    Args:
        state: the engine, the tokenizer and the settings.
        routers: of further routes.
        inner: wraps the application inside of names, origins and the log.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        state.engine.start()
        yield
        state.closing = True
        if state.lesson is not None:
            await asyncio.to_thread(state.lesson.stop)
        await asyncio.to_thread(state.engine.close)

    app = _App(title="arcforge", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.server = state
    add_error_handlers(app)
    control = Control(state.engine, state.metrics, state.weights_root)
    dialects = (chat.router, completions.router, anthropic.router, responses.router)
    pages = (info.router, metrics.router, lesson.router, page.router)
    for router in (*dialects, *pages, pooling.router, tokens.router, admin_routes(control), *routers):
        app.include_router(router)

    def answered(path: str, status: int, seconds: float, record: RequestRecord) -> None:
        state.metrics.answered(path, status)
        if record.usage is not None:
            state.guard.rates.spend(record.holder, record.usage.completion)

    app.answered, app.inner = answered, inner
    return app


class _App(FastAPI):
    answered: Callable[[str, int, float, RequestRecord], None]
    inner: Callable[[ASGIApp], ASGIApp]

    def build_middleware_stack(self) -> ASGIApp:
        """Returns the application with `Access` around all of it, the answers to faults and refusals included."""
        server: ServerState = self.state.server
        hosted = Hosted(
            self.inner(super().build_middleware_stack()),
            lambda: server.guard.hosts,
            lambda scope, status, message: answer_at(scope, HTTPException(status, message)),
        )
        return Access(hosted, self.answered)

    def openapi(self) -> dict[str, Any]:
        """Returns the document without the status that FastAPI gives wrong requests; here it is 400."""
        document = super().openapi()
        for path in document["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        return document
