"""``/dashboard``: a page that draws what ``/metrics`` says. It is one file and asks no other server for anything."""

from __future__ import annotations

from importlib import resources

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from arcforge_serving.server.gate.auth import Level
from arcforge_serving.server.gate.guard import GuardedRoute, declare
from arcforge_serving.server.shared.errors import RESPONSES

PAGE = "dashboard.html"
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
router = APIRouter(responses=RESPONSES, route_class=GuardedRoute)


@router.get("/dashboard", response_class=HTMLResponse)
@declare(Level.OPEN)
async def dashboard() -> HTMLResponse:
    """Shows the page; the figures come from ``/metrics``, whose key it asks for where there is one."""
    text = resources.files(__package__).joinpath(PAGE).read_text(encoding="utf-8")
    return HTMLResponse(text, headers={"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"})
