"""The status page over HTTP, for this machine only."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse
from starlette.middleware.trustedhost import TrustedHostMiddleware

from arcforge_core.contracts.serving_engine import EngineStats, ServingEngine
from arcforge_core.errors import ArcforgeError
from arcforge_rl.orchestrator.collector import Collector
from arcforge_rl.orchestrator.status import page_of, status_of

REFRESH = 2
"""Seconds after which a browser loads the page again."""
PATIENCE = 2.0
"""Seconds for the figures of an engine."""


def app_of(name: str, collector: Collector, engine: ServingEngine) -> FastAPI:
    """Returns the application: ``GET /`` and ``/status``, and with JSON ``POST /pause``, ``/resume`` and ``/drain``."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])

    async def status() -> dict[str, Any]:
        return status_of(collector, await stats_of(engine))

    @app.get("/")
    async def page() -> HTMLResponse:
        return HTMLResponse(page_of(name, await status()).render(), headers={"Refresh": f"{REFRESH}"})

    app.get("/status")(status)

    def action(path: str, act: Callable[[], Awaitable[None]]) -> None:
        @app.post(path)
        async def answer(request: Request) -> dict[str, Any]:
            if request.headers.get("content-type") != "application/json":  # no other site's form sends that
                raise HTTPException(415, "send content-type: application/json")
            await act()
            return await status()

    for path, act in (("/pause", collector.pause), ("/resume", collector.resume), ("/drain", collector.drain)):
        action(path, act)
    return app


async def stats_of(engine: ServingEngine) -> EngineStats:
    """Returns the figures of an engine; zeros of one that is gone or hangs."""
    with suppress(ArcforgeError, TimeoutError):
        return await asyncio.wait_for(asyncio.to_thread(engine.stats), PATIENCE)
    return EngineStats(0, 0)


class StatusServer:
    """Serves the page on the loop that it is started on.

    Args:
        app: the application.
        listener: its socket.
    """

    def __init__(self, app: FastAPI, listener: socket.socket) -> None:
        config = uvicorn.Config(app, log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
        self._server, self._listener = uvicorn.Server(config), listener
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begins to serve."""
        self._task = asyncio.get_running_loop().create_task(self._server.serve([self._listener]))

    async def stop(self) -> None:
        """Ends it."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task
