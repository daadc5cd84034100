"""``/metrics``: counts and times of requests and the engine's figures, for Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import PlainTextResponse, Response

from arcforge_serving.server.gate.guard import GuardedRoute
from arcforge_serving.server.shared.state import Server

router = APIRouter(route_class=GuardedRoute)


@router.get("/metrics", response_class=PlainTextResponse)
async def show(request: Request, server: Server) -> Response:
    """Returns the metrics in Prometheus' format."""
    content, content_type = await run_in_threadpool(server.metrics.page, request.headers.get("accept", ""))
    return Response(content, media_type=content_type)
